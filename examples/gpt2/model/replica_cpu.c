/*
 * replica_cpu.c - the replica on this processor: model.h and optimizer.h behind the table.
 *
 * Everything has happened when a call returns, and what is borrowed is the replica itself.
 */
#include "examples/gpt2/model/replica.h"

#include <math.h>
#include <stdlib.h>

#include "examples/gpt2/base/hash.h"

typedef struct cpu {
    gpt2_replica_t base;
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    gpt2_outcome_t outcome; /* of the step so far */
} cpu_t;

static void cpu_destroy(gpt2_replica_t *base)
{
    cpu_t *self = (cpu_t *)base;

    gpt2_optimizer_destroy(self->optimizer);
    gpt2_model_destroy(self->model);
    free(self);
}

static void cpu_describe(const gpt2_replica_t *base, char *text, size_t room)
{
    const gpt2_model_t *model = ((const cpu_t *)base)->model;
    const int threads = model->options.threads;

    (void)snprintf(text, room, "%d thread%s each, %s, products by %s", threads,
                   threads == 1 ? "" : "s", model->kernels->isa,
                   gpt2_gemm_name(model->gemm, model->kernels));
}

static int borrow(gpt2_replica_t *base, int moments, gpt2_state_t *state, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    self->optimizer->updates = base->updates;
    *state = (gpt2_state_t){self->model, moments ? self->optimizer : NULL};
    return 0;
}

static int cpu_give_back(gpt2_replica_t *base, int changed, gpt2_error_t *error)
{
    (void)error;
    if (changed) base->updates = ((cpu_t *)base)->optimizer->updates;
    return 0;
}

static int refresh(gpt2_replica_t *self, gpt2_error_t *error)
{
    (void)self;
    (void)error;
    return 0;
}

static int cpu_checksum(gpt2_replica_t *self, uint64_t *value, gpt2_error_t *error)
{
    (void)error;
    *value = gpt2_hash(self->weights, self->layout->arena_count * sizeof(float));
    return 0;
}

static int train(gpt2_replica_t *base, const gpt2_batch_t *batch, float weight, int accumulate,
                 const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error; /* a hook has said why */
    if (!accumulate) self->outcome = (gpt2_outcome_t){0};
    gpt2_model_forward(self->model, batch, hooks);
    self->outcome.loss_sum += gpt2_model_head(self->model, batch, 1, weight, accumulate, hooks);
    return gpt2_model_backward(self->model, batch, accumulate, hooks);
}

static int evaluate(gpt2_replica_t *base, const gpt2_batch_t *batch, double *loss_sum,
                    gpt2_error_t *error)
{
    gpt2_model_t *model = ((cpu_t *)base)->model;

    (void)error;
    gpt2_model_forward(model, batch, NULL);
    *loss_sum = gpt2_model_head(model, batch, 0, 0.0f, 0, NULL);
    return 0;
}

static int logits(gpt2_replica_t *base, const gpt2_batch_t *batch, float *out, gpt2_error_t *error)
{
    gpt2_model_t *model = ((cpu_t *)base)->model;

    (void)error;
    gpt2_model_forward(model, batch, NULL);
    gpt2_model_logits(model, batch, out);
    return 0;
}

static int cpu_norm(gpt2_replica_t *base, double clip, gpt2_sync_t *sync, gpt2_error_t *error)
{
    double squares = gpt2_arena_sum_squares(((cpu_t *)base)->model, base->gradients);

    (void)error;
    *sync = (gpt2_sync_t){.norm = sqrt(squares), .clip = 1.0, .skip = !isfinite(squares)};
    if (clip > 0.0 && sync->norm > clip) sync->clip = clip / sync->norm;
    return 0;
}

static int cpu_update(gpt2_replica_t *base, double learning_rate, const gpt2_sync_t *sync,
                      gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    self->outcome.norm = sync->norm;
    self->outcome.skipped = sync->skip;
    if (sync->skip || base->is_follower) return 0;
    self->optimizer->updates = base->updates;
    gpt2_optimizer_update(self->optimizer, self->model, learning_rate, sync->clip);
    return 0;
}

static int cpu_settle(gpt2_replica_t *base, gpt2_outcome_t *outcome, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    *outcome = self->outcome;
    if (!outcome->skipped) base->updates++;
    return 0;
}

static const gpt2_replica_ops_t OPS = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .describe = cpu_describe,
    .borrow = borrow,
    .give_back = cpu_give_back,
    .refresh = refresh,
    .checksum = cpu_checksum,
    .train = train,
    .evaluate = evaluate,
    .logits = logits,
    .norm = cpu_norm,
    .update = cpu_update,
    .settle = cpu_settle,
};

int gpt2_replica_cpu_create(const gpt2_replica_options_t *options, gpt2_replica_t **out,
                            gpt2_error_t *error)
{
    cpu_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a replica");
    self->base.ops = &OPS;
    self->base.settings = options->optimizer;
    if (gpt2_model_create(&options->model, &self->model, error) != 0 ||
        gpt2_optimizer_create(self->model, &options->optimizer, &self->optimizer, error) != 0) {
        cpu_destroy(&self->base);
        return -1;
    }
    self->base.layout = self->model->layout;
    self->base.weights = self->model->weights;
    self->base.gradients = self->model->gradients;
    self->base.m = self->optimizer->m;
    self->base.v = self->optimizer->v;
    self->base.room = options->model.batch;
    *out = &self->base;
    return 0;
}
