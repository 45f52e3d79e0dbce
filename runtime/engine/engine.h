/*
 * engine.h - collectives, enqueued on a device stream and completed in stream order: the table that
 * the CPU engine (cpu/) and the NCCL engine (nccl/) fill in.
 *
 * The pipeline calls it. Operations travel in lanes. In each lane every rank enqueues the
 * operations of a group in the same order, and operations of overlapping groups in one global
 * order; the coordinator sees to that, in ordered lanes the program. Between the lanes there is no
 * order: an operation never waits for one of another lane, on any rank. An engine owns the memory
 * it can reduce in: fused buffers and dp_alloc() come from it. It must not know how the ranks
 * agreed on the order.
 */
#ifndef DP_ENGINE_H
#define DP_ENGINE_H

#include "kernels/kernels.h"
#include "runtime/base/config.h"
#include "runtime/device/device.h"
#include "runtime/group/bootstrap.h"
#include "runtime/group/topology.h"
#include "runtime/trace/trace.h"

typedef struct dp_engine dp_engine_t;
typedef struct dp_engine_group dp_engine_group_t; /* ranks that run operations together */

/* Values are part of the wire protocol. The last three never reach an engine. */
typedef enum dp_collective {
    DP_COLLECTIVE_ALLREDUCE = 0,
    DP_COLLECTIVE_BROADCAST = 1,
    DP_COLLECTIVE_ALLGATHER = 2,
    DP_COLLECTIVE_REDUCE_SCATTER = 3,
    DP_COLLECTIVE_BARRIER = 4,
    DP_COLLECTIVE_REDUCE = 5,
    DP_COLLECTIVE_GATHER = 6,
    DP_COLLECTIVE_SCATTER = 7,
    DP_COLLECTIVE_ALLTOALL = 8,
    DP_COLLECTIVE_ALLGATHERV = 9,
    DP_COLLECTIVE_GATHERV = 10,
    DP_COLLECTIVE_SCATTERV = 11,
    DP_COLLECTIVE_ALLTOALLV = 12,
    DP_COLLECTIVE_REDUCE_SCATTERV = 13, /* engines see reduces with a root per piece */
    DP_COLLECTIVE_SEND = 14,            /* send and recv: one operation of two ranks */
    DP_COLLECTIVE_JOIN = 15,
    DP_COLLECTIVE_GROUP_CREATE = 16,
    DP_COLLECTIVE_GROUP_DESTROY = 17,
    DP_COLLECTIVE_COUNT = 18
} dp_collective_t;

const char *dp_collective_name(dp_collective_t collective); /* "allreduce" */
int dp_collective_reduces(dp_collective_t collective);      /* it has a dp_reduce_t, and scales */

/*
 * A gather that queued behind a large reduction would keep the program waiting for weights that
 * need no reduction; so gathers have a lane.
 *
 * Operations of ordered groups (DP_ORDER_PROGRAM) come in the program's order, those of other
 * groups in the order on which the ranks agree. In one lane rank 0 could run A before W and rank 1
 * W before A, and both would wait for ever; so ordered groups have lanes, too. A group takes one
 * that no other group of its ranks uses, while there is one.
 */
typedef enum dp_lane {
    DP_LANE_MAIN = 0,    /* all that the ranks agree on, as long as a group has no gather lane */
    DP_LANE_GATHER = 1,  /* its broadcasts and allgathers, once it has one */
    DP_LANE_ORDERED = 2, /* this one and those above: ordered groups; an ordered world has this */
    DP_LANE_ORDERED_GATHER = 3, /* and, on CPUs, for gathers this one */
    DP_LANE_COUNT = 6,
    DP_LANE_DIRECT = DP_LANE_COUNT /* for moves() and skew_ns() alone: the direct messages */
} dp_lane_t;

/* Where a collective travels in a group that has a gather lane. */
dp_lane_t dp_lane_of(dp_collective_t collective);

const char *dp_lane_name(dp_lane_t lane); /* "gather"; "ordered 2" */

/*
 * One tensor, or a part of one, inside an operation. Parts start at a multiple of DP_TALLY_BLOCK
 * elements from the tensor's start.
 *
 *                     in                                 out
 *     allreduce       [count] engine memory              [count] engine memory, may equal in
 *     broadcast       [count] engine memory (root only)  [count] any memory
 *     allgather       [count] engine memory              row r at out + r * stride, any memory
 *     reduce_scatter  row r at in + r * stride, engine   [count] any memory
 *     reduce          [count] engine memory              [count] engine memory, root only
 *
 * An out that is NULL is not wanted: what would go there is dropped (not in an allreduce).
 */
