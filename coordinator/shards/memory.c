/*
 * memory.c - the memory of dp_shards_t: which arrays a stage keeps, and the slots in which units
 * of equal size take turns.
 *
 *     stage      weights                  gradients
 *     NONE       [all]                    [all]
 *     OPTIMIZER  [row 0 | row 1 | ...]    [row 0 | row 1 | ...]   rows lie in place
 *     GRADIENTS  [row 0 | row 1 | ...]    [own row]  + slots
 *     WEIGHTS    [own row]  + slots       [own row]  + slots
 *
 * Where the ranks of a node share weights (share.c), weights are [own row] in all stages but NONE.
 * Above one accumulation step, full gradients are kept. All of it comes from dp_alloc(), so it is
 * zero at the start and reduced in place. Programs write only [count] of a unit, so the padding of
 * full arrays and slots stays zero. Called on the program's thread.
 */
#include "coordinator/shards/shards.h"

#include <stdlib.h>

/* Adds what was allocated to *sum, for dp_shards_memory_get(). */
static dp_status_t alloc_floats(dp_shards_t *shards, size_t count, float **out, size_t *sum)
{
    const size_t bytes = count * sizeof(float);
    void *memory;
    const dp_status_t status = dp_alloc(shards->context, bytes, &memory);

    if (status != DP_OK) return status;
    *out = memory;
    *sum += bytes;
    return DP_OK;
}

static int has_weight_slots(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return !unit->is_whole && shards->options.stage == DP_SHARD_WEIGHTS && unit->view == NULL;
}

static int has_gradient_slots(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return !unit->is_whole && shards->options.stage >= DP_SHARD_GRADIENTS &&
           shards->options.accumulation_steps == 1;
}

/* Where this rank's row begins in an array of the whole unit. */
static size_t own_place(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return unit->is_whole ? 0 : (size_t)dp_group_rank(shards->group) * unit->layout.row;
}

static dp_status_t alloc_weights(dp_shards_t *shards, dp_unit_t *unit)
{
    size_t *sum = &shards->memory.weights;
    dp_status_t status;

    if (unit->view != NULL) return DP_OK;
    if (has_weight_slots(shards, unit)) {
        return alloc_floats(shards, dp_shards_words(shards, unit->layout.row), &unit->weight_row,
                            sum);
    }
    status =
        alloc_floats(shards, dp_shards_words(shards, unit->layout.padded), &unit->weights, sum);
    if (status == DP_OK) {
        unit->weight_row = unit->weights + dp_shards_words(shards, own_place(shards, unit));
    }
    return status;
}

/* Arrays that are a unit's own. */
static dp_status_t alloc_unit(dp_shards_t *shards, dp_unit_t *unit)
{
    dp_shards_memory_t *memory = &shards->memory;
    dp_status_t status = alloc_weights(shards, unit);

    if (status != DP_OK) return status;
    if (has_gradient_slots(shards, unit))
        return alloc_floats(shards, unit->layout.row, &unit->gradient_row, &memory->gradients);
    status = alloc_floats(shards, unit->layout.padded, &unit->gradients, &memory->gradients);
    if (status == DP_OK) unit->gradient_row = unit->gradients + own_place(shards, unit);
    return status;
}

/* One pool: `count` slots of `words` each. */
static dp_status_t fill_pool(dp_shards_t *shards, dp_shard_pool_t *pool, size_t count, size_t words,
                             size_t *sum)
{
    dp_status_t status = DP_OK;

    pool->slots = calloc(count, sizeof(*pool->slots));
    if (pool->slots == NULL) return dp_shards_no_memory(shards);
    pool->count = count;
    for (size_t i = 0; status == DP_OK && i < count; i++)
        status = alloc_floats(shards, words, &pool->slots[i].memory, sum);
    return status;
}

typedef int (*needs_slots_fn)(const dp_shards_t *shards, const dp_unit_t *unit);

/* Pools for all units that need slots, in the object's pools from pool_count on; each unit's is
 * written at `offset` into dp_unit_t. shared: slots of a pool with several units. */
static dp_status_t make_pools(dp_shards_t *shards, needs_slots_fn needs_slots, size_t shared,
                              int is_of_weights)
{
    const size_t n = shards->count;
    size_t *sum = is_of_weights ? &shards->memory.weight_slots : &shards->memory.gradient_slots;
    size_t *counts = calloc(2 * n, sizeof(*counts));
    int *pools = calloc(n, sizeof(*pools));
    dp_status_t status = DP_OK;
    const size_t first = shards->pool_count;

    if (counts == NULL || pools == NULL) {
        free(counts);
        free(pools);
        return dp_shards_no_memory(shards);
    }
    for (size_t i = 0; i < n; i++) {
        if (needs_slots(shards, &shards->units[i])) counts[i] = shards->units[i].layout.count;
    }
    shards->pool_count += dp_shard_layout_pools(counts, n, pools, counts + n);
    for (size_t i = 0; status == DP_OK && i < n; i++) {
        dp_unit_t *unit = &shards->units[i];
        dp_shard_pool_t *pool;
        size_t members;

        if (pools[i] < 0) continue;
        pool = &shards->pools[first + (size_t)pools[i]];
        members = counts[n + (size_t)pools[i]];
        *(is_of_weights ? &unit->weight_pool : &unit->gradient_pool) = pool;
        if (pool->slots != NULL) continue;
        status = fill_pool(shards, pool, members == 1 ? 1 : dp_min(members, shared),
                           is_of_weights ? dp_shards_words(shards, unit->layout.padded)
                                         : unit->layout.padded,
                           sum);
    }
    free(counts);
    free(pools);
    return status;
}

dp_status_t dp_shards_memory_init(dp_shards_t *shards)
{
    const size_t shared = (size_t)dp_max(shards->options.prefetch, 2);
    dp_status_t status = DP_OK;

    shards->pools = calloc(2 * shards->count, sizeof(*shards->pools));
    if (shards->pools == NULL) return dp_shards_no_memory(shards);
    for (size_t i = 0; status == DP_OK && i < shards->count; i++)
        status = alloc_unit(shards, &shards->units[i]);
    if (status == DP_OK) status = make_pools(shards, has_weight_slots, shared, 1);
    /* A unit's gradients leave while the next unit's are computed. */
    if (status == DP_OK) status = make_pools(shards, has_gradient_slots, 2, 0);
    return status;
}

void dp_shards_memory_fini(dp_shards_t *shards)
{
    dp_context_t *context = shards->context;

    for (size_t i = 0; i < shards->count; i++) {
        dp_unit_t *unit = &shards->units[i];

        if (unit->view == NULL)
            dp_free(context, unit->weights != NULL ? unit->weights : unit->weight_row);
        dp_free(context, unit->gradients != NULL ? unit->gradients : unit->gradient_row);
    }
    for (size_t p = 0; p < shards->pool_count; p++) {
        for (size_t i = 0; i < shards->pools[p].count; i++)
            dp_free(context, shards->pools[p].slots[i].memory);
    }
}

dp_shard_slot_t *dp_shards_find_slot(const dp_shard_pool_t *pool,
                                     int (*may_give)(const dp_unit_t *owner))
{
    dp_shard_slot_t *found = NULL;

    for (size_t i = 0; i < pool->count; i++) {
        dp_shard_slot_t *slot = &pool->slots[i];

        if (slot->owner == NULL) return slot;
        if (may_give(slot->owner) && (found == NULL || slot->used < found->used)) found = slot;
    }
    return found;
}
