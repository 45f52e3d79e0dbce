/*
 * watch.c - finds a launched operation that does not move any more.
 *
 * The ranks carry a launch out together, so a rank whose thread hangs in the data plane keeps all
 * others there, while its coordinator goes on sending heartbeats. It does not matter how long an
 * operation takes, only that nothing moves: the engine counts what it does and says which rank it
 * waits for. After DP_STALL_WARN without a move this rank warns, after DP_STALL_LIMIT the job ends.
 * A rank that waits for no other is the cause itself and reports first; the others wait GRACE_NS
 * longer. Called by the loop, on the thread that owns progress.
 */
#include "coordinator/api/context.h"

#include <stdio.h>

#define LOOK_NS (500ull * 1000000)
#define GRACE_NS (2000ull * 1000000) /* for the report of the rank that is the cause */

/* The label of the oldest launched operation that is not over; 0: there is none. */
static int oldest_launched(dp_context_t *context, char *label, size_t room)
{
    const dp_handle_t *request;

    pthread_mutex_lock(&context->lock);
    for (request = context->live_first; request != NULL; request = request->following) {
        uint32_t state = atomic_load(&request->state);

        if (state == DP_REQUEST_LAUNCHED || state == DP_REQUEST_QUEUED) break;
    }
    if (request != NULL) snprintf(label, room, "%s", request->entry->label);
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

dp_status_t dp_on_watch(void *user, uint64_t now_ns, int *culprit, char *text, size_t room)
{
    dp_context_t *context = user;
    dp_watch_t *watch = &context->watch;
    const dp_config_t *config = &context->config;
    const dp_engine_ops_t *ops = context->engine->ops;
    char label[DP_NAME_MAX + DP_GROUP_NAME_MAX + 2];
    int awaits = -1;
    uint64_t moves, idle_ns;

    if (ops->moves == NULL || now_ns < watch->next_ns) return DP_OK;
    watch->next_ns = now_ns + LOOK_NS;
    moves = ops->moves(context->engine, &awaits);
    if (moves != watch->moves || dp_pipeline_pending(context->pipeline) == 0 ||
        watch->since_ns == 0) {
        watch->moves = moves;
        watch->since_ns = now_ns;
        watch->warn_ns = config->stall_warn_ns;
        return DP_OK;
    }
    idle_ns = now_ns - watch->since_ns;
    *culprit = awaits >= 0 ? awaits : context->rank;
    if (config->stall_limit_ns != 0 &&
        idle_ns >= config->stall_limit_ns + (awaits >= 0 ? GRACE_NS : 0) &&
        oldest_launched(context, label, sizeof(label))) {
        describe_stall(context, label, (double)idle_ns / 1e9, *culprit, text, room);
        dp_context_saw(context, DP_FAILURE_STALLED, *culprit, idle_ns);
        return DP_ERR_STALLED;
    }
    if (config->stall_warn_ns != 0 && idle_ns >= watch->warn_ns &&
        oldest_launched(context, label, sizeof(label))) {
        describe_stall(context, label, (double)idle_ns / 1e9, *culprit, text, room);
        dp_log_warn(&context->log, "%s", text);
        watch->warn_ns *= 2;
    }
    return DP_OK;
}
