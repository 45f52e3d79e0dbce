/*
 * test_gpt2_trainer.c - whole runs: any number of ranks trains alike, resumes are exact, and what
 * cannot work says why.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/train/trainer.h"
#include "tests/gpt2/scratch.h"
#include "tests/gpt2/strategy_threads.h"
#include "tests/unit/cases.h"
#include "tests/unit/sanitizer.h"

#define STEPS 20

static gpt2_error_t error;

/* A text with something to learn: a few words in random order. */
static const char *write_text(void)
{
    static const char *const words[] = {"and ", "the ", "lord ", "said ", "unto ", "them\n"};
    char *text = calloc(1, 20000);
    size_t at = 0;
    const char *path;

    assert_non_null(text);
    for (uint64_t i = 0; at < 19900; i++) {
        const char *word = words[gpt2_random_bits(1, 1, i) % 6];
        at += (size_t)snprintf(text + at, 20000 - at, "%s", word);
    }
    path = scratch_write("text.txt", text, at);
    free(text);
    return path;
}

/* The same text in three files of a folder, cut where no sequence ends. */
static const char *write_texts(void)
{
    static const size_t cuts[] = {0, 4097, 4110, 20000};
    static char folder[512];
    char text[20000];
    FILE *file = fopen(write_text(), "rbe");
    size_t bytes;

    assert_non_null(file);
    bytes = fread(text, 1, sizeof(text), file);
    (void)fclose(file);
    (void)snprintf(folder, sizeof(folder), "%s", scratch_path("texts"));
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int i = 0; i < 3; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "texts/%d.txt", i);
        (void)scratch_write(name, text + cuts[i], (i == 2 ? bytes : cuts[i + 1]) - cuts[i]);
    }
    return folder;
}

typedef struct rank_job {
    pthread_t thread;
    threads_world_t *world;
    int rank;
    const gpt2_options_t *options;
    uint64_t stop; /* leave after that step; saves first where save is set */
    int save;
    int has_server; /* rank 0 updates for all */
    double losses[STEPS];
    double validation;
    float *weights; /* a copy of the final ones */
    size_t count;
    int code;
    gpt2_error_t error;
} rank_job_t;

static int run_rank(rank_job_t *job, gpt2_strategy_t *strategy)
{
    gpt2_trainer_t *trainer = NULL;
    int code = gpt2_trainer_create(job->options, strategy, &trainer, &job->error);
    int same = 0;
    int is_saved;

    while (code == 0 && trainer->progress.step < job->stop) {
        gpt2_step_t step;
        double *loss = &job->losses[trainer->progress.step];

        code = gpt2_trainer_step(trainer, &step, &job->error);
        if (code == 0) code = gpt2_trainer_mean(trainer, &step, loss, &job->error);
    }
    if (code == 0) code = gpt2_trainer_validate(trainer, &job->validation, &job->error);
    if (code == 0) code = gpt2_trainer_compare(trainer, &same, &job->error);
    if (code == 0 && !same) code = gpt2_fail(&job->error, "the replicas differ");
    if (code == 0 && job->save && job->rank == 0)
        code = gpt2_trainer_save(trainer, &is_saved, &job->error);
    if (code == 0) {
        gpt2_replica_t *replica = trainer->replica;
        gpt2_state_t state;

        job->count = replica->layout->arena_count;
        job->weights = malloc(job->count * sizeof(float));
        if (job->weights == NULL) abort();
        code = replica->ops->borrow(replica, 0, &state, &job->error);
        if (code == 0) memcpy(job->weights, state.model->weights, job->count * sizeof(float));
        if (code == 0) code = replica->ops->give_back(replica, 0, &job->error);
    }
    gpt2_trainer_destroy(trainer);
    return code;
}

static void *rank_main(void *argument)
{
    rank_job_t *job = argument;
    gpt2_strategy_t *strategy = threads_strategy(job->world, job->rank, job->has_server);

    job->code = run_rank(job, strategy);
    (void)strategy->ops->destroy(strategy, &job->error);
    return NULL;
}

