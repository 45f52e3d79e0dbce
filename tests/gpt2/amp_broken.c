/*
 * amp_broken.c - a rank of a run through libdp in which one gradient becomes Inf, in one step, on
 * the last rank alone. Every rank checks that it skips this step, and no other, leaves moments
 * and weights alone, and goes on with half the loss scale. amp.sh starts it under dprun:
 * amp_broken STRATEGY FLAGS...
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/train/trainer.h"

#define BROKEN_STEP 3
#define STEPS 8

static const gpt2_strategy_ops_t *real;
static gpt2_trainer_t *trainer;

/* The strategy's own, but for what one rank hands over in one step. */
static int broken_ready(gpt2_strategy_t *self, size_t first, size_t count, gpt2_error_t *error)
{
    gpt2_replica_t *replica = trainer->replica;

    if (self->rank == self->size - 1 && trainer->progress.step == BROKEN_STEP &&
        first + count == replica->layout->count) {
        replica->gradients[replica->layout->tensors[first].offset] = INFINITY;
    }
    return real->ready(self, first, count, error);
}

static int wrong(const char *what, int rank, uint64_t step)
{
    (void)fprintf(stderr, "rank %d, step %llu: %s\n", rank, (unsigned long long)step, what);
    return -1;
}

static int check_step(const gpt2_step_t *step, uint64_t at, double initial, int is_same, int rank)
{
    const int is_broken = at == BROKEN_STEP;

    if (step->skipped != is_broken) return wrong("skipped, or not, against the rule", rank, at);
    if (is_same != is_broken) return wrong("weights moved, or not, against the rule", rank, at);
    if (step->scale != (at <= BROKEN_STEP ? initial : initial / 2)) {
        return wrong("another loss scale", rank, at);
    }
    return 0;
}

static int run(const gpt2_options_t *options, gpt2_strategy_t *strategy, gpt2_error_t *error)
{
    float *before;
    size_t bytes;
    int code = 0;

    if (gpt2_trainer_create(options, strategy, &trainer, error) != 0) return -1;
    bytes = trainer->replica->layout->arena_count * sizeof(float);
    before = malloc(2 * bytes);
    if (before == NULL) return gpt2_fail(error, "out of memory");
    while (code == 0 && trainer->progress.step < STEPS) {
        const uint64_t at = trainer->progress.step;
        gpt2_step_t step;
        int same;

        memcpy(before, trainer->replica->weights, bytes);
        memcpy((char *)before + bytes, trainer->replica->m, bytes);
        code = gpt2_trainer_step(trainer, &step, error);
        if (code != 0) break;
        same = memcmp(before, trainer->replica->weights, bytes) == 0 &&
               memcmp((char *)before + bytes, trainer->replica->m, bytes) == 0;
        code = check_step(&step, at, trainer->precision.scale.initial, same, strategy->rank);
        if (code != 0) (void)gpt2_fail(error, "a check failed");
    }
    if (code == 0 && trainer->progress.updates != STEPS - 1) {
        code = gpt2_fail(error, "%llu updates", (unsigned long long)trainer->progress.updates);
    }
    free(before);
    gpt2_trainer_destroy(trainer);
    return code;
}

int main(int argc, char **argv)
{
    gpt2_error_t error = {""};
    gpt2_strategy_ops_t ops;
    gpt2_strategy_t *strategy;
    gpt2_options_t options;
    int code;

    if (argc < 2 || gpt2_options_parse(argc - 1, argv + 1, &options, &error) != 0) {
        (void)fprintf(stderr, "usage: amp_broken STRATEGY FLAGS: %s\n", error.text);
        return 2;
    }
    real = gpt2_strategy_find(argv[1], &error);
    if (real == NULL || real->create(&strategy, &error) != 0) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    ops = *real;
    ops.ready = broken_ready;
    strategy->ops = &ops;
    code = run(&options, strategy, &error);
    if (code != 0) (void)fprintf(stderr, "rank %d: %s\n", strategy->rank, error.text);
    if (code != 0) ops.abort(strategy, error.text);
    if (ops.destroy(strategy, &error) != 0) code = -1;
    return code == 0 ? 0 : 1;
}
