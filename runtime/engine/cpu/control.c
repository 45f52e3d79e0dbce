/*
 * control.c - the barrier between the ranks of a node: counters in shared memory, and sleeping on
 * them.
 *
 * A rank that waits polls for spin_ns; then it writes into its record which rank it waits for and
 * sleeps on its own doorbell, a futex in shared memory. Only the rank named there rings, so a
 * barrier costs a rank at most one system call per rank that sleeps for it. All but
 * dp_control_wake() is called by the thread that runs operations. It must not know what is
 * exchanged.
 */
#include "runtime/engine/cpu/control.h"

#include <sched.h>
#include <stdlib.h>

#include "runtime/base/thread.h"

#define SLEEP_NS 100000000u /* a sleep is checked again after this: never wait unboundedly */
#define POLLS 64            /* between two looks at the clock and at is_aborted */
#define YIELD_NS 10000u
#define PER_PAGE 8 /* records that are made together */
#define PAGE ((size_t)4096)
_Static_assert(PER_PAGE * sizeof(dp_control_record_t) <= PAGE, "they fit");

/* One rank's part of the control block. */
typedef struct doorbell {
    alignas(DP_CONTROL_LINE) _Atomic uint32_t count; /* rung by the rank it awaits; a futex */
    /* Offsets in its arena of its records, PER_PAGE together; 0: not made. Written once. */
    alignas(DP_CONTROL_LINE) _Atomic uint64_t pages[];
} doorbell_t;

/* ---- The block and its records -------------------------------------------------------------- */

static size_t stride_for(int count)
{
    const size_t records = DP_CONTROL_PAIRS + (size_t)count;
    const size_t pages = (records + PER_PAGE - 1) / PER_PAGE;

    return dp_align_up(sizeof(doorbell_t) + pages * sizeof(uint64_t), DP_CONTROL_LINE);
}

size_t dp_control_bytes(int count)
{
    return (size_t)count * stride_for(count);
}

void dp_control_node_init(dp_control_node_t *node, dp_arena_t *arena, void *memory, int self,
                          int count, uint64_t spin_ns, const _Atomic int *is_aborted,
                          const int *ranks, dp_activity_t *activity)
{
    *node = (dp_control_node_t){.arena = arena,
                                .memory = memory,
                                .stride = stride_for(count),
                                .self = self,
                                .count = count,
                                .spin_ns = spin_ns,
                                .polls = POLLS,
                                .is_aborted = is_aborted,
                                .ranks = ranks,
                                .activity = activity};
}

static doorbell_t *doorbell_of(const dp_control_node_t *node, int local)
{
    return (doorbell_t *)(void *)(node->memory + (size_t)local * node->stride);
}

/* A rank's record; NULL: it has not made it. */
static dp_control_record_t *find_record(const dp_control_node_t *node, int local, int number)
{
    _Atomic uint64_t *place = &doorbell_of(node, local)->pages[number / PER_PAGE];
    const uint64_t offset = atomic_load_explicit(place, memory_order_seq_cst);
    dp_control_record_t *page;

    if (offset == 0) return NULL;
    page = dp_arena_at(node->arena, local, offset, PAGE);
    return page == NULL ? NULL : &page[number % PER_PAGE];
}

/* This rank's record, made if need be: only one thread does so. */
static dp_status_t make_record(const dp_control_node_t *node, int number, dp_control_record_t **out)
{
    _Atomic uint64_t *place = &doorbell_of(node, node->self)->pages[number / PER_PAGE];
    void *page;
    dp_status_t status;

    *out = find_record(node, node->self, number);
    if (*out != NULL) return DP_OK;
    status = dp_arena_alloc(node->arena, PAGE, &page);
    if (status != DP_OK) return status;
    atomic_store_explicit(place, dp_arena_offset(node->arena, page, PAGE), memory_order_seq_cst);
    *out = find_record(node, node->self, number);
    return DP_OK;
}

dp_status_t dp_control_open(dp_control_t *control, const dp_control_node_t *node, int own_number,
                            int number, const int *locals, int count, int self, uint32_t uid)
{
    dp_control_record_t *own;
    dp_status_t status;

    *control = (dp_control_t){
        .node = node, .locals = locals, .number = number, .self = self, .count = count};
    if (uid > DP_CONTROL_UID_MAX) return DP_ERR_UNSUPPORTED;
    control->step = (uint64_t)uid << DP_CONTROL_STEP_BITS;
    control->records = calloc((size_t)count, sizeof(dp_control_record_t *));
    if (control->records == NULL) return DP_ERR_NO_MEMORY;
    status = make_record(node, own_number, &own);
    if (status != DP_OK) return status;
    control->records[self] = own;
    atomic_store_explicit(&own->step, control->step, memory_order_seq_cst);
    return DP_OK;
}

void dp_control_close(dp_control_t *control)
{
    free(control->records);
    *control = (dp_control_t){0};
}

/* ---- Meeting -------------------------------------------------------------------------------- */

