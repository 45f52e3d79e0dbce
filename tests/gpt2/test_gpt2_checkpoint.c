/*
 * test_gpt2_checkpoint.c - saving, restoring, damage, kills in mid-write, a full disk, llm.c's
 * model files, and text generation.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "examples/gpt2/data/checkpoint.h"
#include "examples/gpt2/model/generate.h"
#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/base/random.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

static gpt2_error_t error;
static const gpt2_shape_t SHAPE = {40, 48, 24, 2, 2, 16};

typedef struct run {
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
} run_t;

static run_t make_run(gpt2_shape_t shape, uint64_t seed)
{
    run_t run;
    gpt2_model_options_t options = {
        .shape = shape, .batch = 2, .length = shape.context, .threads = 1, .training = 1};
    gpt2_optimizer_settings_t settings = {.learning_rate = 1e-3,
                                          .final_rate = 0.1,
                                          .steps = 100,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .epsilon = 1e-8,
                                          .decay = 0.1};

    if (gpt2_model_create(&options, &run.model, &error) != 0) fail_msg("%s", error.text);
    if (gpt2_optimizer_create(run.model, &settings, &run.optimizer, &error) != 0) {
        fail_msg("%s", error.text);
    }
    gpt2_model_init_weights(run.model, seed);
    for (size_t i = 0; i < run.model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &run.model->layout->tensors[i];
        for (size_t j = 0; j < tensor->count; j++) {
            run.optimizer->m[tensor->offset + j] = (float)gpt2_random_normal(seed, 50 + i, j);
            run.optimizer->v[tensor->offset + j] = (float)gpt2_random_uniform(seed, 90 + i, j);
        }
    }
    return run;
}

static void free_run(run_t *run)
{
    gpt2_optimizer_destroy(run->optimizer);
    gpt2_model_destroy(run->model);
}

static void assert_runs_equal(const run_t *a, const run_t *b)
{
    size_t bytes = a->model->layout->arena_count * sizeof(float);

    assert_memory_equal(a->model->weights, b->model->weights, bytes);
    assert_memory_equal(a->optimizer->m, b->optimizer->m, bytes);
    assert_memory_equal(a->optimizer->v, b->optimizer->v, bytes);
}

static const char POINTER[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";

static void save(const run_t *run, uint64_t step)
{
    gpt2_progress_t progress = {step, step * 8, step, 0, 7, {0}};

    if (gpt2_checkpoint_save(scratch_path("checkpoint"), run->model, run->optimizer, &progress,
                             &error) != 0) {
        fail_msg("%s", error.text);
    }
}

/* Loads what `path` holds; the error must contain `text`. */
static void expect_load_fails(const char *path, const char *text)
{
    run_t run = make_run(SHAPE, 99);
    gpt2_progress_t progress;

    assert_int_equal(gpt2_checkpoint_load(path, run.model, run.optimizer, &progress, &error), -1);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, text);
    free_run(&run);
}

static void round_trip_restores_every_bit(void **state)
{
    run_t run = make_run(SHAPE, 1);
    run_t other = make_run(SHAPE, 2);
    gpt2_progress_t progress = {12, 100, 11, 1, 7, {16, 64, 4711, 0xabcdef}};
    gpt2_progress_t loaded;
    gpt2_shape_t shape;
    char path[GPT2_PATH_MAX];

    (void)state;
    assert_int_equal(gpt2_checkpoint_save(scratch_path("checkpoint"), run.model, run.optimizer,
                                          &progress, &error),
                     0);
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), 0);
    assert_string_equal(path, scratch_path("checkpoint/12"));
    assert_int_equal(gpt2_checkpoint_inspect(path, &shape, &loaded, &error), 0);
    assert_memory_equal(&shape, &SHAPE, sizeof(shape));
    assert_int_equal(gpt2_checkpoint_load(path, other.model, other.optimizer, &loaded, &error), 0);
    assert_memory_equal(&loaded, &progress, sizeof(progress));
    assert_int_equal(other.optimizer->updates, 11);
    assert_runs_equal(&run, &other);
    free_run(&run);
    free_run(&other);
}

