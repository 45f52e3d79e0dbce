/*
 * report.h - the block that ends a failed job: which rank, why, what it did last, what is left.
 *
 * dprun.c prints it once all ranks have ended; report_file.c takes the same facts. fate.h has the
 * verdict.
 */
#ifndef DP_LAUNCHER_REPORT_H
#define DP_LAUNCHER_REPORT_H

#include <stdio.h>

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/failure/fate.h"
#include "launcher/dprun/failure/recorder.h"
#include "launcher/dprun/output/lines.h"

typedef struct dp_report {
    const dp_fate_t *fate;
    const char *node; /* the name of dprun's own */
    const dp_tail_t *(*tail)(const void *context, int rank);
    const void *context;
    dp_memory_sight_t before; /* at the job's start */
    dp_memory_sight_t after;  /* when the first rank failed */
    const char *saved;        /* the line about kept files; NULL: none are */
    const char *run_dir;      /* still there, with the flight recorders; NULL: there is none */
    uint64_t grace_ns;        /* from SIGTERM to SIGKILL, where a user or a timeout ended the job */
    int exit_code;
} dp_report_t;

/* A rank failed: the block of dp_fate_cause(). */
void dp_report_failure(const dp_report_t *report, FILE *out);

/* The job took too long: the state of every rank. */
void dp_report_timeout(const dp_report_t *report, uint64_t limit_ns, FILE *out);

/* What the rank's recorder says it did last; empty where there is none. */
void dp_report_last_moments(const dp_report_t *report, int rank, dp_last_moments_t *last);

/* Whether the kernel killed for lack of memory while the job ran; text names the evidence. */
int dp_report_saw_oom(const dp_report_t *report, char *text, size_t room);

/* How many ranks did not end by themselves once they were told to, but were killed; ranks: which,
 * as dp_format_ranks(). */
int dp_report_killed(const dp_fate_t *fate, char *ranks, size_t room);

/* "SIGKILL", "signal 40". */
void dp_signal_name(int number, char *text, size_t room);

/* "exited with code 3", "was killed by SIGSEGV", "could not be started: ...". */
void dp_rank_describe(const dp_rank_fate_t *rank, char *text, size_t room);

/* "0-3,7" of the set members among size. */
void dp_format_ranks(const unsigned char *is_member, int size, char *text, size_t room);

#endif
