/*
 * strategy_threads.h - ranks as threads of one process, for tests of the trainer without libdp.
 */
#ifndef GPT2_TEST_STRATEGY_THREADS_H
#define GPT2_TEST_STRATEGY_THREADS_H

#include "examples/gpt2/strategy/strategy.h"

typedef struct threads_world threads_world_t;

threads_world_t *threads_world_create(int size);
void threads_world_destroy(threads_world_t *world);

/* Strategies made from here on have extra state for checkpoints: counts that every sync moves on,
 * THREADS_COUNTS that are the same on all ranks, and as many of each rank's own. */
#define THREADS_COUNTS ((size_t)200000) /* more than a piece of a file */
void threads_world_add_extras(threads_world_t *world);
uint64_t threads_count(const gpt2_strategy_t *strategy, int is_own, size_t index);

/* A rank's first gradient becomes Inf before `count` syncs, from number `sync` on, counted from 0.
 */
void threads_world_break(threads_world_t *world, int rank, uint64_t sync, uint64_t count);

/* The strategy of one rank; give it back with its own destroy(). With has_server only rank 0 gets
 * averages and updates, and the others get its weights. */
gpt2_strategy_t *threads_strategy(threads_world_t *world, int rank, int has_server);

#endif
