/*
 * strategy_coordinator.c - data parallelism through libdp: gradients travel while backward runs.
 *
 * The whole of what a training program needs from dp.h: dp_gradients_create() when the model
 * exists, dp_gradients_ready() as backward finishes tensors, dp_gradients_sync() before the update.
 */
#include "examples/gpt2/strategy.h"

#include <stdlib.h>
#include <string.h>

#include "dp.h"

typedef struct coordinator {
    gpt2_strategy_t base;
    dp_context_t *context;
    dp_gradients_t *gradients;
} coordinator_t;

static int failed(const coordinator_t *self, const char *what, dp_status_t status,
                  gpt2_error_t *error)
{
    const char *text = dp_error_text(self->context);

    return gpt2_fail(error, "rank %d of %d: %s: %s%s%s", self->base.rank, self->base.size, what,
                     dp_status_string(status), *text == '\0' ? "" : ": ", text);
}

static int create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    char text[GPT2_ERROR_TEXT_MAX / 2] = "";
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_status_t status;
    coordinator_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a strategy");
    options.error = text;
    options.error_bytes = sizeof(text);
    status = dp_init(&options, &self->context);
    if (status != DP_OK) {
        free(self);
        return gpt2_fail(error, "dp_init: %s: %s", dp_status_string(status), text);
    }
    self->base = (gpt2_strategy_t){&gpt2_strategy_coordinator, dp_rank(self->context),
                                   dp_size(self->context), (double)dp_size(self->context)};
    *out = &self->base;
    return 0;
}

static int destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    int rank = base->rank;
    dp_status_t status;

    dp_gradients_destroy(self->gradients);
    status = dp_finalize(self->context);
    free(self);
    if (status == DP_OK) return 0;
    return gpt2_fail(error, "rank %d: dp_finalize: %s", rank, dp_status_string(status));
}

static void give_up(gpt2_strategy_t *base, const char *reason)
{
    dp_abort(((coordinator_t *)base)->context, reason);
}

static void *alloc(gpt2_strategy_t *base, size_t bytes)
{
    void *memory = NULL;

    if (dp_alloc(((coordinator_t *)base)->context, bytes, &memory) != DP_OK) return NULL;
    return memory;
}

static void release(gpt2_strategy_t *base, void *memory)
{
    (void)dp_free(((coordinator_t *)base)->context, memory);
}

static dp_wire_t wire_of(const char *name)
{
    if (strcmp(name, "none") == 0) return DP_WIRE_NONE;
    if (strcmp(name, "fp16") == 0) return DP_WIRE_FP16;
    if (strcmp(name, "bf16") == 0) return DP_WIRE_BF16;
    return DP_WIRE_DEFAULT;
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
    options.wire = wire_of(settings->wire);
    options.accumulation = settings->accumulate;
    options.clip_norm = settings->clip;
    status = dp_gradients_create(self->context, tensors, layout->count, &options, &self->gradients);
    free(tensors);
    if (status != DP_OK) return failed(self, "dp_gradients_create", status, error);
    base->divisor = (double)base->size * (double)settings->accumulate;
    return 0;
}

static int ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;

    for (size_t i = first; i < first + count; i++) {
        dp_status_t status = dp_gradients_ready(self->gradients, i, NULL);

        if (status != DP_OK) return failed(self, "dp_gradients_ready", status, error);
    }
    return 0;
}

static int sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = dp_gradients_sync(self->gradients, &result);

    if (status != DP_OK) return failed(self, "dp_gradients_sync", status, error);
    *out = (gpt2_sync_t){result.norm, result.clip, result.skip};
    return 0;
}

/* Waits for an operation that was just submitted. */
static int finish(const coordinator_t *self, const char *what, dp_status_t status,
                  dp_handle_t *handle, gpt2_error_t *error)
{
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    return status == DP_OK ? 0 : failed(self, what, status, error);
}

static int sum(gpt2_strategy_t *base, double *values, size_t count, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_handle_t *handle = NULL;
    dp_status_t status = dp_allreduce(dp_world(self->context), "gpt2.sum", values, values, count,
                                      DP_F64, NULL, &handle);

    return finish(self, "sum over ranks", status, handle, error);
}

static int equal(gpt2_strategy_t *base, uint64_t value, int *same, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    /* The largest complement is the complement of the smallest value. */
    uint64_t pair[2] = {value, ~value};
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    options.reduce = DP_MAX;
    status = dp_allreduce(dp_world(self->context), "gpt2.equal", pair, pair, 2, DP_U64, &options,
                          &handle);
    if (finish(self, "comparison of ranks", status, handle, error) != 0) return -1;
    *same = pair[0] == ~pair[1];
    return 0;
}

static int broadcast(gpt2_strategy_t *base, void *data, size_t bytes, gpt2_error_t *error)
{
    coordinator_t *self = (coordinator_t *)base;
    dp_handle_t *handle = NULL;
    dp_status_t status = dp_broadcast(dp_world(self->context), "gpt2.broadcast", data, data, bytes,
                                      DP_U8, 0, NULL, &handle);

    return finish(self, "broadcast", status, handle, error);
}

static void step_begin(gpt2_strategy_t *base, uint64_t step)
{
    dp_step_begin(((coordinator_t *)base)->context, step);
}

static void step_end(gpt2_strategy_t *base)
{
    dp_step_end(((coordinator_t *)base)->context);
}

static void span_begin(gpt2_strategy_t *base, const char *name)
{
    dp_span_begin(((coordinator_t *)base)->context, name);
}

static void span_end(gpt2_strategy_t *base)
{
    dp_span_end(((coordinator_t *)base)->context);
}

static void traffic(gpt2_strategy_t *base, gpt2_traffic_t *out)
{
    dp_stats_t stats = DP_STATS_INIT;

    (void)dp_stats_get(((coordinator_t *)base)->context, &stats);
    *out = (gpt2_traffic_t){.wait_ns = stats.wait_ns,
                            .skew_ns = stats.skew_ns,
                            .transfer_ns = stats.transfer_ns,
                            .wire_bytes = stats.bytes_wire};
}

static const char *setting(gpt2_strategy_t *base, const char *name)
{
    return dp_setting(((coordinator_t *)base)->context, name);
}

const gpt2_strategy_ops_t gpt2_strategy_coordinator = {
    .name = "coordinator",
    .create = create,
    .destroy = destroy,
    .abort = give_up,
    .alloc = alloc,
    .free = release,
    .attach = attach,
    .ready = ready,
    .sync = sync,
    .sum = sum,
    .equal = equal,
    .broadcast = broadcast,
    .step_begin = step_begin,
    .step_end = step_end,
    .span_begin = span_begin,
    .span_end = span_end,
    .traffic = traffic,
    .setting = setting,
};
