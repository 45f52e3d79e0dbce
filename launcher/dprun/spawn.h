/*
 * spawn.h - starts one rank as a process of its own session.
 *
 * Called by agent.c, on its only thread.
 */
#ifndef DP_LAUNCHER_SPAWN_H
#define DP_LAUNCHER_SPAWN_H

#include <signal.h>
#include <sys/resource.h>

#include "launcher/dprun/job.h"

/* The same for every rank. The agent's, for as long as it starts ranks. */
typedef struct dp_spawner {
    dp_job_t *job;
    int stdin_fd;     /* for job->command->stdin_rank; -1: nobody */
    int null_fd;      /* /dev/null, for the others */
    int ticket_fd;    /* memfd with the ticket; readers use offsets, so that one serves all */
    int failure_fd;   /* a rank whose exec fails writes a dp_spawn_failure_t here */
    sigset_t signals; /* mask of the process that called dprun */
    struct rlimit open_files; /* limit before dprun raised it */
} dp_spawner_t;

typedef struct dp_spawn_failure {
    int rank;
    int error; /* errno of execve() */
} dp_spawn_failure_t;

/* Forks and executes a rank. It dies with its parent (this must be a single-threaded process).
 * *out and *err are the read ends of its pipes, the caller's to close.
 * @return its pid, or -1 with errno; a failed exec is told later through failure_fd. */
pid_t dp_spawn_rank(dp_spawner_t *spawner, int rank, int *out, int *err);

#endif