static void two_newest_are_kept_and_none_is_no_failure(void **state)
{
    run_t run = make_run(SHAPE, 1);
    char path[GPT2_PATH_MAX] = "x";

    (void)state;
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), 0);
    assert_string_equal(path, "");
    for (uint64_t step = 8; step <= 11; step++)
        save(&run, step);
    save(&run, 11); /* the same step again */
    assert_int_equal(access(scratch_path("checkpoint/9/manifest.txt"), F_OK), -1);
    assert_int_equal(access(scratch_path("checkpoint/9"), F_OK), -1);
    assert_int_equal(access(scratch_path("checkpoint/10/manifest.txt"), F_OK), 0);
    assert_int_equal(access(scratch_path("checkpoint/11/manifest.txt"), F_OK), 0);
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), 0);
    assert_string_equal(path, scratch_path("checkpoint/11"));
    free_run(&run);
}

static void damage(const char *path, long offset, int cut)
{
    FILE *file = fopen(path, "r+b");
    int byte;

    assert_non_null(file);
    if (cut) {
        assert_int_equal(ftruncate(fileno(file), offset), 0);
    } else {
        assert_int_equal(fseek(file, offset, SEEK_SET), 0);
        byte = fgetc(file);
        assert_int_equal(fseek(file, offset, SEEK_SET), 0);
        (void)fputc(byte ^ 1, file);
    }
    assert_int_equal(fclose(file), 0);
}

static void damaged_and_foreign_checkpoints_are_refused(void **state)
{
    run_t run = make_run(SHAPE, 1);
    gpt2_shape_t other_shape = SHAPE;
    run_t other;
    gpt2_progress_t progress;
    char latest[GPT2_PATH_MAX];

    (void)state;
    save(&run, 5);
    damage(scratch_path("checkpoint/5/adam_m.bin"), 1000, 0);
    expect_load_fails(scratch_path("checkpoint/5"), "adam_m.bin: damaged: checksum of");
    save(&run, 5);
    damage(scratch_path("checkpoint/5/weights.bin"), 1002, 1);
    expect_load_fails(scratch_path("checkpoint/5"), "weights.bin: truncated");
    save(&run, 5);
    assert_int_equal(unlink(scratch_path("checkpoint/5/adam_v.bin")), 0);
    expect_load_fails(scratch_path("checkpoint/5"), "adam_v.bin: No such file");
    (void)scratch_write("checkpoint/5/adam_v.bin", POINTER, sizeof(POINTER) - 1);
    expect_load_fails(scratch_path("checkpoint/5"), "adam_v.bin: a git-lfs pointer");
    (void)scratch_write("checkpoint/5/manifest.txt", POINTER, sizeof(POINTER) - 1);
    expect_load_fails(scratch_path("checkpoint/5"), "manifest.txt: a git-lfs pointer");
    save(&run, 5);

    /* Without a whole manifest a folder is no checkpoint, and an older one is found. */
    save(&run, 4);
    save(&run, 5);
    damage(scratch_path("checkpoint/5/manifest.txt"), 200, 1);
    expect_load_fails(scratch_path("checkpoint/5"), "manifest.txt: truncated after 200 bytes");
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, latest, &error), 0);
    assert_string_equal(latest, scratch_path("checkpoint/4"));
    save(&run, 5);
    damage(scratch_path("checkpoint/5/manifest.txt"), 200, 0);
    expect_load_fails(scratch_path("checkpoint/5"), "manifest.txt: damaged: checksum");
    assert_int_equal(mkdir(scratch_path("foreign"), 0777), 0);
    expect_load_fails(scratch_path("foreign"), "is");
    (void)scratch_write("foreign/manifest.txt", "{\"json\": 1}\n", 12);
    expect_load_fails(scratch_path("foreign"), "starts with \"{\"json\": 1}\"");

    save(&run, 6);
    other_shape.width = 32;
    other = make_run(other_shape, 1);
    assert_int_equal(gpt2_checkpoint_load(scratch_path("checkpoint/6"), other.model,
                                          other.optimizer, &progress, &error),
                     -1);
    assert_non_null(strstr(error.text, "width 16; this run has"));
    free_run(&other);
    free_run(&run);
}

