/*
 * sync.c - the end of a step of dp_shards_t: waits for all averages and decides what they mean.
 *
 * The figures behind the norm are exact (kernels/tally.c), so it does not matter how elements were
 * divided into tensors, units and rows. A reduce-scatter of the CPU engine gives every rank the
 * figures of all rows. Where each rank has those of its own row alone (with replicas, and engines
 * whose figures are taken behind them) one small allgather brings them together. Called on the
 * program's thread.
 */
#include <math.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/model/lists.h"
#include "coordinator/shards/shards.h"

/* ---- Before --------------------------------------------------------------------------------- */

dp_status_t dp_shards_all_ready(dp_shards_t *shards)
{
    const dp_unit_t *first;
    size_t place = 0; /* of the first unit that is not ready */
    const unsigned long long sync = (unsigned long long)shards->syncs + 1;

    if (shards->ready_count == shards->count) return DP_OK;
    while (place + 1 < shards->count &&
           shards->units[place].readies >= shards->options.accumulation_steps) {
        place++;
    }
    first = &shards->units[place];
    if (shards->ready_count == 0 && first->readies == 0) {
        return dp_context_error(shards->context, DP_ERR_ORDER,
                                "shards: sync %llu without a single unit ready; was there a sync "
                                "before it?",
                                sync);
    }
    return dp_unit_error(shards, first, DP_ERR_ORDER,
                         "sync %llu: not ready (%d of %d), %zu of %zu units in all", sync,
                         first->readies, shards->options.accumulation_steps,
                         shards->count - shards->ready_count, shards->count);
}

/* ---- Figures -------------------------------------------------------------------------------- */

/* Makes the figures of this rank's rows those of all rows. */
static dp_status_t add_other_rows(dp_shards_t *shards, dp_tally_t *rows)
{
    const int size = dp_group_size(shards->group);
    const dp_engine_ops_t *engine = shards->context->engine->ops;
    dp_status_t status;

    if (size == 1 || (shards->replicas == NULL && engine->compresses)) return DP_OK;
    status = dp_lists_allgather(shards->group, shards->list_name, (const uint64_t *)(void *)rows,
                                (uint64_t *)(void *)shards->tallies,
                                sizeof(dp_tally_t) / sizeof(uint64_t));
    if (status != DP_OK) return status;
    dp_tally_init(rows);
    for (int rank = 0; rank < size; rank++)
        dp_tally_merge(rows, &shards->tallies[rank]);
    return DP_OK;
}

static void log_skip(const dp_shards_t *shards, const dp_gradients_result_t *found)
{
    const char *name = "a row of another rank";

    if (!found->skip || dp_group_rank(shards->group) != 0) return;
    for (size_t i = shards->count; i > 0; i--)
        if (shards->units[i - 1].tally.nonfinite > 0) name = shards->units[i - 1].name;
    dp_log_info(&shards->context->log,
                "sync %llu: %llu elements are Inf or NaN, the first in %s; the step is skipped",
                (unsigned long long)shards->syncs, (unsigned long long)found->nonfinite, name);
}

void dp_shards_end_step(dp_shards_t *shards)
{
    for (size_t i = 0; i < shards->count; i++)
        dp_unit_end_step(&shards->units[i]);
    shards->ready_count = shards->averaged = 0;
}

void dp_shards_make_stale(dp_shards_t *shards)
{
    for (size_t i = 0; i < shards->count; i++)
        shards->units[i].is_stale = !shards->units[i].is_whole;
}