/* Runs `ranks` ranks to step `stop`; rank 0's record ends up in *result, its weights are the
 * caller's to free. Returns rank 0's code. */
static int run_kind(int ranks, const gpt2_options_t *options, uint64_t stop, int save,
                    int has_server, rank_job_t *result)
{
    rank_job_t *jobs = calloc((size_t)ranks, sizeof(*jobs));
    threads_world_t *world = threads_world_create(ranks);

    assert_non_null(jobs);
    for (int i = 0; i < ranks; i++) {
        jobs[i].world = world;
        jobs[i].rank = i;
        jobs[i].options = options;
        jobs[i].stop = stop;
        jobs[i].save = save;
        jobs[i].has_server = has_server;
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, rank_main, &jobs[i]), 0);
    }
    for (int i = 0; i < ranks; i++) {
        (void)pthread_join(jobs[i].thread, NULL);
        if (i > 0 && jobs[i].code != jobs[0].code) fail_msg("rank %d: %s", i, jobs[i].error.text);
        if (i > 0) free(jobs[i].weights);
    }
    *result = jobs[0];
    free(jobs);
    threads_world_destroy(world);
    return result->code;
}

static int run_ranks(int ranks, const gpt2_options_t *options, uint64_t stop, int save,
                     rank_job_t *result)
{
    return run_kind(ranks, options, stop, save, 0, result);
}

/* The default options of a small run, with more flags; texts live until the next call. */
static gpt2_options_t make_options(const char *data, const char *more)
{
    static char copy[1024];
    static char name[] = "gpt2";
    static char *argv[64] = {name}; /* the options borrow it */
    int argc = 1;
    gpt2_options_t options;

    (void)snprintf(copy, sizeof(copy),
                   "--data %s --layers 1 --width 32 --heads 2 --seq 32 --context 32 --batch 7 "
                   "--steps 20 --lr 3e-3 --warmup 2 --eval-batches 2 %s",
                   data, more);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    if (gpt2_options_parse(argc, argv, &options, &error) != 0) fail_msg("%s", error.text);
    return options;
}

static void compare_losses(const rank_job_t *a, const rank_job_t *b, double tolerance,
                           const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        if (fabs(a->losses[i] - b->losses[i]) > tolerance * a->losses[i]) {
            fail_msg("%s: step %d: loss %.9g against %.9g", what, i, a->losses[i], b->losses[i]);
        }
    }
    if (fabs(a->validation - b->validation) > tolerance * a->validation) {
        fail_msg("%s: validation %.9g against %.9g", what, a->validation, b->validation);
    }
}

/* Batch 7 divides by none of them; with 9 ranks two have nothing to do. */
static void any_number_of_ranks_trains_alike(void **state)
{
    static const int ranks[] = {3, 2, 4, 9};
    const char *data = write_text();
    gpt2_options_t options = make_options(data, "");
    rank_job_t one;
    rank_job_t many;

    (void)state;
    if (run_ranks(1, &options, STEPS, 0, &one) != 0) fail_msg("%s", one.error.text);
    assert_true(one.losses[STEPS - 1] < 0.7 * one.losses[0]);
    for (size_t i = 0; i < (under_sanitizer ? 1 : sizeof(ranks) / sizeof(ranks[0])); i++) {
        char what[32];

        if (run_ranks(ranks[i], &options, STEPS, 0, &many) != 0) fail_msg("%s", many.error.text);
        (void)snprintf(what, sizeof(what), "%d ranks", ranks[i]);
        compare_losses(&one, &many, 1e-6, what);
        free(many.weights);
    }
    options = make_options(data, "--accumulate 3");
    if (run_ranks(2, &options, STEPS, 0, &many) != 0) fail_msg("%s", many.error.text);
    compare_losses(&one, &many, 1e-6, "accumulation 3");
    free(many.weights);
    options = make_options(data, "--threads 3");
    if (run_ranks(1, &options, STEPS, 0, &many) != 0) fail_msg("%s", many.error.text);
    compare_losses(&one, &many, 1e-6, "3 threads");
    free(many.weights);
    free(one.weights);
}

