/*
 * cpu_internal.h - what the files of the CPU engine share: the engine, its groups, and the running
 * operation.
 *
 * The engine belongs to one rank. In each of its lanes operations run one at a time, under the
 * lane's run_lock, on the thread of the stream they were given to. A lane holds everything that
 * running operations change and that no group owns, so operations of two lanes never wait for each
 * other:
 *
 *   main lane                                     gather lane, ordered lanes
 *   doorbells and records in shared memory        doorbells and records of their own
 *   a UCX worker, connections, buffers            a worker, connections and buffers of their own
 *   per group: publications, numbers, partners    per group: the same, made by its first operation
 *   pairs of ranks that send to each other        -
 *
 * A group says which ranks take part, in one lane, and holds everything that depends on that.
 * Ranks, nodes and local ranks of a group are numbers of its own topology; only texts, last_rank
 * and the link speak of ranks of the world.
 *
 *   cpu.c              the ops table, the order of operations, abort
 *   steps.c            what every operation does: arrive, barrier, find the others' memory
 *   intra_node/        collectives through shared memory, or by reading the others' memory
 *   inter_node/        collectives between nodes, over UCX
 *   exchange/          blocks from rank to rank
 *   direct/            messages between two ranks of an ordered group
 *   group.c            which ranks work together
 *   lane.c             buffers and links of a lane
 *   introduce.c        what the ranks tell each other at the start
 */
#ifndef DP_ENGINE_CPU_INTERNAL_H
#define DP_ENGINE_CPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/engine/engine.h"
#include "runtime/engine/cpu/control.h"
#include "runtime/engine/cpu/layout.h"
#include "runtime/engine/cpu/inter_node/link.h"
#include "runtime/engine/cpu/intra_node/method.h"
#include "runtime/shm/arena.h"

/* Up to this many bytes of input an operation inside a node takes one barrier instead of two: every
 * rank publishes a copy of its input and computes the whole result by itself. The total bounds what
 * that costs, as each of n ranks reads n inputs. */
#define DP_EAGER_BYTES ((size_t)4 * DP_KIB)
#define DP_EAGER_TOTAL ((size_t)32 * DP_KIB)

#define DP_CPU_TITLE_ROOM 80 /* for a group's name in texts, cut if need be */

typedef struct dp_cpu_engine dp_cpu_engine_t;
typedef struct dp_cpu_group dp_cpu_group_t;
typedef struct dp_inter_node dp_inter_node_t;
typedef struct dp_inter_node_pool dp_inter_node_pool_t;
typedef struct dp_exchange_pool dp_exchange_pool_t;
typedef struct dp_direct dp_direct_t;
typedef struct dp_host_staging dp_host_staging_t;

/* An operation handed to a stream. */
typedef struct dp_cpu_task {
    dp_cpu_engine_t *engine;
    dp_stream_t *stream; /* borrowed */
    dp_engine_op_t *op;
    int goes_on; /* it gave up waiting before; now it waits for as long as it takes */
    pthread_t enqueuer;
    struct dp_cpu_task *next;
} dp_cpu_task_t;

/* The arrays in this rank's arena that its descriptor points at and the others read: one set for
 * operations with even numbers, one for those with odd. */
typedef struct dp_cpu_publication {
    dp_control_piece_t *pieces; /* [room] */
    dp_tally_t *tallies;        /* [room] */
    size_t room;
    void *grown[2];     /* pieces and tallies where they outgrew the group's memory; else NULL */
    uint64_t *manifest; /* [manifest_words] of an exchange */
    size_t manifest_words;
    void *grown_manifest; /* likewise */
    char *eager;          /* [DP_EAGER_BYTES] */
} dp_cpu_publication_t;

/* Memory and connections of one lane, used by its operations one after the other. */
typedef struct dp_cpu_lane {
    dp_cpu_engine_t *engine;
    dp_trace_track_t *track; /* of the timeline; NULL: not recorded */
    dp_control_node_t control;
    dp_activity_t activity;
    _Atomic int is_running; /* an operation is; for dp_engine_ops_t.moves() */
    dp_ucx_link_t *link;    /* NULL inside one node */
    void **met;             /* [size] ordered lanes: addresses of the other ranks' links; owned */
    pthread_mutex_t run_lock;
    /* guarded by run_lock */
    dp_inter_node_pool_t *pool;        /* buffers for traffic between nodes */
    dp_exchange_pool_t *exchange_pool; /* memory for exchanges */
    char *pulled; /* [dp_pull_buffer_bytes()] what was read from other ranks of the node */
    dp_host_staging_t *staging; /* made when first needed */
    dp_method_stats_t methods;  /* which is faster; of groups whose first rank this is */
    void *dropped; /* [DP_TALLY_BLOCK] elements: results that are only counted; NULL: the lane was
                      not prepared */
} dp_cpu_lane_t;

