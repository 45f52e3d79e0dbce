/*
 * half.cuh - the 16-bit types as kernels hold them: an element in memory, and two in a register;
 * and the exponential that is exact enough for them.
 *
 * Rounds to nearest even. A register holds two neighbours, the one before in its low half. Only
 * what CUDA's own headers give on both sides is used, so the CPU runs the same functions.
 */
#ifndef GPT2_CUDA_HALF_CUH
#define GPT2_CUDA_HALF_CUH

#include "examples/gpt2/cuda/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

typedef __nv_bfloat16 bf16_t;
typedef __half fp16_t;

DEVICE_INLINE float bits_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

DEVICE_INLINE uint32_t pack_bf16(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t packed;

    memcpy(&packed, &pair, sizeof(packed));
    return packed;
}

DEVICE_INLINE float2 unpack_bf16(uint32_t packed)
{
    return make_float2(bits_to_float(packed << 16), bits_to_float(packed & 0xffff0000u));
}

DEVICE_INLINE uint32_t pack_fp16(float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t packed;

    memcpy(&packed, &pair, sizeof(packed));
    return packed;
}

DEVICE_INLINE float2 unpack_fp16(uint32_t packed)
{
    __half2 pair;

    memcpy(&pair, &packed, sizeof(pair));
    return __half22float2(pair);
}

/* Of the type that a kernel was made for. */
template <typename T> DEVICE_INLINE uint32_t pack_pair(float low, float high)
{
    return std::is_same<T, fp16_t>::value ? pack_fp16(low, high) : pack_bf16(low, high);
}

template <typename T> DEVICE_INLINE float2 unpack_pair(uint32_t packed)
{
    return std::is_same<T, fp16_t>::value ? unpack_fp16(packed) : unpack_bf16(packed);
}

#define LOG2E 1.4426950408889634f

/* 2^x by the special function unit, to about two units in the last place; 2^-Inf is 0. */
DEVICE_INLINE float fast_exp2(float x)
{
#ifdef DP_SIMT
    return exp2f(x);
#else
    float power;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#endif
}

/* ---- Kernels compute in fp32, whatever they read and write ---------------------------------- */

DEVICE_INLINE float widen(float value)
{
    return value;
}

DEVICE_INLINE float widen(bf16_t value)
{
    return __bfloat162float(value);
}

DEVICE_INLINE float widen(fp16_t value)
{
    return __half2float(value);
}

DEVICE_INLINE void narrow(float value, float *to)
{
    *to = value;
}

DEVICE_INLINE void narrow(float value, bf16_t *to)
{
    *to = __float2bfloat16_rn(value);
}

DEVICE_INLINE void narrow(float value, fp16_t *to)
{
    *to = __float2half_rn(value);
}

#endif
