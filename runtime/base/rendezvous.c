/*
 * rendezvous.c - serves the exchanges of a job's ranks, and takes their failure reports.
 *
 * Called by dprun, or by rank 0's server thread where others started the job, in the thread of the
 * event loop it is given. Connections come through a door (door.h) once they have proven that they
 * know the secret; even so, what a rank sends is bounds-checked, and a malformed frame costs that
 * connection alone. It must not know what the values mean.
 *
 * An exchange collects one value of each rank under a name. It ends in one of three ways: all have
 * given theirs (VALUES to all), a rank whose value is missing has left (ERROR to those who wait),
 * or one of those who wait has waited long enough (LATE to all who wait).
 */
#include "runtime/base/rendezvous.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"

#define CLOSED_PATIENCE_US 200000
#define EXCHANGES_MAX 64 /* open at a time: the ranks use a handful */
#define LISTED_MAX 16    /* ranks in a text */
#define HOW_MAX 256

/* The connection of a rank, which has proven itself. */
typedef struct peer {
    dp_rendezvous_t *rendezvous;
    struct bufferevent *socket;
    char address[64];
    int rank;
} peer_t;

/* The state of one rank. */
typedef struct rank_state {
    peer_t *peer;        /* NULL: none */
    int has_spoken;      /* it took part: another connection is another program */
    char ended[HOW_MAX]; /* how it left; "": it is there, or still to come */
    int end_order;       /* 1: the first that left, ... */
    int is_closed;       /* its connection is gone, its process' end not reported */
} rank_state_t;

struct dp_rendezvous {
    struct event_base *base; /* borrowed */
    dp_secret_t secret;
    int size;
    dp_rendezvous_events_t events;
    dp_door_t *door;
    struct event *on_door; /* NULL: it is closed */
    rank_state_t *ranks;   /* [size] */
    int ends;              /* ranks that left */
    struct event *closed_timer;
    struct dp_rendezvous_exchange *exchanges;
};

typedef struct exchange_value {
    void *data; /* owned */
    size_t bytes;
    int is_given;
} exchange_value_t;

typedef struct dp_rendezvous_exchange {
    char name[DP_KV_NAME_MAX + 1];
    exchange_value_t *values; /* [size] */
    int given;
    struct dp_rendezvous_exchange *next;
} exchange_t;

/* ---- A rank's connection -------------------------------------------------------------------- */

static size_t write_text(uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX],
                         enum dp_kv_type type, const char *text)
{
    dp_writer_t writer;

    dp_writer_init(&writer, frame, DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX);
    dp_kv_text_write(&writer, type, text);
    return writer.failed ? 0 : writer.bytes;
}

/* Queues an ERROR or LATE. */
static void send_text(peer_t *peer, enum dp_kv_type type, const char *text)
{
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX];

    bufferevent_write(peer->socket, frame, write_text(frame, type, text));
}

static void close_peer(peer_t *peer)
{
    peer->rendezvous->ranks[peer->rank].peer = NULL;
    bufferevent_free(peer->socket);
    free(peer);
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

/* Ends an exchange with an ERROR or LATE to all ranks that wait in it. culprit: -1: no rank is. */
static void exchange_fail(dp_rendezvous_t *rendezvous, exchange_t *exchange, enum dp_kv_type type,
                          int culprit, const char *text)
{
    dp_failure_t failure;

    dp_failure_init(&failure, type == DP_KV_LATE ? DP_FAILURE_LATE : DP_FAILURE_ENDED, culprit,
                    text);
    failure.is_seen = 1; /* by this server */
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (!exchange->values[rank].is_given || rendezvous->ranks[rank].peer == NULL) continue;
        send_text(rendezvous->ranks[rank].peer, type, text);
        if (culprit < 0) continue;
        rendezvous->events.failed(rendezvous->events.context, rank, &failure);
    }
    exchange_free(rendezvous, exchange);
}

/* Fails an exchange if a rank whose value is missing has left. All are told of the first that left.
 */