/* Some ranks of the world, in one lane. Fields that operations change are guarded by the lane's
 * run_lock. */
struct dp_cpu_group {
    dp_cpu_engine_t *engine;
    dp_cpu_lane_t *lane;
    dp_cpu_group_t *next;                  /* of the engine's */
    dp_cpu_group_t *beside[DP_LANE_COUNT]; /* the same ranks in other lanes than the main one, each
                                              guarded by its lane's run_lock; NULL: not yet */
    uint32_t uid;                          /* 0: the world, and pairs */
    uint32_t group_index;                  /* likewise */
    int is_pair;                   /* two ranks that send to each other, whatever their group */
    char title[DP_CPU_TITLE_ROOM]; /* for texts: " of group 'x'"; "" for the world */
    const dp_topology_t *topology; /* borrowed, or own_topology */
    dp_topology_t own_topology;
    int *ranks; /* [size] of the world */
    int rank, size;
    int node, node_count;
    int local_rank, local_size;
    const int *local_ranks;      /* [local_size] ranks of this group on this node, borrowed */
    int *locals;                 /* [local_size] their local ranks in the world */
    dp_inter_node_t *inter_node; /* partners on other nodes; NULL inside one node */
    int is_connected;            /* to them */
    uint64_t op_index;           /* 1, 2, 3, ...: equal on all its ranks */
    dp_control_t control;
    void *publication_memory; /* engine memory */
    dp_cpu_publication_t publications[2];
    dp_layout_t layout;
    const void **ins;         /* [max(local_size, node_count)] pointers for the kernels */
    void **outs;              /* likewise */
    dp_engine_op_t *op;       /* the running one, or the one that gave up waiting and is to go on */
    int is_arriving;          /* it gave up: what it publishes is published */
    dp_barrier_wait_t waited; /* at its first barrier */
    dp_error_t failure;       /* why it fails */
};

/* The hello of rank i of the world. */
typedef struct dp_cpu_hello {
    void *value;
    size_t bytes;
} dp_cpu_hello_t;

struct dp_cpu_engine {
    dp_engine_t base;
    const dp_topology_t *topology; /* borrowed */
    dp_device_t *device;           /* borrowed */
    const dp_config_t *config;     /* borrowed */
    const dp_log_t *log;           /* borrowed */
    dp_trace_t *trace;             /* borrowed; NULL: none */
    struct dp_inject *injector;    /* borrowed; NULL: no faults on purpose */
    uint64_t cause_wait_ns;        /* longest wait for the cause of a rank's absence */
    int rank, size;
    int local_rank; /* on its node */
    dp_arena_t *arena;
    dp_cpu_lane_t lanes[DP_LANE_COUNT];
    size_t pull_bytes;   /* least tensor of other memory that is taken where it lies; 0: none */
    uint64_t pull_value; /* what the others read to try it */
    pid_t *pids;         /* [ranks of the node] whose memory this rank reads; NULL: some rank of
                            the node cannot, so none does */
    _Atomic uint32_t *readers; /* [ranks of the node] shared: what each found; introduce.c */
    dp_cpu_hello_t *hellos;    /* [size] */
    dp_cpu_group_t *world;
    dp_cpu_group_t *groups; /* list of all made and not yet freed; data-plane thread only */

    _Atomic int is_aborted; /* set after the two below; pairs with acquire loads */
    pthread_mutex_t abort_lock;
    dp_status_t abort_status; /* guarded by abort_lock */
    char abort_text[DP_ERROR_TEXT_MAX];

    pthread_mutex_t task_lock;
    dp_cpu_task_t *tasks; /* guarded by task_lock; for using again */

    dp_direct_t *direct; /* messages of ordered groups */

    /* guarded by the main lane's run_lock */
    dp_cpu_group_t **pairs; /* [size] with a rank of the world; NULL: never sent to or from */
};

/* cpu/views.c: entries of the ops table. */
extern const dp_engine_views_t dp_cpu_views;

/* ---- Groups (cpu/group.c) ------------------------------------------------------------------- */

/* Local, and quick: partners are connected by the first operation. */
dp_status_t dp_cpu_group_make(dp_cpu_engine_t *engine, const dp_engine_members_t *members,
                              dp_cpu_group_t **out, dp_error_t *error);
/* After its last barrier: no rank reads what it has published any more, in any lane. */
void dp_cpu_group_end(dp_cpu_group_t *group);
/* The same ranks in another lane than the main one, made at the first call. That lane's run_lock is
 * held. */
