/*
 * tune.h - the tuner at work: rank 0 measures its steps and decides, all ranks change at one place
 * of the global order.
 */
#ifndef DP_COORDINATOR_TUNE_H
#define DP_COORDINATOR_TUNE_H

#include "coordinator/tuner/tuner.h"
#include "fusion/pipeline.h"

typedef struct dp_tune dp_tune_t;

/* On every rank, where rank 0 has DP_TUNE; after the pipeline. DP_ERR_NO_MEMORY. */
dp_status_t dp_tune_create(dp_context_t *context, dp_tune_t **out);
void dp_tune_destroy(dp_tune_t *tune); /* NULL is fine */

/* A step of the program is over. */
void dp_tune_step(dp_tune_t *tune);

/* What this rank launches belongs to the step. Lock of the context held. */
void dp_tune_count(dp_tune_t *tune, const char *label, uint64_t bytes);

/* A broadcast was launched without a rank that has joined, which cannot learn what it says: nobody
 * takes it on, and there will be no other. All ranks hear of that with the launch. */
void dp_tune_stop(dp_tune_t *tune);

/* The data plane: new settings have arrived, or never will (is_good 0). Any thread. */
void dp_tune_arrived(dp_tune_t *tune, int is_good);
/* Waits until they have; 1: *out is to be taken on. Launch thread. */
int dp_tune_await(dp_tune_t *tune, dp_pipeline_settings_t *out);

#endif
