/*
 * unix_connect.c - how two ranks of one machine get the UNIX socket between them: one dials, the
 * other listens until all of its higher neighbours have come. Called by unix.c, on its thread.
 *
 * Anybody on the machine may connect. Those of other users are dropped at once (line.c), and those
 * that do not say the key as soon as they do not. Nothing here waits: a queue of connections that
 * is full, of strangers perhaps, is tried again by a timer.
 */
#include "runtime/transport/unix_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define REDIAL_NS 1000000 /* until a full queue of connections is tried again */
#define CALLERS 16        /* connections beyond those expected that have not said who they are */
#define BACKLOG_EXTRA 512 /* room in the kernel's queue for those of other users */
#define ACCEPT_AT_ONCE 64 /* then others have their turn */

/* ---- Connecting --------------------------------------------------------------------------- */

static void refuse(dp_unix_t *self, const char *reason)
{
    self->strangers++;
    if ((self->strangers & (self->strangers - 1)) != 0) return; /* no flood of lines */
    dp_log_warn(&self->log, "dropped %llu local connections, the last one: %s",
                (unsigned long long)self->strangers, reason);
}

static void join(dp_unix_t *self, dp_unix_peer_t *peer, int fd)
{
    peer->fd = fd;
    if (dp_unix_watch(self, fd, EPOLLIN, DP_UNIX_PEER, (int)(peer - self->peers)) != 0) {
        dp_unix_end_peer(self, peer, "there was no memory to watch its connection");
        return;
    }
    dp_unix_pump(self, peer);
}

/* Tries again soon. */
static void set_timer(dp_unix_t *self)
{
    const struct itimerspec soon = {.it_value = {.tv_nsec = REDIAL_NS}};

    if (self->timer < 0) {
        self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (self->timer >= 0 && dp_unix_watch(self, self->timer, EPOLLIN, DP_UNIX_TIMER, 0) != 0)
            dp_unix_close_fd(&self->timer);
    }
    if (self->timer >= 0) (void)timerfd_settime(self->timer, 0, &soon, NULL);
}

static void dial(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_peer_socket_hello_t hello;
    int fd = dp_peer_socket_connect(&peer->address);

    if (fd < 0 && (errno == EAGAIN || errno == EINTR)) {
        set_timer(self);
        return;
    }
    peer->dials = 0;
    if (fd >= 0 && !dp_peer_socket_is_process(fd, &peer->address, &self->own)) {
        dp_unix_close_fd(&fd);
        errno = EPERM;
    }
    dp_peer_socket_hello_make(&hello, self->rank, self->tag, &peer->address);
    /* The first bytes of an empty socket fit. */
    if (fd >= 0 && send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello)) {
        join(self, peer, fd);
        return;
    }
    dp_log_debug(&self->log, "no connection to rank %d: %s", peer->rank, strerror(errno));
    dp_unix_close_fd(&fd);
    dp_unix_break(self, peer);
}

void dp_unix_dial_all(dp_unix_t *self)
{
    uint64_t expired;

    if (self->timer >= 0 && read(self->timer, &expired, sizeof(expired)) < 0) return;
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].dials) dial(self, &self->peers[i]);
    }
}

void dp_unix_stop_listening(dp_unix_t *self)
{
    dp_unix_close_fd(&self->listener);
    for (int i = 0; i < self->caller_room; i++)
        dp_unix_close_fd(&self->callers[i].fd);
}

/* The peer that a caller turns out to be, or NULL and why it is none. */
static dp_unix_peer_t *identify(dp_unix_t *self, const dp_unix_caller_t *caller,
                                const char **reason)
{
    dp_unix_peer_t *peer;

    *reason = "not of this job";
    if (!dp_peer_socket_hello_is_valid(&caller->hello, self->tag, &self->own)) return NULL;
    peer = dp_unix_find(self, (int)caller->hello.from);
    *reason = "no neighbour, or one that is here already";
    if (peer == NULL || peer->rank < self->rank || peer->fd >= 0 || peer->is_deaf) return NULL;
    *reason = "another process than its rank";
    return dp_peer_socket_is_process(caller->fd, &peer->address, &self->own) ? peer : NULL;
}

void dp_unix_hear_caller(dp_unix_t *self, dp_unix_caller_t *caller)
{
    const size_t left = sizeof(caller->hello) - caller->have;
    const int fd = caller->fd;
    const char *reason = "it left without a word";
    dp_unix_peer_t *peer;
    ssize_t got;

    if (fd < 0) return;
    got = recv(fd, (uint8_t *)&caller->hello + caller->have, left, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got > 0) caller->have += (size_t)got;
    if (got > 0 && (size_t)got < left) return;
    peer = got > 0 ? identify(self, caller, &reason) : NULL;
    caller->fd = -1;
    (void)epoll_ctl(self->inner, EPOLL_CTL_DEL, fd, NULL);
    if (peer == NULL) {
        refuse(self, reason);
        close(fd);
        return;
    }
    join(self, peer, fd);
    if (--self->awaited == 0) dp_unix_stop_listening(self);
}

/* Who has said nothing for longest makes room: a rank speaks as soon as it has connected. */
static void take_call(dp_unix_t *self, int fd)
{
    const int place = self->next_caller;
    dp_unix_caller_t *caller = &self->callers[place];

    self->next_caller = (place + 1) % self->caller_room;
    if (caller->fd >= 0) refuse(self, "it said nothing");
    dp_unix_close_fd(&caller->fd);
    *caller = (dp_unix_caller_t){.fd = fd};
    if (dp_unix_watch(self, fd, EPOLLIN, DP_UNIX_CALLER, place) != 0) {
        dp_unix_close_fd(&caller->fd);
        return;
    }
    dp_unix_hear_caller(self, caller);
}

void dp_unix_accept_some(dp_unix_t *self)
{
    for (int i = 0; i < ACCEPT_AT_ONCE && self->listener >= 0; i++) {
        const int fd = dp_peer_socket_accept(self->listener);

        if (fd >= 0) {
            take_call(self, fd);
        } else if (errno == EPERM) {
            refuse(self, "another user's");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            refuse(self, strerror(errno));
            return;
        }
    }
}

/* The process has ended, whoever else still holds its socket: what it said before lies here. */
void dp_unix_note_death(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_unix_close_fd(&peer->process);
    peer->has_died = 1;
    /* It may have dialled, said everything and died before this rank looked. */
    if (peer->fd < 0 && self->listener >= 0) dp_unix_accept_some(self);
    for (int i = 0; peer->fd < 0 && i < self->caller_room; i++)
        dp_unix_hear_caller(self, &self->callers[i]);
    if (peer->fd < 0) dp_unix_break(self, peer);
}

/* Begins to connect to one neighbour of this machine. */
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
    if (peer->rank > self->rank) return; /* it dials */
    peer->dials = 1;
    dial(self, peer);
}

/* A rank that nobody dials has no listener, and one without neighbours here no socket at all. */
int dp_unix_listen(dp_unix_t *self)
{
    const int room = self->awaited + CALLERS;

    self->callers = calloc((size_t)room, sizeof(*self->callers));
    if (self->callers == NULL) return -1;
    self->caller_room = room;
    for (int i = 0; i < self->caller_room; i++)
        self->callers[i].fd = -1;
    self->listener = dp_peer_socket_listen(&self->own, self->awaited + BACKLOG_EXTRA);
    return self->listener >= 0 ? dp_unix_watch(self, self->listener, EPOLLIN, DP_UNIX_LISTENER, 0)
                               : -1;
}
