/*
 * link.c - see link.h. Used by the files of fleet.c in dprun and of station.c on a node, each on
 * its only thread.
 *
 * At the server a door (door.h) hears the station's proof before there is a link; at the station
 * the link awaits the server's, for a few seconds. A callback may close the link; so after each one
 * this file looks whether it is still there (is_dead), and frees it only when no function of its
 * own is at work on it.
 */
#include "launcher/dprun/remote/link.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/remote/seal.h"
#include "runtime/base/kv.h"
#include "runtime/network/silence.h"

#define TO_STATION "dprun to station"
#define TO_SERVER "station to dprun"

typedef enum link_stage {
    LINK_HELLO,   /* station: waits for the challenge */
    LINK_WELCOME, /* station: waits for the server's proof */
    LINK_HEADER,  /* waits for the header of the other end's stream */
    LINK_OPEN
} link_stage_t;

struct dp_link {
    struct bufferevent *socket;
    dp_link_events_t events;
    dp_secret_t secret; /* of links, derived from the job's; wiped with the handshake's end */
    int is_server;
    uint32_t node;
    link_stage_t stage;
    uint8_t challenges[2 * DP_CHALLENGE_BYTES]; /* the server's, the station's */
    dp_seal_t *sealer;
    dp_seal_t *opener;
    dp_silence_t silence;
    char peer[64];      /* the other end's address; "": it has none */
    int is_turned_away; /* it says so of this end */
    int busy;           /* depth of functions at work */
    int is_dead;        /* closed within a callback */
};

static void free_link(dp_link_t *link)
{
    bufferevent_free(link->socket);
    dp_seal_destroy(link->sealer);
    dp_seal_destroy(link->opener);
    explicit_bzero(&link->secret, sizeof(link->secret));
    free(link);
}

void dp_link_close(dp_link_t *link)
{
    if (link == NULL) return;
    link->is_dead = 1;
    if (link->busy == 0) {
        free_link(link);
    } else {
        bufferevent_disable(link->socket, EV_READ | EV_WRITE);
    }
}

/* close() waits for acknowledgements, for ever where none arrives, and the kernel's retransmissions
 * meanwhile look like signs of life to the other side. So reset: that waits for nothing. */
void dp_link_give_up(dp_link_t *link)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    (void)setsockopt(bufferevent_getfd(link->socket), SOL_SOCKET, SO_LINGER, &at_once,
                     sizeof(at_once));
}

static void enter_link(dp_link_t *link)
{
    link->busy++;
}

static void leave_link(dp_link_t *link)
{
    if (--link->busy == 0 && link->is_dead) free_link(link);
}

/* Only between enter_link() and leave_link(). */
static void fail_link(dp_link_t *link, const char *why)
{
    if (link->is_dead) return;
    link->events.closed(link->events.context, link, why);
    link->is_dead = 1;
    bufferevent_disable(link->socket, EV_READ | EV_WRITE);
}

/* ---- Handshake ------------------------------------------------------------------------------ */

static void start_sealing(dp_link_t *link)
{
    uint8_t header[DP_SEAL_HEADER_BYTES];

    link->sealer = dp_seal_create(&link->secret, link->is_server ? TO_STATION : TO_SERVER,
                                  link->challenges, header);
    if (link->sealer == NULL) return;
    bufferevent_write(link->socket, header, sizeof(header));
    link->stage = LINK_HEADER;
}

static void take_challenge(dp_link_t *link, const uint8_t *server_hello)
{
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    const uint8_t *challenge;
    dp_error_t error = {DP_OK, ""};

    if (dp_kv_server_hello_read(server_hello, &challenge, &error) != DP_OK) {
        fail_link(link, error.text);
        return;
    }
    memcpy(link->challenges, challenge, DP_CHALLENGE_BYTES);
    dp_random(link->challenges + DP_CHALLENGE_BYTES, DP_CHALLENGE_BYTES);
    dp_kv_client_hello_write(&link->secret, challenge, link->challenges + DP_CHALLENGE_BYTES,
                             (int)link->node, hello);
    bufferevent_write(link->socket, hello, sizeof(hello));
    link->stage = LINK_WELCOME;
}

static void take_welcome(dp_link_t *link, const uint8_t *welcome)
{
    if (memcmp(welcome, DP_KV_WRONG_PROOF, DP_PROOF_BYTES) == 0) {
        link->is_turned_away = 1;
        fail_link(link, "it refused our proof: the secrets differ");
        return;
    }
    if (!dp_kv_welcome_check(&link->secret, link->challenges, link->challenges + DP_CHALLENGE_BYTES,
                             (int)link->node, welcome)) {
        fail_link(link, "dprun's proof is wrong: another job's dprun at this address?");
        return;
    }
    start_sealing(link);
    if (link->sealer == NULL) fail_link(link, "out of memory");
}

