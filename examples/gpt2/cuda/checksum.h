/*
 * checksum.h - one number for the bits of an arena, made where it lies.
 */
#ifndef GPT2_CUDA_CHECKSUM_H
#define GPT2_CUDA_CHECKSUM_H

#include "examples/gpt2/cuda/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernel, so that it is not loaded inside a step. */
int gpt2_cuda_checksum_prepare(void);

/* *out [1] = the sum, modulo 2^64, of a hash of every word and its place. Independent of the order
 * of addition. Launches only; returns the cudaError_t. */
int gpt2_cuda_checksum_words(gpt2_cuda_stream_t stream, uint64_t *out, const uint32_t *words,
                             size_t count);

#ifdef __cplusplus
}
#endif
#endif
