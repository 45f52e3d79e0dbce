/*
 * test_gpt2_cuda_trainer.c - whole runs with --device cuda on the doubles: they train as on the
 * CPU, any number of ranks alike, resume with the same bits, and exchange checkpoints with it.
 *
 * The GPU is the double of the runtime, so the device that the trainer finds is linked here and
 * needs no driver.
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/cuda/plugin.h"
#include "examples/gpt2/base/random.h"
#include "examples/gpt2/train/run.h"
#include "examples/gpt2/train/trainer.h"
#include "tests/gpt2/scratch.h"
#include "tests/gpt2/strategy_threads.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"

#define STEPS 12
#define FEW 6 /* where a curve is not the point: simulated kernels are slow */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CURVE FEW
#define SOME FEW
#else
#define CURVE STEPS
#define SOME 8
#endif

static gpt2_error_t error;

/* Instead of device_cuda.c, which looks for a driver. */
int gpt2_cuda_open(const gpt2_device_t **out, gpt2_error_t *why)
{
    static const gpt2_device_t device = {"cuda", gpt2_replica_cuda_create};

    (void)why;
    *out = &device;
    return 0;
}

/* A text with something to learn: a few words in random order. */
static const char *write_text(void)
{
    static const char *const words[] = {"and ", "the ", "lord ", "said ", "unto ", "them\n"};
    char text[4000];
    size_t at = 0;

    for (uint64_t i = 0; at < sizeof(text) - 8; i++) {
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s",
                               words[gpt2_random_bits(1, 1, i) % 6]);
    }
    return scratch_write("text.txt", text, at);
}

typedef struct rank_job {
    pthread_t thread;
    threads_world_t *world;
    int rank;
    const gpt2_options_t *options;
    uint64_t stop; /* leave after that step; saves first where save is set */
    int save;
    double losses[STEPS];
    double validation;
    double norm; /* of the last step */
    double scale;
    uint64_t updates;
    uint64_t checksum;
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
        /* Every third step goes on without looking. */
        if (code != 0 || (trainer->progress.step % 3 == 0 && trainer->progress.step < job->stop)) {
            continue;
        }
        code = gpt2_trainer_mean(trainer, &step, loss, &job->error);
        job->norm = step.norm;
        job->scale = step.scale;
        job->updates = trainer->progress.updates;
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
    gpt2_strategy_t *strategy = threads_strategy(job->world, job->rank, 0);

    job->code = run_rank(job, strategy);
    (void)strategy->ops->destroy(strategy, &job->error);
    return NULL;
}

/* Runs `ranks` ranks to step `stop`; rank 0's record ends up in *result, its weights are the
 * caller's to free. */
static void run_ranks(int ranks, const gpt2_options_t *options, uint64_t stop, int save,
                      rank_job_t *result)
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
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, rank_main, &jobs[i]), 0);
    }
    for (int i = 0; i < ranks; i++) {
        (void)pthread_join(jobs[i].thread, NULL);
        if (jobs[i].code != 0) fail_msg("rank %d: %s", i, jobs[i].error.text);
        if (i > 0) free(jobs[i].weights);
    }
    *result = jobs[0];
    free(jobs);
    threads_world_destroy(world);
    assert_int_equal(cuda_double_live(), 0);
}

/* The options of a very small run, with more flags; texts live until the next call. */
static gpt2_options_t make_options(const char *data, const char *more)
{
    static char copy[2048];
    static char name[] = "gpt2";
    static char *argv[64] = {name}; /* the options borrow it */
    int argc = 1;
    gpt2_options_t options;

    (void)snprintf(copy, sizeof(copy),
                   "--data %s --layers 1 --width 16 --heads 1 --seq 8 --context 8 --batch 5 "
                   "--vocab 128 --steps 12 --lr 1e-2 --warmup 2 --eval-batches 1 %s",
                   data, more);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    if (gpt2_options_parse(argc, argv, &options, &error) != 0) fail_msg("%s", error.text);
    return options;
}

/* Steps that were not looked at are 0 in both. The validation counts where both did all steps. */
static void compare_losses(const rank_job_t *a, const rank_job_t *b, uint64_t steps,
                           double tolerance, const char *what)
{
    for (uint64_t i = 0; i < steps; i++) {
        if (i + 1 == steps && a->stop != b->stop) continue; /* one of them looked, at its end */
        if (fabs(a->losses[i] - b->losses[i]) > tolerance * a->losses[i]) {
            fail_msg("%s: step %llu: loss %.9g against %.9g", what, (unsigned long long)i,
                     a->losses[i], b->losses[i]);
        }
    }
    if (a->stop == b->stop && fabs(a->validation - b->validation) > tolerance * a->validation) {
        fail_msg("%s: validation %.9g against %.9g", what, a->validation, b->validation);
    }
}

