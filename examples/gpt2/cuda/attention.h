/*
 * attention.h - causal self-attention on a GPU, forward and backward, without the matrix of scores.
 *
 * Reads queries, keys and values where the projection left them, packed row by row, and writes
 * their gradients the same way: nothing is permuted. bf16 and fp16 run on tensor cores with fp32
 * sums; fp32 by a plain pair of kernels, for parity with the CPU and as the oracle of the other.
 * Both give the same bits from run to run: no atomics. It knows nothing of models, layers or
 * gradients' owners.
 *
 * Method: Dao 2023, arXiv:2307.08691 (FlashAttention-2).
 */
#ifndef GPT2_CUDA_ATTENTION_H
#define GPT2_CUDA_ATTENTION_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "examples/gpt2/cuda/types.h"
#include "examples/gpt2/base/error.h"

/* Head sizes: multiples of 16 up to this. 64 is tuned. */
#define GPT2_ATTENTION_SIZE_MAX 128

/*
 * Call once per device before the loop: loads every kernel (lazy loading can deadlock under
 * communication) and raises its limit of shared memory. -1: type or size are not supported, or the
 * device refuses.
 */
int gpt2_attention_prepare(gpt2_cuda_type_t type, int size, gpt2_error_t *error);

/*
 * out = softmax(q k^T / sqrt(size), causal) v for every sequence and head.
 *
 * qkv  [batch][length][3][heads][size] of type; 16-byte aligned
 * out  [batch][length][heads][size] of type; 16-byte aligned
 * lse  [batch][heads][length] fp32: log of each row's sum of exponentials, natural, for the
 *      backward pass
 *
 * Any length and batch from 1 on. Only launches; returns the cudaError_t: cudaErrorInvalidValue for
 * a size that gpt2_attention_prepare() would refuse.
 */
int gpt2_attention_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, const void *qkv,
                           void *out, float *lse, int batch, int length, int heads, int size);

/* Bytes of `scratch` that gpt2_attention_backward() needs. */
size_t gpt2_attention_scratch_bytes(gpt2_cuda_type_t type, int batch, int length, int heads,
                                    int size);

/*
 * dqkv [batch][length][3][heads][size] of type = gradient of qkv; every element is written.
 * dbias [3][heads][size] fp32 = or, to accumulate, += the sums of dqkv's rows: the gradient of the
 * projection's bias. In 16 bits they are sums of what is not rounded yet.
 *
 * qkv, out, lse as the forward pass had and left them; dout [batch][length][heads][size] of type.
 * scratch, 16-byte aligned, may be shared by calls in one stream. dqkv may not overlap anything.
 */
int gpt2_attention_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, const void *qkv,
                            const void *out, const void *dout, const float *lse, void *dqkv,
                            float *dbias, int accumulate, float *scratch, int batch, int length,
                            int heads, int size);

#ifdef __cplusplus
}
#endif

#endif
