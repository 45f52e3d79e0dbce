/*
 * gelu.cu - bias and GELU, for where they are not part of a matrix product.
 *
 * GPT-2's GELU is the tanh form, written with a logistic function:
 * gelu(x) = x s, s = 1 / (1 + exp(-x (A + B x^2))).
 */
#include "examples/gpt2/cuda/device.cuh"

#define GELU_A 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_B 0.0713548163f /* 0.044715 of it */

DEVICE_INLINE float logistic(float x, float square)
{
    return 1.0f / (1.0f + expf(-x * (GELU_A + GELU_B * square)));
}

/* Bytes per element of 16 bits: 4 with is_gelu (x read, out written), 2 more to write x with a
 * bias. A warp per row. */
template <typename T, bool is_gelu, bool aligned>
static __global__ void bias_kernel(T *out, T *x, const T *bias, size_t rows, size_t width)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;

    if (row >= rows) return;
    for (size_t at = (size_t)threadIdx.x * VECTOR; at < width; at += WARP * VECTOR) {
        const size_t place = row * width + at, left = width - at;
        float value[VECTOR], add[VECTOR];

        load<aligned>(x + place, left, value);
        if (bias != NULL) {
            load<aligned>(bias + at, left, add);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                value[i] = as_stored<T>(value[i] + add[i]);
            store<aligned>(x + place, left, value);
        }
        if (is_gelu) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                value[i] *= logistic(value[i], value[i] * value[i]);
            store<aligned>(out + place, left, value);
        }
    }
}

template <bool is_whole, typename T>
DEVICE_INLINE void gelu_back_eight(T *dx, const T *d_out, const T *x, size_t left)
{
    float d[VECTOR], value[VECTOR];

    load<is_whole>(d_out, left, d);
    load<is_whole>(x, left, value);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float square = value[i] * value[i], s = logistic(value[i], square);

        d[i] *= s + value[i] * s * (1.0f - s) * (GELU_A + 3.0f * GELU_B * square);
    }
    store<is_whole>(dx, left, d);
}

/* Bytes per element of 16 bits: 6 (d_out, x read; dx written). */
template <typename T>
static __global__ void gelu_back_kernel(T *dx, const T *d_out, const T *x, size_t count,
                                        bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VECTOR;

    if (at >= count) return;
    if (aligned && count - at >= VECTOR) {
        gelu_back_eight<true>(dx + at, d_out + at, x + at, count - at);
    } else {
        gelu_back_eight<false>(dx + at, d_out + at, x + at, count - at);
    }
}

template <typename T, bool is_gelu>
static int bias_gelu(gpt2_cuda_stream_t stream, void *out, void *x, const void *bias, size_t rows,
                     size_t width)
{
    const bool aligned =
        width % VECTOR == 0 && is_aligned(out) && is_aligned(x) && is_aligned(bias);
    auto *kernel = aligned ? bias_kernel<T, is_gelu, true> : bias_kernel<T, is_gelu, false>;

    if (rows == 0) return cudaSuccess;
    return LAUNCH(kernel, (unsigned)parts_of(rows, ROW_WARPS), dim3(WARP, ROW_WARPS), 0, stream,
                  (T *)out, (T *)x, (const T *)bias, rows, width);
}

int gpt2_cuda_add_bias(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, const void *bias,
                       size_t rows, size_t width)
{
    return of_type(type, bias_gelu<float, false>, bias_gelu<bf16_t, false>,
                   bias_gelu<fp16_t, false>)(stream, NULL, x, bias, rows, width);
}

int gpt2_cuda_gelu_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out, void *x,
                           const void *bias, size_t rows, size_t width)
{
    return of_type(type, bias_gelu<float, true>, bias_gelu<bf16_t, true>,
                   bias_gelu<fp16_t, true>)(stream, out, x, bias, rows, width);
}

template <typename T>
static int gelu_back(gpt2_cuda_stream_t stream, void *dx, const void *d_out, const void *x,
                     size_t count)
{
    if (count == 0) return cudaSuccess;
    return LAUNCH(gelu_back_kernel<T>, (unsigned)parts_of(count, FLAT_THREADS * VECTOR),
                  FLAT_THREADS, 0, stream, (T *)dx, (const T *)d_out, (const T *)x, count,
                  is_aligned(dx) && is_aligned(d_out) && is_aligned(x));
}

int gpt2_cuda_gelu_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *dx,
                            const void *d_out, const void *x, size_t count)
{
    return of_type(type, gelu_back<float>, gelu_back<bf16_t>, gelu_back<fp16_t>)(stream, dx, d_out,
                                                                                 x, count);
}

template <typename T, bool is_gelu> static int prepare_one(void)
{
    const int status = load_kernel(bias_kernel<T, is_gelu, true>);

    return status != 0 ? status : load_kernel(bias_kernel<T, is_gelu, false>);
}

int gpt2_cuda_gelu_prepare(void)
{
    int status = prepare_one<float, false>();

    if (status == 0) status = prepare_one<float, true>();
    if (status == 0) status = prepare_one<bf16_t, false>();
    if (status == 0) status = prepare_one<bf16_t, true>();
    if (status == 0) status = prepare_one<fp16_t, false>();
    if (status == 0) status = prepare_one<fp16_t, true>();
    if (status == 0) status = load_kernel(gelu_back_kernel<float>);
    if (status == 0) status = load_kernel(gelu_back_kernel<bf16_t>);
    if (status == 0) status = load_kernel(gelu_back_kernel<fp16_t>);
    return status;
}
