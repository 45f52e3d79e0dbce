/*
 * test_gpt2_amp.c - training in mixed precision: what a skipped step leaves behind, who decides,
 * and what the levels keep in fp32.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/model/loss_scale.h"
#include "examples/gpt2/train/run.h"
#include "examples/gpt2/train/trainer.h"
#include "tests/gpt2/scratch.h"
#include "tests/gpt2/strategy_threads.h"
#include "tests/unit/cases.h"

static gpt2_error_t error;

/* ---- A replica alone, on the same batch in every step --------------------------------------- */

#define BATCH 4
#define LENGTH 16
#define TOKENS ((size_t)BATCH * LENGTH)
#define CLIP 1.0

static const gpt2_shape_t SHAPE = {61, 61, LENGTH, 2, 2, 32};

typedef struct rig {
    gpt2_replica_t *replica;
    int32_t tokens[2 * TOKENS];
    gpt2_batch_t batch;
    size_t count;
} rig_t;

static void ok(int code)
{
    if (code != 0) fail_msg("%s", error.text);
}

static void make_rig(rig_t *rig, const char *precision, int level)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    const gpt2_precision_t type = strcmp(precision, "fp16") == 0   ? GPT2_FP16
                                  : strcmp(precision, "bf16") == 0 ? GPT2_BF16
                                                                   : GPT2_FP32;
    const gpt2_replica_options_t options = {
        .model = {.shape = SHAPE,
                  .batch = BATCH,
                  .length = LENGTH,
                  .threads = 2,
                  .training = 1,
                  .gemm = gpt2_gemm_choose_precise(type, "own", kernels)},
        .optimizer = {.learning_rate = 1e-3,
                      .final_rate = 1.0,
                      .steps = 100,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .decay = 0.1},
        .precision = precision,
        .level = level,
    };
    gpt2_state_t state;

    memset(rig, 0, sizeof(*rig));
    ok(gpt2_replica_cpu_create(&options, &rig->replica, &error));
    ok(rig->replica->ops->borrow(rig->replica, 0, &state, &error));
    gpt2_model_init_weights(state.model, 3);
    ok(rig->replica->ops->give_back(rig->replica, 1, &error));
    for (size_t i = 0; i < 2 * TOKENS; i++)
        rig->tokens[i] = (int32_t)(gpt2_random_bits(5, 77, i) % (uint64_t)SHAPE.vocab);
    rig->batch = (gpt2_batch_t){rig->tokens, rig->tokens + TOKENS, BATCH, LENGTH};
    rig->count = rig->replica->layout->arena_count;
}

static void destroy_rig(rig_t *rig)
{
    rig->replica->ops->destroy(rig->replica);
}

/* Returns what the step was. */
static gpt2_outcome_t train_step(rig_t *rig, double scale, double rate)
{
    gpt2_replica_t *replica = rig->replica;
    gpt2_outcome_t outcome;
    gpt2_sync_t sync;

    ok(replica->ops->train(replica, &rig->batch, (float)(scale / (double)TOKENS), 0, NULL, &error));
    ok(replica->ops->norm(replica, CLIP, 1.0 / scale, &sync, &error));
    ok(replica->ops->update(replica, rate, &sync, &error));
    ok(replica->ops->settle(replica, &outcome, &error));
    return outcome;
}

/* Steps until that many updates were made; returns how many were skipped. */
static int train_updates(rig_t *rig, double initial, uint64_t updates)
{
    const gpt2_loss_scale_settings_t settings = {initial, 2000, 1};
    gpt2_loss_scale_t scale = gpt2_loss_scale_start(&settings);
    int skips = 0;

    while (rig->replica->updates < updates) {
        const gpt2_outcome_t outcome = train_step(rig, scale.scale, 1e-3);

        gpt2_loss_scale_move(&scale, &settings, outcome.skipped);
        skips += outcome.skipped;
        assert_true(skips < 25); /* 2^24 halved to 1 */
    }
    return skips;
}

static void a_skipped_step_leaves_nothing_behind(void **state)
{
    static const int levels[] = {1, 2};

    (void)state;
    for (int i = 0; i < 2; i++) {
        rig_t high;
        rig_t settled;
        int skips;

        make_rig(&high, "fp16", levels[i]);
        make_rig(&settled, "fp16", levels[i]);
        skips = train_updates(&high, GPT2_LOSS_SCALE_MAX, 10);
        assert_true(skips >= 2);
        assert_int_equal(train_updates(&settled, ldexp(GPT2_LOSS_SCALE_MAX, -skips), 10), 0);
        assert_memory_equal(high.replica->weights, settled.replica->weights,
                            high.count * sizeof(float));
        assert_memory_equal(high.replica->m, settled.replica->m, high.count * sizeof(float));
        assert_memory_equal(high.replica->v, settled.replica->v, high.count * sizeof(float));
        destroy_rig(&high);
        destroy_rig(&settled);
    }
}

