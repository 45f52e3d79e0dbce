/*
 * replica_cpu.c - the replica on this processor: model.h and optimizer.h behind the table.
 *
 * Everything has happened when a call returns, and what is borrowed is the replica itself.
 *
 * At level 2 of mixed precision passes read weights that are the model's rounded to 16 bits, and
 * gradients are rounded before they are handed over. The optimizer, checkpoints and the other ranks
 * see the model's arena, the masters. Numbers are emulated, memory is not saved: all of it is fp32.
 * Where ranks share the state out, a rank has masters of its parts alone, and what is gathered of
 * all ranks has 16 bits (supply_halves.h).
 */
#include "examples/gpt2/model/replica.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/model/supply_halves.h"

#define HALVES_PIECE 4096 /* elements that are rounded and packed at a time, on the stack */

typedef struct cpu {
    gpt2_replica_t base;
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    gpt2_outcome_t outcome; /* of the step so far */
    /* Level 2, else NULL: what rounds, and the arena of rounded weights; where weights are supplied
     * instead of it a supply that widens them. */
    void (*round)(float *out, const float *in, size_t count);
    float *rounded;
    gpt2_supply_halves_t *halves;
    int is_fp16;
} cpu_t;

/* ---- Level 2 of mixed precision ------------------------------------------------------------- */

/* Where passes find the weights. */
static void show_weights(const cpu_t *self, float *arena)
{
    for (size_t i = 0; i < self->model->layout->group_count; i++)
        self->model->weights_at[i] = arena + self->model->layout->groups[i].offset;
}

static void round_member(void *argument, int index, int members)
{
    const cpu_t *self = argument;
    size_t first;
    size_t last;

    gpt2_team_part(self->model->layout->arena_count, GPT2_VECTOR_ALIGN, index, members, &first,
                   &last);
    self->round(self->rounded + first, self->model->weights + first, last - first);
}

/* The masters were written. */
static void round_weights(cpu_t *self)
{
    if (self->rounded != NULL) gpt2_team_run(self->model->team, round_member, self);
}

/* The trainer's hooks, with gradients rounded before they are handed over. */
typedef struct rounding_hooks {
    const cpu_t *self;
    const gpt2_hooks_t *to; /* NULL: there are none */
} rounding_hooks_t;

static int round_ready(void *user, size_t first, size_t count)
{
    const rounding_hooks_t *hooks = user;
    const gpt2_model_t *model = hooks->self->model;

    for (size_t i = first; i < first + count; i++) {
        float *gradient = gpt2_model_gradient(model, i);

        hooks->self->round(gradient, gradient, model->layout->tensors[i].count);
    }
    if (hooks->to == NULL || hooks->to->ready == NULL) return 0;
    return hooks->to->ready(hooks->to->user, first, count);
}

static void pass_span_begin(void *user, const char *name)
{
    const rounding_hooks_t *hooks = user;

    if (hooks->to != NULL && hooks->to->span_begin != NULL) {
        hooks->to->span_begin(hooks->to->user, name);
    }
}

static void pass_span_end(void *user)
{
    const rounding_hooks_t *hooks = user;

    if (hooks->to != NULL && hooks->to->span_end != NULL) hooks->to->span_end(hooks->to->user);
}

/* The masters of a part were written: what other ranks get of them. */
static void round_part(const cpu_t *self, size_t group)
{
    const gpt2_part_t *part = &self->optimizer->parts[group];
    float piece[HALVES_PIECE];

    if (part->halves == NULL) return;
    for (size_t at = 0; at < part->count; at += HALVES_PIECE) {
        const size_t left = part->count - at;
        const size_t count = left < HALVES_PIECE ? left : HALVES_PIECE;

        self->round(piece, part->weights + at, count);
        gpt2_halves_pack(part->halves + at, piece, count, self->is_fp16);
    }
}

static int make_rounded(cpu_t *self, const char *precision, gpt2_error_t *error)
{
    const size_t bytes = self->model->layout->arena_count * sizeof(float);
    const gpt2_kernels_t *kernels = self->model->kernels;

    self->is_fp16 = strcmp(precision, "fp16") == 0;
    self->round = self->is_fp16 ? kernels->round_fp16 : kernels->round_bf16;
    if (self->model->options.is_supplied) return 0;
    self->rounded = aligned_alloc(256, bytes);
    if (self->rounded == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of rounded weights", bytes >> 20);
    }
    round_weights(self);
    show_weights(self, self->rounded);
    return 0;
}

