/*
 * cuda_reduce.cu - reductions of buffers that lie in one device's memory, what changes nothing in
 * them, and small services. One thread per element. NCCL reduces between ranks; its engine calls
 * these where no other rank is involved.
 */
#include "kernels/cuda_reduce.cuh"

#define REDUCE_THREADS 256

template <typename T>
static __global__ void reduce_kernel(const __grid_constant__ reduce_launch_t launch)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < launch.count;
         i += (size_t)gridDim.x * blockDim.x) {
        reduce_element<T>(launch, i);
    }
}

template <typename T> static __global__ void fill_kernel(T value, T *to, size_t count)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        to[i] = value;
    }
}

static __global__ void word_kernel(uint32_t *word, uint32_t value)
{
    dp_store_word(word, value);
}

/* ---- From the host -------------------------------------------------------------------------- */

typedef void (*reduce_function_t)(const reduce_launch_t);

static reduce_function_t reduce_of(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_U8:
        return reduce_kernel<uint8_t>;
    case DP_I8:
        return reduce_kernel<int8_t>;
    case DP_U16:
        return reduce_kernel<uint16_t>;
    case DP_I16:
        return reduce_kernel<int16_t>;
    case DP_I32:
        return reduce_kernel<int32_t>;
    case DP_U32:
        return reduce_kernel<uint32_t>;
    case DP_I64:
        return reduce_kernel<int64_t>;
    case DP_U64:
        return reduce_kernel<uint64_t>;
    case DP_F16:
        return reduce_kernel<half_bits_t>;
    case DP_BF16:
        return reduce_kernel<bfloat_bits_t>;
    case DP_F32:
        return reduce_kernel<float>;
    case DP_F64:
        return reduce_kernel<double>;
    case DP_BOOL:
        return reduce_kernel<bool_byte_t>;
    default:
        return NULL;
    }
}

/* Threads for `count` elements: enough to fill any device, the rest in a loop. */
static unsigned grid_of(size_t count)
{
    const size_t blocks = (count + REDUCE_THREADS - 1) / REDUCE_THREADS;

    return (unsigned)(blocks < 4096 ? blocks : 4096);
}

extern "C" int dp_cuda_reduce(const dp_reduce_args_t *args, void *stream)
{
    const reduce_function_t function = reduce_of(args->dtype);
    reduce_launch_t launch;

    if (function == NULL || args->in_count < 1 || args->in_count > DP_CUDA_REDUCE_MAX ||
        args->out_count != 1 || args->tally != NULL) {
        return cudaErrorInvalidValue;
    }
    if (args->count == 0) return cudaSuccess;
    for (int i = 0; i < args->in_count; i++)
        launch.in[i] = args->in[i];
    launch.in_count = args->in_count;
    launch.out = args->out[0];
    launch.count = args->count;
    launch.prescale = args->prescale;
    launch.postscale = args->postscale;
    launch.divisor = args->divisor;
    launch.reduce = args->reduce;
    return DP_LAUNCH(function, grid_of(args->count), REDUCE_THREADS, 0, stream, launch);
}

/* The identity as the bits of an element. */
static uint64_t identity_bits(dp_dtype_t dtype, dp_reduce_t reduce)
{
    const bool is_min = reduce == DP_MIN, is_max = reduce == DP_MAX;

    if (reduce == DP_SUM || reduce == DP_AVERAGE) return 0;
    switch (dtype) {
    case DP_F16:
        return is_min ? 0x7c00u : is_max ? 0xfc00u : 0x3c00u;
    case DP_BF16:
        return is_min ? 0x7f80u : is_max ? 0xff80u : 0x3f80u;
    case DP_F32:
        return is_min ? 0x7f800000u : is_max ? 0xff800000u : 0x3f800000u;
    case DP_F64:
        return is_min ? 0x7ff0000000000000u : is_max ? 0xfff0000000000000u : 0x3ff0000000000000u;
    case DP_I8:
        return is_min ? 0x7fu : is_max ? 0x80u : 1u;
    case DP_I16:
        return is_min ? 0x7fffu : is_max ? 0x8000u : 1u;
    case DP_I32:
        return is_min ? 0x7fffffffu : is_max ? 0x80000000u : 1u;
    case DP_I64:
        return is_min ? 0x7fffffffffffffffu : is_max ? 0x8000000000000000u : 1u;
    case DP_BOOL:
        return is_max ? 0 : 1;
    default: /* unsigned */
        return is_min ? ~(uint64_t)0 : is_max ? 0 : 1u;
    }
}

template <typename T> static cudaError_t fill(uint64_t bits, void *to, size_t count, void *stream)
{
    return DP_LAUNCH(fill_kernel<T>, grid_of(count), REDUCE_THREADS, 0, stream, (T)bits, (T *)to,
                     count);
}

extern "C" int dp_cuda_fill_identity(dp_dtype_t dtype, dp_reduce_t reduce, void *to, size_t count,
                                     void *stream)
{
    const uint64_t bits = identity_bits(dtype, reduce);

    if (reduce_of(dtype) == NULL) return cudaErrorInvalidValue;
    if (count == 0) return cudaSuccess;
    switch (dtype) {
    case DP_U8:
    case DP_I8:
    case DP_BOOL:
        return fill<uint8_t>(bits, to, count, stream);
    case DP_U16:
    case DP_I16:
    case DP_F16:
    case DP_BF16:
        return fill<uint16_t>(bits, to, count, stream);
    case DP_U32:
    case DP_I32:
    case DP_F32:
        return fill<uint32_t>(bits, to, count, stream);
    default:
        return fill<uint64_t>(bits, to, count, stream);
    }
}

extern "C" int dp_cuda_set_word(uint32_t *word, uint32_t value, void *stream)
{
    return DP_LAUNCH(word_kernel, 1, 1, 0, stream, word, value);
}

int dp_cuda_cast_preload(void);
int dp_cuda_figures_preload(void);

extern "C" int dp_cuda_kernels_preload(void)
{
    cudaFuncAttributes attributes;
    int status = dp_cuda_cast_preload();

    if (status == cudaSuccess) status = dp_cuda_figures_preload();

    for (int dtype = 0; status == cudaSuccess && dtype < DP_DTYPE_COUNT; dtype++) {
        status = cudaFuncGetAttributes(&attributes, (const void *)reduce_of((dp_dtype_t)dtype));
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, (const void *)fill_kernel<uint8_t>);
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, (const void *)fill_kernel<uint16_t>);
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, (const void *)fill_kernel<uint32_t>);
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, (const void *)fill_kernel<uint64_t>);
    }
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, (const void *)word_kernel);
    }
    return status;
}
