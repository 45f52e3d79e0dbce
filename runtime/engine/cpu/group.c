/*
 * group.c - which ranks of the world work together: the world itself, groups of it, and the
 * pairs that send to each other.
 *
 * Everything that an operation needs to know about its participants is in the group, so operations
 * make no difference between the world and a group. Making one is local; its ranks wait for each
 * other at the first operation. In shared memory it costs this rank four pages for what it
 * publishes, and a record, which stays; in another lane the same again. Called on the thread that
 * runs launches; pairs, and groups in another lane, are made on the thread that runs operations.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"
#include "runtime/engine/cpu/direct/direct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One publication in the group's memory: pieces, tallies, the manifest of an exchange, then the
 * inputs of small operations. */
#define PUBLICATION_BYTES ((size_t)8 * DP_KIB)
#define PUBLICATION_ROOM ((size_t)32)
#define PUBLICATION_MANIFEST_BYTES ((size_t)512)
#define PUBLICATION_TALLIES (PUBLICATION_ROOM * sizeof(dp_control_piece_t))
#define PUBLICATION_MANIFEST (PUBLICATION_TALLIES + PUBLICATION_ROOM * sizeof(dp_tally_t))
#define PUBLICATION_EAGER (PUBLICATION_BYTES - DP_EAGER_BYTES)
_Static_assert(PUBLICATION_MANIFEST + PUBLICATION_MANIFEST_BYTES <= PUBLICATION_EAGER,
               "they do not overlap");

/* ---- Who ------------------------------------------------------------------------------------ */

/* The members' nodes, as a topology of their own, in which a rank has its number in the group. All
 * ranks of the world in their order need no other than the world's. */
static dp_status_t make_topology(dp_cpu_group_t *group, const dp_topology_t *world)
{
    int in_order = 0;

    while (in_order < group->size && group->ranks[in_order] == in_order)
        in_order++;
    group->topology = world;
    if (in_order == world->size) return DP_OK;
    group->topology = &group->own_topology;
    return dp_topology_init_part(&group->own_topology, world, group->ranks, group->size);
}

static dp_status_t fill_node_places(dp_cpu_group_t *group, const dp_topology_t *world)
{
    const dp_topology_t *topology = group->topology;

    group->node = topology->node[group->rank];
    group->node_count = topology->node_count;
    group->local_rank = topology->local_rank[group->rank];
    group->local_size = topology->node_size[group->node];
    group->local_ranks = topology->node_ranks + topology->node_begin[group->node];
    group->locals = calloc((size_t)group->local_size, sizeof(*group->locals));
    if (group->locals == NULL) return DP_ERR_NO_MEMORY;
    for (int k = 0; k < group->local_size; k++)
        group->locals[k] = world->local_rank[dp_cpu_world_rank(group, k)];
    return DP_OK;
}

static dp_status_t check_members(const dp_cpu_engine_t *engine, const dp_engine_members_t *members,
                                 int *rank, dp_error_t *error)
{
    *rank = -1;
    for (int i = 0; i < members->count; i++) {
        const int at = members->ranks[i];

        if (at < 0 || at >= engine->size || (at == engine->rank && *rank >= 0)) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "engine: group '%s': rank %d is out of place", members->name, at);
        }
        if (at == engine->rank) *rank = i;
    }
    if (*rank >= 0) return DP_OK;
    return dp_error_set(error, DP_ERR_INVALID, "engine: group '%s' is without rank %d",
                        members->name, engine->rank);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t make_publications(dp_cpu_group_t *group)
{
    const dp_status_t status =
        dp_arena_alloc(group->engine->arena, 2 * PUBLICATION_BYTES, &group->publication_memory);

    if (status != DP_OK) return status;
    for (int i = 0; i < 2; i++) {
        char *at = (char *)group->publication_memory + (size_t)i * PUBLICATION_BYTES;

        group->publications[i] =
            (dp_cpu_publication_t){.pieces = (dp_control_piece_t *)(void *)at,
                                   .tallies = (dp_tally_t *)(void *)(at + PUBLICATION_TALLIES),
                                   .room = PUBLICATION_ROOM,
                                   .manifest = (uint64_t *)(void *)(at + PUBLICATION_MANIFEST),
                                   .manifest_words = PUBLICATION_MANIFEST_BYTES / sizeof(uint64_t),
                                   .eager = at + PUBLICATION_EAGER};
    }
    return DP_OK;
}

