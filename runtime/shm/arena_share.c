/*
 * arena_share.c - passes the descriptors of a node's ranks around, one each, at the start.
 *
 * Called once by dp_arena_create(), in the thread of dp_init(). It must not know what the
 * descriptors are.
 *
 * A node's first rank, the leader, listens on a random name in the abstract namespace of UNIX
 * sockets and publishes it through the bootstrap. The others connect, send a hello with the job's
 * tag, their rank and their descriptor; once all have come, the leader sends each of them all
 * descriptors. Any process of the node can connect to such a name, so a connection that sends
 * something else, or comes from another user, is dropped and delays nobody. Nothing is left in any
 * file system.
 */
#include "runtime/shm/arena_share.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/auth.h"
#include "runtime/base/limits.h"
#include "runtime/base/local_socket.h"
#include "runtime/base/log.h"

#define HELLO_MAGIC 0x4d535044u /* "DPSM" */
#define NAME_BYTES 16           /* random bytes of the socket's name */
#define BATCH 64                /* descriptors in one message; the kernel allows 253 */
#define STRANGERS 16            /* connections beyond the expected ones that may be pending */

/* What a rank sends first, and the leader with each batch of descriptors. */
typedef struct hello {
    uint32_t magic;
    uint32_t local_rank; /* of the sender; in an answer: of the first descriptor */
    uint64_t tag;
    uint32_t count; /* descriptors that come with it */
    uint32_t total; /* ranks of the node */
} hello_t;
_Static_assert(sizeof(hello_t) == 24, "sent as it is");

/* A connection at the leader; local_rank is -1 until its hello was good. */
typedef struct member {
    int fd;
    int local_rank;
} arena_member_t;

/* For poll(): rounded up, so that a wait does not end just before the deadline and spin. */
static int left_ms(uint64_t deadline_ns)
{
    const uint64_t now = dp_now_ns();

    if (now >= deadline_ns) return 0;
    return (int)dp_min((deadline_ns - now) / 1000000u + 1, (uint64_t)3600000);
}

static void close_fds(int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}

static socklen_t abstract_name(const uint8_t name[NAME_BYTES], struct sockaddr_un *address)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    address->sun_path[0] = '\0'; /* abstract: no file */
    memcpy(address->sun_path + 1, "dp-", 3);
    for (size_t i = 0; i < NAME_BYTES; i++) {
        snprintf(address->sun_path + 4 + 2 * i, 3, "%02x", name[i]);
    }
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 4 + (size_t)2 * NAME_BYTES);
}

/* ---- One message with descriptors; SOCK_SEQPACKET keeps messages whole ---------------------- */

static int send_hello(int fd, const hello_t *hello, const int *fds, int count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * BATCH)];
    } control;
    struct iovec part = {(void *)(uintptr_t)hello, sizeof(*hello)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *header;
    ssize_t sent;

    memset(&control, 0, sizeof(control));
    message.msg_control = control.room;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)count);
    do {
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*hello) ? 0 : -1;
}

/* Receives one message, without blocking. Its descriptors are the caller's, *count of them, at most
 * BATCH. Returns the bytes of hello read; -1 with errno. */
static ssize_t receive_hello(int fd, hello_t *hello, int *fds, int *count)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int) * BATCH)];
    } control;
    struct iovec part = {hello, sizeof(*hello)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof(control.room)};
    ssize_t got;

    *count = 0;
    do {
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return got;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        int more;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        more = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + *count, CMSG_DATA(header), sizeof(int) * (size_t)more);
        *count += more;
    }
    if (message.msg_flags & MSG_CTRUNC) { /* BATCH fit, so this process had no free number */
        close_fds(fds, *count);
        *count = 0;
        errno = EMFILE;
        return -1;
    }
    if (message.msg_flags & MSG_TRUNC) got = 0; /* not one of ours */
    return got;
}

/* ---- The leader ----------------------------------------------------------------------------- */

