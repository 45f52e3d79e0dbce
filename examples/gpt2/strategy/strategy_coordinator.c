/*
 * strategy_coordinator.c - data parallelism through libdp: gradients travel while backward runs.
 *
 * The whole of what a training program needs from dp.h: dp_gradients_create() when the model
 * exists, dp_gradients_ready() as backward finishes tensors, dp_gradients_sync() before the update.
 *
 * "coordinator" lets ranks agree on the order of launches. "dps" (static buckets in program order)
 * has libdp launch gradients in the order in which each rank's backward pass hands them over,
 * without any agreement: that is what most data-parallel trainers do, and the control for every
 * claim about the coordinator.
 */
#include "examples/gpt2/strategy/strategy_dp.h"
#include "examples/gpt2/strategy/compress.h"
#include "examples/gpt2/strategy/pipeline.h"
#include "examples/gpt2/strategy/sharding.h"

#include <stdlib.h>
#include <string.h>

typedef struct coordinator {
    gpt2_dp_t dp;
    /* one of four */
    dp_gradients_t *gradients;
    gpt2_compress_t *compress; /* they travel compressed */
    gpt2_sharding_t *sharding; /* ranks share the state out */
    gpt2_pipeline_t *pipeline; /* ranks are stages, or have slices */
    gpt2_replica_t *replica;   /* borrowed, from attach */
    gpt2_strategy_settings_t settings;
    dp_handle_t *rows; /* in flight; NULL: they are not */
    int row_readies;   /* since the last sync */
    /* the last sync's rows, where they must complete before the next are submitted; see dp.h,
     * DP_ORDER_PROGRAM */
    dp_handle_t *last_rows;
    int rows_follow;
} coordinator_t;

static int create(const gpt2_strategy_ops_t *ops, dp_order_t order, gpt2_strategy_t **out,
                  gpt2_error_t *error)
{
    coordinator_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a strategy");
    if (gpt2_dp_join(&self->dp, ops, order, error) != 0) {
        free(self);
        return -1;
    }
    *out = &self->dp.base;
    return 0;
}

static int coordinator_create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    return create(&gpt2_strategy_coordinator, DP_ORDER_DEFAULT, out, error);
}

static int dps_create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    return create(&gpt2_strategy_dps, DP_ORDER_PROGRAM, out, error);
}

static int coordinator_destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    int code;

    dp_release(self->last_rows);
    dp_gradients_destroy(self->gradients);
    gpt2_compress_destroy(self->compress);
    gpt2_sharding_destroy(self->sharding);
    gpt2_pipeline_destroy(self->pipeline);
    code = gpt2_dp_leave(&self->dp, error);
    free(self);
    return code;
}

/* The position of the replica's gradient `index` in libdp's list. Where looked-up rows are
 * reduced apart, the tied embedding's gradient is ready first, and so it is the list's first. */
static size_t list_index(const gpt2_replica_t *replica, size_t index)
{
    if (replica->rows == NULL) return index;
    return index == gpt2_layout_wte(replica->layout) ? 0 : index + 1;
}

static int is_set(const coordinator_t *self, const char *setting, const char *value)
{
    const char *found = dp_setting(self->dp.context, setting);

    return found != NULL && strcmp(found, value) == 0;
}

static int coordinator_attach(gpt2_strategy_t *base, gpt2_replica_t *replica,
                              const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    const gpt2_layout_t *layout = replica->layout;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_status_t status;
    dp_gradient_t *tensors;

    base->divisor = (double)base->size * (double)settings->accumulate;
    base->scale = gpt2_loss_scale_start(&settings->scale);
    if (base->mesh.is_staged) {
        base->divisor = 1.0; /* sums on every axis */
        return gpt2_pipeline_create(&self->dp, replica, settings, &self->pipeline, error);
    }
    if (gpt2_compress_find(settings->compress.method) != NULL) {
        return gpt2_compress_create(&self->dp, replica, settings, &self->compress, error);
    }
    if (settings->shard != GPT2_SHARD_NONE) {
        return gpt2_sharding_create(&self->dp, replica, settings, &self->sharding, error);
    }
    tensors = calloc(layout->count, sizeof(*tensors));
    if (tensors == NULL) return gpt2_fail(error, "out of memory for %zu tensors", layout->count);
    for (size_t i = 0; i < layout->count; i++) {
        tensors[list_index(replica, i)] =
            (dp_gradient_t){.name = layout->tensors[i].name,
                            .weight = replica->weights + layout->tensors[i].offset,
                            .gradient = replica->gradients + layout->tensors[i].offset,
                            .count = layout->tensors[i].count,
                            .dtype = DP_F32};
    }
    self->replica = replica;
    self->settings = *settings;
    options.wire = gpt2_dp_wire(settings->wire);
    self->rows_follow = is_set(self, "ORDER", "program") &&
                        (options.wire == DP_WIRE_FP16 ||
                         (options.wire == DP_WIRE_DEFAULT && is_set(self, "WIRE", "fp16")));
    options.accumulation_steps = settings->accumulate;
    options.clip_norm = settings->clip;
    options.initial_loss_scale = settings->scale.initial;
    options.growth_interval = settings->scale.growth_interval;
    options.hysteresis = settings->scale.hysteresis;
    status =
        dp_gradients_create(self->dp.context, tensors, layout->count, &options, &self->gradients);
    free(tensors);
    return status == DP_OK ? 0 : gpt2_dp_failed(&self->dp, "dp_gradients_create", status, error);
}

