/*
 * test_gpt2_extra.c - extra state in checkpoints: of all ranks and of each, through a run that
 * stops and goes on, damaged, missing, and of another number of ranks.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/train/trainer.h"
#include "tests/gpt2/scratch.h"
#include "tests/gpt2/strategy_threads.h"
#include "tests/unit/cases.h"

#define RANKS_MAX 3

static gpt2_error_t error;

typedef struct rank_job {
    pthread_t thread;
    const gpt2_options_t *options;
    gpt2_strategy_t *strategy;
    uint64_t stop;
    int code;
    gpt2_error_t error;
} rank_job_t;

static void *rank_main(void *argument)
{
    rank_job_t *job = argument;
    gpt2_trainer_t *trainer = NULL;
    int is_saved;

    job->code = gpt2_trainer_create(job->options, job->strategy, &trainer, &job->error);
    while (job->code == 0 && trainer->progress.step < job->stop) {
        gpt2_step_t step;

        job->code = gpt2_trainer_step(trainer, &step, &job->error);
    }
    if (job->code == 0) job->code = gpt2_trainer_save(trainer, &is_saved, &job->error);
    gpt2_trainer_destroy(trainer);
    return NULL;
}

static const char *write_text(void)
{
    static char text[4000];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i % 7 * (i % 3));
    return scratch_write("text.txt", text, sizeof(text));
}

/* Trains to step `stop` and saves. The state that the ranks end with is checked against what so
 * many syncs make; 1: it was, 0: the run was refused, with the reason in error. */
static int run_ranks(int ranks, int has_extras, const char *more, uint64_t stop)
{
    static char copy[1024];
    static char name[] = "gpt2";
    static char *argv[64] = {name}; /* the options borrow it */
    int argc = 1;
    gpt2_options_t options;
    rank_job_t jobs[RANKS_MAX];
    threads_world_t *world = threads_world_create(ranks);
    int code;

    (void)snprintf(copy, sizeof(copy),
                   "--data %s --layers 1 --width 16 --heads 2 --seq 8 --context 8 --batch 6 "
                   "--steps 8 --out %s %s",
                   write_text(), scratch_path("run"), more);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    if (gpt2_options_parse(argc, argv, &options, &error) != 0) fail_msg("%s", error.text);
    if (has_extras) threads_world_add_extras(world);
    for (int i = 0; i < ranks; i++) {
        jobs[i] = (rank_job_t){.options = &options, .stop = stop};
        jobs[i].strategy = threads_strategy(world, i, 0);
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, rank_main, &jobs[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        (void)pthread_join(jobs[i].thread, NULL);
    code = jobs[0].code;
    error = jobs[0].error;
    for (int i = 0; i < ranks; i++) {
        for (size_t at = 0; code == 0 && has_extras && at < THREADS_COUNTS; at += 997) {
            assert_int_equal(threads_count(jobs[i].strategy, 0, at), at * stop);
            assert_int_equal(threads_count(jobs[i].strategy, 1, at), at * stop * (uint64_t)(i + 1));
        }
        (void)jobs[i].strategy->ops->destroy(jobs[i].strategy, NULL);
    }
    threads_world_destroy(world);
    return code == 0;
}

static void extra_state_comes_back(void **state)
{
    (void)state;
    if (!run_ranks(2, 1, "", 3)) fail_msg("%s", error.text);
    assert_int_equal(access(scratch_path("run/checkpoint/3/syncs.bin"), R_OK), 0);
    assert_int_equal(access(scratch_path("run/checkpoint/3/turns.0.bin"), R_OK), 0);
    assert_int_equal(access(scratch_path("run/checkpoint/3/turns.1.bin"), R_OK), 0);
    if (!run_ranks(2, 1, "--resume auto", 6)) fail_msg("%s", error.text);
    /* A run without extra state takes the rest. */
    if (!run_ranks(1, 0, "--resume auto", 7)) fail_msg("%s", error.text);
    assert_int_equal(access(scratch_path("run/checkpoint/7/syncs.bin"), F_OK), -1);
}

/* A rank alone, so that nobody waits for the rank that is refused. */
static void state_that_does_not_fit_is_refused(void **state)
{
    char flags[128];
    gpt2_extra_t extra = {.name = "turns", .bytes = 8, .per_rank = 1};
    gpt2_manifest_t *manifest;

    (void)state;
    if (!run_ranks(1, 0, "", 2)) fail_msg("%s", error.text);
    assert_false(run_ranks(1, 1, "--resume auto", 4));
    assert_non_null(strstr(error.text, "has no syncs, which this run needs"));
    if (!run_ranks(2, 1, "", 3)) fail_msg("%s", error.text);
    (void)snprintf(flags, sizeof(flags), "--resume %s", scratch_path("run/checkpoint/3"));
    assert_false(run_ranks(1, 1, flags, 4));
    assert_non_null(strstr(error.text, "has turns of 2 ranks, this run has 1"));

    if (gpt2_manifest_load(scratch_path("run/checkpoint/3"), &manifest, &error) != 0) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(gpt2_extra_check(manifest, "there", &extra, 2, &error), -1);
    assert_string_equal(error.text, "there: turns has 1600000 bytes, this run needs 8");
    extra.name = "others";
    extra.is_optional = 1;
    assert_int_equal(gpt2_extra_check(manifest, "there", &extra, 2, &error), 0);
    gpt2_manifest_destroy(manifest);
}

static void damaged_extra_state_is_noticed(void **state)
{
    const char *path;
    FILE *file;

    (void)state;
    if (!run_ranks(2, 1, "", 3)) fail_msg("%s", error.text);
    path = scratch_path("run/checkpoint/3/turns.1.bin");
    file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 1500000, SEEK_SET), 0);
    assert_int_equal(fputc(77, file), 77);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(gpt2_checkpoint_verify(scratch_path("run/checkpoint/3"), &error), -1);
    assert_non_null(strstr(error.text, "turns.1.bin: damaged: checksum"));
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(gpt2_checkpoint_verify(scratch_path("run/checkpoint/3"), &error), -1);
    assert_non_null(strstr(error.text, "truncated: 1000 bytes, the manifest says 1600000"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(gpt2_checkpoint_verify(scratch_path("run/checkpoint/3"), &error), -1);
    assert_non_null(strstr(error.text, "turns.1.bin: No such file"));
}

static int setup(void **state)
{
    (void)state;
    (void)scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(extra_state_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(state_that_does_not_fit_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_extra_state_is_noticed, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
