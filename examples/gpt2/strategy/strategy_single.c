/*
 * strategy_single.c - one process that trains alone: the plain loop, and the control for every
 * claim about the others.
 */
#include "examples/gpt2/strategy/strategy.h"

#include <stdlib.h>
#include <string.h>

typedef struct single {
    gpt2_strategy_t base;
    gpt2_replica_t *replica; /* borrowed, from attach */
    gpt2_strategy_settings_t settings;
} single_t;

static int single_create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    single_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a strategy");
    self->base =
        (gpt2_strategy_t){.ops = &gpt2_strategy_single, .size = 1, .node_size = 1, .divisor = 1.0};
    *out = &self->base;
    return 0;
}

static int single_destroy(gpt2_strategy_t *self, gpt2_error_t *error)
{
    (void)error;
    free(self);
    return 0;
}

static void single_abort(gpt2_strategy_t *self, const char *reason)
{
    (void)self;
    (void)reason;
}

static int single_attach(gpt2_strategy_t *base, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    single_t *self = (single_t *)base;

    (void)error;
    self->replica = replica;
    self->settings = *settings;
    base->scale = gpt2_loss_scale_start(&settings->scale);
    return 0;
}

static int single_ready(gpt2_strategy_t *self, size_t first, size_t count, gpt2_error_t *error)
{
    (void)self;
    (void)first;
    (void)count;
    (void)error;
    return 0;
}

static int single_sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    single_t *self = (single_t *)base;

    return self->replica->ops->norm(self->replica, self->settings.clip, 1.0 / base->scale.scale,
                                    out, error);
}

static int single_move_scale(gpt2_strategy_t *base, int skipped, gpt2_error_t *error)
{
    (void)error;
    gpt2_loss_scale_move(&base->scale, &((single_t *)base)->settings.scale, skipped);
    return 0;
}

static int single_sum(gpt2_strategy_t *self, double *values, size_t count, gpt2_error_t *error)
{
    (void)self;
    (void)values;
    (void)count;
    (void)error;
    return 0;
}

static int single_equal(gpt2_strategy_t *self, uint64_t value, int *same, gpt2_error_t *error)
{
    (void)self;
    (void)value;
    (void)error;
    *same = 1;
    return 0;
}

static int single_broadcast(gpt2_strategy_t *self, int root, void *data, size_t bytes,
                            gpt2_error_t *error)
{
    (void)self;
    (void)root;
    (void)data;
    (void)bytes;
    (void)error;
    return 0;
}

static void single_step_begin(gpt2_strategy_t *self, uint64_t step)
{
    (void)self;
    (void)step;
}

static void single_span_begin(gpt2_strategy_t *self, const char *name, void *stream)
{
    (void)self;
    (void)name;
    (void)stream;
}

static void single_span_end(gpt2_strategy_t *self, void *stream)
{
    (void)self;
    (void)stream;
}

static void single_end(gpt2_strategy_t *self)
{
    (void)self;
}

static void single_traffic(gpt2_strategy_t *self, gpt2_traffic_t *out)
{
    (void)self;
    memset(out, 0, sizeof(*out));
}

static const char *single_setting(gpt2_strategy_t *self, const char *name)
{
    (void)self;
    (void)name;
    return NULL;
}

const gpt2_strategy_ops_t gpt2_strategy_single = {
    .name = "single",
    .takes_rows = 1,
    .create = single_create,
    .destroy = single_destroy,
    .abort = single_abort,
    .attach = single_attach,
    .ready = single_ready,
    .sync = single_sync,
    .move_scale = single_move_scale,
    .sum = single_sum,
    .equal = single_equal,
    .broadcast = single_broadcast,
    .step_begin = single_step_begin,
    .step_end = single_end,
    .span_begin = single_span_begin,
    .span_end = single_span_end,
    .traffic = single_traffic,
    .setting = single_setting,
};
