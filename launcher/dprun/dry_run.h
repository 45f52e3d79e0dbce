/*
 * dry_run.h - what --dry-run prints: the ranks, where they would run and what starts them.
 *
 * dprun.c calls it in place of starting the job. Nothing here starts anything.
 */
#ifndef DP_LAUNCHER_DRY_RUN_H
#define DP_LAUNCHER_DRY_RUN_H

#include <stdio.h>

#include "launcher/dprun/job.h"
#include "launcher/dprun/remote/nodes.h"

/* On this machine alone. */
void dp_dry_run_job(const dp_job_t *job, FILE *out);

/* On several: also the command that would start the stations. */
void dp_dry_run_nodes(const dp_nodes_t *nodes, const dp_command_t *command, FILE *out);

#endif
