/*
 * progress.c - a waiting thread of the program makes the coordinator's rounds. Called by dp_wait()
 * and by submissions, on any thread but the coordinator's.
 *
 * An answer that comes within microseconds costs less than the wake-ups on its way: of the
 * coordinator thread when something is submitted, of the waiting thread when it is launched. So the
 * waiting thread takes ownership of progress and makes the rounds itself. The coordinator thread
 * sleeps on, or backs off if a message wakes it meanwhile (thread.c; loop.h has a diagram). Nothing
 * depends on it then, and it goes on with the rounds as soon as the waiting thread leaves them.
 */
#include "coordinator/loop/progress.h"

#include <sched.h>

#include "coordinator/loop/round.h"
#include "coordinator/loop/state.h"

/* A thread that has waited for so many times its spin goes to sleep, however much goes on: other
 * tensors may keep the rounds busy for ever. */
#define SPINS_MOST 8

/* 1: this thread owns progress. 0: another one brought *state so far, or the time is over. */
static int acquire_progress(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                            uint64_t until_ns)
{
    int is_owner = pthread_mutex_trylock(&loop->progress_lock) == 0;

    if (is_owner) return 1;
    /* The coordinator thread reads this count between its rounds and backs off, which frees the
     * lock. */
    atomic_fetch_add(&loop->waiters.for_progress, 1);
    while (!is_owner && atomic_load_explicit(state, memory_order_acquire) < reached &&
           dp_now_ns() < until_ns) {
        (void)sched_yield();
        is_owner = pthread_mutex_trylock(&loop->progress_lock) == 0;
    }
    atomic_fetch_sub(&loop->waiters.for_progress, 1);
    return is_owner;
}

/* While a thread polls, neighbours skip the wake-up. Before it hands progress back it re-arms the
 * wake-up, if the coordinator thread is asleep in its event loop; awake or backing off that one
 * looks itself. It announces its sleep only while it owns progress, so it cannot fall asleep during
 * this call. It may wake up: then neighbours write to a doorbell that nobody needed. 0: a message
 * has come in by now, and must be polled for. */
static int rearm_doorbell(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;

    return !dp_inbox_is_asleep(&loop->inbox) || transport->ops->rearm(transport) == DP_OK;
}

/* The coordinator thread is woken only if it has to do something before it would wake by itself. */
static void return_progress(dp_loop_t *loop)
{
    int is_armed = rearm_doorbell(loop);
    uint64_t due_ns;
    int must_wake;

    if (!is_armed && !loop->end.is_over && !loop->end.must_stop) {
        /* One round costs no more than to wake the thread that would make it. */
        (void)dp_loop_make_round(loop, dp_now_ns());
        is_armed = rearm_doorbell(loop);
    }
    due_ns = dp_loop_due(loop);
    /* A round may have set a deadline that is earlier than the timer the thread sleeps on. */
    must_wake =
        !is_armed || loop->end.is_over || loop->end.must_stop || due_ns < loop->sleep_until_ns;
    dp_health_sleep(&loop->health, due_ns);
    loop->others_progressed = 1;
    pthread_mutex_unlock(&loop->progress_lock);
    /* After the unlock: a submission by a thread that saw this one at work is found here or by the
     * next owner (see dp_inbox_return_progress). */
    dp_inbox_return_progress(&loop->inbox, must_wake);
    if (atomic_load(&loop->waiters.asleep) > 0) dp_inbox_end_backoff(&loop->inbox);
}

void dp_loop_queue(dp_loop_t *loop, dp_loop_node_t *node)
{
    dp_inbox_submit(&loop->inbox, node);
}

void dp_loop_submit(dp_loop_t *loop, dp_loop_node_t *node, int waits_at_once)
{
    const int may_back_off = loop->options.may_back_off;
    int makes_round;

    dp_inbox_submit(&loop->inbox, node);
    /* Where nobody polls, a round here costs no more than to wake the coordinator for it. So it
     * does where that thread is asleep: the round tells the parent, and the answer finds this
     * thread in its wait, or wakes the coordinator by the doorbell. At the root a round may launch,
     * which is left to the waiting thread: it carries the operation out, too. */
    makes_round = waits_at_once &&
                  (!may_back_off || (loop->links.parent >= 0 && dp_inbox_is_asleep(&loop->inbox)));
    if (makes_round && pthread_mutex_trylock(&loop->progress_lock) == 0) {
        if (!loop->end.is_over && !loop->end.must_stop) (void)dp_loop_make_round(loop, dp_now_ns());
        return_progress(loop);
    } else {
        dp_inbox_wake(&loop->inbox,
                      waits_at_once && may_back_off ? DP_INBOX_ASLEEP : DP_INBOX_BACKING_OFF);
    }
}

void dp_loop_look(dp_loop_t *loop)
{
    if (dp_inbox_has_submissions(&loop->inbox)) dp_inbox_wake(&loop->inbox, DP_INBOX_BACKING_OFF);
}

void dp_loop_progress_until(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                            uint64_t spin_ns, uint64_t deadline_ns)
{
    const uint64_t begin_ns = dp_now_ns();
    const uint64_t most_ns = dp_min(begin_ns + SPINS_MOST * spin_ns, deadline_ns);
    uint64_t until_ns = dp_min(begin_ns + spin_ns, deadline_ns);

    if (!acquire_progress(loop, state, reached, until_ns)) return;
    /* The acquire pairs with the release of the thread that changes *state: the data plane's
     * threads do that too, not only the rounds below. */
    while (!loop->end.is_over && !loop->end.must_stop &&
           atomic_load_explicit(state, memory_order_acquire) < reached) {
        const uint64_t now_ns = dp_now_ns();

        if (dp_loop_make_round(loop, now_ns)) {
            /* From the round's end: sending alone may take as long as the answer. */
            until_ns = dp_min(loop->active_ns + spin_ns, most_ns);
            continue;
        }
        if (now_ns >= until_ns) break;
        (void)sched_yield(); /* the rank that is to answer may share this core */
    }
    return_progress(loop);
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