static void fail_if_rank_left(dp_rendezvous_t *rendezvous, exchange_t *exchange)
{
    char text[HOW_MAX + 128];
    int culprit = -1;

    for (int rank = 0; rank < rendezvous->size; rank++) {
        const rank_state_t *place = &rendezvous->ranks[rank];

        if (exchange->values[rank].is_given || place->ended[0] == '\0') continue;
        if (culprit < 0 || place->end_order < rendezvous->ranks[culprit].end_order) culprit = rank;
    }
    if (culprit < 0) return;
    snprintf(text, sizeof(text), "rank %d %s before all ranks met (%s)", culprit,
             rendezvous->ranks[culprit].ended, exchange->name);
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
        if (rendezvous->ranks[rank].peer == NULL) continue; /* left since: its own affair */
        ++*users;
        if (evbuffer_add_reference(bufferevent_get_output(rendezvous->ranks[rank].peer->socket),
                                   frame, writer.bytes, release_data, users) != 0) {
            --*users;
        }
    }
    release_data(frame, writer.bytes, users);
    exchange_free(rendezvous, exchange);
}

static exchange_t *find_or_make_exchange(dp_rendezvous_t *rendezvous, const char *name)
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
static int drop_malformed(peer_t *peer, const char *what)
{
    char origin[128];

    snprintf(origin, sizeof(origin), "rank %d (%s)", peer->rank, peer->address);
    dp_door_refuse(peer->rendezvous->door, origin, what);
    close_peer(peer);
    return -1;
}

static int serve_exchange(peer_t *peer, dp_reader_t *fields)
{
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    char name[DP_KV_NAME_MAX + 1];
    char text[256];
    const void *data;
    exchange_t *exchange;
    exchange_value_t *value;
    uint32_t size;
    size_t bytes;

    if (dp_kv_exchange_read(fields, name, &size, &data, &bytes) != 0) {
        return drop_malformed(peer, "a malformed exchange");
    }
    if (size != (uint32_t)rendezvous->size) {
        snprintf(text, sizeof(text), "exchange %s: rank %d counts %u ranks, the job has %d", name,
                 peer->rank, size, rendezvous->size);
        send_text(peer, DP_KV_ERROR, text);
        return 0;
    }
    exchange = find_or_make_exchange(rendezvous, name);
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
    rendezvous->ranks[peer->rank].has_spoken = 1;
    value->data = bytes > 0 ? malloc(bytes) : NULL;
    if (bytes > 0 && value->data == NULL) return drop_malformed(peer, "no memory for its value");
    if (bytes > 0) memcpy(value->data, data, bytes);
    value->bytes = bytes;
    value->is_given = 1;
    exchange->given++;
    if (exchange->given == rendezvous->size) {
        exchange_finish(rendezvous, exchange);
    } else {
        fail_if_rank_left(rendezvous, exchange);
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
                             is_given || rendezvous->ranks[rank].peer == NULL ? "" : " (late)");
    }
    if (count > LISTED_MAX) {
        snprintf(text + bytes, room - bytes, " and %d more", count - LISTED_MAX);
    }
    return (size_t)count;
}

/* A rank has waited long enough: LATE names the ranks that came and those that did not, to all
 * ranks that wait. */
static int serve_give_up(peer_t *peer, dp_reader_t *fields)
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
        return drop_malformed(peer, "a malformed farewell");
    }
    for (exchange = rendezvous->exchanges; exchange != NULL; exchange = exchange->next) {
        if (strcmp(exchange->name, name) == 0) break;
    }
    if (exchange == NULL || !exchange->values[peer->rank].is_given) return 0; /* it was answered */
    while (exchange->values[culprit].is_given)
        culprit++;
    list_ranks(rendezvous, exchange, 1, came, sizeof(came));
    if (dp_door_refused(rendezvous->door) > 0) {
        snprintf(others, sizeof(others), "; %d other connections were refused meanwhile%s",
                 dp_door_refused(rendezvous->door),
                 dp_door_had_flood(rendezvous->door) ? ", a flood" : "");
    }
    snprintf(text, sizeof(text),
             "%zu of %d ranks did not come in time: %s; there were %s (%.63s)%s",
             list_ranks(rendezvous, exchange, 0, missing, sizeof(missing)), rendezvous->size,
             missing, came, name, others);
    exchange_fail(rendezvous, exchange, DP_KV_LATE, culprit, text);
    return 0;
}

