/*
 * trainer_evaluate.c - what ranks find out together between steps: losses, and whether their
 * weights are equal. Main thread only; collective.
 */
#include "examples/gpt2/train/trainer.h"

#include <stdlib.h>

int gpt2_trainer_mean(gpt2_trainer_t *self, gpt2_step_t *step, double *loss, gpt2_error_t *error)
{
    double sums[2];

    if (gpt2_trainer_settle(self, step, error) != 0) return -1;
    sums[0] = step->loss_sum;
    sums[1] = step->tokens;
    if (self->strategy->ops->sum(self->strategy, sums, 2, error) != 0) return -1;
    *loss = sums[0] / sums[1];
    return 0;
}

/* Passes over `own` sequences of `total`. Where passes fetch weights from other ranks, all ranks
 * make as many as the one with the most sequences, some of them empty. */
static uint64_t passes_of(const gpt2_trainer_t *self, uint64_t total, uint64_t own)
{
    const uint64_t size = (uint64_t)self->strategy->size;
    const uint64_t room = (uint64_t)self->replica->room;
    const uint64_t most = self->shard == GPT2_SHARD_NONE ? own : (total + size - 1) / size;

    return (most + room - 1) / room;
}

int gpt2_trainer_validate(gpt2_trainer_t *self, double *loss, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_mesh_t *mesh = &strategy->mesh;
    int seq = (int)self->options->seq;
    int room = self->replica->room;
    uint64_t total = (uint64_t)(self->options->eval_batches * self->options->batch);
    uint64_t there = self->corpus.validation.count - (uint64_t)seq; /* places to start at */
    uint64_t first;
    uint64_t last;
    uint64_t passes;
    double sums[2] = {0.0, 0.0};

    if (gpt2_trainer_settle(self, NULL, error) != 0) return -1; /* its time is the step's */
    if (total > there) total = there;
    gpt2_share(total, (uint64_t)mesh->at[GPT2_AXIS_DATA], (uint64_t)mesh->size[GPT2_AXIS_DATA],
               &first, &last);
    strategy->ops->span_begin(strategy, "validation", self->replica->stream);
    passes = passes_of(self, total, last - first);
    for (uint64_t pass = 0; pass < passes; pass++) {
        gpt2_batch_t batch = {self->inputs, self->targets, room, seq};
        double sum;

        if (last - first < (uint64_t)room) batch.count = (int)(last - first);
        if (gpt2_view_validation(&self->corpus.validation, seq, total, first, batch.count,
                                 self->inputs, self->targets, error) != 0) {
            return -1;
        }
        if ((mesh->is_staged
                 ? strategy->ops->evaluate(strategy, &batch, &sum, error)
                 : self->replica->ops->evaluate(self->replica, &batch, &sum, error)) != 0) {
            return -1;
        }
        sums[0] += sum;
        if (gpt2_mesh_has_loss(mesh)) sums[1] += (double)batch.count * seq;
        first += (uint64_t)batch.count;
    }
    strategy->ops->span_end(strategy, self->replica->stream);
    if (strategy->ops->sum(strategy, sums, 2, error) != 0) return -1;
    *loss = sums[0] / sums[1];
    return 0;
}

/* Ranks begin a step together, so the longest time in passes() is how long all of them had. */
int gpt2_trainer_waits(gpt2_trainer_t *self, gpt2_waits_t *parts, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const size_t ranks = (size_t)strategy->size;
    double *totals; /* [ranks], and behind them the seconds of passes, and of waiting for sums */
    gpt2_waits_t waits;
    int code;

    *parts = (gpt2_waits_t){0};
    if (!strategy->mesh.is_staged) return 0;
    totals = calloc(ranks + 2, sizeof(*totals));
    if (totals == NULL) return gpt2_fail(error, "out of memory for %zu ranks' times", ranks);
    strategy->ops->waits(strategy, &waits);
    totals[strategy->rank] = waits.total;
    totals[ranks] = waits.total - waits.bubble;
    totals[ranks + 1] = waits.sums;
    code = strategy->ops->sum(strategy, totals, ranks + 2, error);
    for (size_t i = 0; i < ranks; i++)
        parts->total = totals[i] > parts->total ? totals[i] : parts->total;
    if (parts->total > 0.0) {
        parts->bubble = 1.0 - totals[ranks] / (parts->total * (double)ranks);
        parts->sums = totals[ranks + 1] / (parts->total * (double)ranks);
    }
    free(totals);
    return code;
}

int gpt2_trainer_hash(gpt2_trainer_t *self, uint64_t *hash, gpt2_error_t *error)
{
    if (self->is_divided) {
        return self->strategy->ops->hash(self->strategy, hash, error);
    }
    return self->replica->ops->checksum(self->replica, hash, error);
}

int gpt2_trainer_compare(gpt2_trainer_t *self, int *same, gpt2_error_t *error)
{
    uint64_t hash;

    /* A GPU may still be updating rows. */
    if (gpt2_trainer_settle(self, NULL, error) != 0) return -1;
    if (self->is_divided) {
        return self->strategy->ops->compare(self->strategy, same, error);
    }
    if (gpt2_trainer_hash(self, &hash, error) != 0) return -1;
    return self->strategy->ops->equal(self->strategy, hash, same, error);
}
