/*
 * supervise.h - the life of a running job: takes what ranks, agent and user report, and decides
 * when ranks are told to end and when they are killed. Called by dprun.c, on dprun's only thread.
 */
#ifndef DP_LAUNCHER_SUPERVISE_H
#define DP_LAUNCHER_SUPERVISE_H

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/failure/fate.h"
#include "launcher/dprun/output/input.h"
#include "launcher/dprun/job.h"
#include "launcher/dprun/output/output.h"
#include "launcher/dprun/remote/fleet.h"
#include "launcher/dprun/wish.h"
#include "runtime/base/rendezvous.h"

/* Why the job is over, or is being ended. */
typedef enum dp_outcome {
    DP_OUTCOME_NONE,        /* nothing ends the job yet; at its end: every rank ended with 0 */
    DP_OUTCOME_FAILED,      /* a rank failed */
    DP_OUTCOME_INTERRUPTED, /* a signal to dprun */
    DP_OUTCOME_TIMEOUT,     /* --timeout */
    DP_OUTCOME_NO_READER,   /* the reader of dprun's output is gone */
    DP_OUTCOME_AGENT_LOST,  /* the agent died */
    DP_OUTCOME_NOT_STARTED  /* on several nodes: one of them cannot; nothing was started */
} dp_outcome_t;

typedef enum dp_job_stage {
    DP_JOB_STAGE_RUNNING,
    DP_JOB_STAGE_FAILING, /* peers of a failed rank may still report what they know */
    DP_JOB_STAGE_TOLD,    /* SIGTERM (or the user's signal) was sent */
    DP_JOB_STAGE_KILLED   /* SIGKILL was sent */
} dp_job_stage_t;

typedef struct dp_supervisor {
    dp_job_t *job; /* borrowed */
    struct event_base *base;
    int channel;       /* to the agent; taken. -1: it is gone, or there are several: fleet */
    dp_fleet_t *fleet; /* of a job on several nodes, else NULL */
    size_t *held; /* [size * 2] with a fleet: bytes of output that wait for dprun's own reader */
    int signals;  /* signalfd of the signals to dprun; taken */
    int guard_pid;
    dp_job_output_t *output;
    int has_named_foreign; /* that a rank's program is not of libdp was said */
    dp_rendezvous_t *rendezvous;
    dp_input_t *input;
    dp_fate_t fate;
    dp_memory_sight_t before;
    dp_memory_sight_t after; /* at the first failure */
    dp_job_stage_t stage;
    uint64_t fail_ns; /* when it came to DP_JOB_STAGE_FAILING */
    dp_outcome_t outcome;
    int signal;        /* of DP_OUTCOME_INTERRUPTED */
    dp_wish_t wish;    /* of the signals to dprun */
    int is_cut;        /* a second request to end, or SIGQUIT, has cut the grace */
    int start_code;    /* of DP_OUTCOME_NOT_STARTED */
    int joined;        /* ranks that came to the rendezvous */
    int unfit;         /* --check of nodes: what must be put right; -1: no table yet */
    int is_gone;       /* the agent has no descendant left */
    int is_over;       /* nothing more to wait for */
    uint64_t fed_ns;   /* with a fleet: when output came last */
    uint64_t stuck_ns; /* since when no output leaves, after the user ended the job; 0: not yet */
    size_t stuck_bytes;
    struct event *on_channel;
    struct event *on_signal;
    struct event *stage_timer;
    struct event *job_timer;
    struct event *drain_timer;
} dp_supervisor_t;

/* The parts are made from these; descriptors are taken, also on an error. */
typedef struct dp_supervisor_start {
    dp_job_t *job;
    const dp_nodes_t *nodes; /* of several, else NULL: there is an agent at `channel` */
    int input_fd;            /* with nodes: for the rank that reads; -1: none */
    sigset_t mask;           /* with nodes: of the processes to start */
    int channel;
    int signals;
    int listener;
    int pump_fd; /* -1: no terminal to read */
    int guard_pid;
    uint64_t start_ns;
    dp_memory_sight_t before;
} dp_supervisor_start_t;

dp_status_t dp_supervisor_init(dp_supervisor_t *supervisor, const dp_supervisor_start_t *start,
                               dp_error_t *error);

/* Returns when no process is left and all their output is written, or its reader gone. */
void dp_supervisor_run(dp_supervisor_t *supervisor);

/* Writes what is queued of dprun's own output. */
void dp_supervisor_flush(dp_supervisor_t *supervisor);

/* dprun's exit code. */
int dp_supervisor_exit_code(const dp_supervisor_t *supervisor);

/* On several nodes: brings their files into the job's run directory. */
void dp_supervisor_fetch(dp_supervisor_t *supervisor);

/* "node b's clock is known to 40 us", the worst of all; "": one node. */
void dp_supervisor_describe_clocks(const dp_supervisor_t *supervisor, char *text, size_t room);

/* Lets the agent go without removing the run directory, and waits for it. */
void dp_supervisor_dismiss_agent(dp_supervisor_t *supervisor);

void dp_supervisor_fini(dp_supervisor_t *supervisor);

#endif
