/*
 * gather.c - the weights of dp_shards_t: out of the ranks' rows, into memory that has all of them.
 *
 *     stale --gather or wait--> in flight --wait--> there --sync, or changed--> stale
 *                                                    |
 *                                  (slots) another unit takes the slot --> stale
 *
 * Ranks that share weights (share.c) have nothing to copy: there a gather tells that rows are new.
 * Else, under DP_SHARD_WEIGHTS, all weights of a unit are in a slot only while they are used or
 * about to be. dp_shards_gather() takes a free slot; without one, or with enough gathers in flight,
 * it does nothing. dp_shards_wait() also takes a slot whose weights are on their way and unused,
 * after waiting for them. Called on the program's thread.
 */
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/shards/shards.h"

/* ---- Slots ---------------------------------------------------------------------------------- */

/* Weights in this slot are neither used nor on their way. */
static int is_idle(const dp_unit_t *owner)
{
    return !owner->is_used && owner->gather == NULL;
}

static int is_unused(const dp_unit_t *owner)
{
    return !owner->is_used;
}

static void give_slot(dp_shard_slot_t *slot, dp_unit_t *unit)
{
    if (slot->owner != NULL) {
        slot->owner->weight_slot = NULL;
        slot->owner->is_stale = 1;
    }
    slot->owner = unit;
    unit->weight_slot = slot;
}

/* Gives the unit a slot. must: also one whose weights are on their way, which are waited for
 * first. *has: it has one. */
static dp_status_t take_weight_slot(dp_shards_t *shards, dp_unit_t *unit, int must, int *has)
{
    dp_shard_slot_t *slot = unit->weight_slot;
    dp_status_t status = DP_OK;

    if (slot == NULL) slot = dp_shards_find_slot(unit->weight_pool, is_idle);
    if (slot == NULL && must) {
        slot = dp_shards_find_slot(unit->weight_pool, is_unused);
        if (slot != NULL) status = dp_unit_wait(&slot->owner->gather, NULL);
    }
    *has = slot != NULL && status == DP_OK;
    if (*has && unit->weight_slot != slot) give_slot(slot, unit);
    if (*has) slot->used = ++shards->clock;
    return status;
}

static dp_status_t no_slot(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return dp_unit_error(shards, unit, DP_ERR_ORDER,
                         "all %zu slots for units of %zu elements are in use, the first by %s; "
                         "call dp_shards_release() for one of them",
                         unit->weight_pool->count, unit->layout.count,
                         unit->weight_pool->slots[0].owner->name);
}

/* ---- The gather ----------------------------------------------------------------------------- */

/* The rows; of shared weights a token, which a rank gives when its row is new. */
static dp_status_t submit_gather(dp_shards_t *shards, dp_unit_t *unit, const dp_options_t *options)
{
    const int is_shared = unit->view != NULL;
    const float *in = is_shared ? unit->token + dp_group_rank(shards->group) : unit->weight_row;
    float *out = is_shared ? unit->token : dp_unit_gather_target(unit);

    return dp_unit_submit(shards, unit, shards->group, DP_COLLECTIVE_ALLGATHER, "weights", in, out,
                          is_shared ? 1 : dp_shards_words(shards, unit->layout.row), options, NULL,
                          &unit->gather);
}

static int count_gathers(const dp_shards_t *shards)
{
    int count = 0;

    for (size_t i = 0; i < shards->count; i++)
        count += shards->units[i].gather != NULL;
    return count;
}

/* must: the program waits for it. */
static dp_status_t start_gather(dp_shards_t *shards, dp_unit_t *unit, void *stream, int must)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;
    int has_room = 1;

    if (!unit->is_stale) return DP_OK;
    if (unit->weight_pool != NULL) {
        if (!must && count_gathers(shards) >= shards->options.prefetch) return DP_OK;
        status = take_weight_slot(shards, unit, must, &has_room);
        if (status != DP_OK) return status;
    }
    if (!has_room) return must ? no_slot(shards, unit) : DP_OK;
    options.stream = stream;
    options.priority = must ? 2 : 1; /* before gradients, which nobody waits for yet */
    options.launch_now = 1;
    status = submit_gather(shards, unit, &options);
    if (status == DP_OK) unit->is_stale = 0;
    return status;
}

dp_status_t dp_shards_finish_gathers(dp_shards_t *shards)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < shards->count; i++) {
        const dp_status_t waited = dp_unit_wait(&shards->units[i].gather, NULL);

        if (status == DP_OK) status = waited;
    }
    return status;
}

/* ---- dp.h ----------------------------------------------------------------------------------- */

dp_status_t dp_shards_gather(dp_shards_t *shards, size_t g, void *stream)
{
    dp_unit_t *unit;
    const dp_status_t status = dp_shards_unit(shards, g, &unit);

    return status == DP_OK ? start_gather(shards, unit, stream, 0) : status;
}

