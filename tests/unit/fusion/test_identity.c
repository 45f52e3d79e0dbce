/*
 * test_identity.c - what a joined rank gives changes no bit of what the others reduce to.
 */
#include <math.h>
#include <string.h>

#include "fusion/item_input.h"
#include "tests/unit/cases.h"
#include "tests/unit/naive.h"
#include "runtime/base/common.h"
#include "tests/unit/kernel_data.h"

enum { count = 3000, bytes_max = count * 8 };

static int is_float(dp_dtype_t dtype)
{
    return dtype >= DP_F16 && dtype <= DP_F64;
}

static void reduce(dp_dtype_t dtype, dp_reduce_t reduce, const void *const *in, int in_count,
                   void *result, double prescale)
{
    void *out[1] = {result};
    const dp_reduce_args_t args = {.dtype = dtype,
                                   .reduce = reduce,
                                   .in = in,
                                   .in_count = in_count,
                                   .out = out,
                                   .out_count = 1,
                                   .count = count,
                                   .prescale = prescale,
                                   .postscale = 1.0};

    dp_naive_reduce(&args);
}

/* Infinities, NaN, -0 and subnormals are among the numbers; the identity comes first or last. */
static void identity_changes_no_bit(void **unused)
{
    static const double scales[] = {1.0, -1.0, 0.5, -3.0};
    static unsigned char values[2][bytes_max], same[bytes_max], with[bytes_max], without[bytes_max];
    uint64_t state = 3;

    (void)unused;
    for (int d = 0; d < DP_DTYPE_COUNT; d++) {
        for (int op = 0; op < DP_REDUCE_COUNT; op++) {
            for (int s = 0; s < (is_float((dp_dtype_t)d) && op != DP_PRODUCT ? 4 : 1); s++) {
                dp_dtype_t dtype = (dp_dtype_t)d;
                const void *first[3] = {same, values[0], values[1]};
                const void *last[3] = {values[0], values[1], same};

                for (int i = 0; i < 2; i++)
                    kernel_fill(dtype, values[i], count, &state, s % 2);
                memset(same, 0x77, sizeof(same));
                dp_identity_fill(same, count, dtype, (dp_reduce_t)op, scales[s]);
                for (size_t i = count * dp_dtype_bytes(dtype); i < sizeof(same); i++)
                    assert_int_equal(same[i], 0x77);
                reduce(dtype, (dp_reduce_t)op, last, 2, without, scales[s]);
                reduce(dtype, (dp_reduce_t)op, last, 3, with, scales[s]);
                assert_memory_equal(with, without, count * dp_dtype_bytes(dtype));
                reduce(dtype, (dp_reduce_t)op, first, 3, with, scales[s]);
                assert_memory_equal(with, without, count * dp_dtype_bytes(dtype));
            }
        }
    }
}

/* Zero times an infinity would be a NaN, which wins. */
static void identity_of_a_zero_prescale_is_no_nan(void **unused)
{
    (void)unused;
    for (int op = DP_MIN; op <= DP_MAX; op++) {
        float value = 5.0f, same, result;
        const void *in[2] = {&value, &same};
        void *out[1] = {&result};
        const dp_reduce_args_t args = {.dtype = DP_F32,
                                       .reduce = (dp_reduce_t)op,
                                       .in = in,
                                       .in_count = 2,
                                       .out = out,
                                       .out_count = 1,
                                       .count = 1,
                                       .prescale = 0.0,
                                       .postscale = 1.0};

        dp_identity_fill(&same, 1, DP_F32, (dp_reduce_t)op, 0.0);
        dp_naive_reduce(&args);
        assert_true(result == 0.0f);
    }
}

static void identity_of_nothing_writes_nothing(void **unused)
{
    unsigned char byte = 9;

    (void)unused;
    dp_identity_fill(&byte, 0, DP_F64, DP_MIN, 1.0);
    assert_int_equal(byte, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_changes_no_bit),
        cmocka_unit_test(identity_of_a_zero_prescale_is_no_nan),
        cmocka_unit_test(identity_of_nothing_writes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
