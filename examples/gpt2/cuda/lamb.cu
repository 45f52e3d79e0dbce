/*
 * lamb.cu - LAMB over an arena: moments, directions and sums of squares; a rate per tensor; the
 * weights.
 *
 * The operations and the order of the sums are those of examples/gpt2/cpu/lamb.c, one warp for a
 * block's lanes. This file is compiled without contraction, so each operation rounds once, and the
 * host and any GPU get the same bits. optimize.c queues it; nothing here knows of the model.
 */
#include "examples/gpt2/cuda/device.cuh"

#include <math.h>

#define WARPS (FLAT_THREADS / WARP)

static_assert(WARP == GPT2_LAMB_LANES, "a thread of a warp is a lane");
static_assert(GPT2_LAMB_BLOCK % (FLAT_THREADS * VECTOR) == 0, "threads have whole vectors");

struct lamb_update {
    float *weights, *gradients, *m, *v;
    void *copy; /* of the kernel's type */
    gpt2_cuda_lamb_t places;
    float beta1, beta2, rest1, rest2, unbias, root, epsilon, decay, gradient_by;
    double learning_rate, phi_max;
    const float *clip;
    const uint32_t *skip;
    bool aligned;
};

DEVICE_INLINE bool is_skipped(const struct lamb_update &update)
{
    return update.skip != NULL && *update.skip != 0;
}

/* A warp for each block. Bytes per element: 28 (weight read; gradient, m, v read and written). */
static __global__ void __launch_bounds__(FLAT_THREADS)
    direct_kernel(const struct lamb_update update)
{
    const size_t block = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;
    gpt2_cuda_lamb_tensor_t tensor;
    size_t first, size, base;
    float by, decay;
    double of_weights = 0.0, of_directions = 0.0;

    if (block >= update.places.blocks || is_skipped(update)) return;
    tensor = update.places.tensors[update.places.owners[block]];
    first = (block - tensor.block) * GPT2_LAMB_BLOCK;
    size = tensor.count - first < GPT2_LAMB_BLOCK ? tensor.count - first : GPT2_LAMB_BLOCK;
    base = tensor.offset + first;
    by = update.clip != NULL ? update.gradient_by * *update.clip : update.gradient_by;
    decay = tensor.adapts ? update.decay : 0.0f;
#pragma unroll 4
    for (size_t at = base + lane; at < base + size; at += WARP) {
        const float weight = update.weights[at];
        const float gradient = update.gradients[at] * by;
        const float m = update.beta1 * update.m[at] + update.rest1 * gradient;
        const float v = update.beta2 * update.v[at] + update.rest2 * (gradient * gradient);
        const float direction =
            m * update.unbias / (sqrtf(v) * update.root + update.epsilon) + decay * weight;

        update.m[at] = m;
        update.v[at] = v;
        update.gradients[at] = direction;
        of_weights += (double)weight * (double)weight;
        of_directions += (double)direction * (double)direction;
    }
    of_weights = warp_sum(of_weights);
    of_directions = warp_sum(of_directions);
    if (lane != 0) return;
    update.places.squares[2 * (tensor.squares + block - tensor.block)] = of_weights;
    update.places.squares[2 * (tensor.squares + block - tensor.block) + 1] = of_directions;
}

/* A warp for each tensor. */
static __global__ void rates_kernel(const struct lamb_update update)
{
    const size_t index = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;
    gpt2_cuda_lamb_tensor_t tensor;
    double of_weights = 0.0, of_directions = 0.0, rate = update.learning_rate;
    size_t blocks;

    if (index >= update.places.tensor_count || is_skipped(update)) return;
    tensor = update.places.tensors[index];
    blocks = (tensor.count + GPT2_LAMB_BLOCK - 1) / GPT2_LAMB_BLOCK;
    for (size_t block = lane; block < blocks; block += WARP) {
        of_weights += update.places.squares[2 * (tensor.squares + block)];
        of_directions += update.places.squares[2 * (tensor.squares + block) + 1];
    }
    of_weights = sqrt(warp_sum(of_weights));
    of_directions = sqrt(warp_sum(of_directions));
    if (update.phi_max > 0.0 && of_weights > update.phi_max) of_weights = update.phi_max;
    if (tensor.adapts && of_weights != 0.0 && of_directions != 0.0) {
        rate = update.learning_rate * (of_weights / of_directions);
    }
    if (lane == 0) update.places.rates[tensor.rate] = (float)rate;
}

template <typename T, bool is_whole>
DEVICE_INLINE void apply_eight(const struct lamb_update &update, size_t at, size_t left, float rate)
{
    float weight[VECTOR], direction[VECTOR];

    load<is_whole>(update.weights + at, left, weight);
    load<is_whole>(update.gradients + at, left, direction);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        weight[i] -= rate * direction[i];
    store<is_whole>(update.weights + at, left, weight);
    if (update.copy != NULL) store<is_whole>((T *)update.copy + at, left, weight);
}