void dp_cpu_group_end(dp_cpu_group_t *group)
{
    dp_arena_t *arena = group->engine->arena;

    dp_direct_forget(group->engine->direct, group);
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        if (group->beside[i] != NULL) dp_cpu_group_end(group->beside[i]);
        group->beside[i] = NULL;
    }
    for (int i = 0; i < 2; i++) {
        dp_arena_free(arena, group->publications[i].grown[0]);
        dp_arena_free(arena, group->publications[i].grown[1]);
        dp_arena_free(arena, group->publications[i].grown_manifest);
    }
    dp_arena_free(arena, group->publication_memory);
    dp_cpu_group_free(group);
}

void dp_cpu_group_free(dp_cpu_group_t *group)
{
    if (group == NULL) return;
    for (int i = 0; i < DP_LANE_COUNT; i++)
        dp_cpu_group_free(group->beside[i]);
    dp_control_close(&group->control);
    dp_inter_node_destroy(group->inter_node);
    dp_layout_fini(&group->layout);
    dp_topology_fini(&group->own_topology);
    free(group->ranks);
    free(group->locals);
    free(group->ins);
    free(group->outs);
    free(group);
}

/* Numbers of the control records for its barriers: this rank's, and the others'. */
typedef struct record_numbers {
    int own, others;
} record_numbers_t;

static dp_status_t init_group(dp_cpu_group_t *group, const dp_engine_members_t *members,
                              record_numbers_t record_numbers)
{
    const dp_topology_t *world = group->engine->topology;
    size_t width;
    dp_status_t status;

    group->size = members->count;
    group->ranks = calloc((size_t)members->count, sizeof(*group->ranks));
    if (group->ranks == NULL) return DP_ERR_NO_MEMORY;
    memcpy(group->ranks, members->ranks, (size_t)members->count * sizeof(*group->ranks));
    status = make_topology(group, world);
    if (status == DP_OK) status = fill_node_places(group, world);
    if (status != DP_OK) return status;
    width = (size_t)dp_max(group->local_size, group->node_count);
    group->ins = calloc(width, sizeof(*group->ins));
    group->outs = calloc(width, sizeof(*group->outs));
    if (group->ins == NULL || group->outs == NULL) return DP_ERR_NO_MEMORY;
    status = make_publications(group);
    if (status == DP_OK && group->node_count > 1)
        status = dp_inter_node_create(group, &group->inter_node);
    if (status != DP_OK) return status;
    return dp_control_open(&group->control, &group->lane->control, record_numbers.own,
                           record_numbers.others, group->locals, group->local_size,
                           group->local_rank, members->uid);
}

static dp_status_t make_group(dp_cpu_lane_t *lane, const dp_engine_members_t *members,
                              record_numbers_t record_numbers, dp_cpu_group_t **out,
                              dp_error_t *error)
{
    dp_cpu_engine_t *engine = lane->engine;
    dp_cpu_group_t *group = calloc(1, sizeof(*group));
    dp_status_t status;

    if (group == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    group->engine = engine;
    group->lane = lane;
    group->uid = members->uid;
    group->group_index = members->group_index;
    status = check_members(engine, members, &group->rank, error);
    if (status == DP_OK) {
        status = init_group(group, members, record_numbers);
        if (status != DP_OK) {
            dp_error_set(error, status, "engine: group '%s' of %d ranks: %s", members->name,
                         members->count, dp_status_string(status));
        }
    }
    if (status != DP_OK) {
        dp_cpu_group_end(group);
        return status;
    }
    *out = group;
    return DP_OK;
}

dp_status_t dp_cpu_group_make(dp_cpu_engine_t *engine, const dp_engine_members_t *members,
                              dp_cpu_group_t **out, dp_error_t *error)
{
    const record_numbers_t record_numbers = {(int)members->group_index, (int)members->group_index};
    dp_status_t status;

    if (members->group_index > DP_GROUPS_MAX || members->uid > DP_CONTROL_UID_MAX) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "engine: group '%s': index %u or id %u is too large", members->name,
                            members->group_index, members->uid);
    }
    status = make_group(&engine->lanes[DP_LANE_MAIN], members, record_numbers, out, error);
    if (status == DP_OK && members->group_index != 0) {
        snprintf((*out)->title, sizeof((*out)->title), " of group '%.60s'", members->name);
    }
    return status;
}

