/*
 * test_tally.c - the long accumulator: exact, and the same in whatever order it is filled.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/naive.h"
#include "kernels/variant.h"
#include "tests/unit/kernel_data.h"

static void tally_does_not_depend_on_splits_or_order(void **unused)
{
    enum { blocks = 24, count = blocks * DP_TALLY_BLOCK - 1234 };
    float *values = malloc(count * sizeof(float));
    uint64_t state = 7;
    dp_tally_t whole;

    (void)unused;
    kernel_fill(DP_F32, values, count, &state, 0);
    dp_tally_init(&whole);
    dp_naive_tally(&whole, DP_F32, values, count);
    assert_true(whole.nonfinite > 0);
    for (int round = 0; round < 50; round++) {
        dp_tally_t parts[blocks], total;
        size_t order[blocks];
        size_t part_count = 0;

        for (size_t at = 0; at < count; part_count++) {
            size_t n = (1 + kernel_random(&state) % 5) * DP_TALLY_BLOCK;

            if (n > count - at) n = count - at;
            dp_tally_init(&parts[part_count]);
            dp_naive_tally(&parts[part_count], DP_F32, values + at, n);
            order[part_count] = part_count;
            at += n;
        }
        for (size_t i = part_count; i > 1; i--) { /* shuffle */
            size_t j = kernel_random(&state) % i, kept = order[i - 1];

            order[i - 1] = order[j];
            order[j] = kept;
        }
        dp_tally_init(&total);
        for (size_t i = 0; i < part_count; i++)
            dp_tally_merge(&total, &parts[order[i]]);
        assert_memory_equal(&total, &whole, sizeof(whole));
    }
    free(values);
}

static double sum_of(double a, double b)
{
    dp_tally_t tally;

    dp_tally_init(&tally);
    dp_tally_add_block(&tally, a, 0.0, 0);
    dp_tally_add_block(&tally, b, 0.0, 0);
    return dp_tally_sum_squares(&tally);
}

static void tally_is_exact_over_the_whole_range(void **unused)
{
    uint64_t state = 8;
    dp_tally_t tally;
    float tiny = 0x1p-149f, huge = 0x1.fffffep127f;

    (void)unused;
    for (int exponent = -260; exponent < 300; exponent++) {
        double a = ldexp(1.0 + (double)(kernel_random(&state) >> 12) * 0x1p-52, exponent);
        double b = ldexp(1.0 + (double)(kernel_random(&state) >> 12) * 0x1p-52,
                         exponent - (int)(kernel_random(&state) % 70));

        if (exponent < -180) b = a;
        assert_true(sum_of(a, 0.0) == a);
        assert_true(sum_of(a, b) == a + b); /* both round the exact sum once, to nearest even */
        assert_true(sum_of(b, a) == a + b);
    }
    dp_tally_init(&tally);
    dp_naive_tally(&tally, DP_F32, &tiny, 1);
    assert_true(dp_tally_sum_squares(&tally) == 0x1p-298);
    assert_true(tally.absmax == (double)tiny);
    for (int i = 0; i < 1000; i++)
        dp_naive_tally(&tally, DP_F32, &huge, 1);
    assert_true(dp_tally_sum_squares(&tally) == 1000 * ((double)huge * (double)huge));
    assert_true(tally.absmax == (double)huge);
}

static void tally_saturates_in_any_order(void **unused)
{
    double values[] = {1e200, 1.0, 0x1p318, 0x1.fp318, 0x1p318};
    dp_tally_t forward, backward, part;

    (void)unused;
    dp_tally_init(&forward);
    dp_tally_init(&backward);
    for (int i = 0; i < 5; i++)
        dp_tally_add_block(&forward, values[i], 0.0, 0);
    for (int i = 4; i >= 0; i--) {
        dp_tally_init(&part);
        dp_tally_add_block(&part, values[i], 0.0, 0);
        dp_tally_merge(&backward, &part);
    }
    assert_memory_equal(&forward, &backward, sizeof(forward));
    assert_true(isinf(dp_tally_sum_squares(&forward)));
    dp_tally_init(&forward);
    for (int i = 2; i < 5; i++)
        dp_tally_add_block(&forward, values[i], 0.0, 0);
    dp_tally_init(&backward);
    for (int i = 4; i >= 2; i--)
        dp_tally_add_block(&backward, values[i], 0.0, 0);
    assert_memory_equal(&forward, &backward, sizeof(forward));
}

static void tally_counts_what_is_not_finite(void **unused)
{
    float values[20] = {1.0f, -2.0f, INFINITY, NAN, -INFINITY, 3.0f};
    const void *in[1] = {values};
    void *out[1] = {values};
    dp_tally_t tally;
    dp_reduce_args_t args = {.dtype = DP_F32,
                             .reduce = DP_SUM,
                             .in = in,
                             .in_count = 1,
                             .out = out,
                             .out_count = 1,
                             .count = 20,
                             .prescale = 1.0,
                             .postscale = 1.0,
                             .tally = &tally};

    (void)unused;
    dp_tally_init(&tally);
    assert_true(dp_tally_sum_squares(&tally) == 0.0);
    dp_kernel_reduce(&args);
    assert_int_equal(tally.nonfinite, 3);
    assert_true(tally.absmax == 3.0);
    assert_true(dp_tally_sum_squares(&tally) == 14.0);
}

static void checksums_of_parts_add_up(void **unused)
{
    enum { count = 1000 };
    float values[count];
    uint64_t whole;

    (void)unused;
    for (int i = 0; i < count; i++)
        values[i] = (float)(i / 2);
    whole = dp_kernel_hash_places(values, count, 50, 7);
    for (size_t cut = 0; cut <= count; cut += 125)
        assert_true(whole == dp_kernel_hash_places(values, cut, 50, 7) +
                                 dp_kernel_hash_places(values + cut, count - cut, 50 + cut, 7));
    /* places and bits both count */
    assert_true(whole != dp_kernel_hash_places(values, count, 51, 7));
    assert_true(whole != dp_kernel_hash_places(values, count, 50, 8));
    values[3] = 2.0f;
    assert_true(whole != dp_kernel_hash_places(values, count, 50, 7));
    values[3] = 1.0f;
    values[0] = -0.0f;
    assert_true(whole != dp_kernel_hash_places(values, count, 50, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tally_does_not_depend_on_splits_or_order),
        cmocka_unit_test(tally_is_exact_over_the_whole_range),
        cmocka_unit_test(tally_saturates_in_any_order),
        cmocka_unit_test(tally_counts_what_is_not_finite),
        cmocka_unit_test(checksums_of_parts_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
