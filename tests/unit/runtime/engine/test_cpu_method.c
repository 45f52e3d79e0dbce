/*
 * test_cpu_method.c - the cheaper method is found, kept, and left when it no longer is.
 */
#include "runtime/engine/cpu/intra_node/method.h"
#include "tests/unit/cases.h"

#define BYTES ((size_t)64 << 20)

/* Runs operations that cost so much; returns how many were staged. */
static int run(dp_method_stats_t *stats, size_t bytes, int count, uint64_t pull_ns,
               uint64_t stage_ns)
{
    int staged = 0;

    for (int i = 0; i < count; i++) {
        const dp_method_t method = dp_method_choose(stats, bytes);

        staged += method == DP_METHOD_STAGING;
        dp_method_record(stats, method, bytes, method == DP_METHOD_STAGING ? stage_ns : pull_ns);
    }
    return staged;
}

static void method_small_tensors_are_pulled(void **state)
{
    dp_method_stats_t stats = {0};

    (void)state;
    assert_int_equal(run(&stats, DP_METHOD_LEAST_BYTES - 1, 1000, 100, 1), 0);
    assert_int_equal(stats.classes[0].count, 0);
}

static void method_cheaper_one_is_taken(void **state)
{
    dp_method_stats_t stats = {0};

    (void)state;
    assert_int_equal(run(&stats, BYTES, 4, 300, 200), 2); /* both are tried */
    assert_true(run(&stats, BYTES, 1000, 300, 200) >= 997);
    stats = (dp_method_stats_t){0};
    run(&stats, BYTES, 4, 200, 900);
    assert_true(run(&stats, BYTES, 1000, 200, 900) <= 3);
}

static void method_first_touch_does_not_count(void **state)
{
    dp_method_stats_t stats = {0};

    (void)state;
    dp_method_record(&stats, DP_METHOD_PULL, BYTES, 100000); /* pages are made */
    run(&stats, BYTES, 3, 200, 300);
    assert_int_equal(dp_method_choose(&stats, BYTES), DP_METHOD_PULL);
}

static void method_change_is_noticed(void **state)
{
    dp_method_stats_t stats = {0};

    (void)state;
    run(&stats, BYTES, 100, 200, 220);
    assert_int_equal(dp_method_choose(&stats, BYTES), DP_METHOD_PULL);
    run(&stats, BYTES, 20, 800, 220); /* the cores have moved */
    assert_int_equal(dp_method_choose(&stats, BYTES), DP_METHOD_STAGING);
    run(&stats, BYTES, 5000, 200, 2000);
    assert_true(run(&stats, BYTES, 100, 200, 2000) <= 1);
}

static void method_sizes_are_told_apart(void **state)
{
    dp_method_stats_t stats = {0};

    (void)state;
    run(&stats, BYTES, 10, 300, 200);
    run(&stats, DP_METHOD_LEAST_BYTES, 10, 10, 20);
    assert_int_equal(dp_method_choose(&stats, BYTES), DP_METHOD_STAGING);
    assert_int_equal(dp_method_choose(&stats, DP_METHOD_LEAST_BYTES), DP_METHOD_PULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(method_small_tensors_are_pulled),
        cmocka_unit_test(method_cheaper_one_is_taken),
        cmocka_unit_test(method_first_touch_does_not_count),
        cmocka_unit_test(method_change_is_noticed),
        cmocka_unit_test(method_sizes_are_told_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
