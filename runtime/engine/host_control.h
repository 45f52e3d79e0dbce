/*
 * host_control.h - how the ranks of a host meet: counters in shared memory, and sleeping on them.
 *
 * All that ranks do together is a series of meets. A meet is a step of the own counter, then
 * waiting until every other counter has come as far. What a rank wrote before a meet the others may
 * read after it. Two slots per rank, used in turn, are enough: whoever writes a slot again has
 * been in a meet since, at which everybody had finished with its old contents.
 */
#ifndef DP_ENGINE_HOST_CONTROL_H
#define DP_ENGINE_HOST_CONTROL_H

#include <stdalign.h>
#include <stdatomic.h>

#include "runtime/base/common.h"

#define DP_CONTROL_LINE 128 /* two cache lines: the neighbour is fetched too */

/* What a rank tells the others about one operation. Offsets are into its arena. */
typedef struct dp_control_slot {
    uint64_t op;          /* which operation of this engine, for checking */
    uint64_t elem_count;  /* likewise */
    uint64_t piece_count; /* likewise */
    uint32_t kind;        /* likewise: collective, type, reduction */
    uint32_t wants_tally;
    uint64_t arrive_ns;
    uint64_t pieces;  /* dp_control_piece_t [piece_count] */
    uint64_t tallies; /* dp_tally_t [piece_count] */
    uint64_t eager;   /* small operations: all inputs, packed */
    uint64_t scratch; /* what came from other hosts; set before the second meet */
} dp_control_slot_t;

typedef struct dp_control_piece {
    uint64_t in;
    uint64_t out;
} dp_control_piece_t;

/* One rank's part of the control block. */
typedef struct dp_control_rank {
    alignas(DP_CONTROL_LINE) _Atomic uint64_t step; /* meets it has come to */
    _Atomic uint32_t awaits; /* local rank it sleeps for, + 1; 0: it is awake */
    alignas(DP_CONTROL_LINE) _Atomic uint32_t bell; /* rung by whom it awaits; a futex word */
    alignas(DP_CONTROL_LINE) dp_control_slot_t slots[2];
} dp_control_rank_t;

/* One rank's view; belongs to the thread that runs operations, but for wake(). */
typedef struct dp_control {
    dp_control_rank_t *ranks; /* [count], shared, borrowed */
    int self;
    int count;
    uint64_t spin_ns;
    uint64_t step;             /* of ranks[self] */
    const _Atomic int *is_off; /* not 0: stop waiting; borrowed */
} dp_control_t;

/* What a meet cost. */
typedef struct dp_meet {
    uint64_t wait_ns; /* 0: everybody was there */
    uint64_t wait_begin_ns;
} dp_meet_t;

size_t dp_control_bytes(int count);

/* memory: zeroed at the start, shared by the host's ranks; borrowed. */
void dp_control_init(dp_control_t *control, void *memory, int self, int count, uint64_t spin_ns,
                     const _Atomic int *is_off);

/* DP_ERR_ABORTED: is_off was set meanwhile. meet may be NULL. */
dp_status_t dp_control_meet(dp_control_t *control, dp_meet_t *meet);

/* Makes a meet look at is_off at once. Any thread. */
void dp_control_wake(dp_control_t *control);

#endif