static dp_status_t no_files(int local_size, dp_error_t *error)
{
    char why[256];

    return dp_error_set(error, DP_ERR_SYSTEM, "shared memory of %d ranks: %s", local_size,
                        dp_limits_describe(EMFILE, why, sizeof(why)));
}

/* Reads a pending connection. 0: it is a member now; -1: drop it; 1: nothing there yet; -2: this
 * process has no descriptor left for what it sends. */
static int read_member_hello(arena_member_t *member, uint64_t tag, int local_size, int *fds)
{
    int came[BATCH];
    int count;
    hello_t hello;
    const ssize_t got = receive_hello(member->fd, &hello, came, &count);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 1;
    if (got < 0 && errno == EMFILE) return -2;
    if (got != (ssize_t)sizeof(hello) || count != 1 || hello.magic != HELLO_MAGIC ||
        hello.tag != tag || hello.total != (uint32_t)local_size || hello.local_rank == 0 ||
        hello.local_rank >= (uint32_t)local_size || fds[hello.local_rank] >= 0) {
        close_fds(came, count);
        return -1;
    }
    member->local_rank = (int)hello.local_rank;
    fds[member->local_rank] = came[0];
    return 0;
}

/* -1: no descriptor is free. */
/* Takes one connection from the queue, if it is this user's and a place is free. */
static int accept_one(int listener, arena_member_t *members, int *count, int room,
                      const dp_log_t *log)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) return errno == EMFILE ? -1 : 0;
    if (*count == room || !dp_local_peer_is_own(fd)) {
        dp_log_warn(log, "shared memory: dropped a connection that is not from this job");
        close(fd);
        return 0;
    }
    members[(*count)++] = (arena_member_t){fd, -1};
    return 0;
}

static int count_members(const arena_member_t *members, int count)
{
    int sum = 0;

    for (int i = 0; i < count; i++)
        sum += members[i].local_rank >= 0;
    return sum;
}

/* Accepts connections and reads their hellos until all ranks of the node have come. */
static dp_status_t collect_members(int listener, uint64_t tag, int local_size,
                                   arena_member_t *members, int *count, struct pollfd *polled,
                                   int *fds, uint64_t deadline_ns, const dp_log_t *log,
                                   dp_error_t *error)
{
    const int room = local_size - 1 + STRANGERS;

    while (count_members(members, *count) < local_size - 1) {
        const int before = *count;

        polled[0] = (struct pollfd){listener, POLLIN, 0};
        for (int i = 0; i < before; i++) {
            const int is_member = members[i].local_rank >= 0;

            polled[1 + i] = (struct pollfd){is_member ? -1 : members[i].fd, POLLIN, 0};
        }
        if (poll(polled, (nfds_t)before + 1, left_ms(deadline_ns)) == 0 &&
            dp_now_ns() >= deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "shared memory: %d of %d ranks of this node came in time",
                                count_members(members, *count) + 1, local_size);
        }
        for (int i = before - 1; i >= 0; i--) {
            int outcome;

            if (members[i].local_rank >= 0 || polled[1 + i].revents == 0) continue;
            outcome = read_member_hello(&members[i], tag, local_size, fds);
            if (outcome >= 0) continue;
            if (outcome == -2) return no_files(local_size, error);
            dp_log_warn(log, "shared memory: dropped a connection that is not from this job");
            close(members[i].fd);
            members[i] = members[--*count];
        }
        if (polled[0].revents != 0 && accept_one(listener, members, count, room, log) != 0) {
            return no_files(local_size, error);
        }
    }
    return DP_OK;
}

/* Sends all descriptors to one member. ETOOMANYREFS: the kernel bounds how many of a user are in
 * flight; others have to receive theirs first. */
