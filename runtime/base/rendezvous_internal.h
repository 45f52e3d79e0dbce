/*
 * rendezvous_internal.h - what rendezvous.c (the exchanges of ranks that have proven themselves),
 * rendezvous_door.c (connections until they have) and rendezvous_peer.c (any connection) share. All
 * run in one event loop's thread.
 *
 * A connection is made by the door and belongs to it while peer->rank is -1. With the proof it
 * becomes a rank's: the owner's join() sets other callbacks, and the door forgets it.
 */
#ifndef DP_BASE_RENDEZVOUS_INTERNAL_H
#define DP_BASE_RENDEZVOUS_INTERNAL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>

#include "runtime/base/rendezvous.h"

#define DP_RENDEZVOUS_HOW_MAX 256

/* A connection. */
typedef struct dp_rendezvous_peer {
    dp_rendezvous_t *rendezvous;
    struct bufferevent *socket;
    char address[64];
    int rank; /* -1: not proven */
    /* the door's */
    uint8_t source; /* hash of the address it comes from */
    uint8_t challenge[DP_CHALLENGE_BYTES];
    int is_dismissed; /* it was told why it cannot stay; closes once that is out */
    /* the list of all connections, newest first */
    struct dp_rendezvous_peer *next;
    struct dp_rendezvous_peer **back; /* the pointer that points here */
} dp_rendezvous_peer_t;

/* What is known of one rank. */
typedef struct dp_rendezvous_rank {
    dp_rendezvous_peer_t *peer;        /* its proven connection, or NULL */
    int has_spoken;                    /* it took part: another connection is another program */
    char ended[DP_RENDEZVOUS_HOW_MAX]; /* how it left; "": it is there, or still to come */
    int end_order;                     /* 1: the first that left, ... */
    int is_closed;                     /* its connection is gone, its process' end not reported */
} dp_rendezvous_rank_t;

/* rendezvous.c, as the door sees it. */
typedef struct dp_rendezvous_door_owner {
    /* 0: the rank of a proof may join; -1 with the reason in text. */
    int (*may_join)(const dp_rendezvous_t *rendezvous, uint32_t rank, char *text, size_t room);
    /* The connection is this rank's from now on. Reads what has arrived, which may close it. */
    void (*join)(dp_rendezvous_peer_t *peer, int rank);
} dp_rendezvous_door_owner_t;

#define DP_RENDEZVOUS_REFUSED_MAX 20 /* lines; a port scan is not to flood the screen */
#define DP_RENDEZVOUS_LISTENERS 16

/* An open socket at which connections arrive. */
typedef struct dp_rendezvous_listener {
    int fd;
    struct event *incoming;
} dp_rendezvous_listener_t;

/* Where connections arrive, and those that have proven nothing. */
typedef struct dp_rendezvous_door {
    const dp_rendezvous_door_owner_t *owner; /* borrowed */
    dp_rendezvous_listener_t listeners[DP_RENDEZVOUS_LISTENERS];
    int listener_count;
    int is_closed;
    struct event *retry; /* no descriptor was free: looks again later */
    int unproven;        /* connections */
    int unproven_of[DP_RENDEZVOUS_SOURCES];
    int refused; /* connections dropped so far */
    int has_told_flood;
} dp_rendezvous_door_t;

struct dp_rendezvous {
    struct event_base *base; /* borrowed */
    dp_secret_t secret;
    int size;
    dp_rendezvous_events_t events;
    dp_rendezvous_peer_t *peers; /* all connections */
    dp_rendezvous_door_t door;
    dp_rendezvous_rank_t *ranks; /* [size] */
    int ends;                    /* ranks that left */
    struct event *closed_timer;
    struct dp_rendezvous_exchange *exchanges;
};

/* ---- rendezvous_peer.c ---------------------------------------------------------------------- */

/* Queues an ERROR or LATE. */
void dp_rendezvous_send_text(dp_rendezvous_peer_t *peer, enum dp_kv_type type, const char *text);
/* Closes a connection of either kind and frees it. */
void dp_rendezvous_peer_close(dp_rendezvous_peer_t *peer);
/* Reports a dropped connection by one line; after many, no more. */
void dp_rendezvous_refuse(dp_rendezvous_t *rendezvous, const char *origin, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- rendezvous_door.c ---------------------------------------------------------------------- */

/* Accepts on listener, which is taken, from now on; more calls open more of them. -1: none, for
 * connections that are adopted. 0, or -1: no memory, or too many; close the door then. */
int dp_rendezvous_door_open(dp_rendezvous_t *rendezvous, int listener,
                            const dp_rendezvous_door_owner_t *owner);
void dp_rendezvous_door_close(dp_rendezvous_door_t *door); /* again is fine */

#endif
