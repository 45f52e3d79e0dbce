/*
 * strategy_threads.h - ranks as threads of one process, for tests of the trainer without libdp.
 */
#ifndef GPT2_TEST_STRATEGY_THREADS_H
#define GPT2_TEST_STRATEGY_THREADS_H

#include "examples/gpt2/train/strategy.h"

typedef struct threads_world threads_world_t;

threads_world_t *threads_world_create(int size);
void threads_world_destroy(threads_world_t *world);

/* The strategy of one rank; give it back with its own destroy(). With has_server only rank 0 gets
 * averages and updates, and the others get its weights. */
gpt2_strategy_t *threads_strategy(threads_world_t *world, int rank, int has_server);

#endif
