/*
 * launch.h - from the coordinator to the data plane and back.
 *
 * The callbacks of the loop run on the thread that owns progress, those of the pipeline on threads
 * of the data plane.
 */
#ifndef DP_COORDINATOR_LAUNCH_H
#define DP_COORDINATOR_LAUNCH_H

#include "coordinator/api/context/context.h"

/* Hands a launch to the data plane, and marks its agreement in the timeline's lane.
 * digest: the engines of the ranks compare it; 0: nothing to compare. */
void dp_launch(dp_context_t *context, const dp_output_t *launch, uint64_t digest,
               dp_trace_track_t *track);

/* Callbacks of the loop and the pipeline. */
void dp_on_launch(void *user, const dp_output_t *launch);
void dp_on_joined(void *user, void *request, int last_rank);
void dp_on_fail(void *user, void *request, dp_status_t status, const char *text);
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text);
void dp_on_done(void *user, const dp_pipeline_done_t *done);
void dp_on_launch_done(void *user, uint64_t sequence);
void dp_on_issued(void *user, void *request);

#endif
