/*
 * cuda_types.cuh - element types, conversions and whole-vector accesses, for host and device alike.
 *
 * The bodies of the kernels are functions that a CPU can run too: tests walk a
 * simulated grid through them on machines without a GPU.
 */
#ifndef DP_KERNELS_CUDA_TYPES_CUH
#define DP_KERNELS_CUDA_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cuda.h"
#include "kernels/cuda_launch.cuh"

#define DP_BOTH __host__ __device__ __forceinline__

typedef struct half_bits {
    uint16_t bits;
} half_bits_t;
typedef struct bfloat_bits {
    uint16_t bits;
} bfloat_bits_t;

DP_BOTH float dp_bits_to_float(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    return dp_bits_f32(bits);
#endif
}

/* ---- To and from the type a kernel computes in: fp32, or f64 for f64 ------------------------ */

DP_BOTH float widen(float value)
{
    return value;
}

DP_BOTH double widen(double value)
{
    return value;
}

DP_BOTH float widen(half_bits_t value)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(value.bits));
#else
    return dp_convert_f16_to_f32(value.bits);
#endif
}

DP_BOTH float widen(bfloat_bits_t value)
{
    return
#ifdef __CUDA_ARCH__
        __uint_as_float((uint32_t)value.bits << 16);
#else
        dp_convert_bf16_to_f32(value.bits);
#endif
}

DP_BOTH void narrow(float value, float *to)
{
    *to = value;
}

DP_BOTH void narrow(double value, double *to)
{
    *to = value;
}

/* Too large becomes Inf, here as on the host. */
DP_BOTH void narrow(float value, half_bits_t *to)
{
#ifdef __CUDA_ARCH__
    to->bits = __half_as_ushort(__float2half_rn(value));
#else
    to->bits = dp_convert_f32_to_f16(value);
#endif
}

DP_BOTH void narrow(float value, bfloat_bits_t *to)
{
#ifdef __CUDA_ARCH__
    to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    to->bits = dp_convert_f32_to_bf16(value);
#endif
}

/* ---- Whole vectors at a time ---------------------------------------------------------------- */

#define VECTOR_BYTES 16

/* The operand of one load or store of a thread: 8 or 16 bytes. */
template <int bytes> struct alignas(bytes) vector_t {
    uint32_t w[bytes / 4];
};
typedef vector_t<VECTOR_BYTES> words_t;

template <int bytes = VECTOR_BYTES> DP_BOTH unsigned misalignment(const void *pointer)
{
    return (unsigned)((uintptr_t)pointer % bytes);
}

DP_BOTH uint32_t funnel(uint32_t low, uint32_t high, unsigned bits)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_r(low, high, bits);
#else
    return bits == 0 ? low : low >> bits | high << (32 - bits);
#endif
}

/*
 * The bytes of `count` vectors that begin `skip` bytes behind the first of count + 1 aligned ones.
 * Registers cannot be indexed by a variable, so the shift goes by 8, by 4, then by single bytes.
 */
template <int bytes, int count>
DP_BOTH void shift_words(const vector_t<bytes> (&from)[count + 1], unsigned skip,
                         vector_t<bytes> (&to)[count])
{
    const int each = bytes / 4;
    uint32_t w[each * (count + 1)];

    for (int i = 0; i < each * (count + 1); i++)
        w[i] = from[i / each].w[i % each];
    for (int i = 0; bytes > 8 && i + 2 < each * (count + 1); i++)
        w[i] = (skip & 8u) != 0 ? w[i + 2] : w[i];
    for (int i = 0; i + 1 < each * (count + 1); i++)
        w[i] = (skip & 4u) != 0 ? w[i + 1] : w[i];
    for (int i = 0; i < each * count; i++)
        to[i / each].w[i % each] = funnel(w[i], w[i + 1], (skip & 3u) * 8);
}

/*
 * Reads `count` vectors from anywhere inside [begin, end). Never touches a byte outside of it: near
 * the ends of a misaligned tensor bytes are read one by one.
 */
template <int bytes, int count>
DP_BOTH void load_vectors(const unsigned char *at, const unsigned char *begin,
                          const unsigned char *end, vector_t<bytes> (&to)[count])
{
    const int each = bytes / 4;
    const unsigned skip = misalignment<bytes>(at);
    const unsigned char *aligned = at - skip;

    if (skip == 0) {
        for (int i = 0; i < count; i++)
            to[i] = ((const vector_t<bytes> *)(const void *)at)[i];
    } else if (aligned >= begin && aligned + (count + 1) * bytes <= end) {
        vector_t<bytes> around[count + 1];

        for (int i = 0; i <= count; i++)
            around[i] = ((const vector_t<bytes> *)(const void *)aligned)[i];
        shift_words<bytes, count>(around, skip, to);
    } else {
        for (int i = 0; i < each * count; i++) {
            uint32_t word = 0;

            for (int k = 0; k < 4; k++)
                word |= (uint32_t)at[4 * i + k] << (8 * k);
            to[i / each].w[i % each] = word;
        }
    }
}

#endif
