/*
 * agent.h - the process between dprun and its ranks: starts them, tells dprun which have ended and
 * how, and outlives dprun just long enough to leave nothing behind.
 *
 * The guard starts it, before there are threads or an event loop.
 */
#ifndef DP_LAUNCHER_AGENT_H
#define DP_LAUNCHER_AGENT_H

#include "launcher/dprun/spawn.h"

/* All borrowed. */
typedef struct dp_agent_start {
    dp_job_t *job;
    int channel;              /* to dprun */
    int stdin_fd;             /* for the rank that reads; -1: nobody */
    sigset_t signals;         /* mask the ranks get */
    struct rlimit open_files; /* limit the ranks get */
} dp_agent_start_t;

/* Runs the agent in this (freshly forked, single-threaded) process, below the guard. Returns its
 * exit status when no descendant is left. */
int dp_agent_run(const dp_agent_start_t *start, pid_t guard);

#endif