/* Powers of two change no digit, so in fp32 a scaled run has the bits of one without. */
static void a_scale_alone_changes_no_bit(void **state)
{
    rig_t plain;
    rig_t scaled;

    (void)state;
    make_rig(&plain, "fp32", 0);
    make_rig(&scaled, "fp32", 0);
    for (int i = 0; i < 5; i++) {
        const gpt2_outcome_t a = train_step(&plain, 1.0, 1e-3);
        const gpt2_outcome_t b = train_step(&scaled, 4096.0, 1e-3);

        assert_true(a.norm == b.norm && a.norm > CLIP && a.loss_sum == b.loss_sum);
    }
    assert_memory_equal(plain.replica->weights, scaled.replica->weights,
                        plain.count * sizeof(float));
    destroy_rig(&plain);
    destroy_rig(&scaled);
}

/* 30 updates of 1e-4 each: bf16 has no number between 1 and 1.0078, the masters have. */
static void masters_keep_what_16_bits_would_lose(void **state)
{
    rig_t rig;
    float *before;
    float *norm; /* the final norm's weights, which begin as ones */
    int moved = 0;

    (void)state;
    make_rig(&rig, "bf16", 2);
    norm = rig.replica->weights + rig.replica->layout->tensors[0].offset;
    before = malloc(SHAPE.width * sizeof(float));
    assert_non_null(before);
    memcpy(before, norm, SHAPE.width * sizeof(float));
    for (int i = 0; i < 30; i++)
        (void)train_step(&rig, 1.0, 1e-4);
    for (int i = 0; i < SHAPE.width; i++) {
        const float step = fabsf(norm[i] - before[i]);

        assert_true(before[i] == 1.0f);
        assert_true(step < 0.0039f); /* less than half way to bf16's next number */
        moved += step > 0.001f;
    }
    assert_true(moved > SHAPE.width / 2);
    free(before);
    destroy_rig(&rig);
}

static int is_rounded(const gpt2_replica_t *replica, const float *arena)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    int same = 1;

    for (size_t i = 0; i < replica->layout->count; i++) {
        const gpt2_tensor_t *tensor = &replica->layout->tensors[i];
        float *rounded = malloc(tensor->count * sizeof(float));

        assert_non_null(rounded);
        kernels->round_fp16(rounded, arena + tensor->offset, tensor->count);
        same &= memcmp(rounded, arena + tensor->offset, tensor->count * sizeof(float)) == 0;
        free(rounded);
    }
    return same;
}

/* O2: passes see rounded weights, gradients are rounded. O1: neither. */
static void levels_differ_in_weights_and_gradients(void **state)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    rig_t o1;
    rig_t o2;
    double loss[3];

    (void)state;
    make_rig(&o1, "fp16", 1);
    make_rig(&o2, "fp16", 2);
    (void)train_step(&o1, 256.0, 1e-3);
    assert_false(is_rounded(o1.replica, o1.replica->gradients));
    (void)train_step(&o2, 256.0, 1e-3);
    assert_true(is_rounded(o2.replica, o2.replica->gradients));
    assert_false(is_rounded(o2.replica, o2.replica->weights));

    ok(o2.replica->ops->evaluate(o2.replica, &o2.batch, &loss[0], &error));
    memcpy(o1.replica->weights, o2.replica->weights, o1.count * sizeof(float));
    ok(o1.replica->ops->evaluate(o1.replica, &o1.batch, &loss[1], &error));
    kernels->round_fp16(o1.replica->weights, o1.replica->weights, o1.count);
    ok(o1.replica->ops->evaluate(o1.replica, &o1.batch, &loss[2], &error));
    assert_true(loss[0] == loss[2]);
    assert_true(loss[0] != loss[1]);
    destroy_rig(&o1);
    destroy_rig(&o2);
}

/* ---- Whole runs ----------------------------------------------------------------------------- */

#define STEPS 12
#define BROKEN_STEP 5

