/*
 * compress_ranks.c [CASE [STRATEGY]] - one rank of a job that averages gradients of its own through
 * a strategy, compressed; compress.sh starts it under dprun. There is no model: a replica is two
 * arenas.
 *
 * It checks what a rank alone cannot: that all ranks get the same bits, that nothing is lost on the
 * way, that with nothing dropped the bits are those of libdp's average, and that an Inf or NaN of
 * one rank makes all of them skip and keep their residuals.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/base/random.h"
#include "examples/gpt2/strategy/strategy.h"

#define STEPS 6
#define ZERO 40 /* a step without a gradient */

static gpt2_error_t error;

static void fail(const gpt2_strategy_t *strategy, const char *what)
{
    (void)fprintf(stderr, "compress_ranks: rank %d: %s %s\n", strategy->rank, what, error.text);
    exit(1);
}

static void must(int code, const gpt2_strategy_t *strategy, const char *what)
{
    if (code != 0) fail(strategy, what);
}

/* A run: its strategy, and the replica it works on. */
typedef struct run {
    gpt2_strategy_t *strategy;
    gpt2_layout_t *layout;
    gpt2_replica_t replica;
    gpt2_strategy_settings_t settings;
    gpt2_extra_t extras[GPT2_EXTRAS_MAX];
    size_t extra_count;
} run_t;

static float *arena(const run_t *run)
{
    return calloc(run->layout->arena_count, sizeof(float));
}

/* Memory of the host, and its kernels. */
static const gpt2_replica_ops_t on_host = {.name = "host"};

static void attach(run_t *run, gpt2_compress_settings_t compress, int accumulate, double scale)
{
    gpt2_strategy_t *strategy = run->strategy;

    run->settings = (gpt2_strategy_settings_t){.wire = "none",
                                               .accumulate = accumulate,
                                               .clip = 1.0,
                                               .compress = compress,
                                               .scale = {scale, 3, 1}};
    run->replica = (gpt2_replica_t){
        .ops = &on_host,
        .layout = run->layout,
        .weights = arena(run),
        .gradients = strategy->ops->alloc(strategy, run->layout->arena_count * sizeof(float))};
    if (run->replica.weights == NULL || run->replica.gradients == NULL) fail(strategy, "memory");
    run->replica.weights[5] = (float)(1 + strategy->rank);
    must(strategy->ops->attach(strategy, &run->replica, &run->settings, &error), strategy,
         "attach");
    if (run->replica.weights[5] != 1.0f) fail(strategy, "the weights are not rank 0's");
    run->extra_count = strategy->ops->extra(strategy, run->extras, GPT2_EXTRAS_MAX);
}

/* Step ZERO has no gradient. */
static float gradient_of(int rank, uint64_t step, size_t i)
{
    if (step % 50 == ZERO) return 0.0f;
    return (float)gpt2_random_normal(3, 100 * step + (uint64_t)rank, i);
}

/* One step of gradients that every rank can work out; *bad is put into this rank's. */
static void run_step(run_t *run, uint64_t step, const float *bad, gpt2_sync_t *sync)
{
    gpt2_strategy_t *strategy = run->strategy;
    const gpt2_layout_t *layout = run->layout;

    strategy->ops->step_begin(strategy, step);
    for (int pass = 0; pass < run->settings.accumulate; pass++) {
        for (size_t i = 0; i < layout->count; i++) {
            const gpt2_tensor_t *tensor = &layout->tensors[i];
            float *to = run->replica.gradients + tensor->offset;

            for (size_t at = 0; at < tensor->count; at++) {
                const float own =
                    gradient_of(strategy->rank, step + 50 * (uint64_t)pass, tensor->offset + at);

                to[at] = (pass > 0 ? to[at] : 0.0f) + (float)strategy->scale.scale * own;
            }
        }
        if (bad != NULL) run->replica.gradients[layout->tensors[2].offset + 77] = *bad;
        must(strategy->ops->ready(strategy, 0, layout->count, &error), strategy, "ready");
    }
    must(strategy->ops->sync(strategy, sync, &error), strategy, "sync");
    must(strategy->ops->move_scale(strategy, sync->skip, &error), strategy, "move_scale");
    strategy->ops->step_end(strategy);
}

