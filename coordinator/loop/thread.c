/*
 * thread.c - the coordinator thread: libevent around a transport in event mode.
 *
 * The thread makes rounds as long as they find something, and polls for DP_SPIN after the last one.
 * Then it arms the transport and sleeps in the event loop until the transport's descriptor is
 * readable or the next deadline is due. While waiting threads make the rounds (progress.c) it only
 * backs off. loop.h has a diagram of its states. loop.c opens, starts and closes it; all else here
 * runs on the coordinator thread.
 */
#include "coordinator/loop/thread.h"

#include <event2/event.h>

#include "coordinator/loop/round.h"
#include "coordinator/loop/state.h"
#include "runtime/base/limits.h"
#include "runtime/base/thread.h"

#define FINISH_NS (2000ull * 1000000) /* for goodbyes after an orderly end */
#define FATAL_NS (500ull * 1000000)   /* and after a failure: a stopped rank will not answer */

/* While a slow peer has not accepted a connection yet, UCX's descriptor is readable without end and
 * without need. So many wake-ups in a row that find nothing are answered at once; after that each
 * costs a pause, or the thread would burn its core. */
#define EMPTY_WAKEUPS_MAX 16
#define EMPTY_WAKEUP_PAUSE_NS (200L * 1000)

/* How long the thread leaves the rounds to waiting threads before it looks again. A look costs them
 * some 20 us where all cores are busy, so each back-off is twice the last one, up to a bound that
 * keeps heartbeats and deadlines within a few milliseconds. */
#define BACKOFF_LEAST_NS ((uint64_t)200 * 1000)
#define BACKOFF_MOST_NS ((uint64_t)1600 * 1000)

/* ---- Backing off ---------------------------------------------------------------------------- */

/* From here until reacquire_progress() a waiting thread may make the rounds. until_ns: when this
 * thread looks again by itself; a thread that finds an earlier deadline wakes it (progress.c). */
static void release_progress(dp_loop_t *loop, uint64_t until_ns)
{
    dp_health_sleep(&loop->health, dp_loop_due(loop));
    loop->sleep_until_ns = until_ns;
    loop->others_progressed = 0;
    pthread_mutex_unlock(&loop->progress_lock);
}

static void lengthen_backoff(dp_loop_t *loop)
{
    atomic_fetch_add_explicit(&loop->counters.backoffs, 1, memory_order_relaxed);
    loop->thread.backoff_ns = dp_min(2 * loop->thread.backoff_ns, BACKOFF_MOST_NS);
}

/* Never blocks on the mutex: its owner polls, and would be disturbed by the wake-up at its unlock.
 * The back-off is announced before the trylock, and the owner unlocks before it reads the
 * announcement. So either the trylock succeeds, or the owner sees that this thread backs off and
 * wakes it if something is left to do. */
static void reacquire_progress(dp_loop_t *loop)
{
    for (;;) {
        dp_inbox_announce_backoff(&loop->inbox);
        if (pthread_mutex_trylock(&loop->progress_lock) == 0) break;
        dp_inbox_back_off(&loop->inbox, loop->thread.backoff_ns);
        lengthen_backoff(loop);
    }
    dp_inbox_announce_awake(&loop->inbox);
}

/* Leaves the rounds to other threads for a moment. */
static void back_off(dp_loop_t *loop)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t until_ns = dp_min(dp_loop_due(loop), now_ns + loop->thread.backoff_ns);

    dp_inbox_announce_backoff(&loop->inbox);
    /* A thread that tries to get the progress_lock will find what came in. If there is none, this
     * thread has to look: a submission whose thread promised to make rounds does not end a
     * back-off. */
    if (atomic_load(&loop->waiters.for_progress) == 0 && !dp_inbox_is_empty(&loop->inbox)) {
        loop->others_progressed = 0;
        dp_inbox_announce_awake(&loop->inbox);
        return;
    }
    release_progress(loop, until_ns);
    if (until_ns > now_ns) dp_inbox_back_off(&loop->inbox, until_ns - now_ns);
    lengthen_backoff(loop);
    reacquire_progress(loop);
}

/* Whether waiting threads make the rounds, and none sleeps that would need this one to. A waiting
 * thread that carries out an operation makes no rounds meanwhile. For its sake this thread backs
 * off until a back-off has the longest length, then sleeps in the event loop, where messages wake
 * it. */
static int others_make_progress(const dp_loop_t *loop)
{
    if (atomic_load(&loop->waiters.for_progress) > 0) return 1;
    if (!loop->options.may_back_off || atomic_load(&loop->waiters.asleep) > 0) return 0;
    return loop->others_progressed ||
           (atomic_load(&loop->waiters.awake) > 0 && loop->thread.backoff_ns < BACKOFF_MOST_NS);
}

/* ---- Sleeping in the event loop ------------------------------------------------------------- */

static void on_readable(evutil_socket_t fd, short what, void *user)
{
    dp_loop_t *loop = user;

    (void)fd;
    (void)what;
    loop->thread.was_signalled = 1;
}

static void on_timer(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    (void)user; /* all it has to do is to make event_base_loop() return */
}