static void take_header(dp_link_t *link, const uint8_t *header)
{
    link->opener = dp_seal_create_opener(&link->secret, link->is_server ? TO_SERVER : TO_STATION,
                                         link->challenges, header);
    if (link->opener == NULL) {
        fail_link(link, "a stream that cannot be opened");
        return;
    }
    explicit_bzero(&link->secret, sizeof(link->secret));
    link->stage = LINK_OPEN;
    dp_silence_beat(&link->silence, dp_now_ns());
    (void)dp_link_heard_ns(link, dp_now_ns()); /* notes what was confirmed so far */
    bufferevent_set_timeouts(link->socket, NULL, NULL);
    bufferevent_setwatermark(link->socket, EV_READ, 0, 2 * DP_LINK_FRAME_MAX);
    if (link->is_server) return; /* its owner knows since the door let it in */
    if (link->events.proven(link->events.context, link, link->node) == 0) return;
    link->is_dead = 1;
    bufferevent_disable(link->socket, EV_READ | EV_WRITE);
}

/* Bytes that the current stage of the handshake waits for. */
static size_t bytes_awaited(const dp_link_t *link)
{
    if (link->stage == LINK_HELLO) return DP_KV_SERVER_HELLO_BYTES;
    return link->stage == LINK_WELCOME ? DP_PROOF_BYTES : DP_SEAL_HEADER_BYTES;
}

/* 0: more bytes must come first. */
static int step_handshake(dp_link_t *link, struct evbuffer *input)
{
    uint8_t data[DP_KV_SERVER_HELLO_BYTES]; /* the longest */
    const size_t bytes = bytes_awaited(link);

    if (evbuffer_get_length(input) < bytes) return 0;
    evbuffer_remove(input, data, bytes);
    if (link->stage == LINK_HELLO) {
        take_challenge(link, data);
    } else if (link->stage == LINK_WELCOME) {
        take_welcome(link, data);
    } else {
        take_header(link, data);
    }
    return 1;
}

/* ---- Frames --------------------------------------------------------------------------------- */

static void deliver_frame(dp_link_t *link, const uint8_t *sealed, size_t bytes)
{
    const size_t plain_bytes = bytes - DP_SEAL_EXTRA_BYTES;
    uint8_t *plain = malloc(plain_bytes);
    dp_reader_t fields;

    if (plain == NULL || dp_seal_open(link->opener, sealed, bytes, plain) != 0) {
        free(plain);
        fail_link(link, plain == NULL ? "out of memory" : "a frame that was tampered with");
        return;
    }
    dp_silence_beat(&link->silence, dp_now_ns());
    dp_reader_init(&fields, plain + 1, plain_bytes - 1);
    link->events.frame(link->events.context, link, plain[0], &fields);
    explicit_bzero(plain, plain_bytes); /* environments, secrets */
    free(plain);
}

/* 0: more bytes must come first. */
static int step_frames(dp_link_t *link, struct evbuffer *input)
{
    uint8_t head[4];
    dp_reader_t reader;
    const uint8_t *frame;
    size_t bytes;

    if (evbuffer_copyout(input, head, sizeof(head)) < (ev_ssize_t)sizeof(head)) return 0;
    dp_reader_init(&reader, head, sizeof(head));
    bytes = dp_read_u32(&reader);
    if (bytes <= DP_SEAL_EXTRA_BYTES || bytes > DP_LINK_FRAME_MAX + DP_SEAL_EXTRA_BYTES) {
        fail_link(link, "a frame of impossible length");
        return 0;
    }
    if (evbuffer_get_length(input) < sizeof(head) + bytes) return 0;
    frame = evbuffer_pullup(input, (ev_ssize_t)(sizeof(head) + bytes));
    if (frame == NULL) {
        fail_link(link, "out of memory");
        return 0;
    }
    deliver_frame(link, frame + sizeof(head), bytes);
    if (!link->is_dead) evbuffer_drain(input, sizeof(head) + bytes);
    return 1;
}

/* As much as was there: callbacks do not wait, and what arrives meanwhile is read by the loop's
 * next turn, 16 KiB at a time (libevent). */
static void read_all(dp_link_t *link)
{
    struct evbuffer *input = bufferevent_get_input(link->socket);

    while (!link->is_dead) {
        if (!(link->stage == LINK_OPEN ? step_frames(link, input) : step_handshake(link, input)))
            break;
    }
}

