/*
 * state.h - a loop as its own files see it: its life (loop.c), the round (round.c), the coordinator
 * thread that makes rounds (thread.c), waiting threads that make them instead (progress.c), and the
 * requests of other threads (post.c). Nothing outside coordinator/loop includes this.
 */
#ifndef DP_COORDINATOR_LOOP_STATE_H
#define DP_COORDINATOR_LOOP_STATE_H

#include "coordinator/loop/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "coordinator/loop/health.h"
#include "coordinator/loop/inbox.h"

/* The coordinator thread, and what it sleeps on. Itself only; `id` also for those that join it. */
typedef struct dp_loop_thread {
    pthread_t id;
    int is_made;
    struct event_base *base; /* libevent's, likewise the events */
    struct event *readable;
    struct event *timer;
    int was_signalled;   /* the transport's descriptor was readable in the last sleep */
    uint64_t backoff_ns; /* length of the next back-off */
} dp_loop_thread_t;

/* How this rank comes to its end. Owner of progress only. */
typedef struct dp_loop_end {
    int is_over;              /* finished or fatal: nothing more is fed or sent */
    int must_stop;            /* the thread is to end, whatever the negotiator says */
    int has_given_up;         /* this rank asked for the end; not twice */
    uint64_t mismatch_end_ns; /* when a reported mismatch ends the world; UINT64_MAX: none was */
    dp_status_t status;
} dp_loop_end_t;

/* dp_loop_finalize() waits for it: the coordinator thread sets it last. Guarded by its lock. */
typedef struct dp_loop_final {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_set;
    dp_status_t status;
} dp_loop_final_t;

/* Threads of the program that wait. Any thread adds and takes away; others_make_progress()
 * (thread.c) reads. */
typedef struct dp_loop_waiters {
    _Atomic int asleep;            /* dp_loop_count_sleeping_waiter() */
    _Atomic int awake;             /* dp_loop_count_awake_waiter() */
    _Atomic uint32_t for_progress; /* threads that try to get progress_lock */
} dp_loop_waiters_t;

/* For dp_loop_stats(). The owner of progress adds, any thread reads. Relaxed: nothing hangs on
 * them. */
typedef struct dp_loop_counters {
    _Atomic uint64_t sent, received, heartbeats, wakeups, backoffs, cpu_ns;
} dp_loop_counters_t;

/* The track of the timeline, and names of its records. Owner of progress only. */
typedef struct dp_loop_trace {
    dp_trace_track_t *track;
    uint32_t name_in, name_out, name_round;
} dp_loop_trace_t;

struct dp_loop {
    dp_loop_options_t options;
    uint64_t spin_ns; /* how long the coordinator thread polls after a round that found something */
    dp_tree_links_t links; /* this rank's parent and children in the tree */
    dp_inbox_t inbox;      /* any thread */
    dp_loop_thread_t thread;
    dp_loop_waiters_t waiters;
    dp_loop_counters_t counters;
    dp_loop_final_t final;

    /* Ownership of progress: the thread that holds progress_lock makes the rounds. A plain mutex:
     * its release and acquire order everything below between one owner and the next. It is held
     * while the owner polls, for milliseconds, so waiting threads use trylock. */
    pthread_mutex_t progress_lock;
    dp_negotiator_t *negotiator;
    dp_health_t health;
    dp_loop_end_t end;
    dp_loop_trace_t trace;
    uint8_t *message; /* being put together: kind, number, bytes of the negotiator */
    size_t message_room;
    uint64_t active_ns;      /* when the last round that found something ended */
    int empty_wakeups;       /* wake-ups by the descriptor since then */
    uint64_t sleep_until_ns; /* when the coordinator thread wakes by itself at the latest */
    int has_told_running;    /* callbacks.running was called */
    int others_progressed;   /* others have made rounds since it last slept */
};

/* CPU time that a thread has used, by its clock; 0 where that cannot be read. */
static inline uint64_t dp_loop_cpu_ns(clockid_t clock)
{
    struct timespec spent;

    if (clock_gettime(clock, &spent) != 0) return 0;
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

#endif
