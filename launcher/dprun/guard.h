/*
 * guard.h - the process between dprun and its agent: if both are killed, it ends what ranks
 * started.
 *
 * dprun.c forks it on its own machine, station_job.c on any other node, and it forks the agent.
 */
#ifndef DP_LAUNCHER_GUARD_H
#define DP_LAUNCHER_GUARD_H

#include "launcher/dprun/agent.h"

/* Forks the agent and waits for it, in this (freshly forked, single-threaded) process. Returns the
 * exit status when no descendant is left. */
int dp_guard_run(const dp_agent_start_t *start);

#endif
