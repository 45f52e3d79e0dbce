/*
 * inbox.h - what other threads hand to the thread that makes the coordinator's rounds.
 *
 * Submissions are pushed on an intrusive stack with one compare-and-swap and taken all at once; all
 * else is a flag, and a value beside it. No mutex is taken on the way of a submission. The
 * coordinator thread announces that it goes to sleep; the thread that then brings something wakes
 * it, once. A submission to a coordinator that is awake costs no system call.
 *
 * Called by post.c and progress.c on any thread, and by round.c, loop.c and thread.c. It must not
 * know what the flags mean.
 */
#ifndef DP_COORDINATOR_INBOX_H
#define DP_COORDINATOR_INBOX_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/loop/loop.h"

#define DP_INBOX_TEXT_MAX 512

/* Inputs other than submissions. */
enum {
    DP_INBOX_URGENT = 1,
    DP_INBOX_LAUNCH_DONE = 2,
    DP_INBOX_ACTIVITY = 4,
    DP_INBOX_ABORT = 8,
    DP_INBOX_FINALIZE = 16,
    DP_INBOX_STOP = 32,
    DP_INBOX_MISMATCH = 64
};

/* How deeply the coordinator thread sleeps. A wake-up names a depth and ends any sleep of at least
 * that depth: ASLEEP_HOLDING is woken by all that wakes ASLEEP, and by finished launches. */
typedef enum dp_inbox_sleep {
    DP_INBOX_AWAKE = 0,
    DP_INBOX_BACKING_OFF = 1, /* on the futex below, briefly, while other threads make the rounds */
    DP_INBOX_ASLEEP = 2,      /* in the event loop */
    DP_INBOX_ASLEEP_HOLDING = 3 /* likewise, while this root holds launches back */
} dp_inbox_sleep_t;

typedef struct dp_inbox_name {
    struct dp_inbox_name *next;
    uint32_t group; /* uid */
    char name[];
} dp_inbox_name_t;

typedef struct dp_inbox {
    dp_transport_t *transport;         /* borrowed; only its wake() is used */
    _Atomic(dp_loop_node_t *) queue;   /* newest first */
    _Atomic(dp_inbox_name_t *) urgent; /* newest first */
    atomic_uint flags;                 /* DP_INBOX_... */
    _Atomic uint32_t sleep;            /* dp_inbox_sleep_t; a futex while BACKING_OFF */
    _Atomic uint64_t launch_done;      /* largest sequence that the data plane has finished */
    pthread_mutex_t lock;
    char activity[DP_INBOX_TEXT_MAX];      /* guarded by lock, likewise below */
    char abort_text[DP_INBOX_TEXT_MAX];    /* of the first abort */
    dp_status_t abort_status;              /* DP_OK: none */
    char mismatch_text[DP_INBOX_TEXT_MAX]; /* likewise of the first mismatch */
    dp_status_t mismatch_status;
} dp_inbox_t;

void dp_inbox_init(dp_inbox_t *inbox, dp_transport_t *transport);
void dp_inbox_fini(dp_inbox_t *inbox); /* submissions are forgotten */

/* ---- Any thread, the coordinator's included; as the functions of loop.h --------------------- */

/* Does not wake the coordinator: the caller does, or makes the round itself. */
void dp_inbox_submit(dp_inbox_t *inbox, dp_loop_node_t *node);
/* Without memory it is dropped: a hint. */
void dp_inbox_urgent(dp_inbox_t *inbox, uint32_t group, const char *name);
void dp_inbox_launch_done(dp_inbox_t *inbox, uint64_t sequence);
void dp_inbox_set_activity(dp_inbox_t *inbox, const char *text);
void dp_inbox_abort(dp_inbox_t *inbox, dp_status_t status, const char *text);
int dp_inbox_is_aborted(dp_inbox_t *inbox);            /* that was called */
int dp_inbox_has_submissions(const dp_inbox_t *inbox); /* the coordinator has not taken yet */
void dp_inbox_report_mismatch(dp_inbox_t *inbox, dp_status_t status, const char *text);
/* FINALIZE, STOP */
void dp_inbox_raise(dp_inbox_t *inbox, unsigned flag);

/* Ends the coordinator thread's sleep if it is at least so deep. */
void dp_inbox_wake(dp_inbox_t *inbox, dp_inbox_sleep_t depth);

/* Called after a thread has released progress. Wakes the coordinator thread if must_wake, or if it
 * backs off and the inbox holds work that cannot wait until the back-off ends. */
void dp_inbox_return_progress(dp_inbox_t *inbox, int must_wake);

/* A thread of the program falls asleep until the coordinator has done something: if the coordinator
 * thread backs off, it stops doing so. */
void dp_inbox_end_backoff(dp_inbox_t *inbox);

/* ---- The owner of progress ------------------------------------------------------------------ */

/* 1: the coordinator thread sleeps in its event loop, and nothing has woken it there yet. Once 0,
 * it stays 0 until that thread has owned progress. */
int dp_inbox_is_asleep(const dp_inbox_t *inbox);
unsigned dp_inbox_take_flags(dp_inbox_t *inbox);
dp_loop_node_t *dp_inbox_take_submissions(dp_inbox_t *inbox); /* oldest first; NULL: none */
dp_inbox_name_t *dp_inbox_take_urgent(dp_inbox_t *inbox); /* newest first; returned: free() each */
int dp_inbox_is_empty(const dp_inbox_t *inbox);

/* ---- The coordinator thread ----------------------------------------------------------------- */

/**
 * Announces that the thread is about to sleep in its event loop; from then on it is woken. The
 * thread owns progress here.
 *
 * @param is_holding 0: dp_inbox_launch_done() need not wake it
 * @return 0: something came in meanwhile, stay awake; the announcement is taken back
 */
int dp_inbox_announce_sleep(dp_inbox_t *inbox, int is_holding);
void dp_inbox_announce_awake(dp_inbox_t *inbox);

/* Announces a back-off. A submission does not end it if its thread makes the next round itself;
 * anything else does. */
void dp_inbox_announce_backoff(dp_inbox_t *inbox);
/* Sleeps until the back-off is ended, or for so long. Without progress. */
void dp_inbox_back_off(dp_inbox_t *inbox, uint64_t ns);

#endif