static int send_all_fds(int fd, uint64_t tag, int local_size, const int *fds, uint64_t deadline_ns)
{
    for (int first = 0; first < local_size; first += BATCH) {
        const int count = dp_min(BATCH, local_size - first);
        const hello_t hello = {HELLO_MAGIC, (uint32_t)first, tag, (uint32_t)count,
                               (uint32_t)local_size};

        while (send_hello(fd, &hello, fds + first, count) != 0) {
            if ((errno != ETOOMANYREFS && errno != EAGAIN) || dp_now_ns() >= deadline_ns) return -1;
            poll(NULL, 0, 1);
        }
    }
    return 0;
}

static int open_listener(const uint8_t name[NAME_BYTES], int backlog, dp_error_t *error)
{
    struct sockaddr_un address;
    const socklen_t bytes = abstract_name(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, backlog) == 0) {
        return fd;
    }
    dp_error_set(error, DP_ERR_SYSTEM, "shared memory: no UNIX socket: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

/* Collects all descriptors, then sends them to each member. fds[0] is own_fd meanwhile. */
static dp_status_t serve_members(int listener, uint64_t tag, int local_size, int own_fd, int *fds,
                                 uint64_t deadline_ns, const dp_log_t *log, dp_error_t *error)
{
    const size_t room = (size_t)local_size - 1 + STRANGERS;
    arena_member_t *members = calloc(room, sizeof(*members));
    struct pollfd *polled = calloc(room + 1, sizeof(*polled));
    int count = 0;
    char why[256];
    dp_status_t status;

    if (members == NULL || polled == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
    } else {
        status = collect_members(listener, tag, local_size, members, &count, polled, fds,
                                 deadline_ns, log, error);
    }
    fds[0] = own_fd;
    for (int i = 0; status == DP_OK && i < count; i++) {
        if (members[i].local_rank < 0) continue;
        if (send_all_fds(members[i].fd, tag, local_size, fds, deadline_ns) != 0) {
            status =
                dp_error_set(error, DP_ERR_SYSTEM, "shared memory: cannot answer local rank %d: %s",
                             members[i].local_rank, dp_limits_describe(errno, why, sizeof(why)));
        }
    }
    fds[0] = -1;
    for (int i = 0; i < count; i++)
        close(members[i].fd);
    free(polled);
    free(members);
    return status;
}

/* ---- The others ----------------------------------------------------------------------------- */

/* Receives the descriptors in batches, in local rank order: each batch says where it begins. */
static dp_status_t receive_all_fds(int fd, uint64_t tag, int local_rank, int local_size, int *fds,
                                   uint64_t deadline_ns, dp_error_t *error)
{
    int have = 0;

    while (have < local_size) {
        struct pollfd polled = {fd, POLLIN, 0};
        int came[BATCH];
        int count;
        hello_t hello;
        ssize_t got;

        if (poll(&polled, 1, left_ms(deadline_ns)) <= 0 && dp_now_ns() >= deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "shared memory: local rank 0 sent %d of %d descriptors in time",
                                have, local_size);
        }
        got = receive_hello(fd, &hello, came, &count);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        if (got < 0 && errno == EMFILE) return no_files(local_size, error);
        if (got != (ssize_t)sizeof(hello) || hello.magic != HELLO_MAGIC || hello.tag != tag ||
            hello.local_rank != (uint32_t)have || hello.count != (uint32_t)count || count < 1 ||
            count > local_size - have || hello.total != (uint32_t)local_size) {
            close_fds(came, count);
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "shared memory: local rank 0 closed the connection after %d of "
                                "%d descriptors",
                                have, local_size);
        }
        memcpy(fds + have, came, sizeof(int) * (size_t)count);
        have += count;
    }
    close(fds[local_rank]); /* a copy of this rank's own */
    fds[local_rank] = -1;
    return DP_OK;
}

/* As send_all_fds(), with one. */
static int send_own_fd(int fd, const hello_t *hello, int own_fd, uint64_t deadline_ns)
{
    while (send_hello(fd, hello, &own_fd, 1) != 0) {
        if ((errno != ETOOMANYREFS && errno != EAGAIN) || dp_now_ns() >= deadline_ns) return -1;
        poll(NULL, 0, 1);
    }
    return 0;
}

