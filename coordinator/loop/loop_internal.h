/*
 * loop_internal.h - a loop as its files see it: a round (loop.c), the thread that makes them
 * (loop/thread.c) or makes them instead (loop/drive.c), and what other threads may ask of it
 * (loop/post.c). Nobody else includes this.
 */
#ifndef DP_COORDINATOR_LOOP_INTERNAL_H
#define DP_COORDINATOR_LOOP_INTERNAL_H

#include "coordinator/loop/loop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "coordinator/loop/health.h"
#include "coordinator/loop/inbox.h"

struct dp_loop {
    dp_loop_options_t options;
    uint64_t spin_ns;
    uint64_t hold_ns;
    dp_tree_links_t node;
    dp_inbox_t inbox;

    /* coordinator thread only */
    struct event_base *base; /* libevent's, likewise the events */
    struct event *readable;
    struct event *timer;
    int has_rung;    /* in the last sleep */
    uint64_t nap_ns; /* the next one */
    pthread_t thread;
    int has_thread;

    /* Who holds it makes the rounds: the coordinator thread while it is awake, else a thread of the
     * program that waits for their outcome. Guards what follows. */
    pthread_mutex_t baton;
    _Atomic uint32_t wanted; /* threads that try to get it; any thread */
    uint64_t rest_ns;        /* until when the coordinator thread sleeps, at most */
    int is_driven;           /* others have made rounds since it last slept */
    dp_negotiator_t *negotiator;
    dp_health_t health;
    uint8_t *message; /* being put together: kind, number, bytes of the negotiator */
    size_t message_room;
    uint64_t active_ns; /* when a round last did something */
    int barren;         /* rings since then */
    int is_over;        /* finished or fatal: nothing more is fed or sent */
    int must_stop;
    int has_given_up;    /* this rank asked for the end; not twice */
    uint64_t explain_ns; /* when something that differs ends the world; UINT64_MAX: nothing does */
    dp_status_t end_status;
    dp_trace_lane_t *lane;
    uint32_t name_in, name_out, name_round, name_lock;

    /* any thread reads */
    _Atomic uint64_t sent, received, heartbeats, wakeups, backoffs, cpu_ns;
    _Atomic uint64_t locks, unlocks, locked_launches;
    _Atomic int unlock_reason; /* dp_unlock_reason_t, -1: none yet */
    _Atomic int expected;      /* dp_loop_count_sleeping_waiter(); any thread */
    _Atomic int attending;     /* dp_loop_count_awake_waiter(); any thread */

    pthread_mutex_t lock;
    pthread_cond_t ended;
    int has_ended;            /* guarded by lock, likewise below */
    dp_status_t final_status; /* set with it */
};

/* This rank cannot go on; the negotiator tells the others. By who holds the baton. */
void dp_loop_give_up(dp_loop_t *loop, dp_status_t status, const char *text);

/* One round, by who holds the baton. 1: it found something to do. */
int dp_loop_make_round(dp_loop_t *loop, uint64_t now_ns);

/* When the next round is due, whatever comes in. */
uint64_t dp_loop_due(const dp_loop_t *loop);

/* What a thread has used of the CPU by its clock; `otherwise` where that cannot be read. */
uint64_t dp_loop_cpu_ns(clockid_t clock, uint64_t otherwise);

#endif
