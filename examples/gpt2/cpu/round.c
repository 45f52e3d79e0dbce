/*
 * round.c - fp32 numbers rounded to those that a 16-bit type has, and kept as fp32.
 *
 * Emulated products round their operands by it, and O2 its weights and gradients. Compiled once per
 * instruction set: F16C and AVX-512 convert by an instruction there and back, others by arithmetic
 * on the bits. All give the same bits for every input, NaN's included.
 */
#include "examples/gpt2/cpu/isa.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

typedef union number {
    float value;
    uint32_t bits;
} number_t;

#define SIGN 0x80000000u
#define INFINITE 0x7f800000u
#define QUIET 0x00400000u
#define FP16_OVERFLOW 0x477ff000u /* 65520: half way from 65504, the largest, to 65536 */
#define FP16_NORMAL 0x38800000u   /* 2^-14, the smallest with 11 bits of mantissa */
#define FP16_DROPPED 0x1fffu      /* bits of fp32's mantissa that fp16 has not */

/* To nearest, ties to even; Inf from 65520 on; a NaN keeps its upper bits and becomes quiet. */
static inline float as_fp16(float value)
{
    const number_t in = {.value = value};
    const uint32_t sign = in.bits & SIGN;
    const uint32_t size = in.bits ^ sign;
    const uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u)) & ~FP16_DROPPED;
    const uint32_t nan = (size & ~FP16_DROPPED) | QUIET;
    number_t small = {.bits = size};
    uint32_t rounded;

    /* Next to 0.5 fp32's numbers lie 2^-24 apart, as fp16's subnormals do. */
    small.value = (small.value + 0.5f) - 0.5f;
    rounded = size < FP16_NORMAL ? small.bits : normal;
    rounded = size >= FP16_OVERFLOW ? INFINITE : rounded;
    rounded = size > INFINITE ? nan : rounded;
    return ((number_t){.bits = rounded | sign}).value;
}

static inline float as_bf16(float value)
{
    const number_t in = {.value = value};
    const uint32_t rounded = in.bits + 0x7fffu + ((in.bits >> 16) & 1u);
    const uint32_t quiet = in.bits | QUIET;

    return ((number_t){.bits = (value == value ? rounded : quiet) & 0xffff0000u}).value;
}

void GPT2_ISA_NAME(gpt2_round_fp16)(float *out, const float *in, size_t count)
{
    size_t i = 0;

#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm512_cvtps_ph(_mm512_loadu_ps(in + i),
                                                                  _MM_FROUND_TO_NEAREST_INT)));
    }
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(in + i),
                                                                  _MM_FROUND_TO_NEAREST_INT)));
    }
#endif
    for (; i < count; i++)
        out[i] = as_fp16(in[i]);
}

void GPT2_ISA_NAME(gpt2_round_bf16)(float *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = as_bf16(in[i]);
}
