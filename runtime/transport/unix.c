/*
 * unix.c - control messages between ranks of one machine over UNIX sockets, one for each pair of
 * neighbours, and everything for other ranks over the transport behind this one, if there is one.
 *
 * near.c puts shared memory in front of it, so in the usual case a socket carries one byte and then
 * only shows that its other end has died: the kernel closes it within a millisecond. A forked child
 * of the dead may keep it open, so a descriptor of the process itself (pidfd) is watched as well.
 * Where two ranks have no memory in common the socket carries all their messages.
 *
 * The higher rank of two dials, the lower one listens until all have come. Nothing here waits: who
 * has not come yet is waited for in poll(), and what is sent to it meanwhile queues
 * (unix_connect.c).
 *
 * On the socket each message has a head of 8 bytes. BYE says that nothing more will come: a socket
 * that ends behind one is an orderly end, any other end is a loss, reported after what had arrived.
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

#define CLOSE_STEP_MS 5 /* longest nap in close(), should an event be missed */
#define KIND_DATA 1u
#define KIND_BYE 2u

static dp_unix_t *unix_of(dp_transport_t *base)
{
    return (dp_unix_t *)base;
}

dp_unix_peer_t *dp_unix_find(dp_unix_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

int dp_unix_watch(dp_unix_t *self, int fd, uint32_t events, dp_unix_source_t source, int place)
{
    struct epoll_event event = {.events = events,
                                .data.u64 = (uint64_t)source << 32 | (uint32_t)place};

    return epoll_ctl(self->inner, EPOLL_CTL_ADD, fd, &event);
}

/* ---- The end of a peer -------------------------------------------------------------------- */

static void drop_letters(dp_unix_peer_t *peer)
{
    while (peer->first != NULL) {
        dp_unix_letter_t *letter = peer->first;

        peer->first = letter->next;
        free(letter);
    }
    peer->last = &peer->first;
}

void dp_unix_close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Nothing comes from it and nothing goes to it any more. */
void dp_unix_end_peer(dp_unix_t *self, dp_unix_peer_t *peer, const char *text)
{
    dp_unix_close_fd(&peer->fd);
    dp_unix_close_fd(&peer->process);
    peer->dials = 0;
    peer->is_deaf = 1;
    drop_letters(peer);
    if (peer->is_lost || peer->said_bye) return;
    peer->is_lost = 1;
    peer->text = text;
    self->losses++;
}

/* The same words as ucx.c has: all ranks shall learn one cause. */
void dp_unix_break(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_unix_end_peer(self, peer, "its connection broke");
}

/* ---- Sending ------------------------------------------------------------------------------ */

static void want_room(dp_unix_t *self, dp_unix_peer_t *peer, int wants)
{
    const int place = (int)(peer - self->peers);
    struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u),
                                .data.u64 = (uint64_t)DP_UNIX_PEER << 32 | (uint32_t)place};

    if (peer->wants_room == wants) return;
    if (epoll_ctl(self->inner, EPOLL_CTL_MOD, peer->fd, &event) == 0) peer->wants_room = wants;
}

/* Writes what waits as far as there is room. An error is no loss: what the peer said before is
 * still to be read, and after it the end is found. */
void dp_unix_pump(dp_unix_t *self, dp_unix_peer_t *peer)
{
    while (peer->fd >= 0 && peer->first != NULL) {
        dp_unix_letter_t *letter = peer->first;
        const ssize_t sent = send(peer->fd, letter->data + letter->done,
                                  letter->bytes - letter->done, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) break;
        if (sent < 0) {
            peer->is_deaf = 1;
            drop_letters(peer);
            break;
        }
        letter->done += (size_t)sent;
        if (letter->done < letter->bytes) continue;
        peer->first = letter->next;
        if (peer->first == NULL) peer->last = &peer->first;
        free(letter);
    }
    if (peer->fd >= 0) want_room(self, peer, peer->first != NULL);
}

static dp_status_t post(dp_unix_t *self, dp_unix_peer_t *peer, uint32_t kind, const void *data,
                        size_t bytes)
{
    const dp_unix_head_t head = {(uint32_t)bytes, kind};
    dp_unix_letter_t *letter;

    if (peer->is_deaf) return DP_OK;
    letter = malloc(sizeof(*letter) + sizeof(head) + bytes);
    if (letter == NULL) return DP_ERR_NO_MEMORY;
    *letter = (dp_unix_letter_t){.bytes = sizeof(head) + bytes};
    memcpy(letter->data, &head, sizeof(head));
    if (bytes > 0) memcpy(letter->data + sizeof(head), data, bytes);
    *peer->last = letter;
    peer->last = &letter->next;
    dp_unix_pump(self, peer);
    return DP_OK;
}

static dp_status_t unix_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    dp_unix_t *self = unix_of(base);
    dp_unix_peer_t *peer = dp_unix_find(self, rank);

    if (peer == NULL && self->beyond != NULL)
        return self->beyond->ops->send(self->beyond, rank, data, bytes);
    if (peer == NULL || !self->is_connected || bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    return self->is_closed ? DP_OK : post(self, peer, KIND_DATA, data, bytes);
}