static int is_aborted(const dp_control_t *control)
{
    return atomic_load_explicit(control->node->is_aborted, memory_order_seq_cst);
}

void dp_control_offer_core(const dp_control_node_t *node, uint64_t waited_ns)
{
    if (waited_ns >= YIELD_NS || node->polls == 1) (void)sched_yield();
}

static dp_control_record_t *record_of(const dp_control_t *control, int other)
{
    if (control->records[other] == NULL) {
        control->records[other] =
            find_record(control->node, control->locals[other], control->number);
    }
    return control->records[other];
}

static int has_come(const dp_control_t *control, int other)
{
    const dp_control_record_t *record = record_of(control, other);

    /* pairs with the store in dp_control_enter(): what the other wrote before is seen */
    return record != NULL &&
           atomic_load_explicit(&record->step, memory_order_seq_cst) >= control->step;
}

/* Polls until the other has come, for spin_ns at most and not beyond give_up_ns, or until the
 * engine is aborted. */
static void poll_for_rank(const dp_control_t *control, int other, uint64_t give_up_ns)
{
    const uint64_t spin_ns = control->node->spin_ns;
    uint64_t start_ns = 0;

    if (spin_ns == 0) return;
    for (unsigned polls = 1; !has_come(control, other); polls++) {
        uint64_t now;

        dp_spin_pause();
        if (polls % control->node->polls != 0) continue;
        now = dp_now_ns();
        if (start_ns == 0) start_ns = now;
        if (now - start_ns >= spin_ns || now >= give_up_ns || is_aborted(control)) return;
        dp_control_offer_core(control->node, now - start_ns);
    }
}

static dp_status_t sleep_for_rank(dp_control_t *control, int other, uint64_t give_up_ns)
{
    dp_control_record_t *own = control->records[control->self];
    doorbell_t *doorbell = doorbell_of(control->node, control->node->self);

    poll_for_rank(control, other, give_up_ns);
    dp_activity_awaits(control->node->activity, control->node->ranks[control->locals[other]]);
    while (!has_come(control, other)) {
        const uint32_t heard = atomic_load_explicit(&doorbell->count, memory_order_seq_cst);
        uint64_t sleep_ns = SLEEP_NS;

        if (is_aborted(control)) return DP_ERR_ABORTED;
        if (give_up_ns != UINT64_MAX) {
            const uint64_t now = dp_now_ns();

            if (now >= give_up_ns) return DP_ERR_PENDING;
            sleep_ns = dp_min(sleep_ns, give_up_ns - now);
        }
        /* This rank stores `awaits`, then loads the other's step; dp_control_enter() of the other
         * stores its step, then loads `awaits`. All four are sequentially consistent, so at least
         * one of the two sees the other: either this rank does not sleep or it is woken. The same
         * holds for a record that the other is only making: its offset is stored before its step.
         */
        atomic_store_explicit(&own->awaits, (uint32_t)other + 1, memory_order_seq_cst);
        if (!has_come(control, other)) dp_futex_wait_shared(&doorbell->count, heard, sleep_ns);
        atomic_store_explicit(&own->awaits, 0, memory_order_seq_cst);
    }
    dp_activity_moved(control->node->activity);
    return DP_OK;
}

static void ring_doorbell(doorbell_t *doorbell)
{
    atomic_fetch_add_explicit(&doorbell->count, 1, memory_order_seq_cst);
    dp_futex_wake_shared(&doorbell->count);
}

void dp_control_enter(dp_control_t *control)
{
    const uint32_t self = (uint32_t)control->self;

    control->step++;
    atomic_store_explicit(&control->records[self]->step, control->step, memory_order_seq_cst);
    for (int i = 0; i < control->count; i++) {
        const dp_control_record_t *record;

        if (i == control->self) continue;
        record = record_of(control, i);
        if (record == NULL) continue; /* its owner cannot have looked for us yet */
        if (atomic_load_explicit(&record->awaits, memory_order_seq_cst) == self + 1) {
            ring_doorbell(doorbell_of(control->node, control->locals[i]));
        }
    }
}

dp_status_t dp_control_await(dp_control_t *control, uint64_t give_up_ns, dp_barrier_wait_t *waited)
{
    for (int i = 0; i < control->count; i++) {
        dp_status_t status;

        if (i == control->self || has_come(control, i)) continue;
        if (waited != NULL && waited->begin_ns == 0) {
            waited->begin_ns = dp_now_ns();
            if (waited->is_arrival)
                dp_activity_wait_begin(control->node->activity, waited->begin_ns);
        }
        status = sleep_for_rank(control, i, give_up_ns);
        if (status != DP_OK) return status;
    }
    if (waited != NULL && waited->begin_ns != 0) waited->end_ns = dp_now_ns();
    return DP_OK;
}

dp_status_t dp_control_barrier(dp_control_t *control)
{
    dp_control_enter(control);
    return dp_control_await(control, UINT64_MAX, NULL);
}

void dp_control_wake(const dp_control_node_t *node)
{
    if (node->memory != NULL) ring_doorbell(doorbell_of(node, node->self));
}
