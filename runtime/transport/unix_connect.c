/*
 * unix_connect.c - how two neighbours on one node get the UNIX socket between them: the higher rank
 * connects, the lower one listens until all its higher neighbours have come.
 *
 * Called by unix.c, on its thread. It must not know what messages are.
 *
 * Any process of the node may connect. Those of other users are dropped at once (peer_socket.c),
 * those of this user unless their hello has the key. Nothing here blocks: connect() to a listener
 * whose queue is full, of strangers perhaps, is tried again by a timer.
 */
#include "runtime/transport/unix_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define RETRY_NS 1000000  /* until a full queue of connections is tried again */
#define UNPROVEN_EXTRA 16 /* unproven connections at a time, beyond those expected */
#define BACKLOG_EXTRA 512 /* room in the kernel's queue for those of other users */
#define ACCEPT_AT_ONCE 64 /* then other events have their turn */

/* ---- Connecting ----------------------------------------------------------------------------- */

static void refuse_connection(dp_unix_t *self, const char *reason)
{
    self->refused++;
    if ((self->refused & (self->refused - 1)) != 0) return; /* no flood of lines */
    dp_log_warn(&self->log, "dropped %llu local connections, the last one: %s",
                (unsigned long long)self->refused, reason);
}

static void attach_socket(dp_unix_t *self, dp_unix_peer_t *peer, int fd)
{
    peer->fd = fd;
    if (dp_unix_watch(self, fd, EPOLLIN, DP_UNIX_PEER, (int)(peer - self->peers)) != 0) {
        dp_unix_end_peer(self, peer, "there was no memory to watch its connection");
        return;
    }
    dp_unix_flush(self, peer);
}

/* Has dp_unix_retry_connects() called soon. */
static void set_timer(dp_unix_t *self)
{
    const struct itimerspec soon = {.it_value = {.tv_nsec = RETRY_NS}};

    if (self->timer < 0) {
        self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (self->timer >= 0 && dp_unix_watch(self, self->timer, EPOLLIN, DP_UNIX_TIMER, 0) != 0)
            dp_unix_close_fd(&self->timer);
    }
    if (self->timer >= 0) (void)timerfd_settime(self->timer, 0, &soon, NULL);
}

static void try_connect(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_peer_socket_hello_t hello;
    int fd = dp_peer_socket_connect(&peer->address);

    if (fd < 0 && (errno == EAGAIN || errno == EINTR)) {
        set_timer(self);
        return;
    }
    peer->must_connect = 0;
    if (fd >= 0 && !dp_peer_socket_is_process(fd, &peer->address, &self->own)) {
        dp_unix_close_fd(&fd);
        errno = EPERM;
    }
    dp_peer_socket_hello_make(&hello, self->rank, self->tag, &peer->address);
    /* 32 bytes always fit into the buffer of a new socket. */
    if (fd >= 0 && send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello)) {
        attach_socket(self, peer, fd);
        return;
    }
    dp_log_debug(&self->log, "no connection to rank %d: %s", peer->rank, strerror(errno));
    dp_unix_close_fd(&fd);
    dp_unix_end_broken(self, peer);
}

void dp_unix_retry_connects(dp_unix_t *self)
{
    uint64_t expired;

    if (self->timer >= 0 && read(self->timer, &expired, sizeof(expired)) < 0) return;
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].must_connect) try_connect(self, &self->peers[i]);
    }
}

void dp_unix_stop_listening(dp_unix_t *self)
{
    dp_unix_close_fd(&self->listener);
    for (int i = 0; i < self->unproven_room; i++)
        dp_unix_close_fd(&self->unproven[i].fd);
}

/* The neighbour that a hello proves, or NULL and why it is none. */
static dp_unix_peer_t *find_proven_peer(dp_unix_t *self, const dp_unix_unproven_t *entry,
                                        const char **reason)
{
    dp_unix_peer_t *peer;

    *reason = "not of this job";
    if (!dp_peer_socket_hello_is_valid(&entry->hello, self->tag, &self->own)) return NULL;
    peer = dp_unix_find(self, (int)entry->hello.from);
    *reason = "no neighbour, or one that is here already";
    if (peer == NULL || peer->rank < self->rank || peer->fd >= 0 || peer->is_send_closed)
        return NULL;
    *reason = "another process than its rank";
    return dp_peer_socket_is_process(entry->fd, &peer->address, &self->own) ? peer : NULL;
}