static void steps_follow_the_cpu(void **state)
{
    static const struct {
        const char *flags;
        double tolerance;
    } cases[] = {{"--device cuda --precision fp32", 1e-4},
                 {"--device cuda --precision bf16", 2e-2},
                 {"--device cuda --precision fp16", 5e-3},
                 {"--device cuda --amp O2", 2e-2},
                 {"--device auto --accumulate 2 --recompute gelu+norm", 2e-2}};
    const uint64_t stops[] = {CURVE, SOME, SOME, FEW, FEW};
    const char *data = write_text();
    gpt2_options_t options = make_options(data, "--device cpu");
    rank_job_t cpu;
    rank_job_t gpu;

    (void)state;
    run_ranks(1, &options, STEPS, 0, &cpu);
    assert_true(cpu.losses[STEPS - 1] < 0.9 * cpu.losses[0]);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        options = make_options(data, cases[i].flags);
        run_ranks(1, &options, stops[i], 0, &gpu);
        compare_losses(&cpu, &gpu, stops[i], cases[i].tolerance, cases[i].flags);
        assert_true(stops[i] < STEPS || fabs(cpu.norm - gpu.norm) < 0.1 * cpu.norm);
        free(gpu.weights);
    }
    free(cpu.weights);
}

static void lamb_follows_the_cpu(void **state)
{
    const char *data = write_text();
    gpt2_options_t options = make_options(data, "--device cpu --optimizer lamb --lr 1e-1");
    rank_job_t cpu;
    rank_job_t gpu;

    (void)state;
    run_ranks(1, &options, SOME, 0, &cpu);
    options = make_options(data, "--device cuda --precision fp32 --optimizer lamb --lr 1e-1");
    run_ranks(1, &options, SOME, 0, &gpu);
    compare_losses(&cpu, &gpu, SOME, 1e-4, "LAMB");
    free(gpu.weights);
    options = make_options(data, "--device cuda --optimizer lamb --lr 1e-1");
    run_ranks(2, &options, FEW, 0, &gpu);
    compare_losses(&cpu, &gpu, FEW, 2e-2, "LAMB in bf16 on 2 ranks");
    free(gpu.weights);
    free(cpu.weights);
}

/* From 2^20, where gradients overflow, the scale comes down by a factor of two for each step that
 * is skipped; what is learned from then on is what fp32 learns. */
static void too_high_a_loss_scale_comes_down(void **state)
{
    const char *data = write_text();
    gpt2_options_t options =
        make_options(data, "--device cuda --precision fp16 --loss-scale 1048576");
    rank_job_t job;
    double skipped;

    (void)state;
    run_ranks(2, &options, SOME, 0, &job);
    skipped = (double)(SOME - job.updates);
    assert_true(skipped >= 1.0 && job.updates >= 1);
    assert_true(job.scale == ldexp(1048576.0, -(int)skipped));
    assert_true(isfinite(job.norm) && job.losses[SOME - 1] < job.losses[0]);
    free(job.weights);
}

/* Batch 5 over 2 and 3 ranks: they do not have equally many sequences. */
static void ranks_train_alike(void **state)
{
    const char *data = write_text();
    gpt2_options_t options = make_options(data, "--device cuda --precision fp32");
    rank_job_t one;
    rank_job_t many;

    (void)state;
    run_ranks(1, &options, FEW, 0, &one);
    run_ranks(2, &options, FEW, 0, &many);
    compare_losses(&one, &many, FEW, 1e-5, "2 ranks");
    free(many.weights);
    options = make_options(data, "--device cuda --precision fp32 --accumulate 2");
    run_ranks(3, &options, FEW, 0, &many);
    compare_losses(&one, &many, FEW, 1e-5, "3 ranks");
    free(many.weights);
    free(one.weights);
}

static void resumed_runs_are_exact(void **state)
{
    const char *data = write_text();
    const char *folder = scratch_path("run");
    char flags[600];
    gpt2_options_t options;
    rank_job_t whole;
    rank_job_t first;
    rank_job_t second;

    (void)state;
    (void)snprintf(flags, sizeof(flags), "--device cuda --out %s", folder);
    options = make_options(data, flags);
    run_ranks(2, &options, FEW, 0, &whole);
    run_ranks(2, &options, 3, 1, &first);
    (void)snprintf(flags, sizeof(flags), "--device cuda --resume auto --out %s", folder);
    options = make_options(data, flags);
    run_ranks(2, &options, FEW, 0, &second);
    assert_true(second.losses[2] == 0.0); /* it did start at step 3 */
    memcpy(second.losses, first.losses, 3 * sizeof(double));
    second.losses[2] = whole.losses[2];
    compare_losses(&whole, &second, FEW, 0.0, "resume");
    assert_memory_equal(whole.weights, second.weights, whole.count * sizeof(float));
    free(second.weights);

    /* The other device goes on from the same files. */
    (void)snprintf(flags, sizeof(flags), "--device cpu --resume %s/checkpoint/3", folder);
    options = make_options(data, flags);
    run_ranks(1, &options, FEW, 0, &second);
    assert_true(fabs(second.validation - whole.validation) < 2e-2 * whole.validation);
    free(second.weights);
    free(first.weights);
    free(whole.weights);
}

