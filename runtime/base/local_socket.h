/*
 * local_socket.h - a socket that only processes of this user on this node can use, and descriptors
 * that travel over it.
 *
 * Its address is text, "@dp-" and 32 random hexadecimal digits: a name in the abstract namespace of
 * UNIX sockets, so nothing is left in any file system. Any process of the node can read such a name
 * in /proc/net/unix and connect to it, so both ends ask the kernel whose process the other one is.
 */
#ifndef DP_BASE_LOCAL_SOCKET_H
#define DP_BASE_LOCAL_SOCKET_H

#include <sys/socket.h>

#include "runtime/base/error.h"

#define DP_LOCAL_ADDRESS_ROOM 40

/* Whether a text is an address of this kind. */
int dp_local_is_address(const char *text);

/* Listens on a new name, non-blocking. *listener is returned: close it. */
dp_status_t dp_local_listen(char address[DP_LOCAL_ADDRESS_ROOM], int *listener, dp_error_t *error);

/* Connects within a time to a process of this user; *fd is returned, blocking. DP_ERR_PEER_LOST:
 * nobody listens; DP_ERR_TIMEOUT; DP_ERR_CONFIG: it is another user's; DP_ERR_SYSTEM. */
dp_status_t dp_local_connect(const char *address, uint64_t deadline_ns, int *fd, dp_error_t *error);
/* Likewise without waiting; the socket is non-blocking. -1 with errno: EAGAIN: its queue is full,
 * try again; EPERM: it is another user's. */
int dp_local_try_connect(const char *address);

/* Whose process the other end is. 0, or -1: unknown. */
int dp_local_peer(int fd, uid_t *user, pid_t *pid);
/* 1: it is a process of this user. The kernel says it, so it cannot be forged. */
int dp_local_peer_is_own(int fd);

#define DP_LOCAL_FILES_MAX 64 /* in one message; the kernel allows 253 */

/* Sends a message with descriptors [count], which stay the caller's. 0, or -1 with errno: EAGAIN;
 * ETOOMANYREFS: too many of this user are on their way. Never blocks, nor raises SIGPIPE. */
int dp_local_send(int fd, const void *data, size_t bytes, const int *files, int count);
/* Receives what is there, on any socket, without blocking; its descriptors, *count of them, are the
 * caller's. *count -1: more than `room` came, or than this process may open; none is left open. */
ssize_t dp_local_receive(int fd, void *data, size_t bytes, int *files, int room, int *count);

#endif
