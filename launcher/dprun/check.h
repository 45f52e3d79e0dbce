/*
 * check.h - `dprun --check` without nodes: says whether this machine can run jobs, and what to do
 * if not. dprun.c calls it and exits; check_nodes.h is for several nodes.
 */
#ifndef DP_LAUNCHER_CHECK_H
#define DP_LAUNCHER_CHECK_H

#include <stdio.h>

/* One line per thing looked at. size: ranks to look for, 0: any. Returns 0 when all is well, 1 when
 * something is not. */
int dp_check_run(int size, FILE *out);

#endif
