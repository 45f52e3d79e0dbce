/*
 * run_dir.h - the directory a job's recorders live in: made at the start, gone after success, kept
 * after a failure until newer failures take its place. run_dir.c names the callers.
 */
#ifndef DP_LAUNCHER_RUN_DIR_H
#define DP_LAUNCHER_RUN_DIR_H

#include <stdint.h>

#include "runtime/base/error.h"

/* A fresh directory, mode 0700, below XDG_RUNTIME_DIR, else TMPDIR, else /tmp. */
dp_status_t dp_run_dir_create(char *path, size_t room, dp_error_t *error);

/* Its parent, for --check. */
const char *dp_run_dir_parent(void);

/* Holds it, for as long as the descriptor or a copy of it is open: it is not pruned. -1: it cannot
 * be, or it is locked. */
int dp_run_dir_lock(const char *path);

/* It was kept because a user asked for that: it is never pruned. */
void dp_run_dir_ask_for(const char *path);

/* It is a node's, whose files go to dprun's own: one that nobody holds is removed by the next dprun
 * or agent there. */
void dp_run_dir_mark_as_node(const char *path);

/* Removes those of nodes that nobody holds. */
void dp_run_dir_sweep(void);

/* Removes run directories of this user beside which a new one would be made, but for those in use,
 * those asked for and the newest `keep`. */
void dp_run_dir_prune(int keep);

/* Files anywhere below it, and what they take on disk or in memory (bytes may be NULL). */
size_t dp_run_dir_files(const char *path, uint64_t *bytes);

/* Removes it and everything below; follows no links. 0 when it is gone. */
int dp_run_dir_remove(const char *path);

#endif
