/*
 * unix_internal.h - what unix.c (messages over UNIX sockets) and unix_connect.c (how two ranks get
 * one) share: the object, its neighbours, and those that have not said who they are.
 */
#ifndef DP_TRANSPORT_UNIX_INTERNAL_H
#define DP_TRANSPORT_UNIX_INTERNAL_H

#include "runtime/transport/peer_socket.h"
#include "runtime/transport/transport.h"

typedef struct dp_unix_head {
    uint32_t bytes;
    uint32_t kind;
} dp_unix_head_t;
_Static_assert(sizeof(dp_unix_head_t) == 8, "sent as it is, inside one machine");

/* What waits to be written, with its head. */
typedef struct dp_unix_letter {
    struct dp_unix_letter *next;
    size_t bytes;
    size_t done;
    uint8_t data[];
} dp_unix_letter_t;

typedef struct dp_unix_peer {
    int rank;
    dp_peer_socket_address_t address;
    int fd;      /* -1: not connected, or no more */
    int process; /* pidfd; -1: none */
    int dials;   /* this rank connects to it, and has not yet */
    int wants_room;
    dp_unix_letter_t *first; /* what waits, oldest first */
    dp_unix_letter_t **last;
    /* the message that arrives */
    dp_unix_head_t head;
    size_t have; /* bytes of head and message so far */
    uint8_t *data;
    size_t room;
    int said_bye;
    int has_died; /* its process */
    int is_deaf;  /* nothing is sent to it any more */
    int is_lost;
    int is_told;
    const char *text; /* how it was lost */
} dp_unix_peer_t;

/* A connection that has not yet said who it is. */
typedef struct dp_unix_caller {
    int fd;
    size_t have;
    dp_peer_socket_hello_t hello;
} dp_unix_caller_t;

typedef struct dp_unix {
    dp_transport_t base;
    dp_transport_t *beyond; /* owned; NULL: all neighbours are here */
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_peer_socket_address_t own;
    int listener;     /* -1: nobody is to come any more */
    int wake;         /* eventfd */
    int inner;        /* epoll: what poll() looks at */
    int outer;        /* epoll: that one, the wake and what is behind; fd() */
    int timer;        /* until the next try to dial; -1: was never needed */
    int awaited;      /* neighbours that will dial */
    int losses;       /* that were not told yet */
    int beyond_first; /* whose turn it is */
    int is_connected;
    int is_closed;
    uint64_t strangers;
    dp_unix_caller_t *callers; /* [caller_room]; fd -1: free */
    int caller_room;
    int next_caller;
    int peer_count;
    dp_unix_peer_t peers[];
} dp_unix_t;

/* What an epoll event is about. */
typedef enum dp_unix_source {
    DP_UNIX_LISTENER,
    DP_UNIX_TIMER,
    DP_UNIX_CALLER,
    DP_UNIX_PEER,
    DP_UNIX_PROCESS
} dp_unix_source_t;

/* ---- unix.c ------------------------------------------------------------------------------- */

dp_unix_peer_t *dp_unix_find(dp_unix_t *self, int rank); /* NULL: none of this machine */
/* Has poll() look at a descriptor. 0, or -1 with errno. */
int dp_unix_watch(dp_unix_t *self, int fd, uint32_t events, dp_unix_source_t source, int place);
void dp_unix_close_fd(int *fd);
/* Nothing comes from it and nothing goes to it any more. */
void dp_unix_end_peer(dp_unix_t *self, dp_unix_peer_t *peer, const char *text);
void dp_unix_break(dp_unix_t *self, dp_unix_peer_t *peer); /* likewise, as its connection broke */
/* Writes what waits as far as there is room. */
void dp_unix_pump(dp_unix_t *self, dp_unix_peer_t *peer);

/* ---- unix_connect.c -------------------------------------------------------------------------- */

/* Makes the socket that higher ranks dial. 0, or -1 with errno. */
int dp_unix_listen(dp_unix_t *self);
void dp_unix_stop_listening(dp_unix_t *self);
/* Begins to connect to one neighbour of this machine. */
void dp_unix_open_peer(dp_unix_t *self, dp_unix_peer_t *peer);
void dp_unix_dial_all(dp_unix_t *self);    /* tries those again whose queue was full */
void dp_unix_accept_some(dp_unix_t *self); /* takes connections that wait */
void dp_unix_hear_caller(dp_unix_t *self, dp_unix_caller_t *caller);
/* The process has ended, whoever else still holds its socket: what it said before lies here. */
void dp_unix_note_death(dp_unix_t *self, dp_unix_peer_t *peer);

#endif
