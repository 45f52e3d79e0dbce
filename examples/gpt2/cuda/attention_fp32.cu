/*
 * attention_fp32.cu - causal attention in fp32, forward and backward: plain, for parity with the
 * CPU and as the oracle of the tensor core kernels.
 *
 * A warp owns one row: a query for out and dQ, a key for dK and dV. It walks over the other side 32
 * at a time: each thread computes the score of one of them, then each sums its own elements of the
 * result over all 32. Every sum has one owner and one order.
 */
#include "examples/gpt2/cuda/attention_kernels.h"
#include "examples/gpt2/cuda/launch.cuh"

#define WARPS 4
#define PER_THREAD 4 /* elements of a head: 128 / 32 */

/* A warp's row, and what its threads tell each other. */
typedef struct row {
    size_t pair, batch, head;
    int at;
    bool is_there; /* of a whole warp */
} row_t;

/* Long rows first: of queries the last, of keys the first. */
DEVICE_INLINE row_t row_of_warp(const attention_t &it, bool is_query)
{
    const size_t pairs = (size_t)it.batch * (size_t)it.heads;
    const size_t index = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    row_t row;

    row.pair = index % pairs;
    row.is_there = index / pairs < (size_t)it.length;
    row.at = row.is_there ? (int)(index / pairs) : 0;
    if (is_query) row.at = it.length - 1 - row.at;
    row.batch = row.pair / (size_t)it.heads;
    row.head = row.pair % (size_t)it.heads;
    return row;
}

/* Row `at` of a packed array of `parts` (3: queries, keys, values; 1: out), part `which`. */
DEVICE_INLINE size_t place(const attention_t &it, const row_t &row, int at, int parts, int which)
{
    return (((row.batch * (size_t)it.length + (size_t)at) * (size_t)parts + (size_t)which) *
                (size_t)it.heads +
            row.head) *
           (size_t)it.size;
}

DEVICE_INLINE float dot(const float *a, const float *b, int size)
{
    float sum = 0.0f;

    for (int i = 0; i < size; i += 4) {
        const float4 x = *(const float4 *)(const void *)(a + i);
        const float4 y = *(const float4 *)(const void *)(b + i);

        sum = fmaf(x.x, y.x, sum);
        sum = fmaf(x.y, y.y, sum);
        sum = fmaf(x.z, y.z, sum);
        sum = fmaf(x.w, y.w, sum);
    }
    return sum;
}

DEVICE_INLINE float warp_sum(float value)
{
    for (int bits = 16; bits > 0; bits /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, bits);
    return value;
}

DEVICE_INLINE float warp_max(float value)
{
    for (int bits = 16; bits > 0; bits /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, bits));
    return value;
}

/* sums += weights [count] times rows from [count][stride]; thread t has elements t, t + 32, .. */
DEVICE_INLINE void add_rows(float (&sums)[PER_THREAD], const float *weights, const float *from,
                            size_t stride, int count, int size)
{
    const int lane = (int)threadIdx.x % 32;

    for (int i = 0; i < count; i++) {
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            if (lane + 32 * k < size)
                sums[k] =
                    fmaf(weights[i], from[(size_t)i * stride + (size_t)(lane + 32 * k)], sums[k]);
        }
    }
}

DEVICE_INLINE void store_row(float *to, const float (&sums)[PER_THREAD], float by, int size)
{
    const int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        if (lane + 32 * k < size) to[lane + 32 * k] = sums[k] * by;
    }
}

__global__ void __launch_bounds__(32 * WARPS) attention_fp32_forward_kernel(attention_t it)
{
    __shared__ float shared[WARPS][32];
    const row_t row = row_of_warp(it, true);
    const int lane = (int)threadIdx.x % 32;
    const size_t stride = (size_t)3 * (size_t)it.heads * (size_t)it.size;
    const float *qkv = (const float *)it.qkv;
    const float *query = qkv + place(it, row, row.at, 3, 0);
    const float *keys = qkv + place(it, row, 0, 3, 1), *values = qkv + place(it, row, 0, 3, 2);
    float *weights = shared[threadIdx.x / 32];
    float out[PER_THREAD] = {}, most = -INFINITY, sum = 0.0f;

    if (!row.is_there) return;
    for (int key = 0; key <= row.at; key += 32) {
        const int count = row.at + 1 - key < 32 ? row.at + 1 - key : 32;
        float score = -INFINITY, top, shrink, weight;

        if (lane < count)
            score = it.scale * dot(query, keys + (size_t)(key + lane) * stride, it.size);
        top = fmaxf(most, warp_max(score));
        shrink = expf(most - top);
        weight = expf(score - top);
        most = top;
        sum = fmaf(sum, shrink, warp_sum(weight));
        for (int k = 0; k < PER_THREAD; k++)
            out[k] *= shrink;
        weights[lane] = weight;
        __syncwarp();
        add_rows(out, weights, values + (size_t)key * stride, stride, count, it.size);
        __syncwarp();
    }
    if (lane == 0) it.lse[row.pair * (size_t)it.length + (size_t)row.at] = most + logf(sum);
    store_row((float *)it.out + place(it, row, row.at, 1, 0), out, 1.0f / sum, it.size);
}