static void must_be_equal(const run_t *run, const char *what)
{
    const gpt2_layout_t *layout = run->layout;
    uint64_t hash = 0;
    int same;

    for (size_t i = 0; i < layout->count; i++) {
        hash = hash * 31 + gpt2_hash(run->replica.gradients + layout->tensors[i].offset,
                                     layout->tensors[i].count * sizeof(float));
    }
    must(run->strategy->ops->equal(run->strategy, hash, &same, &error), run->strategy, what);
    if (!same) fail(run->strategy, what);
}

/* Of each matrix something is applied in each step. */
static void must_have_something(const run_t *run)
{
    for (size_t i = 0; i < run->layout->count; i++) {
        const gpt2_tensor_t *tensor = &run->layout->tensors[i];
        const float *gradient = run->replica.gradients + tensor->offset;
        size_t at = 0;

        while (at < tensor->count && gradient[at] == 0.0f)
            at++;
        if (at < tensor->count) continue;
        (void)snprintf(error.text, sizeof(error.text), "%s", tensor->name);
        fail(run->strategy, "nothing was applied of");
    }
}

/* The contributions of all ranks up to this step, less what they still hold, equal what all
 * steps together have applied. */
static void check_sums(const run_t *run, const double *applied, uint64_t steps)
{
    const gpt2_layout_t *layout = run->layout;
    const float *residual = run->extras[0].data;
    double *sums = calloc(layout->arena_count, sizeof(double));
    double held[2] = {0.0, 0.0};
    double given = 0.0;

    if (sums == NULL) fail(run->strategy, "memory");
    for (size_t i = 0; i < layout->count; i++) {
        const size_t offset = layout->tensors[i].offset;

        for (size_t at = offset; at < offset + layout->tensors[i].count; at++) {
            for (uint64_t step = 0; step < steps; step++) {
                for (int pass = 0; pass < run->settings.accumulate; pass++) {
                    const uint64_t of = step + 50 * (uint64_t)pass;

                    held[0] += (double)gradient_of(run->strategy->rank, of, at) /
                               run->strategy->divisor * (double)(1 + at % 7);
                }
            }
            /* powersgd's residuals are of the average over passes */
            held[0] -=
                (double)residual[at] * (double)(1 + at % 7) /
                (strcmp(run->settings.compress.method, "topk") == 0 ? run->strategy->divisor
                                                                    : (double)run->strategy->size);
            given += applied[at] * (double)(1 + at % 7);
        }
    }
    must(run->strategy->ops->sum(run->strategy, held, 1, &error), run->strategy, "sum");
    if (fabs(held[0] - given) > 2e-3 * sqrt((double)layout->parameter_count)) {
        (void)snprintf(error.text, sizeof(error.text), "%.9g came in, %.9g was applied", held[0],
                       given);
        fail(run->strategy, "sums:");
    }
    free(sums);
}

/* Steps of which one has an Inf or a NaN, on the last rank only. */
static void check_method(run_t *run)
{
    static const float bad[] = {INFINITY, NAN};
    const size_t bytes = run->extras[0].bytes;
    double *applied = calloc(run->layout->arena_count, sizeof(double));
    float *before = arena(run);
    gpt2_sync_t sync;

    if (applied == NULL || before == NULL) fail(run->strategy, "memory");
    /* The first step sends no element, which must not stop what is sent later. */
    run_step(run, ZERO, NULL, &sync);
    if (sync.skip || sync.norm != 0.0) fail(run->strategy, "there was nothing to send");
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step == 2 || step == 3) {
            const int is_last = run->strategy->rank == run->strategy->size - 1;

            memcpy(before, run->extras[0].data, bytes);
            run_step(run, 90 + step, is_last ? &bad[step - 2] : NULL, &sync);
            if (!sync.skip) fail(run->strategy, "an Inf or a NaN was not noticed");
            if (memcmp(before, run->extras[0].data, bytes) != 0)
                fail(run->strategy, "a skipped step changed the residual");
        }
        run_step(run, step, NULL, &sync);
        if (sync.skip || !(sync.norm > 0.0)) fail(run->strategy, "a good step was skipped");
        if (fabs(sync.clip - fmin(1.0, 1.0 / sync.norm)) > 1e-12) fail(run->strategy, "clip");
        must_be_equal(run, "ranks have different gradients");
        must_have_something(run);
        for (size_t i = 0; i < run->layout->arena_count; i++)
            applied[i] += (double)run->replica.gradients[i];
    }
    /* Three good steps, an overflow, one, an overflow, three. */
    if (run->settings.scale.initial > 0.0 && run->strategy->scale.scale != 4096.0) {
        (void)snprintf(error.text, sizeof(error.text), "%g", run->strategy->scale.scale);
        fail(run->strategy, "a loss scale of 4096 ended as");
    }
    check_sums(run, applied, STEPS);
    free(applied);
    free(before);
}

