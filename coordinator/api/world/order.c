/*
 * order.c - a group becomes ordered: its ranks choose a lane and tell each other how they are
 * reached there.
 *
 *     rank    lanes of its ordered groups     least used, by the largest count of a rank
 *     0       1 0 0 0
 *     2       0 1 0 0
 *     group of 0 and 2: maximum 1 1 0 0 -> the third
 *
 * These two steps are operations of the group, which is still an agreed one. It must not know how a
 * lane moves bytes.
 */
#include "coordinator/api/world/order.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/api/operation/wait.h"
#include "coordinator/loop/post.h"

#define ORDERED_LANES (DP_LANE_COUNT - DP_LANE_ORDERED)

static void count_lane(dp_context_t *context, dp_lane_t lane, int change)
{
    pthread_mutex_lock(&context->lock);
    context->lane_users[lane] += change;
    pthread_mutex_unlock(&context->lock);
}

/* Makes this rank's end of the lane. */
static dp_status_t open_lane(dp_context_t *context, dp_lane_t lane, const void **address,
                             size_t *bytes, dp_error_t *error)
{
    dp_engine_t *engine = context->engine;

    *address = NULL;
    *bytes = 0;
    if (engine->ops->lane_open == NULL) return DP_OK;
    return engine->ops->lane_open(engine, lane, address, bytes, error);
}

/* The group's launches are the program's from here on. */
static dp_status_t begin_order(dp_group_t *group, dp_lane_t lane, dp_lane_t gather_lane,
                               dp_error_t *error)
{
    dp_context_t *context = group->context;
    dp_pipeline_group_t *plane = group == &context->world ? NULL : &group->plane;
    dp_status_t status = dp_pipeline_order(context->pipeline, plane, lane, gather_lane);

    group->ordered.uid = group->about.uid;
    group->ordered.size = group->size;
    group->ordered.name = group->name;
    if (status == DP_OK) status = dp_program_add_group(context->program, &group->ordered);
    if (status != DP_OK) {
        return dp_error_set(error, status, "rank %d: group %s: its lane cannot be made: %s",
                            context->rank, group->name, dp_status_string(status));
    }
    group->plane.own_lane = lane;
    group->order = DP_ORDER_PROGRAM;
    count_lane(context, lane, 1);
    return DP_OK;
}

/* A second lane for its gathers, so that weights do not wait behind gradients. On a GPU one
 * communicator carries all of an ordered group. */
dp_status_t dp_order_world(dp_context_t *context, dp_error_t *error)
{
    const dp_lane_t gather_lane =
        context->device->ops->is_async ? DP_LANE_MAIN : DP_LANE_ORDERED_GATHER;
    const void *address; /* the engine has told it */
    size_t bytes;
    dp_status_t status = open_lane(context, DP_LANE_ORDERED, &address, &bytes, error);

    if (status == DP_OK && gather_lane != DP_LANE_MAIN)
        status = open_lane(context, gather_lane, &address, &bytes, error);
    if (status == DP_OK) status = begin_order(&context->world, DP_LANE_ORDERED, gather_lane, error);
    if (status == DP_OK && gather_lane != DP_LANE_MAIN) count_lane(context, gather_lane, 1);
    return status;
}

/* ---- Groups --------------------------------------------------------------------------------- */

/* The same on all ranks of the group. */
static dp_status_t choose_lane(dp_group_t *group, dp_lane_t *out)
{
    dp_context_t *context = group->context;
    dp_options_t options = DP_OPTIONS_INIT;
    int32_t users[ORDERED_LANES];
    dp_handle_t *handle;
    dp_status_t status;
    int least = 0;

    pthread_mutex_lock(&context->lock);
    for (int i = 0; i < ORDERED_LANES; i++)
        users[i] = context->lane_users[DP_LANE_ORDERED + i];
    pthread_mutex_unlock(&context->lock);
    options.reduce = DP_MAX;
    status =
        dp_allreduce(group, "lanes in use", users, users, ORDERED_LANES, DP_I32, &options, &handle);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    for (int i = 1; i < ORDERED_LANES; i++)
        if (users[i] < users[least]) least = i;
    *out = (dp_lane_t)(DP_LANE_ORDERED + least);
    return status;
}

static int has_several_nodes(const dp_group_t *group)
{
    const dp_topology_t *topology = &group->context->topology;

    for (int i = 1; i < group->size; i++)
        if (topology->node[group->members[i]] != topology->node[group->members[0]]) return 1;
    return 0;
}

/* all: [size] counts, and behind it what they count. */
static dp_status_t keep_addresses(dp_group_t *group, dp_lane_t lane, const size_t *counts,
                                  const char *all)
{
    dp_engine_t *engine = group->context->engine;
    dp_status_t status = DP_OK;

    for (int i = 0; i < group->size && status == DP_OK; i++) {
        status = engine->ops->lane_meet(engine, lane, group->members[i], all, counts[i]);
        all += counts[i];
    }
    return status;
}

/* Every rank tells the others how it is reached in the lane. */
static dp_status_t exchange_addresses(dp_group_t *group, dp_lane_t lane, const void *address,
                                      size_t bytes)
{
    enum { ADDRESS_MAX = 16384 };
    const size_t size = (size_t)group->size;
    size_t *counts = calloc(size, sizeof(*counts));
    char *all = malloc(size * ADDRESS_MAX);
    dp_handle_t *handle;
    dp_status_t status = counts == NULL || all == NULL ? DP_ERR_NO_MEMORY : DP_OK;

    if (status == DP_OK) {
        status = dp_allgatherv(group, "lane addresses", address, bytes, all, size * ADDRESS_MAX,
                               counts, DP_U8, NULL, &handle);
    }
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    if (status == DP_OK) status = keep_addresses(group, lane, counts, all);
    free(counts);
    free(all);
    return status;
}

dp_status_t dp_order_group(dp_group_t *group)
{
    dp_context_t *context = group->context;
    dp_error_t error = {DP_OK, ""};
    const void *address = NULL;
    size_t bytes = 0;
    dp_lane_t lane;
    dp_status_t status = choose_lane(group, &lane);

    if (status != DP_OK) return status; /* the world has ended */
    status = open_lane(context, lane, &address, &bytes, &error);
    if (status == DP_OK && context->engine->ops->lane_meet != NULL && has_several_nodes(group))
        status = exchange_addresses(group, lane, address, bytes);
    if (status == DP_OK) status = begin_order(group, lane, DP_LANE_MAIN, &error);
    if (status == DP_OK) return DP_OK;
    dp_loop_abort(context->loop, status, error.text[0] != '\0' ? error.text : "no ordered lane");
    return status;
}

void dp_order_end(dp_group_t *group)
{
    if (!dp_group_is_ordered(group)) return;
    dp_program_remove_group(group->context->program, &group->ordered);
    count_lane(group->context, group->plane.own_lane, -1);
}
