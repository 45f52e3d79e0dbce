/*
 * peer_socket.c - UNIX sockets between ranks of one node: names, users, keys, and whose process it
 * is. peer_socket.h says who uses it and on which thread.
 */
#include "runtime/transport/peer_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/auth.h"
#include "runtime/base/local_socket.h"
#include "runtime/base/wire.h"

#define MAGIC 0x4e4c5044u /* "DPLN" */

/* ---- Addresses ------------------------------------------------------------------------------ */

void dp_peer_socket_address_make(dp_peer_socket_address_t *address)
{
    struct stat about;

    dp_random(address->name, sizeof(address->name));
    dp_random(address->key, sizeof(address->key));
    address->pid = (uint32_t)getpid();
    address->pid_namespace = stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

void dp_peer_socket_address_write(const dp_peer_socket_address_t *address,
                                  uint8_t bytes[DP_PEER_SOCKET_ADDRESS])
{
    dp_writer_t writer;

    dp_writer_init(&writer, bytes, DP_PEER_SOCKET_ADDRESS);
    dp_write_bytes(&writer, address->name, sizeof(address->name));
    dp_write_bytes(&writer, address->key, sizeof(address->key));
    dp_write_u64(&writer, address->pid_namespace);
    dp_write_u32(&writer, address->pid);
    DP_ASSERT(!writer.failed && writer.bytes == DP_PEER_SOCKET_ADDRESS);
}

void dp_peer_socket_address_read(dp_peer_socket_address_t *address,
                                 const uint8_t bytes[DP_PEER_SOCKET_ADDRESS])
{
    dp_reader_t reader;

    dp_reader_init(&reader, bytes, DP_PEER_SOCKET_ADDRESS);
    memcpy(address->name, dp_read_bytes(&reader, DP_PEER_SOCKET_NAME), DP_PEER_SOCKET_NAME);
    memcpy(address->key, dp_read_bytes(&reader, DP_PEER_SOCKET_KEY), DP_PEER_SOCKET_KEY);
    address->pid_namespace = dp_read_u64(&reader);
    address->pid = dp_read_u32(&reader);
}

void dp_peer_socket_hello_make(dp_peer_socket_hello_t *hello, int from, uint64_t tag,
                               const dp_peer_socket_address_t *to)
{
    *hello = (dp_peer_socket_hello_t){.magic = MAGIC, .from = (uint32_t)from, .tag = tag};
    memcpy(hello->key, to->key, sizeof(hello->key));
}

int dp_peer_socket_hello_is_valid(const dp_peer_socket_hello_t *hello, uint64_t tag,
                                  const dp_peer_socket_address_t *own)
{
    return hello->magic == MAGIC && hello->tag == tag &&
           dp_auth_equal(hello->key, own->key, DP_PEER_SOCKET_KEY);
}

/* ---- Sockets -------------------------------------------------------------------------------- */

/* The name is all bytes behind the first NUL, so its length counts: no terminator. */
static socklen_t socket_name(const dp_peer_socket_address_t *at, struct sockaddr_un *name)
{
    memset(name, 0, sizeof(*name));
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path + 1, "dp-peer-", 8); /* abstract: no file */
    for (size_t i = 0; i < DP_PEER_SOCKET_NAME; i++)
        snprintf(name->sun_path + 9 + 2 * i, 3, "%02x", at->name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 9 + 2 * DP_PEER_SOCKET_NAME);
}

static int get_peer(int fd, struct ucred *peer)
{
    socklen_t bytes = sizeof(*peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &bytes);
}

static int close_with(int fd, int code)
{
    if (fd >= 0) close(fd);
    errno = code;
    return -1;
}

int dp_peer_socket_listen(const dp_peer_socket_address_t *own, int backlog)
{
    struct sockaddr_un name;
    const socklen_t bytes = socket_name(own, &name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&name, bytes) != 0 || listen(fd, backlog) != 0)
        return close_with(fd, errno);
    return fd;
}

int dp_peer_socket_connect(const dp_peer_socket_address_t *to)
{
    struct sockaddr_un name;
    const socklen_t bytes = socket_name(to, &name);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&name, bytes) != 0) return close_with(fd, errno);
    /* Another user may have taken the name after this job gave it up. */
    if (!dp_local_peer_is_own(fd)) return close_with(fd, EPERM);
    return fd;
}

/* SO_PEERCRED holds the user of the process that called connect(), and cannot be forged. */
int dp_peer_socket_accept(int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 || dp_local_peer_is_own(fd)) return fd;
    return close_with(fd, EPERM);
}

/* ---- Processes ------------------------------------------------------------------------------ */

/* Whether the other's pid names the same process here. */
static int shares_pids(const dp_peer_socket_address_t *other, const dp_peer_socket_address_t *own)
{
    return own->pid_namespace != 0 && other->pid_namespace == own->pid_namespace;
}

int dp_peer_socket_watch_process(const dp_peer_socket_address_t *other,
                                 const dp_peer_socket_address_t *own)
{
    /* Ranks that are threads of one process end together: there is nothing to watch. */
    errno = 0;
    if (!shares_pids(other, own) || other->pid == own->pid || other->pid == 0) return -1;
    return (int)syscall(SYS_pidfd_open, (pid_t)other->pid, 0); /* close-on-exec by itself */
}

int dp_peer_socket_is_process(int fd, const dp_peer_socket_address_t *other,
                              const dp_peer_socket_address_t *own)
{
    struct ucred peer;

    if (!shares_pids(other, own)) return 1;
    return get_peer(fd, &peer) == 0 && (uint32_t)peer.pid == other->pid;
}
