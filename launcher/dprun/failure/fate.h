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
    int status;      /* as from wait() */
    int start_error; /* errno: it could not be started; 0 */
    uint64_t end_ns;
    uint64_t peak_kib;
    int stopped_by; /* it is stopped now (SIGSTOP, a debugger): the signal; 0 */
    uint64_t stopped_ns;
    int has_joined;         /* it came to the rendezvous */
    char note[DP_NOTE_MAX]; /* the last thing it said it does; "" */
    uint64_t note_ns;
    int knows;             /* it said why the job failed */
    int blames;            /* the rank that it says it lost, or -1 */
    char why[DP_NOTE_MAX]; /* its words for that */
    int waited;            /* it says that it waited for that rank in vain, not that it broke off */
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

/* Notes what a rank says it does. Text that begins with "rank N" of another rank tells whom it
 * lost; that of a stall, for whom it waited in vain. */
void dp_fate_note(dp_fate_t *fate, int rank, const char *text, uint64_t now_ns);

/* A rank lost another; text is its word for it. The first such word of a rank counts. */
void dp_fate_blame(dp_fate_t *fate, int rank, int culprit, const char *text);

/* What dp_fate_cause() found. */
typedef struct dp_verdict {
    int cause; /* the rank that explains the others, or -1: none failed before dprun stopped them */
    int failed; /* the first that failed: the cause itself, or a rank that blames it */
    int doubt;  /* another rank would do as well, or -1 */
} dp_verdict_t;

/*
 * The first rank to fail is taken; but of those that ended within a few milliseconds, one killed by
 * a signal comes before one that exited, as losing a peer makes ranks exit. If the rank found only
 * exited, and says that it lost another one, and that one has indeed ended or stands stopped, then
 * that one is the cause: it may have left early with code 0, or been stopped, and not failed at
 * all. One that others waited for in vain, and that blames nobody, is the cause also where it
 * lives.
 */
dp_verdict_t dp_fate_cause(const dp_fate_t *fate);

/* The exit code of a failed job: the cause's, or that of the first to fail where the cause did not.
 */
int dp_fate_exit_code(const dp_fate_t *fate);

/* It stands stopped and explains others that gave it up; not one that ended before. */
int dp_rank_is_stopped(const dp_rank_fate_t *rank, uint64_t at_ns);

#endif
