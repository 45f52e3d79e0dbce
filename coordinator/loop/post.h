/*
 * post.h - messages to a loop from other threads: an urgent wait, a launch that is done, an abort.
 *
 * Called by coordinator/api and the pipeline's callbacks, on any thread. No call blocks: it leaves
 * a flag in the inbox (inbox.h), which the next round takes out.
 */
#ifndef DP_COORDINATOR_LOOP_POST_H
#define DP_COORDINATOR_LOOP_POST_H

#include "coordinator/loop/loop.h"

/* A thread waits for this operation, which is not launched: the root should hold it back no longer.
 * Any thread. Cheap; may be called late or twice. */
void dp_loop_urgent(dp_loop_t *loop, uint32_t group, const char *name);

/* The data plane finished launch `sequence`. Any thread. */
void dp_loop_launch_done(dp_loop_t *loop, uint64_t sequence);

/* Describes what this rank does now, for stall reports. Any thread; copied. */
void dp_loop_set_activity(dp_loop_t *loop, const char *text);

/* Ends the world with this reason. Any thread. */
void dp_loop_abort(dp_loop_t *loop, dp_status_t status, const char *text);
/* 1: that was called; the world ends with the next round. Any thread. */
int dp_loop_is_aborting(dp_loop_t *loop);

/* Something differs between the ranks: sends this rank's history to the neighbours. If none of them
 * finds the reason within a second, the world ends with this one. Any thread; the first call
 * counts. */
void dp_loop_report_mismatch(dp_loop_t *loop, dp_status_t status, const char *text);

#endif