/* ---- Receiving ---------------------------------------------------------------------------- */

/* Where the next bytes go. NULL: no memory for the message. */
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

/* Whether a head is one that a rank of ours would send. */
static int makes_sense(const dp_unix_peer_t *peer)
{
    const dp_unix_head_t *head = &peer->head;

    if (peer->said_bye) return 0;
    if (head->kind == KIND_BYE) return head->bytes == 0;
    return head->kind == KIND_DATA && head->bytes <= DP_FRAME_TOTAL_MAX;
}

/* Reads up to the end of one message. 1: it is whole. */
static int hear_peer(dp_unix_t *self, dp_unix_peer_t *peer)
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
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !peer->has_died) return 0;
        if (got <= 0) {
            dp_unix_break(self, peer);
            return 0;
        }
        peer->have += (size_t)got;
        if (peer->have == sizeof(peer->head) && !makes_sense(peer)) {
            dp_log_error(&self->log, "what rank %d sends makes no sense", peer->rank);
            dp_unix_end_peer(self, peer, "what it sends makes no sense");
        }
    }
    return 0;
}

/* Does what one event asks for. 1: *out is a message. */
static int serve(dp_unix_t *self, const struct epoll_event *event, dp_transport_event_t *out)
{
    const dp_unix_source_t source = (dp_unix_source_t)(event->data.u64 >> 32);
    const uint32_t place = (uint32_t)event->data.u64;
    dp_unix_peer_t *peer = NULL;

    switch (source) {
    case DP_UNIX_LISTENER:
        if (self->listener >= 0) dp_unix_accept_some(self);
        return 0;
    case DP_UNIX_TIMER:
        dp_unix_dial_all(self);
        return 0;
    case DP_UNIX_CALLER:
        dp_unix_hear_caller(self, &self->callers[place]);
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
    if ((event->events & EPOLLOUT) != 0) dp_unix_pump(self, peer);
    if (!hear_peer(self, peer)) return 0;
    *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                  .rank = peer->rank,
                                  .data = peer->data,
                                  .bytes = peer->head.bytes};
    return 1;
}

/* A process that has died is read to the end, whether or not its socket has an end. */
static int hear_dead(dp_unix_t *self, dp_transport_event_t *out)
{
    for (int i = 0; i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        if (!peer->has_died || peer->fd < 0 || !hear_peer(self, peer)) continue;
        *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                      .rank = peer->rank,
                                      .data = peer->data,
                                      .bytes = peer->head.bytes};
        return 1;
    }
    return 0;
}

static int tell_loss(dp_unix_t *self, dp_transport_event_t *out)
{
    for (int i = 0; self->losses > 0 && i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        if (!peer->is_lost || peer->is_told) continue;
        peer->is_told = 1;
        self->losses--;
        *out = (dp_transport_event_t){
            .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
        return 1;
    }
    return 0;
}

static dp_status_t look_here(dp_unix_t *self, dp_transport_event_t *out)
{
    struct epoll_event event;

    if (!self->is_connected || self->peer_count == 0) return DP_ERR_AGAIN;
    for (;;) {
        if (self->losses > 0 && tell_loss(self, out)) return DP_OK;
        /* One at a time: the kernel turns to the next one by itself. */
        if (epoll_wait(self->inner, &event, 1, 0) <= 0) break;
        if (serve(self, &event, out)) return DP_OK;
    }
    if (hear_dead(self, out)) return DP_OK;
    return tell_loss(self, out) ? DP_OK : DP_ERR_AGAIN;
}

static dp_status_t look_beyond(dp_unix_t *self, dp_transport_event_t *out)
{
    return self->beyond == NULL ? DP_ERR_AGAIN : self->beyond->ops->poll(self->beyond, out);
}

static dp_status_t unix_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    dp_unix_t *self = unix_of(base);

    self->beyond_first = !self->beyond_first;
    if (self->beyond_first && look_beyond(self, out) == DP_OK) return DP_OK;
    if (look_here(self, out) == DP_OK) return DP_OK;
    return self->beyond_first ? DP_ERR_AGAIN : look_beyond(self, out);
}

/* ---- Sleeping ----------------------------------------------------------------------------- */

static int unix_fd(const dp_transport_t *base)
{
    return ((const dp_unix_t *)base)->outer;
}

static int unix_watch(dp_transport_t *base, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(unix_of(base)->outer, EPOLL_CTL_ADD, fd, &event);
}

/* Sockets say again and again that there is something, so only what was noted here can be missed.
 */
static dp_status_t unix_rearm(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);

    if (self->losses > 0) return DP_ERR_AGAIN;
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].has_died && self->peers[i].fd >= 0) return DP_ERR_AGAIN;
    }
    return self->beyond == NULL ? DP_OK : self->beyond->ops->rearm(self->beyond);
}

static dp_status_t unix_arm(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);
    uint64_t wakes;
    dp_status_t status;

    if (read(self->wake, &wakes, sizeof(wakes)) == (ssize_t)sizeof(wakes)) return DP_ERR_AGAIN;
    status = unix_rearm(base);
    if (status != DP_OK || self->beyond == NULL) return status;
    return self->beyond->ops->arm(self->beyond);
}

