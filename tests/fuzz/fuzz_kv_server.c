/*
 * fuzz_kv_server.c - any bytes to the rendezvous of dprun: from strangers, and from ranks that have
 * proven the secret.
 *
 * An input is a row of (what, who, size, bytes), where who is one of three ranks or a stranger.
 * Proven ranks send bytes as they are, whole frames of any content, or exchanges that are right;
 * they hang up, and dprun learns of their ends. Server and clients share one thread, and meet on a
 * local socket or, where the input's length is odd, on a port.
 */
#include "tests/fuzz/fuzz.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"
#include "runtime/base/rendezvous.h"

#define RANKS 3
#define CLIENTS (RANKS + 1) /* and a stranger */
#define STEPS_MAX 64

enum { RAW, FRAME, EXCHANGE, HANG_UP, ENDED, STEPS };

typedef struct world {
    struct event_base *base;
    dp_rendezvous_t *server;
    dp_kv_ticket_t ticket; /* port 0: on a local socket */
    int fds[CLIENTS];      /* -1: not connected */
} world_t;

static void on_joined(void *context, int rank)
{
    (void)context;
    if (rank < 0 || rank >= RANKS) abort();
}

static void check_text(const char *text)
{
    if (text[0] == '\0') abort();
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20) abort(); /* reaches a terminal */
}

static void on_failed(void *context, int rank, const dp_failure_t *failure)
{
    on_joined(context, rank);
    if (failure->culprit < -1 || (unsigned)failure->kind >= DP_FAILURE_KINDS) abort();
    if (failure->text[0] != '\0') check_text(failure->text);
}

static void on_refused(void *context, const char *text)
{
    (void)context;
    check_text(text);
}

/* Bytes sent on the loopback device are there at once, so a few turns take all of them. */
static void turn(const world_t *world)
{
    for (int i = 0; i < 3; i++)
        (void)event_base_loop(world->base, EVLOOP_NONBLOCK);
}

static void hang_up(world_t *world, int who)
{
    const struct linger at_once = {1, 0}; /* no port is left waiting */

    if (world->fds[who] < 0) return;
    (void)shutdown(world->fds[who], SHUT_WR);
    turn(world);
    (void)setsockopt(world->fds[who], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)close(world->fds[who]);
    world->fds[who] = -1;
    turn(world);
}

static void send_some(const world_t *world, int who, const void *data, size_t bytes)
{
    (void)send(world->fds[who], data, bytes, MSG_NOSIGNAL);
    turn(world);
}

static int listen_somewhere(dp_kv_ticket_t *ticket, int on_port)
{
    dp_error_t error;
    int listener;
    int tries = 0;

    if (dp_rendezvous_listen(ticket, &listener, &error) != DP_OK) abort();
    if (!on_port) return listener;
    (void)close(listener);
    while (dp_rendezvous_bind(0, &listener, &ticket->port, &error) != DP_OK)
        fuzz_await_port(&tries);
    return listener;
}

static int dial(const dp_kv_ticket_t *ticket)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(ticket->port)};
    dp_error_t error;
    int fd;

    if (ticket->port == 0) {
        if (dp_local_connect(ticket->address, UINT64_MAX, &fd, &error) != DP_OK) abort();
        return fd;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) abort();
    return fd;
}

/* Ranks prove that they know the secret. */
static void come(world_t *world, int who)
{
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    int fd = dial(&world->ticket);

    world->fds[who] = fd;
    turn(world);
    if (who == RANKS) return;
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    if (recv(fd, hello, sizeof(hello), 0) != (ssize_t)sizeof(hello)) abort();
    dp_kv_client_hello_write(&world->ticket.secret, hello + 8, hello + 8, who, answer);
    send_some(world, who, answer, sizeof(answer));
}

