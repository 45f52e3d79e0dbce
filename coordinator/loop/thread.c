/*
 * thread.c - the coordinator thread: libevent around a transport in event mode.
 *
 * It makes rounds as long as they bring something. Then it arms the transport and sleeps until
 * something rings or the next deadline is due; while threads that wait make the rounds themselves
 * (loop/drive.c), which takes the baton, it only backs off.
 */
#include "coordinator/loop/loop_internal.h"

#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>

#define FINISH_NS (2000ull * 1000000) /* for goodbyes after an orderly end */
#define FATAL_NS (500ull * 1000000)   /* and after a failure: who is stopped will not answer */

/* The end of a lock and its return cost some four messages per edge, as do so many rounds. */
#define RESUME_ROUNDS 4

/* While a slow peer has not accepted a connection yet, UCX's descriptor is readable without end and
 * for nothing. So many rings in a row that bring nothing are believed, then each costs a nap. */
#define BARREN_RINGS 16
#define BARREN_NAP_NS (200L * 1000)

/* How long the thread leaves the rounds to waiting threads before it looks again itself. A look
 * costs them some 20 us where all cores are busy, so each nap is twice the last. */
#define NAP_LEAST_NS ((uint64_t)200 * 1000)
#define NAP_MOST_NS ((uint64_t)1600 * 1000)

/* ---- Sleeping ----------------------------------------------------------------------------- */

static void on_ring(evutil_socket_t fd, short what, void *user)
{
    dp_loop_t *loop = user;

    (void)fd;
    (void)what;
    loop->has_rung = 1;
}

static void on_time(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    (void)user; /* that the loop returns is all that is wanted */
}

/* The baton goes from hand to hand while the thread sleeps. */
static void lay_baton_down(dp_loop_t *loop, uint64_t until_ns)
{
    dp_health_sleep(&loop->health, dp_loop_due(loop));
    loop->rest_ns = until_ns;
    loop->is_driven = 0;
    pthread_mutex_unlock(&loop->baton);
}

static void nap_longer(dp_loop_t *loop)
{
    atomic_fetch_add_explicit(&loop->backoffs, 1, memory_order_relaxed);
    loop->nap_ns = dp_min(2 * loop->nap_ns, NAP_MOST_NS);
}

/* Where another thread makes the rounds, it stays out of its way. That it backs off is said before
 * the look at the baton; the other one gives the baton back before it looks who backs off. */
static void take_baton_up(dp_loop_t *loop)
{
    for (;;) {
        dp_inbox_lie_down(&loop->inbox);
        if (pthread_mutex_trylock(&loop->baton) == 0) break;
        dp_inbox_nap(&loop->inbox, loop->nap_ns);
        nap_longer(loop);
    }
    dp_inbox_awake(&loop->inbox);
}

/* Leaves the rounds to others for a moment. */
static void nap(dp_loop_t *loop)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t until_ns = dp_min(dp_loop_due(loop), now_ns + loop->nap_ns);

    dp_inbox_lie_down(&loop->inbox);
    /* who wants the baton finds what came in; if nobody does, it has to be looked at here */
    if (atomic_load(&loop->wanted) == 0 && !dp_inbox_is_empty(&loop->inbox)) {
        loop->is_driven = 0;
        dp_inbox_awake(&loop->inbox);
        return;
    }
    lay_baton_down(loop, until_ns);
    if (until_ns > now_ns) dp_inbox_nap(&loop->inbox, until_ns - now_ns);
    nap_longer(loop);
    take_baton_up(loop);
}

