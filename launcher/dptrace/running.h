/*
 * running.h - finds the run directory of a job that runs on this machine, for `dptrace top`: by
 * folder, by pid, or the only one there is. main.c calls it, on dptrace's only thread.
 */
#ifndef DP_DPTRACE_RUNNING_H
#define DP_DPTRACE_RUNNING_H

#include <stddef.h>

#include "runtime/base/error.h"

/*
 * The run directory of a job: `what` is the directory, the number of a process (dprun, or one of
 * its ranks), or NULL for the only job of this user that runs here. DP_ERR_INVALID: there is none,
 * or there are several; the text names them.
 */
dp_status_t dp_running_find(const char *what, char *path, size_t room, dp_error_t *error);

/* 1: somebody still works in it: dprun and its agent hold a lock on it while they do. */
int dp_running_is_on(const char *run_dir);

#endif