dp_status_t dp_cpu_group_beside(dp_cpu_group_t *group, dp_lane_t lane, dp_cpu_group_t **out,
                                dp_error_t *error);
/* Leaves what others may still read to the arena, which goes with its last mapping. NULL is fine */
void dp_cpu_group_free(dp_cpu_group_t *group);

/* Connects its partners on other nodes, once. */
dp_status_t dp_cpu_group_connect(dp_cpu_group_t *group);

/* The two ranks of a send, as a group of their own. */
dp_status_t dp_cpu_group_pair(dp_cpu_group_t *group, int root, int peer, dp_cpu_group_t **pair);

/* ---- Lanes (cpu/lane.c) --------------------------------------------------------------------- */

/* Buffers, and a track of the timeline, unless they are there. Before the lane's first operation,
 * or with run_lock held. */
dp_status_t dp_cpu_lane_prepare(dp_cpu_lane_t *lane, dp_error_t *error);
/* A link to other nodes. */
dp_status_t dp_cpu_lane_link(dp_cpu_lane_t *lane, dp_error_t *error);
/* Entries of the ops table. */
dp_status_t dp_cpu_lane_open(dp_engine_t *self, dp_lane_t lane, const void **address, size_t *bytes,
                             dp_error_t *error);
dp_status_t dp_cpu_lane_meet(dp_engine_t *self, dp_lane_t lane, int rank, const void *address,
                             size_t bytes);
/* Once the links have ended. */
void dp_cpu_lane_fini(dp_cpu_lane_t *lane);

/* ---- Introductions (cpu/introduce.c) -------------------------------------------------------- */

/* Tells all ranks what they need to know, and keeps what they tell. Collective. */
dp_status_t dp_cpu_say_hello(dp_cpu_engine_t *engine, dp_bootstrap_t *bootstrap,
                             const dp_config_t *config, uint64_t deadline_ns, dp_error_t *error);

/* The number of a rank of the world at the lane's link, connected if need be. */
dp_status_t dp_cpu_connect(const dp_cpu_lane_t *lane, int world_rank, int *peer, dp_error_t *error);

/* ---- Running -------------------------------------------------------------------------------- */

/* Inside the node. Arrives, and returns when this rank's result is complete and the others have
 * finished reading its memory. */
dp_status_t dp_cpu_run_intra_node(dp_cpu_group_t *group, dp_engine_op_t *op);

/* An allreduce of private memory through shared memory, in pieces (intra_node/stage.c). */
dp_status_t dp_host_staging_reduce(dp_cpu_group_t *group, dp_engine_op_t *op);
void dp_host_staging_destroy(dp_host_staging_t *staging); /* NULL is fine */

/* Those with an exchange, anywhere. root, peer: ranks of the group. DP_ERR_TRUNCATED: with a text,
 * and all is well otherwise. */
dp_status_t dp_cpu_run_exchange(dp_cpu_group_t *group, dp_engine_op_t *op, int root, int peer);
dp_status_t dp_exchange_pool_create(int size, dp_exchange_pool_t **out, dp_error_t *error);
void dp_exchange_pool_destroy(dp_exchange_pool_t *pool); /* NULL is fine */

/* ---- Steps all are made of (cpu/steps.c) ---------------------------------------------------- */

/* The most input with which an operation inside the node takes one barrier. */
static inline size_t dp_cpu_eager_bytes(const dp_cpu_group_t *group)
{
    return dp_min(DP_EAGER_BYTES, DP_EAGER_TOTAL / (size_t)group->local_size);
}

/* Publishes what the others must know of op, waits at the barrier, and checks that all of the node
 * are at the same operation. DP_ERR_PENDING: it is eager and has waited until op->give_up_ns; the
 * next call for it goes on waiting. */
dp_status_t dp_cpu_arrive(dp_cpu_group_t *group, dp_engine_op_t *op, int is_eager);
/* Notes that the running operation waited for ranks to come to it; `last`, a rank of the world,
 * came last. This time is the skew of dp.h and of the timeline; the rest of the operation is wire.
 */
void dp_cpu_note_wait(dp_cpu_group_t *group, uint64_t begin_ns, uint64_t end_ns, int last);
/* The barrier of the group's ranks on this node: after it each may read all that the others wrote
 * before it. */
dp_status_t dp_cpu_node_barrier(dp_cpu_group_t *group);

/* Which of its two descriptors and publications the running operation uses: equal on all ranks, as
 * they number a group's operations alike. */
static inline int dp_cpu_parity(const dp_cpu_group_t *group)
{
    return (int)(group->op_index & 1);
}

