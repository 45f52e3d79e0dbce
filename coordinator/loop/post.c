/*
 * post.c - what threads of the program and of the data plane ask of a loop: they leave something in
 * its inbox, wait for its end, read its counters. Any thread; functions of loop.h.
 *
 * These calls do not touch the negotiator, the transport or the neighbours: those belong to the
 * thread that owns progress, and these calls neither take progress_lock nor wait for it.
 */
#include "coordinator/loop/loop_internal.h"

void dp_loop_urgent(dp_loop_t *loop, uint32_t group, const char *name)
{
    dp_inbox_urgent(&loop->inbox, group, name);
}

void dp_loop_launched(dp_loop_t *loop, uint64_t sequence)
{
    dp_inbox_launched(&loop->inbox, sequence);
}

void dp_loop_set_activity(dp_loop_t *loop, const char *text)
{
    dp_inbox_set_activity(&loop->inbox, text);
}

void dp_loop_abort(dp_loop_t *loop, dp_status_t status, const char *text)
{
    dp_inbox_abort(&loop->inbox, status, text);
}

int dp_loop_is_aborting(dp_loop_t *loop)
{
    return dp_inbox_is_aborted(&loop->inbox);
}

void dp_loop_report_mismatch(dp_loop_t *loop, dp_status_t status, const char *text)
{
    dp_inbox_report_mismatch(&loop->inbox, status, text);
}

void dp_loop_count_sleeping_waiter(dp_loop_t *loop, int change)
{
    atomic_fetch_add(&loop->waiters.asleep, change);
    /* The coordinator thread reads this count before it announces a back-off. One that begins just
     * now is therefore missed here; it ends by itself, 1.6 ms later at most. */
    if (change > 0) dp_inbox_end_backoff(&loop->inbox);
}

void dp_loop_count_awake_waiter(dp_loop_t *loop, int change)
{
    atomic_fetch_add(&loop->waiters.awake, change);
}

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

uint64_t dp_loop_cpu_ns(clockid_t clock, uint64_t otherwise)
{
    struct timespec spent;

    if (clock_gettime(clock, &spent) != 0) return otherwise;
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
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
        out->cpu_ns = dp_loop_cpu_ns(clock, atomic_load(&loop->counters.cpu_ns));
    }
}
