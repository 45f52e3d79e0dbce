/*
 * adamw.cu - the optimizer over an arena, and plain copies.
 *
 * The update has the operations of examples/gpt2/cpu/adamw.c in their order. This file is compiled
 * without contraction, so each rounds once, and the host and any GPU get the same bits.
 */
#include "examples/gpt2/cuda/device.cuh"

#include <math.h>

struct update {
    float *weights, *m, *v;
    const float *gradients;
    void *copy; /* of the kernel's type */
    const uint8_t *decays;
    size_t count;
    float beta1, beta2, rest1, rest2, gradient_by, keep, step, root, epsilon;
    const float *clip;
    const uint32_t *skip;
    bool aligned;
};

template <typename T, bool is_whole>
DEVICE_INLINE void update_eight(const struct update &update, size_t at, float by, float keep)
{
    const size_t left = update.count - at;
    float weight[VECTOR], gradient[VECTOR], first[VECTOR], second[VECTOR];

    load<is_whole>(update.weights + at, left, weight);
    load<is_whole>(update.gradients + at, left, gradient);
    load<is_whole>(update.m + at, left, first);
    load<is_whole>(update.v + at, left, second);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float own = gradient[i] * by;

        first[i] = update.beta1 * first[i] + update.rest1 * own;
        second[i] = update.beta2 * second[i] + update.rest2 * (own * own);
        weight[i] = weight[i] * keep -
                    update.step * (first[i] / (sqrtf(second[i]) * update.root + update.epsilon));
    }
    store<is_whole>(update.weights + at, left, weight);
    store<is_whole>(update.m + at, left, first);
    store<is_whole>(update.v + at, left, second);
    if (update.copy != NULL) store<is_whole>((T *)update.copy + at, left, weight);
}

