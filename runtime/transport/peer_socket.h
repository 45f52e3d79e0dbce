/*
 * peer_socket.h - a UNIX socket between two ranks of one node: how a rank is found, and which
 * processes may connect.
 *
 * A rank that others connect to listens on a local socket (local_socket.h), whose name proves
 * nothing: any process in the same network namespace can read it. Both ends compare the other's
 * user, and the one that connects sends a hello with the key and the tag that only ranks of the job
 * know.
 *
 * Used by near.c, on the thread that owns the transport, and by hello.c (coordinator/api) in
 * dp_init(), to try which ranks reach each other. No call blocks.
 */
#ifndef DP_TRANSPORT_PEER_SOCKET_H
#define DP_TRANSPORT_PEER_SOCKET_H

#include "runtime/base/local_socket.h"

#define DP_PEER_SOCKET_KEY ((size_t)16)
#define DP_PEER_SOCKET_ADDRESS (DP_LOCAL_ADDRESS_ROOM + DP_PEER_SOCKET_KEY + 12)

/* Where a rank is found. Only ranks of the job see it: it goes through the rendezvous. */
typedef struct dp_peer_socket_address {
    char name[DP_LOCAL_ADDRESS_ROOM]; /* of dp_local_listen(); "": it does not listen */
    uint8_t key[DP_PEER_SOCKET_KEY];  /* that a hello must have */
    uint64_t pid_namespace;           /* pid means something only inside it; 0: not known */
    uint32_t pid;
} dp_peer_socket_address_t;

/* This process, with a random key and no name. */
void dp_peer_socket_address_make(dp_peer_socket_address_t *address);
void dp_peer_socket_address_write(const dp_peer_socket_address_t *address,
                                  uint8_t bytes[DP_PEER_SOCKET_ADDRESS]);
void dp_peer_socket_address_read(dp_peer_socket_address_t *address,
                                 const uint8_t bytes[DP_PEER_SOCKET_ADDRESS]);

/* The first message of the rank that connects. */
typedef struct dp_peer_socket_hello {
    uint32_t magic;
    uint32_t from; /* its rank */
    uint64_t tag;
    uint8_t key[DP_PEER_SOCKET_KEY];
} dp_peer_socket_hello_t;
_Static_assert(sizeof(dp_peer_socket_hello_t) == 32, "sent as it is, inside one node");

void dp_peer_socket_hello_make(dp_peer_socket_hello_t *hello, int from, uint64_t tag,
                               const dp_peer_socket_address_t *to);
/* 1: sent by a rank of this job to the rank of `own`. Compares the key in constant time. */
int dp_peer_socket_hello_is_valid(const dp_peer_socket_hello_t *hello, uint64_t tag,
                                  const dp_peer_socket_address_t *own);

/* A descriptor that is readable once the process of that address has ended; -1: none to be had,
 * with errno ESRCH if it has ended already. */
int dp_peer_socket_watch_process(const dp_peer_socket_address_t *other,
                                 const dp_peer_socket_address_t *own);
/* 1: the process at the other end of a socket is that of the address, or it cannot be known, as the
 * two are in different pid namespaces. */
int dp_peer_socket_is_process(int fd, const dp_peer_socket_address_t *other,
                              const dp_peer_socket_address_t *own);

#endif
