/*
 * test_tuner.c - the tuner against made-up programs: it finds the best value, with noise,
 * outliers and drift, never ends with something slower than it began with, and always ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "coordinator/tuner/tuner.h"
#include "runtime/base/common.h"

/* ---- Programs ------------------------------------------------------------------------------- */

typedef struct model {
    double hold;     /* the best value; 0: it does not matter */
    double weight;   /* what being off by a factor of two costs, of a step */
    double noise;    /* sigma of a step's time */
    double outliers; /* part of the steps that take three times as long */
    double drift;    /* by how much steps get slower in 100 steps */
    uint64_t seed;
} model_t;

static double uniform(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

static double off(double value, double best)
{
    return best == 0.0 ? 0.0 : fabs(log2(dp_max(value, 0.5) / best));
}

/* A step without noise. */
static double cost(const model_t *model, const dp_tuner_t *tuner)
{
    return 0.1 * (1.0 + model->weight * off((double)dp_tuner_value(tuner), model->hold));
}

static double step_time(model_t *model, const dp_tuner_t *tuner, int step)
{
    double time = cost(model, tuner);

    /* twelve uniform numbers make a normal one */
    double normal = -6.0;

    for (int i = 0; i < 12; i++)
        normal += uniform(&model->seed);
    time *= exp(model->noise * normal) * (1.0 + model->drift * step / 100.0);
    return uniform(&model->seed) < model->outliers ? 3.0 * time : time;
}

static void begin(dp_tuner_t *tuner)
{
    dp_ladder_t ladder;

    dp_ladder_around(&ladder, 200000, 50000, 12800000, 2, 6);
    dp_tuner_init(tuner, &ladder);
}

/* Runs to the end; what a step takes then, of what it took at first. */
static double run(model_t *model, dp_tuner_t *tuner)
{
    double first;

    begin(tuner);
    first = cost(model, tuner);
    for (int step = 0; tuner->phase != DP_TUNER_FINISHED; step++) {
        assert_in_range(step, 0, DP_TUNER_STEPS_MAX);
        (void)dp_tuner_step(tuner, step_time(model, tuner, step), 1000);
    }
    assert_int_equal(dp_tuner_step(tuner, 1.0, 1000), 0);
    return cost(model, tuner) / first;
}

/* ---- Claims --------------------------------------------------------------------------------- */

static void ladder_stays_inside_and_keeps_the_initial_value(void **state)
{
    dp_ladder_t ladder;

    (void)state;
    dp_ladder_around(&ladder, 32, 8, 100, 5, 5);
    assert_int_equal(ladder.count, 4);
    assert_int_equal(ladder.values[0], 8);
    assert_int_equal(ladder.values[ladder.initial], 32);
    assert_int_equal(ladder.values[3], 64);
    dp_ladder_around(&ladder, 3, 1, UINT64_MAX, 50, 50);
    assert_int_equal(ladder.count, DP_LADDER_MAX);
    assert_int_equal(ladder.values[ladder.initial], 3);
    dp_ladder_around(&ladder, 0, 0, 10, 3, 3);
    assert_int_equal(ladder.count, 1);
}

static void tuner_finds_the_optimum_without_noise(void **state)
{
    static const double holds[] = {50e3, 100e3, 200e3, 400e3, 800e3, 3200e3, 12800e3};

    (void)state;
    for (size_t h = 0; h < DP_ARRAY_LEN(holds); h++) {
        model_t model = {.hold = holds[h], .weight = 0.05, .seed = 7};
        dp_tuner_t tuner;

        (void)run(&model, &tuner);
        assert_true(cost(&model, &tuner) < 0.1 * 1.001);
    }
}

/* Noise of 3 % and one step in twenty three times as long: within 5 % of the optimum. */
static void tuner_finds_it_in_noise(void **state)
{
    int good = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        model_t model = {.hold = 1600e3,
                         .weight = 0.06,
                         .noise = 0.03,
                         .outliers = 0.05,
                         .seed = seed * 0x9e3779b97f4a7c15u};
        dp_tuner_t tuner;
        double end = run(&model, &tuner);

        assert_true(end <= 1.0);
        good += cost(&model, &tuner) < 0.1 * 1.05;
    }
    /* seeds are fixed, so this is a count and no chance */
    if (good < 150) fail_msg("%d of 200 came within 5 %% of the optimum", good);
}

/* Where the first settings are the best, or nothing matters, they stay, whatever the noise. */
static void tuner_never_ends_slower(void **state)
{
    static const double noises[] = {0.0, 0.02, 0.1, 0.3};

    (void)state;
    for (size_t n = 0; n < DP_ARRAY_LEN(noises); n++) {
        for (uint64_t seed = 1; seed <= 200; seed++) {
            model_t model = {.hold = 200e3,
                             .weight = 0.05,
                             .noise = noises[n],
                             .outliers = 0.05,
                             .drift = seed % 3 == 0 ? 0.05 : 0.0,
                             .seed = seed * 0x9e3779b97f4a7c15u};
            dp_tuner_t tuner;
            double end = run(&model, &tuner);

            /* one rung off in noise of six rungs is a draw; more is not */
            if (end > 1.0 + (noises[n] > 0.25 ? 0.11 : noises[n] > 0.05 ? 0.051 : 0.0)) {
                fail_msg("noise %g seed %llu: %g times the first time", noises[n],
                         (unsigned long long)seed, end);
            }
        }
    }
}

/* Validation steps in between are not looked at; another kind of step starts it again. */
static void tuner_looks_at_usual_steps_only(void **state)
{
    model_t model = {.hold = 800e3, .weight = 0.1, .seed = 3};
    dp_tuner_t tuner;

    (void)state;
    begin(&tuner);
    for (int step = 0; tuner.phase != DP_TUNER_FINISHED; step++) {
        assert_in_range(step, 0, DP_TUNER_STEPS_MAX);
        (void)dp_tuner_step(&tuner, cost(&model, &tuner), 1000);
        if (step % 7 == 0) (void)dp_tuner_step(&tuner, 9.0, 20);
        if (step == 50) {
            for (int i = 0; i < 40; i++)
                (void)dp_tuner_step(&tuner, 0.001, 555);
        }
    }
    assert_int_equal(dp_tuner_value(&tuner), 800000);
}

static void tuner_knows_what_it_gained(void **state)
{
    model_t model = {.hold = 400e3, .weight = 0.25, .seed = 3};
    dp_tuner_t tuner;

    (void)state;
    (void)run(&model, &tuner);
    assert_int_equal(dp_tuner_value(&tuner), 400000);
    assert_true(fabs(tuner.initial_s - 0.125) < 1e-6 && fabs(tuner.best_s - 0.1) < 1e-6);
    model.hold = 200e3;
    (void)run(&model, &tuner);
    assert_int_equal(dp_tuner_value(&tuner), 200000);
    assert_true(tuner.initial_s == tuner.best_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ladder_stays_inside_and_keeps_the_initial_value),
        cmocka_unit_test(tuner_finds_the_optimum_without_noise),
        cmocka_unit_test(tuner_finds_it_in_noise),
        cmocka_unit_test(tuner_never_ends_slower),
        cmocka_unit_test(tuner_looks_at_usual_steps_only),
        cmocka_unit_test(tuner_knows_what_it_gained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
