/*
 * engine_reference.c - what a collective must give, in plain C, element by element.
 *
 * The order is the engine's promise: local ranks ascending, then nodes ascending; 16-bit floats in
 * fp32. Only one period is worked out, and repeated.
 */
#include "engine_reference.h"
#include "kernels/convert.h"

#include <math.h>
#include <string.h>

#define RANKS 16

static void store_float(dp_dtype_t dtype, void *to, double value)
{
    const float single = (float)value;
    uint16_t half;

    if (dtype == DP_F64) {
        memcpy(to, &value, sizeof(value));
    } else if (dtype == DP_F32) {
        memcpy(to, &single, sizeof(single));
    } else {
        half = dtype == DP_F16 ? dp_convert_f32_to_f16(single) : dp_convert_f32_to_bf16(single);
        memcpy(to, &half, sizeof(half));
    }
}

static double load_float(dp_dtype_t dtype, const void *from)
{
    double value;
    float single;
    uint16_t half;

    if (dtype == DP_F64) {
        memcpy(&value, from, sizeof(value));
        return value;
    }
    if (dtype == DP_F32) {
        memcpy(&single, from, sizeof(single));
        return (double)single;
    }
    memcpy(&half, from, sizeof(half));
    return (double)(dtype == DP_F16 ? dp_convert_f16_to_f32(half) : dp_convert_bf16_to_f32(half));
}

static void store_int(dp_dtype_t dtype, void *to, uint64_t value)
{
    memcpy(to, &value, dp_dtype_bytes(dtype)); /* little-endian, as all machines we build for */
}

static int64_t load_int(dp_dtype_t dtype, const void *from)
{
    const size_t bits = 8 * dp_dtype_bytes(dtype);
    const int is_signed = dtype == DP_I8 || dtype == DP_I16 || dtype == DP_I32 || dtype == DP_I64;
    uint64_t value = 0;

    memcpy(&value, from, bits / 8);
    if (is_signed && bits < 64 && (value >> (bits - 1) & 1)) value |= ~(uint64_t)0 << bits;
    return (int64_t)value;
}

static void fill_one(dp_dtype_t dtype, char *at, int rank, size_t index, int exact)
{
    uint64_t mixed = (index % REFERENCE_PERIOD + 1) * 0x9e3779b97f4a7c15ull +
                     (uint64_t)rank * 0xd1b54a32d192ed03ull;

    mixed ^= mixed >> 29;
    mixed *= 0xbf58476d1ce4e5b9ull;
    mixed ^= mixed >> 32;
    if (dtype == DP_BOOL) {
        *at = (char)(mixed % 3 == 0);
    } else if (!dp_dtype_is_float(dtype)) {
        store_int(dtype, at, mixed % 11);
    } else if (exact) {
        store_float(dtype, at, (double)(int64_t)(mixed % 9) - 4.0);
    } else {
        store_float(dtype, at, (double)(int64_t)(mixed % 20001) / 10000.0 - 1.0);
    }
}

/* Repeats the period that data begins with. */
static void repeat(dp_dtype_t dtype, char *data, size_t count)
{
    const size_t bytes = count * dp_dtype_bytes(dtype);
    size_t done = REFERENCE_PERIOD * dp_dtype_bytes(dtype);

    for (; done < bytes; done += dp_min(done, bytes - done))
        memcpy(data + done, data, dp_min(done, bytes - done));
}

void reference_fill(dp_dtype_t dtype, void *data, size_t count, int rank, size_t first, int exact)
{
    char *at = data;

    for (size_t i = 0; i < dp_min(count, (size_t)REFERENCE_PERIOD); i++)
        fill_one(dtype, at + i * dp_dtype_bytes(dtype), rank, first + i, exact);
    repeat(dtype, data, count);
}

static double combine_float(dp_dtype_t dtype, dp_reduce_t reduce, double a, double b)
{
    const int is_double = dtype == DP_F64;
    const float x = (float)a;
    const float y = (float)b;

    switch (reduce) {
    case DP_MIN:
        return a < b ? a : b;
    case DP_MAX:
        return a > b ? a : b;
    case DP_PRODUCT:
        return is_double ? a * b : (double)(x * y);
    default:
        return is_double ? a + b : (double)(x + y);
    }
}

