/*
 * test_decision.c - norm, clip factor, skip and loss scale out of a step's figures.
 */
#include <math.h>

#include "coordinator/api/model/decision.h"
#include "kernels/variant.h"
#include "tests/unit/cases.h"

static dp_tally_t figures(double squares, uint64_t nonfinite)
{
    dp_tally_t tally;

    dp_tally_init(&tally);
    dp_tally_add_block(&tally, squares, 1.0, nonfinite);
    return tally;
}

static dp_gradients_result_t decide(dp_decision_t *decision, double squares, uint64_t nonfinite)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    const dp_tally_t tally = figures(squares, nonfinite);

    dp_decision_make(decision, &tally, &found);
    return found;
}

static void norms_are_clipped_and_overflows_skip(void **unused)
{
    dp_decision_t decision;
    dp_gradients_result_t found;

    (void)unused;
    assert_int_equal(dp_decision_init(&decision, 2.0, 0.0, 2000, 1, NULL), DP_OK);
    found = decide(&decision, 16.0, 0);
    assert_true(found.norm == 4.0 && found.clip_coef == 0.5 && found.skip == 0);
    found = decide(&decision, 1.0, 0);
    assert_true(found.norm == 1.0 && found.clip_coef == 1.0);
    found = decide(&decision, 16.0, 3);
    assert_true(isinf(found.norm) && found.clip_coef == 0.0 && found.skip == 1);
    assert_true(found.nonfinite == 3 && found.loss_scale == 1.0);
}

/* The scale after each of these steps; o: overflow. */
static void check_scales(int growth, int hysteresis, const char *steps, const double *scales)
{
    dp_decision_t decision;

    assert_int_equal(dp_decision_init(&decision, 0.0, 1024.0, growth, hysteresis, NULL), DP_OK);
    for (int i = 0; steps[i] != '\0'; i++) {
        const dp_gradients_result_t found = decide(&decision, 1.0, steps[i] == 'o');

        if (found.loss_scale != scales[i])
            fail_msg("step %d: scale %g, wanted %g", i, found.loss_scale, scales[i]);
    }
}

static void the_loss_scale_follows_growth_and_hysteresis(void **unused)
{
    (void)unused;
    check_scales(3, 1, "o...o", (const double[]){512, 512, 512, 1024, 512});
    check_scales(2, 1, "..o.o", (const double[]){1024, 2048, 1024, 1024, 512});
    check_scales(2, 2, "o.oo", (const double[]){1024, 1024, 1024, 512});
    check_scales(9, 3, "ooooo.oo", (const double[]){1024, 1024, 512, 256, 128, 128, 128, 128});
}

static void the_loss_scale_stays_between_1_and_2_to_the_24(void **unused)
{
    dp_decision_t decision;

    (void)unused;
    assert_int_equal(dp_decision_init(&decision, 0.0, 2.0, 1, 0, NULL), DP_OK);
    for (int i = 0; i < 30; i++)
        (void)decide(&decision, 1.0, 0);
    assert_true(decision.loss_scale == 16777216.0);
    for (int i = 0; i < 30; i++)
        (void)decide(&decision, 1.0, 1);
    assert_true(decision.loss_scale == 1.0);
}

static void a_state_that_was_read_goes_on_alike(void **unused)
{
    dp_decision_t one, other;
    dp_loss_scale_t state;
    dp_error_t error;

    (void)unused;
    assert_int_equal(dp_decision_init(&one, 0.0, 64.0, 3, 2, NULL), DP_OK);
    assert_int_equal(dp_decision_init(&other, 0.0, 8.0, 3, 2, NULL), DP_OK);
    (void)decide(&one, 1.0, 0);
    (void)decide(&one, 1.0, 1);
    state = dp_decision_get(&one);
    assert_true(state.scale == 64.0 && state.good_steps == 0 && state.hysteresis_left == 1);
    assert_int_equal(dp_decision_set(&other, &state, NULL), DP_OK);
    for (int i = 0; i < 12; i++) {
        const dp_gradients_result_t a = decide(&one, 1.0, i % 5 == 0);
        const dp_gradients_result_t b = decide(&other, 1.0, i % 5 == 0);

        assert_true(a.loss_scale == b.loss_scale);
    }
    state.good_steps = -1;
    assert_int_equal(dp_decision_set(&other, &state, &error), DP_ERR_INVALID);
    assert_int_equal(dp_decision_init(&other, 0.0, 0.0, 0, 1, NULL), DP_OK);
    state = dp_decision_get(&one);
    assert_int_equal(dp_decision_set(&other, &state, &error), DP_ERR_INVALID);
}

static void values_that_cannot_be_are_refused(void **unused)
{
    dp_decision_t decision;

    (void)unused;
    assert_int_equal(dp_decision_init(&decision, -1.0, 0.0, 1, 1, NULL), DP_ERR_INVALID);
    assert_int_equal(dp_decision_init(&decision, (double)NAN, 0.0, 1, 1, NULL), DP_ERR_INVALID);
    assert_int_equal(dp_decision_init(&decision, 0.0, (double)INFINITY, 1, 1, NULL),
                     DP_ERR_INVALID);
    assert_int_equal(dp_decision_init(&decision, 0.0, 2.0, 0, 1, NULL), DP_ERR_INVALID);
    assert_int_equal(dp_decision_init(&decision, 0.0, 2.0, 1, -1, NULL), DP_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_clipped_and_overflows_skip),
        cmocka_unit_test(the_loss_scale_follows_growth_and_hysteresis),
        cmocka_unit_test(the_loss_scale_stays_between_1_and_2_to_the_24),
        cmocka_unit_test(a_state_that_was_read_goes_on_alike),
        cmocka_unit_test(values_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
