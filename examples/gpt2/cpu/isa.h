/*
 * isa.h - names that differ between the copies compiled for each instruction set, and the width
 * of a vector in them. GPT2_ISA (a word, e.g. avx2) comes from CMake.
 */
#ifndef GPT2_ISA_H
#define GPT2_ISA_H

#include "examples/gpt2/cpu/kernels.h"

#define GPT2_ISA_JOIN2(name, isa) name##_##isa
#define GPT2_ISA_JOIN(name, isa) GPT2_ISA_JOIN2(name, isa)
#define GPT2_ISA_NAME(name) GPT2_ISA_JOIN(name, GPT2_ISA)
#define GPT2_ISA_TEXT2(isa) #isa
#define GPT2_ISA_TEXT(isa) GPT2_ISA_TEXT2(isa)

#if defined(__AVX512F__)
#define GPT2_LANES 16
#elif defined(__AVX__)
#define GPT2_LANES 8
#else
#define GPT2_LANES 4
#endif

void GPT2_ISA_NAME(gpt2_gemm_own)(int trans_a, int trans_b, size_t m, size_t n, size_t k,
                                  float alpha, const float *a, size_t lda, const float *b,
                                  size_t ldb, float beta, float *c, size_t ldc, float *scratch);
void GPT2_ISA_NAME(gpt2_adamw_update)(float *weights, const float *gradients, float *m, float *v,
                                      size_t count, const gpt2_adamw_t *adamw);
void GPT2_ISA_NAME(gpt2_lamb_direct)(const float *weights, float *gradients, float *m, float *v,
                                     size_t count, const gpt2_lamb_t *lamb, double *squares);
void GPT2_ISA_NAME(gpt2_lamb_add)(double *sums, const double *squares, size_t blocks);
void GPT2_ISA_NAME(gpt2_lamb_apply)(float *weights, const float *directions, size_t count,
                                    float rate);
void GPT2_ISA_NAME(gpt2_round_bf16)(float *out, const float *in, size_t count);
void GPT2_ISA_NAME(gpt2_round_fp16)(float *out, const float *in, size_t count);
extern const gpt2_compress_kernels_t GPT2_ISA_NAME(gpt2_compress_kernels);
extern const gpt2_kernels_t GPT2_ISA_NAME(gpt2_kernels);

#endif
