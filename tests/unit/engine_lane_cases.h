/*
 * engine_lane_cases.h - the two lanes of an engine do not wait for each other, threads or
 * processes.
 */
#ifndef DP_TESTS_ENGINE_LANE_CASES_H
#define DP_TESTS_ENGINE_LANE_CASES_H

#include "engine_world.h"

/* Bodies for engine_world_threads() and engine_world_processes(); user is the world. */
void case_lane_gathers_pass(engine_rank_t *rank,
                            void *user); /* a reduction that a rank withholds */
void case_lane_reduces_pass(engine_rank_t *rank, void *user); /* a gather that a rank withholds */
void case_lanes_at_once(engine_rank_t *rank, void *user);     /* both, many, in groups too */

#endif