static void resumed_runs_are_exact(void **state)
{
    const char *data = write_text();
    char flags[512];
    gpt2_options_t options;
    rank_job_t whole;
    rank_job_t first;
    rank_job_t second;

    (void)state;
    (void)snprintf(flags, sizeof(flags), "--out %s", scratch_path("run"));
    options = make_options(data, flags);
    if (run_ranks(2, &options, STEPS, 0, &whole) != 0) fail_msg("%s", whole.error.text);
    if (run_ranks(2, &options, 8, 1, &first) != 0) fail_msg("%s", first.error.text);
    (void)snprintf(flags, sizeof(flags), "--resume auto --out %s", scratch_path("run"));
    options = make_options(data, flags);
    if (run_ranks(2, &options, STEPS, 0, &second) != 0) fail_msg("%s", second.error.text);
    assert_true(second.losses[7] == 0.0); /* it did start at step 8 */
    memcpy(second.losses, first.losses, 8 * sizeof(double));
    compare_losses(&whole, &second, 0.0, "resume");
    assert_memory_equal(whole.weights, second.weights, whole.count * sizeof(float));
    free(second.weights);

    /* Another number of ranks, and the folder by its name; the same text in other files, so the
     * checkpoint's position and fingerprint hold. */
    (void)snprintf(flags, sizeof(flags), "--resume %s", scratch_path("run/checkpoint/8"));
    options = make_options(write_texts(), flags);
    if (run_ranks(3, &options, STEPS, 0, &second) != 0) fail_msg("%s", second.error.text);
    memcpy(second.losses, first.losses, 8 * sizeof(double));
    compare_losses(&whole, &second, 1e-6, "resume on 3 ranks");
    free(second.weights);
    free(first.weights);
    free(whole.weights);

    (void)snprintf(flags, sizeof(flags), "--resume %s --width 64",
                   scratch_path("run/checkpoint/8"));
    options = make_options(data, flags);
    assert_int_equal(run_ranks(2, &options, STEPS, 0, &second), -1);
    assert_non_null(strstr(second.error.text, "--width 64, but"));
    assert_non_null(strstr(second.error.text, "has 32"));
}

static void one_rank_may_update_for_all(void **state)
{
    const char *data = write_text();
    char flags[512];
    gpt2_options_t options;
    rank_job_t each;
    rank_job_t server;
    rank_job_t resumed;

    (void)state;
    (void)snprintf(flags, sizeof(flags), "--clip 0.5 --accumulate 2 --out %s", scratch_path("ps"));
    options = make_options(data, flags);
    if (run_ranks(3, &options, STEPS, 0, &each) != 0) fail_msg("%s", each.error.text);
    if (run_kind(3, &options, STEPS, 0, 1, &server) != 0) fail_msg("%s", server.error.text);
    compare_losses(&each, &server, 0.0, "a server");
    assert_memory_equal(each.weights, server.weights, each.count * sizeof(float));
    free(server.weights);

    if (run_kind(3, &options, 8, 1, 1, &server) != 0) fail_msg("%s", server.error.text);
    (void)snprintf(flags, sizeof(flags), "--clip 0.5 --accumulate 2 --resume auto --out %s",
                   scratch_path("ps"));
    options = make_options(data, flags);
    if (run_kind(3, &options, STEPS, 0, 1, &resumed) != 0) fail_msg("%s", resumed.error.text);
    assert_true(resumed.losses[7] == 0.0);
    memcpy(resumed.losses, server.losses, 8 * sizeof(double));
    compare_losses(&each, &resumed, 0.0, "a server, resumed");
    assert_memory_equal(each.weights, resumed.weights, each.count * sizeof(float));
    free(resumed.weights);
    free(server.weights);
    free(each.weights);
}

