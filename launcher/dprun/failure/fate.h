/*
 * fate.h - what became of each rank, and which of them is the cause of a failure.
 *
 * The supervisor fills it in (ends of processes from the agent, failure reports from the
 * rendezvous), on dprun's only thread; the report reads the verdict. Pure: no clocks, no sockets.
 * The verdict follows from exit statuses, times and the typed facts of runtime/base/failure.h.
 * Texts are kept to be printed and are never looked into.
 */
#ifndef DP_LAUNCHER_FATE_H
#define DP_LAUNCHER_FATE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/failure.h"

typedef struct dp_rank_fate {
    const char *node; /* its name, borrowed; NULL: that of dprun */
    int local;        /* its number there */
    int64_t clock_ns; /* what its machine's clock is ahead of dprun's, whose times stand below */
    const char *lost; /* it ended, as far as anybody knows, with its machine: why; borrowed; NULL */
    uint64_t lost_ns; /* when dprun gave that machine up; since when it was silent: end_ns */
    int has_only_stalled; /* that machine's kernel still answered then */
    int pid;              /* 0: never started */
    int has_ended;
    int status;      /* as from wait() */
    int start_error; /* errno: it could not be started; 0 */
    uint64_t end_ns;
    uint64_t peak_kib;
    int stopped_by; /* it is stopped now (SIGSTOP, a debugger): the signal; 0 */
    uint64_t stopped_ns;
    int has_joined;       /* it came to the rendezvous */
    char foreign[64];     /* the MPI library that it has loaded; "": none */
    int is_running;       /* it notices when a neighbour falls silent; before, it may still start */
    int has_reported;     /* it, or the rendezvous for it, said why its world ended: in failure */
    int blames;           /* another rank that it reported as the culprit, or -1 */
    int is_awaited;       /* some rank reported that it waited for this one in vain */
    dp_failure_t failure; /* its report; the first that blames a rank stays */
    uint64_t failure_ns;  /* when that came */
} dp_rank_fate_t;

typedef struct dp_fate {
    int size;
    dp_rank_fate_t *ranks; /* [size] owned */
    uint64_t start_ns;
    uint64_t stop_ns; /* dprun first told the ranks to end; 0: never */
    uint64_t kill_ns; /* dprun killed the processes that were left; 0: never */
    int left;         /* processes that could not be killed */
} dp_fate_t;

int dp_fate_init(dp_fate_t *fate, int size, uint64_t start_ns); /* -1: out of memory */
void dp_fate_fini(dp_fate_t *fate);

/* Ended by a signal, with a code other than 0, or never started. */
int dp_rank_failed(const dp_rank_fate_t *rank);

/* As a shell reports it: the code, or 128 + signal. */
int dp_rank_exit_code(const dp_rank_fate_t *rank);

/* Takes a rank's report of why its world ended; copied. A culprit that is no rank of this job, or
 * the reporter itself, blames nobody. */
void dp_fate_report(dp_fate_t *fate, int rank, const dp_failure_t *failure, uint64_t now_ns);

typedef struct dp_verdict {
    int cause; /* the rank that explains the others, or -1: none failed before dprun stopped them */
    int failed; /* the first that failed: the cause itself, or a rank that blames it */
    int doubt;  /* another rank would do as well, or -1 */
} dp_verdict_t;

/*
 * The first rank to fail is taken; but of those that ended within a few milliseconds, one killed by
 * a signal comes before one that exited, as losing a peer makes ranks exit. If the rank found only
 * exited, and reported another one as the culprit, and that one has indeed ended or stands stopped,
 * then that one is the cause: it may have left early with code 0, or been stopped, and not failed
 * at all. So it is where its node was lost, also when dprun noticed that last. One that others
 * waited for in vain, and that blames nobody, is the cause also where it lives. A node whose kernel
 * answered when it was given up may only have had no core; it gives way to one with which nothing
 * was exchanged any more, if that began before.
 */
dp_verdict_t dp_fate_cause(const dp_fate_t *fate);

/* What the cause did, or what was done to it. */
typedef enum dp_cause_kind {
    DP_CAUSE_NODE_LOST, /* its node was lost, with all ranks on it */
    DP_CAUSE_LATE,      /* it runs, but the others waited for it in vain */
    DP_CAUSE_STOPPED,   /* it stands still, by a signal or a debugger, and the others gave it up */
    DP_CAUSE_NOT_STARTED, /* its process could not be started */
    DP_CAUSE_KILLED,      /* a signal ended it */
    DP_CAUSE_EXITED,      /* with a code other than 0 */
    DP_CAUSE_LEFT         /* with code 0, while others still needed it */
} dp_cause_kind_t;

/* Of a verdict with a cause. */
dp_cause_kind_t dp_fate_cause_kind(const dp_fate_t *fate, const dp_verdict_t *verdict);

/* When that was: its end, or, of a rank that is stopped or late, since when. */
uint64_t dp_fate_cause_ns(const dp_fate_t *fate, const dp_verdict_t *verdict);

/* 1: the ranks that live shall be left alone, so long after the first failure: one may
 * still report why the job failed, or knows it and is saying its last words before it ends by
 * itself. */
int dp_fate_is_pending(const dp_fate_t *fate, uint64_t since_failure_ns);

/* The exit code of a failed job: the cause's, or that of the first to fail where the cause did not.
 */
int dp_fate_exit_code(const dp_fate_t *fate);

/* It stands stopped and explains others that gave it up; not one that ended before. */
int dp_rank_is_stopped(const dp_rank_fate_t *rank, uint64_t at_ns);

#endif
