/*
 * record.h - which steps `dptrace record` takes: the next ones of a job that runs.
 *
 * Recorders are always on and keep the latest records, so nothing has to be switched: the command
 * waits until the steps have ended and then reads them.
 */
#ifndef DP_DPTRACE_RECORD_H
#define DP_DPTRACE_RECORD_H

#include "launcher/dptrace/timeline.h"

/*
 * Waits until every rank in run_dir has ended `count` steps that none has ended yet, or the job is
 * over: then those that have ended count. on_begin hears the window before the wait.
 *
 * @return DP_OK, DP_ERR_INVALID (no steps are marked, or none was ended), DP_ERR_SYSTEM
 */
dp_status_t dp_record_await(const char *run_dir, uint64_t count, dp_step_window_t *window,
                            void (*on_begin)(const dp_step_window_t *window), dp_error_t *error);

#endif