typedef struct dp_engine_piece {
    const void *in;
    void *out;
    size_t count;
    size_t stride; /* elements between rows */
    double prescale;
    double postscale;  /* 1/ranks already folded in for the average of floats */
    int exponent;      /* compressed wires: elements travel times 2^exponent */
    int root;          /* reduce: who gets it, a rank of the group; pieces may differ */
    dp_tally_t *tally; /* float sums of allreduce and reduce_scatter: of the whole result (all
                          rows), equal on all ranks; added to; NULL: not wanted. Only by engines
                          that compress: else the casts behind the engine take the figures */
} dp_engine_piece_t;

/*
 * Blocks that travel between single ranks: gather(v), scatter(v), alltoall(v), allgatherv, send.
 * Any memory on both sides. An operation carries one exchange and no pieces. Counts are in
 * elements; blocks lie packed in rank order.
 */
typedef struct dp_engine_exchange {
    const void *in;
    const size_t *send_counts; /* alltoall(v), scatter(v) on the root: [size of the group]; send on
                                  the source, gather(v), allgatherv: [1]; else not read */
    void *out;                 /* where this rank receives; its own block is copied too */
    size_t capacity;           /* of out */
    int drops;                 /* 1: what comes is dropped, whatever the capacity */
    size_t
        *recv_counts; /* receives: [size of the group] of what came from each; NULL: not wanted */
    dp_output_fn output; /* gives out where the caller cannot know how much comes: called once the
                            counts are written, on the engine's thread; NULL: out is given. Host
                            memory only */
    void *user;          /* its first argument */
    size_t received;     /* set at completion: the sum of these */
} dp_engine_exchange_t;

typedef struct dp_engine_op {
    dp_engine_group_t *group; /* NULL: the world */
    dp_lane_t lane;           /* equal on all its ranks */
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;    /* NONE, FP16 or BF16; the latter only with DP_F32 sums and averages */
    int root;          /* broadcast, gather(v), scatter(v): a rank of the group; send: the source */
    int peer;          /* send: the destination. Only the two enqueue it */
    int divisor;       /* averages of integers are divided by this; 0: by the size of the group */
    uint64_t sequence; /* 1, 2, 3, ... in the global order, for errors and the timeline */
    uint64_t digest;   /* of what is in it, where the ranks did not agree on that before: an engine
                          that can compares it before it touches other ranks' memory, and fails
                          with DP_ERR_MISMATCH; else 0 */
    dp_engine_piece_t *pieces; /* [piece_count], borrowed until completion */
    size_t piece_count;
    int is_packed; /* an allreduce or a reduce_scatter whose pieces lie in a fused buffer, at the
                      same places on all ranks, with nothing between them that matters: several may
                      be reduced as one. Of a reduce_scatter the buffer's rows lie one behind the
                      other, each begins with the first piece, and where the engine does not
                      compress each out is the piece's place in this rank's row */
    dp_engine_exchange_t *exchange; /* borrowed likewise; NULL where there are pieces */
    uint64_t give_up_ns; /* of dp_now_ns(). Run inside enqueue(), a brief operation that still waits
                            for another rank then goes on waiting on the stream's own thread, so
                            that enqueue() returns. 0: never. See brief_bytes() */
    /* set at completion. DP_ERR_TRUNCATED: a capacity did not do; all ranks of the operation know,
     * with one text, and the engine goes on. Any other failure ends the engine. */
    dp_status_t status;
    char text[DP_ERROR_TEXT_MAX]; /* why it failed */
    uint64_t begin_ns, end_ns;    /* when it ran */
    uint64_t wait_ns;             /* of that, waiting for other ranks to arrive: from begin_ns on */
    int last_rank;                /* of the world, who arrived last; -1: nobody was waited for */
    uint64_t wire_bytes;          /* sent to other nodes by this rank */
} dp_engine_op_t;

