/*
 * loop.c - creates a loop with its parts, starts it, and ends it in order. dp_init() and
 * dp_finalize() call it (coordinator/api/world/init.c), on the program's thread. It must not know
 * how rounds are made.
 */
#include "coordinator/loop/loop.h"

#include <stdlib.h>

#include "coordinator/loop/state.h"
#include "coordinator/loop/thread.h"

dp_status_t dp_loop_neighbours(const dp_topology_t *topology, int arity, int rank, int *ranks,
                               int *out_count)
{
    dp_tree_links_t links;
    dp_status_t status = dp_tree_links_init(&links, topology, arity, rank);
    int found = 0;

    if (status != DP_OK) return status;
    DP_ASSERT(links.child_count + 1 <= DP_LOOP_NEIGHBOURS_MAX(arity));
    if (links.parent >= 0) ranks[found++] = links.parent;
    for (int i = 0; i < links.child_count; i++)
        ranks[found++] = links.children[i];
    dp_tree_links_fini(&links);
    *out_count = found;
    return DP_OK;
}

static dp_status_t open_health(dp_loop_t *loop)
{
    const dp_config_t *config = loop->options.config;
    int *ranks = malloc(((size_t)loop->links.child_count + 1) * sizeof(*ranks));
    int found = 0;
    dp_status_t status;

    if (ranks == NULL) return DP_ERR_NO_MEMORY;
    if (loop->links.parent >= 0) ranks[found++] = loop->links.parent;
    for (int i = 0; i < loop->links.child_count; i++)
        ranks[found++] = loop->links.children[i];
    status = dp_health_init(&loop->health, ranks, found, config->heartbeat_ns,
                            config->peer_timeout_ns, config->start_timeout_ns, dp_now_ns());
    free(ranks);
    return status;
}

static void loop_destroy(dp_loop_t *loop)
{
    dp_loop_thread_close(loop);
    dp_negotiator_destroy(loop->negotiator);
    dp_health_fini(&loop->health);
    dp_tree_links_fini(&loop->links);
    dp_inbox_fini(&loop->inbox);
    pthread_cond_destroy(&loop->final.ended);
    pthread_mutex_destroy(&loop->progress_lock);
    pthread_mutex_destroy(&loop->final.lock);
    free(loop->message);
    free(loop);
}

dp_status_t dp_loop_start(const dp_loop_options_t *options, dp_loop_t **out, dp_error_t *error)
{
    const dp_config_t *config = options->config;
    dp_negotiator_options_t negotiator = {.rank = options->rank,
                                          .size = options->size,
                                          .topology = options->topology,
                                          .hold_ns = config->hold_ns,
                                          .fusion_bytes = config->fusion_bytes,
                                          .stall_warn_ns = config->stall_warn_ns,
                                          .stall_limit_ns = config->stall_limit_ns,
                                          .finalize_limit_ns = config->finalize_limit_ns};
    const char *what = "its place in the tree";
    dp_loop_t *loop = calloc(1, sizeof(*loop));
    dp_status_t status;

    if (loop == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for the coordinator",
                            options->rank);
    }
    loop->options = *options;
    loop->end.mismatch_end_ns = UINT64_MAX;
    loop->trace.track = dp_trace_track(options->trace, "coordinator", DP_TRACE_TRACK_COORDINATOR);
    loop->trace.name_in = dp_trace_name(options->trace, "message in");
    loop->trace.name_out = dp_trace_name(options->trace, "message out");
    loop->trace.name_round = dp_trace_name(options->trace, "round");
    loop->spin_ns = config->spin_ns;
    dp_inbox_init(&loop->inbox, options->transport);
    pthread_mutex_init(&loop->progress_lock, NULL);
    pthread_mutex_init(&loop->final.lock, NULL);
    pthread_cond_init(&loop->final.ended, NULL);
    status = dp_tree_links_init(&loop->links, options->topology, config->tree_arity, options->rank);
    if (status != DP_OK) goto fail;
    what = "its negotiator";
    negotiator.links = &loop->links;
    status = dp_negotiator_create(&negotiator, &loop->negotiator);
    if (status != DP_OK) goto fail;
    what = "its neighbours' clocks";
    status = open_health(loop);
    if (status != DP_OK) goto fail;
    what = "libevent";
    status = dp_loop_thread_open(loop);
    if (status != DP_OK) goto fail;
    what = "its thread";
    status = dp_loop_thread_start(loop);
    if (status != DP_OK) goto fail;
    *out = loop;
    return DP_OK;
fail:
    loop_destroy(loop);
    return dp_error_set(error, status, "rank %d: the coordinator did not start: %s: %s",
                        options->rank, what, dp_status_string(status));
}

void dp_loop_stop(dp_loop_t *loop)
{
    if (loop == NULL) return;
    dp_inbox_raise(&loop->inbox, DP_INBOX_STOP);
    if (loop->thread.is_made) pthread_join(loop->thread.id, NULL);
    loop_destroy(loop);
}

/* ---- The end of the world ------------------------------------------------------------------- */

void dp_loop_leave(dp_loop_t *loop)
{
    dp_inbox_raise(&loop->inbox, DP_INBOX_FINALIZE);
}

dp_status_t dp_loop_finalize(dp_loop_t *loop)
{
    dp_status_t status;

    dp_loop_leave(loop);
    pthread_mutex_lock(&loop->final.lock);
    while (!loop->final.is_set)
        pthread_cond_wait(&loop->final.ended, &loop->final.lock);
    status = loop->final.status;
    pthread_mutex_unlock(&loop->final.lock);
    return status;
}

void dp_loop_stats(const dp_loop_t *loop, dp_loop_stats_t *out)
{
    clockid_t clock;

    out->control_sent = atomic_load_explicit(&loop->counters.sent, memory_order_relaxed);
    out->control_received = atomic_load_explicit(&loop->counters.received, memory_order_relaxed);
    out->heartbeats = atomic_load_explicit(&loop->counters.heartbeats, memory_order_relaxed);
    out->wakeups = atomic_load_explicit(&loop->counters.wakeups, memory_order_relaxed);
    out->backoffs = atomic_load_explicit(&loop->counters.backoffs, memory_order_relaxed);
    out->cpu_ns = atomic_load(&loop->counters.cpu_ns); /* set when the thread ended */
    if (out->cpu_ns == 0 && pthread_getcpuclockid(loop->thread.id, &clock) == 0) {
        out->cpu_ns = dp_loop_cpu_ns(clock);
    }
}
