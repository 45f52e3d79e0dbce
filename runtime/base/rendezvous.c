/*
 * rendezvous.c - serves exchanges and takes failure reports on a port or a local socket.
 *
 * Anybody who reaches the port may connect. So until a connection has proven that it knows the
 * secret, nothing but one hello of fixed size is read from it, for a bounded time, on a bounded
 * number of such connections; and what a proven rank sends is bounds-checked as well. Whatever is
 * wrong with a connection costs that connection and one line, never the job.
 *
 * A flood: a local socket hangs up on other users before anything else. On a port, when too many
 * connections have proven nothing, the oldest one goes of the address that has the most of them; a
 * rank that this hits comes again. What has proven itself is never dropped. A turn of the event
 * loop accepts a few connections only, so all else in the loop goes on.
 */
#include "runtime/base/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>

#include "runtime/base/local_socket.h"

#define HELLO_SECONDS 5
#define UNPROVEN_MAX 64 /* on top of one per rank */
#define SOURCES 256     /* addresses are counted by hash: those that share one share its fate */
#define ACCEPTS 16      /* in one turn of the loop */
#define NO_FILES_US 20000
#define CLOSED_PATIENCE_US 200000
#define REFUSED_MAX 20   /* lines; a port scan is not to flood the screen */
#define EXCHANGES_MAX 64 /* open at a time: the ranks use a handful */
#define HOW_MAX 256
#define LISTED_MAX 16 /* ranks in a text */
#define BACKLOG 1024

typedef struct value {
    void *data; /* owned */
    size_t bytes;
    int is_given;
} value_t;

typedef struct exchange {
    char name[DP_KV_NAME_MAX + 1];
    value_t *values; /* [size] */
    int given;
    struct exchange *next;
} exchange_t;

typedef struct peer {
    dp_rendezvous_t *rendezvous;
    struct bufferevent *socket;
    char address[64];
    uint8_t source; /* hash of where it comes from */
    uint8_t challenge[DP_CHALLENGE_BYTES];
    int rank;       /* -1: not proven yet */
    int is_closing; /* only what is queued is still to go out */
    struct peer *next;
    struct peer **back; /* the pointer that points here */
} peer_t;

/* A rank's place. */
typedef struct seat {
    peer_t *peer;        /* its proven connection, or NULL */
    int has_spoken;      /* it took part: another connection is another program */
    char ended[HOW_MAX]; /* how it left; "": it is there, or still to come */
    int end_order;       /* 1: the first that left, ... */
    int is_closed;       /* its connection is gone, of its process nothing is known yet */
} seat_t;

struct dp_rendezvous {
    struct event_base *base;    /* borrowed */
    int listener;               /* -1: the door is closed */
    struct event *caller;       /* at the listener */
    struct event *caller_timer; /* no descriptor is free: looks again later */
    dp_secret_t secret;
    int size;
    dp_rendezvous_events_t events;
    peer_t *peers; /* all connections */
    int unproven;
    int unproven_of[SOURCES];
    int refused;
    int has_told_flood;
    seat_t *seats; /* [size] */
    int ends;      /* ranks that left */
    struct event *closed_timer;
    exchange_t *exchanges;
};

/* ---- Connections ---------------------------------------------------------------------------- */

static void peer_close(peer_t *peer)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;

    if (peer->rank < 0) {
        rendezvous->unproven--;
        rendezvous->unproven_of[peer->source]--;
    } else if (rendezvous->seats[peer->rank].peer == peer) {
        rendezvous->seats[peer->rank].peer = NULL;
    }
    *peer->back = peer->next;
    if (peer->next != NULL) peer->next->back = peer->back;
    bufferevent_free(peer->socket);
    free(peer);
}

static void refuse_text(dp_rendezvous_t *rendezvous, const char *who, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse_text(dp_rendezvous_t *rendezvous, const char *who, const char *format, ...)
{
    const int most = REFUSED_MAX - !rendezvous->has_told_flood; /* one line is kept for a flood */
    char reason[512];
    char text[640];
    va_list arguments;

    rendezvous->refused++;
    if (rendezvous->refused > most) return;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    snprintf(text, sizeof(text), "rendezvous: dropped %s: %s%s", who, reason,
             rendezvous->refused == most ? " (no more such lines)" : "");
    rendezvous->events.refused(rendezvous->events.context, text);
}

static void send_text(peer_t *peer, enum dp_kv_type type, const char *text)
{
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX];
    dp_writer_t writer;

    dp_writer_init(&writer, frame, sizeof(frame));
    dp_kv_text_write(&writer, type, text);
    if (!writer.failed) bufferevent_write(peer->socket, frame, writer.bytes);
}