/* The members of a group, as all its ranks were told. */
typedef struct dp_engine_members {
    uint32_t uid;         /* ascending from group to group, below 2^26; the world is 0 */
    uint32_t group_index; /* 1 .. DP_GROUPS_MAX; another group that shares a rank may have it once
                             group_destroy() was called on all ranks */
    const int *ranks;     /* [count] of the world, without repeats, this one among them; copied */
    int count;
    const char *name; /* for texts; copied */
} dp_engine_members_t;

/* Memory of an engine on one rank of the node, as other ranks of the node name it. */
typedef struct dp_engine_place {
    int rank;       /* of the world */
    uint64_t place; /* by place_of() on that rank */
} dp_engine_place_t;

/* Memory of the ranks of a node that each of them can look at. Any thread. */
typedef struct dp_engine_views {
    /* UINT64_MAX: not memory of this rank's alloc(). */
    uint64_t (*place_of)(const dp_engine_t *self, const void *memory, size_t bytes);
    /* Where this process sees it, to be read and written. NULL: the rank is not of this node, or
     * has no such memory. */
    void *(*address_of)(const dp_engine_t *self, dp_engine_place_t place, size_t bytes);
    /* Makes one range of addresses that shows `bytes` (whole pages) at each of the places [count],
     * one behind the other, to be read only. The memory shown must stay allocated. */
    dp_status_t (*view_create)(dp_engine_t *self, const dp_engine_place_t *places, int count,
                               size_t bytes, const void **view, dp_error_t *error);
    void (*view_destroy)(dp_engine_t *self, const void *view, size_t bytes); /* of all places */
} dp_engine_views_t;

/*
 * A message between two ranks of an ordered group: the n-th that one sends to the other is the n-th
 * that the other receives from it. It waits for no operation of any lane.
 */
typedef struct dp_engine_message dp_engine_message_t;
struct dp_engine_message {
    int is_send;
    int other;      /* rank of the group */
    const void *in; /* of a send: [count] */
    void *out;      /* of a receive, likewise; count is its capacity */
    size_t count;
    dp_dtype_t dtype;
    uint64_t tag;        /* compared */
    const char *name;    /* "": none, which matches any; borrowed until done() */
    dp_output_fn output; /* of a receive: gives out, whatever the capacity; NULL: out is given */
    void *user;          /* its first argument */
    /* It is over: from any thread that calls the functions below, or one of the engine's. Must not
     * block. The message is its owner's again. */
    void (*done)(dp_engine_message_t *message);
    void *owner;
    /* set at completion. DP_ERR_MISMATCH, _TRUNCATED and _LEFT concern this message alone */
    dp_status_t status;
    char text[DP_NAME_MAX + 1]; /* why it failed; "": as the whole engine, with abort_text */
    const char *abort_text;
    size_t received; /* elements */
    /* the engine's */
    dp_engine_message_t *next;
    uint64_t slot; /* where a send was announced */
    size_t bytes;
    size_t moved;
    uint64_t failed_ns; /* since when the other's memory could not be read; 0: it can */
    int is_begun;
};

/* Direct messages. Any thread. */
typedef struct dp_engine_direct {
    /* 1: messages can be exchanged with that rank of the group (NULL: the world). */
    int (*reaches)(const dp_engine_t *self, const dp_engine_group_t *group, int other);
    /* Queues a message, and does what can be done at once. Never waits for another rank. On a
     * failure done() is not called. */
    dp_status_t (*post)(dp_engine_t *self, dp_engine_group_t *group, dp_engine_message_t *message);
    /* Does what can be done at once. */
    void (*progress)(dp_engine_t *self);
    /* The same until *state has reached `reached`, or until the deadline. */
    void (*wait)(dp_engine_t *self, const _Atomic uint32_t *state, uint32_t reached,
                 uint64_t deadline_ns);
    /* This rank posts nothing more. */
    void (*leave)(dp_engine_t *self);
} dp_engine_direct_t;

#define DP_ENGINE_WORKS (-1) /* the operation waits for nobody */
#define DP_ENGINE_RESTS (-2) /* there is none */

