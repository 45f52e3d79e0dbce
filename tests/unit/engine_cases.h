/*
 * engine_cases.h - what every world of ranks must do right, threads or processes.
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

#endif
