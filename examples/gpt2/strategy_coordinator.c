/*
 * strategy_coordinator.c - data parallelism through libdp: gradients travel while backward runs.
 *
 * The whole of what a training program needs from dp.h: dp_gradients_create() when the model
 * exists, dp_gradients_ready() as backward finishes tensors, dp_gradients_sync() before the update.
 */
#include "examples/gpt2/strategy_dp.h"

#include <stdlib.h>

typedef struct coordinator {
    gpt2_dp_t dp;
    dp_gradients_t *gradients;
} coordinator_t;

static int create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    coordinator_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a strategy");
    if (gpt2_dp_join(&self->dp, &gpt2_strategy_coordinator, error) != 0) {
        free(self);
        return -1;
    }
    *out = &self->dp.base;
    return 0;
}

static int destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    int code;

    dp_gradients_destroy(self->gradients);
    code = gpt2_dp_leave(&self->dp, error);
    free(self);
    return code;
}

static int attach(gpt2_strategy_t *base, gpt2_model_t *model,
                  const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    const gpt2_layout_t *layout = model->layout;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_status_t status;
    dp_gradient_t *tensors = calloc(layout->count, sizeof(*tensors));

    if (tensors == NULL) return gpt2_fail(error, "out of memory for %zu tensors", layout->count);
    for (size_t i = 0; i < layout->count; i++) {
        tensors[i] = (dp_gradient_t){.name = layout->tensors[i].name,
                                     .weight = gpt2_model_tensor(model, model->weights, i),
                                     .gradient = gpt2_model_tensor(model, model->gradients, i),
                                     .count = layout->tensors[i].count,
                                     .dtype = DP_F32};
    }
    options.wire = gpt2_dp_wire(settings->wire);
    options.accumulation = settings->accumulate;
    options.clip_norm = settings->clip;
    status =
        dp_gradients_create(self->dp.context, tensors, layout->count, &options, &self->gradients);
    free(tensors);
    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_create", status, error);
    base->divisor = (double)base->size * (double)settings->accumulate;
    return 0;
}

static int ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    for (size_t i = first; i < first + count; i++) {
        dp_status_t status = dp_gradients_ready(self->gradients, i, NULL);

        if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_ready", status, error);
    }
    return 0;
}

static int sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = dp_gradients_sync(self->gradients, &result);

    if (status != DP_OK) return gpt2_dp_failed(&self->dp, "dp_gradients_sync", status, error);
    *out = (gpt2_sync_t){result.norm, result.clip, result.skip};
    return 0;
}

const gpt2_strategy_ops_t gpt2_strategy_coordinator = {
    .name = "coordinator",
    .create = create,
    .destroy = destroy,
    .abort = gpt2_dp_abort,
    .alloc = gpt2_dp_alloc,
    .free = gpt2_dp_free,
    .attach = attach,
    .ready = ready,
    .sync = sync,
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
