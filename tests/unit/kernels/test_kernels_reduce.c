/*
 * test_kernels_reduce.c - every type, operation, count and alignment, bit for bit the naive loop.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/naive.h"
#include "kernels/variant.h"
#include "tests/unit/kernel_data.h"

enum { inputs_max = 11, outputs_max = 8, count_max = 9000 };

typedef struct arena {
    unsigned char *in[inputs_max];
    unsigned char *out[outputs_max];
    unsigned char *expected;
} arena_t;

static arena_t arena_make(void)
{
    arena_t arena;
    size_t bytes = (size_t)count_max * 8 + 128;

    for (int k = 0; k < inputs_max; k++)
        arena.in[k] = malloc(bytes);
    for (int k = 0; k < outputs_max; k++)
        arena.out[k] = malloc(bytes);
    arena.expected = malloc(bytes);
    return arena;
}

static void arena_free(arena_t *arena)
{
    for (int k = 0; k < inputs_max; k++)
        free(arena->in[k]);
    for (int k = 0; k < outputs_max; k++)
        free(arena->out[k]);
    free(arena->expected);
}

typedef struct shape {
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    int in_count, out_count;
    size_t count;
    size_t skew;  /* bytes by which pointers miss their alignment, growing with their number */
    int in_place; /* output k is input k */
    int streaming;
    double prescale, postscale;
    int64_t divisor;
    int calm;
    unsigned pattern; /* not 0: 16-bit elements, the next count of all patterns from here on */
} shape_t;

static int is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

/* Input 0 walks through all patterns in their order, the others in jumps. */
static void fill(const shape_t *shape, int k, unsigned char *to, uint64_t *state)
{
    if (shape->pattern == 0) {
        kernel_fill(shape->dtype, to, shape->count, state, shape->calm);
        return;
    }
    for (size_t i = 0; i < shape->count; i++) {
        const uint16_t bits =
            (uint16_t)((shape->pattern + i) * (k == 0 ? 1 : 40503u + 2u * (unsigned)k));

        memcpy(to + 2 * i, &bits, sizeof(bits));
    }
}

static void check_shape(arena_t *arena, const shape_t *shape, uint64_t *state)
{
    const void *in[inputs_max];
    void *out[outputs_max];
    void *one[1];
    size_t bytes = shape->count * dp_kernel_dtype_bytes(shape->dtype);
    unsigned char *saved[inputs_max];
    dp_reduce_args_t args = {.dtype = shape->dtype,
                             .reduce = shape->reduce,
                             .in = in,
                             .in_count = shape->in_count,
                             .out = one,
                             .out_count = 1,
                             .count = shape->count,
                             .prescale = shape->prescale,
                             .postscale = shape->postscale,
                             .divisor = shape->divisor,
                             .streaming = shape->streaming};
    dp_tally_t expected_tally, tally;
    const dp_kernel_table_t *table;

    dp_tally_init(&expected_tally);
    for (int k = 0; k < shape->in_count; k++) {
        in[k] = arena->in[k] + shape->skew * (size_t)(k + 1);
        fill(shape, k, arena->in[k] + shape->skew * (size_t)(k + 1), state);
        saved[k] = malloc(bytes + 1);
        memcpy(saved[k], in[k], bytes);
    }
    one[0] = arena->expected;
    args.tally = is_float(shape->dtype) ? &expected_tally : NULL;
    dp_naive_reduce(&args);

    for (int v = 0; (table = dp_kernels_table(v)) != NULL; v++) {
        for (int k = 0; k < shape->in_count; k++) {
            memcpy(arena->in[k] + shape->skew * (size_t)(k + 1), saved[k], bytes);
        }
        for (int k = 0; k < shape->out_count; k++) {
            unsigned char *base = arena->out[k] + shape->skew * (size_t)(k + 3);

            out[k] = shape->in_place && k < shape->in_count
                         ? arena->in[k] + shape->skew * (size_t)(k + 1)
                         : base;
            if (!shape->in_place) memset(base - 1, 0x5a, bytes + 2);
        }
        dp_tally_init(&tally);
        args.out = out;
        args.out_count = shape->out_count;
        args.tally = is_float(shape->dtype) ? &tally : NULL;
        table->reduce(&args);
        for (int k = 0; k < shape->out_count; k++) {
            if (memcmp(out[k], arena->expected, bytes) != 0) {
                fail_msg("%s dtype %d reduce %d in %d out %d/%d count %zu skew %zu in place %d",
                         table->name, (int)shape->dtype, (int)shape->reduce, shape->in_count, k,
                         shape->out_count, shape->count, shape->skew, shape->in_place);
            }
            if (!shape->in_place) { /* not a byte around it */
                assert_int_equal(((unsigned char *)out[k])[-1], 0x5a);
                assert_int_equal(((unsigned char *)out[k])[bytes], 0x5a);
            }
        }
        if (args.tally != NULL && memcmp(&tally, &expected_tally, sizeof(tally)) != 0) {
            fail_msg("%s dtype %d reduce %d in %d count %zu: tally %llu %g %g, expected %llu %g %g",
                     table->name, (int)shape->dtype, (int)shape->reduce, shape->in_count,
                     shape->count, (unsigned long long)tally.nonfinite, tally.absmax,
                     dp_tally_sum_squares(&tally), (unsigned long long)expected_tally.nonfinite,
                     expected_tally.absmax, dp_tally_sum_squares(&expected_tally));
        }
    }
    for (int k = 0; k < shape->in_count; k++)
        free(saved[k]);
}

