/*
 * test_tune.c - a world that is tuned while it runs: all ranks change at the same launch, results
 * keep their bits, it comes to an end, and a later run begins with what was found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "coordinator/api/context.h"
#include "coordinator/tuner/tune_file.h"
#include "fusion/pipeline_internal.h"

#define RANKS 3
#define TENSORS 6
#define COUNT 12000 /* of a tensor, some more; the smallest bucket takes one or two */
#define STEPS_MAX 4000

typedef struct world world_t;

typedef struct rank {
    world_t *world;
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    dp_status_t status;
    uint64_t *buckets; /* [STEPS_MAX] after each step */
    int steps;
    float first; /* of the last sum */
    dp_pipeline_settings_t settings;
} rank_t;

struct world {
    char tune[128];
    int joins;
    int steps; /* all ranks make so many; 0: until rank 0's file is there, all the same */
    rank_t ranks[RANKS];
};

/* Sums are compared with what they must be, in small whole numbers. */
static dp_status_t train_step(dp_context_t *dp, float *const *values, int step, float *first)
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
    *first = values[0][0];
    dp_step_end(dp);
    return status;
}

/* One number from rank 0: whether to go on. */
static dp_status_t ask(dp_context_t *dp, const world_t *world, int *goes_on)
{
    dp_handle_t *handle;
    int32_t word = access(world->tune, F_OK) != 0;
    dp_status_t status =
        dp_broadcast(dp_world(dp), "go on", &word, &word, 1, DP_I32, 0, NULL, &handle);

    if (status == DP_OK) status = dp_wait(handle, 60.0, NULL);
    *goes_on = word;
    return status;
}

static dp_status_t train(dp_context_t *dp, rank_t *rank, float *const *values)
{
    const world_t *world = rank->world;
    dp_status_t status = DP_OK;
    int goes_on = 1, answer = 1;

    for (int step = 0; step < STEPS_MAX && goes_on && status == DP_OK; step++) {
        dp_stats_t stats = DP_STATS_INIT;

        status = train_step(dp, values, step, &rank->first);
        (void)dp_stats_get(dp, &stats);
        rank->buckets[rank->steps++] = stats.buckets;
        goes_on = world->steps == 0 || step + 1 < world->steps;
        /* in every world, or it would be another program */
        if (!world->joins && status == DP_OK) status = ask(dp, world, &answer);
        if (world->steps == 0) goes_on = answer;
        if (world->joins && dp_rank(dp) == RANKS - 1 && step == 4) break;
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
    snprintf(config.tune, sizeof(config.tune), "%s", rank->world->tune);
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
    /* The first may share a launch with a setting. Once the second is over the launch thread has
     * taken on all there were, and comes by no others. */
    for (int i = 0; i < 2 && rank->status == DP_OK; i++) {
        rank->status =
            dp_allreduce(dp_world(dp), "last", values[0], values[0], 1, DP_F32, NULL, &handle);
        if (rank->status == DP_OK) rank->status = dp_wait(handle, 60.0, NULL);
    }
    if (rank->status == DP_OK) {
        rank->settings = (dp_pipeline_settings_t){.buffer_bytes = dp->pipeline->limits.buffer_bytes,
                                                  .slots = dp->pipeline->buffers.used,
                                                  .in_place_least = dp->pipeline->in_place_least};
    }
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
        world->ranks[r].buckets = calloc(STEPS_MAX, sizeof(uint64_t));
        assert_non_null(world->ranks[r].buckets);
        assert_int_equal(pthread_create(&world->ranks[r].thread, NULL, run, &world->ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(world->ranks[r].thread, NULL);
    for (int r = 0; r < RANKS; r++)
        assert_string_equal(dp_status_string(world->ranks[r].status), "DP_OK");
}

static void free_world(world_t *world)
{
    for (int r = 0; r < RANKS; r++)
        free(world->ranks[r].buckets);
}

static void assert_all_alike(const world_t *world)
{
    const dp_pipeline_settings_t *root = &world->ranks[0].settings;

    for (int r = 1; r < RANKS; r++) {
        const dp_pipeline_settings_t *other = &world->ranks[r].settings;

        assert_int_equal(other->buffer_bytes, root->buffer_bytes);
        assert_int_equal(other->slots, root->slots);
        assert_int_equal(other->in_place_least, root->in_place_least);
    }
}

/* Other settings than any world would find by itself, in the line that the first one wrote. */
static void write_other_settings(const char *path, const uint64_t values[DP_KNOBS])
{
    dp_tune_key_t key = {.size = RANKS, .hosts = 1};
    char text[512] = "";
    const char *program;
    FILE *file = fopen(path, "re");
    uint64_t found[DP_KNOBS];
    dp_error_t error;

    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    program = strstr(text, "engine ");
    assert_non_null(program);
    assert_int_equal(
        sscanf(program, "engine %15[^,], program %16" SCNx64, key.engine, &key.program), 2);
    assert_int_equal(dp_tune_file_read(path, &key, found, &error), DP_OK);
    assert_int_equal(dp_tune_file_write(path, &key, values, 1.0, 1.0, &error), DP_OK);
}

/* To the end, with a file; then again, from the file. What the tuner finds depends on the machine,
 * so what the second world has to begin with is written by hand. */
static void tuned_world_changes_together_and_remembers(void **state)
{
    char folder[] = "/tmp/dp-tune-XXXXXX";
    static world_t first, second;
    static const uint64_t others[DP_KNOBS] = {[DP_KNOB_BUCKET] = 512 * DP_KIB,
                                              [DP_KNOB_BUFFERS] = 1,
                                              [DP_KNOB_IN_PLACE] = 16 * DP_KIB,
                                              [DP_KNOB_HOLD] = 50000};
    int changes = 0;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(first.tune, sizeof(first.tune), "%s/tuned", folder);
    run_world(&first);
    assert_in_range(first.ranks[0].steps, 20, STEPS_MAX - 1);
    assert_all_alike(&first);
    /* All buckets of a step are over at its end, but the tuner's own, counted when it comes. */
    for (int step = 2; step < first.ranks[0].steps; step++) {
        const uint64_t *buckets = first.ranks[0].buckets;

        changes += buckets[step] - buckets[step - 1] != buckets[step - 1] - buckets[step - 2];
    }
    assert_true(changes > 0);
    write_other_settings(first.tune, others);

    memcpy(second.tune, first.tune, sizeof(second.tune));
    second.steps = 12;
    run_world(&second);
    assert_all_alike(&second);
    assert_int_equal(second.ranks[0].settings.buffer_bytes, others[DP_KNOB_BUCKET]);
    assert_int_equal(second.ranks[0].settings.slots, others[DP_KNOB_BUFFERS]);
    assert_int_equal(second.ranks[0].settings.in_place_least, others[DP_KNOB_IN_PLACE]);
    assert_int_equal(unlink(first.tune), 0);
    snprintf(first.tune, sizeof(first.tune), "%s/tuned.lock", folder);
    assert_int_equal(unlink(first.tune), 0);
    assert_int_equal(rmdir(folder), 0);
    free_world(&first);
    free_world(&second);
}

/* A rank that joins in the middle cannot learn of settings: all keep those that were in force. */
static void tuned_world_survives_a_join(void **state)
{
    static world_t world;

    (void)state;
    snprintf(world.tune, sizeof(world.tune), "on");
    world.joins = 1;
    world.steps = 60;
    run_world(&world);
    assert_all_alike(&world);
    free_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tuned_world_changes_together_and_remembers),
        cmocka_unit_test(tuned_world_survives_a_join),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
