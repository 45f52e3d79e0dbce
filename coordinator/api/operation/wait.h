/*
 * wait.h - waits that the library itself needs, beside dp_wait() and its kin in dp.h.
 *
 * Called by gradients_sync.c, group.c and coordinator/shards, on the program's threads; launch.c
 * asks for the skew of a lane.
 */
#ifndef DP_COORDINATOR_WAIT_H
#define DP_COORDINATOR_WAIT_H

#include "coordinator/api/context/context.h"

/* dp_wait() for ever. The exact figures of the result are merged into tally on DP_OK; from
 * an engine that does not compress they are those of what came to this rank. */
dp_status_t dp_wait_tally(dp_handle_t *handle, dp_tally_t *tally);

/* Blocks until no operation of the group is live. */
void dp_group_drain(dp_group_t *group);

/* For how long operations of a lane have waited for ranks to come, up to now_ns; 0 where
 * the engine does not know. */
uint64_t dp_context_lane_skew(const dp_context_t *context, dp_lane_t lane, uint64_t now_ns);

#endif