/* Sleeps until something rings or is due; returns at once if something came in meanwhile. */
static void rest(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    const uint64_t tick_ns = dp_negotiator_deadline(loop->negotiator);
    const uint64_t deadline_ns = dp_loop_due(loop);
    const uint64_t now_ns = dp_now_ns();
    /* A root that holds launches back wants to know when those in flight are done. */
    const int is_holding = tick_ns != UINT64_MAX && tick_ns <= now_ns + loop->hold_ns;
    dp_status_t status;

    if (deadline_ns <= now_ns) return;
    if (loop->barren > BARREN_RINGS)
        (void)nanosleep(&(struct timespec){.tv_nsec = BARREN_NAP_NS}, NULL);
    dp_health_sleep(&loop->health, deadline_ns);
    if (!dp_inbox_sleep(&loop->inbox, is_holding)) return;
    status = transport->ops->arm(transport);
    if (status == DP_OK) {
        if (deadline_ns != UINT64_MAX) {
            const uint64_t rest_us = (deadline_ns - now_ns + 999) / 1000;
            const struct timeval wait = {(time_t)(rest_us / 1000000),
                                         (suseconds_t)(rest_us % 1000000)};

            (void)evtimer_add(loop->timer, &wait);
        }
        lay_baton_down(loop, deadline_ns);
        loop->has_rung = 0;
        (void)event_base_loop(loop->base, EVLOOP_ONCE);
        take_baton_up(loop);
        /* until a round finds something */
        if (loop->has_rung && loop->barren <= BARREN_RINGS) loop->barren++;
        atomic_fetch_add_explicit(&loop->wakeups, 1, memory_order_relaxed);
    } else if (status != DP_ERR_AGAIN) {
        dp_loop_give_up(loop, status, "the transport cannot wait for messages any more");
    }
    dp_inbox_awake(&loop->inbox);
}

/* How long after the last activity it is worth polling. */
static uint64_t polling_ns(const dp_loop_t *loop)
{
    if (atomic_load_explicit(&loop->expected, memory_order_relaxed) <= 0) return loop->spin_ns;
    return dp_max(loop->spin_ns, loop->options.expect_ns);
}

/* Whether waiting threads make the rounds, and nobody sleeps who would need this thread to. One
 * that is long at something else than rounds is not waited for: messages may come. */
static int is_driven_by_others(const dp_loop_t *loop)
{
    if (atomic_load(&loop->wanted) > 0) return 1;
    if (!loop->options.may_back_off || atomic_load(&loop->expected) > 0) return 0;
    return loop->is_driven || (atomic_load(&loop->attending) > 0 && loop->nap_ns < NAP_MOST_NS);
}

static void round_until_over(dp_loop_t *loop)
{
    while (!loop->is_over && !loop->must_stop) {
        const uint64_t now_ns = dp_now_ns();

        if (dp_loop_make_round(loop, now_ns)) continue;
        if (is_driven_by_others(loop)) {
            nap(loop);
        } else if (now_ns - loop->active_ns >= polling_ns(loop)) {
            if (atomic_load(&loop->attending) == 0) loop->nap_ns = NAP_LEAST_NS;
            rest(loop);
        }
    }
}

static void *run(void *arg)
{
    dp_loop_t *loop = arg;
    dp_transport_t *transport = loop->options.transport;

    pthread_mutex_lock(&loop->baton); /* kept from the end on: nobody makes rounds any more */
    round_until_over(loop);
    /* Who is stopped before the end leaves without a goodbye: to the others it is lost. */
    if (loop->is_over) {
        const uint64_t patience_ns = loop->end_status == DP_OK ? FINISH_NS : FATAL_NS;

        transport->ops->close(transport, dp_now_ns() + patience_ns);
    }
    atomic_store(&loop->cpu_ns, dp_loop_cpu_ns(CLOCK_THREAD_CPUTIME_ID, 0));
    pthread_mutex_unlock(&loop->baton);
    pthread_mutex_lock(&loop->lock);
    loop->final_status = loop->is_over ? loop->end_status : DP_ERR_ABORTED;
    loop->has_ended = 1;
    pthread_cond_broadcast(&loop->ended);
    pthread_mutex_unlock(&loop->lock);
    return NULL;
}

/* ---- Start and stop ----------------------------------------------------------------------- */

dp_status_t dp_loop_neighbours(const dp_topology_t *topology, int arity, int rank, int *ranks,
                               int *out_count)
{
    dp_tree_links_t node;
    dp_status_t status = dp_tree_links_init(&node, topology, arity, rank);
    int found = 0;

    if (status != DP_OK) return status;
    DP_ASSERT(node.child_count + 1 <= DP_LOOP_NEIGHBOURS_MAX(arity));
    if (node.parent >= 0) ranks[found++] = node.parent;
    for (int i = 0; i < node.child_count; i++)
        ranks[found++] = node.children[i];
    dp_tree_links_fini(&node);
    *out_count = found;
    return DP_OK;
}

