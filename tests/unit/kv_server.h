/*
 * kv_server.h - a rendezvous for tests: one thread, one client at a time, and a script that says
 * how it (mis)behaves.
 */
#ifndef DP_TESTS_KV_SERVER_H
#define DP_TESTS_KV_SERVER_H

#include <pthread.h>

#include "runtime/base/kv.h"

typedef struct kv_server kv_server_t;

struct kv_server {
    dp_kv_ticket_t ticket;                       /* for clients */
    void (*script)(kv_server_t *server, int fd); /* serves one connection; the caller closes it */
    const void *data;                            /* the script's own */
    size_t bytes;
    int clients; /* how many connections to serve */
    int rank;    /* last one proven */
    int listen_fd;
    pthread_t thread;
};

/* script, data, bytes and clients are set by the caller; fills in the rest. */
void kv_server_start(kv_server_t *server);
void kv_server_stop(kv_server_t *server); /* waits for the script's end */

/* The steps of scripts; 0 when the client hung up. */
int kv_server_send(int fd, const void *data, size_t bytes);
int kv_server_receive(int fd, void *data, size_t bytes);
int kv_server_welcome(kv_server_t *server, int fd); /* the whole handshake; also 0: a stranger */

/* Receives one frame into data[room]; 0 when the client hung up. */
int kv_server_frame(int fd, void *data, size_t room, uint8_t *type, dp_reader_t *fields);

/* A script: answers each exchange with the same value from all ranks, until the client leaves. */
void kv_server_echo(kv_server_t *server, int fd);

#endif