typedef struct dp_engine_ops {
    const char *name; /* "cpu", "nccl" */
    int compresses; /* 1: handles op.wire itself; 0: fused buffers hold the wire type, pack casts */
    /* Zeroed, 4096-aligned. Any thread. */
    dp_status_t (*alloc)(dp_engine_t *self, size_t bytes, void **memory);
    dp_status_t (*free)(dp_engine_t *self, void *memory);
    /* 1 when the memory can be used in place. Any thread. */
    int (*owns)(const dp_engine_t *self, const void *memory, size_t bytes);
    /* 1: a collective of these ranks [count] of the world (NULL: all) takes a tensor this large in
     * place whatever its memory; equal on all of them. Any thread. NULL: never. */
    int (*pulls)(const dp_engine_t *self, dp_collective_t collective, const int *ranks, int count,
                 size_t bytes);
    /* Makes memory of the program the engine's too, until taken back or destroy; see dp_register().
     * Any thread. */
    dp_status_t (*adopt)(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error);
    dp_status_t (*disown)(dp_engine_t *self, void *memory);
    const dp_engine_views_t *views;   /* NULL: ranks cannot look at each other's memory */
    const dp_engine_direct_t *direct; /* NULL: it knows no direct messages */
    /* Local and quick: the first operation of the group is where its ranks meet. Data-plane thread
     * only, as is the next. */
    dp_status_t (*group_create)(dp_engine_t *self, const dp_engine_members_t *members,
                                dp_engine_group_t **group, dp_error_t *error);
    /* The next operations of the group (NULL: the world) may come in its gather lane, in which no
     * operation comes before. All its ranks call this at one place of the order of the main lane,
     * so that they can make what they share. Data-plane thread only. NULL: it needs no preparation.
     */
    dp_status_t (*open_gather_lane)(dp_engine_t *self, dp_engine_group_t *group, dp_error_t *error);
    /* Makes what an ordered lane needs, unless it is there. *address: what other ranks must know of
     * it, as long as the engine; *bytes 0: nothing. Before the lane's first operation. One thread
     * at a time. NULL: it needs no preparation. */
    dp_status_t (*lane_open)(dp_engine_t *self, dp_lane_t lane, const void **address, size_t *bytes,
                             dp_error_t *error);
    /* Keeps a copy of what a rank of the world said of its end of the lane. Likewise. */
    dp_status_t (*lane_meet)(dp_engine_t *self, dp_lane_t lane, int rank, const void *address,
                             size_t bytes);
    /* Once a barrier of the group, the last operation of its lanes, is over; or after a failure
     * that ended the engine. Groups that are left go with destroy. NULL is fine. */
    void (*group_destroy)(dp_engine_t *self, dp_engine_group_t *group);
    /* Enqueues; op is borrowed until the stream has passed it. One data-plane thread per lane; on
     * an asynchronous device one for the main and the gather lane, in one order on all ranks. */
    dp_status_t (*enqueue)(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                           dp_engine_op_t *op);
    /* How much input a brief operation may have: an allreduce, reduce, broadcast or allgather of
     * this group (NULL: the world) that waits for other ranks nowhere but where op->give_up_ns ends
     * it, and takes microseconds otherwise. Equal on all its ranks. Any thread. NULL: none is
     * brief. */
    size_t (*brief_bytes)(const dp_engine_t *self, const dp_engine_group_t *group);
    /* Makes running and later operations fail with this, soon. Any thread, any number of times. */
    void (*abort)(dp_engine_t *self, dp_status_t status, const char *text);
    /* Counts what the engine does in a lane, so that standing still can be told from taking long.
     * *awaits: the rank of the world that the lane's operation waits for, DP_ENGINE_WORKS or
     * DP_ENGINE_RESTS. Any thread. NULL: it does not know. */
    uint64_t (*moves)(const dp_engine_t *self, dp_lane_t lane, int *awaits);
    /* For how long operations of a lane have waited for other ranks to come to them, up to now_ns;
     * see dp_engine_op_t.wait_ns. Any thread. NULL: it does not know. */
    uint64_t (*skew_ns)(const dp_engine_t *self, dp_lane_t lane, uint64_t now_ns);
    /* After abort or after all operations are done. */
    void (*destroy)(dp_engine_t *self);
} dp_engine_ops_t;

struct dp_engine {
    const dp_engine_ops_t *ops;
};

/* The CPU engine: shared memory inside a node, UCX between nodes. Collective. All arguments are
 * borrowed until destroy; trace may be NULL. */
dp_status_t dp_engine_cpu_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                 dp_device_t *device, const dp_config_t *config,
                                 const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                 dp_error_t *error);
void dp_engine_destroy(dp_engine_t *engine); /* NULL is fine */

#endif
