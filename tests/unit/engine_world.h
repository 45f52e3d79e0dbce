/*
 * engine_world.h - ranks with an engine each, as threads of a test or as processes it forks.
 */
#ifndef DP_TESTS_ENGINE_WORLD_H
#define DP_TESTS_ENGINE_WORLD_H

#include "runtime/engine/engine.h"

/* One rank, in its own thread or process. */
typedef struct engine_rank {
    int rank, size;
    dp_topology_t topology;
    dp_bootstrap_t *bootstrap;
    dp_config_t config;
    dp_log_t log;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_engine_t *engine;
    uint64_t sequence; /* of the last operation */
    int failures;      /* checks that failed, each told on standard error */
} engine_rank_t;

typedef struct engine_world {
    int size;
    int nodes;      /* pretended */
    int interleave; /* 1: rank r on node r % nodes; 0: ranks in blocks */
    size_t arena_bytes;
    uint64_t spin_ns;
    uint64_t peer_timeout_ns; /* 0: no rank counts another's silence */
    unsigned pulls_nothing;   /* bit r: rank r takes only engine memory where it lies */
} engine_world_t;
#define ENGINE_WORLD(n, h)                                                                         \
    {                                                                                              \
        .size = (n), .nodes = (h), .arena_bytes = 256 * DP_MIB                                     \
    }

typedef void (*engine_body_t)(engine_rank_t *rank, void *user);

/* Runs body once per rank and waits for all. Returns the number of failed checks. */
int engine_world_threads(const engine_world_t *world, engine_body_t body, void *user);
int engine_world_processes(const engine_world_t *world, engine_body_t body, void *user);

/* Runs an operation and waits for it. Its status is op's. */
void engine_run(engine_rank_t *rank, dp_engine_op_t *op, dp_work_size_t size);

/* Engine memory, or a failure noted and NULL. */
void *engine_memory(engine_rank_t *rank, size_t bytes);

/* Notes a failed check. Is condition. The text's values are only asked for then: checks stand in
 * loops over every byte. */
#define engine_check(rank, condition, ...) ((condition) ? 1 : engine_failed(rank, __VA_ARGS__))
int engine_failed(engine_rank_t *rank, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* 0 */

/* Node of a rank in such a world. */
int engine_node(const engine_world_t *world, int rank);

#endif
