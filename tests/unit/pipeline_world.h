/*
 * pipeline_world.h - ranks in one process for the pipeline's tests: a pipeline each over a fake or
 * the CPU engine, groups of them, and operations whose buffers and expected results are made from
 * a description.
 */
#ifndef DP_TESTS_PIPELINE_WORLD_H
#define DP_TESTS_PIPELINE_WORLD_H

#include <pthread.h>

#include "fusion/pipeline.h"
#include "tests/unit/fake_engine.h"

enum { world_ranks_max = 4, op_tensors_max = 4 };

/* Some ranks of the world. */
typedef struct world_group {
    int size;
    int ranks[world_ranks_max];               /* [size] of the world, ascending */
    dp_engine_members_t members;              /* of these */
    dp_pipeline_group_t own[world_ranks_max]; /* by rank of the world */
} world_group_t;

/* One operation of every rank. Fill in the first part, zero the rest. Arrays go by rank of the
 * group. */
typedef struct world_op {
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;
    world_group_t *group;        /* NULL: the world */
    size_t count;                /* of exchanges with counts of their own: the largest of a block */
    size_t tensor_count;         /* each of count + its index elements; 0 counts as 1 */
    int root, in_place, is_same; /* is_same: in and out share memory as far as allowed */
    int peer;                    /* of a send */
    unsigned absent;             /* bit r: rank r of the group has joined */
    int count_joined;
    int is_short;               /* exchanges: 1 + the rank that has room for one element less */
    double prescale, postscale; /* 0 counts as 1 */
    float last_absmax;
    int is_checked; /* DP_CHECK_DATA: 1 right, 2 with a hash that cannot match */

    dp_event_t *ready[world_ranks_max];
    dp_event_t *done_event[world_ranks_max];
    dp_pipeline_tensor_t tensors[world_ranks_max][op_tensors_max];
    void *saved[world_ranks_max][op_tensors_max];     /* the inputs */
    void *memory[world_ranks_max][op_tensors_max][2]; /* to free */
    size_t blocks[world_ranks_max][world_ranks_max];  /* exchanges: elements from, to */
    size_t send_counts[world_ranks_max][world_ranks_max];
    size_t recv_counts[world_ranks_max][world_ranks_max];
    size_t capacity[world_ranks_max];
    /* guarded by the world's lock */
    int done_count[world_ranks_max];
    int issued_count[world_ranks_max];
    int is_late[world_ranks_max]; /* done() came before the done event was reached */
    dp_status_t status[world_ranks_max];
    char text[world_ranks_max][DP_ERROR_TEXT_MAX];
    dp_pipeline_done_t done[world_ranks_max];
} world_op_t;

typedef struct world {
    int ranks;
    int compresses;
    fake_room_t *room; /* NULL: over the CPU engine */
    struct world_rank {
        struct world *world;
        int rank;
        dp_log_t log;
        dp_device_t *device;
        dp_topology_t topology;
        dp_bootstrap_t *bootstrap;
        dp_engine_t *engine;
        dp_pipeline_t *pipeline;
        uint64_t launched;
        uint64_t launches_done; /* guarded by lock */
    } rank[world_ranks_max];
    dp_config_t config;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t sequence;
    int is_awaited_soon;                                         /* of the launches */
    void (*on_done)(void *user, const dp_pipeline_done_t *done); /* a test's own look */
    void *user;
} world_t;

/* fusion_bytes and fused buffers as in the configuration. */
void world_init(world_t *world, int ranks, int compresses, size_t fusion_bytes, int buffers);
/* The same over the CPU engine, on so many pretended nodes. */
void world_init_cpu(world_t *world, int ranks, int nodes, size_t fusion_bytes, int buffers);
/* The same over a fake engine that does not compress, on devices of another kind. */
typedef struct world_maker {
    void (*make)(int rank, dp_device_t **device); /* fails the test if it cannot */
    fake_launch_fn launch;                        /* see fake_engine.h */
} world_maker_t;
void world_init_device(world_t *world, int ranks, size_t fusion_bytes, int buffers,
                       const world_maker_t *maker);
void world_fini(world_t *world); /* destroys the pipelines */

/* Makes a group of the ranks whose bits are set, or ends it; both wait. */
void world_group_make(world_t *world, world_group_t *group, uint32_t uid, unsigned members);
void world_group_end(world_t *world, world_group_t *group);

void op_make(world_t *world, world_op_t *op, uint64_t seed);
void op_free(world_t *world, world_op_t *op);
int op_size(const world_t *world, const world_op_t *op);
/* The rank in its group of a rank of the world; -1: takes no part. */
int op_place(const world_t *world, const world_op_t *op, int rank);

/* One launch of ops[0..count) on one rank, or on all that take part in the first. */
void world_launch_rank(world_t *world, int rank, world_op_t *ops, size_t count, uint64_t sequence);
void world_launch(world_t *world, world_op_t *ops, size_t count);

/* Until all ranks have finished what they launched. */
void world_wait(world_t *world);

/* Until a rank has issued an operation. */
void world_wait_issued(world_t *world, int rank, const world_op_t *op);

/* Fails the test unless the results and figures are right. tolerance: 0 for bit-equal. */
void op_check(world_t *world, world_op_t *op, double tolerance);

/* Launches and checks so many operations of any kind, in groups that overlap. adds_floats: 0 where
 * the order of additions is not that of the ranks. */
void world_run_random(world_t *world, size_t count, uint64_t seed, int adds_floats);

/* Fails the test unless it failed everywhere with this, and nothing was written. */
void op_check_failed(world_t *world, world_op_t *op, dp_status_t status, const char *text);

#endif
