/*
 * watch.c - finds a launched operation that does not move any more.
 *
 * The ranks carry a launch out together, so a rank whose thread hangs in the data plane keeps all
 * others there, while its coordinator goes on sending heartbeats. It does not matter how long an
 * operation takes, only that nothing moves: the engine counts what it does in each lane and says
 * which rank it waits for there. After DP_STALL_WARN without a move this rank warns, after
 * DP_STALL_LIMIT the job ends. A rank that waits for no other is the cause itself and reports
 * first; the others wait GRACE_NS longer. Called by the loop, on the thread that owns progress.
 */
#include "coordinator/api/world/watch.h"

#include <stdio.h>

#include "coordinator/api/operation/report.h"
#include "coordinator/api/operation/request.h"

#define LOOK_NS (500ull * 1000000)
#define GRACE_NS (2000ull * 1000000) /* for the report of the rank that is the cause */

/* The label of the oldest launched operation of a lane that is not over; 0: there is none. */
static int oldest_launched(dp_context_t *context, dp_lane_t lane, char *label, size_t room)
{
    const dp_handle_t *request;

    pthread_mutex_lock(&context->lock);
    for (request = context->requests.live_first; request != NULL;
         request = request->links.following) {
        uint32_t state = atomic_load(&request->state);

        if (state != DP_REQUEST_LAUNCHED && state != DP_REQUEST_HANDED) continue;
        if (request->lane == lane) break;
    }
    if (request != NULL) snprintf(label, room, "%s", request->name_state->label);
    pthread_mutex_unlock(&context->lock);
    return request != NULL;
}

static const char *host_name_of(const dp_context_t *context, int rank)
{
    return context->topology.host_name[context->topology.node[rank]];
}

static void describe_stall(const dp_context_t *context, const char *label, double seconds,
                           int missing, char *text, size_t room)
{
    snprintf(text, room,
             "stalled %.1f s in the data plane: tensor %.*s was launched%s; missing rank %d (%s)",
             seconds, 200, label,
             missing == context->rank ? ", and its thread neither moves nor waits for anybody"
                                      : ", and nothing comes from the rank it waits for",
             missing, host_name_of(context, missing));
}

/* 1: something is under way in the lane, and the engine has done nothing for it since the last
 * look. */
static int stands_still(dp_context_t *context, dp_lane_t lane, uint64_t now_ns)
{
    dp_watch_lane_t *watch = &context->watch.lanes[lane];
    const uint64_t moves = context->engine->ops->moves(context->engine, lane, &watch->awaits);
    const int is_busy = lane == DP_LANE_DIRECT ? watch->awaits != DP_ENGINE_RESTS
                                               : dp_pipeline_is_busy(context->pipeline, lane);

    if (moves == watch->moves && is_busy && watch->since_ns != 0) {
        return 1;
    }
    watch->moves = moves;
    watch->since_ns = now_ns;
    watch->warn_ns = context->config.stall_warn_ns;
    return 0;
}

/* The rank that is missing in a lane that stands still; is_awaited: this one waits for it. The end
 * of a group waits in the main lane, outside of the engine, for gathers that may wait for a rank.
 */
static int missing_rank(const dp_context_t *context, dp_lane_t lane, int *is_awaited)
{
    const dp_watch_lane_t *lanes = context->watch.lanes;
    int awaits = lanes[lane].awaits;

    if (awaits == DP_ENGINE_RESTS && lane == DP_LANE_MAIN) awaits = lanes[DP_LANE_GATHER].awaits;
    *is_awaited = awaits >= 0;
    return *is_awaited ? awaits : context->rank;
}

static dp_status_t judge_lane(dp_context_t *context, dp_lane_t lane, uint64_t now_ns, int *culprit,
                              char *text, size_t room)
{
    dp_watch_lane_t *watch = &context->watch.lanes[lane];
    const dp_config_t *config = &context->config;
    const uint64_t idle_ns = now_ns - watch->since_ns;
    char label[DP_NAME_MAX + DP_GROUP_NAME_MAX + 2];
    int is_awaited;

    *culprit = missing_rank(context, lane, &is_awaited);
    if (config->stall_limit_ns != 0 &&
        idle_ns >= config->stall_limit_ns + (is_awaited ? GRACE_NS : 0) &&
        oldest_launched(context, lane, label, sizeof(label))) {
        describe_stall(context, label, (double)idle_ns / 1e9, *culprit, text, room);
        dp_context_saw(context, DP_FAILURE_STALLED, *culprit, idle_ns);
        return DP_ERR_STALLED;
    }
    if (config->stall_warn_ns != 0 && idle_ns >= watch->warn_ns &&
        oldest_launched(context, lane, label, sizeof(label))) {
        describe_stall(context, label, (double)idle_ns / 1e9, *culprit, text, room);
        dp_log_warn(&context->log, "%s", text);
        watch->warn_ns *= 2;
    }
    return DP_OK;
}

dp_status_t dp_on_watch(void *user, uint64_t now_ns, int *culprit, char *text, size_t room)
{
    dp_context_t *context = user;
    int is_still[DP_LANE_COUNT + 1];
    dp_status_t status = DP_OK;

    if (now_ns < context->watch.next_ns) return DP_OK;
    context->watch.next_ns = now_ns + LOOK_NS;
    if (context->engine->ops->moves == NULL) return DP_OK;
    for (int i = 0; i <= DP_LANE_DIRECT; i++)
        is_still[i] = stands_still(context, (dp_lane_t)i, now_ns);
    for (int i = 0; status == DP_OK && i <= DP_LANE_DIRECT; i++) {
        if (!is_still[i]) continue;
        status = judge_lane(context, (dp_lane_t)i, now_ns, culprit, text, room);
    }
    return status;
}
