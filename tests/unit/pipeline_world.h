/*
 * pipeline_world.h - ranks in one process for the pipeline's tests: a pipeline each over a fake
 * engine, and operations whose buffers and expected results are made from a description.
 */
#ifndef DP_TESTS_PIPELINE_WORLD_H
#define DP_TESTS_PIPELINE_WORLD_H

#include <pthread.h>

#include "fusion/pipeline.h"
#include "tests/unit/fake_engine.h"

enum { world_ranks_max = 4, op_tensors_max = 3 };

/* One operation of every rank. Fill in the first part, zero the rest. */
typedef struct world_op {
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;
    size_t count;
    size_t tensor_count;         /* each of count + its index elements; 0 counts as 1 */
    int root, in_place, is_same; /* is_same: out is in, where the collective allows that */
    double prescale, postscale;  /* 0 counts as 1 */
    float last_absmax;
    int is_checked; /* DP_CHECK: 1 right, 2 with a hash that cannot match */

    dp_pipeline_tensor_t tensors[world_ranks_max][op_tensors_max];
    void *saved[world_ranks_max][op_tensors_max]; /* the inputs */
    /* guarded by the world's lock */
    int done_count[world_ranks_max];
    dp_status_t status[world_ranks_max];
    char text[world_ranks_max][DP_ERROR_TEXT_MAX];
    dp_pipeline_done_t done[world_ranks_max];
} world_op_t;

typedef struct world {
    int ranks;
    fake_room_t *room;
    struct world_rank {
        struct world *world;
        int rank;
        dp_device_t *device;
        dp_engine_t *engine;
        dp_pipeline_t *pipeline;
        uint64_t launches_done; /* guarded by lock */
    } rank[world_ranks_max];
    dp_config_t config;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t sequence;
    void (*on_done)(void *user, const dp_pipeline_done_t *done); /* a test's own look */
    void *user;
} world_t;

/* fusion_bytes and slots as in the configuration. */
void world_init(world_t *world, int ranks, int compresses, size_t fusion_bytes, int slots);
void world_fini(world_t *world); /* destroys the pipelines */

void op_make(world_t *world, world_op_t *op, uint64_t seed);
void op_free(world_t *world, world_op_t *op);

/* One launch of ops[0..count) on one rank, or on all. */
void world_launch_rank(world_t *world, int rank, world_op_t *ops, size_t count, uint64_t sequence);
void world_launch(world_t *world, world_op_t *ops, size_t count);

/* Until all ranks have finished `launches` launches. */
void world_wait(world_t *world, uint64_t launches);

/* Fails the test unless the results and figures are right. tolerance: 0 for bit-equal. */
void op_check(world_t *world, world_op_t *op, double tolerance);

#endif
