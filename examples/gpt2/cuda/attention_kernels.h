/*
 * attention_kernels.h - the kernels behind attention.h, one set per type, for attention.cu alone.
 *
 * Sizes have been checked before; functions return a cudaError_t.
 */
#ifndef GPT2_CUDA_ATTENTION_KERNELS_H
#define GPT2_CUDA_ATTENTION_KERNELS_H

#include <cuda_runtime.h>

#include "examples/gpt2/cuda/types.h"

/* Rows of the tables that a backward pass makes first are this many, rounded up, so that a tile
 * of queries finds its figures without a question. */
#define ATTENTION_LENGTH_PAD 128

/* The arguments of a call; the arrays as attention.h describes them. */
typedef struct attention {
    const void *qkv;
    const void *dout;
    void *out; /* read only in the backward pass */
    void *dqkv;
    float *lse;
    float *lse2; /* [batch][heads][padded length] lse * log2(e), +Inf behind the end */
    float *dots; /* [batch][heads][padded length] dout . out, 0 behind the end */
    float *sums; /* backward: [parts][3][heads][size] of dqkv's rows, in attention_half_parts() */
    int batch, length, heads, size;
    int padded; /* length */
    float scale;
} attention_t;

/* -1: the device refused; 0 or the error else. */
int attention_half_prepare_forward(gpt2_cuda_type_t type, int size);
int attention_half_prepare_backward(gpt2_cuda_type_t type, int size);
int attention_half_forward(gpt2_cuda_type_t type, const attention_t *it, cudaStream_t stream);
int attention_half_backward(gpt2_cuda_type_t type, const attention_t *it, cudaStream_t stream);
/* How many parts of it.sums the backward pass writes. */
size_t attention_half_parts(int batch, int length, int size);

int attention_fp32_prepare(void);
int attention_fp32_forward(const attention_t *it, cudaStream_t stream);
int attention_fp32_backward(const attention_t *it, cudaStream_t stream);

#endif