static dp_status_t open_events(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    struct event_config *config = event_config_new();

    if (config == NULL) return DP_ERR_NO_MEMORY;
    /* Precise: a deadline of 200 us must not become the next millisecond. */
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV |
                                      EVENT_BASE_FLAG_PRECISE_TIMER);
    loop->base = event_base_new_with_config(config);
    event_config_free(config);
    if (loop->base == NULL) return DP_ERR_SYSTEM;
    loop->readable =
        event_new(loop->base, transport->ops->fd(transport), EV_READ | EV_PERSIST, on_ring, loop);
    loop->timer = evtimer_new(loop->base, on_time, NULL);
    if (loop->readable == NULL || loop->timer == NULL) return DP_ERR_NO_MEMORY;
    return event_add(loop->readable, NULL) == 0 ? DP_OK : DP_ERR_SYSTEM;
}

static dp_status_t open_health(dp_loop_t *loop)
{
    const dp_config_t *config = loop->options.config;
    int *ranks = malloc(((size_t)loop->node.child_count + 1) * sizeof(*ranks));
    int found = 0;
    dp_status_t status;

    if (ranks == NULL) return DP_ERR_NO_MEMORY;
    if (loop->node.parent >= 0) ranks[found++] = loop->node.parent;
    for (int i = 0; i < loop->node.child_count; i++)
        ranks[found++] = loop->node.children[i];
    status = dp_health_init(&loop->health, ranks, found, config->heartbeat_ns,
                            config->peer_timeout_ns, config->start_timeout_ns, dp_now_ns());
    free(ranks);
    return status;
}

static dp_status_t start_thread(dp_loop_t *loop)
{
    sigset_t all;
    sigset_t before;
    int failed;

    sigfillset(&all); /* signals are the program's business, on the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return DP_ERR_SYSTEM;
    loop->has_thread = 1;
    (void)pthread_setname_np(loop->thread, "dp-coordinator");
    return DP_OK;
}

static void loop_destroy(dp_loop_t *loop)
{
    if (loop->readable != NULL) event_free(loop->readable);
    if (loop->timer != NULL) event_free(loop->timer);
    if (loop->base != NULL) event_base_free(loop->base);
    dp_negotiator_destroy(loop->negotiator);
    dp_health_fini(&loop->health);
    dp_tree_links_fini(&loop->node);
    dp_inbox_fini(&loop->inbox);
    pthread_cond_destroy(&loop->ended);
    pthread_mutex_destroy(&loop->baton);
    pthread_mutex_destroy(&loop->lock);
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
                                          .resume_rounds = RESUME_ROUNDS,
                                          .may_lock = config->schedule &&
                                                      config->order != DP_CONFIG_ORDER_PROGRAM};
    const char *what = "its place in the tree";
    dp_loop_t *loop = calloc(1, sizeof(*loop));
    dp_status_t status;

    if (loop == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for the coordinator",
                            options->rank);
    }
    loop->options = *options;
    loop->explain_ns = UINT64_MAX;
    loop->nap_ns = NAP_LEAST_NS;
    atomic_init(&loop->unlock_reason, -1);
    loop->lane = dp_trace_lane(options->trace, "coordinator", DP_TRACE_LANE_COORDINATOR);
    loop->name_in = dp_trace_name(options->trace, "message in");
    loop->name_out = dp_trace_name(options->trace, "message out");
    loop->name_round = dp_trace_name(options->trace, "round");
    loop->name_lock = dp_trace_name(options->trace, "lock");
    loop->spin_ns = config->spin_ns;
    loop->hold_ns = config->hold_ns;
    dp_inbox_init(&loop->inbox, options->transport);
    atomic_init(&loop->inbox.hold_ns, config->hold_ns);
    atomic_init(&loop->inbox.fusion_bytes, config->fusion_bytes);
    pthread_mutex_init(&loop->baton, NULL);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->ended, NULL);
    status = dp_tree_links_init(&loop->node, options->topology, config->tree_arity, options->rank);
    if (status != DP_OK) goto fail;
    what = "its negotiator";
    negotiator.node = &loop->node;
    status = dp_negotiator_create(&negotiator, &loop->negotiator);
    if (status != DP_OK) goto fail;
    what = "its neighbours' clocks";
    status = open_health(loop);
    if (status != DP_OK) goto fail;
    what = "libevent";
    status = open_events(loop);
    if (status != DP_OK) goto fail;
    what = "its thread";
    status = start_thread(loop);
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
    if (loop->has_thread) pthread_join(loop->thread, NULL);
    loop_destroy(loop);
}