void dp_unix_read_hello(dp_unix_t *self, dp_unix_unproven_t *entry)
{
    const size_t left = sizeof(entry->hello) - entry->have;
    const int fd = entry->fd;
    const char *reason = "it left without a word";
    dp_unix_peer_t *peer;
    ssize_t got;

    if (fd < 0) return;
    got = recv(fd, (uint8_t *)&entry->hello + entry->have, left, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got > 0) entry->have += (size_t)got;
    if (got > 0 && (size_t)got < left) return;
    peer = got > 0 ? find_proven_peer(self, entry, &reason) : NULL;
    entry->fd = -1;
    (void)epoll_ctl(self->inner, EPOLL_CTL_DEL, fd, NULL);
    if (peer == NULL) {
        refuse_connection(self, reason);
        close(fd);
        return;
    }
    attach_socket(self, peer, fd);
    if (--self->expected == 0) dp_unix_stop_listening(self);
}

/* Places are used in turn, so where all are taken the oldest connection is dropped: a rank sends
 * its hello as soon as it has connected, so an old one without is most likely no rank. */
static void add_unproven(dp_unix_t *self, int fd)
{
    const int place = self->next_unproven;
    dp_unix_unproven_t *entry = &self->unproven[place];

    self->next_unproven = (place + 1) % self->unproven_room;
    if (entry->fd >= 0) refuse_connection(self, "it said nothing");
    dp_unix_close_fd(&entry->fd);
    *entry = (dp_unix_unproven_t){.fd = fd};
    if (dp_unix_watch(self, fd, EPOLLIN, DP_UNIX_UNPROVEN, place) != 0) {
        dp_unix_close_fd(&entry->fd);
        return;
    }
    dp_unix_read_hello(self, entry);
}

void dp_unix_accept_some(dp_unix_t *self)
{
    for (int i = 0; i < ACCEPT_AT_ONCE && self->listener >= 0; i++) {
        const int fd = dp_peer_socket_accept(self->listener);

        if (fd >= 0) {
            add_unproven(self, fd);
        } else if (errno == EPERM) {
            refuse_connection(self, "another user's");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            refuse_connection(self, strerror(errno));
            return;
        }
    }
}

void dp_unix_note_death(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_unix_close_fd(&peer->process);
    peer->has_died = 1;
    /* It may have connected, sent all its messages and died before this rank accepted. */
    if (peer->fd < 0 && self->listener >= 0) dp_unix_accept_some(self);
    for (int i = 0; peer->fd < 0 && i < self->unproven_room; i++)
        dp_unix_read_hello(self, &self->unproven[i]);
    if (peer->fd < 0) dp_unix_end_broken(self, peer);
}

void dp_unix_open_peer(dp_unix_t *self, dp_unix_peer_t *peer)
{
    peer->process = dp_peer_socket_watch_process(&peer->address, &self->own);
    if (peer->process < 0 && errno == ESRCH) {
        dp_unix_note_death(self, peer);
        return;
    }
    if (peer->process >= 0 && dp_unix_watch(self, peer->process, EPOLLIN, DP_UNIX_PROCESS,
                                            (int)(peer - self->peers)) != 0)
        dp_unix_close_fd(&peer->process);
    if (peer->rank > self->rank) return; /* it connects to this rank */
    peer->must_connect = 1;
    try_connect(self, peer);
}

/* Called only by a rank that has higher neighbours on its node: others need no listener. */
int dp_unix_listen(dp_unix_t *self)
{
    const int room = self->expected + UNPROVEN_EXTRA;

    self->unproven = calloc((size_t)room, sizeof(*self->unproven));
    if (self->unproven == NULL) return -1;
    self->unproven_room = room;
    for (int i = 0; i < self->unproven_room; i++)
        self->unproven[i].fd = -1;
    self->listener = dp_peer_socket_listen(&self->own, self->expected + BACKLOG_EXTRA);
    return self->listener >= 0 ? dp_unix_watch(self, self->listener, EPOLLIN, DP_UNIX_LISTENER, 0)
                               : -1;
}
