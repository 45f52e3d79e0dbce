/*
 * unix.c - the transport that carries control messages between neighbours on one node over UNIX
 * sockets, one for each pair, and everything else over the transport below it, called lower.
 *
 * Called through the ops table by the thread that owns the transport. It must not know that shm.c
 * stands above it in the usual case: then a socket carries one byte and afterwards only shows that
 * its other end has died, since the kernel closes it within a millisecond. Where two ranks have no
 * common memory the socket carries all their messages.
 *
 * A forked child of a dead rank may keep its end of the socket open, so a descriptor of the process
 * itself (a pidfd) is watched as well.
 *
 * The higher rank of two connects, the lower one listens until all have come (unix_connect.c).
 * Nothing here blocks: messages to a rank that has not connected yet wait in its queue.
 *
 * On the socket each message has a head of 8 bytes. BYE says that nothing more will come: a socket
 * that ends behind one is an orderly end. Any other end is a loss, and it is reported after the
 * messages that had arrived.
 *
 *     outer (fd(), others sleep on it) --+-- wake: eventfd
 *                                        +-- lower's fds, and what shm.c adds: the doorbell
 *                                        +-- inner (poll() asks it) --+-- listener, timer
 *                                                                     +-- sockets, pidfds
 */
#include "runtime/transport/unix_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/transport/frame.h"

#define CLOSE_STEP_MS 5 /* longest sleep in close(), should an event be missed */
#define KIND_DATA 1u
#define KIND_BYE 2u

static dp_unix_t *unix_of(dp_transport_t *base)
{
    return (dp_unix_t *)base;
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Queues one message with its head in one piece, so that it needs one send() in the usual case. */
static dp_status_t queue_message(dp_unix_t *self, dp_unix_peer_t *peer, uint32_t kind,
                                 const void *data, size_t bytes)
{
    const dp_unix_head_t head = {(uint32_t)bytes, kind};
    dp_unix_outgoing_t *outgoing;

    if (peer->is_send_closed) return DP_OK;
    outgoing = malloc(sizeof(*outgoing) + sizeof(head) + bytes);
    if (outgoing == NULL) return DP_ERR_NO_MEMORY;
    *outgoing = (dp_unix_outgoing_t){.bytes = sizeof(head) + bytes};
    memcpy(outgoing->data, &head, sizeof(head));
    if (bytes > 0) memcpy(outgoing->data + sizeof(head), data, bytes);
    *peer->queue_end = outgoing;
    peer->queue_end = &outgoing->next;
    dp_unix_flush(self, peer);
    return DP_OK;
}

static dp_status_t unix_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    dp_unix_t *self = unix_of(base);
    dp_unix_peer_t *peer = dp_unix_find(self, rank);

    if (peer == NULL && self->lower != NULL)
        return self->lower->ops->send(self->lower, rank, data, bytes);
    if (peer == NULL || !self->is_connected || bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    return self->is_closed ? DP_OK : queue_message(self, peer, KIND_DATA, data, bytes);
}

/* ---- Receiving ------------------------------------------------------------------------------ */

/* Where the next bytes of head or message go, and how many. NULL: no memory for the message. */
static void *next_place(dp_unix_peer_t *peer, size_t *bytes)
{
    if (peer->have < sizeof(peer->head)) {
        *bytes = sizeof(peer->head) - peer->have;
        return (uint8_t *)&peer->head + peer->have;
    }
    if (peer->head.bytes > peer->room) {
        uint8_t *data = realloc(peer->data, peer->head.bytes);

        if (data == NULL) return NULL;
        peer->data = data;
        peer->room = peer->head.bytes;
    }
    *bytes = sizeof(peer->head) + peer->head.bytes - peer->have;
    return peer->data + (peer->have - sizeof(peer->head));
}

/* Whether a rank of this version would send such a head. */
static int is_valid_head(const dp_unix_peer_t *peer)
{
    const dp_unix_head_t *head = &peer->head;

    if (peer->said_bye) return 0;
    if (head->kind == KIND_BYE) return head->bytes == 0;
    return head->kind == KIND_DATA && head->bytes <= DP_FRAME_TOTAL_MAX;
}

/* Reads until one message is whole, which is 1, or nothing more has come. */
static int read_peer(dp_unix_t *self, dp_unix_peer_t *peer)
{
    while (peer->fd >= 0) {
        size_t bytes;
        void *place;
        ssize_t got;

        if (peer->have >= sizeof(peer->head) &&
            peer->have == sizeof(peer->head) + peer->head.bytes) {
            peer->have = 0;
            if (peer->head.kind == KIND_DATA) return 1;
            peer->said_bye = 1;
        }
        place = next_place(peer, &bytes);
        if (place == NULL) {
            dp_unix_end_peer(self, peer, "a message from it was lost (out of memory)");
            return 0;
        }
        got = recv(peer->fd, place, bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        /* Of a dead process an empty socket is the end, even if a child keeps it open. */
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !peer->has_died) return 0;
        if (got <= 0) {
            dp_unix_end_broken(self, peer);
            return 0;
        }
        peer->have += (size_t)got;
        if (peer->have == sizeof(peer->head) && !is_valid_head(peer)) {
            dp_log_error(&self->log, "what rank %d sends makes no sense", peer->rank);
            dp_unix_end_peer(self, peer, "what it sends makes no sense");
        }
    }
    return 0;
}

/* Handles one event of inner. 1: *out is a message. */
static int handle_event(dp_unix_t *self, const struct epoll_event *event, dp_transport_event_t *out)
{
    const dp_unix_source_t source = (dp_unix_source_t)(event->data.u64 >> 32);
    const uint32_t place = (uint32_t)event->data.u64;
    dp_unix_peer_t *peer = NULL;

    switch (source) {
    case DP_UNIX_LISTENER:
        if (self->listener >= 0) dp_unix_accept_some(self);
        return 0;
    case DP_UNIX_TIMER:
        dp_unix_retry_connects(self);
        return 0;
    case DP_UNIX_UNPROVEN:
        dp_unix_read_hello(self, &self->unproven[place]);
        return 0;
    case DP_UNIX_PEER:
        peer = &self->peers[place];
        break;
    case DP_UNIX_PROCESS:
        dp_unix_note_death(self, &self->peers[place]);
        peer = &self->peers[place];
        break;
    }
    if (peer == NULL) return 0;
    if ((event->events & EPOLLOUT) != 0) dp_unix_flush(self, peer);
    if (!read_peer(self, peer)) return 0;
    *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                  .rank = peer->rank,
                                  .data = peer->data,
                                  .bytes = peer->head.bytes};
    return 1;
}

