/*
 * unix_internal.h - what unix.c (messages over UNIX sockets), unix_connect.c (how two ranks get
 * one) and unix_peer.c (one neighbour) share: the object, its neighbours, and connections that have
 * not proven their rank.
 */
#ifndef DP_TRANSPORT_UNIX_INTERNAL_H
#define DP_TRANSPORT_UNIX_INTERNAL_H

#include "runtime/transport/peer_socket.h"
#include "runtime/transport/transport.h"

/* Before each message on the socket. */
typedef struct dp_unix_head {
    uint32_t bytes; /* that follow */
    uint32_t kind;  /* KIND_DATA or KIND_BYE in unix.c */
} dp_unix_head_t;
_Static_assert(sizeof(dp_unix_head_t) == 8, "sent as it is, inside one node");

/* A message and its head, waiting to be written. */
typedef struct dp_unix_outgoing {
    struct dp_unix_outgoing *next;
    size_t bytes;
    size_t done; /* written so far */
    uint8_t data[];
} dp_unix_outgoing_t;

typedef struct dp_unix_peer {
    int rank;
    dp_peer_socket_address_t address;
    int fd;                    /* -1: not connected yet, or no more */
    int process;               /* pidfd, readable once the process has ended; -1: none */
    int must_connect;          /* this rank is to connect to it, and has not yet */
    dp_unix_outgoing_t *queue; /* waits to be written, oldest first */
    dp_unix_outgoing_t **queue_end;
    int watches_writable; /* epoll reports when the socket takes more */
    /* the message that arrives */
    dp_unix_head_t head;
    size_t have; /* bytes of head and message so far */
    uint8_t *data;
    size_t room;
    /* its end */
    int said_bye;       /* an orderly end: no loss follows */
    int has_died;       /* the process; its socket may still hold messages */
    int is_send_closed; /* nothing is sent to it any more */
    int is_lost;
    int is_reported;  /* PEER_LOST was returned */
    const char *text; /* how it was lost */
} dp_unix_peer_t;

/* A connection whose hello has not arrived yet. */
typedef struct dp_unix_unproven {
    int fd;
    size_t have; /* bytes of the hello */
    dp_peer_socket_hello_t hello;
} dp_unix_unproven_t;

typedef struct dp_unix {
    dp_transport_t base;
    dp_transport_t *lower; /* owned; NULL: all neighbours are on this node */
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_peer_socket_address_t own;
    int listener; /* -1: all that are to connect have */
    int wake;     /* eventfd of wake() */
    int inner;    /* epoll over all sockets: poll() asks it */
    int outer;    /* epoll over inner, wake and lower's fd: fd() returns it, others sleep on it */
    int timer;    /* until the next try to connect; -1: was never needed */
    int expected; /* neighbours that still have to connect to this rank */
    int losses;   /* not reported yet */
    int lower_first; /* poll() asks lower first every other time, so neither side starves */
    int is_connected;
    int is_closed;
    uint64_t refused;             /* connections */
    dp_unix_unproven_t *unproven; /* [unproven_room]; fd -1: free */
    int unproven_room;
    int next_unproven; /* place of the next connection: a ring, so the oldest is overwritten */
    int peer_count;
    dp_unix_peer_t peers[];
} dp_unix_t;

/* The source of an epoll event; with an index in event.data. */
typedef enum dp_unix_source {
    DP_UNIX_LISTENER,
    DP_UNIX_TIMER,
    DP_UNIX_UNPROVEN,
    DP_UNIX_PEER,
    DP_UNIX_PROCESS
} dp_unix_source_t;

/* ---- unix_peer.c ---------------------------------------------------------------------------- */

dp_unix_peer_t *dp_unix_find(dp_unix_t *self, int rank); /* NULL: none of this node */
/* Has poll() look at a descriptor. 0, or -1 with errno. */
int dp_unix_watch(dp_unix_t *self, int fd, uint32_t events, dp_unix_source_t source, int place);
void dp_unix_close_fd(int *fd);
void dp_unix_drop_queue(dp_unix_peer_t *peer); /* nothing more is sent to it */
/* Closes the connection and drops the queue. A loss, unless it said BYE. */
void dp_unix_end_peer(dp_unix_t *self, dp_unix_peer_t *peer, const char *text);
/* Likewise, as its connection broke. */
void dp_unix_end_broken(dp_unix_t *self, dp_unix_peer_t *peer);
/* Writes the queue as far as the socket takes it. */
void dp_unix_flush(dp_unix_t *self, dp_unix_peer_t *peer);

/* ---- unix_connect.c ------------------------------------------------------------------------- */

/* Makes the socket that higher neighbours connect to. 0, or -1 with errno. */
int dp_unix_listen(dp_unix_t *self);
void dp_unix_stop_listening(dp_unix_t *self);
/* Watches the process of a neighbour on this node, and connects to it or waits for it to. */
void dp_unix_open_peer(dp_unix_t *self, dp_unix_peer_t *peer);
void dp_unix_retry_connects(dp_unix_t *self); /* to those whose queue was full */
void dp_unix_accept_some(dp_unix_t *self);    /* as many as wait, up to a bound */
/* Reads what has come of a hello; then the connection becomes a neighbour's or is closed. */
void dp_unix_read_hello(dp_unix_t *self, dp_unix_unproven_t *unproven);
/* The process has ended. Messages that it sent before are still read, even if a child of it keeps
 * the socket open. */
void dp_unix_note_death(dp_unix_t *self, dp_unix_peer_t *peer);

#endif