static void lamb_trains_alike_and_resumes(void **state)
{
    const char *data = write_text();
    char flags[512];
    gpt2_options_t options;
    rank_job_t one;
    rank_job_t many;
    rank_job_t resumed;

    (void)state;
    (void)snprintf(flags, sizeof(flags), "--optimizer lamb --lr 1e-1 --out %s", scratch_path("lm"));
    options = make_options(data, flags);
    if (run_ranks(1, &options, STEPS, 0, &one) != 0) fail_msg("%s", one.error.text);
    assert_true(one.losses[STEPS - 1] < 0.8 * one.losses[0]);
    if (run_ranks(3, &options, STEPS, 0, &many) != 0) fail_msg("%s", many.error.text);
    compare_losses(&one, &many, 1e-6, "LAMB on 3 ranks");
    if (run_ranks(3, &options, 8, 1, &resumed) != 0) fail_msg("%s", resumed.error.text);
    free(resumed.weights);
    (void)snprintf(flags, sizeof(flags), "--optimizer lamb --lr 1e-1 --resume auto --out %s",
                   scratch_path("lm"));
    options = make_options(data, flags);
    if (run_ranks(3, &options, STEPS, 0, &resumed) != 0) fail_msg("%s", resumed.error.text);
    assert_true(resumed.losses[7] == 0.0);
    assert_memory_equal(many.weights, resumed.weights, many.count * sizeof(float));
    free(resumed.weights);
    if (run_kind(3, &options, STEPS, 0, 1, &resumed) != 0) fail_msg("%s", resumed.error.text);
    assert_memory_equal(many.weights, resumed.weights, many.count * sizeof(float));
    free(resumed.weights);
    free(many.weights);
    free(one.weights);
}

static void impossible_runs_say_why(void **state)
{
    static const char *const cases[][2] = {
        {"--resume /nonexistent", "/nonexistent/manifest.txt: No such file"},
        {"--init /nonexistent.bin", "/nonexistent.bin: No such file"},
        {"--val /nonexistent.txt", "/nonexistent.txt: No such file"},
        {"--optimizer lam", "no such optimizer, did you mean lamb?"},
        {"--lamb-phi-max 2", "--lamb-phi-max needs --optimizer lamb, this is adamw"},
        {"--optimizer lamb --lamb-exclude 2d", "--lamb-exclude 2d: no such choice"},
        {"--vocab 100", "outside the vocabulary of 100"},
        {"--context 4096 --seq 4096", "a sequence of 4096 needs 4097"},
    };
    const char *data = write_text();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gpt2_options_t options = make_options(data, cases[i][0]);
        rank_job_t result;

        if (run_ranks(1, &options, STEPS, 0, &result) == 0) fail_msg("%s passed", cases[i][0]);
        if (strstr(result.error.text, cases[i][1]) == NULL) {
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i][0], result.error.text, cases[i][1]);
        }
    }
}

static void unknown_strategy_is_refused(void **state)
{
    (void)state;
    assert_null(gpt2_strategy_find("singel", &error));
    assert_non_null(strstr(error.text, "did you mean single"));
    assert_non_null(gpt2_strategy_find(NULL, &error));
    assert_ptr_equal(gpt2_strategy_find("single", &error), &gpt2_strategy_single);
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
        cmocka_unit_test_setup_teardown(any_number_of_ranks_trains_alike, setup, teardown),
        cmocka_unit_test_setup_teardown(resumed_runs_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(one_rank_may_update_for_all, setup, teardown),
        cmocka_unit_test_setup_teardown(lamb_trains_alike_and_resumes, setup, teardown),
        cmocka_unit_test_setup_teardown(impossible_runs_say_why, setup, teardown),
        cmocka_unit_test_setup_teardown(unknown_strategy_is_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
