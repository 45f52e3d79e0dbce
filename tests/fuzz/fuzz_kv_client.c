/*
 * fuzz_kv_client.c - any bytes as the answers of a rendezvous to one of its clients.
 *
 * The first byte says where they begin: instead of the server's hello, instead of its welcome, or
 * behind the proof of a secret that server and client share.
 */
#include "tests/fuzz/fuzz.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/kv.h"

#define SIZE_MAX_RANKS 4
#define DEADLINE_NS UINT64_C(20000000000) /* never reached: the server closes */

enum { AS_HELLO, AS_WELCOME, AS_ANSWER, STARTS };

typedef struct server {
    dp_kv_ticket_t ticket;
    int listener;
    int start;
    const uint8_t *data;
    size_t bytes;
} server_t;

static void send_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);

        if (sent <= 0) return; /* the client has heard enough */
        at += sent;
        bytes -= (size_t)sent;
    }
}

/* The honest part of the conversation; 0 when the client hung up. */
static int shake_hands(const server_t *server, int fd)
{
    static const uint8_t challenge[DP_CHALLENGE_BYTES] = {1};
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    uint32_t rank;

    if (server->start == AS_HELLO) return 1;
    dp_kv_server_hello_write(challenge, hello);
    send_all(fd, hello, sizeof(hello));
    if (recv(fd, answer, sizeof(answer), MSG_WAITALL) != (ssize_t)sizeof(answer)) return 0;
    if (dp_kv_client_hello_check(&server->ticket.secret, challenge, answer, &rank, welcome, NULL) !=
        DP_OK) {
        abort();
    }
    if (server->start != AS_WELCOME) send_all(fd, welcome, sizeof(welcome));
    return 1;
}

static void *serve(void *context)
{
    const server_t *server = context;
    const struct linger at_once = {1, 0}; /* no port is left waiting */
    int fd = accept(server->listener, NULL, NULL);
    uint8_t rest[512];

    if (fd < 0) return NULL;
    if (shake_hands(server, fd)) send_all(fd, server->data, server->bytes);
    (void)shutdown(fd, SHUT_WR);
    while (recv(fd, rest, sizeof(rest), 0) > 0) {
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)close(fd);
    return NULL;
}

static int listen_anywhere(dp_kv_ticket_t *ticket)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int tries = 0;

    if (fd < 0) abort();
    while (bind(fd, (struct sockaddr *)&address, bytes) != 0)
        fuzz_await_port(&tries);
    if (listen(fd, 1) != 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) abort();
    memcpy(ticket->address, "127.0.0.1", sizeof("127.0.0.1"));
    ticket->port = ntohs(address.sin_port);
    return fd;
}

static void exchange(dp_kv_t *kv, int size)
{
    void *values[SIZE_MAX_RANKS];
    size_t sizes[SIZE_MAX_RANKS];
    dp_error_t error = {DP_OK, ""};
    dp_status_t status = dp_kv_exchange(kv, "addresses", size, "mine", 4, values, sizes,
                                        dp_now_ns() + DEADLINE_NS, &error);

    if (status != DP_OK) {
        if (error.text[0] == '\0') abort();
        return;
    }
    for (int i = 0; i < size; i++) {
        if (((const char *)values[i])[sizes[i]] != '\0') abort();
        free(values[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    server_t server = {.ticket = {.secret = {{7}}}};
    dp_error_t error = {DP_OK, ""};
    dp_failure_t failure;
    dp_kv_t *kv = NULL;
    pthread_t thread;
    dp_status_t status;
    int size;

    if (bytes < 2) return 0;
    server.start = data[0] % STARTS;
    size = 1 + data[1] % SIZE_MAX_RANKS;
    server.data = data + 2;
    server.bytes = bytes - 2;
    server.listener = listen_anywhere(&server.ticket);
    if (pthread_create(&thread, NULL, serve, &server) != 0) abort();
    status = dp_kv_connect(&server.ticket, 0, dp_now_ns() + DEADLINE_NS, &kv, &error);
    if (status == DP_OK) {
        exchange(kv, size);
        dp_failure_init(&failure, DP_FAILURE_LOST, 1, "still here");
        dp_kv_report(kv, &failure);
        exchange(kv, size);
        dp_kv_close(kv);
    } else if (error.text[0] == '\0' || status == DP_ERR_TIMEOUT) {
        abort();
    }
    (void)pthread_join(thread, NULL);
    (void)close(server.listener);
    return 0;
}

static void write_values(dp_writer_t *writer, uint32_t count)
{
    const size_t begin = writer->bytes;

    dp_kv_frame_begin(writer, DP_KV_VALUES);
    dp_write_u32(writer, count);
    for (uint32_t i = 0; i < count; i++) {
        dp_write_u32(writer, 5 * i);
        dp_write_bytes(writer, "valuevaluevalue", (size_t)5 * i);
    }
    dp_kv_frame_end(writer, begin);
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u8(&writer, which < 3 ? AS_ANSWER : which == 3 ? AS_HELLO : AS_WELCOME);
    dp_write_u8(&writer, 2); /* three ranks */
    switch (which) {
    case 0:
        write_values(&writer, 3);
        write_values(&writer, 3);
        break;
    case 1:
        write_values(&writer, 3);
        dp_kv_text_write(&writer, DP_KV_ERROR, "rank 1 exited with code 3 before all ranks met");
        break;
    case 2:
        dp_kv_text_write(&writer, DP_KV_FAILURE, "only a client says that");
        break;
    case 3: {
        uint8_t hello[DP_KV_SERVER_HELLO_BYTES];

        dp_kv_server_hello_write((const uint8_t[DP_CHALLENGE_BYTES]){9}, hello);
        dp_write_bytes(&writer, hello, sizeof(hello));
        dp_write_bytes(&writer, (const uint8_t[DP_PROOF_BYTES]){8}, DP_PROOF_BYTES);
        break;
    }
    case 4:
        dp_write_bytes(&writer, (const uint8_t[DP_PROOF_BYTES]){8}, DP_PROOF_BYTES);
        break;
    default:
        return 0;
    }
    return writer.bytes;
}