static int serve_frame(peer_t *peer, uint8_t type, dp_reader_t *fields)
{
    char text[96];
    dp_failure_t failure;

    if (type == DP_KV_EXCHANGE) return serve_exchange(peer, fields);
    if (type == DP_KV_GIVE_UP) return serve_give_up(peer, fields);
    if (type == DP_KV_FAILURE) {
        if (dp_failure_read(fields, &failure) != DP_OK) {
            return drop_malformed(peer, "a malformed failure report");
        }
        peer->rendezvous->events.failed(peer->rendezvous->events.context, peer->rank, &failure);
        return 0;
    }
    if (type == DP_KV_RUNNING) {
        if (dp_reader_left(fields) > 0) return drop_malformed(peer, "a malformed sign of life");
        if (peer->rendezvous->events.running != NULL)
            peer->rendezvous->events.running(peer->rendezvous->events.context, peer->rank);
        return 0;
    }
    snprintf(text, sizeof(text), "a frame of type %u, which only a server sends", type);
    return drop_malformed(peer, text);
}

static void read_frames(peer_t *peer)
{
    struct evbuffer *input = bufferevent_get_input(peer->socket);

    for (;;) {
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
        if (status == DP_ERR_PENDING && bytes >= frame_bytes && bytes > 4) {
            const uint8_t *frame = evbuffer_pullup(input, (ev_ssize_t)frame_bytes);

            if (frame == NULL) {
                drop_malformed(peer, "no memory for its frame");
                return;
            }
            status = dp_kv_frame_parse(frame, frame_bytes, &type, &fields, &frame_bytes, &error);
        }
        if (status == DP_ERR_PENDING) return;
        if (status != DP_OK) {
            drop_malformed(peer, error.text);
            return;
        }
        if (serve_frame(peer, type, &fields) != 0) return;
        evbuffer_drain(input, frame_bytes);
    }
}

/* ---- Connections of ranks ------------------------------------------------------------------- */

/* 0: the rank of a proof may join; -1: why not. */
static int may_join(const dp_rendezvous_t *rendezvous, uint32_t rank, char *why)
{
    const rank_state_t *place;

    if (rank >= (uint32_t)rendezvous->size) {
        snprintf(why, DP_DOOR_TEXT, "there is no rank %u, the job has %d", rank, rendezvous->size);
        return -1;
    }
    place = &rendezvous->ranks[rank];
    if (place->peer != NULL) {
        snprintf(why, DP_DOOR_TEXT, "rank %u is here already (%s)", rank, place->peer->address);
        return -1;
    }
    if (!place->has_spoken) return 0;
    snprintf(why, DP_DOOR_TEXT, "rank %u was here before and left: a second program in one rank?",
             rank);
    return -1;
}

static void on_frames(struct bufferevent *socket, void *context)
{
    (void)socket;
    read_frames(context);
}

/* The connection has ended, and most likely its process. Only the agent knows how it ended, so the
 * rank counts as gone after a moment, by on_closed_timer(). */
static void on_rank_event(struct bufferevent *socket, short what, void *context)
{
    const struct timeval patience = {0, CLOSED_PATIENCE_US};
    peer_t *peer = context;
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    const int rank = peer->rank;

    (void)socket;
    (void)what;
    close_peer(peer);
    rendezvous->ranks[rank].is_closed = 1;
    event_add(rendezvous->closed_timer, &patience);
}

/* Takes the connection. -1: no memory. */
static int join(dp_rendezvous_t *rendezvous, int rank, const dp_door_visitor_t *visitor)
{
    peer_t *peer = calloc(1, sizeof(*peer));

    if (peer == NULL) return -1;
    peer->socket = bufferevent_socket_new(rendezvous->base, visitor->fd, BEV_OPT_CLOSE_ON_FREE);
    if (peer->socket == NULL) {
        free(peer);
        return -1;
    }
    peer->rendezvous = rendezvous;
    peer->rank = rank;
    snprintf(peer->address, sizeof(peer->address), "%s", visitor->from);
    rendezvous->ranks[rank].peer = peer;
    rendezvous->ranks[rank].is_closed = 0;
    bufferevent_setcb(peer->socket, on_frames, NULL, on_rank_event, peer);
    bufferevent_setwatermark(peer->socket, EV_READ, 0, DP_KV_FRAME_MAX + 4);
    bufferevent_enable(peer->socket, EV_READ | EV_WRITE);
    rendezvous->events.joined(rendezvous->events.context, rank);
    return 0;
}