dp_status_t dp_shards_collect(dp_shards_t *shards, dp_gradients_result_t *found)
{
    dp_tally_t total, rows;
    dp_handle_t *met;
    dp_status_t status, waited;

    dp_tally_init(&total);
    dp_tally_init(&rows);
    status = dp_shards_meet(shards, &met);
    /* All are waited for, also after a failure: none may be in flight afterwards. Gathers too: the
     * program is about to write its rows. */
    waited = dp_shards_average_all(shards, NULL);
    if (status == DP_OK) status = waited;
    for (size_t i = 0; i < shards->count; i++) {
        dp_unit_t *unit = &shards->units[i];

        waited = dp_shards_finish_reduce(shards, unit);
        if (status == DP_OK) status = waited;
        dp_tally_merge(unit->is_whole ? &total : &rows, &unit->tally);
    }
    waited = dp_shards_finish_gathers(shards);
    if (status == DP_OK) status = waited;
    waited = dp_unit_wait(&met, NULL);
    if (status == DP_OK) status = waited;
    if (status == DP_OK) status = add_other_rows(shards, &rows);
    if (status == DP_OK && shards->check) status = dp_shards_compare_weights(shards);
    if (status == DP_OK) {
        dp_tally_merge(&total, &rows);
        dp_decision_make(&shards->decision, &total, found);
        log_skip(shards, found);
    }
    for (size_t i = 0; i < shards->count; i++)
        dp_tally_init(&shards->units[i].tally);
    return status;
}

dp_status_t dp_shards_finish_deferred(dp_shards_t *shards)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;

    if (!shards->is_deferred) return DP_OK;
    shards->is_deferred = 0;
    return dp_shards_collect(shards, &found);
}

/* ---- dp.h ----------------------------------------------------------------------------------- */

dp_status_t dp_shards_sync(dp_shards_t *shards, dp_gradients_result_t *result)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status, cleared;

    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    if (result != NULL) {
        dp_error_t error;

        status = dp_sized_check("dp_gradients_result_t", result->size, &error);
        if (status != DP_OK)
            return dp_context_error(shards->context, status, "shards: %s", error.text);
    }
    status = dp_shards_finish_deferred(shards);
    if (status == DP_OK) status = dp_shards_all_ready(shards);
    if (status != DP_OK) return status;
    shards->syncs++;
    status = dp_shards_collect(shards, &found);
    dp_shards_end_step(shards);
    cleared = dp_shards_clear_sums(shards);
    if (status == DP_OK) status = cleared;
    if (status != DP_OK) return status;
    if (!found.skip) dp_shards_make_stale(shards);
    if (result != NULL) dp_sized_write(result, &found, sizeof(found));
    return DP_OK;
}

/* Common to get and set. DP_OK: the state may be read and written. */
static dp_status_t open_loss_scale(dp_shards_t *shards, const dp_loss_scale_t *state)
{
    dp_error_t error;
    dp_status_t status;

    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    if (state == NULL)
        return dp_context_error(shards->context, DP_ERR_INVALID, "shards: state is NULL");
    status = dp_sized_check("dp_loss_scale_t", state->size, &error);
    if (status != DP_OK) return dp_context_error(shards->context, status, "shards: %s", error.text);
    status = dp_shards_finish_deferred(shards);
    if (status != DP_OK || shards->ready_count == 0) return status;
    return dp_context_error(shards->context, DP_ERR_ORDER,
                            "shards: the loss scale's state between a ready and its sync");
}

dp_status_t dp_shards_loss_scale_get(dp_shards_t *shards, dp_loss_scale_t *state)
{
    const dp_status_t status = open_loss_scale(shards, state);
    dp_loss_scale_t found;

    if (status != DP_OK) return status;
    found = dp_decision_get(&shards->decision);
    dp_sized_write(state, &found, sizeof(found));
    return DP_OK;
}

dp_status_t dp_shards_loss_scale_set(dp_shards_t *shards, const dp_loss_scale_t *given)
{
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    dp_error_t error;
    dp_status_t status = open_loss_scale(shards, given);

    if (status != DP_OK) return status;
    status = dp_sized_read("dp_loss_scale_t", given, &state, sizeof(state), &error);
    if (status == DP_OK) status = dp_decision_set(&shards->decision, &state, &error);
    return status == DP_OK ? DP_OK
                           : dp_context_error(shards->context, status, "shards: %s", error.text);
}