/* Connects to the leader, sends this rank's descriptor and receives all. */
static dp_status_t join_leader(const uint8_t name[NAME_BYTES], uint64_t tag, int local_rank,
                               int local_size, int own_fd, int *fds, uint64_t deadline_ns,
                               dp_error_t *error)
{
    const hello_t hello = {HELLO_MAGIC, (uint32_t)local_rank, tag, 1, (uint32_t)local_size};
    struct sockaddr_un address;
    const socklen_t bytes = abstract_name(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    dp_status_t status;
    char why[256];
    int code;

    if (fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "shared memory: no UNIX socket: %s",
                            strerror(errno));
    }
    /* EAGAIN: the leader's queue of connections is full right now. */
    while ((code = connect(fd, (struct sockaddr *)&address, bytes)) != 0 &&
           (errno == EAGAIN || errno == EINTR) && dp_now_ns() < deadline_ns) {
        poll(NULL, 0, 1);
    }
    if (code != 0 || !dp_local_peer_is_own(fd)) {
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "shared memory: local rank %d cannot reach local rank 0: %s",
                              local_rank, code != 0 ? strerror(errno) : "not this user's");
    } else if (send_own_fd(fd, &hello, own_fd, deadline_ns) != 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "shared memory: local rank %d cannot send its descriptor: %s",
                              local_rank, dp_limits_describe(errno, why, sizeof(why)));
    } else {
        status = receive_all_fds(fd, tag, local_rank, local_size, fds, deadline_ns, error);
    }
    close(fd);
    return status;
}

dp_status_t dp_arena_share(dp_bootstrap_t *bootstrap, const dp_topology_t *topology, int own_fd,
                           uint64_t deadline_ns, const dp_log_t *log, int *fds, dp_error_t *error)
{
    const int rank = bootstrap->rank;
    const int node = topology->node[rank];
    const int local_rank = topology->local_rank[rank];
    const int local_size = topology->node_size[node];
    const int leader = dp_topology_leader(topology, node);
    const int leads = local_rank == 0 && local_size > 1;
    uint8_t name[NAME_BYTES] = {0};
    void **values = calloc((size_t)bootstrap->size, sizeof(*values));
    size_t *bytes = calloc((size_t)bootstrap->size, sizeof(*bytes));
    int listener = -1;
    dp_status_t status = DP_OK;

    /* Ranks alone on their node take part in the exchange as well: it is a collective of the world.
     */
    for (int i = 0; i < local_size; i++)
        fds[i] = -1;
    if (values == NULL || bytes == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
        goto done;
    }
    if (leads) {
        dp_random(name, sizeof(name));
        listener = open_listener(name, local_size + STRANGERS, error);
        if (listener < 0) status = DP_ERR_SYSTEM;
    }
    if (status == DP_OK) {
        status = bootstrap->ops->exchange(bootstrap, "arena", name, sizeof(name), values, bytes,
                                          deadline_ns, error);
    }
    if (status == DP_OK && leads) {
        status = serve_members(listener, bootstrap->tag, local_size, own_fd, fds, deadline_ns, log,
                               error);
    } else if (status == DP_OK && local_size > 1) {
        if (bytes[leader] != sizeof(name)) {
            status = dp_error_set(error, DP_ERR_SYSTEM,
                                  "shared memory: rank %d gave a name of %zu bytes, expected %zu",
                                  leader, bytes[leader], sizeof(name));
        } else {
            status = join_leader(values[leader], bootstrap->tag, local_rank, local_size, own_fd,
                                 fds, deadline_ns, error);
        }
    }
done:
    if (status != DP_OK) close_fds(fds, local_size);
    if (listener >= 0) close(listener);
    for (int i = 0; values != NULL && i < bootstrap->size; i++)
        free(values[i]);
    free(bytes);
    free(values);
    return status;
}
