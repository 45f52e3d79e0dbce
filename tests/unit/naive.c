/*
 * naive.c - each kernel as the plain loop one would write first.
 *
 * Element by element, no blocks, no vectors; the only order that is not the obvious one is that of
 * the sum of squares, which kernels.h defines by blocks of 16 interleaved sums.
 *
 * Only tests and benchmarks call it, to compare the fast kernels with it.
 */
#include "kernels/convert.h"
#include "tests/unit/naive.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

/* Any element; which member counts follows from its type. */
typedef struct value {
    uint64_t integer; /* sign-extended where the type is signed */
    float small;      /* f16, bf16, f32 */
    double large;     /* f64 */
} naive_value_t;

static int is_signed(dp_dtype_t dtype)
{
    return dtype == DP_I8 || dtype == DP_I16 || dtype == DP_I32 || dtype == DP_I64;
}

static int is_small_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32;
}

static naive_value_t read_value(dp_dtype_t dtype, const void *base, size_t index)
{
    size_t bytes = dp_kernel_dtype_bytes(dtype);
    const unsigned char *at = (const unsigned char *)base + index * bytes;
    naive_value_t value = {0};
    uint8_t b8;
    uint16_t b16;
    uint32_t b32;

    switch (bytes) {
    case 1:
        memcpy(&b8, at, 1);
        value.integer = is_signed(dtype) ? (uint64_t)(int64_t)(int8_t)b8 : b8;
        if (dtype == DP_BOOL) value.integer = b8 != 0;
        break;
    case 2:
        memcpy(&b16, at, 2);
        value.integer = is_signed(dtype) ? (uint64_t)(int64_t)(int16_t)b16 : b16;
        if (dtype == DP_F16) value.small = dp_convert_f16_to_f32(b16);
        if (dtype == DP_BF16) value.small = dp_convert_bf16_to_f32(b16);
        break;
    case 4:
        memcpy(&b32, at, 4);
        memcpy(&value.small, at, 4);
        value.integer = is_signed(dtype) ? (uint64_t)(int64_t)(int32_t)b32 : b32;
        break;
    default:
        memcpy(&value.integer, at, 8);
        memcpy(&value.large, at, 8);
    }
    return value;
}

static void write_value(dp_dtype_t dtype, void *base, size_t index, naive_value_t value)
{
    size_t bytes = dp_kernel_dtype_bytes(dtype);
    unsigned char *at = (unsigned char *)base + index * bytes;
    uint8_t b8 = (uint8_t)value.integer;
    uint16_t b16 = (uint16_t)value.integer;
    uint32_t b32 = (uint32_t)value.integer;

    switch (dtype) {
    case DP_F16:
        b16 = dp_convert_f32_to_f16(value.small);
        break;
    case DP_BF16:
        b16 = dp_convert_f32_to_bf16(value.small);
        break;
    case DP_F32:
        memcpy(&b32, &value.small, 4);
        break;
    case DP_F64:
        memcpy(&value.integer, &value.large, 8);
        break;
    default:
        break;
    }
    switch (bytes) {
    case 1:
        memcpy(at, &b8, 1);
        break;
    case 2:
        memcpy(at, &b16, 2);
        break;
    case 4:
        memcpy(at, &b32, 4);
        break;
    default:
        memcpy(at, &value.integer, 8);
    }
}

/* Whether b replaces a as the extreme so far. */
static int wins(dp_dtype_t dtype, dp_reduce_t reduce, naive_value_t a, naive_value_t b)
{
    if (is_small_float(dtype)) {
        if (isnan(a.small) || isnan(b.small)) return !isnan(a.small);
        return reduce == DP_MIN ? b.small < a.small : b.small > a.small;
    }
    if (dtype == DP_F64) {
        if (isnan(a.large) || isnan(b.large)) return !isnan(a.large);
        return reduce == DP_MIN ? b.large < a.large : b.large > a.large;
    }
    if (is_signed(dtype)) {
        return reduce == DP_MIN ? (int64_t)b.integer < (int64_t)a.integer
                                : (int64_t)b.integer > (int64_t)a.integer;
    }
    return reduce == DP_MIN ? b.integer < a.integer : b.integer > a.integer;
}