/* A program that knows the secret is told why it cannot join. */
static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    dp_rendezvous_t *rendezvous = context;
    uint8_t frame[DP_KV_FRAME_HEADER_BYTES + 2 + DP_KV_TEXT_MAX];
    uint8_t welcome[DP_PROOF_BYTES];
    dp_error_t error;
    uint32_t rank;

    if (dp_kv_client_hello_check(&rendezvous->secret, visitor->challenge, visitor->hello, &rank,
                                 welcome, &error) != DP_OK) {
        snprintf(why, DP_DOOR_TEXT, "%s", error.text);
        (void)dp_door_answer(visitor, DP_KV_WRONG_PROOF, DP_PROOF_BYTES);
        return 0;
    }
    snprintf(why, DP_DOOR_TEXT, "rank %u left in the middle of its proof", rank);
    if (dp_door_answer(visitor, welcome, sizeof(welcome)) != 0) return 0;
    if (may_join(rendezvous, rank, why) == 0) {
        if (join(rendezvous, (int)rank, visitor) == 0) return 1;
        snprintf(why, DP_DOOR_TEXT, "no memory for the connection of rank %u", rank);
    }
    (void)dp_door_answer(visitor, frame, write_text(frame, DP_KV_ERROR, why));
    return 0;
}

static void report_refusal(void *context, const char *from, const char *why)
{
    const dp_rendezvous_t *rendezvous = context;
    char text[640];

    snprintf(text, sizeof(text), "rendezvous: dropped %s: %s", from, why);
    rendezvous->events.refused(rendezvous->events.context, text);
}

static void on_door(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_door_turn(((dp_rendezvous_t *)context)->door);
}

/* A dying process closes its connection a moment before its agent can say why it died. */
static void on_closed_timer(evutil_socket_t fd, short what, void *context)
{
    dp_rendezvous_t *rendezvous = context;

    (void)fd;
    (void)what;
    for (int rank = 0; rank < rendezvous->size; rank++) {
        if (rendezvous->ranks[rank].is_closed && rendezvous->ranks[rank].ended[0] == '\0') {
            dp_rendezvous_rank_ended(rendezvous, rank, "closed its connection");
        }
        rendezvous->ranks[rank].is_closed = 0;
    }
}

/* ---- Listeners and tickets ------------------------------------------------------------------ */

dp_status_t dp_rendezvous_bind(uint16_t port, int *listener, uint16_t *bound, dp_error_t *error)
{
    const int fd = dp_door_bind_everywhere(port, bound);

    if (fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "rendezvous on port %u: %s", port,
                            strerror(errno));
    }
    *listener = fd;
    return DP_OK;
}

void dp_rendezvous_make_ticket(dp_kv_ticket_t *ticket)
{
    uint8_t job[8];

    memset(ticket, 0, sizeof(*ticket));
    dp_random(job, sizeof(job));
    for (size_t i = 0; i < sizeof(job); i++) {
        snprintf(ticket->job + 2 * i, 3, "%02x", job[i]);
    }
    dp_random(ticket->secret.bytes, sizeof(ticket->secret.bytes));
}

