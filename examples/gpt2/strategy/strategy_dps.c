/*
 * strategy_dps.c - static buckets in program order: what most data-parallel trainers do, and the
 * control for every claim about the coordinator.
 *
 * Everything is as in strategy_coordinator.c, but that libdp is asked to launch gradients in the
 * order in which each rank's backward pass hands them over, without any agreement between ranks.
 */
#include "examples/gpt2/strategy/strategy_dp.h"

static int dps_create(gpt2_strategy_t **out, gpt2_error_t *error)
{
    return gpt2_coordinator_create(&gpt2_strategy_dps, DP_ORDER_PROGRAM, out, error);
}

static int dps_destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.destroy(base, error);
}

static int dps_attach(gpt2_strategy_t *base, gpt2_replica_t *replica,
                      const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.attach(base, replica, settings, error);
}

static int dps_ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.ready(base, first, count, error);
}

static int dps_sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.sync(base, out, error);
}

static int dps_move_scale(gpt2_strategy_t *base, int skipped, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.move_scale(base, skipped, error);
}

static int dps_set_scale(gpt2_strategy_t *base, gpt2_error_t *error)
{
    return gpt2_strategy_coordinator.set_scale(base, error);
}

const gpt2_strategy_ops_t gpt2_strategy_dps = {
    .name = "dps",
    .takes_rows = 1,
    .can_shard = 1,
    .can_compress = 1,
    .can_stage = 1,
    .create = dps_create,
    .destroy = dps_destroy,
    .abort = gpt2_dp_abort,
    .alloc = gpt2_dp_alloc,
    .free = gpt2_dp_free,
    .attach = dps_attach,
    .ready = dps_ready,
    .sync = dps_sync,
    .collect = gpt2_coordinator_collect,
    .end_collect = gpt2_coordinator_end_collect,
    .distribute = gpt2_coordinator_distribute,
    .passes = gpt2_coordinator_passes,
    .evaluate = gpt2_coordinator_evaluate,
    .bubble = gpt2_coordinator_bubble,
    .hash = gpt2_coordinator_hash,
    .compare = gpt2_coordinator_compare,
    .extra = gpt2_coordinator_extra,
    .move_extra = gpt2_coordinator_move_extra,
    .move_scale = dps_move_scale,
    .set_scale = dps_set_scale,
    .sum = gpt2_dp_sum,
    .equal = gpt2_dp_equal,
    .broadcast = gpt2_dp_broadcast,
    .step_begin = gpt2_dp_step_begin,
    .step_end = gpt2_dp_step_end,
    .span_begin = gpt2_dp_span_begin,
    .span_end = gpt2_dp_span_end,
    .traffic = gpt2_dp_traffic,
    .describe = gpt2_coordinator_describe,
    .setting = gpt2_dp_setting,
};
