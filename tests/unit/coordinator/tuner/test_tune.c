/*
 * test_tune.c - a world whose hold is tuned while it runs: sums stay right, the search comes to an
 * end on rank 0 alone, and a rank that joins does not stop it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "coordinator/api/context.h"

#define RANKS 3
#define TENSORS 6
#define COUNT 12000
#define STEPS_MAX 4000

typedef struct world world_t;

typedef struct rank {
    world_t *world;
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    dp_status_t status;
    int steps;
    int has_tune, is_finished; /* at the end */
    uint64_t hold_ns;
} rank_t;

struct world {
    int joins;
    int steps; /* all ranks make so many; 0: until rank 0's search is over, all the same */
    rank_t ranks[RANKS];
};

/* Sums are compared with what they must be, in small whole numbers. */
static dp_status_t train_step(dp_context_t *dp, float *const *values, int step)
{
    dp_handle_t *handles[TENSORS] = {NULL};
    dp_status_t status = DP_OK;

    dp_step_begin(dp, (uint64_t)step);
    for (int i = 0; i < TENSORS && status == DP_OK; i++) {
        char name[16];

        for (int e = 0; e < COUNT; e++)
            values[i][e] = (float)(e % 50 + i + step % 100 + dp_rank(dp));
        snprintf(name, sizeof(name), "t.%d", i);
        status = dp_allreduce(dp_world(dp), name, values[i], values[i], COUNT, DP_F32, NULL,
                              &handles[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        dp_result_t result = DP_RESULT_INIT;
        dp_status_t end = handles[i] == NULL ? DP_OK : dp_wait(handles[i], 60.0, &result);
        int ranks = result.contributors;

        if (status == DP_OK) status = end;
        for (int e = 0; e < COUNT && status == DP_OK; e++) {
            int wanted = ranks * (e % 50 + i + step % 100) + ranks * (ranks - 1) / 2;

            if (values[i][e] != (float)wanted) status = DP_ERR_CHECK;
        }
    }
    dp_step_end(dp);
    return status;
}

/* One number from rank 0: whether to go on. */
static dp_status_t ask(dp_context_t *dp, int *goes_on)
{
    dp_handle_t *handle;
    uint64_t hold_ns;
    int32_t answer = dp->tune != NULL && !dp_tune_is_finished(dp->tune, &hold_ns);
    dp_status_t status =
        dp_broadcast(dp_world(dp), "go on", &answer, &answer, 1, DP_I32, 0, NULL, &handle);

    if (status == DP_OK) status = dp_wait(handle, 60.0, NULL);
    *goes_on = answer;
    return status;
}

static dp_status_t train(dp_context_t *dp, rank_t *rank, float *const *values)
{
    const world_t *world = rank->world;
    dp_status_t status = DP_OK;
    int goes_on = 1;

    for (int step = 0; step < STEPS_MAX && goes_on && status == DP_OK; step++) {
        status = train_step(dp, values, step);
        rank->steps++;
        if (world->joins) {
            goes_on = step + 1 < world->steps && (dp_rank(dp) != RANKS - 1 || step < 4);
        } else if (status == DP_OK) {
            status = ask(dp, &goes_on);
        }
    }
    return status;
}

static void *run(void *argument)
{
    rank_t *rank = argument;
    float *values[TENSORS];
    dp_error_t error;
    dp_config_t config;
    dp_handle_t *handle;
    dp_context_t *dp;

    dp_config_defaults(&config);
    config.tune = 1;
    config.fusion_bytes = 256 * DP_KIB;
    config.peer_timeout_ns = 30000000000ull;
    rank->status = dp_context_create(&config, rank->bootstrap, 1, &dp, &error);
    if (rank->status != DP_OK) return NULL;
    for (int i = 0; i < TENSORS; i++)
        values[i] = calloc(COUNT, sizeof(float));
    rank->status = train(dp, rank, values);
    if (rank->world->joins && rank->status == DP_OK) {
        rank->status = dp_join(dp_world(dp), &handle);
        if (rank->status == DP_OK) rank->status = dp_wait(handle, 60.0, NULL);
    }
    rank->has_tune = dp->tune != NULL;
    if (rank->has_tune) rank->is_finished = dp_tune_is_finished(dp->tune, &rank->hold_ns);
    (void)dp_finalize(dp);
    for (int i = 0; i < TENSORS; i++)
        free(values[i]);
    return NULL;
}

static void run_world(world_t *world)
{
    dp_bootstrap_t *bootstraps[RANKS];

    assert_int_equal(dp_bootstrap_create_threads(RANKS, bootstraps), DP_OK);
    for (int r = 0; r < RANKS; r++) {
        world->ranks[r] = (rank_t){.world = world, .bootstrap = bootstraps[r]};
        assert_int_equal(pthread_create(&world->ranks[r].thread, NULL, run, &world->ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(world->ranks[r].thread, NULL);
    for (int r = 0; r < RANKS; r++)
        assert_string_equal(dp_status_string(world->ranks[r].status), "DP_OK");
}

/* The other ranks need not know of it. */
static void assert_root_alone_tunes(const world_t *world)
{
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(world->ranks[r].has_tune, r == 0);
}

static void tuned_world_sums_right_and_comes_to_an_end(void **state)
{
    static world_t world;

    (void)state;
    run_world(&world);
    assert_root_alone_tunes(&world);
    assert_true(world.ranks[0].is_finished);
    assert_in_range(world.ranks[0].steps, 20, DP_TUNER_STEPS_MAX + 1);
    /* what is found depends on the machine */
    assert_in_range(world.ranks[0].hold_ns, 25000, 12800000);
}

static void tuned_world_goes_on_after_a_join(void **state)
{
    static world_t world;

    (void)state;
    world.joins = 1;
    world.steps = 60;
    run_world(&world);
    assert_root_alone_tunes(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuned_world_sums_right_and_comes_to_an_end),
        cmocka_unit_test(tuned_world_goes_on_after_a_join),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
