/*
 * check_nodes.h - dprun --check for several machines: what each of them is, in one table.
 */
#ifndef DP_LAUNCHER_CHECK_NODES_H
#define DP_LAUNCHER_CHECK_NODES_H

#include <stdio.h>

#include "launcher/dprun/remote/nodes.h"

/* Looks at all nodes at once; nothing of a program is started. 0: all can run jobs; else 1. */
int dp_check_nodes_run(const dp_nodes_t *nodes, const dp_command_t *command, FILE *out);

#endif
