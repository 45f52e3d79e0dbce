/*
 * engine_group_cases.h - groups, reduce, and blocks from rank to rank, in threads or processes.
 */
#ifndef DP_TESTS_ENGINE_GROUP_CASES_H
#define DP_TESTS_ENGINE_GROUP_CASES_H

#include "engine_world.h"

/* Bodies for engine_world_threads() and engine_world_processes(); user is the world. */
void case_reduce(engine_rank_t *rank, void *user);    /* every type, a root per piece */
void case_dropped(engine_rank_t *rank, void *user);   /* outputs that nobody wants; divisors */
void case_exchanges(engine_rank_t *rank, void *user); /* random counts, memory and capacities */
void case_staged(engine_rank_t *rank, void *user);    /* large blocks of ordinary memory */
void case_groups(engine_rank_t *rank, void *user);    /* overlapping, made and ended at random */

/* A number below `limit` that all ranks draw alike. */
uint64_t draw(uint64_t *seed, uint64_t limit);

/* An exchange of random shape in a group (NULL: the world) whose ranks of the world are
 * ranks[count]; this rank is among them. */
void check_exchange(engine_rank_t *rank, dp_engine_group_t *group, const int *ranks, int count,
                    dp_collective_t collective, uint64_t seed);

#endif
