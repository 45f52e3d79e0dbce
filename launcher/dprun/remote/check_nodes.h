/*
 * check_nodes.h - dprun --check for several machines: what each of them is, in one table.
 *
 * It is a job like any other: its ranks are `dprun --probe` (probe.h), one on each node. Called by
 * dprun.c and, for the table, by supervise.c, on dprun's only thread.
 */
#ifndef DP_LAUNCHER_CHECK_NODES_H
#define DP_LAUNCHER_CHECK_NODES_H

#include <stdio.h>

#include "launcher/dprun/remote/fleet.h"

/* Makes the job of it: one rank on each node, words [hosts + 3] its command line; both borrowed
 * until the job has ended. */
void dp_check_nodes_prepare(dp_nodes_t *nodes, dp_command_t *command, char **words);

/* Prints the table. Returns how many things must be put right. */
int dp_check_nodes_print(const dp_fleet_t *fleet, FILE *out);

#endif
