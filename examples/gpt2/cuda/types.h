/*
 * types.h - what the CUDA parts of the trainer share, without a CUDA header.
 *
 * Everything in this folder has C linkage and runs on a stream. In bf16 and fp16 mode weights (a
 * copy of the fp32 masters), activations and their gradients have that type; in fp32 mode all of it
 * is fp32. Sums, statistics, losses and gradients of weights are fp32 in all.
 */
#ifndef GPT2_CUDA_TYPES_H
#define GPT2_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *gpt2_cuda_stream_t; /* a cudaStream_t */
/* Values are part of the cache of products. */
typedef enum gpt2_cuda_type {
    GPT2_CUDA_F32 = 0,
    GPT2_CUDA_BF16 = 1,
    GPT2_CUDA_F16 = 2
} gpt2_cuda_type_t;

static inline size_t gpt2_cuda_type_bytes(gpt2_cuda_type_t type)
{
    return type == GPT2_CUDA_F32 ? 4 : 2;
}

static inline const char *gpt2_cuda_type_name(gpt2_cuda_type_t type)
{
    return type == GPT2_CUDA_F32 ? "fp32" : type == GPT2_CUDA_BF16 ? "bf16" : "fp16";
}

#endif
