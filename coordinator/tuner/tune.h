/*
 * tune.h - tunes DP_FUSION_HOLD of a running job (DP_TUNE=on): rank 0 measures its steps and tells
 * its coordinator how long to hold launches back. dp_step_end() calls it, on any thread.
 */
#ifndef DP_COORDINATOR_TUNE_H
#define DP_COORDINATOR_TUNE_H

#include "coordinator/tuner/tuner.h"
#include "runtime/base/common.h"

typedef struct dp_tune dp_tune_t;

/* On rank 0, if it has DP_TUNE=on. DP_ERR_NO_MEMORY. */
dp_status_t dp_tune_create(dp_context_t *context, dp_tune_t **out);
void dp_tune_destroy(dp_tune_t *tune); /* NULL is fine */

/* A step of the program is over. */
void dp_tune_step(dp_tune_t *tune);

/* 1: the search is over; *hold_ns holds from now on. */
int dp_tune_is_finished(dp_tune_t *tune, uint64_t *hold_ns);

#endif