/* A text with something to learn: a few words in random order. */
static const char *write_text(void)
{
    static const char *const words[] = {"and ", "the ", "lord ", "said ", "unto ", "them\n"};
    char *text = calloc(1, 20000);
    size_t at = 0;
    const char *path;

    assert_non_null(text);
    for (uint64_t i = 0; at < 19900; i++) {
        at += (size_t)snprintf(text + at, 20000 - at, "%s", words[gpt2_random_bits(1, 1, i) % 6]);
    }
    path = scratch_write("text.txt", text, at);
    free(text);
    return path;
}

/* The options of a small run; texts live until the next call. */
static gpt2_options_t make_options(const char *more)
{
    static char copy[1024];
    static char name[] = "gpt2";
    static char *argv[64] = {name}; /* the options borrow it */
    int argc = 1;
    gpt2_options_t options;

    (void)snprintf(copy, sizeof(copy),
                   "--data %s --layers 1 --width 32 --heads 2 --seq 32 --context 32 --batch 8 "
                   "--steps 12 --lr 3e-3 --warmup 2 --eval-batches 2 --device cpu %s",
                   scratch_path("text.txt"), more);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    if (gpt2_options_parse(argc, argv, &options, &error) != 0) fail_msg("%s", error.text);
    return options;
}

typedef struct job {
    pthread_t thread;
    threads_world_t *world;
    const gpt2_options_t *options;
    uint64_t steps;
    uint64_t updates;
    float *weights;
    size_t count;
    double scales[STEPS]; /* each step's */
    double losses[STEPS];
    int skipped[STEPS];
    int rank;
    int save;
    int moments_moved; /* in the step that was broken */
    int code;
    gpt2_error_t error;
} job_t;

static int run_steps(job_t *job, gpt2_trainer_t *trainer)
{
    const size_t bytes = trainer->replica->layout->arena_count * sizeof(float);
    float *m = malloc(bytes);
    int code = m == NULL ? -1 : 0;

    while (code == 0 && trainer->progress.step < job->steps) {
        const uint64_t at = trainer->progress.step;
        gpt2_step_t step;

        memcpy(m, trainer->replica->m, bytes);
        code = gpt2_trainer_step(trainer, &step, &job->error);
        if (code == 0) code = gpt2_trainer_mean(trainer, &step, &job->losses[at], &job->error);
        if (code != 0) break;
        job->scales[at] = step.scale;
        job->skipped[at] = step.skipped;
        if (at == BROKEN_STEP) job->moments_moved = memcmp(m, trainer->replica->m, bytes) != 0;
    }
    free(m);
    return code;
}

static void *run_job(void *argument)
{
    job_t *job = argument;
    gpt2_strategy_t *strategy = threads_strategy(job->world, job->rank, 0);
    gpt2_trainer_t *trainer = NULL;
    int same = 0;
    int is_saved;

    job->code = gpt2_trainer_create(job->options, strategy, &trainer, &job->error);
    if (job->code == 0) job->code = run_steps(job, trainer);
    if (job->code == 0) job->code = gpt2_trainer_compare(trainer, &same, &job->error);
    if (job->code == 0 && !same) job->code = gpt2_fail(&job->error, "the replicas differ");
    if (job->code == 0 && job->save && job->rank == 0) {
        job->code = gpt2_trainer_save(trainer, &is_saved, &job->error);
    }
    if (job->code == 0) {
        job->updates = trainer->progress.updates;
        job->count = trainer->replica->layout->arena_count;
        job->weights = malloc(job->count * sizeof(float));
        if (job->weights == NULL) abort();
        memcpy(job->weights, trainer->replica->weights, job->count * sizeof(float));
    }
    gpt2_trainer_destroy(trainer);
    (void)strategy->ops->destroy(strategy, &job->error);
    return NULL;
}

/* Runs ranks to a step; jobs [ranks] have the records. broken: rank whose gradient becomes Inf in
 * BROKEN_STEP; -1: none. */