/* it.dots = rows of dout . out. */
__global__ void __launch_bounds__(32 * WARPS) attention_fp32_dots_kernel(attention_t it)
{
    const row_t row = row_of_warp(it, true);
    const int lane = (int)threadIdx.x % 32;
    const size_t at = place(it, row, row.at, 1, 0);
    float sum = 0.0f;

    if (!row.is_there) return;
    for (int i = lane; i < it.size; i += 32)
        sum = fmaf(((const float *)it.out)[at + (size_t)i],
                   ((const float *)it.dout)[at + (size_t)i], sum);
    sum = warp_sum(sum);
    if (lane == 0) it.dots[row.pair * (size_t)it.padded + (size_t)row.at] = sum;
}

/* dS of one query and key, and their probability. */
DEVICE_INLINE float gradient_of_score(const attention_t &it, const row_t &row, int query, int key,
                                      float *probability)
{
    const float *qkv = (const float *)it.qkv;
    const float score =
        it.scale * dot(qkv + place(it, row, query, 3, 0), qkv + place(it, row, key, 3, 1), it.size);
    const float dp = dot((const float *)it.dout + place(it, row, query, 1, 0),
                         qkv + place(it, row, key, 3, 2), it.size);

    *probability = expf(score - it.lse[row.pair * (size_t)it.length + (size_t)query]);
    return *probability * (dp - it.dots[row.pair * (size_t)it.padded + (size_t)query]);
}

__global__ void __launch_bounds__(32 * WARPS) attention_fp32_queries_kernel(attention_t it)
{
    __shared__ float shared[WARPS][32];
    const row_t row = row_of_warp(it, true);
    const int lane = (int)threadIdx.x % 32;
    const size_t stride = (size_t)3 * (size_t)it.heads * (size_t)it.size;
    const float *keys = (const float *)it.qkv + place(it, row, 0, 3, 1);
    float *weights = shared[threadIdx.x / 32];
    float dq[PER_THREAD] = {}, probability;

    if (!row.is_there) return;
    for (int key = 0; key <= row.at; key += 32) {
        const int count = row.at + 1 - key < 32 ? row.at + 1 - key : 32;

        if (lane < count)
            weights[lane] = gradient_of_score(it, row, row.at, key + lane, &probability);
        __syncwarp();
        add_rows(dq, weights, keys + (size_t)key * stride, stride, count, it.size);
        __syncwarp();
    }
    store_row((float *)it.dqkv + place(it, row, row.at, 3, 0), dq, it.scale, it.size);
}

__global__ void __launch_bounds__(32 * WARPS) attention_fp32_keys_kernel(attention_t it)
{
    __shared__ float shared[WARPS][2][32];
    const row_t row = row_of_warp(it, false);
    const int lane = (int)threadIdx.x % 32;
    const size_t plain = (size_t)it.heads * (size_t)it.size;
    const float *queries = (const float *)it.qkv + place(it, row, 0, 3, 0);
    const float *dout = (const float *)it.dout + place(it, row, 0, 1, 0);
    float *probabilities = shared[threadIdx.x / 32][0], *weights = shared[threadIdx.x / 32][1];
    float dk[PER_THREAD] = {}, dv[PER_THREAD] = {};

    if (!row.is_there) return;
    for (int query = row.at; query < it.length; query += 32) {
        const int count = it.length - query < 32 ? it.length - query : 32;

        if (lane < count) {
            weights[lane] = gradient_of_score(it, row, query + lane, row.at, &probabilities[lane]);
        }
        __syncwarp();
        add_rows(dk, weights, queries + (size_t)query * 3 * plain, 3 * plain, count, it.size);
        add_rows(dv, probabilities, dout + (size_t)query * plain, plain, count, it.size);
        __syncwarp();
    }
    store_row((float *)it.dqkv + place(it, row, row.at, 3, 1), dk, it.scale, it.size);
    store_row((float *)it.dqkv + place(it, row, row.at, 3, 2), dv, 1.0f, it.size);
}

int attention_fp32_prepare(void)
{
    const void *const kernels[] = {
        (const void *)attention_fp32_forward_kernel, (const void *)attention_fp32_dots_kernel,
        (const void *)attention_fp32_queries_kernel, (const void *)attention_fp32_keys_kernel};
    cudaFuncAttributes attributes;
    cudaError_t status = cudaSuccess;

    for (size_t i = 0; status == cudaSuccess && i < sizeof(kernels) / sizeof(kernels[0]); i++)
        status = cudaFuncGetAttributes(&attributes, kernels[i]);
    return status;
}

static unsigned blocks_of(const attention_t *it)
{
    const size_t rows = (size_t)it->batch * (size_t)it->heads * (size_t)it->length;

    return (unsigned)((rows + WARPS - 1) / WARPS);
}

int attention_fp32_forward(const attention_t *it, cudaStream_t stream)
{
    const attention_t copy = *it;

    return LAUNCH(attention_fp32_forward_kernel, blocks_of(it), 32 * WARPS, 0, stream, copy);
}

int attention_fp32_backward(const attention_t *it, cudaStream_t stream)
{
    const attention_t copy = *it;
    cudaError_t status =
        LAUNCH(attention_fp32_dots_kernel, blocks_of(it), 32 * WARPS, 0, stream, copy);

    if (status != cudaSuccess) return status;
    status = LAUNCH(attention_fp32_queries_kernel, blocks_of(it), 32 * WARPS, 0, stream, copy);
    if (status != cudaSuccess) return status;
    return LAUNCH(attention_fp32_keys_kernel, blocks_of(it), 32 * WARPS, 0, stream, copy);
}