static const size_t counts[] = {0, 1, 7, 16, 33, 255, 4095, 4096, 4097, 8999};

static void reduce_every_type_and_operation(void **unused)
{
    arena_t arena = arena_make();
    uint64_t state = 1;

    (void)unused;
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
            for (int in_count = 1; in_count <= inputs_max; in_count++) {
                shape_t shape = {.dtype = (dp_dtype_t)dtype,
                                 .reduce = (dp_reduce_t)reduce,
                                 .in_count = in_count,
                                 .out_count = 1 + in_count % 3,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .divisor = 1};

                for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                    if (in_count > 3 && c % 3 != (size_t)in_count % 3) continue;
                    shape.count = counts[c];
                    shape.skew = c % 2 != 0 ? 1 : 64;
                    shape.in_place = (in_count + (int)c) % 2;
                    shape.streaming = in_count % 2;
                    shape.calm = c % 3 == 0;
                    check_shape(&arena, &shape, &state);
                }
            }
        }
    }
    arena_free(&arena);
}

static void reduce_sum_every_count_of_inputs_and_outputs(void **unused)
{
    arena_t arena = arena_make();
    uint64_t state = 2;

    (void)unused;
    for (int in_count = 1; in_count <= inputs_max; in_count++) {
        for (int out_count = 1; out_count <= outputs_max; out_count++) {
            for (int mode = 0; mode < 24; mode++) {
                shape_t shape = {.dtype = (dp_dtype_t)(DP_F16 + mode / 8),
                                 .reduce = DP_SUM,
                                 .in_count = in_count,
                                 .out_count = out_count,
                                 .count = 4096 + 37,
                                 .skew = mode & 1 ? 1 : 4,
                                 .in_place = mode >> 1 & 1,
                                 .streaming = mode >> 2 & 1,
                                 .prescale = 1.0,
                                 .postscale = 1.0};

                check_shape(&arena, &shape, &state);
                shape.prescale = 0.3;
                shape.postscale = 1.0 / 3.0;
                check_shape(&arena, &shape, &state);
            }
        }
    }
    arena_free(&arena);
}

/* Subnormals, Inf and every NaN among them; two inputs and more than the loops are unrolled for. */
static void reduce_every_16_bit_pattern(void **unused)
{
    arena_t arena = arena_make();
    uint64_t state = 5;

    (void)unused;
    for (int dtype = DP_F16; dtype <= DP_BF16; dtype++) {
        for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
            for (unsigned pattern = 0x10000; pattern < 0x20000; pattern += 8192) {
                shape_t shape = {.dtype = (dp_dtype_t)dtype,
                                 .reduce = (dp_reduce_t)reduce,
                                 .in_count = 1 + (int)(pattern / 8192 % 5),
                                 .out_count = 2,
                                 .count = 8192,
                                 .skew = 2,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .pattern = pattern};

                check_shape(&arena, &shape, &state);
                shape.in_count = 2;
                check_shape(&arena, &shape, &state);
                shape.postscale = 1.0 / 3.0;
                check_shape(&arena, &shape, &state);
            }
        }
    }
    arena_free(&arena);
}

