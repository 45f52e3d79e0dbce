/*
 * nodes_join.h - `dprun --node`: one dprun on each machine, started by something that dprun does
 * not know how to ask (Kubernetes, Volcano, SageMaker, a script). Called by nodes.c.
 */
#ifndef DP_LAUNCHER_NODES_JOIN_H
#define DP_LAUNCHER_NODES_JOIN_H

#include "launcher/dprun/remote/nodes.h"

/* --node R/N with --meet HOST:PORT, or --node env: PET_*, VC_* or SM_* variables. The secret comes
 * from the file that --secret-file or DP_SECRET_FILE names. */
dp_status_t dp_nodes_plan_join(dp_nodes_t *nodes, dp_command_t *command, dp_error_t *error);

#endif