/* A block of threads for each block. Bytes per element: 12, 14 with a copy. */
template <typename T>
static __global__ void __launch_bounds__(FLAT_THREADS) apply_kernel(const struct lamb_update update)
{
    const uint32_t owner = update.places.owners[blockIdx.x];
    const gpt2_cuda_lamb_tensor_t tensor = update.places.tensors[owner];
    const size_t first = ((size_t)blockIdx.x - tensor.block) * GPT2_LAMB_BLOCK;
    const bool aligned = update.aligned && tensor.offset % VECTOR == 0;
    float rate;

    if (is_skipped(update)) return;
    rate = update.places.rates[tensor.rate];
    for (size_t at = first + threadIdx.x * VECTOR;
         at < first + GPT2_LAMB_BLOCK && at < tensor.count; at += FLAT_THREADS * VECTOR) {
        const size_t left = tensor.count - at;

        if (aligned && left >= VECTOR) {
            apply_eight<T, true>(update, tensor.offset + at, left, rate);
        } else {
            apply_eight<T, false>(update, tensor.offset + at, left, rate);
        }
    }
}

static struct lamb_update update_of(const gpt2_cuda_lamb_t *places,
                                    const gpt2_cuda_lamb_step_t *step)
{
    const gpt2_lamb_t *lamb = step->lamb;
    struct lamb_update update = {};

    update.places = *places;
    update.beta1 = lamb->beta1;
    update.beta2 = lamb->beta2;
    update.rest1 = lamb->rest1;
    update.rest2 = lamb->rest2;
    update.unbias = 1.0f / lamb->correction1;
    update.root = 1.0f / sqrtf(lamb->correction2);
    update.epsilon = lamb->epsilon;
    update.decay = lamb->decay;
    update.gradient_by = lamb->gradient_by;
    update.learning_rate = step->learning_rate;
    update.phi_max = step->phi_max;
    update.clip = step->clip;
    update.skip = step->skip;
    return update;
}

int gpt2_cuda_lamb_direct(gpt2_cuda_stream_t stream, const float *weights, float *gradients,
                          float *m, float *v, const gpt2_cuda_lamb_t *places,
                          const gpt2_cuda_lamb_step_t *step)
{
    struct lamb_update update = update_of(places, step);

    if (places->blocks == 0) return cudaSuccess;
    update.weights = const_cast<float *>(weights); /* direct_kernel only reads them */
    update.gradients = gradients;
    update.m = m;
    update.v = v;
    return LAUNCH(direct_kernel, (unsigned)parts_of(places->blocks, WARPS), FLAT_THREADS, 0, stream,
                  update);
}

int gpt2_cuda_lamb_rates(gpt2_cuda_stream_t stream, const gpt2_cuda_lamb_t *places,
                         const gpt2_cuda_lamb_step_t *step)
{
    const struct lamb_update update = update_of(places, step);

    if (places->tensor_count == 0) return cudaSuccess;
    return LAUNCH(rates_kernel, (unsigned)parts_of(places->tensor_count, WARPS), FLAT_THREADS, 0,
                  stream, update);
}

int gpt2_cuda_lamb_apply(gpt2_cuda_stream_t stream, float *weights, const float *gradients,
                         gpt2_cuda_type_t copy_type, void *copy, const gpt2_cuda_lamb_t *places,
                         const gpt2_cuda_lamb_step_t *step)
{
    auto *apply = copy_type == GPT2_CUDA_F16 ? apply_kernel<fp16_t> : apply_kernel<bf16_t>;
    struct lamb_update update = update_of(places, step);

    if (places->blocks == 0) return cudaSuccess;
    if (copy != NULL && copy_type == GPT2_CUDA_F32) return cudaErrorInvalidValue;
    update.weights = weights;
    update.gradients = const_cast<float *>(gradients); /* apply_kernel only reads them */
    update.copy = copy;
    update.aligned = is_aligned(weights) && is_aligned(gradients) && is_aligned(copy);
    return LAUNCH(apply, (unsigned)places->blocks, FLAT_THREADS, 0, stream, update);
}

int gpt2_cuda_lamb(gpt2_cuda_stream_t stream, float *weights, float *gradients, float *m, float *v,
                   gpt2_cuda_type_t copy_type, void *copy, const gpt2_cuda_lamb_t *places,
                   const gpt2_cuda_lamb_step_t *step)
{
    int status;

    if (copy != NULL && copy_type == GPT2_CUDA_F32) return cudaErrorInvalidValue;
    status = gpt2_cuda_lamb_direct(stream, weights, gradients, m, v, places, step);
    if (status == 0) status = gpt2_cuda_lamb_rates(stream, places, step);
    if (status != 0) return status;
    return gpt2_cuda_lamb_apply(stream, weights, gradients, copy_type, copy, places, step);
}

int gpt2_cuda_lamb_prepare(void)
{
    int status = load_kernel(direct_kernel);

    if (status == 0) status = load_kernel(rates_kernel);
    if (status == 0) status = load_kernel(apply_kernel<bf16_t>);
    if (status == 0) status = load_kernel(apply_kernel<fp16_t>);
    return status;
}
