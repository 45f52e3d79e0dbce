/*
 * loop.h - the coordinator thread: libevent around a transport in event mode.
 *
 * Drives the negotiator with submissions, messages and time; hands launches and failures to its
 * owner by callback; keeps heartbeats on the tree's edges. It never touches tensors, devices or
 * engines, so nothing can make it look dead.
 */
#ifndef DP_COORDINATOR_LOOP_H
#define DP_COORDINATOR_LOOP_H

#include <stdatomic.h>

#include "coordinator/negotiator/negotiator.h"
#include "runtime/trace/trace.h"
#include "runtime/transport/transport.h"

typedef struct dp_loop dp_loop_t;

/* From one thread at a time: the coordinator's, or one in dp_loop_progress_until(). Must not block.
 */
typedef struct dp_loop_callbacks {
    void *user;
    /* An output of kind LAUNCH, as in negotiator.h. */
    void (*launch)(void *user, const dp_output_t *launch);
    /* Every rank of the group of this dp_join() has joined. */
    void (*joined)(void *user, void *request, int last_rank);
    void (*fail)(void *user, void *request, dp_status_t status, const char *text);
    /* The world is over; called once. Requests not launched are forgotten by the loop. */
    void (*fatal)(void *user, dp_status_t status, int culprit, const char *text);
    /* This rank itself lost a neighbour: silent for so long, or (0) its connection broke. The world
     * ends over it, unless it ends already. May be NULL. */
    void (*loss)(void *user, int rank, uint64_t silent_ns);
    /* LOCKED, HELD, UNLOCKED or SETTLED, as in negotiator.h. */
    void (*schedule)(void *user, const dp_output_t *out);
    /* Asked whenever the thread is awake, at least once a heartbeat. Not DP_OK: the world ends with
     * this status, culprit and text. May be NULL. */
    dp_status_t (*watch)(void *user, uint64_t now_ns, int *culprit, char *text, size_t room);
} dp_loop_callbacks_t;

/*
 * What ranks tell each other beside the negotiation, for who has something to compare. beat() goes
 * along with signs of life; a neighbour that hears a beat it does not agree with tells its story,
 * and who hears a story can say what is wrong. data is what one of these functions wrote on the
 * other rank. All from the coordinator thread.
 */
#define DP_LOOP_HEARTBEAT_DATA_MAX 64
typedef struct dp_loop_gossip {
    void *user;
    size_t (*write_heartbeat)(void *user, void *data, size_t room); /* the bytes written */
    /* DP_OK: nothing is wrong; DP_ERR_MISMATCH: what, the neighbour shall be able to say; else the
     * world ends with this status and text. */
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
    int may_back_off;  /* the coordinator leaves its work to threads in dp_loop_progress_until() for
                          a while longer */
    uint64_t expect_ns; /* how long to poll after activity while dp_loop_count_sleeping_waiter() is
                           in force */
    dp_loop_callbacks_t callbacks;
    dp_loop_peer_check_t peer_check; /* zeroed: none */
} dp_loop_options_t;

typedef struct dp_loop_stats {
    uint64_t control_sent, control_received, heartbeats, wakeups, backoffs, cpu_ns;
    uint64_t locks, unlocks, locked_launches; /* schedules, and what was launched by them */
    const char *unlock_reason;                /* dp_unlock_reason_name() of the last; "" before */
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

/* Queues nodes[0..count) as one batch, in order, and wakes the coordinator. will_drive: the thread
 * means to call dp_loop_progress_until() next, and a coordinator that counts on that is left alone;
 * if it does not, a fraction of a millisecond is lost, nothing else. Any thread. */
void dp_loop_submit(dp_loop_t *loop, dp_loop_node_t *const *nodes, size_t count, int will_drive);

/* Makes the coordinator's rounds on the calling thread, until *state has reached this, no round has
 * brought anything for spin_ns, or the deadline has come: who waits for an answer anyway is already
 * awake, and a wake-up costs more than most answers. Returns early where the world is over. Any
 * thread but the coordinator's; threads take turns. */
void dp_loop_progress_until(dp_loop_t *loop, const _Atomic uint32_t *state, uint32_t reached,
                            uint64_t spin_ns, uint64_t deadline_ns);

/* Somebody waits for this pending operation. Any thread. Cheap; may be called late or twice. */
void dp_loop_urgent(dp_loop_t *loop, uint32_t group, const char *name);

/* A thread of the program sleeps until something is launched (change 1), or no longer (-1). While
 * one does, its core has nothing better to do than to poll for the answer, briefly. Any thread. */
void dp_loop_count_sleeping_waiter(dp_loop_t *loop, int change);

/* A thread of the program is awake in a wait (change 1), or no longer (-1): it makes the rounds, or
 * will when it has carried out what it is at. Any thread. */
void dp_loop_count_awake_waiter(dp_loop_t *loop, int change);

/* The data plane finished launch `sequence`. Any thread. */
void dp_loop_launched(dp_loop_t *loop, uint64_t sequence);

/* The root holds launches back no longer than this, or until so many bytes have gathered. Any
 * thread. */
void dp_loop_pace(dp_loop_t *loop, uint64_t hold_ns, size_t fusion_bytes);

/* What this rank does now, for stall reports. Any thread; copied. */
void dp_loop_set_activity(dp_loop_t *loop, const char *text);

/* A thread has waited for a while for something that is not launched. Any thread. */
void dp_loop_long_wait(dp_loop_t *loop);

/* A round of the program is over: all it has submitted was launched. Any thread. */
void dp_loop_program_round(dp_loop_t *loop);

/* Ends a locked schedule, as a setting that launches depend on changes. Any thread. */
void dp_loop_unlock(dp_loop_t *loop);

/* Ends the world with this reason. Any thread. */
void dp_loop_abort(dp_loop_t *loop, dp_status_t status, const char *text);

/* Something differs between the ranks: tells the neighbours this rank's story. If none of them
 * finds the reason, the world ends with this one after a moment. Any thread; the first call counts.
 */
void dp_loop_report_mismatch(dp_loop_t *loop, dp_status_t status, const char *text);

/* Says that this rank submits nothing more; what it submitted still completes, or fails because the
 * others leave too. Any thread; may be repeated. */
void dp_loop_leave(dp_loop_t *loop);

/* Says that this rank submits nothing more and waits until all ranks did, or the world ended. */
dp_status_t dp_loop_finalize(dp_loop_t *loop);

void dp_loop_stats(const dp_loop_t *loop, dp_loop_stats_t *out);

/* Joins the thread. After finalize, or at any time (then peers see this rank as lost). */
void dp_loop_stop(dp_loop_t *loop);

#endif