static char said[4096];

static void note(void *user, const char *text)
{
    (void)user;
    (void)snprintf(said + strlen(said), sizeof(said) - strlen(said), "%s\n", text);
}

/* Every number counts, not the manifest alone; what is passed over is said, newest first. */
static void the_newest_that_verifies_is_taken(void **state)
{
    static const gpt2_notice_t notice = {note, NULL};
    run_t run = make_run(SHAPE, 1);
    char path[GPT2_PATH_MAX];
    const char *first;
    const char *second;

    (void)state;
    save(&run, 4);
    save(&run, 8);
    assert_int_equal(rename(scratch_path("checkpoint/4"), scratch_path("four")), 0);
    save(&run, 12);
    assert_int_equal(rename(scratch_path("four"), scratch_path("checkpoint/4")), 0);
    said[0] = '\0';
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), &notice, path, &error), 0);
    assert_string_equal(path, scratch_path("checkpoint/12"));
    assert_string_equal(said, "");
    damage(scratch_path("checkpoint/12/adam_v.bin"), 4000, 0);
    assert_int_equal(unlink(scratch_path("checkpoint/8/weights.bin")), 0);
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), &notice, path, &error), 0);
    assert_string_equal(path, scratch_path("checkpoint/4"));
    first = strstr(said, "checkpoint 12 is passed over: ");
    second = strstr(said, "checkpoint 8 is passed over: ");
    if (first == NULL || second == NULL || first > second ||
        strstr(first, "adam_v.bin: damaged: checksum of") == NULL ||
        strstr(second, "weights.bin: No such file") == NULL) {
        fail_msg("%s", said);
    }
    /* Where there are checkpoints and none is good, nobody starts at step 0 by mistake. */
    damage(scratch_path("checkpoint/4/adam_m.bin"), 100, 1);
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), -1);
    assert_string_equal(path, "");
    assert_non_null(strstr(error.text, "none of the 3 checkpoints in "));
    assert_non_null(strstr(error.text, "12/adam_v.bin: damaged"));
    free_run(&run);
}

/* A run taken up far back saves steps below those that are there. */
static void the_one_just_saved_is_kept(void **state)
{
    run_t run = make_run(SHAPE, 1);

    (void)state;
    save(&run, 8);
    save(&run, 12);
    save(&run, 4);
    assert_int_equal(gpt2_checkpoint_verify(scratch_path("checkpoint/4"), &error), 0);
    assert_int_equal(gpt2_checkpoint_verify(scratch_path("checkpoint/12"), &error), 0);
    free_run(&run);
}

/* A child saves step after step until it is killed at a random moment; what is found then must
 * load and be a state that the child really had. */
static void killed_saves_leave_a_whole_checkpoint(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        run_t base = make_run(SHAPE, 1);
        run_t loaded = make_run(SHAPE, 2);
        gpt2_progress_t progress;
        char path[GPT2_PATH_MAX];
        struct timespec pause = {0, 3000000 +
                                        (long)(gpt2_random_bits(3, 3, (uint64_t)round) % 30000000)};
        pid_t child;

        save(&base, 1);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (uint64_t step = 2;; step++) {
                gpt2_progress_t now = {step, step * 8, step, 0, 7, {0}};
                base.model->weights[3] = (float)step;
                base.optimizer->v[5] = (float)step;
                if (gpt2_checkpoint_save(scratch_path("checkpoint"), base.model, base.optimizer,
                                         &now, &error) != 0) {
                    _exit(1);
                }
            }
        }
        (void)nanosleep(&pause, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), 0);
        assert_true(path[0] != '\0');
        if (gpt2_checkpoint_load(path, loaded.model, loaded.optimizer, &progress, &error) != 0) {
            fail_msg("round %d: %s", round, error.text);
        }
        if (progress.step > 1) {
            base.model->weights[3] = (float)progress.step;
            base.optimizer->v[5] = (float)progress.step;
        }
        assert_runs_equal(&base, &loaded);
        save(&base, progress.step + 1); /* and saving goes on, over what the kill left */
        assert_int_equal(access(scratch_path("checkpoint/.writing-2"), F_OK), -1);
        free_run(&base);
        free_run(&loaded);
        scratch_remove();
        (void)scratch_make();
    }
}