static void run_ranks(job_t *jobs, int ranks, const gpt2_options_t *options, uint64_t steps,
                      int save, int broken)
{
    threads_world_t *world = threads_world_create(ranks);

    if (broken >= 0) threads_world_break(world, broken, BROKEN_STEP, 1);
    memset(jobs, 0, (size_t)ranks * sizeof(*jobs));
    for (int i = 0; i < ranks; i++) {
        jobs[i].world = world;
        jobs[i].rank = i;
        jobs[i].options = options;
        jobs[i].steps = steps;
        jobs[i].save = save;
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        (void)pthread_join(jobs[i].thread, NULL);
    threads_world_destroy(world);
    for (int i = 0; i < ranks; i++)
        if (jobs[i].code != 0) fail_msg("rank %d: %s", i, jobs[i].error.text);
}

static void free_jobs(job_t *jobs, int ranks)
{
    for (int i = 0; i < ranks; i++)
        free(jobs[i].weights);
}

static void an_overflow_on_one_rank_is_skipped_by_all(void **state)
{
    enum { RANKS = 3 };
    const gpt2_options_t options = make_options("--precision fp16 --loss-scale 4096");
    job_t jobs[RANKS];

    (void)state;
    run_ranks(jobs, RANKS, &options, STEPS, 0, 1);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(jobs[rank].updates, STEPS - 1);
        assert_false(jobs[rank].moments_moved);
        for (int step = 0; step < STEPS; step++) {
            assert_int_equal(jobs[rank].skipped[step], step == BROKEN_STEP);
            assert_true(jobs[rank].scales[step] == (step <= BROKEN_STEP ? 4096.0 : 2048.0));
        }
    }
    assert_true(jobs[0].losses[STEPS - 1] < jobs[0].losses[0]);
    free_jobs(jobs, RANKS);
}

static void the_scale_grows_over_a_run(void **state)
{
    const gpt2_options_t options =
        make_options("--precision bf16 --loss-scale 8 --loss-scale-growth 3");
    job_t job;

    (void)state;
    run_ranks(&job, 1, &options, STEPS, 0, -1);
    for (int step = 0; step < STEPS; step++)
        assert_true(job.scales[step] == 8.0 * (1 << (step / 3)));
    free_jobs(&job, 1);
}

/* The standard error of a whole run, as a text to be freed; *code: how it ended. */
static char *words_of_run(const gpt2_options_t *options, gpt2_strategy_t *strategy, int *code)
{
    const int kept = dup(STDERR_FILENO);
    char *text = calloc(1, 4096);
    FILE *file = tmpfile();

    assert_non_null(text);
    assert_non_null(file);
    (void)fflush(stderr);
    (void)dup2(fileno(file), STDERR_FILENO);
    *code = gpt2_run(options, strategy, &error);
    (void)fflush(stderr);
    (void)dup2(kept, STDERR_FILENO);
    (void)close(kept);
    rewind(file);
    (void)fread(text, 1, 4095, file);
    (void)fclose(file);
    return text;
}

/* From 4 the scale is 1 after two overflows; those behind it can be mended no more. */
static void overflows_at_scale_one_are_warned_of_and_end_the_run(void **state)
{
    static const struct {
        uint64_t broken;
        int code;
        const char *warning; /* NULL: none */
    } cases[] = {{11, 0, NULL},
                 {12, 0, "step 12: 10 steps in a row overflowed at loss scale 1"},
                 {100, -1, "step 12: 10 steps in a row overflowed at loss scale 1"}};
    const gpt2_options_t options =
        make_options("--precision fp16 --loss-scale 4 --steps 60 --log-every 60");

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        threads_world_t *world = threads_world_create(1);
        gpt2_strategy_t *strategy = threads_strategy(world, 0, 0);
        char *text;
        int code;

        threads_world_break(world, 0, 0, cases[i].broken);
        text = words_of_run(&options, strategy, &code);
        assert_int_equal(code, cases[i].code);
        if (code != 0) assert_string_equal(error.text, "step 52: 50 steps in a row overflowed");
        if (cases[i].warning != NULL && strstr(text, cases[i].warning) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", text, cases[i].warning);
        }
        if (cases[i].warning == NULL) assert_null(strstr(text, "overflowed"));
        free(text);
        (void)strategy->ops->destroy(strategy, &error);
        threads_world_destroy(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_skipped_step_leaves_nothing_behind),
        cmocka_unit_test(a_scale_alone_changes_no_bit),
        cmocka_unit_test(masters_keep_what_16_bits_would_lose),
        cmocka_unit_test(levels_differ_in_weights_and_gradients),
        cmocka_unit_test(an_overflow_on_one_rank_is_skipped_by_all),
        cmocka_unit_test(the_scale_grows_over_a_run),
        cmocka_unit_test(overflows_at_scale_one_are_warned_of_and_end_the_run),
    };
    int code;

    (void)scratch_make();
    (void)write_text();
    code = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove();
    return code;
}