/* Says one thing, if the socket takes it, and closes. */
static void peer_turn_away(peer_t *peer, const char *why)
{
    if (evbuffer_get_length(bufferevent_get_output(peer->socket)) == 0) {
        (void)!send(bufferevent_getfd(peer->socket), why, DP_PROOF_BYTES,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    peer_close(peer);
}

static void on_drained(struct bufferevent *socket, void *context)
{
    peer_t *peer = context;

    (void)socket;
    if (peer->is_closing) peer_close(peer);
}

/* Says why, then closes once that is out. */
static void peer_dismiss(peer_t *peer, const char *text)
{
    send_text(peer, DP_KV_ERROR, text);
    peer->is_closing = 1;
    bufferevent_disable(peer->socket, EV_READ);
}

/* ---- Exchanges ------------------------------------------------------------------------------ */

static void exchange_free(dp_rendezvous_t *rendezvous, exchange_t *exchange)
{
    exchange_t **at = &rendezvous->exchanges;

    while (*at != exchange) {
        at = &(*at)->next;
    }
    *at = exchange->next;
    for (int rank = 0; rank < rendezvous->size; rank++) {
        free(exchange->values[rank].data);
    }
    free(exchange->values);
    free(exchange);
}

/* Ends an exchange for all who wait in it with an ERROR or LATE. culprit: -1 where it is no rank.
 */
static void exchange_fail(dp_rendezvous_t *rendezvous, exchange_t *exchange, enum dp_kv_type type,
                          int culprit, const char *text)
{
    dp_failure_t failure;

    dp_failure_init(&failure, type == DP_KV_LATE ? DP_FAILURE_LATE : DP_FAILURE_ENDED, culprit,
                    text);
    failure.is_seen = 1; /* by this server */
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (!exchange->values[rank].is_given || rendezvous->seats[rank].peer == NULL) continue;
        send_text(rendezvous->seats[rank].peer, type, text);
        if (culprit < 0) continue;
        rendezvous->events.failed(rendezvous->events.context, rank, &failure);
    }
    exchange_free(rendezvous, exchange);
}

/* Fails it when a rank whose value is missing has left: all hear of the first that did. */
static void exchange_check(dp_rendezvous_t *rendezvous, exchange_t *exchange)
{
    char text[HOW_MAX + 128];
    int culprit = -1;

    for (int rank = 0; rank < rendezvous->size; rank++) {
        const seat_t *seat = &rendezvous->seats[rank];

        if (exchange->values[rank].is_given || seat->ended[0] == '\0') continue;
        if (culprit < 0 || seat->end_order < rendezvous->seats[culprit].end_order) culprit = rank;
    }
    if (culprit < 0) return;
    snprintf(text, sizeof(text), "rank %d %s before all ranks met (%s)", culprit,
             rendezvous->seats[culprit].ended, exchange->name);
    exchange_fail(rendezvous, exchange, DP_KV_ERROR, culprit, text);
}

static void release_data(const void *data, size_t bytes, void *context)
{
    int *users = context;

    (void)bytes;
    if (--*users > 0) return;
    free(users);
    free((void *)(uintptr_t)data); /* allocated by exchange_finish() */
}

/* All values are there: everyone gets the same frame, held in memory once. */
static void exchange_finish(dp_rendezvous_t *rendezvous, exchange_t *exchange)
{
    size_t bytes = DP_KV_FRAME_HEADER_BYTES + 4;
    dp_writer_t writer;
    uint8_t *frame;
    int *users;
    char text[256];

    for (int rank = 0; rank < rendezvous->size; rank++) {
        bytes += 4 + exchange->values[rank].bytes;
    }
    frame = bytes <= DP_KV_FRAME_MAX ? malloc(bytes) : NULL;
    users = malloc(sizeof(*users));
    if (frame == NULL || users == NULL) {
        free(frame);
        free(users);
        snprintf(text, sizeof(text),
                 "exchange %s: the values of %d ranks are %zu bytes together, at most %u fit",
                 exchange->name, rendezvous->size, bytes, DP_KV_FRAME_MAX);
        exchange_fail(rendezvous, exchange, DP_KV_ERROR, -1, text);
        return;
    }
    dp_writer_init(&writer, frame, bytes);
    dp_kv_frame_begin(&writer, DP_KV_VALUES);
    dp_write_u32(&writer, (uint32_t)rendezvous->size);
    for (int rank = 0; rank < rendezvous->size; rank++) {
        dp_write_u32(&writer, (uint32_t)exchange->values[rank].bytes);
        dp_write_bytes(&writer, exchange->values[rank].data, exchange->values[rank].bytes);
    }
    dp_kv_frame_end(&writer, 0);
    DP_ASSERT(!writer.failed);
    *users = 1;
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (rendezvous->seats[rank].peer == NULL) continue; /* left since: its own affair */
        ++*users;
        if (evbuffer_add_reference(bufferevent_get_output(rendezvous->seats[rank].peer->socket),
                                   frame, writer.bytes, release_data, users) != 0) {
            --*users;
        }
    }
    release_data(frame, writer.bytes, users);
    exchange_free(rendezvous, exchange);
}