static void on_bytes(struct bufferevent *socket, void *context)
{
    dp_link_t *link = context;

    (void)socket;
    enter_link(link);
    read_all(link);
    leave_link(link);
}

static void on_event(struct bufferevent *socket, short what, void *context)
{
    dp_link_t *link = context;
    char text[160] = "its connection closed";

    (void)socket;
    if (what & BEV_EVENT_CONNECTED) return;
    enter_link(link);
    if (what & BEV_EVENT_TIMEOUT) {
        snprintf(text, sizeof(text), "no proof within %d s", DP_DOOR_PATIENCE_S);
    } else if (what & BEV_EVENT_ERROR) {
        snprintf(text, sizeof(text), "its connection broke: %s",
                 evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    } else {
        read_all(link); /* frames that came before the end */
    }
    fail_link(link, text);
    leave_link(link);
}

void dp_link_send(dp_link_t *link, uint8_t type, const void *fields, size_t bytes)
{
    const size_t plain_bytes = bytes + 1;
    uint8_t *room;
    uint8_t *sealed;
    dp_writer_t writer;

    if (link->is_dead || link->sealer == NULL) return;
    room = plain_bytes > DP_LINK_FRAME_MAX
               ? NULL
               : malloc(2 * plain_bytes + 4 + (size_t)DP_SEAL_EXTRA_BYTES);
    if (room == NULL) {
        bufferevent_trigger_event(link->socket, BEV_EVENT_EOF, BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    room[0] = type;
    if (bytes > 0) memcpy(room + 1, fields, bytes);
    sealed = room + plain_bytes;
    dp_writer_init(&writer, sealed, 4);
    dp_write_u32(&writer, (uint32_t)(plain_bytes + DP_SEAL_EXTRA_BYTES));
    dp_seal_close(link->sealer, room, plain_bytes, sealed + 4);
    bufferevent_write(link->socket, sealed, plain_bytes + 4 + DP_SEAL_EXTRA_BYTES);
    explicit_bzero(room, plain_bytes);
    free(room);
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Death of the other machine is heard by the kernel, too: on an idle connection by keep-alive, with
 * data in flight only by the user timeout. Silence is the owner's to judge: the kernel's limit
 * would end a link that only loses packets. */
static void watch_peer(int fd, int silence_ms)
{
    const int on = 1;
    const int seconds = 1; /* so a living machine is never without a packet for long */
    const int count = 2;
    const int limit_ms = DP_SILENCE_PATIENCE * silence_ms; /* behind that of the owner */

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    dp_silence_repeat_often(fd);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

static void note_peer(dp_link_t *link, int fd)
{
    static const char mapped[] = "::ffff:"; /* IPv4 at a socket of both versions */
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    char text[sizeof(link->peer)] = "";
    const char *shown = text;

    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) return;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return;
    if (getnameinfo((struct sockaddr *)&address, bytes, text, sizeof(text), NULL, 0,
                    NI_NUMERICHOST) != 0)
        return;
    if (strncmp(text, mapped, sizeof(mapped) - 1) == 0 && strchr(text, '.') != NULL)
        shown += sizeof(mapped) - 1;
    snprintf(link->peer, sizeof(link->peer), "%s", shown);
}

static void derive_secret(const dp_secret_t *job, dp_secret_t *secret)
{
    dp_auth_derive(job, "links of nodes", "", 0, secret);
}

static dp_link_t *create_link(struct event_base *base, int fd, const dp_secret_t *secret,
                              int silence_ms, const dp_link_events_t *events)
{
    const struct timeval patience = {DP_DOOR_PATIENCE_S, 0};
    dp_link_t *link = calloc(1, sizeof(*link));

    if (link != NULL) link->socket = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (link == NULL || link->socket == NULL) {
        free(link);
        close(fd);
        return NULL;
    }
    watch_peer(fd, silence_ms);
    derive_secret(secret, &link->secret);
    link->events = *events;
    dp_silence_init(&link->silence, (uint64_t)silence_ms * 1000000);
    bufferevent_setcb(link->socket, on_bytes, NULL, on_event, link);
    bufferevent_set_timeouts(link->socket, &patience, &patience);
    bufferevent_setwatermark(link->socket, EV_READ, 0, DP_KV_SERVER_HELLO_BYTES);
    bufferevent_enable(link->socket, EV_READ | EV_WRITE);
    return link;
}

/* Describes a hello that proves nothing. */
static void describe_stranger(const uint8_t *hello, char *why)
{
    dp_reader_t reader;

    dp_reader_init(&reader, hello, DP_KV_CLIENT_HELLO_BYTES);
    if (dp_read_u32(&reader) != DP_KV_MAGIC) {
        snprintf(why, DP_DOOR_TEXT, "no node of dprun: its first bytes are no hello");
        return;
    }
    (void)dp_read_bytes(&reader, DP_KV_CLIENT_HELLO_BYTES - 8);
    snprintf(why, DP_DOOR_TEXT,
             "as node %u: its proof is wrong (another job, an old secret, or recorded)",
             dp_read_u32(&reader));
}

/* Welcomes a station that knows the secret. A node with another one is told, so that it does not
 * try again and again. */
static int check_station(const dp_secret_t *job, const dp_door_visitor_t *visitor, uint32_t *node,
                         char *why)
{
    uint8_t welcome[DP_PROOF_BYTES];
    dp_secret_t secret;
    dp_status_t status;

    derive_secret(job, &secret);
    status =
        dp_kv_client_hello_check(&secret, visitor->challenge, visitor->hello, node, welcome, NULL);
    explicit_bzero(&secret, sizeof(secret));
    if (status != DP_OK) {
        (void)dp_door_answer(visitor, DP_KV_WRONG_PROOF, DP_PROOF_BYTES);
        describe_stranger(visitor->hello, why);
        return 0;
    }
    snprintf(why, DP_DOOR_TEXT, "node %u left in the middle of its proof", *node);
    return dp_door_answer(visitor, welcome, sizeof(welcome)) == 0;
}

int dp_link_create_server(struct event_base *base, dp_door_visitor_t *visitor,
                          const dp_secret_t *secret, int silence_ms, const dp_link_events_t *events,
                          char *why)
{
    dp_link_t *link;
    uint32_t node;

    if (!check_station(secret, visitor, &node, why)) return 0;
    link = create_link(base, visitor->fd, secret, silence_ms, events);
    if (link == NULL) return 1;
    link->is_server = 1;
    link->node = node;
    memcpy(link->challenges, visitor->challenge, DP_CHALLENGE_BYTES);
    memcpy(link->challenges + DP_CHALLENGE_BYTES, visitor->hello + 8, DP_CHALLENGE_BYTES);
    dp_silence_beat(&link->silence, dp_now_ns());
    (void)dp_link_heard_ns(link, dp_now_ns()); /* notes what was confirmed so far */
    start_sealing(link);
    if (link->sealer == NULL || events->proven(events->context, link, node) != 0) free_link(link);
    return 1;
}

dp_link_t *dp_link_create_station(struct event_base *base, int fd, const dp_secret_t *secret,
                                  uint32_t node, int silence_ms, const dp_link_events_t *events)
{
    dp_link_t *link = create_link(base, fd, secret, silence_ms, events);

    if (link == NULL) return NULL;
    link->node = node;
    note_peer(link, fd);
    return link;
}

size_t dp_link_queued(const dp_link_t *link)
{
    return evbuffer_get_length(bufferevent_get_output(link->socket));
}

void dp_link_flush(dp_link_t *link)
{
    struct evbuffer *output = bufferevent_get_output(link->socket);

    /* libevent keeps others from the front of this buffer while its own callback is not at work. */
    evbuffer_unfreeze(output, 1);
    (void)evbuffer_write(output, bufferevent_getfd(link->socket));
    evbuffer_freeze(output, 1);
}

uint64_t dp_link_heard_ns(dp_link_t *link, uint64_t now_ns)
{
    dp_silence_counters_t counters;

    if (!dp_silence_read_counters(bufferevent_getfd(link->socket), &counters))
        return link->silence.beat_ns;
    return dp_silence_look(&link->silence, &counters, now_ns);
}

void dp_link_stood_still(dp_link_t *link, uint64_t for_ns)
{
    dp_silence_stood_still(&link->silence, for_ns);
}

uint64_t dp_link_frame_ns(const dp_link_t *link)
{
    return link->silence.beat_ns;
}

uint64_t dp_link_packet_ns(dp_link_t *link, uint64_t now_ns)
{
    dp_silence_counters_t counters;

    if (!dp_silence_read_counters(bufferevent_getfd(link->socket), &counters)) return now_ns;
    (void)dp_silence_look(&link->silence, &counters, now_ns);
    return link->silence.packet_ns;
}

uint64_t dp_link_confirmed_ns(const dp_link_t *link)
{
    return link->silence.acked_ns;
}

int dp_link_is_bad(const dp_link_t *link, uint64_t now_ns)
{
    return dp_silence_is_bad(&link->silence, now_ns);
}

int dp_link_is_turned_away(const dp_link_t *link)
{
    return link->is_turned_away;
}

const char *dp_link_peer(const dp_link_t *link)
{
    return link->peer;
}
