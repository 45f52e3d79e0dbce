/*
 * drive.c - the coordinator's rounds on a thread of the program that waits for their outcome.
 *
 * An answer that comes within microseconds is worth less than the wake-ups on its way: of the
 * coordinator when something is submitted, of the waiting thread when it is over. So the waiting
 * thread takes the baton and makes the rounds itself. The coordinator thread, which a message may
 * wake meanwhile, backs off until nobody has done so for a moment; then it sleeps in its event loop
 * again. It is never needed for progress here, and always there when this thread goes.
 */
#include "coordinator/loop/loop_internal.h"

#include <sched.h>

#define SPINS_MOST 8 /* however much goes on, a thread that has waited so long sleeps */

/* 1: the baton is this thread's. */
static int take_baton(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                      uint64_t until_ns)
{
    int has = pthread_mutex_trylock(&loop->baton) == 0;

    if (has) return 1;
    atomic_fetch_add(&loop->wanted, 1);
    while (!has && atomic_load_explicit(state, memory_order_acquire) < reached &&
           dp_now_ns() < until_ns) {
        (void)sched_yield();
        has = pthread_mutex_trylock(&loop->baton) == 0;
    }
    atomic_fetch_sub(&loop->wanted, 1);
    return has;
}

/* Neighbours ring no bell for who polls. From here on they shall, if the coordinator sleeps where
 * it hears one; awake or napping it looks itself. It lay down with the baton in hand, so it does
 * not do so now, and what is found is at worst too deep a sleep. 0: something has come in by now.
 */
static int let_ring(dp_loop_t *loop)
{
    dp_transport_t *transport = loop->options.transport;

    return !dp_inbox_is_asleep(&loop->inbox) || transport->ops->rearm(transport) == DP_OK;
}

/* The coordinator thread is told only where it has to do something before it would look anyway. */
static void give_baton_back(dp_loop_t *loop)
{
    int can_ring = let_ring(loop);
    uint64_t due_ns;
    int must_wake;

    if (!can_ring && !loop->is_over && !loop->must_stop) {
        (void)dp_loop_make_round(loop, dp_now_ns()); /* no dearer than to wake who makes it */
        can_ring = let_ring(loop);
    }
    due_ns = dp_loop_due(loop);
    must_wake = !can_ring || loop->is_over || loop->must_stop || due_ns < loop->rest_ns;
    dp_health_sleep(&loop->health, due_ns);
    loop->is_driven = 1;
    pthread_mutex_unlock(&loop->baton);
    dp_inbox_hand_over(&loop->inbox, must_wake);
    if (atomic_load(&loop->expected) > 0) dp_inbox_rouse(&loop->inbox);
}

void dp_loop_submit(dp_loop_t *loop, dp_loop_node_t *const *nodes, size_t node_count,
                    int will_drive)
{
    const int may_back_off = loop->options.may_back_off;

    dp_inbox_submit(&loop->inbox, nodes, node_count);
    /* Where no core is this rank's alone a round here is no dearer than to wake who makes it. */
    if (will_drive && !may_back_off && pthread_mutex_trylock(&loop->baton) == 0) {
        if (!loop->is_over && !loop->must_stop) (void)dp_loop_make_round(loop, dp_now_ns());
        give_baton_back(loop);
    } else {
        dp_inbox_wake(&loop->inbox,
                      will_drive && may_back_off ? DP_INBOX_DOZING : DP_INBOX_NAPPING);
    }
}

void dp_loop_progress_until(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                            uint64_t spin_ns, uint64_t deadline_ns)
{
    const uint64_t begin_ns = dp_now_ns();
    const uint64_t most_ns = dp_min(begin_ns + SPINS_MOST * spin_ns, deadline_ns);
    uint64_t until_ns = dp_min(begin_ns + spin_ns, deadline_ns);

    if (!take_baton(loop, state, reached, until_ns)) return;
    while (!loop->is_over && !loop->must_stop &&
           atomic_load_explicit(state, memory_order_acquire) < reached) {
        const uint64_t now_ns = dp_now_ns();

        if (dp_loop_make_round(loop, now_ns)) {
            /* from its end: to send alone may take as long as the answer */
            until_ns = dp_min(dp_now_ns() + spin_ns, most_ns);
            continue;
        }
        if (now_ns >= until_ns) break;
        (void)sched_yield(); /* who is to answer may have been put on this core */
    }
    give_baton_back(loop);
}