static inline dp_cpu_publication_t *dp_cpu_publication(dp_cpu_group_t *group)
{
    return &group->publications[dp_cpu_parity(group)];
}

/* The publication of a local rank about the running operation. Another rank's may be read only
 * after dp_cpu_arrive(), whose barrier makes it visible. */
static inline dp_control_descriptor_t *dp_cpu_descriptor(const dp_cpu_group_t *group, int local)
{
    return &group->control.records[local]->descriptors[dp_cpu_parity(group)];
}

/* Engine memory of a local rank; NULL: not in its arena. */
static inline void *dp_cpu_memory_at(const dp_cpu_group_t *group, int local, uint64_t offset,
                                     size_t bytes)
{
    return dp_arena_at(group->engine->arena, group->locals[local], offset, bytes);
}

/* A rank of this group on this node, as a rank of the world. */
static inline int dp_cpu_world_rank(const dp_cpu_group_t *group, int local)
{
    return group->ranks[group->local_ranks[local]];
}

/* 1: figures are taken of op: a sum or average of floats. */
int dp_cpu_has_figures(const dp_engine_op_t *op);
/* 1: and some rank of this node wants them. */
int dp_cpu_wants_tally(const dp_cpu_group_t *group, const dp_engine_op_t *op);

/* A local rank's publication of a piece; NULL: it is not in its arena. */
const dp_control_piece_t *dp_cpu_published_piece(const dp_cpu_group_t *group, int local,
                                                 size_t piece);

/* Of one rank's input. */
static inline size_t dp_cpu_input_bytes(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    return group->layout.elem_count * dp_dtype_bytes(op->dtype);
}

/* 1: inside a node the collective takes memory that only one rank has. Equal on all of them. */
static inline int dp_cpu_takes_private(const dp_cpu_engine_t *engine, dp_collective_t collective)
{
    if (collective == DP_COLLECTIVE_ALLREDUCE) return 1; /* staged where nobody can read it */
    return engine->pids != NULL &&
           (collective == DP_COLLECTIVE_BROADCAST || collective == DP_COLLECTIVE_ALLGATHER ||
            collective == DP_COLLECTIVE_REDUCE_SCATTER);
}

/* 1: what another local rank published are addresses in its process (intra_node/pull.h). */
static inline int dp_cpu_is_private(const dp_cpu_group_t *group, int local)
{
    return local != group->local_rank && dp_cpu_descriptor(group, local)->has_private_memory;
}

/* Where element `element` of a piece's input lies in local rank `local`; NULL: not in its arena. */
const void *dp_cpu_input_at(const dp_cpu_group_t *group, int local, size_t piece, size_t element,
                            size_t count, size_t elem_bytes);
/* The same of its output. *out is NULL where it wants none. */
dp_status_t dp_cpu_output_at(dp_cpu_group_t *group, int local, size_t piece, size_t element,
                             size_t count, size_t elem_bytes, void **out);

/* Clears this rank's published figures of the pieces that a range touches. */
void dp_cpu_clear_tallies(dp_cpu_group_t *group, dp_range_t range);
/* Where to add those of a piece; NULL when `wanted` is 0. */
dp_tally_t *dp_cpu_tally(dp_cpu_group_t *group, size_t piece, int wanted);
/* Adds what local rank `local` published about a range to op's tallies. */
dp_status_t dp_cpu_add_tallies(dp_cpu_group_t *group, dp_engine_op_t *op, int local,
                               dp_range_t range);

/* The divisor of integers after the sum; 0: none. */
int64_t dp_cpu_divisor(const dp_cpu_group_t *group, const dp_engine_op_t *op);

/* Reduces what group->ins points at as args say, for its figures alone: nobody wants the output. */
void dp_cpu_tally_only(dp_cpu_group_t *group, const dp_reduce_args_t *args);

/* Copies the input of a rank of this node to row `row` of op's outputs. */
dp_status_t dp_cpu_copy_row(dp_cpu_group_t *group, dp_engine_op_t *op, int local, size_t row);

/* Notes why the running operation fails; is the status. */
#define dp_cpu_fail(group, status, ...) dp_error_set(&(group)->failure, status, __VA_ARGS__)
/* For an operation that finds a rank gone: waits for the abort that names the cause.
 * DP_ERR_ABORTED: it came. DP_OK: none came in time, so this rank is to name what it found. */
dp_status_t dp_cpu_await_cause(const dp_cpu_group_t *group);
/* For an offset outside of the arena of a local rank. */
dp_status_t dp_cpu_bad_offset(dp_cpu_group_t *group, int local);

#endif
