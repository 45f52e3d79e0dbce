/*
 * run_dir.h - the directory a job's recorders live in: made at the start, gone after success.
 */
#ifndef DP_LAUNCHER_RUN_DIR_H
#define DP_LAUNCHER_RUN_DIR_H

#include "runtime/base/error.h"

/* A fresh directory, mode 0700, below XDG_RUNTIME_DIR, else TMPDIR, else /tmp. */
dp_status_t dp_run_dir_create(char *path, size_t room, dp_error_t *error);

/* Its parent, for --check. */
const char *dp_run_dir_parent(void);

/* Files anywhere below it. */
size_t dp_run_dir_files(const char *path);

/* Removes it and everything below; follows no links. 0 when it is gone. */
int dp_run_dir_remove(const char *path);

#endif
