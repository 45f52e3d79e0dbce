/*
 * near.h - a UNIX socket to each neighbour on this node. Over it the two give each other the
 * descriptors of their mailboxes, and its end shows that the neighbour has died.
 *
 *     higher rank                                lower rank
 *        |-- hello: rank, tag, key; its files ----->|   at the lower rank's door (door.h)
 *        |<- its files -----------------------------|
 *        |                 ...                      |
 *        |-- bye, from each that leaves in order -->|   a socket that ends without one is a loss
 *
 * A forked child of a dead rank may keep its end of the socket open, so the process itself is
 * watched as well, by a pidfd.
 *
 * Called by shm.c, on the thread that owns the transport. Nothing here blocks but dp_near_close().
 * It must not know what the descriptors are.
 */
#ifndef DP_TRANSPORT_NEAR_H
#define DP_TRANSPORT_NEAR_H

#include "runtime/base/log.h"
#include "runtime/transport/peer_socket.h"

#define DP_NEAR_FILES 2

typedef struct dp_near dp_near_t;

/* A neighbour's files, which are the caller's, or its loss: either once. */
typedef struct dp_near_event {
    int rank;
    const char *lost; /* how; NULL: the files */
    int files[DP_NEAR_FILES];
} dp_near_event_t;

/* ranks: [count] neighbours on this node; copied. The relation is mutual. files: this rank's, for
 * each neighbour; borrowed until it is destroyed. DP_ERR_NO_MEMORY, DP_ERR_SYSTEM. */
dp_status_t dp_near_create(int rank, uint64_t tag, const int *ranks, int count,
                           const int files[DP_NEAR_FILES], const dp_log_t *log, dp_near_t **out,
                           dp_error_t *error);
void dp_near_address(const dp_near_t *near, uint8_t address[DP_PEER_SOCKET_ADDRESS]);
/* Opens the way to one of the neighbours. Any bytes will do: a wrong address is a loss. */
void dp_near_connect(dp_near_t *near, int rank, const uint8_t address[DP_PEER_SOCKET_ADDRESS]);

/* 1: *out is an event. */
int dp_near_poll(dp_near_t *near, dp_near_event_t *out);
/* Readable while dp_near_poll() may have something, but for what dp_near_has_news() tells. */
int dp_near_fd(const dp_near_t *near);
int dp_near_has_news(const dp_near_t *near);

/* Ends the socket of a neighbour whose files serve nothing, without a goodbye: it sees a loss. */
void dp_near_drop(dp_near_t *near, int rank);

/* Says goodbye to all neighbours, within the deadline to those that have yet to connect, and closes
 * the sockets. Nothing is reported from here on. */
void dp_near_close(dp_near_t *near, uint64_t deadline_ns);
void dp_near_destroy(dp_near_t *near); /* NULL is fine */

#endif
