/*
 * local_socket.c - UNIX sockets with abstract names, and the kernel's answer to whose process is at
 * the other end.
 *
 * connect() blocks, with a timeout set on the socket, instead of polling: while a listener's queue
 * is full the kernel serves blocking callers in turn, but tells others to come again.
 *
 * Used for the rendezvous of one machine, by its server and its clients, by dprun's tunnels, by
 * doors (door.h), and where ranks of a node share memory. It must not know what is sent.
 */
#include "runtime/base/local_socket.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/auth.h"

#define PREFIX "@dp-"
#define NAME_BYTES ((size_t)16) /* random ones */
#define ADDRESS_LENGTH (sizeof(PREFIX) - 1 + 2 * NAME_BYTES)
#define BACKLOG 1024 /* that of doors, which this file must not know */

_Static_assert(ADDRESS_LENGTH < DP_LOCAL_ADDRESS_ROOM, "an address fits");

int dp_local_is_address(const char *text)
{
    const size_t prefix = sizeof(PREFIX) - 1;

    return strncmp(text, PREFIX, prefix) == 0 && strlen(text) == ADDRESS_LENGTH &&
           strspn(text + prefix, "0123456789abcdef") == ADDRESS_LENGTH - prefix;
}

static socklen_t to_kernel(const char *address, struct sockaddr_un *name)
{
    memset(name, 0, sizeof(*name));
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, address + 1, ADDRESS_LENGTH - 1); /* a NUL stands for the "@" */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + ADDRESS_LENGTH);
}

dp_status_t dp_local_listen(char address[DP_LOCAL_ADDRESS_ROOM], int *listener, dp_error_t *error)
{
    struct sockaddr_un name;
    uint8_t random[NAME_BYTES];
    socklen_t bytes;
    int fd;

    dp_random(random, sizeof(random));
    memcpy(address, PREFIX, sizeof(PREFIX));
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(address + sizeof(PREFIX) - 1 + 2 * i, 3, "%02x", random[i]);
    bytes = to_kernel(address, &name);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&name, bytes) != 0 ||
        listen(fd, BACKLOG) != 0) {
        dp_error_set(error, DP_ERR_SYSTEM, "a local socket: %s", strerror(errno));
        if (fd >= 0) close(fd);
        return DP_ERR_SYSTEM;
    }
    *listener = fd;
    return DP_OK;
}

int dp_local_peer(int fd, uid_t *user, pid_t *pid)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return -1;
    *user = peer.uid;
    *pid = peer.pid;
    return 0;
}

int dp_local_peer_is_own(int fd)
{
    uid_t user;
    pid_t pid;

    return dp_local_peer(fd, &user, &pid) == 0 && user == geteuid();
}

static int connect_until(int fd, const struct sockaddr_un *name, socklen_t bytes,
                         uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = dp_now_ns();
        const uint64_t left_ns = deadline_ns > now ? deadline_ns - now : 0;
        const struct timeval left = {(time_t)(left_ns / 1000000000u),
                                     (suseconds_t)(left_ns / 1000 % 1000000 + 1)};

        /* Only its patience depends on this. */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
        if (connect(fd, (const struct sockaddr *)name, bytes) == 0) return 0;
        if (errno != EINTR || left_ns == 0) return -1;
    }
}

dp_status_t dp_local_connect(const char *address, uint64_t deadline_ns, int *fd, dp_error_t *error)
{
    struct sockaddr_un name;
    const struct timeval none = {0, 0};
    socklen_t bytes;
    dp_status_t status = DP_ERR_SYSTEM;

    if (!dp_local_is_address(address)) {
        return dp_error_set(error, DP_ERR_CONFIG, "%s: not a local socket's name", address);
    }
    bytes = to_kernel(address, &name);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0) return dp_error_set(error, status, "socket: %s", strerror(errno));
    if (connect_until(*fd, &name, bytes, deadline_ns) != 0) {
        if (errno == EAGAIN || errno == EINTR) {
            status = dp_error_set(error, DP_ERR_TIMEOUT,
                                  "connecting: too many others wait for it: a flood?");
        } else {
            status = dp_error_set(error, errno == ECONNREFUSED ? DP_ERR_PEER_LOST : DP_ERR_SYSTEM,
                                  "connecting: %s", strerror(errno));
        }
    } else if (!dp_local_peer_is_own(*fd)) {
        status = dp_error_set(error, DP_ERR_CONFIG, "it is not a process of user %u",
                              (unsigned)geteuid());
    } else {
        (void)setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
        return DP_OK;
    }
    close(*fd);
    *fd = -1;
    return status;
}

int dp_local_try_connect(const char *address)
{
    struct sockaddr_un name;
    const socklen_t bytes = to_kernel(address, &name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int code = EPERM;

    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&name, bytes) != 0) {
        code = errno;
    } else if (dp_local_peer_is_own(fd)) {
        return fd;
    }
    close(fd);
    errno = code;
    return -1;
}

/* ---- Descriptors ---------------------------------------------------------------------------- */

typedef union control {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int) * DP_LOCAL_FILES_MAX)];
} control_t;

int dp_local_send(int fd, const void *data, size_t bytes, const int *files, int count)
{
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *header;
    control_t control;
    ssize_t sent;

    memset(&control, 0, sizeof(control));
    if (count > 0) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(header), files, sizeof(int) * (size_t)count);
    }
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes ? 0 : -1;
}

ssize_t dp_local_receive(int fd, void *data, size_t bytes, int *files, int room, int *count)
{
    struct iovec part = {data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    control_t control;
    ssize_t got;

    *count = 0;
    do {
        message.msg_control = room > 0 ? control.room : NULL;
        message.msg_controllen = room > 0 ? CMSG_LEN(sizeof(int) * (size_t)room) : 0;
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return got;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        int more;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        more = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(files + *count, CMSG_DATA(header), sizeof(int) * (size_t)more);
        *count += more;
    }
    if ((message.msg_flags & MSG_CTRUNC) == 0) return got;
    for (int i = 0; i < *count; i++)
        close(files[i]);
    *count = -1;
    return got;
}
