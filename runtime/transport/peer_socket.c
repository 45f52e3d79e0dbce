/*
 * peer_socket.c - UNIX sockets between ranks of one node: addresses, keys, and whose process it
 * is. peer_socket.h says who uses it and on which thread.
 */
#include "runtime/transport/peer_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/auth.h"
#include "runtime/base/wire.h"

#define MAGIC 0x4e4c5044u /* "DPLN" */

/* ---- Addresses ------------------------------------------------------------------------------ */

void dp_peer_socket_address_make(dp_peer_socket_address_t *address)
{
    struct stat about;

    memset(address, 0, sizeof(*address));
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
    memcpy(address->name, dp_read_bytes(&reader, sizeof(address->name)), sizeof(address->name));
    address->name[sizeof(address->name) - 1] = '\0';
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
    uid_t user;
    pid_t pid;

    if (!shares_pids(other, own)) return 1;
    return dp_local_peer(fd, &user, &pid) == 0 && (uint32_t)pid == other->pid;
}
