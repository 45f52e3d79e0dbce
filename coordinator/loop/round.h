/*
 * round.h - a round of the coordinator, for the thread that owns progress: the coordinator thread
 * (thread.c) or a waiting one (progress.c).
 */
#ifndef DP_COORDINATOR_LOOP_ROUND_H
#define DP_COORDINATOR_LOOP_ROUND_H

#include "coordinator/loop/loop.h"

/* This rank cannot go on; the negotiator tells the others. By the owner of progress. */
void dp_loop_give_up(dp_loop_t *loop, dp_status_t status, const char *text);

/* One round, by the owner of progress. 1: it found something to do. */
int dp_loop_make_round(dp_loop_t *loop, uint64_t now_ns);

/* When a round must be made even if nothing comes in. By the owner of progress. */
uint64_t dp_loop_due(const dp_loop_t *loop);

#endif