/* ---- In another lane ------------------------------------------------------------------------ */

/* Its records have the numbers of the main lane's, in a block of the lane's own. */
dp_status_t dp_cpu_group_beside(dp_cpu_group_t *group, dp_lane_t index, dp_cpu_group_t **out,
                                dp_error_t *error)
{
    const record_numbers_t record_numbers = {(int)group->group_index, (int)group->group_index};
    const dp_engine_members_t members = {.uid = group->uid,
                                         .group_index = group->group_index,
                                         .ranks = group->ranks,
                                         .count = group->size,
                                         .name = dp_lane_name(index)};
    dp_cpu_lane_t *lane = &group->engine->lanes[index];
    dp_status_t status = DP_OK;

    if (group->beside[index] == NULL) {
        status = dp_cpu_lane_prepare(lane, error);
        if (status != DP_OK) return status;
        status = make_group(lane, &members, record_numbers, &group->beside[index], error);
        if (group->beside[index] == NULL) return status;
        memcpy(group->beside[index]->title, group->title, sizeof(group->title));
    }
    *out = group->beside[index];
    return DP_OK;
}

/* ---- Pairs ---------------------------------------------------------------------------------- */

dp_status_t dp_cpu_group_pair(dp_cpu_group_t *group, int root, int peer, dp_cpu_group_t **pair)
{
    dp_cpu_engine_t *engine = group->engine;
    const int other = group->ranks[root == group->rank ? peer : root];
    const int ranks[2] = {dp_min(other, engine->rank), dp_max(other, engine->rank)};
    const dp_engine_members_t members = {.ranks = ranks, .count = 2, .name = "pair"};
    /* Each of the two keeps the record that is named after the other. */
    const record_numbers_t record_numbers = {DP_CONTROL_PAIRS + engine->topology->local_rank[other],
                                             DP_CONTROL_PAIRS + engine->local_rank};
    const int are_near = engine->topology->node[other] == engine->topology->node[engine->rank];
    dp_status_t status = DP_OK;

    if (engine->pairs[other] == NULL) {
        /* Between nodes this rank is alone on its own node, so no other rank reads its record. */
        status =
            make_group(group->lane, &members,
                       are_near ? record_numbers : (record_numbers_t){record_numbers.others, 0},
                       &engine->pairs[other], &group->failure);
        if (status != DP_OK) return status;
        engine->pairs[other]->is_pair = 1;
    }
    *pair = engine->pairs[other];
    memcpy((*pair)->title, group->title, sizeof(group->title));
    return DP_OK;
}

/* ---- Connecting ----------------------------------------------------------------------------- */

/* 1: two ranks of different nodes exchange messages, because one is the other's partner. */
static int are_partners(const dp_topology_t *topology, int a, int b)
{
    const int a_local = topology->local_rank[a];
    const int b_local = topology->local_rank[b];

    return topology->node[a] != topology->node[b] &&
           (a_local % topology->node_size[topology->node[b]] == b_local ||
            b_local % topology->node_size[topology->node[a]] == a_local);
}

dp_status_t dp_cpu_group_connect(dp_cpu_group_t *group)
{
    for (int i = 0; group->inter_node != NULL && !group->is_connected && i < group->size; i++) {
        int peer;

        if (!are_partners(group->topology, group->rank, i)) continue;
        if (dp_cpu_connect(group->lane, group->ranks[i], &peer, &group->failure) != DP_OK) {
            return group->failure.status;
        }
    }
    if (group->inter_node != NULL && !group->is_connected) dp_inter_node_find_partners(group);
    group->is_connected = 1;
    return DP_OK;
}