static exchange_t *exchange_of(dp_rendezvous_t *rendezvous, const char *name)
{
    exchange_t *exchange;
    int open = 0;

    for (exchange = rendezvous->exchanges; exchange != NULL; exchange = exchange->next) {
        if (strcmp(exchange->name, name) == 0) return exchange;
        open++;
    }
    if (open >= EXCHANGES_MAX) return NULL;
    exchange = calloc(1, sizeof(*exchange));
    if (exchange == NULL) return NULL;
    exchange->values = calloc((size_t)rendezvous->size, sizeof(*exchange->values));
    if (exchange->values == NULL) {
        free(exchange);
        return NULL;
    }
    snprintf(exchange->name, sizeof(exchange->name), "%s", name);
    exchange->next = rendezvous->exchanges;
    rendezvous->exchanges = exchange;
    return exchange;
}

/* ---- Frames of proven ranks ----------------------------------------------------------------- */

/* 0, or -1 with the connection closed, likewise below. */
static int malformed(peer_t *peer, const char *what)
{
    char who[128];

    snprintf(who, sizeof(who), "rank %d (%s)", peer->rank, peer->address);
    refuse_text(peer->rendezvous, who, "%s", what);
    peer_close(peer);
    return -1;
}

static int take_exchange(peer_t *peer, dp_reader_t *fields)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    char name[DP_KV_NAME_MAX + 1];
    char text[256];
    const void *data;
    exchange_t *exchange;
    value_t *value;
    uint32_t size;
    size_t bytes;

    if (dp_kv_exchange_read(fields, name, &size, &data, &bytes) != 0) {
        return malformed(peer, "a malformed exchange");
    }
    if (size != (uint32_t)rendezvous->size) {
        snprintf(text, sizeof(text), "exchange %s: rank %d counts %u ranks, the job has %d", name,
                 peer->rank, size, rendezvous->size);
        send_text(peer, DP_KV_ERROR, text);
        return 0;
    }
    exchange = exchange_of(rendezvous, name);
    if (exchange == NULL) {
        snprintf(text, sizeof(text), "exchange %s: no room for another at a time", name);
        send_text(peer, DP_KV_ERROR, text);
        return 0;
    }
    value = &exchange->values[peer->rank];
    if (value->is_given) {
        snprintf(text, sizeof(text), "exchange %s: rank %d gave its value before", name,
                 peer->rank);
        send_text(peer, DP_KV_ERROR, text);
        return 0;
    }
    rendezvous->seats[peer->rank].has_spoken = 1;
    value->data = bytes > 0 ? malloc(bytes) : NULL;
    if (bytes > 0 && value->data == NULL) return malformed(peer, "no memory for its value");
    if (bytes > 0) memcpy(value->data, data, bytes);
    value->bytes = bytes;
    value->is_given = 1;
    exchange->given++;
    if (exchange->given == rendezvous->size) {
        exchange_finish(rendezvous, exchange);
    } else {
        exchange_check(rendezvous, exchange);
    }
    return 0;
}

