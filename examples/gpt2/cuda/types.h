/*
 * types.h - what the CUDA parts of the trainer share, without a CUDA header.
 *
 * Everything in this folder has C linkage and runs on a stream. In bf16 mode weights (a copy of the
 * fp32 masters), activations and their gradients are bf16; in fp32 mode all of it is fp32. Sums,
 * statistics, losses and gradients of weights are fp32 in both.
 */
#ifndef GPT2_CUDA_TYPES_H
#define GPT2_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUstream_st *gpt2_cuda_stream_t; /* a cudaStream_t */
typedef uint16_t gpt2_bf16_t;                   /* the upper half of a float's bits */
typedef enum gpt2_cuda_type { GPT2_CUDA_F32, GPT2_CUDA_BF16 } gpt2_cuda_type_t;

static inline size_t gpt2_cuda_type_bytes(gpt2_cuda_type_t type)
{
    return type == GPT2_CUDA_BF16 ? 2 : 4;
}

#endif