static gpt2_options_t whole_run(const char *data, const char *flags)
{
    char all[800];

    (void)snprintf(all, sizeof(all), "--device cuda --strategy single --steps 3 %s", flags);
    return make_options(data, all);
}

static int run_quietly(const gpt2_options_t *options)
{
    const int out = dup(STDOUT_FILENO);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    gpt2_strategy_t *strategy = NULL;
    int code;

    assert_true(out >= 0 && null >= 0);
    (void)fflush(stdout);
    (void)dup2(null, STDOUT_FILENO);
    assert_int_equal(gpt2_strategy_single.create(&strategy, &error), 0);
    code = gpt2_run(options, strategy, &error);
    (void)strategy->ops->destroy(strategy, &error);
    (void)fflush(stdout);
    (void)dup2(out, STDOUT_FILENO);
    (void)close(out);
    (void)close(null);
    return code;
}

/* The program's own loop: it logs, samples, exports what another run starts from, and saves. */
static void a_whole_run_samples_and_exports(void **state)
{
    const char *data = write_text();
    char flags[700];
    gpt2_options_t options;
    const char *model = scratch_path("model.bin");
    const float nan = NAN;
    FILE *file;

    (void)state;
    (void)snprintf(flags, sizeof(flags),
                   "--sample and --sample-tokens 4 --export %s --out %s --eval-every 2", model,
                   scratch_path("whole"));
    options = whole_run(data, flags);
    if (run_quietly(&options) != 0) fail_msg("%s", error.text);
    (void)snprintf(flags, sizeof(flags), "--init %s", model);
    options = whole_run(data, flags);
    if (run_quietly(&options) != 0) fail_msg("%s", error.text);

    /* A loss that is no number ends the run, one step later. */
    file = fopen(model, "r+be");
    assert_non_null(file);
    assert_int_equal(fseek(file, 1024, SEEK_SET), 0); /* the first weight, behind the header */
    assert_int_equal(fwrite(&nan, sizeof(nan), 1, file), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(run_quietly(&options), -1);
    if (strstr(error.text, "step 0: the loss is") == NULL) fail_msg("%s", error.text);
    assert_int_equal(cuda_double_live(), 0);
}

/* Alone it can be asked for; where it cannot be done the reason is told. */
static void an_early_head_is_a_choice(void **state)
{
    const char *data = write_text();
    threads_world_t *world = threads_world_create(1);
    gpt2_strategy_t *strategy = threads_strategy(world, 0, 0);
    gpt2_trainer_t *trainer = NULL;
    gpt2_options_t options = whole_run(data, "--head-early yes");

    (void)state;
    if (run_quietly(&options) != 0) fail_msg("%s", error.text);
    assert_int_equal(gpt2_trainer_create(&options, strategy, &trainer, &error), -1);
    if (strstr(error.text, "threads sends every gradient as a whole") == NULL) {
        fail_msg("%s", error.text);
    }
    options.device = (char *)(uintptr_t) "cpu";
    assert_int_equal(gpt2_trainer_create(&options, strategy, &trainer, &error), -1);
    if (strstr(error.text, "needs --device cuda, this is cpu") == NULL) fail_msg("%s", error.text);
    options.head_early = (char *)(uintptr_t) "perhaps";
    assert_int_equal(gpt2_trainer_create(&options, strategy, &trainer, &error), -1);
    if (strstr(error.text, "--head-early perhaps: no such choice") == NULL) {
        fail_msg("%s", error.text);
    }
    (void)strategy->ops->destroy(strategy, &error);
    threads_world_destroy(world);
    assert_int_equal(cuda_double_live(), 0);
}

static int setup(void **state)
{
    (void)state;
    cuda_double_reset();
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
        cmocka_unit_test_setup_teardown(steps_follow_the_cpu, setup, teardown),
        cmocka_unit_test_setup_teardown(lamb_follows_the_cpu, setup, teardown),
        cmocka_unit_test_setup_teardown(too_high_a_loss_scale_comes_down, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_train_alike, setup, teardown),
        cmocka_unit_test_setup_teardown(resumed_runs_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(a_whole_run_samples_and_exports, setup, teardown),
        cmocka_unit_test_setup_teardown(an_early_head_is_a_choice, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
