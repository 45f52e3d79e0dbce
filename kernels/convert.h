/*
 * convert.h - 16-bit floats to and from fp32, bit by bit, as the F16C instructions do it.
 *
 * Round to nearest even; a NaN keeps its sign and upper payload bits and turns quiet.
 */
#ifndef DP_KERNELS_CONVERT_H
#define DP_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t dp_f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float dp_bits_f32(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint16_t dp_convert_f32_to_f16(float value)
{
    uint32_t bits = dp_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t result;

    if (magnitude >= 0x7f800000u) {
        result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
        /* Normal in fp16 (or beyond: the carry runs into the exponent and stops at Inf). */
        result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        if (result > 0x7c00u) result = 0x7c00u;
    } else {
        /* Subnormal: adding 0.5 puts the unit of 2^-24 at the last bit, rounded by the addition. */
        result = dp_f32_bits(dp_bits_f32(magnitude) + 0.5f) - 0x3f000000u;
    }
    return (uint16_t)(sign | result);
}

static inline float dp_convert_f16_to_f32(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t magnitude = value & 0x7fffu;

    if (magnitude > 0x7c00u) return dp_bits_f32(sign | 0x7fc00000u | (magnitude << 13));
    if (magnitude == 0x7c00u) return dp_bits_f32(sign | 0x7f800000u);
    if (magnitude >= 0x400u) return dp_bits_f32(sign | ((magnitude << 13) + 0x38000000u));
    /* Zero and subnormals: units of 2^-24, exact. */
    return dp_bits_f32(sign | dp_f32_bits((float)magnitude * 0x1p-24f));
}

static inline uint16_t dp_convert_f32_to_bf16(float value)
{
    uint32_t bits = dp_f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float dp_convert_bf16_to_f32(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    uint32_t quiet = (bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u;

    return dp_bits_f32(bits | quiet);
}

#endif