/* ---- The table ------------------------------------------------------------------------------ */

static void cpu_destroy(gpt2_replica_t *base)
{
    cpu_t *self = (cpu_t *)base;

    gpt2_optimizer_destroy(self->optimizer);
    gpt2_supply_halves_destroy(self->halves); /* uses the model's layout */
    gpt2_model_destroy(self->model);
    free(self->rounded);
    free(self);
}

static void cpu_describe(const gpt2_replica_t *base, char *text, size_t room)
{
    const cpu_t *self = (const cpu_t *)base;
    const gpt2_model_t *model = self->model;
    const int threads = model->options.threads;

    (void)snprintf(text, room, "%d thread%s each, %s, products by %s%s", threads,
                   threads == 1 ? "" : "s", model->kernels->isa,
                   gpt2_gemm_name(model->gemm, model->kernels),
                   self->round == NULL ? "" : ", weights and gradients too");
}

static int cpu_supply(gpt2_replica_t *base, const gpt2_supply_t *supply, const gpt2_part_t *parts,
                      gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    if (parts[0].halves != NULL) {
        if (gpt2_supply_halves_create(supply, base->layout, self->is_fp16, &self->halves, error) !=
            0) {
            return -1;
        }
        supply = gpt2_supply_halves_get(self->halves);
    }
    gpt2_model_supply(self->model, supply);
    return gpt2_optimizer_divide(self->optimizer, self->model, parts, error);
}

static int cpu_draw(gpt2_replica_t *base, uint64_t seed, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    for (size_t i = 0; i < base->layout->group_count; i++) {
        const gpt2_part_t *part = &self->optimizer->parts[i];

        gpt2_model_init_part(self->model, seed, i, part->first, part->count, part->weights);
    }
    return 0;
}

/* -1 with the supply's reason where it stopped a pass. */
static int check_supply(const cpu_t *self, gpt2_error_t *error)
{
    if (!self->model->is_stopped) return 0;
    return gpt2_fail(error, "%s", self->model->supply->error->text);
}

static int borrow(gpt2_replica_t *base, int moments, gpt2_state_t *state, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    if (self->rounded != NULL) show_weights(self, self->model->weights);
    self->optimizer->updates = base->updates;
    *state = (gpt2_state_t){self->model, moments ? self->optimizer : NULL};
    return 0;
}

static int cpu_give_back(gpt2_replica_t *base, int changed, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    if (changed) base->updates = self->optimizer->updates;
    if (changed) round_weights(self);
    if (self->rounded != NULL) show_weights(self, self->rounded);
    return 0;
}

static int refresh(gpt2_replica_t *base, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;

    (void)error;
    round_weights(self);
    for (size_t i = 0; i < base->layout->group_count; i++)
        round_part(self, i);
    return 0;
}

static int cpu_checksum(gpt2_replica_t *self, uint64_t *value, gpt2_error_t *error)
{
    (void)error;
    *value = 0;
    for (size_t i = 0; i < self->layout->group_count; i++)
        *value += gpt2_part_hash(self->layout, i, &self->parts[i]);
    return 0;
}

static int train(gpt2_replica_t *base, const gpt2_batch_t *batch, float weight, int accumulate,
                 const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;
    rounding_hooks_t rounding = {self, hooks};
    const gpt2_hooks_t rounding_hooks = {&rounding, round_ready, pass_span_begin, pass_span_end};
    int code;

    if (self->round != NULL) hooks = &rounding_hooks;
    if (!accumulate) self->outcome = (gpt2_outcome_t){0};
    gpt2_model_forward(self->model, batch, hooks);
    self->outcome.loss_sum += gpt2_model_head(self->model, batch, 1, weight, accumulate, hooks);
    code = gpt2_model_backward(self->model, batch, accumulate, hooks); /* a hook has said why */
    return check_supply(self, error) != 0 ? -1 : code;
}

/* ---- A place of the mesh -------------------------------------------------------------------- */

/* -1 with the reducer's reason where it stopped a pass. */
static int check_reducer(const gpt2_replica_t *base, gpt2_error_t *error)
{
    const gpt2_model_t *model = ((const cpu_t *)base)->model;

    return model->is_stopped ? gpt2_fail(error, "%s", model->reducer->error->text) : 0;
}

static int stage_forward(gpt2_replica_t *base, const gpt2_batch_t *batch, int slot,
                         const gpt2_edges_t *edges, const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    const cpu_t *self = (const cpu_t *)base;

    gpt2_model_select(self->model, slot, edges);
    gpt2_model_forward(self->model, batch, hooks);
    return check_reducer(base, error);
}

