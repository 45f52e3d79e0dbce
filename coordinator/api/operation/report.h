/*
 * report.h - tells the launcher why the world ended.
 *
 * Called on the thread that owns progress.
 */
#ifndef DP_COORDINATOR_REPORT_H
#define DP_COORDINATOR_REPORT_H

#include "coordinator/api/context/context.h"

/* Tells the launcher why the world ended. */
void dp_context_saw(dp_context_t *context, dp_failure_kind_t kind, int rank, uint64_t age_ns);
void dp_on_loss(void *user, int rank, uint64_t silent_ns);
void dp_on_running(void *user);
void dp_context_report(dp_context_t *context, dp_status_t status, int culprit, const char *text);

#endif
