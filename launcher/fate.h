/*
 * fate.h - what became of each rank, and which of them is the cause.
 *
 * Pure: filled in by the supervisor, read by the report.
 */
#ifndef DP_LAUNCHER_FATE_H
#define DP_LAUNCHER_FATE_H

#include <stddef.h>
#include <stdint.h>

#define DP_NOTE_MAX 256

typedef struct dp_rank_fate {
    int pid; /* 0: never started */
    int has_ended;
    int status;       /* as from wait() */
    int start_error;  /* errno: it could not be started; 0 */
    uint64_t end_ns;
    uint64_t peak_kib;
    int stopped_by;   /* it is stopped now (SIGSTOP, a debugger): the signal; 0 */
    uint64_t stopped_ns;
    int has_joined;   /* it came to the rendezvous */
    char note[DP_NOTE_MAX]; /* the last thing it said it does; "" */
    uint64_t note_ns;
} dp_rank_fate_t;

typedef struct dp_fate {
    int size;
    dp_rank_fate_t *ranks; /* [size] owned */
    uint64_t start_ns;
    uint64_t stop_ns; /* dprun first told the ranks to end; 0: never */
    uint64_t kill_ns; /* dprun killed what was left; 0: never */
    int left;         /* processes that could not be killed */
} dp_fate_t;

int dp_fate_init(dp_fate_t *fate, int size, uint64_t start_ns); /* -1: out of memory */
void dp_fate_fini(dp_fate_t *fate);

/* Ended by a signal, with a code other than 0, or never started. */
int dp_rank_failed(const dp_rank_fate_t *rank);

/* As a shell tells it: the code, or 128 + signal. */
int dp_rank_exit_code(const dp_rank_fate_t *rank);

/*
 * The rank whose failure explains the others', or -1 when none failed before dprun stopped the job.
 * The first to end; but of those that ended within a few milliseconds, one killed by a signal comes
 * before one that exited, as losing a peer makes ranks exit. *doubt: another rank would do as well,
 * or -1.
 */
int dp_fate_cause(const dp_fate_t *fate, int *doubt);

#endif
