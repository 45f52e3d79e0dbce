/*
 * late.h - launches of a cached schedule that has ended.
 */
#ifndef DP_COORDINATOR_LATE_H
#define DP_COORDINATOR_LATE_H

#include "coordinator/api/context/context.h"

/* late.c */
void dp_on_schedule(void *user, const dp_output_t *out);
/* 1: it is parked, or has failed here. 0: report done, which may have been changed. */
int dp_late_keeps(dp_handle_t *request, dp_pipeline_done_t *done);
void dp_late_fail(dp_context_t *context, dp_status_t status, const char *text); /* all parked */
/* Memory and contents for an absent request: this rank joined, or its own request failed. */
dp_status_t dp_late_fill(dp_handle_t *request, const dp_launch_entry_t *entry);
/* Engine memory for a request that the other ranks reduce in place, where its own is ordinary. */
dp_status_t dp_late_lend(dp_handle_t *request, const dp_signature_t *agreed);
void dp_late_free(dp_handle_t *request); /* copies the result to its own memory */

#endif
