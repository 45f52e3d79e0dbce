/*
 * kv_server.c - a rendezvous for tests.
 */
#include "tests/unit/kv_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static void *serve(void *argument)
{
    kv_server_t *server = argument;

    for (int i = 0; i < server->clients; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0) break; /* stopped */
        server->script(server, fd);
        close(fd);
    }
    return NULL;
}

void kv_server_start(kv_server_t *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->rank = -1;
    server->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->listen_fd >= 0);
    assert_int_equal(bind(server->listen_fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(server->listen_fd, 8), 0);
    assert_int_equal(getsockname(server->listen_fd, (struct sockaddr *)&address, &bytes), 0);
    memset(&server->ticket, 0, sizeof(server->ticket));
    snprintf(server->ticket.address, sizeof(server->ticket.address), "127.0.0.1");
    snprintf(server->ticket.job, sizeof(server->ticket.job), "job-7");
    server->ticket.port = ntohs(address.sin_port);
    dp_random(server->ticket.secret.bytes, DP_SECRET_BYTES);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

void kv_server_stop(kv_server_t *server)
{
    shutdown(server->listen_fd, SHUT_RDWR); /* wakes an accept() that nobody came for */
    pthread_join(server->thread, NULL);
    close(server->listen_fd);
}

int kv_server_send(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);

        if (sent <= 0) return 0;
        at += sent;
        bytes -= (size_t)sent;
    }
    return 1;
}

int kv_server_receive(int fd, void *data, size_t bytes)
{
    return bytes == 0 || recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

int kv_server_welcome(kv_server_t *server, int fd)
{
    uint8_t challenge[DP_CHALLENGE_BYTES];
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    uint8_t answer[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    uint32_t rank;

    dp_random(challenge, sizeof(challenge));
    dp_kv_server_hello_write(challenge, hello);
    if (!kv_server_send(fd, hello, sizeof(hello))) return 0;
    if (!kv_server_receive(fd, answer, sizeof(answer))) return 0;
    if (dp_kv_client_hello_check(&server->ticket.secret, challenge, answer, &rank, welcome, NULL) !=
        DP_OK) {
        kv_server_send(fd, DP_KV_WRONG_PROOF, DP_PROOF_BYTES);
        return 0;
    }
    server->rank = (int)rank;
    return kv_server_send(fd, welcome, sizeof(welcome));
}

int kv_server_frame(int fd, void *data, size_t room, uint8_t *type, dp_reader_t *fields)
{
    size_t have = 0;
    size_t need = 4;
    dp_status_t status = DP_ERR_PENDING;

    while (status == DP_ERR_PENDING) {
        if (need > room || !kv_server_receive(fd, (char *)data + have, need - have)) return 0;
        have = need;
        status = dp_kv_frame_parse(data, have, type, fields, &need, NULL);
    }
    return status == DP_OK;
}

void kv_server_echo(kv_server_t *server, int fd)
{
    static uint8_t in[DP_KV_FRAME_MAX + 4];
    static uint8_t out[DP_KV_FRAME_MAX + 4];
    char name[DP_KV_NAME_MAX + 1];
    const void *value;
    dp_reader_t fields;
    dp_writer_t writer;
    size_t bytes;
    uint32_t size;
    uint8_t type;

    if (!kv_server_welcome(server, fd)) return;
    while (kv_server_frame(fd, in, sizeof(in), &type, &fields)) {
        if (type != DP_KV_EXCHANGE) continue;
        if (dp_kv_exchange_read(&fields, name, &size, &value, &bytes) != 0) return;
        dp_writer_init(&writer, out, sizeof(out));
        dp_kv_frame_begin(&writer, DP_KV_VALUES);
        dp_write_u32(&writer, size);
        for (uint32_t i = 0; i < size; i++) {
            dp_write_u32(&writer, (uint32_t)bytes);
            dp_write_bytes(&writer, value, bytes);
        }
        dp_kv_frame_end(&writer, 0);
        if (writer.failed || !kv_server_send(fd, out, writer.bytes)) return;
    }
}
