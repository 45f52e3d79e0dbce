/*
 * report.c - tells the launcher why this rank's world ended, as typed facts.
 *
 * The loop calls it, from the thread that runs the coordinator: dp_on_loss() when this rank itself
 * sees a neighbour go, then dp_context_report() once, out of dp_on_fatal(). dprun judges by these
 * facts (runtime/base/failure.h); which of the ranks is to blame for the job is not decided here.
 */
#include "coordinator/api/operation/report.h"

#include <stdio.h>

#include "coordinator/api/operation/request.h"

void dp_context_saw(dp_context_t *context, dp_failure_kind_t kind, int rank, uint64_t age_ns)
{
    context->seen.kind = kind;
    context->seen.rank = rank;
    context->seen.age_ns = age_ns;
}

void dp_on_loss(void *user, int rank, uint64_t silent_ns)
{
    dp_context_saw(user, silent_ns > 0 ? DP_FAILURE_SILENT : DP_FAILURE_LOST, rank, silent_ns);
}

void dp_on_running(void *user)
{
    const dp_context_t *context = user;

    if (context->bootstrap->ops->running != NULL)
        context->bootstrap->ops->running(context->bootstrap);
}

/* Adds what this rank was waiting for: its oldest operation that is not complete. */
static void add_oldest_operation(dp_context_t *context, dp_failure_t *failure)
{
    const uint64_t now_ns = dp_now_ns();
    const dp_handle_t *request;

    pthread_mutex_lock(&context->lock);
    for (request = context->requests.live_first; request != NULL;
         request = request->links.following)
        if (atomic_load(&request->state) != DP_REQUEST_DONE && !request->is_absent) break;
    if (request != NULL) {
        snprintf(failure->operation, sizeof(failure->operation), "%s", request->name_state->label);
        if (now_ns > request->submit_ns) failure->operation_ns = now_ns - request->submit_ns;
    }
    pthread_mutex_unlock(&context->lock);
}

void dp_context_report(dp_context_t *context, dp_status_t status, int culprit, const char *text)
{
    const dp_topology_t *topology = &context->topology;
    const dp_seen_t *seen = &context->seen;
    dp_failure_t failure;

    dp_failure_init(&failure, dp_failure_kind_of(status), culprit, text);
    failure.is_seen = culprit == context->rank;
    /* Other ranks hear only a status, in which silence and a broken connection look alike. */
    if (seen->kind != DP_FAILURE_OTHER && seen->rank == culprit) {
        failure.kind = seen->kind;
        failure.age_ns = seen->age_ns;
        failure.is_seen = 1;
    }
    if (context->has_topology && culprit >= 0 && culprit < context->size) {
        snprintf(failure.node, sizeof(failure.node), "%s",
                 topology->host_name[topology->node[culprit]]);
    }
    failure.has_step = atomic_load_explicit(&context->steps.are_declared, memory_order_relaxed);
    failure.step = atomic_load_explicit(&context->steps.current, memory_order_relaxed);
    add_oldest_operation(context, &failure);
    context->bootstrap->ops->report(context->bootstrap, &failure);
}