/* "1, 4, 5 and 12 more": the ranks that have given a value, or that have not. */
static size_t list_ranks(const dp_rendezvous_t *rendezvous, const exchange_t *exchange,
                         int is_given, char *text, size_t room)
{
    size_t bytes = 0;
    int count = 0;

    text[0] = '\0';
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (exchange->values[rank].is_given != is_given || ++count > LISTED_MAX) continue;
        bytes +=
            (size_t)snprintf(text + bytes, room - bytes, "%s%d%s", count > 1 ? ", " : "", rank,
                             is_given || rendezvous->seats[rank].peer == NULL ? "" : " (late)");
    }
    if (count > LISTED_MAX) {
        snprintf(text + bytes, room - bytes, " and %d more", count - LISTED_MAX);
    }
    return (size_t)count;
}

/* One has waited long enough: all who wait hear who came and who did not. */
static int take_give_up(peer_t *peer, dp_reader_t *fields)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    char name[DP_KV_TEXT_MAX + 1];
    char came[LISTED_MAX * 18 + 32];
    char missing[LISTED_MAX * 18 + 32];
    char text[DP_KV_TEXT_MAX + 1];
    char others[96] = "";
    exchange_t *exchange;
    int culprit = 0;

    if (dp_kv_text_read(fields, name, sizeof(name)) != 0) {
        return malformed(peer, "a malformed farewell");
    }
    for (exchange = rendezvous->exchanges; exchange != NULL; exchange = exchange->next) {
        if (strcmp(exchange->name, name) == 0) break;
    }
    if (exchange == NULL || !exchange->values[peer->rank].is_given) return 0; /* it was answered */
    while (exchange->values[culprit].is_given)
        culprit++;
    list_ranks(rendezvous, exchange, 1, came, sizeof(came));
    if (rendezvous->refused > 0) {
        snprintf(others, sizeof(others), "; %d other connections were refused meanwhile%s",
                 rendezvous->refused, rendezvous->has_told_flood ? ", a flood" : "");
    }
    snprintf(text, sizeof(text),
             "%zu of %d ranks did not come in time: %s; there were %s (%.63s)%s",
             list_ranks(rendezvous, exchange, 0, missing, sizeof(missing)), rendezvous->size,
             missing, came, name, others);
    exchange_fail(rendezvous, exchange, DP_KV_LATE, culprit, text);
    return 0;
}

static int take_frame(peer_t *peer, uint8_t type, dp_reader_t *fields)
{
    char text[96];
    dp_failure_t failure;

    if (type == DP_KV_EXCHANGE) return take_exchange(peer, fields);
    if (type == DP_KV_GIVE_UP) return take_give_up(peer, fields);
    if (type == DP_KV_FAILURE) {
        if (dp_failure_read(fields, &failure) != DP_OK) {
            return malformed(peer, "a malformed failure report");
        }
        peer->rendezvous->events.failed(peer->rendezvous->events.context, peer->rank, &failure);
        return 0;
    }
    snprintf(text, sizeof(text), "a frame of type %u, which only a server sends", type);
    return malformed(peer, text);
}

static void read_frames(peer_t *peer)
{
    struct evbuffer *input = bufferevent_get_input(peer->socket);

    while (!peer->is_closing) {
        size_t bytes = evbuffer_get_length(input);
        uint8_t header[DP_KV_FRAME_HEADER_BYTES];
        dp_error_t error;
        dp_reader_t fields;
        dp_status_t status;
        size_t frame_bytes;
        uint8_t type;

        /* Judge the length before making a large frame contiguous. */
        status = dp_kv_frame_parse(header, (size_t)dp_max(evbuffer_copyout(input, header, 4), 0),
                                   &type, &fields, &frame_bytes, &error);
        if (status == DP_ERR_AGAIN && bytes >= frame_bytes && bytes > 4) {
            const uint8_t *frame = evbuffer_pullup(input, (ev_ssize_t)frame_bytes);

            if (frame == NULL) {
                malformed(peer, "no memory for its frame");
                return;
            }
            status = dp_kv_frame_parse(frame, frame_bytes, &type, &fields, &frame_bytes, &error);
        }
        if (status == DP_ERR_AGAIN) return;
        if (status != DP_OK) {
            malformed(peer, error.text);
            return;
        }
        if (take_frame(peer, type, &fields) != 0) return;
        evbuffer_drain(input, frame_bytes);
    }
}

/* ---- Handshake ------------------------------------------------------------------------------ */