static naive_value_t combine(dp_dtype_t dtype, dp_reduce_t reduce, naive_value_t a, naive_value_t b)
{
    if (reduce == DP_MIN || reduce == DP_MAX) return wins(dtype, reduce, a, b) ? b : a;
    if (dtype == DP_BOOL) {
        a.integer = reduce == DP_PRODUCT ? a.integer & b.integer : a.integer | b.integer;
    } else if (reduce == DP_PRODUCT) {
        a.integer *= b.integer;
    } else {
        a.integer += b.integer;
    }
    a.small = reduce == DP_PRODUCT ? a.small * b.small : a.small + b.small;
    a.large = reduce == DP_PRODUCT ? a.large * b.large : a.large + b.large;
    return a;
}

static naive_value_t divide(dp_dtype_t dtype, naive_value_t sum, int64_t divisor)
{
    unsigned char element[8] = {0};

    write_value(dtype, element, 0, sum); /* the sum wraps before it is divided */
    sum = read_value(dtype, element, 0);
    if (is_signed(dtype)) {
        sum.integer = (uint64_t)((int64_t)sum.integer / divisor);
    } else {
        sum.integer /= (uint64_t)divisor;
    }
    return sum;
}

void dp_naive_reduce(const dp_reduce_args_t *args)
{
    float pre = (float)args->prescale, post = (float)args->postscale;

    for (size_t i = 0; i < args->count; i++) {
        naive_value_t result = {0};

        for (int k = 0; k < args->in_count; k++) {
            naive_value_t value = read_value(args->dtype, args->in[k], i);

            value.small *= pre;
            value.large *= args->prescale;
            result = k == 0 ? value : combine(args->dtype, args->reduce, result, value);
        }
        result.small *= post;
        result.large *= args->postscale;
        if (isnan(result.small)) result.small = NAN;
        if (isnan(result.large)) result.large = (double)NAN;
        if (args->divisor > 1 && args->dtype != DP_BOOL) {
            result = divide(args->dtype, result, args->divisor);
        }
        for (int k = 0; k < args->out_count; k++) {
            write_value(args->dtype, args->out[k], i, result);
        }
    }
    if (args->tally != NULL && args->out_count > 0) {
        dp_naive_tally(args->tally, args->dtype, args->out[0], args->count);
    }
}

void dp_naive_tally(dp_tally_t *tally, dp_dtype_t dtype, const void *values, size_t count)
{
    for (size_t block = 0; block < count; block += DP_TALLY_BLOCK) {
        double sums[16] = {0};
        double absmax = 0.0;
        uint64_t nonfinite = 0;

        for (size_t i = block; i < count && i < block + DP_TALLY_BLOCK; i++) {
            naive_value_t value = read_value(dtype, values, i);
            double x = fabs(dtype == DP_F64 ? value.large : (double)value.small);

            if (!isfinite(x)) {
                nonfinite++;
                continue;
            }
            if (x > absmax) absmax = x;
            sums[i % 16] += x * x;
        }
        for (int width = 8; width > 0; width /= 2) {
            for (int i = 0; i < width; i++)
                sums[i] += sums[i + width];
        }
        dp_tally_add_block(tally, sums[0], absmax, nonfinite);
    }
}

void dp_naive_cast(const dp_cast_args_t *args)
{
    for (size_t p = 0; p < args->piece_count; p++) {
        const dp_cast_piece_t *piece = &args->pieces[p];

        if (args->from == args->to && piece->scale == 1.0) {
            memmove(piece->to, piece->from, piece->count * dp_kernel_dtype_bytes(args->from));
        } else {
            for (size_t i = 0; i < piece->count; i++) {
                naive_value_t value = read_value(args->from, piece->from, i);

                value.small *= (float)piece->scale;
                value.large *= piece->scale;
                write_value(args->to, piece->to, i, value);
            }
        }
        if (piece->tally != NULL) {
            dp_naive_tally(piece->tally, args->to, piece->to, piece->count);
        }
    }
}

void dp_naive_reduce_cast(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                          size_t count, float scale)
{
    for (size_t i = 0; i < count; i++) {
        naive_value_t sum = {0};

        for (int k = 0; k < in_count; k++) {
            naive_value_t value = read_value(DP_F32, in[k], i);

            sum.small = k == 0 ? value.small : sum.small + value.small;
        }
        if (isnan(sum.small)) sum.small = NAN;
        sum.small *= scale;
        write_value(wire, out, i, sum);
    }
}

void dp_naive_expand(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                     size_t count, float scale, dp_tally_t *tally)
{
    for (size_t i = 0; i < count; i++) {
        naive_value_t value = read_value(wire, in, i);

        value.small *= scale;
        for (int k = 0; k < out_count; k++)
            write_value(DP_F32, out[k], i, value);
    }
    if (tally != NULL && out_count > 0) dp_naive_tally(tally, DP_F32, out[0], count);
}