dp_status_t dp_rendezvous_listen(dp_kv_ticket_t *ticket, int *listener, dp_error_t *error)
{
    char name[DP_LOCAL_ADDRESS_ROOM];
    dp_status_t status = dp_local_listen(name, listener, error);

    if (status != DP_OK) return status;
    dp_rendezvous_make_ticket(ticket);
    snprintf(ticket->address, sizeof(ticket->address), "%s", name);
    return DP_OK;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t open_door(dp_rendezvous_t *rendezvous, dp_error_t *error)
{
    const dp_door_owner_t owner = {.hello_bytes = DP_KV_CLIENT_HELLO_BYTES,
                                   .greet = dp_kv_server_hello_write,
                                   .greeting_bytes = DP_KV_SERVER_HELLO_BYTES,
                                   .judge = judge_visitor,
                                   .refused = report_refusal,
                                   .busy = DP_KV_BUSY,
                                   .context = rendezvous};
    const dp_status_t status = dp_door_create(&owner, rendezvous->size, &rendezvous->door, error);

    if (status != DP_OK) return status;
    rendezvous->on_door = event_new(rendezvous->base, dp_door_fd(rendezvous->door),
                                    EV_READ | EV_PERSIST, on_door, rendezvous);
    if (rendezvous->on_door != NULL && event_add(rendezvous->on_door, NULL) == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
}

dp_status_t dp_rendezvous_create(struct event_base *base, int listener, int size,
                                 const dp_secret_t *secret, const dp_rendezvous_events_t *events,
                                 dp_rendezvous_t **out, dp_error_t *error)
{
    dp_rendezvous_t *rendezvous = calloc(1, sizeof(*rendezvous));
    dp_status_t status;

    if (rendezvous == NULL) {
        if (listener >= 0) close(listener);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    rendezvous->base = base;
    rendezvous->size = size;
    rendezvous->secret = *secret;
    rendezvous->events = *events;
    rendezvous->ranks = calloc((size_t)size, sizeof(*rendezvous->ranks));
    rendezvous->closed_timer = event_new(base, -1, 0, on_closed_timer, rendezvous);
    status = rendezvous->ranks != NULL && rendezvous->closed_timer != NULL
                 ? open_door(rendezvous, error)
                 : dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    if (status != DP_OK && listener >= 0) close(listener);
    if (status == DP_OK && listener >= 0)
        status = dp_rendezvous_add_listener(rendezvous, listener, error);
    if (status != DP_OK) {
        dp_rendezvous_destroy(rendezvous);
        return status;
    }
    *out = rendezvous;
    return DP_OK;
}

void dp_rendezvous_destroy(dp_rendezvous_t *rendezvous)
{
    if (rendezvous == NULL) return;
    for (int rank = 0; rendezvous->ranks != NULL && rank < rendezvous->size; rank++) {
        if (rendezvous->ranks[rank].peer != NULL) close_peer(rendezvous->ranks[rank].peer);
    }
    for (exchange_t *exchange = rendezvous->exchanges, *next; exchange != NULL; exchange = next) {
        next = exchange->next;
        exchange_free(rendezvous, exchange);
    }
    dp_rendezvous_close_door(rendezvous);
    dp_door_destroy(rendezvous->door);
    if (rendezvous->closed_timer != NULL) event_free(rendezvous->closed_timer);
    free(rendezvous->ranks);
    free(rendezvous);
}

dp_status_t dp_rendezvous_add_listener(dp_rendezvous_t *rendezvous, int listener, dp_error_t *error)
{
    if (dp_door_listen(rendezvous->door, listener) == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for one more address");
}

void dp_rendezvous_adopt(dp_rendezvous_t *rendezvous, int fd, const char *origin, int source)
{
    dp_door_adopt(rendezvous->door, fd, origin, source);
}

void dp_rendezvous_close_door(dp_rendezvous_t *rendezvous)
{
    if (rendezvous->on_door != NULL) event_free(rendezvous->on_door);
    rendezvous->on_door = NULL;
    if (rendezvous->door != NULL) dp_door_close(rendezvous->door);
    explicit_bzero(&rendezvous->secret, sizeof(rendezvous->secret));
}

int dp_rendezvous_has_unsent(const dp_rendezvous_t *rendezvous)
{
    for (int rank = 0; rank < rendezvous->size; rank++) {
        const peer_t *peer = rendezvous->ranks[rank].peer;

        if (peer != NULL && evbuffer_get_length(bufferevent_get_output(peer->socket)) > 0) return 1;
    }
    return 0;
}

void dp_rendezvous_rank_ended(dp_rendezvous_t *rendezvous, int rank, const char *how)
{
    exchange_t *next;

    /* The process's end says more than its connection's, which is seen first. */
    snprintf(rendezvous->ranks[rank].ended, HOW_MAX, "%s", how);
    if (rendezvous->ranks[rank].end_order == 0) {
        rendezvous->ranks[rank].end_order = ++rendezvous->ends;
    }
    for (exchange_t *exchange = rendezvous->exchanges; exchange != NULL; exchange = next) {
        next = exchange->next;
        fail_if_rank_left(rendezvous, exchange);
    }
}