static void reduce_scales_every_float_type(void **unused)
{
    static const double scales[][2] = {{0.1, 1.0}, {1.0, 0.25}, {-3.0, 1.0 / 7.0}, {1e30, 1e-30}};
    arena_t arena = arena_make();
    uint64_t state = 3;

    (void)unused;
    for (int dtype = DP_F16; dtype <= DP_F64; dtype++) {
        for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
            for (size_t s = 0; s < 4; s++) {
                shape_t shape = {.dtype = (dp_dtype_t)dtype,
                                 .reduce = (dp_reduce_t)reduce,
                                 .in_count = 2 + (int)s * 3,
                                 .out_count = 2,
                                 .count = 4200,
                                 .skew = 2,
                                 .prescale = scales[s][0],
                                 .postscale = scales[s][1]};

                check_shape(&arena, &shape, &state);
            }
        }
    }
    arena_free(&arena);
}

static void reduce_integer_average_divides_toward_zero(void **unused)
{
    arena_t arena = arena_make();
    uint64_t state = 4;
    int32_t a = -7, b = 0, c = 0;
    const void *in[2] = {&a, &b};
    void *out[1] = {&c};
    dp_reduce_args_t args = {.dtype = DP_I32,
                             .reduce = DP_AVERAGE,
                             .in = in,
                             .in_count = 2,
                             .out = out,
                             .out_count = 1,
                             .count = 1,
                             .prescale = 1.0,
                             .postscale = 1.0,
                             .divisor = 2};

    (void)unused;
    dp_kernel_reduce(&args);
    assert_int_equal(c, -3);
    for (int dtype = DP_U8; dtype <= DP_U64; dtype++) {
        for (int64_t divisor = 2; divisor <= INT64_C(1) << 40; divisor = divisor * 149 - 1) {
            shape_t shape = {.dtype = (dp_dtype_t)dtype,
                             .reduce = DP_AVERAGE,
                             .in_count = 3,
                             .out_count = 2,
                             .count = 1001,
                             .skew = 1,
                             .prescale = 1.0,
                             .postscale = 1.0,
                             .divisor = divisor};

            check_shape(&arena, &shape, &state);
        }
    }
    arena_free(&arena);
}

static float reduce_two(dp_reduce_t reduce, float a, float b)
{
    float c = 0.0f;
    const void *in[2] = {&a, &b};
    void *out[1] = {&c};
    dp_reduce_args_t args = {.dtype = DP_F32,
                             .reduce = reduce,
                             .in = in,
                             .in_count = 2,
                             .out = out,
                             .out_count = 1,
                             .count = 1,
                             .prescale = 1.0,
                             .postscale = 1.0};

    dp_kernel_reduce(&args);
    return c;
}

static void reduce_nan_wins_min_and_max(void **unused)
{
    uint32_t bits;
    float result;

    (void)unused;
    for (int order = 0; order < 2; order++) {
        for (int reduce = DP_MIN; reduce <= DP_MAX; reduce++) {
            result = order ? reduce_two((dp_reduce_t)reduce, -__builtin_nanf("3"), 1.0f)
                           : reduce_two((dp_reduce_t)reduce, 1.0f, -__builtin_nanf("3"));
            memcpy(&bits, &result, sizeof(bits));
            assert_int_equal(bits, 0x7fc00000);
        }
    }
    assert_true(reduce_two(DP_MIN, 1.0f, 2.0f) == 1.0f);
    assert_true(reduce_two(DP_MAX, 1.0f, 2.0f) == 2.0f);
}

static void reduce_bool_is_logical(void **unused)
{
    static const dp_reduce_t reduces[] = {DP_SUM, DP_MAX, DP_PRODUCT, DP_MIN};

    (void)unused;
    for (int r = 0; r < 4; r++) {
        for (int bits = 0; bits < 4; bits++) {
            uint8_t a = bits & 1, b = bits & 2 ? 7 : 0, c = 9;
            const void *in[2] = {&a, &b};
            void *out[1] = {&c};
            dp_reduce_args_t args = {.dtype = DP_BOOL,
                                     .reduce = reduces[r],
                                     .in = in,
                                     .in_count = 2,
                                     .out = out,
                                     .out_count = 1,
                                     .count = 1,
                                     .prescale = 1.0,
                                     .postscale = 1.0};

            dp_kernel_reduce(&args);
            assert_int_equal(c, r < 2 ? (a || b) : (a && b));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_every_type_and_operation),
        cmocka_unit_test(reduce_sum_every_count_of_inputs_and_outputs),
        cmocka_unit_test(reduce_every_16_bit_pattern),
        cmocka_unit_test(reduce_scales_every_float_type),
        cmocka_unit_test(reduce_integer_average_divides_toward_zero),
        cmocka_unit_test(reduce_nan_wins_min_and_max),
        cmocka_unit_test(reduce_bool_is_logical),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