dp_status_t dp_shards_wait(dp_shards_t *shards, size_t g, void *stream, const void **weights)
{
    dp_unit_t *unit;
    dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (status != DP_OK) return status;
    if (weights == NULL)
        return dp_unit_error(shards, unit, DP_ERR_INVALID, "dp_shards_wait: weights is NULL");
    status = start_gather(shards, unit, stream, 1);
    if (status == DP_OK) status = dp_unit_wait(&unit->gather, stream);
    if (status != DP_OK) return status;
    unit->is_used = 1;
    if (unit->weight_slot != NULL) unit->weight_slot->used = ++shards->clock;
    *weights = dp_unit_all_weights(unit);
    return DP_OK;
}

dp_status_t dp_shards_release(dp_shards_t *shards, size_t g)
{
    dp_unit_t *unit;
    const dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (status != DP_OK) return status;
    if (!unit->is_used) {
        return dp_unit_error(shards, unit, DP_ERR_ORDER,
                             "dp_shards_release() without dp_shards_wait() before it");
    }
    unit->is_used = 0;
    return DP_OK;
}

dp_status_t dp_shards_changed(dp_shards_t *shards, size_t g)
{
    dp_unit_t *unit;
    dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (status != DP_OK || unit->is_whole) return status;
    status = dp_unit_wait(&unit->gather, NULL);
    if (status == DP_OK) unit->is_stale = 1;
    return status;
}

/* ---- Load ----------------------------------------------------------------------------------- */

/* An operation of the unit's load, waited for. */
static dp_status_t load_step(dp_shards_t *shards, const dp_unit_t *unit, dp_group_t *group,
                             dp_collective_t collective, const float *in, float *out, size_t count)
{
    dp_handle_t *handle;
    const dp_status_t status = dp_unit_submit(shards, unit, group, collective, "load", in, out,
                                              count, NULL, NULL, &handle);

    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

/* The ranks of one copy, by the place of this rank's row among the copies. */
static int is_first_copy(const dp_shards_t *shards)
{
    return shards->replicas == NULL || dp_group_rank(shards->replicas) == 0;
}

/* Shared weights: each rank of the first copy gets its row, and gives it to the other copies. */
static dp_status_t load_rows(dp_shards_t *shards, dp_unit_t *unit, const float *full)
{
    const int size = dp_group_size(shards->group);
    const size_t row = dp_shards_words(shards, unit->row_count);
    size_t *counts = calloc((size_t)size, sizeof(*counts));
    dp_handle_t *handle;
    char name[DP_NAME_MAX + 1];
    size_t first;
    dp_status_t status = DP_OK;

    if (counts == NULL) return dp_shards_no_memory(shards);
    for (int rank = 0; rank < size; rank++)
        dp_shard_layout_row(&unit->layout, rank, &first, &counts[rank]);
    for (int rank = 0; rank < size; rank++)
        counts[rank] = dp_shards_words(shards, counts[rank]);
    snprintf(name, sizeof(name), "%s/load", unit->name);
    if (is_first_copy(shards)) {
        status = dp_scatterv(shards->group, name, full, counts, unit->weight_row, row, DP_F32, 0,
                             NULL, &handle);
        if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    }
    free(counts);
    if (status == DP_OK && shards->replicas != NULL) {
        status = load_step(shards, unit, shards->replicas, DP_COLLECTIVE_BROADCAST,
                           unit->weight_row, unit->weight_row, row);
    }
    /* Rows of other ranks may still be on their way. */
    if (status == DP_OK) unit->is_stale = 1;
    return status;
}

/* From copy to copy first, between the ranks 0 of the copies; then within each. */
static dp_status_t load_whole(dp_shards_t *shards, dp_unit_t *unit, const float *full)
{
    dp_group_t *group = shards->group, *replicas = shards->replicas;
    float *all = dp_unit_gather_target(unit);
    dp_status_t status = DP_OK;

    if (replicas != NULL && dp_group_rank(group) == 0) {
        status = load_step(shards, unit, replicas, DP_COLLECTIVE_BROADCAST, full, all,
                           dp_shards_words(shards, unit->layout.count));
        full = all;
    }
    if (status == DP_OK) {
        status = load_step(shards, unit, group, DP_COLLECTIVE_BROADCAST, full, all,
                           dp_shards_words(shards, unit->layout.count));
    }
    if (status == DP_OK && unit->weight_pool != NULL) {
        status = load_step(shards, unit, group, DP_COLLECTIVE_SCATTER, all, unit->weight_row,
                           dp_shards_words(shards, unit->layout.row));
    }
    if (status == DP_OK) unit->is_stale = 0;
    return status;
}

dp_status_t dp_shards_load(dp_shards_t *shards, size_t g, const void *full)
{
    dp_unit_t *unit;
    dp_status_t status = dp_shards_unit(shards, g, &unit);
    int has_room = 1;

    if (status != DP_OK) return status;
    if (full == NULL && dp_group_rank(shards->group) == 0 && is_first_copy(shards)) {
        return dp_unit_error(shards, unit, DP_ERR_INVALID,
                             "dp_shards_load: full is NULL on rank 0");
    }
    status = dp_unit_wait(&unit->gather, NULL);
    if (status == DP_OK && unit->weight_pool != NULL)
        status = take_weight_slot(shards, unit, 1, &has_room);
    if (status != DP_OK) return status;
    if (!has_room) return no_slot(shards, unit);
    return unit->view != NULL ? load_rows(shards, unit, full) : load_whole(shards, unit, full);
}
