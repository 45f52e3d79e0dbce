/*
 * host_control.c - how the ranks of a host meet: counters in shared memory, and sleeping on them.
 *
 * A waiter polls for spin_ns, then says for whom it sleeps and sleeps on its own bell. Only the one
 * it named rings, so a meet of many costs a rank at most one system call per sleeper that waits for
 * it. It must not know what is exchanged.
 */
#include "runtime/engine/host_control.h"

#include "runtime/base/futex.h"

#define SLEEP_NS 100000000u /* a sleep is checked again after this: never wait unboundedly */
#define POLLS 64            /* between two looks at the clock and at is_off */

size_t dp_control_bytes(int count)
{
    return (size_t)count * sizeof(dp_control_rank_t);
}

void dp_control_init(dp_control_t *control, void *memory, int self, int count, uint64_t spin_ns,
                     const _Atomic int *is_off)
{
    *control = (dp_control_t){
        .ranks = memory, .self = self, .count = count, .spin_ns = spin_ns, .is_off = is_off};
}

static int is_off(const dp_control_t *control)
{
    return atomic_load_explicit(control->is_off, memory_order_seq_cst);
}

static int has_come(const dp_control_t *control, int other)
{
    /* pairs with the store in dp_control_meet(): what the other wrote before is seen */
    return atomic_load_explicit(&control->ranks[other].step, memory_order_seq_cst) >= control->step;
}

/* Polls until the other has come, until it has taken too long, or until is_off. */
static void poll_for(const dp_control_t *control, int other)
{
    uint64_t start_ns = 0;

    if (control->spin_ns == 0) return;
    for (unsigned polls = 1; !has_come(control, other); polls++) {
        uint64_t now;

        dp_spin_pause();
        if (polls % POLLS != 0) continue;
        now = dp_now_ns();
        if (start_ns == 0) start_ns = now;
        if (now - start_ns >= control->spin_ns || is_off(control)) return;
    }
}

static dp_status_t wait_for(dp_control_t *control, int other)
{
    dp_control_rank_t *own = &control->ranks[control->self];

    poll_for(control, other);
    while (!has_come(control, other)) {
        const uint32_t heard = atomic_load_explicit(&own->bell, memory_order_seq_cst);

        if (is_off(control)) return DP_ERR_ABORTED;
        /* Said before the last look, as the other steps before it looks who sleeps: one of the two
         * sees the other. */
        atomic_store_explicit(&own->awaits, (uint32_t)other + 1, memory_order_seq_cst);
        if (!has_come(control, other)) dp_futex_wait_shared(&own->bell, heard, SLEEP_NS);
        atomic_store_explicit(&own->awaits, 0, memory_order_seq_cst);
    }
    return DP_OK;
}

static void ring(dp_control_rank_t *rank)
{
    atomic_fetch_add_explicit(&rank->bell, 1, memory_order_seq_cst);
    dp_futex_wake_shared(&rank->bell);
}

dp_status_t dp_control_meet(dp_control_t *control, dp_meet_t *meet)
{
    const uint32_t self = (uint32_t)control->self;
    uint64_t begin_ns = 0;

    control->step++;
    atomic_store_explicit(&control->ranks[self].step, control->step, memory_order_seq_cst);
    for (int i = 0; i < control->count; i++) {
        dp_control_rank_t *rank = &control->ranks[i];

        if (i == control->self) continue;
        if (atomic_load_explicit(&rank->awaits, memory_order_seq_cst) == self + 1) ring(rank);
    }
    for (int i = 0; i < control->count; i++) {
        dp_status_t status;

        if (i == control->self || has_come(control, i)) continue;
        if (begin_ns == 0) begin_ns = dp_now_ns();
        status = wait_for(control, i);
        if (status != DP_OK) return status;
    }
    if (meet != NULL) {
        meet->wait_begin_ns = begin_ns;
        meet->wait_ns = begin_ns == 0 ? 0 : dp_now_ns() - begin_ns;
    }
    return DP_OK;
}

void dp_control_wake(dp_control_t *control)
{
    ring(&control->ranks[control->self]);
}