/* A limit on file sizes stands in for a full disk: writes fail in the middle of a file. */
static void full_disk_keeps_the_older_checkpoint(void **state)
{
    run_t run = make_run(SHAPE, 1);
    run_t loaded = make_run(SHAPE, 2);
    gpt2_progress_t progress = {2, 16, 2, 0, 7, {0}};
    char path[GPT2_PATH_MAX];
    struct rlimit old;
    struct rlimit small;

    (void)state;
    save(&run, 1);
    save(&run, 2);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(gpt2_checkpoint_save(scratch_path("checkpoint"), run.model, run.optimizer,
                                          &progress, &error),
                     -1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_non_null(strstr(error.text, "weights.bin"));
    assert_non_null(strstr(error.text, "File too large"));
    assert_int_equal(access(scratch_path("checkpoint/.writing-2"), F_OK), -1);
    assert_int_equal(gpt2_checkpoint_latest(scratch_path("checkpoint"), NULL, path, &error), 0);
    assert_int_equal(gpt2_checkpoint_load(path, loaded.model, loaded.optimizer, &progress, &error),
                     0);
    assert_runs_equal(&run, &loaded);
    free_run(&run);
    free_run(&loaded);
}

static void llmc_files_round_trip_and_bad_ones_are_refused(void **state)
{
    run_t run = make_run(SHAPE, 1);
    run_t other = make_run(SHAPE, 2);
    gpt2_shape_t shape;
    const char *path = scratch_path("model.bin");
    struct stat status;
    int32_t wrong[256] = {5};

    (void)state;
    assert_int_equal(gpt2_llmc_save(path, run.model, 0, &error), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 1024 + 4 * run.model->layout->parameter_count);
    assert_int_equal(gpt2_llmc_inspect(path, &shape, &error), 0);
    assert_memory_equal(&shape, &SHAPE, sizeof(shape));
    assert_int_equal(gpt2_llmc_load(path, other.model, &error), 0);
    assert_memory_equal(run.model->weights, other.model->weights,
                        run.model->layout->arena_count * sizeof(float));
    damage(path, 5000, 1);
    assert_int_equal(gpt2_llmc_load(path, other.model, &error), -1);
    assert_non_null(strstr(error.text, "truncated"));
    assert_int_equal(gpt2_llmc_save(path, run.model, 1, &error), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 1024 + 2 * run.model->layout->parameter_count);
    assert_int_equal(gpt2_llmc_load(path, other.model, &error), 0);
    for (size_t i = 0; i < run.model->layout->arena_count; i++) {
        assert_true(fabsf(other.model->weights[i] - run.model->weights[i]) <=
                    fabsf(run.model->weights[i]) / 256.0f); /* half a step of bf16 */
    }
    path = scratch_write("wrong.bin", wrong, sizeof(wrong));
    assert_int_equal(gpt2_llmc_inspect(path, &shape, &error), -1);
    assert_non_null(strstr(error.text, "magic 5, expected 20240326"));
    path = scratch_write("wrong.bin", POINTER, sizeof(POINTER) - 1);
    assert_int_equal(gpt2_llmc_inspect(path, &shape, &error), -1);
    assert_non_null(strstr(error.text, "run git lfs pull"));
    path = scratch_write("model.pt", "PK\003\004..............", 18);
    assert_int_equal(gpt2_llmc_inspect(path, &shape, &error), -1);
    assert_non_null(strstr(error.text, "model.pt: a zip archive, as torch.save() writes it"));
    free_run(&run);
    free_run(&other);
}

/* The logits behind the last of `count` tokens, computed from scratch. */
static void full_logits(gpt2_model_t *model, const int32_t *tokens, int count, float *last)
{
    float logits[24 * 40];
    int32_t padded[24] = {0};
    gpt2_batch_t batch = {padded, padded, 1, 24};

    memcpy(padded, tokens, (size_t)count * sizeof(*tokens));
    gpt2_model_forward(model, &batch, NULL);
    gpt2_model_logits(model, &batch, logits);
    memcpy(last, logits + (size_t)(40 * (count - 1)), 40 * sizeof(float));
}

static void cached_generation_equals_full_recomputation(void **state)
{
    run_t run = make_run(SHAPE, 5);
    gpt2_generator_t *generator;
    int32_t tokens[64];
    const float *logits = NULL;

    (void)state;
    /* Strong weights, so that logits differ clearly. */
    for (size_t i = 0; i < run.model->layout->arena_count; i++)
        run.model->weights[i] *= 10.0f;
    assert_int_equal(gpt2_generator_create(run.model, &generator, &error), 0);
    for (int i = 0; i < 60; i++) {
        /* The generator remembers everything until the context of 24 is full; then the
         * newest half and what came after. */
        int first = i < 24 ? 0 : 12 + (i - 24) / 12 * 12;
        float expected[40];

        tokens[i] = (int32_t)(gpt2_random_bits(8, 8, (uint64_t)i) % 40);
        logits = gpt2_generator_feed(generator, tokens[i]);
        full_logits(run.model, tokens + first, i + 1 - first, expected);
        for (int v = 0; v < 40; v++) {
            if (fabsf(logits[v] - expected[v]) > 1e-4f * (1.0f + fabsf(expected[v]))) {
                fail_msg("token %d: logit %d is %g, recomputed %g", i, v, (double)logits[v],
                         (double)expected[v]);
            }
        }
    }
    gpt2_generator_destroy(generator);
    free_run(&run);
}

static void picks_follow_temperature_seed_and_top_k(void **state)
{
    run_t run = make_run(SHAPE, 5);
    gpt2_generator_t *generator;
    gpt2_sampling_t greedy = {0.0, 0, 1};
    gpt2_sampling_t top2 = {5.0, 2, 1};
    gpt2_sampling_t warm = {1.0, 0, 3};
    float logits[40];
    int seen[40] = {0};

    (void)state;
    assert_int_equal(gpt2_generator_create(run.model, &generator, &error), 0);
    for (int i = 0; i < 40; i++)
        logits[i] = i == 17 ? 3.0f : i == 30 ? 2.5f : -1.0f;
    assert_int_equal(gpt2_generator_pick(generator, logits, &greedy, 0), 17);
    for (uint64_t i = 0; i < 2000; i++) {
        int32_t token = gpt2_generator_pick(generator, logits, &top2, i);

        assert_true(token == 17 || token == 30);
        assert_int_equal(gpt2_generator_pick(generator, logits, &warm, i),
                         gpt2_generator_pick(generator, logits, &warm, i));
        seen[gpt2_generator_pick(generator, logits, &warm, i)]++;
    }
    /* e^3 of e^3 + e^2.5 + 38 e^-1 = 43.4 %. */
    assert_true(abs(seen[17] - 868) < 120);
    gpt2_generator_destroy(generator);
    free_run(&run);
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

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(round_trip_restores_every_bit),
        SCRATCH_TEST(two_newest_are_kept_and_none_is_no_failure),
        SCRATCH_TEST(damaged_and_foreign_checkpoints_are_refused),
        SCRATCH_TEST(the_newest_that_verifies_is_taken),
        SCRATCH_TEST(the_one_just_saved_is_kept),
        SCRATCH_TEST(killed_saves_leave_a_whole_checkpoint),
        SCRATCH_TEST(full_disk_keeps_the_older_checkpoint),
        SCRATCH_TEST(llmc_files_round_trip_and_bad_ones_are_refused),
        SCRATCH_TEST(cached_generation_equals_full_recomputation),
        SCRATCH_TEST(picks_follow_temperature_seed_and_top_k),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
