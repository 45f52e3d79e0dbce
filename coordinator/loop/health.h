/*
 * health.h - heartbeats between neighbours of the tree: when to send one, when a neighbour that
 * sends none is suspect or lost; and the numbers by which a lost message is found.
 *
 * Pure arithmetic on times, without a clock, a thread or a lock. The round (round.c) calls it on
 * the thread that owns progress and does what it says. A rank that was itself away (stopped,
 * starved, suspended) blames nobody for the silence it slept through.
 *
 *     a neighbour, by the time since something last came from it:
 *
 *     0 ----------------- SUSPECT_NS ------------------- timeout_ns
 *          alive              | suspect: one warning        | lost: given up, once
 *            ^-- BACK --------+ when it is heard again
 *
 * Before its first message a neighbour may still be starting: it is never suspect, and start_ns
 * stands for timeout_ns. A neighbour on another node gives signs of life beside its messages
 * (runtime/transport/line.h). If it lives and no message of it comes for start_ns, heartbeats
 * included, the connection that carries them has failed: it is mute, and given up likewise.
 */
#ifndef DP_COORDINATOR_HEALTH_H
#define DP_COORDINATOR_HEALTH_H

#include "runtime/base/common.h"

#define DP_HEALTH_SUSPECT_NS (1000ull * 1000000) /* silence that is worth a warning */

typedef struct dp_health_peer {
    int rank;
    uint64_t heartbeat_at_ns; /* when it was last given a heartbeat */
    uint64_t heard_ns;        /* when something last came from it, or it gave a sign of life */
    uint64_t message_ns;      /* when a message last came */
    int has_spoken;           /* something came from it, ever */
    int is_suspect;           /* a warning was given, and it was not heard since */
    int is_gone;              /* lost: no more is sent or expected */
    uint32_t sent;            /* control messages sent to it, and come from it, modulo 2^32 */
    uint32_t came;
} dp_health_peer_t;

typedef struct dp_health {
    dp_health_peer_t *peers; /* [count] */
    int count;
    uint64_t heartbeat_ns;
    uint64_t timeout_ns; /* 0: silence is never death */
    uint64_t start_ns;   /* the same before a rank has spoken: it may still be starting */
    uint64_t due_ns;     /* when the owner said it would look again at the latest */
    uint64_t asked_ns;   /* when dp_health_next() was last asked */
} dp_health_t;

typedef enum dp_health_kind {
    DP_HEALTH_SEND,    /* send the rank a heartbeat, then call dp_health_gave_heartbeat() */
    DP_HEALTH_SUSPECT, /* nothing from it for silent_ns; once until it is heard again */
    DP_HEALTH_BACK,    /* a suspect was heard again */
    DP_HEALTH_LOST,    /* silent for the timeout; once */
    DP_HEALTH_MUTE /* it lives, and no message came for the start's limit; once, instead of LOST */
} dp_health_kind_t;

typedef struct dp_health_action {
    dp_health_kind_t kind;
    int rank;
    uint64_t silent_ns; /* LOST, MUTE: the limit that is over */
} dp_health_action_t;

/* ranks[count] are copied. heartbeat_ns is raised to 1 ms, start_ns to timeout_ns, if they are
 * less. DP_ERR_NO_MEMORY. */
dp_status_t dp_health_init(dp_health_t *health, const int *ranks, int count, uint64_t heartbeat_ns,
                           uint64_t timeout_ns, uint64_t start_ns, uint64_t now_ns);
void dp_health_fini(dp_health_t *health); /* zeroed: fine */

/* This rank was sent a heartbeat. It is given one every heartbeat_ns, whatever else is sent: only
 * heartbeats carry what neighbours compare (dp_loop_peer_check_t). */
void dp_health_gave_heartbeat(dp_health_t *health, int rank, uint64_t now_ns);
void dp_health_heard(dp_health_t *health, int rank, uint64_t now_ns);
/* It gave a sign of life at seen_ns, which may be some time ago, and no message. */
void dp_health_alive(dp_health_t *health, int rank, uint64_t seen_ns);
void dp_health_gone(dp_health_t *health, int rank);

/* 1: every neighbour has spoken, so timeout_ns holds for each. */
int dp_health_have_all_spoken(const dp_health_t *health);

/* Control messages between two neighbours are numbered from 1, each way; a heartbeat repeats the
 * last number, so a lost message is found within a heartbeat. Returns the number of the next
 * message to this rank (is_message, which counts it as sent), or of the last one. */
uint32_t dp_health_number(dp_health_t *health, int rank, int is_message);

/* 1: nothing is missing before a message or heartbeat with this number. 0: *due was to come. */
int dp_health_in_order(dp_health_t *health, int rank, int is_message, uint32_t number,
                       uint32_t *due);

/* The owner looks again; to be called before it looks at messages. If it comes much later than it
 * said in dp_health_sleep(), messages may have waited in the transport: every neighbour's silence
 * counts from now on, and 1 is returned. */
int dp_health_resume(dp_health_t *health, uint64_t now_ns);

/* The next thing to be done now; 0 when there is none. */
int dp_health_next(dp_health_t *health, uint64_t now_ns, dp_health_action_t *out);

/* When dp_health_next() must be asked again; UINT64_MAX: never, as there are no neighbours. */
uint64_t dp_health_deadline(const dp_health_t *health);

/* The owner stops looking and will look again at this time at the latest. */
void dp_health_sleep(dp_health_t *health, uint64_t until_ns);

#endif
