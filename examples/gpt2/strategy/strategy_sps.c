/*
 * strategy_sps.c - one parameter server: gradients are reduced to rank 0 while backward runs, rank
 * 0 alone updates, and broadcasts the weights.
 *
 * The classic scheme, and a control: it moves as many bytes as an all-reduce but has one rank send
 * the second half of them, after an update that all others wait for. The average that rank 0 gets
 * has the same bits as that of strategy_coordinator.c, and so have the weights.
 */
#include "examples/gpt2/strategy/strategy_dp.h"

#include <math.h>
#include <stdlib.h>

#define SERVER 0

typedef struct sps {
    gpt2_dp_t dp;
    gpt2_replica_t *replica; /* borrowed, from attach */
    gpt2_strategy_settings_t settings;
    dp_handle_t **handles; /* [layout->count] in flight */
    int *readies;          /* [layout->count] since the last sync */
} sps_t;

static int sps_create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    sps_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a strategy");
    if (gpt2_dp_join(&self->dp, &gpt2_strategy_sps, DP_ORDER_DEFAULT, error) != 0) {
        free(self);
        return -1;
    }
    self->dp.base.is_follower = self->dp.base.rank != SERVER;
    *out = &self->dp.base;
    return 0;
}

static int sps_destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    sps_t *self = (sps_t *)base;
    const int code = gpt2_dp_leave(&self->dp, error); /* and with it the handles */

    free(self->handles);
    free(self->readies);
    free(self);
    return code;
}

/* Broadcasts the server's weights to all ranks. */
static int sps_publish(gpt2_strategy_t *base, gpt2_error_t *error)
{
    sps_t *self = (sps_t *)base;
    gpt2_replica_t *replica = self->replica;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    options.stream = replica->stream;
    status =
        dp_broadcast(dp_world(self->dp.context), "gpt2.weights", replica->weights, replica->weights,
                     replica->layout->arena_count, DP_F32, SERVER, &options, &handle);

    return gpt2_dp_finish(&self->dp, "broadcast of the weights", status, handle, error);
}

static int sps_attach(gpt2_strategy_t *base, gpt2_replica_t *replica,
                      const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    sps_t *self = (sps_t *)base;
    const size_t count = replica->layout->count;

    self->replica = replica;
    self->settings = *settings;
    self->handles = calloc(count, sizeof(dp_handle_t *));
    self->readies = calloc(count, sizeof(*self->readies));
    if (self->handles == NULL || self->readies == NULL) {
        return gpt2_fail(error, "out of memory for %zu tensors", count);
    }
    base->divisor = (double)base->size * (double)settings->accumulate;
    base->scale = gpt2_loss_scale_start(&settings->scale);
    return sps_publish(base, error);
}

/* Starts the reduction of one gradient to the server, where the average replaces its own. */
static int reduce_to_server(sps_t *self, size_t index, gpt2_error_t *error)
{
    const gpt2_tensor_t *tensor = &self->replica->layout->tensors[index];
    float *gradient = self->replica->gradients + tensor->offset;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;

    options.reduce = DP_AVERAGE;
    options.wire = gpt2_dp_wire(self->settings.wire);
    options.postscale = 1.0 / (self->settings.accumulate * self->dp.base.scale.scale);
    options.stream = self->replica->stream;
    status = dp_reduce(dp_world(self->dp.context), tensor->name, gradient,
                       self->dp.base.rank == SERVER ? gradient : NULL, tensor->count, DP_F32,
                       SERVER, &options, &self->handles[index]);
    return status == DP_OK ? 0 : gpt2_dp_failed(&self->dp, "dp_reduce", status, error);
}

static int sps_ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    sps_t *self = (sps_t *)base;

    for (size_t i = first; i < first + count; i++) {
        if (++self->readies[i] < self->settings.accumulate) continue;
        if (reduce_to_server(self, i, error) != 0) return -1;
    }
    return 0;
}

static int sps_sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    sps_t *self = (sps_t *)base;
    dp_status_t status = DP_OK;
    uint64_t nonfinite = 0;
    double squares = 0.0;

    for (size_t i = 0; i < self->replica->layout->count; i++) {
        dp_result_t result = DP_RESULT_INIT; /* its figures are known on all ranks */
        dp_status_t waited = dp_wait(self->handles[i], -1.0, &result);

        self->handles[i] = NULL;
        self->readies[i] = 0;
        if (status == DP_OK) status = waited;
        squares += result.sum_squares;
        nonfinite += result.nonfinite;
    }
    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_reduce", status, error);
    *out = (gpt2_sync_t){.skip = nonfinite != 0};
    out->norm = out->skip ? (double)INFINITY : sqrt(squares);
    out->clip = self->settings.clip > 0.0 && out->norm > self->settings.clip
                    ? self->settings.clip / out->norm
                    : 1.0;
    return 0;
}

/* The figures of a reduction are equal on all ranks, so all move alike. */
static int sps_move_scale(gpt2_strategy_t *base, int skipped, gpt2_error_t *error)
{
    (void)error;
    gpt2_loss_scale_move(&base->scale, &((sps_t *)base)->settings.scale, skipped);
    return 0;
}

const gpt2_strategy_ops_t gpt2_strategy_sps = {
    .name = "sps",
    .create = sps_create,
    .destroy = sps_destroy,
    .abort = gpt2_dp_abort,
    .alloc = gpt2_dp_alloc,
    .free = gpt2_dp_free,
    .attach = sps_attach,
    .ready = sps_ready,
    .sync = sps_sync,
    .move_scale = sps_move_scale,
    .publish = sps_publish,
    .sum = gpt2_dp_sum,
    .equal = gpt2_dp_equal,
    .broadcast = gpt2_dp_broadcast,
    .step_begin = gpt2_dp_step_begin,
    .step_end = gpt2_dp_step_end,
    .span_begin = gpt2_dp_span_begin,
    .span_end = gpt2_dp_span_end,
    .traffic = gpt2_dp_traffic,
    .setting = gpt2_dp_setting,
};