static int stage_backward(gpt2_replica_t *base, const gpt2_batch_t *batch, int slot,
                          const gpt2_edges_t *edges, float weight, int accumulate,
                          const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;
    int code;

    if (!accumulate) self->outcome = (gpt2_outcome_t){0};
    if (!accumulate) gpt2_model_clear(self->model);
    gpt2_model_select(self->model, slot, edges);
    if (self->model->options.stage.has_head)
        self->outcome.loss_sum += gpt2_model_head(self->model, batch, 1, weight, accumulate, hooks);
    code = gpt2_model_backward(self->model, batch, accumulate, hooks); /* a hook has said why */
    return check_reducer(base, error) != 0 ? -1 : code;
}

static int stage_loss(gpt2_replica_t *base, const gpt2_batch_t *batch, double *loss_sum,
                      gpt2_error_t *error)
{
    *loss_sum = gpt2_model_head(((const cpu_t *)base)->model, batch, 0, 0.0f, 0, NULL);
    return check_reducer(base, error);
}

static void stage_join_lookups(gpt2_replica_t *base)
{
    gpt2_model_join_lookups(((cpu_t *)base)->model);
}

static void stage_reduce_by(gpt2_replica_t *base, const gpt2_reducer_t *reducer)
{
    gpt2_model_reduce_by(((cpu_t *)base)->model, reducer);
}

static const gpt2_stage_ops_t STAGE = {stage_forward, stage_backward, stage_loss,
                                       stage_join_lookups, stage_reduce_by};

static int evaluate(gpt2_replica_t *base, const gpt2_batch_t *batch, double *loss_sum,
                    gpt2_error_t *error)
{
    const cpu_t *self = (const cpu_t *)base;

    gpt2_model_forward(self->model, batch, NULL);
    *loss_sum = gpt2_model_head(self->model, batch, 0, 0.0f, 0, NULL);
    return check_supply(self, error);
}

static int logits(gpt2_replica_t *base, const gpt2_batch_t *batch, float *out, gpt2_error_t *error)
{
    const cpu_t *self = (const cpu_t *)base;

    gpt2_model_forward(self->model, batch, NULL);
    gpt2_model_logits(self->model, batch, out);
    return check_supply(self, error);
}

static int cpu_norm(gpt2_replica_t *base, double clip, double by, gpt2_sync_t *sync,
                    gpt2_error_t *error)
{
    double squares = gpt2_arena_sum_squares(((cpu_t *)base)->model, base->gradients);

    (void)error;
    *sync = (gpt2_sync_t){.norm = sqrt(squares) * by, .clip = by, .skip = !isfinite(squares)};
    if (clip > 0.0 && sync->norm > clip) sync->clip = by * (clip / sync->norm);
    return 0;
}

static int cpu_update(gpt2_replica_t *base, double learning_rate, const gpt2_sync_t *sync,
                      gpt2_error_t *error)
{
    cpu_t *self = (cpu_t *)base;
    const gpt2_supply_t *supply = self->model->supply;

    self->outcome.norm = sync->norm;
    self->outcome.skipped = sync->skip;
    if (sync->skip || base->is_follower) return 0;
    self->optimizer->updates = base->updates;
    if (gpt2_optimizer_begin(self->optimizer, self->model, learning_rate, sync->clip) != 0) {
        return gpt2_fail(error, "%s", supply->error->text);
    }
    for (size_t i = 0; i < base->layout->group_count; i++) {
        gpt2_optimizer_update_group(self->optimizer, self->model, i);
        round_part(self, i);
        if (supply != NULL && supply->after_update(supply->user, i) != 0) {
            return gpt2_fail(error, "%s", supply->error->text);
        }
    }
    round_weights(self);
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
    .supply = cpu_supply,
    .stage = &STAGE,
    .draw = cpu_draw,
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
        gpt2_optimizer_create(self->model, &options->optimizer, &self->optimizer, error) != 0 ||
        (options->level == 2 && make_rounded(self, options->precision, error) != 0)) {
        cpu_destroy(&self->base);
        return -1;
    }
    self->base.layout = self->model->layout;
    self->base.weights = self->model->weights;
    self->base.gradients = self->model->gradients;
    self->base.m = self->optimizer->m;
    self->base.v = self->optimizer->v;
    self->base.parts = self->optimizer->parts;
    self->base.room = options->model.batch;
    *out = &self->base;
    return 0;
}
