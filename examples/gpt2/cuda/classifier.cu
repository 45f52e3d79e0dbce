/*
 * classifier.cu - softmax, loss and the logits' gradient in one kernel; normalised probabilities
 * never lie in memory.
 *
 * A block per row. The first pass keeps, per thread, the largest logit so far and the sum of
 * exponentials relative to it (the online softmax of Milakov and Gimelshein 2018,
 * arXiv:1805.02867); the second writes the gradient over the logits. Rows are taken from the last
 * to the first: the last ones are the likeliest to be in the L2 cache still from the matrix product
 * that made them, and within a row the second pass finds what the first has read there.
 */
#include "examples/gpt2/cuda/device.cuh"

#define THREADS 512
#define WARPS (THREADS / WARP)

/* sum of exp(x - most) over what was seen; most is -inf and sum 0 where nothing was. */
typedef struct tail {
    float most, sum;
} tail_t;

DEVICE_INLINE tail_t join(tail_t a, tail_t b)
{
    const float most = fmaxf(a.most, b.most);
    tail_t joined = {most, 0.0f};

    /* exp(-inf - -inf) would be a NaN; with nothing seen there is nothing to add. */
    if (a.sum != 0.0f) joined.sum += a.sum * expf(a.most - most);
    if (b.sum != 0.0f) joined.sum += b.sum * expf(b.most - most);
    return joined;
}

/* The block's tail, in every thread. */
DEVICE_INLINE tail_t join_block(tail_t own, tail_t *shared)
{
    const unsigned warp = threadIdx.x / WARP;

#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2) {
        tail_t other;

        other.most = __shfl_xor_sync(EVERY_LANE, own.most, bits);
        other.sum = __shfl_xor_sync(EVERY_LANE, own.sum, bits);
        own = join(own, other);
    }
    if (threadIdx.x % WARP == 0) shared[warp] = own;
    __syncthreads();
    own = shared[0];
    for (int w = 1; w < WARPS; w++)
        own = join(own, shared[w]);
    return own;
}

/* Bytes per logit in bf16: 2 read (and 2 again, mostly from L2), 2 written. */
template <typename T, bool aligned>
static __global__ void __launch_bounds__(THREADS)
    classifier_kernel(float *losses, T *logits, const int32_t *targets, float weight, int gradient,
                      size_t rows, size_t vocab, size_t padded)
{
    __shared__ tail_t shared[WARPS];
    const size_t row = rows - 1 - blockIdx.x;
    const int32_t target = targets[row];
    const bool is_known = target >= 0 && (size_t)target < vocab;
    T *own = logits + row * padded;
    float target_logit = 0.0f, by;
    tail_t tail = {-INFINITY, 0.0f};

    if (threadIdx.x == 0) target_logit = is_known ? widen(own[target]) : nanf("");
    for (size_t at = (size_t)threadIdx.x * VECTOR; at < vocab; at += THREADS * VECTOR) {
        float x[VECTOR], most = tail.most;

        load<aligned>(own + at, padded - at, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (at + (size_t)i < vocab) most = fmaxf(most, x[i]);
        }
        if (tail.sum != 0.0f) tail.sum *= expf(tail.most - most);
        tail.most = most;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (at + (size_t)i < vocab) tail.sum += expf(x[i] - most);
        }
    }
    tail = join_block(tail, shared); /* nothing is overwritten before all have read */
    if (threadIdx.x == 0) losses[row] = tail.most - target_logit + logf(tail.sum);
    if (!gradient) return;
    by = is_known ? weight / tail.sum : nanf("");
    for (size_t at = (size_t)threadIdx.x * VECTOR; at < padded; at += THREADS * VECTOR) {
        float x[VECTOR];

        load<aligned>(own + at, padded - at, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (at + (size_t)i >= vocab) {
                x[i] = 0.0f;
                continue;
            }
            x[i] = expf(x[i] - tail.most) * by;
            if (at + (size_t)i == (size_t)target) x[i] -= weight;
        }
        store<aligned>(own + at, padded - at, x);
    }
}

template <typename T>
static int classify(gpt2_cuda_stream_t stream, float *losses, void *logits, const int32_t *targets,
                    float weight, int gradient, size_t rows, int vocab, int vocab_padded)
{
    const bool aligned = vocab_padded % VECTOR == 0 && is_aligned(logits);
    auto *kernel = aligned ? classifier_kernel<T, true> : classifier_kernel<T, false>;

    return LAUNCH(kernel, (unsigned)rows, THREADS, 0, stream, losses, (T *)logits, targets, weight,
                  gradient, rows, (size_t)vocab, (size_t)vocab_padded);
}

int gpt2_cuda_classifier(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *losses,
                         void *logits, const int32_t *targets, float weight, int gradient,
                         size_t rows, int vocab, int vocab_padded)
{
    if (rows == 0) return cudaSuccess;
    if (rows > 0x7fffffffu || vocab <= 0 || vocab_padded < vocab) return cudaErrorInvalidValue;
    return (type == GPT2_CUDA_BF16 ? classify<bf16_t> : classify<float>)(stream, losses, logits,
                                                                         targets, weight, gradient,
                                                                         rows, vocab, vocab_padded);
}

int gpt2_cuda_classifier_prepare(void)
{
    int status = load_kernel(classifier_kernel<float, true>);

    if (status == 0) status = load_kernel(classifier_kernel<float, false>);
    if (status == 0) status = load_kernel(classifier_kernel<bf16_t, true>);
    if (status == 0) status = load_kernel(classifier_kernel<bf16_t, false>);
    return status;
}