static void step(world_t *world, int what, int who, const uint8_t *data, size_t bytes)
{
    uint8_t frame[512];
    dp_failure_t failure;
    dp_writer_t writer;

    if (what == HANG_UP) {
        hang_up(world, who);
        return;
    }
    if (what == ENDED) {
        dp_rendezvous_rank_ended(world->server, who % RANKS, "exited with code 1");
        turn(world);
        return;
    }
    if (world->fds[who] < 0) come(world, who);
    if (what == RAW) {
        send_some(world, who, data, bytes);
        return;
    }
    dp_writer_init(&writer, frame, sizeof(frame));
    if (what == FRAME) {
        dp_kv_frame_begin(&writer, (enum dp_kv_type)(bytes > 0 ? data[0] : DP_KV_FAILURE));
        if (bytes > 1) dp_write_bytes(&writer, data + 1, bytes - 1);
        if (bytes == 1 && data[0] == DP_KV_FAILURE) { /* a whole one, to start from */
            dp_failure_init(&failure, DP_FAILURE_STALLED, who % RANKS, "rank 1 (a): stalled");
            dp_failure_write(&writer, &failure);
        }
    } else {
        dp_kv_frame_begin(&writer, DP_KV_EXCHANGE);
        dp_write_text(&writer, bytes > 0 && data[0] % 2 == 1 ? "hosts" : "addresses");
        dp_write_u32(&writer, RANKS);
        dp_write_u32(&writer, (uint32_t)bytes);
        dp_write_bytes(&writer, data, bytes);
    }
    dp_kv_frame_end(&writer, 0);
    send_some(world, who, frame, writer.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const dp_rendezvous_events_t events = {on_joined, on_failed, on_refused, NULL, NULL};
    fuzz_input_t input = {data, bytes};
    world_t world = {.fds = {-1, -1, -1, -1}};
    dp_error_t error;

    world.base = event_base_new();
    if (world.base == NULL ||
        dp_rendezvous_create(world.base, listen_somewhere(&world.ticket, bytes % 2 != 0), RANKS,
                             &world.ticket.secret, &events, &world.server, &error) != DP_OK) {
        abort();
    }
    for (int i = 0; i < STEPS_MAX && input.bytes > 0; i++) {
        int what = (int)(fuzz_number(&input, 1) % STEPS);
        int who = (int)(fuzz_number(&input, 1) % CLIENTS);
        size_t got;
        const uint8_t *at = fuzz_take(&input, fuzz_number(&input, 1), &got);

        step(&world, what, who, at, got);
    }
    for (int who = 0; who < CLIENTS; who++)
        hang_up(&world, who);
    dp_rendezvous_destroy(world.server);
    event_base_free(world.base);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t what, who;
        const char *text;
    } plays[][8] = {
        {{EXCHANGE, 0, "a"},
         {EXCHANGE, 1, "bb"},
         {EXCHANGE, 2, "ccc"},
         {EXCHANGE, 2, "x"},
         {HANG_UP, 1, ""},
         {FRAME, 2, "\x03"},
         {RAW, 3, "GET / HTTP/1.0"},
         {ENDED, 0, ""}},
        {{EXCHANGE, 0, "a"},
         {EXCHANGE, 0, "again"},
         {ENDED, 1, ""},
         {EXCHANGE, 1, "late"},
         {HANG_UP, 0, ""},
         {EXCHANGE, 0, "a"},
         {RAW, 2, "\xff\xff\xff\xff"},
         {RAW, 3, "DPKV"}},
        {{FRAME, 1, "\x03\x05"},
         {FRAME, 1, "\x02"},
         {RAW, 0, "\x01"},
         {HANG_UP, 0, ""},
         {RAW, 2, "\x02\x01\x01\x01\x03"},
         {HANG_UP, 3, ""},
         {HANG_UP, 2, ""},
         {ENDED, 2, ""}},
    };
    size_t bytes = 0;

    (void)room;
    if (which >= DP_ARRAY_LEN(plays)) return 0;
    for (size_t i = 0; i < DP_ARRAY_LEN(plays[0]); i++) {
        const char *text = plays[which][i].text;

        data[bytes++] = plays[which][i].what;
        data[bytes++] = plays[which][i].who;
        data[bytes++] = (uint8_t)strlen(text);
        for (; *text != '\0'; text++)
            data[bytes++] = (uint8_t)*text;
    }
    return bytes;
}
