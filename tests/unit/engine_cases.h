/*
 * engine_cases.h - cases that every world of ranks must pass, threads or processes.
 */
#ifndef DP_TESTS_ENGINE_CASES_H
#define DP_TESTS_ENGINE_CASES_H

#include "engine_world.h"

/* Bodies for engine_world_threads() and engine_world_processes(); user is the world. */
void case_reductions(engine_rank_t *rank, void *user); /* every type and operation */
void case_wires(engine_rank_t *rank, void *user);      /* fp16, bf16, exponents */
void case_moves(engine_rank_t *rank, void *user);      /* broadcast, allgather, barrier */
void case_scatter(engine_rank_t *rank, void *user);    /* reduce_scatter */
void case_grouping(engine_rank_t *rank, void *user);   /* bits and figures, however cut */
void case_large(engine_rank_t *rank, void *user);      /* several chunks */
void case_repeat(engine_rank_t *rank, void *user);     /* many small operations in a row */

/* ---- engine_group_cases.c: groups, and blocks from rank to rank ------------------------------- */

void case_reduce(engine_rank_t *rank, void *user);       /* every type, a root per piece */
void case_dropped(engine_rank_t *rank, void *user);      /* outputs that nobody wants; divisors */
void case_exchanges(engine_rank_t *rank, void *user);    /* random counts, memory and capacities */
void case_large_blocks(engine_rank_t *rank, void *user); /* large blocks of ordinary memory */
void case_groups(engine_rank_t *rank, void *user);       /* overlapping, made and ended at random */

/* A number below `limit` that all ranks draw alike. */
uint64_t draw(uint64_t *seed, uint64_t limit);

/* An exchange of random shape in a group (NULL: the world) whose ranks of the world are
 * ranks[count]; this rank is among them. */
void check_exchange(engine_rank_t *rank, dp_engine_group_t *group, const int *ranks, int count,
                    dp_collective_t collective, uint64_t seed);

/* ---- engine_lane_cases.c: lanes do not wait for each other ------------------------------------- */

void case_lane_gathers_pass(engine_rank_t *rank,
                            void *user); /* a reduction that a rank withholds */
void case_lane_reduces_pass(engine_rank_t *rank, void *user); /* a gather that a rank withholds */
void case_lanes_at_once(engine_rank_t *rank, void *user);     /* both, many, in groups too */

#endif