/* Reads sockets of processes that have died: where a child keeps one open there is no event for its
 * end. */
static int read_dead_peers(dp_unix_t *self, dp_transport_event_t *out)
{
    for (int i = 0; i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        if (!peer->has_died || peer->fd < 0 || !read_peer(self, peer)) continue;
        *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                      .rank = peer->rank,
                                      .data = peer->data,
                                      .bytes = peer->head.bytes};
        return 1;
    }
    return 0;
}

/* 1: *out is a loss that was not reported yet. */
static int report_loss(dp_unix_t *self, dp_transport_event_t *out)
{
    for (int i = 0; self->losses > 0 && i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        if (!peer->is_lost || peer->is_reported) continue;
        peer->is_reported = 1;
        self->losses--;
        *out = (dp_transport_event_t){
            .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
        return 1;
    }
    return 0;
}

/* The next event of this node's neighbours. Losses that were found in one call are reported before
 * more is read, so that self->losses is 0 in the usual case and costs one comparison. */
static dp_status_t unix_poll_local(dp_unix_t *self, dp_transport_event_t *out)
{
    struct epoll_event event;

    if (!self->is_connected || self->peer_count == 0) return DP_ERR_PENDING;
    for (;;) {
        if (self->losses > 0 && report_loss(self, out)) return DP_OK;
        /* One event for each message: the kernel rotates its list, so no neighbour starves. */
        if (epoll_wait(self->inner, &event, 1, 0) <= 0) break;
        if (handle_event(self, &event, out)) return DP_OK;
    }
    if (read_dead_peers(self, out)) return DP_OK;
    return report_loss(self, out) ? DP_OK : DP_ERR_PENDING;
}

static dp_status_t unix_poll_lower(dp_unix_t *self, dp_transport_event_t *out)
{
    return self->lower == NULL ? DP_ERR_PENDING : self->lower->ops->poll(self->lower, out);
}

static dp_status_t unix_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    dp_unix_t *self = unix_of(base);

    self->lower_first = !self->lower_first;
    if (self->lower_first && unix_poll_lower(self, out) == DP_OK) return DP_OK;
    if (unix_poll_local(self, out) == DP_OK) return DP_OK;
    return self->lower_first ? DP_ERR_PENDING : unix_poll_lower(self, out);
}

