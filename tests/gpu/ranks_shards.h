/*
 * ranks_shards.h - the part of the program ranks_cuda that trains with dp_shards_t.
 */
#ifndef DP_TESTS_RANKS_SHARDS_H
#define DP_TESTS_RANKS_SHARDS_H

#include "dp.h"

/* Some steps in one stage, one of which overflows on one rank. loss_scale 0: none. 0: all held. */
int run_shards(dp_context_t *dp, int stage, double loss_scale);

#endif
