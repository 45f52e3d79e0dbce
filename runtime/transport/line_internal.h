/*
 * line_internal.h - what the files of the line transport share. Each calls only those below it, and
 * the thread that owns the transport calls all of it.
 *
 *     line.c         messages, events, the ops table
 *     line_listen.c  this rank's address, and its door for neighbours that connect
 *     line_peer.c    one line
 *     line_peer.c   sockets and the timer that poll() looks at
 *
 *     a line, seen from the rank that connects       from the rank that listens
 *
 *     WAITING --connect()--> CONNECTING              WAITING
 *        ^                       | connected            | accepted; its hello is proven
 *        | tried again           v                      |
 *        +------------------ GREETED                    |
 *        +------------------ PROVING                    |
 *                                | welcome              v
 *                                +------> OPEN <--------+
 *                                           | end without a farewell: a loss
 *                                           | farewell: no loss follows
 *                                           v
 *                                         ENDED
 */
#ifndef DP_TRANSPORT_LINE_INTERNAL_H
#define DP_TRANSPORT_LINE_INTERNAL_H

#include <sys/socket.h>

#include "runtime/base/door.h"
#include "runtime/transport/line.h"
#include "runtime/transport/line_hello.h"
#include "runtime/network/silence.h"

#define DP_LINE_ADDRESS 40 /* bytes of a rank's address for the bootstrap's exchange */

typedef enum dp_line_state {
    DP_LINE_WAITING,    /* for the other to connect, or for the next try to connect to it */
    DP_LINE_CONNECTING, /* the kernel is at it */
    DP_LINE_GREETED,    /* connected; the listener's greeting is to come */
    DP_LINE_PROVING,    /* the hello is sent; the welcome is to come */
    DP_LINE_OPEN,
    DP_LINE_ENDED
} dp_line_state_t;

typedef struct dp_line_peer {
    int rank;
    dp_line_state_t state;
    int fd; /* -1: WAITING or ENDED */
    struct sockaddr_storage address;
    socklen_t address_bytes;
    dp_secret_t edge;
    uint8_t listener_challenge[DP_CHALLENGE_BYTES];
    uint8_t connector_challenge[DP_CHALLENGE_BYTES];
    uint64_t refused_ns; /* when nobody listened at its address first; 0: not yet */
    uint64_t retry_ns;   /* WAITING: when to connect again; UINT64_MAX: it connects to this rank */
    /* control messages */
    dp_code_key_t message_out, message_in;
    uint64_t messages_sent, messages_come;
    /* beats */
    dp_code_key_t beat_out, beat_in;
    uint32_t beats_sent, beats_come;
    uint8_t out[DP_LINE_BEAT_BYTES]; /* the rest of a beat that the socket did not take whole */
    size_t out_bytes;
    uint8_t in[DP_LINE_HELLO_BYTES]; /* what arrives, as far as it has */
    size_t have;
    dp_silence_t silence;
    uint64_t told_ns; /* the sign of life that was last reported */
    uint64_t sign_ns; /* the last one; later than told_ns: still to be reported */
    /* its end */
    int has_farewelled; /* this rank: nothing more is sent */
    int said_farewell;  /* the other one: no loss follows */
    int is_lost;
    int is_reported;    /* PEER_LOST was returned, or will not be */
    uint64_t report_ns; /* when the loss is reported, if lower does not report it before */
    char text[160];
} dp_line_peer_t;

typedef struct dp_line {
    dp_transport_t base;
    dp_transport_t *lower; /* owned */
    int rank;
    dp_log_t log;
    dp_secret_t secret; /* wiped once the edges have theirs */
    uint64_t world;     /* tells this world from others, in the clear */
    uint8_t nonce[DP_LINE_NONCE_BYTES];
    uint64_t beat_ns, timeout_ns;
    uint64_t start_ns;           /* when connect() was called */
    uint64_t start_limit_ns;     /* dp_now_ns() at which a line that is not open is lost, but for
                                  * ranks of which nothing has come: the owner judges these */
    struct sockaddr_storage own; /* where this rank's end of each line is */
    socklen_t own_bytes;
    dp_door_t *door; /* for neighbours that connect; NULL: there are none */
    int expected;    /* neighbours that still have to connect; 0: the door is closed */
    int events; /* epoll over all sockets here and the timer; lower's descriptor is beside it */
    int timer;
    uint64_t next_beat_ns;
    unsigned polls; /* since the events were looked at */
    int news;       /* a loss or a sign of life is to be reported */
    int is_connected;
    int is_closed;
    uint64_t forged;  /* messages */
    uint8_t *message; /* being sent: number, content, code */
    size_t message_room;
    int peer_count;
    dp_line_peer_t peers[];
} dp_line_t;

/* The source of an epoll event; with an index in event.data. */
typedef enum dp_line_source { DP_LINE_DOOR, DP_LINE_TIMER, DP_LINE_PEER } dp_line_source_t;

/* ---- line_peer.c ---------------------------------------------------------------------------- */

dp_line_peer_t *dp_line_find(dp_line_t *self, int rank); /* NULL: not on another node */
/* Has poll() look at a descriptor. 0, or -1 with errno. */
int dp_line_watch(const dp_line_t *self, int fd, uint32_t events, dp_line_source_t source,
                  int place);
/* Sets the timer, whatever it was set to. */
void dp_line_arm_timer(dp_line_t *self, uint64_t due_ns);
/* Has the timer wake the owner at this time at the latest. */
void dp_line_set_timer(dp_line_t *self, uint64_t due_ns);
uint16_t dp_line_port(const struct sockaddr_storage *address);
/* "10.0.0.7 port 4711" */
void dp_line_address_text(const struct sockaddr_storage *address, char *text, size_t room);
void dp_line_set_options(int fd, uint64_t timeout_ns);
void dp_line_connect(dp_line_t *self, dp_line_peer_t *peer);
void dp_line_handle(dp_line_t *self, dp_line_peer_t *peer, uint32_t events);
/* The line is open over this socket; the challenges are set. */
void dp_line_open(dp_line_t *self, dp_line_peer_t *peer, int fd);
void dp_line_send_beat(dp_line_t *self, dp_line_peer_t *peer, dp_line_beat_kind_t kind);
/* Looks at the kernel's counters, and at limits for opening. */
void dp_line_look(dp_line_t *self, dp_line_peer_t *peer, uint64_t now_ns);
/* Closes the socket; the other side sees a reset if must_reset. No loss is reported from here on.
 */
void dp_line_end(dp_line_peer_t *peer, int must_reset);

/* ---- line_listen.c -------------------------------------------------------------------------- */

/* Finds this rank's address, as dp_line_options_t says, and listens there if somebody is to
 * connect. */
dp_status_t dp_line_listen(dp_line_t *self, const dp_ip_t *own_ip, const char *network_interface,
                           dp_error_t *error);
void dp_line_address_write(const dp_line_t *self, uint8_t address[DP_LINE_ADDRESS]);
/* 1: it makes sense; the nonce points into it. */
int dp_line_address_read(const dp_line_t *self, const uint8_t address[DP_LINE_ADDRESS],
                         dp_line_peer_t *peer, const uint8_t **nonce);

#endif
