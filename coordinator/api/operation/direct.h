/*
 * direct.h - a send or receive in an ordered group: from its request to the engine and back,
 * without the coordinator and the pipeline.
 *
 * Called by submit.c and wait.c, on the program's threads.
 */
#ifndef DP_COORDINATOR_DIRECT_H
#define DP_COORDINATOR_DIRECT_H

#include "coordinator/api/operation/request.h"
#include "coordinator/api/operation/submit.h"

/* 1: this operation goes that way. */
int dp_is_direct(const dp_group_t *group, dp_collective_t collective);

/* DP_OK: the engine can carry this message; else the reason is the context's error text. */
dp_status_t dp_direct_check(const dp_group_t *group, const dp_submit_t *what);

/* The request waits for no agreement: it is launched from here on. Lock held. */
void dp_direct_describe(dp_handle_t *request, const dp_submit_t *what);

/* Hands it to the engine; it may be over before this returns. No lock held. */
void dp_direct_submit(dp_handle_t *request);

/* Moves messages until the request's state is `wanted` or later (1), or the deadline has passed. */
int dp_direct_wait(dp_handle_t *request, uint32_t wanted, uint64_t deadline_ns);

/* Does what can be done without waiting. */
void dp_direct_look(dp_context_t *context);

#endif
