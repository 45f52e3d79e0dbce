/*
 * embed_cuda.cu - libdp in a CUDA training loop that is not ours: every rank pulls the weights
 * towards a number of its own, so averaged gradients take all ranks to the mean of these.
 *
 *     dprun -np 8 build/embed_cuda     (exits with 77 where there is no GPU)
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>

#include "dp.h"

#define TENSORS 4
#define COUNT ((size_t)1 << 20) /* of each: whole pages, so that dp_register() takes them */

static __global__ void gradient(const float *weight, float *gradient, float target)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    gradient[i] = 2.0f * (weight[i] - target);
}

static __global__ void descend(float *weight, const float *gradient, float rate)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    weight[i] -= rate * gradient[i];
}

static int fail(dp_context_t *dp, const char *what)
{
    fprintf(stderr, "embed_cuda: %s: %s, %s\n", what, dp == NULL ? "" : dp_error_text(dp),
            cudaGetErrorString(cudaGetLastError()));
    dp_finalize(dp);
    return 1;
}

/* How far the weights are from where they must end. */
static float farthest(const float *weight, float goal)
{
    float first[64], most = 0.0f;

    if (cudaMemcpy(first, weight, sizeof(first), cudaMemcpyDeviceToHost) != cudaSuccess)
        return 1.0f;
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        most = fmaxf(most, fabsf(first[i] - goal));
    return most;
}

int main(void)
{
    const size_t bytes = COUNT * sizeof(float);
    const unsigned threads = 256, blocks = (unsigned)(COUNT / threads);
    static const char *const names[TENSORS] = {"layer.3", "layer.2", "layer.1", "layer.0"};
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradient_t tensors[TENSORS] = {};
    dp_gradients_t *gradients;
    dp_context_t *dp = NULL;
    cudaStream_t stream;
    int devices = 0;
    float off = 0.0f;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    if (dp_init(NULL, &dp) != DP_OK) return fail(dp, "dp_init");
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return fail(dp, "a stream");
    for (int i = 0; i < TENSORS; i++) {
        dp_gradient_t *tensor = &tensors[i];

        *tensor = dp_gradient_t{names[i], NULL, NULL, COUNT, DP_F32};
        if (cudaMalloc(&tensor->weight, bytes) != cudaSuccess ||
            cudaMalloc(&tensor->gradient, bytes) != cudaSuccess ||
            cudaMemset(tensor->weight, 0, bytes) != cudaSuccess ||
            dp_register(dp, tensor->gradient, bytes) != DP_OK)
            return fail(dp, "memory");
    }
    /* cudaMemset() only enqueues, on a stream that a non-blocking one does not wait for. */
    if (cudaDeviceSynchronize() != cudaSuccess) return fail(dp, "zeros");
    if (dp_gradients_create(dp, tensors, TENSORS, NULL, &gradients) != DP_OK)
        return fail(dp, "dp_gradients_create");
    for (unsigned step = 0; step < 100; step++) {
        dp_step_begin(dp, step);
        for (int i = 0; i < TENSORS; i++) { /* the loop's backward pass */
            gradient<<<blocks, threads, 0, stream>>>(
                (float *)tensors[i].weight, (float *)tensors[i].gradient, (float)dp_rank(dp));
            if (dp_gradients_ready(gradients, (size_t)i, stream) != DP_OK)
                return fail(dp, "dp_gradients_ready");
        }
        if (dp_gradients_sync(gradients, &result) != DP_OK) return fail(dp, "dp_gradients_sync");
        for (int i = 0; i < TENSORS && !result.skip; i++) /* a rate of 0 would not do: 0 x NaN */
            descend<<<blocks, threads, 0, stream>>>((float *)tensors[i].weight,
                                                    (float *)tensors[i].gradient,
                                                    0.1f * (float)result.clip_coef);
        dp_step_end(dp);
    }
    if (cudaStreamSynchronize(stream) != cudaSuccess) return fail(dp, "the loop");
    for (int i = 0; i < TENSORS; i++)
        off = fmaxf(off, farthest((const float *)tensors[i].weight, (float)(dp_size(dp) - 1) / 2));
    printf("rank %d of %d: off by %g\n", dp_rank(dp), dp_size(dp), (double)off);
    dp_gradients_destroy(gradients);
    return dp_finalize(dp) == DP_OK && off < 1e-4f ? 0 : 1;
}
