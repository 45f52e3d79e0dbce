/*
 * control.h - the barrier between the ranks of a node: counters in shared memory, and how a rank
 * sleeps until another one has come. Used by the thread that runs the engine's operations.
 *
 * Every collective inside a node is a series of barriers. At a barrier a rank adds 1 to its own
 * step counter, then waits until the counter of every other rank has come as far. After the barrier
 * the other ranks may read everything that a rank wrote before it.
 *
 *   rank 0's record        rank 1's record        one record per rank and group, each in its
 *   step        17         step        18         owner's arena; only the owner writes step,
 *   awaits  rank 1         awaits       -         awaits and descriptors, all others read
 *   descriptors[0], [1]    descriptors[0], [1]
 *
 * Two descriptors per rank, for even and odd operations, are enough: between writing one and
 * writing it again a rank passes at least one barrier, which no rank enters before it has finished
 * reading the old contents.
 *
 * A record is made when first needed and stays until the engine ends, so a rank that lags behind
 * never reads memory that is gone. Groups reuse the numbers of groups that have ended, and so their
 * records. The counter of a new group starts at its uid << DP_CONTROL_STEP_BITS, above any value
 * that an earlier group with this index could reach: a rank that still waits in the earlier group
 * passes, and one that waits in the new group goes on waiting for a counter that is old.
 */
#ifndef DP_ENGINE_CPU_CONTROL_H
#define DP_ENGINE_CPU_CONTROL_H

#include <stdalign.h>
#include <stdatomic.h>

#include "runtime/shm/arena.h"

#define DP_CONTROL_LINE 128     /* two cache lines: the neighbour is fetched too */
#define DP_CONTROL_STEP_BITS 38 /* for barriers in a group's life: 10000 a second for 300 days */
#define DP_CONTROL_UID_MAX ((1u << (64 - DP_CONTROL_STEP_BITS)) - 1)

/* Numbers of records: the world 0, groups their index, then pairs of
 * ranks, by local rank. */
#define DP_CONTROL_PAIRS (DP_GROUPS_MAX + 1)

/* A rank's description of one operation, written before the barrier at which it arrives
 * and read after it. Offsets are into its arena. */
typedef struct dp_control_descriptor {
    /* compared with this rank's own: all ranks must be at the same operation */
    uint64_t op; /* which of this group */
    uint64_t elem_count;
    uint64_t piece_count;
    uint64_t digest;
    uint32_t kind; /* collective, type, reduction, wire */
    uint16_t wants_tally;
    uint8_t has_private_memory; /* its pieces are addresses in its process, of no use to others but
                                   to read */
    uint8_t use_staging;        /* the first rank's: an allreduce of such memory is staged */
    uint64_t arrive_ns;
    uint64_t pieces;   /* dp_control_piece_t [piece_count] */
    uint64_t tallies;  /* dp_tally_t [piece_count] */
    uint64_t eager;    /* small operations: all inputs, packed */
    uint64_t manifest; /* exchanges: dp_exchange_manifest_t */
    uint64_t table;    /* likewise, of all ranks; set before the second barrier */
    uint64_t staging;  /* this rank's staging buffers (stage.c); set before the second barrier */
    uint64_t scratch;  /* what came from other nodes; set before the second barrier */
    uint64_t heard_ns; /* likewise: when the first of every other node's messages was here, where
                          this rank waited for it; 0: it did not */
    int heard_from;    /* the rank of the world that came last */
} dp_control_descriptor_t;

#define DP_CONTROL_NONE UINT64_MAX /* an offset: not wanted */

/* Offsets in the rank's arena, or addresses in its process. */
typedef struct dp_control_piece {
    uint64_t in;
    uint64_t out;
} dp_control_piece_t;

/* One rank's part in one group. */
typedef struct dp_control_record {
    alignas(DP_CONTROL_LINE) _Atomic uint64_t step; /* barriers it has come to */
    _Atomic uint32_t awaits; /* local rank of the group it sleeps for, + 1; 0: it is awake */
    alignas(DP_CONTROL_LINE) dp_control_descriptor_t descriptors[2];
} dp_control_record_t;

/* The progress of the engine, for threads that watch it. */
typedef struct dp_activity {
    _Atomic uint64_t moves;
    _Atomic int awaits; /* rank of the world; -1, DP_ENGINE_WORKS: nobody */
    /* How long operations have waited for ranks to come, which other threads read while one waits.
     * One word, so that no reader sees half of a change: nobody waits: that time; while an
     * operation waits: DP_ACTIVITY_WAITS and the moment at which it would have been 0. */
    _Atomic uint64_t skew;
} dp_activity_t;

#define DP_ACTIVITY_WAITS (1ull << 63)

static inline void dp_activity_moved(dp_activity_t *activity)
{
    atomic_fetch_add_explicit(&activity->moves, 1, memory_order_relaxed);
    atomic_store_explicit(&activity->awaits, -1, memory_order_relaxed);
}

