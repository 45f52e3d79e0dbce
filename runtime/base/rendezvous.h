/*
 * rendezvous.h - where the ranks of a job find each other: the server end of runtime/base/kv.h.
 *
 * Served by dprun, or by a thread of rank 0 in a job that others started (runtime/group). All calls
 * come from the thread of the event loop that it is given.
 */
#ifndef DP_BASE_RENDEZVOUS_H
#define DP_BASE_RENDEZVOUS_H

#include <event2/event.h>

#include "runtime/base/door.h"
#include "runtime/base/kv.h"

typedef struct dp_rendezvous dp_rendezvous_t;

typedef struct dp_rendezvous_events {
    void (*joined)(void *context, int rank); /* it has proven itself */
    /* Why the rank's world ended: it says so itself, or its exchange ended because of another rank
     * (ENDED, LATE) and it was told. failure is borrowed. */
    void (*failed)(void *context, int rank, const dp_failure_t *failure);
    void (*refused)(void *context, const char *text); /* one line: origin and reason */
    /* It notices by itself from here on when a neighbour falls silent. May be NULL. */
    void (*running)(void *context, int rank);
    void *context;
} dp_rendezvous_events_t;

/* Fills in ticket, with a job and a fresh secret, but for its address. */
void dp_rendezvous_make_ticket(dp_kv_ticket_t *ticket);

/* Listens on a local socket and makes a ticket with its address, before there is an event loop.
 * *listener is returned: pass it on, or close it. */
dp_status_t dp_rendezvous_listen(dp_kv_ticket_t *ticket, int *listener, dp_error_t *error);

/* Listens on a port (0: any that is free) of every address. *listener is returned: pass it on, or
 * close it. */
dp_status_t dp_rendezvous_bind(uint16_t port, int *listener, uint16_t *bound, dp_error_t *error);

/* Serves `size` ranks. listener is taken, also on an error: of dp_rendezvous_bind() or
 * dp_local_listen(); -1: connections come by dp_rendezvous_adopt() alone. */
dp_status_t dp_rendezvous_create(struct event_base *base, int listener, int size,
                                 const dp_secret_t *secret, const dp_rendezvous_events_t *events,
                                 dp_rendezvous_t **out, dp_error_t *error);
void dp_rendezvous_destroy(dp_rendezvous_t *rendezvous);

/* Serves at one more listener, which is taken, also on an error: DP_ERR_NO_MEMORY. Before
 * dp_rendezvous_close_door(). */
dp_status_t dp_rendezvous_add_listener(dp_rendezvous_t *rendezvous, int listener,
                                       dp_error_t *error);

/* Takes a connected socket, non-blocking, as if it had been accepted; one whose door is closed is
 * closed. `origin` says where it comes from; of those that have proven nothing, equal sources (0 to
 * DP_DOOR_SOURCES - 1) share their fate. */
void dp_rendezvous_adopt(dp_rendezvous_t *rendezvous, int fd, const char *origin, int source);

/* Stops listening: the port is free again. Connections of ranks stay, others are closed. No rank
 * can prove itself any more, so the secret is wiped. */
void dp_rendezvous_close_door(dp_rendezvous_t *rendezvous);

/* 1: an answer has not left for the kernel yet. */
int dp_rendezvous_has_unsent(const dp_rendezvous_t *rendezvous);

/* A rank has ended: exchanges that still need its value end with an error that says `how`, now and
 * from now on. */
void dp_rendezvous_rank_ended(dp_rendezvous_t *rendezvous, int rank, const char *how);

#endif
