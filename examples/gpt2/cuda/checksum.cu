/*
 * checksum.cu - compares replicas without bringing their weights to the host.
 *
 * Every word is hashed with its place, and the hashes are added: integer sums are the same in any
 * order, so blocks may add theirs by atomics. Reads 4 bytes per word.
 */
#include "examples/gpt2/cuda/checksum.h"

#include "examples/gpt2/cuda/launch.cuh"

#define THREADS 256 /* of a block: eight warps, enough to hide the loads */
#define BLOCKS 1024 /* at most: a few for every multiprocessor */

/* The finalizer of splitmix64: every bit of the input moves half of the output's. */
DEVICE_INLINE unsigned long long mix(unsigned long long x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* words [count] */
static __global__ void checksum(unsigned long long *out, const unsigned *words, size_t count)
{
    __shared__ unsigned long long sums[THREADS];
    const size_t stride = (size_t)gridDim.x * THREADS;
    unsigned long long sum = 0;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        sum += mix(words[i] + 0x9e3779b97f4a7c15ull * (i + 1));
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, sums[0]);
}

extern "C" int gpt2_cuda_checksum_prepare(void)
{
    cudaFuncAttributes attributes;

    return (int)cudaFuncGetAttributes(&attributes, (const void *)checksum);
}

extern "C" int gpt2_cuda_checksum_words(gpt2_cuda_stream_t stream, uint64_t *out,
                                        const uint32_t *words, size_t count)
{
    const size_t blocks = (count + THREADS - 1) / THREADS;
    cudaError_t code = cudaMemsetAsync(out, 0, sizeof(*out), (cudaStream_t)stream);

    if (code != cudaSuccess || count == 0) return (int)code;
    return (int)LAUNCH(checksum, dim3((unsigned)(blocks < BLOCKS ? blocks : BLOCKS)), dim3(THREADS),
                       0, stream, (unsigned long long *)out, words, count);
}
