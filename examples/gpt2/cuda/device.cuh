/*
 * device.cuh - what the element-wise kernels share: eight elements at a time, and sums over warps
 * and blocks in a fixed order.
 *
 * Eight elements are 16 bytes of a 16-bit type or 32 of fp32. Kernels are made twice: for pointers
 * and rows that are aligned to that, and for others, where the eight are read one by one. Nothing
 * here knows of the model.
 */
#ifndef GPT2_CUDA_DEVICE_CUH
#define GPT2_CUDA_DEVICE_CUH

#include "examples/gpt2/cuda/half.cuh"
#include "examples/gpt2/cuda/kernels.h"

#define WARP 32
#define VECTOR 8    /* elements that a thread handles at once */
#define ROW_WARPS 8 /* rows, one per warp, of a block in kernels that go by rows */
#define EVERY_LANE 0xffffffffu
/* Threads of a block in kernels without rows: 8 warps hide memory's latency on every chip. */
#define FLAT_THREADS 256

/* Every file's part of gpt2_cuda_kernels_prepare(). */
int gpt2_cuda_embed_prepare(void);
int gpt2_cuda_norm_prepare(void);
int gpt2_cuda_norm_backward_prepare(void);
int gpt2_cuda_gelu_prepare(void);
int gpt2_cuda_sums_prepare(void);
int gpt2_cuda_classifier_prepare(void);
int gpt2_cuda_adamw_prepare(void);
int gpt2_cuda_lamb_prepare(void);
int gpt2_cuda_powersgd_prepare(void);
int gpt2_cuda_topk_prepare(void);

/* Where the sums of a second pass go. */
#define FOLDS 3
typedef struct fold_outs {
    float *to[FOLDS]; /* [width] each; NULL: not wanted */
    int adds[FOLDS];  /* to what is there */
} fold_outs_t;

/* Second pass of sums over rows (sums.cu): to[i][c] (+)= the sum over p < parts of
 * partial[p][i][c], i < count, in one fixed order. */
int gpt2_cuda_fold(gpt2_cuda_stream_t stream, const fold_outs_t &outs, unsigned count,
                   const float *partial, size_t parts, size_t width);

/* Loads kernels by asking for something. */
template <typename F> static int load_kernel(F *kernel)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, (const void *)kernel);
}

/* The one of three that were made for these types. */
template <typename F> static F *of_type(gpt2_cuda_type_t type, F *f32, F *bf16, F *fp16)
{
    return type == GPT2_CUDA_F32 ? f32 : type == GPT2_CUDA_BF16 ? bf16 : fp16;
}

static inline bool is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % sizeof(uint4) == 0;
}

static inline size_t parts_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* ---- Eight elements ------------------------------------------------------------------------- */

DEVICE_INLINE void unpack(const float *at, float (&x)[VECTOR])
{
    const float4 low = ((const float4 *)(const void *)at)[0];
    const float4 high = ((const float4 *)(const void *)at)[1];

    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

template <typename T> DEVICE_INLINE void unpack(const T *at, float (&x)[VECTOR])
{
    const uint4 all = *(const uint4 *)(const void *)at;
    const uint32_t pairs[4] = {all.x, all.y, all.z, all.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 both = unpack_pair<T>(pairs[i]);

        x[2 * i] = both.x;
        x[2 * i + 1] = both.y;
    }
}

DEVICE_INLINE void pack(float *at, const float (&x)[VECTOR])
{
    ((float4 *)(void *)at)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)(void *)at)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

template <typename T> DEVICE_INLINE void pack(T *at, const float (&x)[VECTOR])
{
    *(uint4 *)(void *)at = make_uint4(pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]),
                                      pack_pair<T>(x[4], x[5]), pack_pair<T>(x[6], x[7]));
}

/*
 * x = at [count], zeros behind. is_whole: there are eight, and aligned; a constant of the kernel,
 * or loads would hide behind branches and wait for each other.
 */
template <bool is_whole, typename T>
DEVICE_INLINE void load(const T *at, size_t count, float (&x)[VECTOR])
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
DEVICE_INLINE void store(T *at, size_t count, const float (&x)[VECTOR])
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

/* Eight elements as they lie in memory. Kernels that load early and compute late keep these: the
 * compiler unpacks at once what load() reads, and with that waits for it. */
template <typename T> struct packed {
    uint4 words[VECTOR * sizeof(T) / sizeof(uint4)];
};

template <bool is_whole, typename T>
DEVICE_INLINE void load_packed(const T *at, size_t count, packed<T> *all)
{
    if (is_whole) {
        *all = *(const packed<T> *)(const void *)at;
    } else {
        float x[VECTOR];

        load<false>(at, count, x);
        pack((T *)(void *)all->words, x);
    }
}

template <typename T> DEVICE_INLINE void unpack(const packed<T> &all, float (&x)[VECTOR])
{
    unpack((const T *)(const void *)all.words, x);
}

/* Rounds a number as storing it as T does. */
template <typename T> DEVICE_INLINE float as_stored(float value)
{
    T stored;

    narrow(value, &stored);
    return widen(stored);
}

/* ---- Sums ----------------------------------------------------------------------------------- */

template <typename V> DEVICE_INLINE V warp_sum(V value)
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
template <typename V, int count> DEVICE_INLINE void block_sum(V (&values)[count], V *shared)
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