/* Bytes per element: 28 (weight, m, v read and written, gradient read), 30 with a copy. */
template <typename T>
static __global__ void __launch_bounds__(FLAT_THREADS) adamw_kernel(const struct update update)
{
    const size_t at = ((size_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VECTOR;
    float by, keep = 1.0f;

    if (at >= update.count) return;
    if (update.skip != NULL && *update.skip != 0) return;
    by = update.clip != NULL ? update.gradient_by * *update.clip : update.gradient_by;
    if (update.decays != NULL && update.decays[at / GPT2_CUDA_DECAY_GRAIN] != 0) keep = update.keep;
    if (update.aligned && update.count - at >= VECTOR) {
        update_eight<T, true>(update, at, by, keep);
    } else {
        update_eight<T, false>(update, at, by, keep);
    }
}

int gpt2_cuda_adamw(gpt2_cuda_stream_t stream, float *weights, const float *gradients, float *m,
                    float *v, gpt2_cuda_type_t copy_type, void *copy, const uint8_t *decays,
                    size_t count, const gpt2_adamw_t *adamw, const float *clip,
                    const uint32_t *skip)
{
    struct update update = {};
    auto *kernel = copy_type == GPT2_CUDA_F16 ? adamw_kernel<fp16_t> : adamw_kernel<bf16_t>;

    if (count == 0) return cudaSuccess;
    if (copy != NULL && copy_type == GPT2_CUDA_F32) return cudaErrorInvalidValue;
    update.weights = weights;
    update.m = m;
    update.v = v;
    update.gradients = gradients;
    update.copy = copy;
    update.decays = decays;
    update.count = count;
    update.beta1 = adamw->beta1;
    update.beta2 = adamw->beta2;
    update.rest1 = 1.0f - adamw->beta1;
    update.rest2 = 1.0f - adamw->beta2;
    update.gradient_by = adamw->gradient_by;
    update.keep = 1.0f - adamw->learning_rate * adamw->decay;
    update.step = adamw->learning_rate / adamw->correction1;
    update.root = 1.0f / sqrtf(adamw->correction2);
    update.epsilon = adamw->epsilon;
    update.clip = clip;
    update.skip = skip;
    update.aligned = is_aligned(weights) && is_aligned(gradients) && is_aligned(m) &&
                     is_aligned(v) && is_aligned(copy);
    return LAUNCH(kernel, (unsigned)parts_of(count, FLAT_THREADS * VECTOR), FLAT_THREADS, 0, stream,
                  update);
}

/* ---- Copies --------------------------------------------------------------------------------- */

/* Per element: reads one, writes one. */
template <typename To, typename From>
static __global__ void cast_kernel(To *to, const From *from, size_t count, bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VECTOR;
    float x[VECTOR];

    if (at >= count) return;
    if (aligned && count - at >= VECTOR) {
        load<true>(from + at, count - at, x);
        store<true>(to + at, count - at, x);
    } else {
        load<false>(from + at, count - at, x);
        store<false>(to + at, count - at, x);
    }
}

/* Per element: reads and writes one. */
template <typename T>
static __global__ void round_kernel(float *numbers, size_t count, bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VECTOR;
    float x[VECTOR];

    if (at >= count) return;
    if (aligned && count - at >= VECTOR) {
        load<true>(numbers + at, count - at, x);
    } else {
        load<false>(numbers + at, count - at, x);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = as_stored<T>(x[i]);
    if (aligned && count - at >= VECTOR) {
        store<true>(numbers + at, count - at, x);
    } else {
        store<false>(numbers + at, count - at, x);
    }
}

/* A block copies one grain. */
template <typename T>
static __global__ void cast_grains_kernel(float *to, const T *from, const uint32_t *grains)
{
    const T *source = from + (size_t)grains[blockIdx.x] * GPT2_CUDA_DECAY_GRAIN;
    float *target = to + (size_t)blockIdx.x * GPT2_CUDA_DECAY_GRAIN;

    for (unsigned at = threadIdx.x * VECTOR; at < GPT2_CUDA_DECAY_GRAIN;
         at += FLAT_THREADS * VECTOR) {
        float x[VECTOR];

        load<true>(source + at, VECTOR, x);
        store<true>(target + at, VECTOR, x);
    }
}

/* The finaliser of splitmix64. */
BOTH_INLINE uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Per element: writes one. */
template <typename T, bool is_random>
static __global__ void fill_kernel(T *to, float value, uint64_t seed, size_t count, bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VECTOR;
    float x[VECTOR];

    if (at >= count) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const uint64_t bits =
            is_random ? mix(seed + (at + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u) : 0;

        x[i] = is_random ? (float)(int32_t)(bits >> 32) * 0x1p-31f : value;
    }
    if (aligned && count - at >= VECTOR) {
        store<true>(to + at, count - at, x);
    } else {
        store<false>(to + at, count - at, x);
    }
}

template <typename To, typename From>
static int launch_cast(gpt2_cuda_stream_t stream, void *to, const void *from, size_t count)
{
    auto *kernel = cast_kernel<To, From>;

    return LAUNCH(kernel, (unsigned)parts_of(count, FLAT_THREADS * VECTOR), FLAT_THREADS, 0, stream,
                  (To *)to, (const From *)from, count, is_aligned(to) && is_aligned(from));
}

template <typename To>
static int cast_to(gpt2_cuda_stream_t stream, void *to, gpt2_cuda_type_t from_type,
                   const void *from, size_t count)
{
    return of_type(from_type, launch_cast<To, float>, launch_cast<To, bf16_t>,
                   launch_cast<To, fp16_t>)(stream, to, from, count);
}

int gpt2_cuda_cast(gpt2_cuda_stream_t stream, gpt2_cuda_type_t to_type, void *to,
                   gpt2_cuda_type_t from_type, const void *from, size_t count)
{
    if (count == 0) return cudaSuccess;
    return of_type(to_type, cast_to<float>, cast_to<bf16_t>, cast_to<fp16_t>)(stream, to, from_type,
                                                                              from, count);
}

int gpt2_cuda_round(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *x, size_t count)
{
    auto *kernel = type == GPT2_CUDA_F16 ? round_kernel<fp16_t> : round_kernel<bf16_t>;

    if (count == 0 || type == GPT2_CUDA_F32) return cudaSuccess;
    return LAUNCH(kernel, (unsigned)parts_of(count, FLAT_THREADS * VECTOR), FLAT_THREADS, 0, stream,
                  x, count, is_aligned(x));
}

template <typename T>
static int launch_cast_grains(gpt2_cuda_stream_t stream, float *to, const void *from,
                              const uint32_t *grains, size_t count)
{
    auto *kernel = cast_grains_kernel<T>;

    return LAUNCH(kernel, (unsigned)count, FLAT_THREADS, 0, stream, to, (const T *)from, grains);
}

int gpt2_cuda_cast_grains(gpt2_cuda_stream_t stream, float *to, gpt2_cuda_type_t from_type,
                          const void *from, const uint32_t *grains, size_t count)
{
    if (count == 0) return cudaSuccess;
    if (from_type == GPT2_CUDA_F32 || !is_aligned(to) || !is_aligned(from))
        return cudaErrorInvalidValue;
    return from_type == GPT2_CUDA_F16 ? launch_cast_grains<fp16_t>(stream, to, from, grains, count)
                                      : launch_cast_grains<bf16_t>(stream, to, from, grains, count);
}

template <typename T, bool is_random>
static int launch_fill(gpt2_cuda_stream_t stream, void *x, float value, uint64_t seed, size_t count)
{
    auto *kernel = fill_kernel<T, is_random>;

    if (count == 0) return cudaSuccess;
    return LAUNCH(kernel, (unsigned)parts_of(count, FLAT_THREADS * VECTOR), FLAT_THREADS, 0, stream,
                  (T *)x, value, seed, count, is_aligned(x));
}

int gpt2_cuda_fill(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, float value,
                   size_t count)
{
    return of_type(type, launch_fill<float, false>, launch_fill<bf16_t, false>,
                   launch_fill<fp16_t, false>)(stream, x, value, 0, count);
}

int gpt2_cuda_fill_random(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, uint64_t seed,
                          size_t count)
{
    return of_type(type, launch_fill<float, true>, launch_fill<bf16_t, true>,
                   launch_fill<fp16_t, true>)(stream, x, 0.0f, mix(seed), count);
}

/* ---- All of them ---------------------------------------------------------------------------- */

template <typename T> static int prepare_type(void)
{
    int status = load_kernel(cast_kernel<T, float>);

    if (status == 0) status = load_kernel(cast_kernel<T, bf16_t>);
    if (status == 0) status = load_kernel(cast_kernel<T, fp16_t>);
    if (status == 0) status = load_kernel(fill_kernel<T, false>);
    if (status == 0) status = load_kernel(fill_kernel<T, true>);
    return status;
}

int gpt2_cuda_adamw_prepare(void)
{
    int status = load_kernel(adamw_kernel<bf16_t>);

    if (status == 0) status = load_kernel(adamw_kernel<fp16_t>);
    if (status == 0) status = load_kernel(round_kernel<bf16_t>);
    if (status == 0) status = load_kernel(round_kernel<fp16_t>);
    if (status == 0) status = load_kernel(cast_grains_kernel<bf16_t>);
    if (status == 0) status = load_kernel(cast_grains_kernel<fp16_t>);
    if (status == 0) status = prepare_type<float>();
    if (status == 0) status = prepare_type<bf16_t>();
    if (status == 0) status = prepare_type<fp16_t>();
    return status;
}

int gpt2_cuda_kernels_prepare(void)
{
    int status = gpt2_cuda_embed_prepare();

    if (status == 0) status = gpt2_cuda_norm_prepare();
    if (status == 0) status = gpt2_cuda_norm_backward_prepare();
    if (status == 0) status = gpt2_cuda_gelu_prepare();
    if (status == 0) status = gpt2_cuda_sums_prepare();
    if (status == 0) status = gpt2_cuda_classifier_prepare();
    if (status == 0) status = gpt2_cuda_adamw_prepare();
    if (status == 0) status = gpt2_cuda_lamb_prepare();
    if (status == 0) status = gpt2_cuda_powersgd_prepare();
    if (status == 0) status = gpt2_cuda_topk_prepare();
    return status;
}