/* libdp has moved it already, from averages that are equal on all ranks. It does not know of
 * compressed gradients, for which all ranks have skipped alike. */
static int coordinator_move_scale(gpt2_strategy_t *base, int skipped, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    dp_status_t status;

    if (self->compress != NULL) {
        gpt2_loss_scale_move(&base->scale, &self->compress->settings.scale, skipped);
        return 0;
    }
    status = self->sharding == NULL ? dp_gradients_loss_scale_get(self->gradients, &state)
                                    : gpt2_sharding_get_scale(self->sharding, &state);
    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "the loss scale", status, error);
    base->scale = (gpt2_loss_scale_t){state.scale, state.good_steps, state.hysteresis_left};
    return 0;
}

static int coordinator_set_scale(gpt2_strategy_t *base, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    dp_status_t status;

    if (self->compress != NULL) return 0;
    state.scale = base->scale.scale;
    state.good_steps = base->scale.good_steps;
    state.hysteresis_left = base->scale.hysteresis_left;
    status = self->sharding == NULL ? dp_gradients_loss_scale_set(self->gradients, &state)
                                    : gpt2_sharding_set_scale(self->sharding, &state);
    return status == DP_OK ? 0 : gpt2_dp_failed(&self->dp, "the loss scale", status, error);
}

/* The number of looked-up rows differs from step to step, so they cannot be an entry of libdp's
 * list and travel as an allreduce of their own. The replica adds their norm after the sync. */
static int rows_ready(coordinator_t *self, gpt2_error_t *error)
{
    gpt2_replica_t *replica = self->replica;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;

    if (++self->row_readies < self->settings.accumulate) return 0;
    if (self->last_rows != NULL) {
        dp_handle_t *last = self->last_rows;

        self->last_rows = NULL;
        if (gpt2_dp_finish(&self->dp, "wte.rows", DP_OK, last, error) != 0) return -1;
    }
    options.reduce = DP_AVERAGE;
    options.wire = gpt2_dp_wire(self->settings.wire);
    options.postscale = 1.0 / self->settings.accumulate;
    options.stream = replica->stream;
    status = dp_allreduce(dp_world(self->dp.context), "wte.rows", replica->rows, replica->rows,
                          replica->row_count * (size_t)replica->layout->shape.width, DP_F32,
                          &options, &self->rows);
    return status == DP_OK ? 0 : gpt2_dp_failed(&self->dp, "dp_allreduce", status, error);
}

static int coordinator_ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    if (self->compress != NULL) return gpt2_compress_ready(self->compress, first, count, error);
    if (self->sharding != NULL) return gpt2_sharding_ready(self->sharding, first, count, error);
    if (self->pipeline != NULL)
        return gpt2_stage_sums_ready(gpt2_pipeline_sums(self->pipeline), first, count, error);
    if (first == self->replica->layout->count) return rows_ready(self, error);

    for (size_t i = first; i < first + count; i++) {
        dp_status_t status = dp_gradients_ready(self->gradients, list_index(self->replica, i),
                                                self->replica->stream);

        if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_ready", status, error);
    }
    return 0;
}

/* On a GPU norm, clip and skip stay in device memory for the optimizer's kernel, and this thread
 * does not wait for them. */
static int sync_on_device(coordinator_t *self, gpt2_sync_t *out, gpt2_error_t *error)
{
    dp_device_result_t result = DP_DEVICE_RESULT_INIT;
    dp_status_t status;

    /* Before the sync, which decides on the stream behind it whether an update is to be skipped. */
    if (self->rows != NULL) {
        status = dp_stream_wait(self->rows, self->replica->stream, -1.0);
        if (self->rows_follow) {
            self->last_rows = self->rows;
        } else {
            dp_release(self->rows);
        }
        self->rows = NULL;
        self->row_readies = 0;
        if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_stream_wait", status, error);
    }
    status = dp_gradients_sync_on(self->gradients, self->replica->stream, &result);
    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_sync_on", status, error);
    *out = (gpt2_sync_t){.clip = 1.0,
                         .device_norm = result.norm,
                         .device_clip = result.clip_coef,
                         .device_skip = result.skip};
    if (self->replica->rows == NULL) return 0;
    return self->replica->ops->join(self->replica, self->settings.clip, out, error);
}

static int coordinator_sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status;

    if (self->compress != NULL) return gpt2_compress_sync(self->compress, out, error);
    if (self->sharding != NULL) return gpt2_sharding_sync(self->sharding, out, error);
    if (self->pipeline != NULL)
        return gpt2_stage_sums_sync(gpt2_pipeline_sums(self->pipeline), out, error);
    if (self->replica->stream != NULL) return sync_on_device(self, out, error);
    status = dp_gradients_sync(self->gradients, &result);

    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_sync", status, error);
    *out = (gpt2_sync_t){.norm = result.norm, .clip = result.clip_coef, .skip = result.skip};
    return 0;
}

