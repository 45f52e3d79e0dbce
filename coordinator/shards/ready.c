/*
 * ready.c - dp_shards_gradients() and dp_shards_ready(): memory for the gradients of a unit, and
 * their way into its reduction.
 *
 * Called on the program's thread.
 */
#include "coordinator/api/context/fork.h"
#include "coordinator/shards/shards.h"

#define REDUCE_LEAD 2 /* units that may travel before ready() waits for one */

static int is_ready(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return unit->readies == shards->options.accumulation_steps;
}

/* ---- Memory --------------------------------------------------------------------------------- */

/* The program has given this owner's gradients away. (Slots exist with one pass per step alone.) */
static int has_left(const dp_unit_t *owner)
{
    return owner->readies > 0;
}

static void take_gradient_slot(dp_shards_t *shards, dp_shard_slot_t *slot, dp_unit_t *unit)
{
    if (slot->owner != NULL) slot->owner->gradient_slot = NULL;
    slot->owner = unit;
    slot->used = ++shards->clock;
    unit->gradient_slot = slot;
}

dp_status_t dp_shards_gradients(dp_shards_t *shards, size_t g, void *stream, float **gradients)
{
    dp_shard_slot_t *slot;
    dp_unit_t *unit;
    dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (status != DP_OK) return status;
    if (gradients == NULL) {
        return dp_unit_error(shards, unit, DP_ERR_INVALID,
                             "dp_shards_gradients: gradients is NULL");
    }
    status = dp_shards_finish_deferred(shards);
    if (status != DP_OK) return status;
    if (is_ready(shards, unit)) {
        return dp_unit_error(shards, unit, DP_ERR_ORDER,
                             "its gradients are ready; there is no memory for them before a sync");
    }
    if (unit->gradient_pool != NULL && unit->gradient_slot == NULL) {
        slot = dp_shards_find_slot(unit->gradient_pool, has_left);
        if (slot == NULL) {
            return dp_unit_error(shards, unit, DP_ERR_ORDER,
                                 "all %zu slots for gradients of %zu elements are given out, the "
                                 "first to %s; call dp_shards_ready() for one of them",
                                 unit->gradient_pool->count, unit->layout.count,
                                 unit->gradient_pool->slots[0].owner->name);
        }
        if (slot->owner != NULL) status = dp_shards_vacate(shards, slot->owner, stream);
        if (status != DP_OK) return status;
        take_gradient_slot(shards, slot, unit);
    }
    *gradients = dp_unit_all_gradients(unit);
    return DP_OK;
}

/* ---- Ready ---------------------------------------------------------------------------------- */

dp_status_t dp_shards_ready(dp_shards_t *shards, size_t g, void *stream)
{
    dp_unit_t *unit;
    dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (status == DP_OK) status = dp_shards_finish_deferred(shards);
    if (status != DP_OK) return status;
    if (is_ready(shards, unit)) {
        return dp_unit_error(shards, unit, DP_ERR_ORDER,
                             "ready for the %d. time before a sync, accumulation_steps is %d",
                             unit->readies + 1, shards->options.accumulation_steps);
    }
    if (dp_unit_all_gradients(unit) == NULL) {
        return dp_unit_error(shards, unit, DP_ERR_ORDER,
                             "ready without memory from dp_shards_gradients() in this step");
    }
    if (unit->readies + 1 == shards->options.accumulation_steps) {
        status = dp_shards_reduce(shards, unit, stream);
        if (status != DP_OK) return status;
        shards->order[shards->ready_count++] = unit;
    }
    unit->readies++;
    return shards->replicas == NULL ? DP_OK : dp_shards_advance(shards, REDUCE_LEAD, stream);
}
