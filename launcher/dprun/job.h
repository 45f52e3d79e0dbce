/*
 * job.h - everything about a job that is fixed before its first rank starts.
 *
 * dprun.c makes it, dry_run.c prints it, and the agent, forked with it, must need nothing else. On
 * several nodes the station of each makes one of its own ranks alone (command->place).
 */
#ifndef DP_LAUNCHER_JOB_H
#define DP_LAUNCHER_JOB_H

#include <limits.h>
#include <stdio.h>

#include "launcher/dprun/cores.h"
#include "launcher/dprun/env.h"
#include "launcher/dprun/metrics/serve.h"
#include "launcher/dprun/options.h"
#include "runtime/base/kv.h"

#define DP_EXIT_USAGE 2
#define DP_EXIT_TIMEOUT 124
#define DP_EXIT_OUTPUT_LOST 125
#define DP_EXIT_NOT_EXECUTABLE 126
#define DP_EXIT_NOT_FOUND 127

/* Where a rank finds its ticket, unless the hard limit on open files is lower. Far from the numbers
 * shells and scripts use. */
#define DP_TICKET_FD 200

typedef struct dp_job {
    const dp_command_t *command; /* borrowed */
    int size;
    char program[PATH_MAX];   /* as execve() takes it, in the ranks' folder */
    char directory[PATH_MAX]; /* where its ranks start, absolute; "": where dprun is */
    char host[256];
    dp_cores_t cores;
    int threads;  /* cores each rank may count on */
    dp_env_t env; /* of every rank, but for the rows of dp_job_set_rank() */
    char **given; /* [given_count] names of the variables dprun sets, owned */
    size_t given_count;
    char run_dir[PATH_MAX];         /* empty until made */
    int owns_run_dir;               /* ours to remove */
    int is_nested;                  /* dprun itself runs as a rank of another dprun */
    int sets_rank, sets_local_rank; /* RANK and LOCAL_RANK are ours: the user has not set them */
    dp_kv_ticket_t ticket;
    dp_metrics_t *metrics; /* of --metrics, owned; NULL: none, or this is not the process */
} dp_job_t;

/* Serves the figures of --metrics from now on. DP_ERR_NO_MEMORY. */
dp_status_t dp_job_start_metrics(dp_job_t *job, struct event_base *base);
void dp_job_stop_metrics(dp_job_t *job); /* before the event base goes; also when not started */

/* Resolves the program, counts cores, builds the environment. *exit_code is 126, 127, 2 or 1 on an
 * error. command is borrowed until dp_job_fini(). */
dp_status_t dp_job_init(dp_job_t *job, const dp_command_t *command, int *exit_code,
                        dp_error_t *error);
/* On several nodes, for dprun itself: each station makes its own job. */
void dp_job_init_remote(dp_job_t *job, const dp_command_t *command);
void dp_job_fini(dp_job_t *job);

/* Sets the run directory, in the job and as DP_RUN_DIR. */
dp_status_t dp_job_set_run_dir(dp_job_t *job, const char *path, int owned, dp_error_t *error);

/* MASTER_ADDR and MASTER_PORT, for libraries that meet there; what a user has set stays. */
dp_status_t dp_job_set_master(dp_job_t *job, const char *host, uint16_t port, dp_error_t *error);

/* Turns job->env into that of one rank. -1: out of memory. */
int dp_job_set_rank(dp_job_t *job, int rank);

/* Wipes the ticket's secret in this process; the parts that still need it have copies. */
void dp_job_forget_secret(dp_job_t *job);

/* The descriptor of the ranks' ticket. */
int dp_job_ticket_fd(void);

/* 1: each rank is a host of its own to NCCL, by this variable. */
#define DP_JOB_HOST_OF_RANK "NCCL_HOSTID"
int dp_job_has_own_hosts(const dp_job_t *job);

/* Finds a program as the shell does. 0, or 127 (not found) or 126 (not executable) with the text.
 */
int dp_program_find(const char *name, const char *path_list, char *found, size_t room,
                    dp_error_t *error);

#endif
