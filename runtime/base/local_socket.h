/*
 * local_socket.h - a stream socket that only processes of this user on this node can use.
 *
 * Its address is text, "@dp-" and 32 random hexadecimal digits: a name in the abstract namespace of
 * UNIX sockets, so nothing is left in any file system. Any process of the
 * node can connect to such a name, so both ends ask the kernel whose process the other one is.
 */
#ifndef DP_BASE_LOCAL_SOCKET_H
#define DP_BASE_LOCAL_SOCKET_H

#include <stdint.h>
#include <sys/types.h>

#include "runtime/base/error.h"

#define DP_LOCAL_ADDRESS_ROOM 40

/* Whether a text is an address of this kind. */
int dp_local_is_address(const char *text);

/* Listens on a new name, non-blocking. *listener is returned: close it. */
dp_status_t dp_local_listen(char address[DP_LOCAL_ADDRESS_ROOM], int *listener, dp_error_t *error);

/* Connects within a time to a process of this user; *fd is returned, blocking. DP_ERR_PEER_LOST:
 * nobody listens; DP_ERR_TIMEOUT; DP_ERR_CONFIG: it is another user's; DP_ERR_SYSTEM. */
dp_status_t dp_local_connect(const char *address, uint64_t deadline_ns, int *fd, dp_error_t *error);

/* Whose process the other end is. 0, or -1: unknown. */
int dp_local_peer(int fd, uid_t *user, pid_t *pid);
/* 1: it is a process of this user. The kernel says it, so it cannot be forged. */
int dp_local_peer_is_own(int fd);

#endif