/* This node's neighbours have closed sockets and readable pidfds; there silence is no loss yet. */
static void unix_give_up(dp_transport_t *base, int rank)
{
    dp_unix_t *self = unix_of(base);

    if (dp_unix_find(self, rank) != NULL || self->lower == NULL) return;
    if (self->lower->ops->give_up != NULL) self->lower->ops->give_up(self->lower, rank);
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

static int unix_fd(const dp_transport_t *base)
{
    return ((const dp_unix_t *)base)->outer;
}

static int unix_watch(dp_transport_t *base, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(unix_of(base)->outer, EPOLL_CTL_ADD, fd, &event);
}

/* All epolls are level-triggered: a socket with unread data makes outer readable again and again.
 * So only what this object knows without a readable socket could be slept over. */
static dp_status_t unix_rearm(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);

    if (self->losses > 0) return DP_ERR_PENDING;
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].has_died && self->peers[i].fd >= 0) return DP_ERR_PENDING;
    }
    return self->lower == NULL ? DP_OK : self->lower->ops->rearm(self->lower);
}

static dp_status_t unix_arm(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);
    uint64_t wakes;
    dp_status_t status;

    /* A wake() since the last sleep: the caller polls once more and finds what it was woken for. */
    if (read(self->wake, &wakes, sizeof(wakes)) == (ssize_t)sizeof(wakes)) return DP_ERR_PENDING;
    status = unix_rearm(base);
    if (status != DP_OK || self->lower == NULL) return status;
    return self->lower->ops->arm(self->lower);
}

static void unix_wake(dp_transport_t *base)
{
    static const uint64_t one = 1;

    while (write(unix_of(base)->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* One byte with the length of this rank's own address, that address, lower's address. */
static dp_status_t unix_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    dp_unix_t *self = unix_of(base);
    const size_t own = self->peer_count == 0 ? 0 : DP_PEER_SOCKET_ADDRESS;
    uint8_t *at = data;
    size_t more = 0;
    dp_status_t status = DP_OK;

    if (room < 1 + own) return DP_ERR_INVALID;
    at[0] = (uint8_t)own;
    if (own > 0) dp_peer_socket_address_write(&self->own, at + 1);
    if (self->lower != NULL)
        status = self->lower->ops->address(self->lower, at + 1 + own, room - 1 - own, &more);
    if (status == DP_OK) *bytes = 1 + own + more;
    return status;
}

/* Reads the addresses of the neighbours on this node; collects those of the others for lower. */
static dp_status_t read_addresses(dp_unix_t *self, const int *ranks,
                                  const uint8_t *const *addresses, const size_t *bytes, int count,
                                  int *more_ranks, const void **more, size_t *more_bytes,
                                  int *more_count, dp_error_t *error)
{
    for (int i = 0; i < count; i++) {
        const size_t own = bytes[i] == 0 ? 1 : addresses[i][0];
        dp_unix_peer_t *peer = dp_unix_find(self, ranks[i]);

        if (bytes[i] < 1 + own || (own != 0 && own != DP_PEER_SOCKET_ADDRESS) ||
            (peer != NULL && own == 0) || (peer == NULL && self->lower == NULL)) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d makes no sense", self->rank,
                                ranks[i]);
        }
        if (peer != NULL) {
            dp_peer_socket_address_read(&peer->address, addresses[i] + 1);
            continue;
        }
        more_ranks[*more_count] = ranks[i];
        more[*more_count] = addresses[i] + 1 + own;
        more_bytes[(*more_count)++] = bytes[i] - 1 - own;
    }
    return DP_OK;
}

static dp_status_t unix_connect(dp_transport_t *base, const int *ranks,
                                const void *const *addresses, const size_t *bytes, int count,
                                dp_error_t *error)
{
    dp_unix_t *self = unix_of(base);
    const void **more = calloc((size_t)count + 1, sizeof(*more));
    size_t *more_bytes = calloc((size_t)count + 1, sizeof(*more_bytes));
    int *more_ranks = calloc((size_t)count + 1, sizeof(*more_ranks));
    int more_count = 0;
    dp_status_t status;

    if (self->is_connected || self->is_closed) {
        status = dp_error_set(error, DP_ERR_INVALID, "rank %d: connected twice", self->rank);
    } else if (more == NULL || more_bytes == NULL || more_ranks == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                              self->rank, count);
    } else {
        status = read_addresses(self, ranks, (const uint8_t *const *)addresses, bytes, count,
                                more_ranks, more, more_bytes, &more_count, error);
    }
    if (status == DP_OK && self->lower != NULL) {
        status =
            self->lower->ops->connect(self->lower, more_ranks, more, more_bytes, more_count, error);
    }
    if (status == DP_OK) {
        self->is_connected = 1;
        for (int i = 0; i < self->peer_count; i++)
            dp_unix_open_peer(self, &self->peers[i]);
    }
    free(more_ranks);
    free(more_bytes);
    free(more);
    return status;
}

