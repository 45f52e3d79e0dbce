/*
 * nccl_world.h - ranks with a NCCL engine each, as threads of a test without a GPU. engine_run(),
 * engine_check() and engine_memory() of engine_world.h work on them.
 */
#ifndef DP_TESTS_NCCL_WORLD_H
#define DP_TESTS_NCCL_WORLD_H

#include <pthread.h>

#include "engine_world.h"

#define NCCL_WORLD_RANKS 20

typedef struct nccl_world {
    engine_world_t world;                  /* first: what the shared cases get */
    uint64_t limit_ns, start_ns, abort_ns; /* 0: the default */
    uint64_t late_ns;                      /* all ranks but the first come so much later */
    int is_bare;                           /* of the variables that dprun sets */
    /* Looks at how the engine was made; NULL: it must be. */
    void (*opened)(engine_rank_t *rank, dp_status_t status, const dp_error_t *error);
} nccl_world_t;
#define NCCL_WORLD(n)                                                                              \
    {                                                                                              \
        .world = {.size = (n), .nodes = 1 }                                                        \
    }

/* Runs body once per rank and waits for all. Returns the number of failed checks. */
int nccl_world_run(const nccl_world_t *world, engine_body_t body, void *user);

/* One rank, by hand. */
dp_status_t nccl_rank_open(const nccl_world_t *world, engine_rank_t *rank, dp_error_t *error);
void nccl_rank_close(engine_rank_t *rank);

/* Enqueues all and waits for them. */
void nccl_run_all(engine_rank_t *rank, dp_engine_op_t *ops, size_t count, dp_work_size_t size);

typedef struct nccl_end {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int is_over;
} nccl_end_t;

#endif
