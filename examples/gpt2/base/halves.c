/*
 * halves.c - conversions between fp32 and 16 bits. Any thread. Files are read once, so single
 * numbers need not be fast; arrays are weights in every step, and their loops have no branches.
 */
#include "examples/gpt2/base/halves.h"

#include <math.h>
#include <string.h>

uint16_t gpt2_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float gpt2_from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

float gpt2_from_fp16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const double fraction = (double)(bits & 1023) / 1024.0;
    double value;

    if (exponent == 31) {
        value = (bits & 1023) != 0 ? (double)NAN : (double)INFINITY;
    } else {
        value = exponent == 0 ? ldexp(fraction, -14) : ldexp(1.0 + fraction, exponent - 15);
    }
    return (float)((bits & 0x8000) != 0 ? -value : value);
}

/* ---- Arrays --------------------------------------------------------------------------------- */

typedef union number {
    float value;
    uint32_t bits;
} number_t;

#define INFINITE 0x7f800000u
#define FP16_NORMAL 0x38800000u /* 2^-14, the smallest fp16 with 11 bits of mantissa */

static uint16_t pack_fp16(float value)
{
    const number_t in = {.value = value};
    const uint32_t sign = in.bits >> 16 & 0x8000u;
    const uint32_t size = in.bits & 0x7fffffffu;
    const number_t magnitude = {.bits = size < FP16_NORMAL ? size : 0};
    const uint32_t small = (uint32_t)(magnitude.value * 0x1p24f); /* subnormals are 2^-24 apart */
    const uint32_t normal = (size - 0x38000000u) >> 13;
    const uint32_t endless = 0x7c00u | (size & 0x7fffffu) >> 13;

    return (uint16_t)(sign | (size >= INFINITE ? endless : size < FP16_NORMAL ? small : normal));
}

static float unpack_fp16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t size = (uint32_t)(half & 0x7fffu) << 13;
    const number_t scaled = {.bits = size};
    const number_t finite = {.value = scaled.value * 0x1p112f}; /* exact, also for subnormals */
    const uint32_t bits = size >= 0x0f800000u ? size | INFINITE : finite.bits;

    return ((number_t){.bits = sign | bits}).value;
}

void gpt2_halves_pack(uint16_t *out, const float *in, size_t count, int is_fp16)
{
    if (is_fp16) {
        for (size_t i = 0; i < count; i++)
            out[i] = pack_fp16(in[i]);
        return;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (uint16_t)(((number_t){.value = in[i]}).bits >> 16);
}

void gpt2_halves_unpack(float *out, const uint16_t *in, size_t count, int is_fp16)
{
    if (is_fp16) {
        for (size_t i = 0; i < count; i++)
            out[i] = unpack_fp16(in[i]);
        return;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = ((number_t){.bits = (uint32_t)in[i] << 16}).value;
}
