/*
 * loop.h - the coordinator's event loop: libevent around a transport in event mode.
 *
 * It feeds the negotiator with submissions, messages and time, reports launches and failures to its
 * owner by callback, and keeps heartbeats on the tree's edges. The functions of dp.h
 * (coordinator/api) and the program-order module call it, from any thread. It must not touch
 * tensors, devices or engines: then nothing that the data plane does can make this rank look dead.
 *
 * The work is done in *rounds* (round.c). A round takes in everything that has arrived and gives
 * out everything that follows from it. The thread that *owns progress* makes the rounds: it holds
 * progress_lock (state.h). It is the coordinator thread (thread.c), or a thread blocked in
 * dp_wait() (progress.c): that one is awake anyway, so a small operation costs no wake-up.
 *
 *   The coordinator thread                     progress_lock     inbox.sleep
 *
 *         +--> POLLING <-----------------+     held              AWAKE
 *         |     |    |                   |
 *         |     |    | a round found nothing, and another thread makes the rounds
 *         |     |    v                   |
 *         |     |  BACKING OFF ----------+     free or another's BACKING_OFF
 *         |     |    ^   200 us, doubled up to 1.6 ms; ended early by a submission that no
 *         |     |    |   waiting thread will look at, and by a waiting thread that falls asleep
 *         |     |    |
 *         |     |    | woken, but a waiting thread owns progress
 *         |     v    |
 *         +--- ASLEEP in the event loop        free or another's ASLEEP, ASLEEP_HOLDING
 *               nothing came for DP_SPIN; ended by a message, a wake-up or the next deadline
 *
 *   A thread in dp_loop_progress_until()
 *
 *     try progress_lock --> makes rounds until its operation is launched, DP_SPIN went by without
 *           ^    |          news or its deadline passed --> re-arms the doorbell if the coordinator
 *           |    | busy     thread is ASLEEP --> unlocks --> wakes that thread if it has something
 *           +----+          to do before it would wake by itself
 */
#ifndef DP_COORDINATOR_LOOP_H
#define DP_COORDINATOR_LOOP_H

#include <stdatomic.h>

#include "coordinator/negotiator/negotiator.h"
#include "runtime/trace/trace.h"
#include "runtime/transport/transport.h"

typedef struct dp_loop dp_loop_t;

/* Called by the thread that owns progress, so by one at a time. Must not block. */
typedef struct dp_loop_callbacks {
    void *user;
    /* An output of kind DP_OUTPUT_LAUNCH, as in negotiator.h. */
    void (*launch)(void *user, const dp_output_t *launch);
    /* Every rank of the group of this dp_join() has joined. */
    void (*joined)(void *user, void *request, int last_rank);
    void (*fail)(void *user, void *request, dp_status_t status, const char *text);
    /* The world is over; called once. Requests not launched are forgotten by the loop. */
    void (*fatal)(void *user, dp_status_t status, int culprit, const char *text);
    /* Asked in every round, so at least once a heartbeat. If it does not answer DP_OK, the world
     * ends with this status, culprit and text. May be NULL. */
    dp_status_t (*watch)(void *user, uint64_t now_ns, int *culprit, char *text, size_t room);
    /* This rank itself lost a neighbour: it was silent for so long, or (0) its connection broke.
     * The world ends over it, unless it ends already. May be NULL. */
    void (*loss)(void *user, int rank, uint64_t silent_ns);
    /* Every neighbour has been heard: from here on one that falls silent is missed after
     * DP_PEER_TIMEOUT. Called once. May be NULL. */
    void (*running)(void *user);
} dp_loop_callbacks_t;

/*
 * Data that neighbours compare beside the negotiation (of ordered groups, program.c). Digests ride
 * in each heartbeat. A rank that finds its neighbour's digest different sends its history,
 * from which the neighbour can say what differs. `data` is what the matching write function wrote
 * on the other rank. Called by the thread that owns progress.
 */
#define DP_LOOP_HEARTBEAT_DATA_MAX 256
typedef struct dp_loop_peer_check {
    void *user;
    size_t (*write_heartbeat)(void *user, void *data, size_t room); /* returns the bytes written */
    /* DP_OK: nothing is wrong. DP_ERR_MISMATCH: something differs; this rank's history is sent to
     * the neighbour. Anything else ends the world with this status and text. */
    dp_status_t (*check_heartbeat)(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room);
    size_t (*write_history)(void *user, void *data, size_t room);
    /* Not DP_OK: the world ends with this status and text. */
    dp_status_t (*compare_history)(void *user, int rank, const void *data, size_t bytes, char *text,
                                   size_t room);
} dp_loop_peer_check_t;

typedef struct dp_loop_options {
    const dp_config_t *config;     /* borrowed */
    const dp_topology_t *topology; /* borrowed */
    int rank, size;
    dp_transport_t *transport; /* borrowed; created, its address exchanged, connected */
    const dp_log_t *log;
    dp_trace_t *trace; /* may be NULL */
    /* The coordinator thread backs off while others make rounds. 0 where waiting threads do not
     * poll (DP_SPIN=0): backing off would only add latency. */
    int may_back_off;
    dp_loop_callbacks_t callbacks;
    dp_loop_peer_check_t peer_check; /* zeroed: none */
} dp_loop_options_t;

typedef struct dp_loop_stats {
    uint64_t control_sent, control_received, heartbeats, wakeups, backoffs, cpu_ns;
} dp_loop_stats_t;

/* The neighbours of a rank in the tree, for connecting the transport: ranks[] has room for
 * DP_LOOP_NEIGHBOURS_MAX(arity). */
#define DP_LOOP_NEIGHBOURS_MAX(arity) (2 * (arity) + 1)
dp_status_t dp_loop_neighbours(const dp_topology_t *topology, int arity, int rank, int *ranks,
                               int *count);

dp_status_t dp_loop_start(const dp_loop_options_t *options, dp_loop_t **out, dp_error_t *error);

/*
 * A node of the submission queue, embedded in the caller's request: intrusive, so submitting
 * neither allocates nor fails. Filled in by the caller; borrowed until launch() or fail() hands
 * back submission.request. submission.name and .signature are borrowed as long.
 */
typedef struct dp_loop_node {
    struct dp_loop_node *next; /* the loop's */
    dp_submission_t submission;
} dp_loop_node_t;

/* Says that this rank submits nothing more; what it submitted still completes, or fails because the
 * others leave too. Any thread; may be repeated. */
void dp_loop_leave(dp_loop_t *loop);

/* Says that this rank submits nothing more and waits until all ranks did, or the world ended. */
dp_status_t dp_loop_finalize(dp_loop_t *loop);

void dp_loop_stats(const dp_loop_t *loop, dp_loop_stats_t *out);

/* Joins the thread. After finalize, or at any time (then peers see this rank as lost). */
void dp_loop_stop(dp_loop_t *loop);

#endif