static void unix_wake(dp_transport_t *base)
{
    static const uint64_t one = 1;

    while (write(unix_of(base)->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* ---- Opening and closing ------------------------------------------------------------------ */

/* One byte: how much of this rank's own follows; then that of the transport beyond. */
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
    if (self->beyond != NULL)
        status = self->beyond->ops->address(self->beyond, at + 1 + own, room - 1 - own, &more);
    if (status == DP_OK) *bytes = 1 + own + more;
    return status;
}

static dp_status_t read_addresses(dp_unix_t *self, const int *ranks,
                                  const uint8_t *const *addresses, const size_t *bytes, int count,
                                  int *more_ranks, const void **more, size_t *more_bytes,
                                  int *more_count, dp_error_t *error)
{
    for (int i = 0; i < count; i++) {
        const size_t own = bytes[i] == 0 ? 1 : addresses[i][0];
        dp_unix_peer_t *peer = dp_unix_find(self, ranks[i]);

        if (bytes[i] < 1 + own || (own != 0 && own != DP_PEER_SOCKET_ADDRESS) ||
            (peer != NULL && own == 0) || (peer == NULL && self->beyond == NULL)) {
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
    if (status == DP_OK && self->beyond != NULL) {
        status = self->beyond->ops->connect(self->beyond, more_ranks, more, more_bytes, more_count,
                                            error);
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

static int has_letters(const dp_unix_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].first != NULL) return 1;
    }
    return 0;
}

/* What the socket has taken reaches the peer, however this process ends. What arrives is dropped.
 */
static void deliver_rest(dp_unix_t *self, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = self->inner, .events = POLLIN};
        dp_transport_event_t event;

        while (look_here(self, &event) == DP_OK) {
        }
        if (!has_letters(self) || dp_now_ns() >= deadline_ns) return;
        (void)poll(&wait, 1, CLOSE_STEP_MS);
    }
}

static void unix_close(dp_transport_t *base, uint64_t deadline_ns)
{
    dp_unix_t *self = unix_of(base);

    if (self->is_closed) return;
    for (int i = 0; self->is_connected && i < self->peer_count; i++)
        (void)post(self, &self->peers[i], KIND_BYE, NULL, 0);
    deliver_rest(self, deadline_ns);
    self->is_closed = 1;
    dp_unix_stop_listening(self);
    for (int i = 0; i < self->peer_count; i++) {
        self->peers[i].said_bye = 1; /* its end is no loss any more */
        dp_unix_end_peer(self, &self->peers[i], "");
    }
    if (self->beyond != NULL) self->beyond->ops->close(self->beyond, deadline_ns);
}

static void unix_destroy(dp_transport_t *base)
{
    dp_unix_t *self = unix_of(base);

    dp_transport_destroy(self->beyond);
    dp_unix_stop_listening(self);
    for (int i = 0; i < self->peer_count; i++) {
        dp_unix_peer_t *peer = &self->peers[i];

        dp_unix_close_fd(&peer->fd);
        dp_unix_close_fd(&peer->process);
        drop_letters(peer);
        free(peer->data);
    }
    dp_unix_close_fd(&self->timer);
    dp_unix_close_fd(&self->outer);
    dp_unix_close_fd(&self->inner);
    dp_unix_close_fd(&self->wake);
    free(self->callers);
    free(self);
}

/* The descriptors that sleep and wake need. errno says what is missing. */
static int open_fds(dp_unix_t *self)
{
    self->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    self->inner = epoll_create1(EPOLL_CLOEXEC);
    self->outer = epoll_create1(EPOLL_CLOEXEC);
    if (self->wake < 0 || self->inner < 0 || self->outer < 0) return -1;
    if (unix_watch(&self->base, self->wake) != 0 || unix_watch(&self->base, self->inner) != 0)
        return -1;
    if (self->beyond == NULL) return 0;
    return unix_watch(&self->base, self->beyond->ops->fd(self->beyond));
}

dp_status_t dp_transport_unix_create(int rank, uint64_t tag, const int *ranks, int count,
                                     dp_transport_t *beyond, const dp_log_t *log,
                                     dp_transport_t **out, dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "unix",
        .address = unix_address,
        .connect = unix_connect,
        .send = unix_send,
        .poll = unix_poll,
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
        dp_transport_destroy(beyond);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    }
    self->base.ops = &ops;
    self->beyond = beyond;
    self->rank = rank;
    self->tag = tag;
    self->listener = self->timer = self->wake = self->inner = self->outer = -1;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    for (; self->peer_count < count; self->peer_count++) {
        dp_unix_peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->fd = peer->process = -1;
        peer->last = &peer->first;
        self->awaited += peer->rank > rank;
    }
    if (count > 0) dp_peer_socket_address_make(&self->own);
    if (open_fds(self) != 0 || (self->awaited > 0 && dp_unix_listen(self) != 0)) {
        dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no UNIX socket: %s", rank, strerror(errno));
        unix_destroy(&self->base);
        return DP_ERR_SYSTEM;
    }
    *out = &self->base;
    return DP_OK;
}