static void read_hello(peer_t *peer)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    struct evbuffer *input = bufferevent_get_input(peer->socket);
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    dp_error_t error;
    uint32_t rank;
    char text[128];

    if (evbuffer_get_length(input) < sizeof(hello)) return;
    evbuffer_remove(input, hello, sizeof(hello));
    if (dp_kv_client_hello_check(&rendezvous->secret, peer->challenge, hello, &rank, welcome,
                                 &error) != DP_OK) {
        refuse_text(rendezvous, peer->address, "%s", error.text);
        peer_turn_away(peer, DP_KV_WRONG_PROOF);
        return;
    }
    bufferevent_write(peer->socket, welcome, sizeof(welcome));
    if (rank >= (uint32_t)rendezvous->size || rendezvous->seats[rank].peer != NULL ||
        rendezvous->seats[rank].has_spoken) {
        if (rank >= (uint32_t)rendezvous->size) {
            snprintf(text, sizeof(text), "there is no rank %u, the job has %d", rank,
                     rendezvous->size);
        } else if (rendezvous->seats[rank].peer == NULL) {
            snprintf(text, sizeof(text),
                     "rank %u was here before and left: a second program in one rank?", rank);
        } else {
            snprintf(text, sizeof(text), "rank %u is here already (%s)", rank,
                     rendezvous->seats[rank].peer->address);
        }
        refuse_text(rendezvous, peer->address, "%s", text);
        peer_dismiss(peer, text);
        return;
    }
    peer->rank = (int)rank;
    rendezvous->unproven--;
    rendezvous->unproven_of[peer->source]--;
    rendezvous->seats[rank].peer = peer;
    rendezvous->seats[rank].is_closed = 0;
    bufferevent_set_timeouts(peer->socket, NULL, NULL);
    bufferevent_setwatermark(peer->socket, EV_READ, 0, DP_KV_FRAME_MAX + 4);
    rendezvous->events.joined(rendezvous->events.context, peer->rank);
    read_frames(peer);
}

static void on_readable(struct bufferevent *socket, void *context)
{
    peer_t *peer = context;

    (void)socket;
    if (peer->rank < 0) {
        read_hello(peer);
    } else {
        read_frames(peer);
    }
}

static void on_event(struct bufferevent *socket, short what, void *context)
{
    peer_t *peer = context;
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    const struct timeval patience = {0, CLOSED_PATIENCE_US};
    int rank = peer->rank;

    (void)socket;
    if (rank < 0 && !peer->is_closing) {
        if (what & BEV_EVENT_TIMEOUT) {
            refuse_text(rendezvous, peer->address, "no proof within %d s", HELLO_SECONDS);
        } else {
            refuse_text(rendezvous, peer->address, "it closed before any proof");
        }
    }
    peer_close(peer);
    if (rank < 0) return;
    rendezvous->seats[rank].is_closed = 1;
    event_add(rendezvous->closed_timer, &patience);
}

/* A dying process closes its connection a moment before its agent can say why it died. */
static void on_closed_timer(evutil_socket_t fd, short what, void *context)
{
    dp_rendezvous_t *rendezvous = context;

    (void)fd;
    (void)what;
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (rendezvous->seats[rank].is_closed && rendezvous->seats[rank].ended[0] == '\0') {
            dp_rendezvous_rank_ended(rendezvous, rank, "closed its connection");
        }
        rendezvous->seats[rank].is_closed = 0;
    }
}

/* ---- The door ------------------------------------------------------------------------------- */

/* Somebody holds many connections open: the address that has the most loses its oldest. 0: there
 * was none to drop. */
static int drop_one(dp_rendezvous_t *rendezvous)
{
    peer_t *oldest = NULL;
    int most = 0;

    for (int i = 1; i < SOURCES; i++) {
        if (rendezvous->unproven_of[i] > rendezvous->unproven_of[most]) most = i;
    }
    for (peer_t *peer = rendezvous->peers; peer != NULL; peer = peer->next) {
        if (peer->rank < 0 && peer->source == most) oldest = peer; /* new ones are put in front */
    }
    if (oldest == NULL) return 0;
    if (!rendezvous->has_told_flood)
        rendezvous->refused = dp_min(rendezvous->refused, REFUSED_MAX - 1);
    rendezvous->has_told_flood = 1; /* whatever else was told before */
    refuse_text(rendezvous, oldest->address,
                "a flood? %d connections without a proof, %d from there", rendezvous->unproven,
                rendezvous->unproven_of[most]);
    peer_turn_away(oldest, DP_KV_BUSY);
    return 1;
}

