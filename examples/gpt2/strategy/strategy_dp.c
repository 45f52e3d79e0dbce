/*
 * strategy_dp.c - what the strategies on libdp share: memory, the few numbers that ranks exchange,
 * marks for the timeline. How gradients and weights travel is theirs.
 */
#include "examples/gpt2/strategy/strategy_dp.h"

#include <stdlib.h>
#include <string.h>

int gpt2_dp_failed(const gpt2_dp_t *self, const char *what, dp_status_t status, gpt2_error_t *error)
{
    const char *text = dp_error_text(self->context);

    return gpt2_fail(error, "rank %d of %d: %s: %s%s%s", self->base.rank, self->base.size, what,
                     dp_status_string(status), *text == '\0' ? "" : ": ", text);
}

int gpt2_dp_join(gpt2_dp_t *self, const gpt2_strategy_ops_t *ops, dp_order_t order,
                 gpt2_error_t *error)
{
    char text[GPT2_ERROR_TEXT_MAX / 2] = "";
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_status_t status;

    options.order = order;
    options.error = text;
    options.error_bytes = sizeof(text);
    status = dp_init(&options, &self->context);
    if (status != DP_OK) return gpt2_fail(error, "dp_init: %s: %s", dp_status_string(status), text);
    self->base = (gpt2_strategy_t){.ops = ops,
                                   .rank = dp_rank(self->context),
                                   .size = dp_size(self->context),
                                   .node_size = dp_local_size(self->context),
                                   .divisor = (double)dp_size(self->context)};
    return 0;
}

int gpt2_dp_leave(gpt2_dp_t *self, gpt2_error_t *error)
{
    const dp_status_t status = dp_finalize(self->context);

    if (status == DP_OK) return 0;
    return gpt2_fail(error, "rank %d: dp_finalize: %s", self->base.rank, dp_status_string(status));
}

dp_wire_t gpt2_dp_wire(const char *name)
{
    if (strcmp(name, "none") == 0) return DP_WIRE_NONE;
    if (strcmp(name, "fp16") == 0) return DP_WIRE_FP16;
    if (strcmp(name, "bf16") == 0) return DP_WIRE_BF16;
    return DP_WIRE_DEFAULT;
}

int gpt2_dp_finish(const gpt2_dp_t *self, const char *what, dp_status_t status, dp_handle_t *handle,
                   gpt2_error_t *error)
{
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    return status == DP_OK ? 0 : gpt2_dp_failed(self, what, status, error);
}

/* ---- Entries of the table ------------------------------------------------------------------- */

void gpt2_dp_abort(gpt2_strategy_t *base, const char *reason)
{
    dp_abort(((gpt2_dp_t *)base)->context, reason);
}

void *gpt2_dp_alloc(gpt2_strategy_t *base, size_t bytes)
{
    void *memory = NULL;

    if (dp_alloc(((gpt2_dp_t *)base)->context, bytes, &memory) != DP_OK) return NULL;
    return memory;
}

void gpt2_dp_free(gpt2_strategy_t *base, void *memory)
{
    (void)dp_free(((gpt2_dp_t *)base)->context, memory);
}

int gpt2_dp_sum(gpt2_strategy_t *base, double *values, size_t count, gpt2_error_t *error)
{
    gpt2_dp_t *self = (gpt2_dp_t *)base;
    dp_handle_t *handle = NULL;
    dp_status_t status = dp_allreduce(dp_world(self->context), "gpt2.sum", values, values, count,
                                      DP_F64, NULL, &handle);

    return gpt2_dp_finish(self, "sum over ranks", status, handle, error);
}

int gpt2_dp_equal(gpt2_strategy_t *base, uint64_t value, int *same, gpt2_error_t *error)
{
    gpt2_dp_t *self = (gpt2_dp_t *)base;
    /* The largest complement is the complement of the smallest value. */
    uint64_t pair[2] = {value, ~value};
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    options.reduce = DP_MAX;
    status = dp_allreduce(dp_world(self->context), "gpt2.equal", pair, pair, 2, DP_U64, &options,
                          &handle);
    if (gpt2_dp_finish(self, "comparison of ranks", status, handle, error) != 0) return -1;
    *same = pair[0] == ~pair[1];
    return 0;
}

int gpt2_dp_broadcast(gpt2_strategy_t *base, int root, void *data, size_t bytes,
                      gpt2_error_t *error)
{
    gpt2_dp_t *self = (gpt2_dp_t *)base;
    dp_handle_t *handle = NULL;
    dp_status_t status = dp_broadcast(dp_world(self->context), "gpt2.broadcast", data, data, bytes,
                                      DP_U8, root, NULL, &handle);

    return gpt2_dp_finish(self, "broadcast", status, handle, error);
}

void gpt2_dp_step_begin(gpt2_strategy_t *base, uint64_t step)
{
    ((gpt2_dp_t *)base)->step = step;
    dp_step_begin(((gpt2_dp_t *)base)->context, step);
}

void gpt2_dp_step_end(gpt2_strategy_t *base)
{
    dp_step_end(((gpt2_dp_t *)base)->context);
}

void gpt2_dp_span_begin(gpt2_strategy_t *base, const char *name, void *stream)
{
    dp_context_t *context = ((gpt2_dp_t *)base)->context;

    dp_span_begin(context, name);
    dp_stream_span_begin(context, name, stream);
}

void gpt2_dp_span_end(gpt2_strategy_t *base, void *stream)
{
    dp_context_t *context = ((gpt2_dp_t *)base)->context;

    dp_stream_span_end(context, stream);
    dp_span_end(context);
}

void gpt2_dp_traffic(gpt2_strategy_t *base, gpt2_traffic_t *out)
{
    dp_stats_t stats = DP_STATS_INIT;

    (void)dp_stats_get(((gpt2_dp_t *)base)->context, &stats);
    *out = (gpt2_traffic_t){.wait_ns = stats.wait_ns,
                            .skew_ns = stats.skew_ns,
                            .transfer_ns = stats.transfer_ns,
                            .wire_bytes = stats.bytes_wire};
}

const char *gpt2_dp_setting(gpt2_strategy_t *base, const char *name)
{
    return dp_setting(((gpt2_dp_t *)base)->context, name);
}
