/*
 * test_compress.c - the exponent leaves room above and keeps small elements normal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "fusion/compress.h"

static void compress_unknown_magnitudes_travel_uncompressed_once(void **unused)
{
    static const float unknown[] = {-1.0f, 0.0f, NAN, INFINITY, -INFINITY};
    int exponent = 99;

    (void)unused;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(dp_compress_choose(DP_WIRE_FP16, unknown[i], &exponent), DP_WIRE_NONE);
        assert_int_equal(exponent, 0);
        exponent = 99;
        assert_int_equal(dp_compress_choose(DP_WIRE_BF16, unknown[i], &exponent), DP_WIRE_BF16);
        assert_int_equal(exponent, 0);
    }
    assert_int_equal(dp_compress_choose(DP_WIRE_NONE, 1.0f, &exponent), DP_WIRE_NONE);
    assert_int_equal(dp_compress_choose(DP_WIRE_DEFAULT, 1.0f, &exponent), DP_WIRE_NONE);
}

static void compress_brings_the_largest_below_the_top(void **unused)
{
    (void)unused;
    for (int power = -149; power < 128; power++) {
        for (float mantissa = 1.0f; mantissa < 2.0f; mantissa += 0.24f) {
            float absmax = ldexpf(mantissa, power), scaled;
            int exponent;

            if (!(absmax > 0.0f)) continue;
            assert_int_equal(dp_compress_choose(DP_WIRE_FP16, absmax, &exponent), DP_WIRE_FP16);
            scaled = ldexpf(absmax, exponent);
            assert_true(scaled < 256.0f);
            assert_true(scaled >= 128.0f || exponent == 96);
            assert_true(isnormal(ldexpf(1.0f, exponent)) && isnormal(ldexpf(1.0f, -exponent)));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compress_unknown_magnitudes_travel_uncompressed_once),
        cmocka_unit_test(compress_brings_the_largest_below_the_top),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
