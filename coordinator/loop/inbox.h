/*
 * inbox.h - what other threads hand to the coordinator thread, without a lock on the hot path.
 *
 * Submissions are pushed on an intrusive stack with one compare-and-swap and taken all at once.
 * The coordinator says when it goes to sleep; whoever brings something then wakes it, once. A
 * submission to a coordinator that is awake costs no system call.
 */
#ifndef DP_COORDINATOR_INBOX_H
#define DP_COORDINATOR_INBOX_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/loop/loop.h"

#define DP_INBOX_TEXT_MAX 512

/* What came in beside submissions. */
enum {
    DP_INBOX_URGENT = 1,
    DP_INBOX_LAUNCHED = 2,
    DP_INBOX_PROGRESS = 4,
    DP_INBOX_ABORT = 8,
    DP_INBOX_FINALIZE = 16,
    DP_INBOX_STOP = 32,
    DP_INBOX_EXPLAIN = 64,
    DP_INBOX_PACE = 128,
    DP_INBOX_ROUND = 256,
    DP_INBOX_UNLOCK = 512,
    DP_INBOX_WAITS = 1024
};

/* Each is ended by more than the one after it. */
typedef enum dp_inbox_sleep {
    DP_INBOX_AWAKE = 0,
    DP_INBOX_NAPPING = 1, /* for a moment, while other threads make the rounds */
    DP_INBOX_DOZING = 2,
    DP_INBOX_ASLEEP = 3 /* dp_inbox_launched() wakes it too */
} dp_inbox_sleep_t;

typedef struct dp_inbox_name {
    struct dp_inbox_name *next;
    uint32_t group; /* uid */
    char name[];
} dp_inbox_name_t;

typedef struct dp_inbox {
    dp_transport_t *transport;              /* borrowed; only its wake() is used */
    _Atomic(dp_loop_node_t *) queue;        /* newest first */
    _Atomic(dp_inbox_name_t *) urgent;      /* newest first */
    atomic_uint flags;                      /* DP_INBOX_... */
    _Atomic uint32_t sleep;                 /* dp_inbox_sleep_t; a futex while napping */
    _Atomic uint64_t launched;              /* largest sequence */
    _Atomic uint64_t hold_ns, fusion_bytes; /* of DP_INBOX_PACE */
    pthread_mutex_t lock;
    char progress[DP_INBOX_TEXT_MAX];     /* guarded by lock, likewise below */
    char abort_text[DP_INBOX_TEXT_MAX];   /* of the first abort */
    dp_status_t abort_status;             /* DP_OK: none */
    char explain_text[DP_INBOX_TEXT_MAX]; /* likewise of dp_inbox_explain() */
    dp_status_t explain_status;
} dp_inbox_t;

void dp_inbox_init(dp_inbox_t *inbox, dp_transport_t *transport);
void dp_inbox_fini(dp_inbox_t *inbox); /* submissions are forgotten */

/* Any thread, the coordinator's included. As the functions of loop.h. */
void dp_inbox_submit(dp_inbox_t *inbox, dp_loop_node_t *const *nodes, size_t count);
/* Without memory it is dropped: a hint. */
void dp_inbox_urgent(dp_inbox_t *inbox, uint32_t group, const char *name);
void dp_inbox_launched(dp_inbox_t *inbox, uint64_t sequence);
void dp_inbox_progress(dp_inbox_t *inbox, const char *text);
void dp_inbox_abort(dp_inbox_t *inbox, dp_status_t status, const char *text);
void dp_inbox_explain(dp_inbox_t *inbox, dp_status_t status, const char *text);
void dp_inbox_raise(dp_inbox_t *inbox, unsigned flag); /* FINALIZE, STOP, ROUND, UNLOCK, WAITS */

/* Ends the coordinator's sleep if it is at least so deep. Submissions need it. */
void dp_inbox_wake(dp_inbox_t *inbox, dp_inbox_sleep_t depth);

/* A thread that made rounds in the coordinator's place leaves them to it. */
void dp_inbox_hand_over(dp_inbox_t *inbox, int must_wake);
/* Somebody sleeps until the coordinator has done something: it backs off no longer. */
void dp_inbox_rouse(dp_inbox_t *inbox);

/* Who makes the rounds only. is_asleep: the coordinator sleeps on the transport, and nobody has
 * woken it there; 0 stays so until it has had its turn at the rounds. */
int dp_inbox_is_asleep(const dp_inbox_t *inbox);
unsigned dp_inbox_take_flags(dp_inbox_t *inbox);
unsigned dp_inbox_take_flag(dp_inbox_t *inbox, unsigned flag); /* this one alone; 0: not raised */
dp_loop_node_t *dp_inbox_take(dp_inbox_t *inbox);              /* oldest first; NULL: none */
dp_inbox_name_t *dp_inbox_take_urgent(dp_inbox_t *inbox); /* newest first; returned: free() each */

/**
 * Announces that the coordinator is about to sleep, from when on it is woken.
 *
 * @param minds_launched 0: dp_inbox_launched() may wait for the next waking
 * @return 0 something came in meanwhile: stay awake
 */
int dp_inbox_sleep(dp_inbox_t *inbox, int minds_launched);
void dp_inbox_awake(dp_inbox_t *inbox);

/* Announces a nap: submissions by who makes the next round do not end it, all else does. */
void dp_inbox_lie_down(dp_inbox_t *inbox);
int dp_inbox_is_empty(const dp_inbox_t *inbox);
/* Naps, at most so long. */
void dp_inbox_nap(dp_inbox_t *inbox, uint64_t ns);

#endif
