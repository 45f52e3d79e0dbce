/*
 * device.cuh - what the element-wise kernels share: eight elements at a time, and sums over warps
 * and blocks in a fixed order.
 *
 * Eight elements are 16 bytes of bf16 or 32 of fp32. Kernels are made twice: for pointers and rows
 * that are aligned to that, and for others, where the eight are read one by one. Nothing here knows
 * of the model.
 */
#ifndef GPT2_CUDA_DEVICE_CUH
#define GPT2_CUDA_DEVICE_CUH

#include "kernels/cuda_types.cuh"

#include "examples/gpt2/cuda/kernels.h"

#define WARP 32
#define VECTOR 8    /* elements that a thread handles at once */
#define ROW_WARPS 8 /* rows, one per warp, of a block in kernels that go by rows */
#define EVERY_LANE 0xffffffffu
#define FLAT_THREADS                                                                               \
    256 /* of kernels without rows: 8 warps hide memory's latency on every chip                    \
         */

typedef bfloat_bits_t bf16_t;

/* Every file's part of gpt2_cuda_kernels_prepare(). */
int gpt2_cuda_embed_prepare(void);
int gpt2_cuda_norm_prepare(void);
int gpt2_cuda_norm_backward_prepare(void);
int gpt2_cuda_gelu_prepare(void);
int gpt2_cuda_sums_prepare(void);
int gpt2_cuda_classifier_prepare(void);
int gpt2_cuda_adamw_prepare(void);

/* Second pass of sums over rows (sums.cu): out[which][c] (+)= the sum over p < parts of
 * partial[p][which][c], in one fixed order. outs: 1 or 2 of [width]. */
int gpt2_cuda_fold(gpt2_cuda_stream_t stream, float *out, float *out2, int accumulate,
                   const float *partial, size_t parts, size_t width);

/* Loads kernels by asking for something. */
template <typename F> static int load_kernel(F *kernel)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, (const void *)kernel);
}

static inline bool is_aligned(const void *pointer)
{
    return pointer == NULL || misalignment(pointer) == 0;
}

static inline size_t parts_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* ---- Eight elements --------------------------------------------------------------------------
 */

static __device__ __forceinline__ void unpack(const float *at, float (&x)[VECTOR])
{
    const words_t low = ((const words_t *)(const void *)at)[0];
    const words_t high = ((const words_t *)(const void *)at)[1];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = dp_bits_to_float(low.w[i]);
        x[4 + i] = dp_bits_to_float(high.w[i]);
    }
}

static __device__ __forceinline__ void unpack(const bf16_t *at, float (&x)[VECTOR])
{
    const words_t all = *(const words_t *)(const void *)at;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = dp_bits_to_float(all.w[i] << 16);
        x[2 * i + 1] = dp_bits_to_float(all.w[i] & 0xffff0000u);
    }
}

static __device__ __forceinline__ uint32_t float_bits(float value)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    return dp_f32_bits(value);
#endif
}

static __device__ __forceinline__ uint32_t narrow_pair(float low, float high)
{
#ifdef __CUDA_ARCH__
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return (uint32_t)__bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
#else
    return (uint32_t)dp_convert_f32_to_bf16(low) | (uint32_t)dp_convert_f32_to_bf16(high) << 16;
#endif
}

static __device__ __forceinline__ void pack(float *at, const float (&x)[VECTOR])
{
    words_t low, high;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        low.w[i] = float_bits(x[i]);
        high.w[i] = float_bits(x[4 + i]);
    }
    ((words_t *)(void *)at)[0] = low;
    ((words_t *)(void *)at)[1] = high;
}

static __device__ __forceinline__ void pack(bf16_t *at, const float (&x)[VECTOR])
{
    words_t all;

#pragma unroll
    for (int i = 0; i < 4; i++)
        all.w[i] = narrow_pair(x[2 * i], x[2 * i + 1]);
    *(words_t *)(void *)at = all;
}

/*
 * x = at [count], zeros behind. is_whole: there are eight, and aligned; a constant of the kernel,
 * or loads would hide behind branches and wait for each other.
 */
template <bool is_whole, typename T>
static __device__ __forceinline__ void load(const T *at, size_t count, float (&x)[VECTOR])
{
    if (is_whole) {
        unpack(at, x);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            x[i] = (size_t)i < count ? widen(at[i]) : 0.0f;
    }
}

template <bool is_whole, typename T>
static __device__ __forceinline__ void store(T *at, size_t count, const float (&x)[VECTOR])
{
    if (is_whole) {
        pack(at, x);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if ((size_t)i < count) narrow(x[i], &at[i]);
        }
    }
}

/* What is left of a number once stored as T. */
template <typename T> static __device__ __forceinline__ float as_stored(float value)
{
    T stored;

    narrow(value, &stored);
    return widen(stored);
}

/* ---- Sums ------------------------------------------------------------------------------------
 */

template <typename V> static __device__ __forceinline__ V warp_sum(V value)
{
#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2)
        value += __shfl_xor_sync(EVERY_LANE, value, bits);
    return value;
}

/*
 * Every thread gets the block's sums of `count` values. The block is one-dimensional, of whole
 * warps, and all of it calls. shared: [warps][count], free again when this returns.
 */
template <typename V, int count>
static __device__ __forceinline__ void block_sum(V (&values)[count], V *shared)
{
    const unsigned warps = blockDim.x / WARP, warp = threadIdx.x / WARP;

#pragma unroll
    for (int i = 0; i < count; i++)
        values[i] = warp_sum(values[i]);
    if (warps == 1) return;
    if (threadIdx.x % WARP == 0) {
#pragma unroll
        for (int i = 0; i < count; i++)
            shared[warp * count + i] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; i++)
        values[i] = shared[i];
    for (unsigned w = 1; w < warps; w++) {
#pragma unroll
        for (int i = 0; i < count; i++)
            values[i] += shared[w * count + i];
    }
    __syncthreads();
}

#endif
