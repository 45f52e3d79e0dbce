/*
 * halves.c - conversions of single numbers; files are read once, so nothing here is fast.
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
