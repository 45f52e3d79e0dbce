/*
 * cuda_reduce.cuh - one element of a reduction, for host and device alike: widened, combined in
 * ascending order of the inputs, narrowed.
 */
#ifndef DP_KERNELS_CUDA_REDUCE_CUH
#define DP_KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda_types.cuh"

typedef struct reduce_launch {
    const void *in[DP_CUDA_REDUCE_MAX];
    int in_count;
    void *out;
    unsigned long long count;
    double prescale, postscale;
    long long divisor;
    dp_reduce_t reduce;
} reduce_launch_t;

/* A logical value of one byte. */
typedef struct bool_byte {
    uint8_t value;
} bool_byte_t;

DP_BOTH bool_byte_t widen(bool_byte_t value)
{
    return bool_byte_t{(uint8_t)(value.value != 0)};
}

/* Integers are computed in their own type and wrap, also where C would promote them. */
#define WIDEN_INTEGER(type)                                                                        \
    DP_BOTH type widen(type value)                                                                 \
    {                                                                                              \
        return value;                                                                              \
    }                                                                                              \
    DP_BOTH void narrow(type value, type *to)                                                      \
    {                                                                                              \
        *to = value;                                                                               \
    }
WIDEN_INTEGER(uint8_t)
WIDEN_INTEGER(int8_t)
WIDEN_INTEGER(uint16_t)
WIDEN_INTEGER(int16_t)
WIDEN_INTEGER(uint32_t)
WIDEN_INTEGER(int32_t)
WIDEN_INTEGER(uint64_t)
WIDEN_INTEGER(int64_t)

DP_BOTH void narrow(bool_byte_t value, bool_byte_t *to)
{
    *to = value;
}

/* The unsigned type of an integer's size: sums of it wrap without being undefined. */
template <int bytes> struct unsigned_of;
template <> struct unsigned_of<1> {
    typedef uint8_t type;
};
template <> struct unsigned_of<2> {
    typedef uint16_t type;
};
template <> struct unsigned_of<4> {
    typedef uint32_t type;
};
template <> struct unsigned_of<8> {
    typedef uint64_t type;
};

template <typename T> DP_BOTH T combine(dp_reduce_t reduce, T a, T b)
{
    typedef typename unsigned_of<sizeof(T)>::type bits;

    switch (reduce) {
    case DP_MIN:
        return b < a ? b : a;
    case DP_MAX:
        return b > a ? b : a;
    case DP_PRODUCT: /* widened to 64 bits first: two 16-bit factors would overflow an int */
        return (T)(bits)((uint64_t)(bits)a * (uint64_t)(bits)b);
    default:
        return (T)(bits)((uint64_t)(bits)a + (uint64_t)(bits)b);
    }
}

/* In min and max a NaN wins, the first one that comes. */
template <typename T> DP_BOTH T combine_floats(dp_reduce_t reduce, T a, T b)
{
    switch (reduce) {
    case DP_MIN:
        return a != a ? a : (b != b || b < a ? b : a);
    case DP_MAX:
        return a != a ? a : (b != b || b > a ? b : a);
    case DP_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

template <> DP_BOTH float combine<float>(dp_reduce_t reduce, float a, float b)
{
    return combine_floats(reduce, a, b);
}

template <> DP_BOTH double combine<double>(dp_reduce_t reduce, double a, double b)
{
    return combine_floats(reduce, a, b);
}

template <>
DP_BOTH bool_byte_t combine<bool_byte_t>(dp_reduce_t reduce, bool_byte_t a, bool_byte_t b)
{
    const bool is_and = reduce == DP_MIN || reduce == DP_PRODUCT;

    return bool_byte_t{(uint8_t)(is_and ? (a.value & b.value) : (a.value | b.value))};
}

template <typename W> DP_BOTH W scale_in(W value, const reduce_launch_t &)
{
    return value;
}

DP_BOTH float scale_in(float value, const reduce_launch_t &launch)
{
    return value * (float)launch.prescale;
}

DP_BOTH double scale_in(double value, const reduce_launch_t &launch)
{
    return value * launch.prescale;
}

template <typename W> DP_BOTH W finish(W value, const reduce_launch_t &launch)
{
    const bool is_signed = (W)-1 < (W)1;

    if (launch.divisor <= 1) return value;
    return is_signed ? (W)((long long)value / launch.divisor)
                     : (W)((unsigned long long)value / (unsigned long long)launch.divisor);
}

/* A NaN is the canonical quiet one, whichever operand it came from. */
DP_BOTH float finish(float value, const reduce_launch_t &launch)
{
    const float result = value * (float)launch.postscale;

    return result != result ? dp_bits_to_float(0x7fc00000u) : result;
}

DP_BOTH double finish(double value, const reduce_launch_t &launch)
{
    const double result = value * launch.postscale;

    return result != result ? (double)dp_bits_to_float(0x7fc00000u) : result;
}

DP_BOTH bool_byte_t finish(bool_byte_t value, const reduce_launch_t &)
{
    return value;
}

template <typename T> DP_BOTH void reduce_element(const reduce_launch_t &launch, size_t i)
{
    auto sum = scale_in(widen(((const T *)launch.in[0])[i]), launch);

    for (int k = 1; k < launch.in_count; k++)
        sum = combine(launch.reduce, sum, scale_in(widen(((const T *)launch.in[k])[i]), launch));
    narrow(finish(sum, launch), &((T *)launch.out)[i]);
}

#endif
