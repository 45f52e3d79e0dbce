/*
 * stream.c - dp_shards_sync_on(): a sync that makes a GPU's stream wait, not the program's thread.
 *
 *     program's stream   | wait for averages | add the rows' figures | decision | optimizer ...
 *     data plane          averages ... done ^        ^ allreduce of the figures of all rows
 *
 * As coordinator/api/model/gradients_stream.c, which has the reasons. Here each rank has the
 * figures of its own rows alone, so their exact sums, which are whole numbers, are added up over
 * the ranks first. Without a GPU it is dp_shards_sync(), and the result lies in ordinary memory.
 * Called on the program's thread.
 */
#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/api/operation/submit.h"
#include "coordinator/shards/shards.h"

/* ---- On the device -------------------------------------------------------------------------- */

static dp_status_t queue_decision(dp_shards_t *shards, dp_stream_t *stream, int is_failed)
{
    const dp_device_ops_t *device = shards->context->device->ops;
    const dp_status_t status =
        device->decide(stream, shards->figures, shards->options.clip_norm, is_failed);

    return status == DP_OK ? device->event_record(shards->decided, stream) : status;
}

/* The handle of a unit's average, in flight. */
static dp_handle_t **average_of(dp_shards_t *shards, dp_unit_t *unit)
{
    return shards->replicas == NULL ? &unit->reduce : &unit->average;
}

/* The stream waits for every average; this thread, until all were issued to the device. */
static dp_status_t stream_waits(dp_shards_t *shards, void *native)
{
    dp_status_t status = dp_shards_average_all(shards, native);

    for (size_t i = 0; i < shards->count; i++) {
        dp_handle_t *handle = *average_of(shards, &shards->units[i]);
        const dp_status_t waited = handle == NULL ? DP_OK : dp_stream_wait(handle, native, -1.0);

        if (status == DP_OK) status = waited;
    }
    return status;
}

/* Adds the figures of all rows, of all ranks, to those of the whole units. */
static dp_status_t add_rows(dp_shards_t *shards, void *native, dp_stream_t *stream)
{
    uint64_t *sums = shards->row_figures->sums;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;
    dp_status_t status;

    options.stream = native;
    options.launch_now = 1;
    status = dp_allreduce(shards->group, shards->list_name, sums, sums, DP_FIGURES_WORDS, DP_U64,
                          &options, &handle);
    if (status != DP_OK) return status;
    status = dp_stream_wait(handle, native, -1.0);
    dp_release(handle);
    if (status != DP_OK) return status;
    return shards->context->device->ops->add_figures(stream, shards->figures, shards->row_figures);
}

/* Gives the handles back; the averages go on. */
static void release_averages(dp_shards_t *shards)
{
    for (size_t i = 0; i < shards->count; i++) {
        dp_handle_t **handle = average_of(shards, &shards->units[i]);

        dp_release(*handle);
        *handle = NULL;
    }
}

/* Loss scales, and one tensor's fp16 scale, follow from the averages of the step before. */
static int needs_last(const dp_shards_t *shards)
{
    return shards->decision.is_scaling || dp_submit_needs_last(shards->group, shards->options.wire);
}

/* DP_CHECK_DATA: weights are compared before the optimizer behind the decision can write them, so
 * the averages are waited for here. */
static dp_status_t decide_checked(dp_shards_t *shards, void *native, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = dp_shards_collect(shards, &found);

    if (status == DP_OK) status = add_rows(shards, native, stream);
    if (status == DP_OK) return queue_decision(shards, stream, 0);
    (void)queue_decision(shards, stream, 1);
    (void)dp_shards_clear_sums(shards);
    return status;
}

static dp_status_t decide(dp_shards_t *shards, void *native, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = stream_waits(shards, native);

    if (status == DP_OK && shards->check) return decide_checked(shards, native, stream);
    if (status == DP_OK) status = add_rows(shards, native, stream);
    if (status == DP_OK) status = queue_decision(shards, stream, 0);
    if (status == DP_OK) {
        /* This thread waits for no more. Handles stay only where the next step needs
         * what this one found. */
        shards->is_deferred = needs_last(shards);
        if (!shards->is_deferred) release_averages(shards);
        return DP_OK;
    }
    (void)queue_decision(shards, stream, 1);
    if (dp_context_has_ended(shards->context)) {
        release_averages(shards); /* they end when the streams move on */
        return status;
    }
    (void)dp_shards_collect(shards, &found);
    (void)dp_shards_clear_sums(shards);
    return status;
}

static dp_status_t sync_device(dp_shards_t *shards, void *native, dp_stream_t *stream)
{
    dp_status_t status = dp_shards_finish_deferred(shards);

    if (status == DP_OK) status = dp_shards_all_ready(shards);
    if (status != DP_OK) { /* averages in flight stay so; another sync may wait for them */
        (void)queue_decision(shards, stream, 1);
        return status;
    }
    shards->syncs++;
    status = decide(shards, native, stream);
    dp_shards_end_step(shards);
    dp_shards_make_stale(shards); /* whether the step is skipped is known on the device alone */
    return status;
}

/* ---- dp.h ----------------------------------------------------------------------------------- */

static dp_status_t sync_on_host(dp_shards_t *shards)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status;

    dp_decision_publish(shards->figures, NULL);
    status = dp_shards_sync(shards, &found);
    if (status == DP_OK) dp_decision_publish(shards->figures, &found);
    return status;
}

dp_status_t dp_shards_sync_on(dp_shards_t *shards, void *stream, dp_device_result_t *result)
{
    dp_stream_t *known;
    dp_status_t status;

    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    status = dp_stream_begin_sync(shards->context, "shards", shards->figures,
                                  dp_shards_on_device(shards), stream, result, &known);
    if (status != DP_OK) return status;
    return known == NULL ? sync_on_host(shards) : sync_device(shards, stream, known);
}