static double scaled(dp_dtype_t dtype, double value, double scale)
{
    return dtype == DP_F64 ? value * scale : (double)((float)value * (float)scale);
}

static int64_t combine_int(dp_dtype_t dtype, dp_reduce_t reduce, int64_t a, int64_t b)
{
    if (dtype == DP_BOOL) {
        return reduce == DP_SUM || reduce == DP_MAX ? (a | b) != 0 : (a & b) != 0;
    }
    switch (reduce) {
    case DP_MIN:
        return a < b ? a : b;
    case DP_MAX:
        return a > b ? a : b;
    case DP_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static void reduce_ints(const engine_world_t *world, dp_dtype_t dtype, dp_reduce_t reduce,
                        const void *const *inputs, void *out)
{
    char narrow[8] = {0};
    int64_t sum = load_int(dtype, inputs[0]);

    for (int r = 1; r < world->size; r++) {
        sum = combine_int(dtype, reduce, sum, load_int(dtype, inputs[r]));
        store_int(dtype, narrow, (uint64_t)sum); /* wraps */
        sum = load_int(dtype, narrow);
    }
    if (reduce == DP_AVERAGE) {
        /* An unsigned 64-bit sum of these inputs is positive as a signed one, too. */
        sum /= world->size;
    }
    store_int(dtype, out, (uint64_t)sum);
}

/* One element of the result. inputs[size] are the ranks' elements. */
static void reduce_one(const engine_world_t *world, const reference_t *what,
                       const void *const *inputs, void *out)
{
    const dp_dtype_t dtype = what->dtype;
    const dp_reduce_t reduce = what->reduce;
    const dp_dtype_t wired = what->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;
    const int is_wired = world->nodes > 1 && dtype == DP_F32 &&
                         (what->wire == DP_WIRE_FP16 || what->wire == DP_WIRE_BF16);
    double postscale = what->postscale;
    char rounded[8];
    double total = 0.0;
    int is_first_node = 1;

    if (!dp_dtype_is_float(dtype)) {
        reduce_ints(world, dtype, reduce, inputs, out);
        return;
    }
    for (int node = 0; node < world->nodes; node++) {
        double part = 0.0;
        int first = 1;

        for (int r = 0; r < world->size; r++) {
            double value = load_float(dtype, inputs[r]);

            if (engine_node(world, r) != node) continue;
            if (!is_wired) value = scaled(dtype, value, what->prescale);
            part = first ? value : combine_float(dtype, reduce, part, value);
            first = 0;
        }
        if (is_wired) {
            store_float(wired, rounded, scaled(dtype, part, ldexp(what->prescale, what->exponent)));
            part = load_float(wired, rounded);
        }
        total = is_first_node ? part : combine_float(dtype, reduce, total, part);
        is_first_node = 0;
    }
    if (is_wired) {
        store_float(wired, rounded, total);
        total = load_float(wired, rounded);
        postscale = ldexp(postscale, -what->exponent);
    }
    store_float(dtype, out, scaled(dtype, total, postscale));
}

void reference_reduce(const engine_world_t *world, const reference_t *what, size_t first,
                      size_t count, void *out)
{
    const size_t bytes = dp_dtype_bytes(what->dtype);

    for (size_t i = 0; i < dp_min(count, (size_t)REFERENCE_PERIOD); i++) {
        double elements[RANKS];
        const void *inputs[RANKS];

        for (int r = 0; r < world->size; r++) {
            fill_one(what->dtype, (char *)&elements[r], r, first + i, what->exact);
            inputs[r] = &elements[r];
        }
        reduce_one(world, what, inputs, (char *)out + i * bytes);
    }
    repeat(what->dtype, out, count);
}

size_t reference_differs(dp_dtype_t dtype, const void *a, const void *b, size_t count)
{
    const size_t bytes = dp_dtype_bytes(dtype);
    size_t at = 0;

    if (memcmp(a, b, count * bytes) == 0) return count;
    while (((const char *)a)[at] == ((const char *)b)[at])
        at++;
    return at / bytes;
}
