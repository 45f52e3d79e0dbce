/*
 * link.h - bulk messages between ranks of different nodes, over UCX tags.
 *
 * One worker per rank, used by one thread at a time. Peers are connected when first needed;
 * messages are matched by a 64-bit tag that carries the sender's rank. A peer's death is an error
 * of its endpoint. dp_ucx_link_is_lost() tells of it when it is asked, and nothing else does: a
 * rank that has left in order loses its connection too.
 *
 * cpu.c and introduce.c make a link in dp_init() and end it; the other files of this folder send
 * and receive on the thread that runs operations. Only dp_ucx_link_wake() may come from any thread.
 */
#ifndef DP_ENGINE_CPU_LINK_H
#define DP_ENGINE_CPU_LINK_H

#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/engine/cpu/control.h"

typedef struct dp_ucx_link dp_ucx_link_t;

/* A message on its way. Zeroed before its first use; at rest when !is_pending. */
typedef struct dp_ucx_link_message {
    int is_pending;
    int is_failed; /* it ended in an error */
    size_t bytes;
    void *request;                               /* UCX's */
    struct dp_ucx_link_message *next, *previous; /* among those pending */
    dp_ucx_link_t *link;
} dp_ucx_link_message_t;

/* size: of the world. */
dp_status_t dp_ucx_link_create(const dp_config_t *config, int rank, int size, const dp_log_t *log,
                               dp_ucx_link_t **out, dp_error_t *error);

/* Longest an idle polls before it sleeps; 0 at first. */
void dp_ucx_link_set_spin(dp_ucx_link_t *link, uint64_t spin_ns);

/* orderly: says farewell to the peers and waits a moment for theirs, so that nothing they still
 * read is cut off. Otherwise, or where one does not answer, what UCX holds stays with the process.
 * NULL is fine. */
void dp_ucx_link_destroy(dp_ucx_link_t *link, int orderly);

/* This rank's address; valid as long as the link. */
const void *dp_ucx_link_address(const dp_ucx_link_t *link, size_t *bytes);

/* Opens the way to a rank, once. *peer: its number here. Both sides must do so. */
dp_status_t dp_ucx_link_connect(dp_ucx_link_t *link, int rank, const void *address, int *peer,
                                dp_error_t *error);

/* Exchanges a greeting with every peer: connections are up afterwards. */
dp_status_t dp_ucx_link_greet(dp_ucx_link_t *link, uint64_t deadline_ns, dp_error_t *error);

/* The number of a rank connected before; -1: none. */
int dp_ucx_link_find(const dp_ucx_link_t *link, int rank);
int dp_ucx_link_rank(const dp_ucx_link_t *link, int peer);

/* Matches a message; of each field so many low bits count. */
typedef struct dp_ucx_link_tag {
    int from_rank;  /* 18 */
    uint32_t group; /* 10 */
    uint64_t op;    /* 12 */
    unsigned kind;  /* 4; 14 and 15 are the link's own */
    size_t chunk;   /* 20 */
} dp_ucx_link_tag_t;
#define DP_UCX_LINK_RANKS_MAX (1 << 18)

uint64_t dp_ucx_link_tag(const dp_ucx_link_tag_t *tag);

/* Ends all that is pending: the memory of messages is no longer used, at once and whatever the
 * peers do. Sending and receiving fail from now on. */
void dp_ucx_link_cut(dp_ucx_link_t *link);

/* Starts a message. data is borrowed until it is no longer pending. */
dp_status_t dp_ucx_link_send(dp_ucx_link_t *link, int peer, uint64_t tag, const void *data,
                             size_t bytes, dp_ucx_link_message_t *message);
/* A message of another length than `bytes` is an error. */
dp_status_t dp_ucx_link_receive(dp_ucx_link_t *link, uint64_t tag, void *data, size_t bytes,
                                dp_ucx_link_message_t *message);

/* Moves data. Returns how much happened, 0: nothing. */
int dp_ucx_link_progress(dp_ucx_link_t *link);
/* Counts what is moved in activity, from here on. */
void dp_ucx_link_watch(dp_ucx_link_t *link, dp_activity_t *activity);
/* Waits until something happened: a short poll, then sleep, at most 100 ms. rank: of the world,
 * the one that is waited for, for the activity. */
void dp_ucx_link_idle_for(dp_ucx_link_t *link, int rank);
/* Ends an idle of another thread. Any thread. */
void dp_ucx_link_wake(dp_ucx_link_t *link);

/* 1 when the connection to a peer is gone; *why (may be NULL) says how it was seen. */
int dp_ucx_link_is_lost(const dp_ucx_link_t *link, int peer, const char **why);

#endif
