/*
 * convert.c - the scalar conversions as functions, for code that is not a kernel: naive.c and
 * tests.
 */
#include "kernels/kernels.h"
#include "kernels/convert.h"

uint16_t dp_f32_to_f16(float value)
{
    return dp_convert_f32_to_f16(value);
}

float dp_f16_to_f32(uint16_t value)
{
    return dp_convert_f16_to_f32(value);
}

uint16_t dp_f32_to_bf16(float value)
{
    return dp_convert_f32_to_bf16(value);
}

float dp_bf16_to_f32(uint16_t value)
{
    return dp_convert_bf16_to_f32(value);
}