static inline void dp_activity_awaits(dp_activity_t *activity, int rank)
{
    atomic_store_explicit(&activity->awaits, rank, memory_order_relaxed);
}

/* An operation begins to wait for a rank to come, at now_ns, or goes on to. The lane's running
 * operation calls this and the next, and nobody else. */
static inline void dp_activity_wait_begin(dp_activity_t *activity, uint64_t now_ns)
{
    const uint64_t skew = atomic_load_explicit(&activity->skew, memory_order_relaxed);

    if ((skew & DP_ACTIVITY_WAITS) != 0) return;
    atomic_store_explicit(&activity->skew, DP_ACTIVITY_WAITS | (now_ns - skew),
                          memory_order_relaxed);
}

/* All have come, or the operation is over; nothing if it does not wait. */
static inline void dp_activity_wait_end(dp_activity_t *activity, uint64_t now_ns)
{
    const uint64_t skew = atomic_load_explicit(&activity->skew, memory_order_relaxed);

    if ((skew & DP_ACTIVITY_WAITS) == 0) return;
    atomic_store_explicit(&activity->skew, now_ns - (skew & ~DP_ACTIVITY_WAITS),
                          memory_order_relaxed);
}

/* Up to now_ns. Any thread. */
static inline uint64_t dp_activity_skew_ns(const dp_activity_t *activity, uint64_t now_ns)
{
    const uint64_t skew = atomic_load_explicit(&activity->skew, memory_order_relaxed);

    if ((skew & DP_ACTIVITY_WAITS) == 0) return skew;
    /* the wait may have begun just behind now_ns */
    return now_ns - dp_min(skew & ~DP_ACTIVITY_WAITS, now_ns);
}

/* This rank's view of the control block of its node. */
typedef struct dp_control_node {
    dp_arena_t *arena; /* borrowed */
    char *memory;      /* shared, borrowed: per rank a doorbell and where its records lie */
    size_t stride;
    int self; /* local rank of the world, as are all here */
    int count;
    uint64_t spin_ns;
    unsigned polls;                /* looks between two offers of the core to another thread */
    const _Atomic int *is_aborted; /* not 0: stop waiting; borrowed */
    const int *ranks;              /* [count] of the world; borrowed */
    dp_activity_t *activity;       /* borrowed */
} dp_control_node_t;

/* One rank's view of a group; belongs to the thread that runs operations. */
typedef struct dp_control {
    const dp_control_node_t *node; /* borrowed */
    dp_control_record_t **records; /* [count]; NULL: not made yet, or not seen */
    const int *locals;             /* [count] local ranks of the world; borrowed */
    int number;                    /* of the others' records */
    int self;
    int count;
    uint64_t step; /* of records[self] */
} dp_control_t;

/* When a rank waited at a barrier. */
typedef struct dp_barrier_wait {
    int is_arrival;    /* in: the others have not come to the operation yet, so it counts as skew */
    uint64_t begin_ns; /* 0: everybody was there */
    uint64_t end_ns;
} dp_barrier_wait_t;

/* Of a node's control block, for so many ranks. */
size_t dp_control_bytes(int count);

/* memory: zeroed at the start, shared by the node's ranks; borrowed, as are the others. */
void dp_control_node_init(dp_control_node_t *node, dp_arena_t *arena, void *memory, int self,
                          int count, uint64_t spin_ns, const _Atomic int *is_aborted,
                          const int *ranks, dp_activity_t *activity);

/* Joins the ranks locals[count], of which this one is locals[self], by record own_number of this
 * rank and record number of the others. uid: ascending from use to use of the number. */
dp_status_t dp_control_open(dp_control_t *control, const dp_control_node_t *node, int own_number,
                            int number, const int *locals, int count, int self, uint32_t uid);
/* After a barrier that every rank enters only once it has finished reading this rank's
 * descriptors. */
void dp_control_close(dp_control_t *control);

/* What a thread does now and then that has polled for waited_ns: offers its core, as the other may
 * have been put on it. Not at once where each rank has a core: if a program of somebody else wants
 * the core, it keeps it for milliseconds, and most waits are over sooner than YIELD_NS. */
void dp_control_offer_core(const dp_control_node_t *node, uint64_t waited_ns);

/* The two halves of a barrier. Enter tells the others that this rank has come to the next one. */
void dp_control_enter(dp_control_t *control);
/* Await waits until all have, or until give_up_ns (UINT64_MAX: never). waited: zeroed before the
 * first call for this barrier but for is_arrival, filled in on DP_OK; may be NULL.
 * DP_ERR_PENDING: somebody has not come yet; to be called again, on any thread, before the next
 * barrier is entered. DP_ERR_ABORTED: is_aborted was set meanwhile. */
dp_status_t dp_control_await(dp_control_t *control, uint64_t give_up_ns, dp_barrier_wait_t *waited);
/* Both. */
dp_status_t dp_control_barrier(dp_control_t *control);

/* Makes this rank, if it sleeps at a barrier, look at is_aborted at once. Any thread. */
void dp_control_wake(const dp_control_node_t *node);

#endif