static size_t coordinator_extra(gpt2_strategy_t *base, gpt2_extra_t *list, size_t room)
{
    coordinator_t *self = (coordinator_t *)base;

    return self->compress == NULL ? 0 : gpt2_compress_extra(self->compress, list, room);
}

static int coordinator_move_extra(gpt2_strategy_t *base, int is_loaded, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    return self->compress == NULL ? 0 : gpt2_compress_move_extra(self->compress, is_loaded, error);
}

static void coordinator_describe(gpt2_strategy_t *base, char *text, size_t room)
{
    const coordinator_t *self = (const coordinator_t *)base;

    text[0] = '\0';
    if (self->compress != NULL) gpt2_compress_describe(self->compress, text, room);
    if (self->sharding != NULL) gpt2_sharding_describe(self->sharding, text, room);
    if (self->pipeline != NULL) gpt2_pipeline_describe(self->pipeline, text, room);
}

static int coordinator_passes(gpt2_strategy_t *base, const gpt2_batch_t *batches, float weight,
                              const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    return gpt2_pipeline_passes(((coordinator_t *)base)->pipeline, batches, weight, hooks, error);
}

static int coordinator_evaluate(gpt2_strategy_t *base, const gpt2_batch_t *batch, double *loss_sum,
                                gpt2_error_t *error)
{
    return gpt2_pipeline_evaluate(((coordinator_t *)base)->pipeline, batch, loss_sum, error);
}

static void coordinator_waits(gpt2_strategy_t *base, gpt2_waits_t *waits)
{
    gpt2_pipeline_waits(((coordinator_t *)base)->pipeline, waits);
}

static int coordinator_collect(gpt2_strategy_t *base, gpt2_arena_t arena, size_t group,
                               const float **data, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    if (self->pipeline != NULL) {
        return gpt2_stage_state_collect(gpt2_pipeline_state(self->pipeline), arena, group, data,
                                        error);
    }
    return gpt2_sharding_collect(self->sharding, arena, group, data, error);
}

static void coordinator_end_collect(gpt2_strategy_t *base)
{
    coordinator_t *self = (coordinator_t *)base;

    if (self->pipeline != NULL) gpt2_stage_state_end_collect(gpt2_pipeline_state(self->pipeline));
    if (self->sharding != NULL) gpt2_sharding_end_collect(self->sharding);
}

static int coordinator_distribute(gpt2_strategy_t *base, gpt2_arena_t arena, size_t group,
                                  const float *data, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    if (self->pipeline != NULL) {
        return gpt2_stage_state_distribute(gpt2_pipeline_state(self->pipeline), arena, group, data,
                                           error);
    }
    return gpt2_sharding_distribute(self->sharding, arena, group, data, error);
}

static int coordinator_hash(gpt2_strategy_t *base, uint64_t *hash, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    return self->pipeline != NULL
               ? gpt2_stage_state_hash(gpt2_pipeline_state(self->pipeline), hash, error)
               : gpt2_sharding_hash(self->sharding, hash, error);
}

static int coordinator_compare(gpt2_strategy_t *base, int *same, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    return self->pipeline != NULL
               ? gpt2_stage_state_compare(gpt2_pipeline_state(self->pipeline), same, error)
               : gpt2_sharding_compare(self->sharding, same, error);
}

/* Both strategies, but for their names and orders. */
#define STRATEGY(called, makes)                                                                    \
    {                                                                                              \
        .name = (called), .takes_rows = 1, .can_shard = 1, .can_compress = 1, .can_stage = 1,      \
        .create = (makes), .destroy = coordinator_destroy, .abort = gpt2_dp_abort,                 \
        .alloc = gpt2_dp_alloc, .free = gpt2_dp_free, .attach = coordinator_attach,                \
        .ready = coordinator_ready, .sync = coordinator_sync, .collect = coordinator_collect,      \
        .end_collect = coordinator_end_collect, .distribute = coordinator_distribute,              \
        .passes = coordinator_passes, .evaluate = coordinator_evaluate,                            \
        .waits = coordinator_waits, .hash = coordinator_hash, .compare = coordinator_compare,      \
        .extra = coordinator_extra, .move_extra = coordinator_move_extra,                          \
        .move_scale = coordinator_move_scale, .set_scale = coordinator_set_scale,                  \
        .sum = gpt2_dp_sum, .equal = gpt2_dp_equal, .broadcast = gpt2_dp_broadcast,                \
        .step_begin = gpt2_dp_step_begin, .step_end = gpt2_dp_step_end,                            \
        .span_begin = gpt2_dp_span_begin, .span_end = gpt2_dp_span_end,                            \
        .traffic = gpt2_dp_traffic, .describe = coordinator_describe, .setting = gpt2_dp_setting,  \
    }

const gpt2_strategy_ops_t gpt2_strategy_coordinator = STRATEGY("coordinator", coordinator_create);
const gpt2_strategy_ops_t gpt2_strategy_dps = STRATEGY("dps", dps_create);