/* deadline_ns is later than now_ns; UINT64_MAX: never. */
static void set_timer(dp_loop_t *loop, uint64_t now_ns, uint64_t deadline_ns)
{
    struct timeval wait;
    uint64_t us;

    if (deadline_ns == UINT64_MAX) return;
    us = (deadline_ns - now_ns + 999) / 1000;
    wait = (struct timeval){(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    (void)evtimer_add(loop->thread.timer, &wait);
}

/* Sleeps until the descriptor is readable or a deadline is due. Returns at once if something came
 * in meanwhile, by a thread (announce_sleep says so) or by a message (arm says so). */
static void sleep_until_due(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    const uint64_t tick_ns = dp_negotiator_deadline(loop->negotiator);
    const uint64_t deadline_ns = dp_loop_due(loop);
    const uint64_t now_ns = dp_now_ns();
    /* A root that holds launches back sends them when those in flight are done. */
    const int is_holding =
        tick_ns != UINT64_MAX && tick_ns <= now_ns + loop->options.config->hold_ns;
    dp_status_t status;

    if (deadline_ns <= now_ns) return;
    if (loop->empty_wakeups > EMPTY_WAKEUPS_MAX)
        (void)nanosleep(&(struct timespec){.tv_nsec = EMPTY_WAKEUP_PAUSE_NS}, NULL);
    dp_health_sleep(&loop->health, deadline_ns);
    if (!dp_inbox_announce_sleep(&loop->inbox, is_holding)) return;
    status = transport->ops->arm(transport);
    if (status == DP_OK) {
        set_timer(loop, now_ns, deadline_ns);
        release_progress(loop, deadline_ns);
        loop->thread.was_signalled = 0;
        (void)event_base_loop(loop->thread.base, EVLOOP_ONCE);
        reacquire_progress(loop);
        /* counted until a round finds something */
        if (loop->thread.was_signalled && loop->empty_wakeups <= EMPTY_WAKEUPS_MAX)
            loop->empty_wakeups++;
        atomic_fetch_add_explicit(&loop->counters.wakeups, 1, memory_order_relaxed);
    } else if (status != DP_ERR_PENDING) {
        dp_loop_give_up(loop, status, "the transport cannot wait for messages any more");
    }
    dp_inbox_announce_awake(&loop->inbox);
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void loop_until_over(dp_loop_t *loop)
{
    while (!loop->end.is_over && !loop->end.must_stop) {
        const uint64_t now_ns = dp_now_ns();

        if (dp_loop_make_round(loop, now_ns)) continue;
        if (others_make_progress(loop)) {
            back_off(loop);
        } else if (now_ns - loop->active_ns >= loop->spin_ns) {
            /* No thread is in a wait: the next one that comes is met by a short back-off. */
            if (atomic_load(&loop->waiters.awake) == 0) loop->thread.backoff_ns = BACKOFF_LEAST_NS;
            sleep_until_due(loop);
        }
    }
}

static void *coordinator_main(void *arg)
{
    dp_loop_t *loop = arg;
    dp_transport_t *transport = loop->options.transport;

    pthread_mutex_lock(&loop->progress_lock);
    loop_until_over(loop);
    /* A rank that is stopped before the end leaves without a goodbye: to the others it is lost. */
    if (loop->end.is_over) {
        const uint64_t patience_ns = loop->end.status == DP_OK ? FINISH_NS : FATAL_NS;

        transport->ops->close(transport, dp_now_ns() + patience_ns);
    }
    atomic_store(&loop->counters.cpu_ns, dp_loop_cpu_ns(CLOCK_THREAD_CPUTIME_ID));
    pthread_mutex_unlock(&loop->progress_lock); /* a waiting thread sees is_over or must_stop now */
    pthread_mutex_lock(&loop->final.lock);
    loop->final.status = loop->end.is_over ? loop->end.status : DP_ERR_ABORTED;
    loop->final.is_set = 1;
    pthread_cond_broadcast(&loop->final.ended);
    pthread_mutex_unlock(&loop->final.lock);
    return NULL;
}

/* ---- For loop.c ----------------------------------------------------------------------------- */

dp_status_t dp_loop_thread_open(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;
    struct event_config *config = event_config_new();

    if (config == NULL) return DP_ERR_NO_MEMORY;
    /* Without locks: one thread uses it, and others wake it by the transport. Precise: a deadline
     * of 200 us must not become the next millisecond. */
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV |
                                      EVENT_BASE_FLAG_PRECISE_TIMER);
    loop->thread.backoff_ns = BACKOFF_LEAST_NS;
    loop->thread.base = event_base_new_with_config(config);
    event_config_free(config);
    if (loop->thread.base == NULL) return DP_ERR_SYSTEM;
    loop->thread.readable = event_new(loop->thread.base, transport->ops->fd(transport),
                                      EV_READ | EV_PERSIST, on_readable, loop);
    loop->thread.timer = evtimer_new(loop->thread.base, on_timer, NULL);
    if (loop->thread.readable == NULL || loop->thread.timer == NULL) return DP_ERR_NO_MEMORY;
    return event_add(loop->thread.readable, NULL) == 0 ? DP_OK : DP_ERR_SYSTEM;
}

dp_status_t dp_loop_thread_start(dp_loop_t *loop)
{
    const int failed = dp_thread_start(&loop->thread.id, coordinator_main, loop);

    if (failed) {
        dp_log_error(loop->options.log, "coordinator: no thread: %s",
                     dp_limits_describe_start(failed));
        return DP_ERR_SYSTEM;
    }
    loop->thread.is_made = 1;
    (void)pthread_setname_np(loop->thread.id, "dp-coordinator");
    return DP_OK;
}

void dp_loop_thread_close(dp_loop_t *loop)
{
    if (loop->thread.readable != NULL) event_free(loop->thread.readable);
    if (loop->thread.timer != NULL) event_free(loop->thread.timer);
    if (loop->thread.base != NULL) event_base_free(loop->thread.base);
}
