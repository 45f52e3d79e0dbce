/*
 * views.c - memory of this engine that other ranks of the node look at where it lies.
 *
 * The arena does the work; here ranks of the world become local ranks. Called on any thread, by
 * coordinator/shards.
 */
#include "runtime/engine/cpu/cpu_internal.h"

#include <stdlib.h>

static int is_of_this_node(const dp_cpu_engine_t *engine, int rank)
{
    const dp_topology_t *topology = engine->topology;

    return rank >= 0 && rank < engine->size && topology->node[rank] == topology->node[engine->rank];
}

static uint64_t place_of(const dp_engine_t *self, const void *memory, size_t bytes)
{
    const dp_cpu_engine_t *engine = (const dp_cpu_engine_t *)(const void *)self;
    uint64_t place;

    return dp_arena_find(engine->arena, memory, bytes, &place) ? place : UINT64_MAX;
}

static void *address_of(const dp_engine_t *self, dp_engine_place_t place, size_t bytes)
{
    const dp_cpu_engine_t *engine = (const dp_cpu_engine_t *)(const void *)self;

    if (!is_of_this_node(engine, place.rank)) return NULL;
    return dp_arena_at(engine->arena, engine->topology->local_rank[place.rank], place.place, bytes);
}

static dp_status_t view_create(dp_engine_t *self, const dp_engine_place_t *places, int count,
                               size_t bytes, const void **view, dp_error_t *error)
{
    const dp_cpu_engine_t *engine = (const dp_cpu_engine_t *)(const void *)self;
    dp_arena_part_t *parts = calloc((size_t)count, sizeof(*parts));
    dp_status_t status = DP_OK;

    if (parts == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for a view");
    for (int i = 0; status == DP_OK && i < count; i++) {
        if (!is_of_this_node(engine, places[i].rank)) {
            status = dp_error_set(error, DP_ERR_UNSUPPORTED, "rank %d is on another node",
                                  places[i].rank);
            break;
        }
        parts[i] =
            (dp_arena_part_t){engine->topology->local_rank[places[i].rank], places[i].place, bytes};
    }
    if (status == DP_OK) status = dp_arena_view_create(engine->arena, parts, count, view, error);
    free(parts);
    return status;
}

static void view_destroy(dp_engine_t *self, const void *view, size_t bytes)
{
    (void)self;
    dp_arena_view_destroy(view, bytes);
}

const dp_engine_views_t dp_cpu_views = {
    .place_of = place_of,
    .address_of = address_of,
    .view_create = view_create,
    .view_destroy = view_destroy,
};