static void on_caller_timer(evutil_socket_t fd, short what, void *context)
{
    dp_rendezvous_t *rendezvous = context;

    (void)fd;
    (void)what;
    if (rendezvous->caller != NULL) event_add(rendezvous->caller, NULL);
}

/* No descriptor is free: one that proves nothing has to go, or the loop would spin. */
static void make_room(dp_rendezvous_t *rendezvous)
{
    const struct timeval later = {0, NO_FILES_US};

    if (drop_one(rendezvous)) return;
    refuse_text(rendezvous, "a connection", "accept: %s", strerror(errno));
    event_del(rendezvous->caller);
    event_add(rendezvous->caller_timer, &later);
}

/* Who calls: in words, and as a number that connections of one origin share. -1: another user. */
static int name_caller(int fd, const struct sockaddr_storage *from, char address[64],
                       uint8_t *source)
{
    const struct sockaddr_in *ip = (const struct sockaddr_in *)(const void *)from;
    char text[32];
    uid_t user = 0;
    pid_t pid = 0;
    uint32_t number;

    *source = 0;
    if (from->ss_family == AF_UNIX) {
        if (dp_local_peer(fd, &user, &pid) != 0) user = (uid_t)-1;
        snprintf(address, 64, "process %d of user %u", (int)pid, (unsigned)user);
        return user == geteuid() ? 0 : -1;
    }
    snprintf(address, 64, "?");
    if (from->ss_family == AF_INET && inet_ntop(AF_INET, &ip->sin_addr, text, sizeof(text))) {
        snprintf(address, 64, "%s:%d", text, ntohs(ip->sin_port));
        number = ntohl(ip->sin_addr.s_addr) * 2654435761u; /* spreads neighbours */
        *source = (uint8_t)(number >> 24);
    }
    return 0;
}

static void greet(dp_rendezvous_t *rendezvous, int fd, const char *address, uint8_t source)
{
    const struct timeval patience = {HELLO_SECONDS, 0};
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    peer_t *peer = calloc(1, sizeof(*peer));
    int on = 1;

    if (rendezvous->unproven >= rendezvous->size + UNPROVEN_MAX) drop_one(rendezvous);
    if (peer != NULL)
        peer->socket = bufferevent_socket_new(rendezvous->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (peer == NULL || peer->socket == NULL) {
        free(peer);
        close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* of a port */
    peer->rendezvous = rendezvous;
    peer->rank = -1;
    peer->source = source;
    snprintf(peer->address, sizeof(peer->address), "%s", address);
    peer->next = rendezvous->peers;
    peer->back = &rendezvous->peers;
    if (peer->next != NULL) peer->next->back = &peer->next;
    rendezvous->peers = peer;
    rendezvous->unproven++;
    rendezvous->unproven_of[source]++;
    bufferevent_setcb(peer->socket, on_readable, on_drained, on_event, peer);
    bufferevent_set_timeouts(peer->socket, &patience, &patience);
    /* More than a hello is not even read from the socket. */
    bufferevent_setwatermark(peer->socket, EV_READ, 0, DP_KV_CLIENT_HELLO_BYTES);
    dp_random(peer->challenge, sizeof(peer->challenge));
    dp_kv_server_hello_write(peer->challenge, hello);
    bufferevent_write(peer->socket, hello, sizeof(hello));
    bufferevent_enable(peer->socket, EV_READ | EV_WRITE);
}

static void on_caller(evutil_socket_t listener, short what, void *context)
{
    dp_rendezvous_t *rendezvous = context;

    (void)what;
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof(from);
        char address[64];
        uint8_t source;
        int fd = accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            make_room(rendezvous);
        }
        if (fd < 0) return;
        if (name_caller(fd, &from, address, &source) != 0) {
            refuse_text(rendezvous, address, "another user");
            close(fd);
        } else {
            greet(rendezvous, fd, address, source);
        }
    }
}

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_rendezvous_bind(uint16_t port, int *listener, uint16_t *bound, dp_error_t *error)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;

    /* A port is free again at once for the next job, though old connections linger. */
    if (fd < 0 || (port != 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        dp_error_set(error, DP_ERR_SYSTEM, "rendezvous on port %u: %s", port, strerror(errno));
        if (fd >= 0) close(fd);
        return DP_ERR_SYSTEM;
    }
    *bound = ntohs(address.sin_port);
    *listener = fd;
    return DP_OK;
}