static int unix_has_queued(const dp_unix_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].queue != NULL) return 1;
    }
    return 0;
}

/* Writes the queues out, within the deadline: bytes that a socket has taken reach the peer even if
 * this process ends. Messages that arrive are dropped. */
static void unix_flush_all(dp_unix_t *self, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = self->inner, .events = POLLIN};
        dp_transport_event_t event;

        while (unix_poll_local(self, &event) == DP_OK) {
        }
        if (!unix_has_queued(self) || dp_now_ns() >= deadline_ns) return;
        (void)poll(&wait, 1, CLOSE_STEP_MS);
    }
}

static void unix_close(dp_transport_t *base, uint64_t deadline_ns)
{
    dp_unix_t *self = unix_of(base);

    if (self->is_closed) return;
    for (int i = 0; self->is_connected && i < self->peer_count; i++)
        (void)queue_message(self, &self->peers[i], KIND_BYE, NULL, 0);
    unix_flush_all(self, deadline_ns);
    self->is_closed = 1;
    dp_unix_stop_listening(self);
    for (int i = 0; i < self->peer_count; i++) {
        self->peers[i].said_bye = 1; /* its end is no loss any more */
        dp_unix_end_peer(self, &self->peers[i], "");
    }
    if (self->lower != NULL) self->lower->ops->close(self->lower, deadline_ns);
}

static void unix_destroy(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);

    dp_transport_destroy(self->lower);
    dp_unix_stop_listening(self);
    for (int i = 0; i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        dp_unix_close_fd(&peer->fd);
        dp_unix_close_fd(&peer->process);
        dp_unix_drop_queue(peer);
        free(peer->data);
    }
    dp_unix_close_fd(&self->timer);
    dp_unix_close_fd(&self->outer);
    dp_unix_close_fd(&self->inner);
    dp_unix_close_fd(&self->wake);
    free(self->unproven);
    free(self);
}

/* Makes the descriptors for sleep and wake-up. -1 with errno. */
static int open_fds(dp_unix_t *self)
{
    self->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    self->inner = epoll_create1(EPOLL_CLOEXEC);
    self->outer = epoll_create1(EPOLL_CLOEXEC);
    if (self->wake < 0 || self->inner < 0 || self->outer < 0) return -1;
    if (unix_watch(&self->base, self->wake) != 0 || unix_watch(&self->base, self->inner) != 0)
        return -1;
    if (self->lower == NULL) return 0;
    if (unix_watch(&self->base, self->lower->ops->fd(self->lower)) != 0) return -1;
    if (self->lower->ops->other_fd == NULL) return 0;
    return unix_watch(&self->base, self->lower->ops->other_fd(self->lower));
}

dp_status_t dp_transport_unix_create(int rank, uint64_t tag, const int *ranks, int count,
                                     dp_transport_t *lower, const dp_log_t *log,
                                     dp_transport_t **out, dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "unix",
        .address = unix_address,
        .connect = unix_connect,
        .send = unix_send,
        .poll = unix_poll,
        .give_up = unix_give_up,
        .fd = unix_fd,
        .watch = unix_watch,
        .arm = unix_arm,
        .rearm = unix_rearm,
        .wake = unix_wake,
        .close = unix_close,
        .destroy = unix_destroy,
    };
    dp_unix_t *self = calloc(1, sizeof(*self) + (size_t)count * sizeof(self->peers[0]));

    if (self == NULL) {
        dp_transport_destroy(lower);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    }
    self->base.ops = &ops;
    self->lower = lower;
    self->rank = rank;
    self->tag = tag;
    self->listener = self->timer = self->wake = self->inner = self->outer = -1;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    for (; self->peer_count < count; self->peer_count++) {
        dp_unix_peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->fd = peer->process = -1;
        peer->queue_end = &peer->queue;
        self->expected += peer->rank > rank;
    }
    if (count > 0) dp_peer_socket_address_make(&self->own);
    if (open_fds(self) != 0 || (self->expected > 0 && dp_unix_listen(self) != 0)) {
        dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no UNIX socket: %s", rank, strerror(errno));
        unix_destroy(&self->base);
        return DP_ERR_SYSTEM;
    }
    *out = &self->base;
    return DP_OK;
}