/* No element is dropped, or compression has not begun: the bits of a sum in the order of the ranks.
 */
static void check_dense(run_t *run)
{
    const gpt2_layout_t *layout = run->layout;
    const int ranks = run->strategy->size;
    const float by = (float)(1.0 / run->settings.accumulate / ranks);
    gpt2_sync_t sync;

    for (uint64_t step = 0; step < 2; step++) {
        run_step(run, step, NULL, &sync);
        for (size_t i = 0; i < layout->count; i++) {
            const size_t offset = layout->tensors[i].offset;

            for (size_t at = offset; at < offset + layout->tensors[i].count; at++) {
                float sum = 0.0f;

                for (int rank = 0; rank < ranks; rank++) {
                    float own = 0.0f;

                    for (int pass = 0; pass < run->settings.accumulate; pass++)
                        own += gradient_of(rank, step + 50 * (uint64_t)pass, at);
                    sum = rank == 0 ? own : sum + own;
                }
                if (run->replica.gradients[at] == sum * by) continue;
                (void)snprintf(error.text, sizeof(error.text), "%s at %zu: %.9g, plain %.9g",
                               layout->tensors[i].name, at - offset,
                               (double)run->replica.gradients[at], (double)(sum * by));
                fail(run->strategy, "");
            }
        }
    }
}

int main(int argc, char **argv)
{
    const gpt2_shape_t shape = {100, 128, 16, 1, 2, 32};
    const gpt2_strategy_ops_t *ops = gpt2_strategy_find(argc > 2 ? argv[2] : NULL, &error);
    gpt2_compress_settings_t compress = {.rate = 0.9, .rank = 4, .seed = 1};
    const char *what = argc > 1 ? argv[1] : "powersgd";
    int accumulate = 2;
    run_t run = {0};

    if (ops == NULL || ops->create(&run.strategy, &error) != 0) {
        (void)fprintf(stderr, "compress_ranks: %s\n", error.text);
        return 1;
    }
    must(gpt2_layout_create(&shape, &run.layout, &error), run.strategy, "layout");
    compress.method =
        strcmp(what, "powersgd") == 0 || strcmp(what, "start") == 0 ? "powersgd" : "topk";
    if (strcmp(what, "momentum") == 0) compress.momentum = 1, compress.momentum_factor = 0.0;
    if (strcmp(what, "warmup") == 0) compress.warmup = 4;
    if (strcmp(what, "start") == 0) compress.start = 100;
    if (strcmp(what, "all") == 0) compress.rate = 0.0, accumulate = 1;
    attach(&run, compress, accumulate, strcmp(what, "scale") == 0 ? 4096.0 : 0.0);
    if (strcmp(what, "start") == 0 || strcmp(what, "all") == 0) {
        check_dense(&run);
    } else {
        check_method(&run);
    }
    run.strategy->ops->free(run.strategy, run.replica.gradients);
    must(ops->destroy(run.strategy, &error), run.strategy, "destroy");
    free(run.replica.weights);
    gpt2_layout_destroy(run.layout);
    return 0;
}