dp_status_t dp_rendezvous_listen(dp_kv_ticket_t *ticket, int *listener, dp_error_t *error)
{
    char name[DP_LOCAL_ADDRESS_ROOM];
    uint8_t job[8];
    dp_status_t status = dp_local_listen(name, listener, error);

    if (status != DP_OK) return status;
    memset(ticket, 0, sizeof(*ticket));
    snprintf(ticket->address, sizeof(ticket->address), "%s", name);
    dp_random(job, sizeof(job));
    for (size_t i = 0; i < sizeof(job); i++) {
        snprintf(ticket->job + 2 * i, 3, "%02x", job[i]);
    }
    dp_random(ticket->secret.bytes, sizeof(ticket->secret.bytes));
    return DP_OK;
}

dp_status_t dp_rendezvous_create(struct event_base *base, int listener, int size,
                                 const dp_secret_t *secret, const dp_rendezvous_events_t *events,
                                 dp_rendezvous_t **out, dp_error_t *error)
{
    dp_rendezvous_t *rendezvous = calloc(1, sizeof(*rendezvous));

    if (rendezvous == NULL) {
        close(listener);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    rendezvous->base = base;
    rendezvous->size = size;
    rendezvous->secret = *secret;
    rendezvous->events = *events;
    rendezvous->seats = calloc((size_t)size, sizeof(*rendezvous->seats));
    rendezvous->closed_timer = event_new(base, -1, 0, on_closed_timer, rendezvous);
    rendezvous->listener = listener;
    rendezvous->caller = event_new(base, listener, EV_READ | EV_PERSIST, on_caller, rendezvous);
    rendezvous->caller_timer = event_new(base, -1, 0, on_caller_timer, rendezvous);
    if (rendezvous->caller == NULL || rendezvous->caller_timer == NULL ||
        rendezvous->seats == NULL || rendezvous->closed_timer == NULL ||
        event_add(rendezvous->caller, NULL) != 0) {
        dp_rendezvous_destroy(rendezvous);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    *out = rendezvous;
    return DP_OK;
}

static void close_listener(dp_rendezvous_t *rendezvous)
{
    if (rendezvous->caller != NULL) event_free(rendezvous->caller);
    if (rendezvous->listener >= 0) close(rendezvous->listener);
    rendezvous->caller = NULL;
    rendezvous->listener = -1;
}

void dp_rendezvous_destroy(dp_rendezvous_t *rendezvous)
{
    if (rendezvous == NULL) return;
    for (peer_t *peer = rendezvous->peers, *next; peer != NULL; peer = next) {
        next = peer->next;
        peer_close(peer);
    }
    for (exchange_t *exchange = rendezvous->exchanges, *next; exchange != NULL; exchange = next) {
        next = exchange->next;
        exchange_free(rendezvous, exchange);
    }
    close_listener(rendezvous);
    if (rendezvous->caller_timer != NULL) event_free(rendezvous->caller_timer);
    if (rendezvous->closed_timer != NULL) event_free(rendezvous->closed_timer);
    explicit_bzero(&rendezvous->secret, sizeof(rendezvous->secret));
    free(rendezvous->seats);
    free(rendezvous);
}

void dp_rendezvous_close_door(dp_rendezvous_t *rendezvous)
{
    close_listener(rendezvous);
    for (peer_t *peer = rendezvous->peers, *next; peer != NULL; peer = next) {
        next = peer->next;
        if (peer->rank < 0 && !peer->is_closing) peer_close(peer);
    }
}

int dp_rendezvous_has_unsent(const dp_rendezvous_t *rendezvous)
{
    for (const peer_t *peer = rendezvous->peers; peer != NULL; peer = peer->next) {
        if (peer->rank < 0) continue;
        if (evbuffer_get_length(bufferevent_get_output(peer->socket)) > 0) return 1;
    }
    return 0;
}

void dp_rendezvous_rank_ended(dp_rendezvous_t *rendezvous, int rank, const char *how)
{
    exchange_t *next;

    /* The process's end says more than its connection's, which is seen first. */
    snprintf(rendezvous->seats[rank].ended, HOW_MAX, "%s", how);
    if (rendezvous->seats[rank].end_order == 0) {
        rendezvous->seats[rank].end_order = ++rendezvous->ends;
    }
    for (exchange_t *exchange = rendezvous->exchanges; exchange != NULL; exchange = next) {
        next = exchange->next;
        exchange_check(rendezvous, exchange);
    }
}
