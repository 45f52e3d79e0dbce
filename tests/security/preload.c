/*
 * preload.c - loaded before everything else into a rank, to do it harm.
 *
 *     DIE_AT=n         kills it before its nth call that makes or uses a TCP connection
 *     DIE_COUNT=FILE   writes how many such calls there were
 *     REFUSE_LOCAL=1   it may not connect to sockets of other ranks on its machine, as where a
 *                      security module keeps containers apart; the first local socket is the
 *                      rendezvous
 *
 * UCX and libdp make these calls alike, so counting n up goes through a start step by step: meeting
 * the others, connecting to them, what UCX swaps first, the first messages.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static atomic_long calls;

static void count(int fd)
{
    const char *at = getenv("DIE_AT");
    int domain = 0;
    socklen_t bytes = sizeof(domain);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_INET) return;
    if (atomic_fetch_add(&calls, 1) + 1 == (at == NULL ? 0 : strtol(at, NULL, 10))) raise(SIGKILL);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("DIE_COUNT");
    FILE *file = path == NULL ? NULL : fopen(path, "we");

    if (file == NULL) return;
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
}

/* The C library's own. */
#define REAL(name) ((__typeof__(&(name)))(size_t)dlsym(RTLD_NEXT, #name))

#pragma GCC visibility push(default) /* these are what the rank finds instead */

static int is_local(const struct sockaddr *address, socklen_t bytes)
{
    static const char prefix[] = "\0dp-";
    const size_t length = sizeof(prefix) - 1;

    return address->sa_family == AF_UNIX &&
           bytes >= offsetof(struct sockaddr_un, sun_path) + length &&
           memcmp((const char *)address + offsetof(struct sockaddr_un, sun_path), prefix, length) ==
               0;
}

int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    static atomic_int locals;

    if (getenv("REFUSE_LOCAL") != NULL && is_local(address, bytes) &&
        atomic_fetch_add(&locals, 1) > 0) {
        errno = EACCES;
        return -1;
    }
    count(fd);
    return REAL(connect)(fd, address, bytes);
}

int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    count(fd);
    return REAL(accept)(fd, address, bytes);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    count(fd);
    return REAL(send)(fd, data, bytes, flags);
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    count(fd);
    return REAL(recv)(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    count(fd);
    return REAL(sendmsg)(fd, message, flags);
}

#pragma GCC visibility pop
