/*
 * shm.c - the transport that carries control messages between neighbours on one node through shared
 * memory, and everything else over the transport below it, called lower (unix.c).
 *
 * Called through the ops table by the thread that owns the transport: the coordinator's, or one
 * that waits in its stead. Only wake() may be called by others. It must not know what messages
 * mean.
 *
 * All messages of an edge take one way, so they stay in order: the two mailboxes (mailbox.h), if
 * both ranks could open the other's, else lower. Each rank says which by its first message over
 * lower, a greeting of one byte. Until the greeting has come, messages to that rank wait in its
 * queue.
 *
 *     connect()            the other's greeting arrives over lower
 *     +----------------+   "opened", and this rank has too    +------------------------------+
 *     | greeting sent, | -----------------------------------> | rings: send, poll, wake-ups  |
 *     | messages wait  |                                      +------------------------------+
 *     |                |   "not opened", or this rank has not +------------------------------+
 *     |                | -----------------------------------> | lower carries both directions|
 *     +----------------+                                      +------------------------------+
 *             | lower reports a death, or the ring is damaged             | likewise
 *             v                                                           v
 *     lost: what the rank had written before lies in this rank's memory and is delivered first
 *
 * Where this rank cannot even open the other's mailbox, the edge belongs to lower from connect()
 * on. Lower also shows a death: a ring cannot tell that its writer is gone, a socket can.
 *
 * Sleep. Neighbours ring the doorbell only of a rank that has declared that it sleeps. arm() and
 * rearm() declare so and then look at all rings once more; poll() takes it back. A message that
 * found no room waits in the queue and goes on in poll(); a rank that sleeps meanwhile has set
 * is_awaited in that ring, and the reader that makes room rings. In both cases the sleeper arms its
 * mailbox first and then declares what it waits for, so a neighbour that sees the second also sees
 * the first.
 */
#include "runtime/transport/transport.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/transport/mailbox.h"

#define CLOSE_STEP_MS 5 /* longest sleep in close(), should an event be missed */

/* Polling lower is a system call. While it carries no messages and only reports deaths, every 16th
 * poll does so. */
#define LOWER_EVERY 16

/* A message that waits for the greeting, or for room in the ring. */
typedef struct outgoing {
    struct outgoing *next;
    size_t bytes;
    size_t done; /* as dp_ring_write() left it */
    uint8_t data[];
} outgoing_t;

typedef struct shm_peer {
    int rank;
    dp_mailbox_t *mailbox; /* that rank's, where this one writes; NULL: lower carries this edge */
    dp_ring_writer_t out;  /* this rank's ring in that mailbox */
    dp_ring_reader_t in;   /* that rank's ring in this one's mailbox */
    outgoing_t *queue;     /* waits to be sent, oldest first */
    outgoing_t **queue_end;
    int has_greeted;    /* its greeting has come over lower */
    int is_send_closed; /* it reads nothing any more: what is sent to it is dropped */
    int is_lost;        /* found out, and still to be reported behind its last messages */
    int is_reported;    /* PEER_LOST was returned: nothing of it is read any more */
    char text[160];     /* how it was lost */
} shm_peer_t;

typedef struct shm {
    dp_transport_t base;
    dp_transport_t *lower; /* owned */
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_mailbox_t *mailbox; /* this rank's; NULL: lower carries everything */
    int fd;                /* epoll over lower's and the doorbell; -1: lower's fd shows both */
    int next;              /* index of the peer that poll() looks at first */
    int lower_edges;       /* neighbours, on any node, whose messages may come over lower */
    unsigned polls_since_lower;
    int is_armed; /* the mailbox declares that this rank sleeps */
    int is_closed;
    int peer_count;
    shm_peer_t peers[]; /* on this node; those on others are lower's alone */
} shm_t;

static shm_peer_t *find_peer(shm_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

/* ---- Loss ----------------------------------------------------------------------------------- */

static void mark_lost(shm_peer_t *peer, const char *text)
{
    if (peer->is_lost) return;
    peer->is_lost = 1;
    snprintf(peer->text, sizeof(peer->text), "%s", text);
}

/* The process lives, so messages to it still go out: they say why this rank gives it up. */
static void mark_damaged(shm_t *self, shm_peer_t *peer)
{
    if (!peer->is_lost)
        dp_log_error(&self->log, "the control ring of rank %d is damaged", peer->rank);
    mark_lost(peer, "its control ring is damaged");
}

static void shm_drop_queue(shm_peer_t *peer)
{
    while (peer->queue != NULL) {
        outgoing_t *outgoing = peer->queue;

        peer->queue = outgoing->next;
        free(outgoing);
    }
    peer->queue_end = &peer->queue;
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Writes what is queued as far as there is room. Wakes the reader once, behind the last message. */
static void flush_outgoing(shm_t *self, shm_peer_t *peer)
{
    dp_status_t status = DP_OK;

    if (peer->queue == NULL || !peer->has_greeted) return;
    if (dp_mailbox_is_closed(peer->mailbox)) peer->is_send_closed = 1;
    while (peer->queue != NULL && !peer->is_send_closed && status == DP_OK) {
        outgoing_t *outgoing = peer->queue;

        status = dp_ring_write(&peer->out, outgoing->data, outgoing->bytes, &outgoing->done);
        if (status != DP_OK) break;
        peer->queue = outgoing->next;
        if (peer->queue == NULL) peer->queue_end = &peer->queue;
        free(outgoing);
    }
    if (status == DP_ERR_SYSTEM) {
        mark_damaged(self, peer);
        peer->is_send_closed = 1;
    }
    if (peer->is_send_closed) shm_drop_queue(peer);
    dp_mailbox_wake(peer->mailbox);
}

static dp_status_t shm_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    shm_t *self = (shm_t *)base;
    shm_peer_t *peer = find_peer(self, rank);
    outgoing_t *outgoing;
    size_t done = 0;

    if (peer == NULL || peer->mailbox == NULL)
        return self->lower->ops->send(self->lower, rank, data, bytes);
    if (bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    if (self->is_closed || peer->is_send_closed) return DP_OK;
    if (peer->has_greeted && peer->queue == NULL && dp_ring_fits(&peer->out, bytes)) {
        (void)dp_ring_write(&peer->out, data, bytes, &done); /* whole */
        dp_mailbox_wake(peer->mailbox);
        return DP_OK;
    }
    /* A message goes out whole or not at all, so memory for it is found before its first byte is
     * written. */
    outgoing = malloc(sizeof(*outgoing) + bytes);
    if (outgoing == NULL) return DP_ERR_NO_MEMORY;
    *outgoing = (outgoing_t){.bytes = bytes};
    if (bytes > 0) memcpy(outgoing->data, data, bytes);
    *peer->queue_end = outgoing;
    peer->queue_end = &outgoing->next;
    flush_outgoing(self, peer);
    return DP_OK;
}

/* ---- Receiving ------------------------------------------------------------------------------ */

/* 1: *out is a message of one neighbour, or its loss. */
static int poll_peer(shm_t *self, shm_peer_t *peer, dp_transport_event_t *out)
{
    dp_status_t status = DP_ERR_PENDING;
    int must_wake = 0;

    if (peer->is_reported) return 0;
    if (peer->mailbox != NULL) status = dp_ring_read(&peer->in, &must_wake);
    if (must_wake) dp_mailbox_wake(peer->mailbox);
    if (status == DP_OK) {
        *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                      .rank = peer->rank,
                                      .data = peer->in.data,
                                      .bytes = peer->in.bytes};
        return 1;
    }
    if (status == DP_ERR_NO_MEMORY) mark_lost(peer, "a message from it was lost (out of memory)");
    if (status == DP_ERR_SYSTEM) mark_damaged(self, peer);
    if (!peer->is_lost) return 0;
    /* Only now, as the ring is empty: all that the rank wrote before it died has been delivered. */
    peer->is_reported = 1;
    *out = (dp_transport_event_t){
        .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
    return 1;
}

/* Looks at all neighbours, beginning behind the one that had something last: a busy one must not
 * starve the others. */
static int poll_peers(shm_t *self, dp_transport_event_t *out)
{
    for (int i = 0; i < self->peer_count; i++) {
        const int place = (self->next + i) % self->peer_count;

        if (!poll_peer(self, &self->peers[place], out)) continue;
        self->next = place + 1;
        return 1;
    }
    return 0;
}

/* One of the two could not open the other's mailbox: lower carries both directions. Nothing was
 * written to the ring yet, so sending the queue over lower keeps the order. */
static void fall_back(shm_t *self, shm_peer_t *peer)
{
    for (const outgoing_t *outgoing = peer->queue; outgoing != NULL; outgoing = outgoing->next) {
        if (self->lower->ops->send(self->lower, peer->rank, outgoing->data, outgoing->bytes) !=
            DP_OK)
            mark_lost(peer, "a message to it was lost (out of memory)");
    }
    shm_drop_queue(peer);
    dp_mailbox_destroy(peer->mailbox);
    peer->mailbox = NULL;
}

/* The neighbour's first message over lower: 1: it has opened this rank's mailbox; 0: it could not.
 */
static void handle_greeting(shm_t *self, shm_peer_t *peer, const dp_transport_event_t *event)
{
    const uint8_t *flag = event->data;

    peer->has_greeted = 1;
    if (event->bytes != 1 || flag[0] > 1) {
        mark_lost(peer, "its first message makes no sense");
    } else if (peer->mailbox != NULL && flag[0] == 1) {
        self->lower_edges--;
        flush_outgoing(self, peer);
    } else {
        fall_back(self, peer);
    }
}

/* An event of lower. 1: it is the caller's; 0: it was a greeting, or a loss that poll_peer()
 * reports behind the neighbour's last messages. */
static int handle_lower_event(shm_t *self, const dp_transport_event_t *event)
{
    shm_peer_t *peer = find_peer(self, event->rank);

    if (peer == NULL) return 1;
    if (event->kind == DP_TRANSPORT_PEER_LOST) {
        mark_lost(peer, event->text);
        peer->is_send_closed = 1;
        shm_drop_queue(peer);
        return 0;
    }
    if (peer->has_greeted) return !peer->is_reported;
    handle_greeting(self, peer, event);
    return 0;
}

static int shm_poll_lower(shm_t *self, dp_transport_event_t *out)
{
    self->polls_since_lower = 0;
    while (self->lower->ops->poll(self->lower, out) == DP_OK) {
        if (handle_lower_event(self, out)) return 1;
    }
    return 0;
}

/* This rank polls: it finds messages without the doorbell from now on. */
static void disarm_mailbox(shm_t *self)
{
    if (!self->is_armed) return;
    self->is_armed = 0;
    dp_mailbox_disarm(self->mailbox);
}

static dp_status_t shm_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    shm_t *self = (shm_t *)base;

    disarm_mailbox(self);
    for (int i = 0; i < self->peer_count; i++)
        flush_outgoing(self, &self->peers[i]);
    self->polls_since_lower++;
    if (self->polls_since_lower < LOWER_EVERY && poll_peers(self, out)) return DP_OK;
    if ((self->lower_edges > 0 || self->polls_since_lower >= LOWER_EVERY) &&
        shm_poll_lower(self, out))
        return DP_OK;
    return poll_peers(self, out) ? DP_OK : DP_ERR_PENDING;
}

static void shm_give_up(dp_transport_t *base, int rank)
{
    shm_t *self = (shm_t *)base;

    if (self->lower->ops->give_up != NULL) self->lower->ops->give_up(self->lower, rank);
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

static int shm_fd(const dp_transport_t *base)
{
    const shm_t *self = (const shm_t *)base;

    return self->fd < 0 ? self->lower->ops->fd(self->lower) : self->fd;
}

/* Whether this rank must not sleep because of a neighbour. Called after dp_mailbox_arm(), see
 * ring.c for why that order matters. */
static int has_work(shm_peer_t *peer)
{
    if (!peer->is_reported && (peer->is_lost || (peer->mailbox != NULL && dp_ring_has(&peer->in))))
        return 1;
    if (peer->queue == NULL || !peer->has_greeted) return 0; /* lower wakes it for the greeting */
    return dp_ring_await(&peer->out);
}

static dp_status_t arm_mailbox(shm_t *self)
{
    self->polls_since_lower = LOWER_EVERY; /* the next poll asks lower: it may end the sleep */
    if (self->mailbox == NULL) return DP_OK;
    self->is_armed = 1;
    dp_mailbox_arm(self->mailbox);
    for (int i = 0; i < self->peer_count; i++) {
        if (!has_work(&self->peers[i])) continue;
        disarm_mailbox(self);
        return DP_ERR_PENDING;
    }
    return DP_OK;
}

static dp_status_t shm_arm(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;
    dp_status_t status;

    /* Before the rings are looked at: a doorbell cleared later could be the one for a message that
     * came after the look. */
    if (self->mailbox != NULL) dp_mailbox_clear_doorbell(self->mailbox);
    status = arm_mailbox(self);
    if (status == DP_OK) status = self->lower->ops->arm(self->lower);
    if (status != DP_OK) disarm_mailbox(self);
    return status;
}

/* The doorbell is not cleared: another thread sleeps on it and may not have woken yet. */
static dp_status_t shm_rearm(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;
    dp_status_t status = arm_mailbox(self);

    if (status == DP_OK) status = self->lower->ops->rearm(self->lower);
    if (status != DP_OK) disarm_mailbox(self);
    return status;
}

static void shm_wake(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;

    self->lower->ops->wake(self->lower);
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* One byte with the length of the mailbox's address, that address, lower's address. */
static dp_status_t shm_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    shm_t *self = (shm_t *)base;
    const size_t own = self->mailbox == NULL ? 0 : DP_MAILBOX_ADDRESS;
    uint8_t *at = data;
    size_t lower_bytes;
    dp_status_t status;

    if (room < 1 + own) return DP_ERR_INVALID;
    at[0] = (uint8_t)own;
    if (own > 0) dp_mailbox_address(self->mailbox, at + 1);
    status = self->lower->ops->address(self->lower, at + 1 + own, room - 1 - own, &lower_bytes);
    if (status == DP_OK) *bytes = 1 + own + lower_bytes;
    return status;
}

/* Opens the neighbour's mailbox, to write there. A rank without a mailbox of its own does not: it
 * could not be woken when there is room again. */
static void open_peer_mailbox(shm_t *self, shm_peer_t *peer, const uint8_t *address)
{
    dp_error_t error = {DP_OK, ""};

    if (self->mailbox == NULL) return;
    if (dp_mailbox_open(address, peer->rank, self->rank, self->tag, &peer->mailbox, &error) !=
        DP_OK) {
        dp_log_info(&self->log, "messages to rank %d go over %s: no way to its memory: %s",
                    peer->rank, self->lower->ops->name, error.text);
        return;
    }
    dp_ring_writer_init(&peer->out, dp_mailbox_ring(peer->mailbox, self->rank));
}

static void close_peer_mailboxes(shm_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        shm_drop_queue(&self->peers[i]);
        dp_mailbox_destroy(self->peers[i].mailbox);
        self->peers[i].mailbox = NULL;
    }
}

/* Tells each neighbour on this node whether this rank could open its mailbox. */
static dp_status_t send_greetings(shm_t *self, const int *ranks, int count)
{
    dp_status_t status = DP_OK;

    for (int i = 0; status == DP_OK && i < count; i++) {
        const shm_peer_t *peer = find_peer(self, ranks[i]);
        const uint8_t flag = peer != NULL && peer->mailbox != NULL;

        if (peer != NULL) status = self->lower->ops->send(self->lower, peer->rank, &flag, 1);
    }
    return status;
}

static dp_status_t connect_all(shm_t *self, const int *ranks, const uint8_t *const *addresses,
                               const size_t *bytes, int count, const void **lower_addresses,
                               size_t *lower_bytes, dp_error_t *error)
{
    dp_status_t status;

    for (int i = 0; i < count; i++) {
        const size_t own = bytes[i] == 0 ? 1 : addresses[i][0];
        shm_peer_t *peer = find_peer(self, ranks[i]);

        if (bytes[i] < 1 + own || (own != 0 && own != DP_MAILBOX_ADDRESS)) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d makes no sense", self->rank,
                                ranks[i]);
        }
        lower_addresses[i] = addresses[i] + 1 + own;
        lower_bytes[i] = bytes[i] - 1 - own;
        if (peer != NULL && peer->mailbox == NULL && own > 0)
            open_peer_mailbox(self, peer, addresses[i] + 1);
    }
    status =
        self->lower->ops->connect(self->lower, ranks, lower_addresses, lower_bytes, count, error);
    if (status != DP_OK) return status;
    self->lower_edges = count;
    status = send_greetings(self, ranks, count);
    if (status == DP_OK) return DP_OK;
    return dp_error_set(error, status, "rank %d: no memory for a first message", self->rank);
}

static dp_status_t shm_connect(dp_transport_t *base, const int *ranks, const void *const *addresses,
                               const size_t *bytes, int count, dp_error_t *error)
{
    shm_t *self = (shm_t *)base;
    const void **lower_addresses = calloc((size_t)count + 1, sizeof(*lower_addresses));
    size_t *lower_bytes = calloc((size_t)count + 1, sizeof(*lower_bytes));
    dp_status_t status;

    if (lower_addresses == NULL || lower_bytes == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                              self->rank, count);
    } else {
        status = connect_all(self, ranks, (const uint8_t *const *)addresses, bytes, count,
                             lower_addresses, lower_bytes, error);
    }
    if (status != DP_OK) close_peer_mailboxes(self);
    free(lower_bytes);
    free(lower_addresses);
    return status;
}

static int shm_has_queued(const shm_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].queue != NULL) return 1;
    }
    return 0;
}

/* Writes the queues out, within the deadline: a message in a neighbour's ring is read even if this
 * process ends. Messages that arrive are dropped, so that two ranks with full rings do not wait for
 * each other. */
static void shm_flush_all(shm_t *self, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = shm_fd(&self->base), .events = POLLIN};
        dp_transport_event_t event;

        while (shm_poll(&self->base, &event) == DP_OK) {
        }
        if (!shm_has_queued(self) || dp_now_ns() >= deadline_ns) return;
        if (shm_arm(&self->base) == DP_OK) (void)poll(&wait, 1, CLOSE_STEP_MS);
    }
}

static void shm_close(dp_transport_t *base, uint64_t deadline_ns)
{
    shm_t *self = (shm_t *)base;

    if (self->is_closed) return;
    shm_flush_all(self, deadline_ns);
    self->is_closed = 1;
    /* A neighbour with more for this rank than the ring holds must not wait for room. */
    if (self->mailbox != NULL) dp_mailbox_close(self->mailbox);
    self->lower->ops->close(self->lower, deadline_ns);
}

static void shm_destroy(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;

    dp_transport_destroy(self->lower);
    close_peer_mailboxes(self);
    for (int i = 0; i < self->peer_count; i++)
        dp_ring_reader_fini(&self->peers[i].in);
    dp_mailbox_destroy(self->mailbox);
    if (self->fd >= 0) close(self->fd);
    free(self);
}

/* Makes one descriptor that shows both the doorbell and lower's events: lower's own, if it can
 * watch another one, as few epolls may be nested. */
static int open_fd(shm_t *self)
{
    const int fds[] = {self->lower->ops->fd(self->lower), dp_mailbox_fd(self->mailbox)};

    if (self->lower->ops->watch != NULL) return self->lower->ops->watch(self->lower, fds[1]);
    self->fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->fd < 0) return -1;
    for (size_t i = 0; i < DP_ARRAY_LEN(fds); i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};

        if (epoll_ctl(self->fd, EPOLL_CTL_ADD, fds[i], &event) != 0) return -1;
    }
    return 0;
}

/* Makes this rank's mailbox. Where that fails lower carries everything, which is no error. */
static dp_status_t open_own_mailbox(shm_t *self, const int *ranks, int count)
{
    dp_error_t error = {DP_OK, ""};
    dp_status_t status =
        dp_mailbox_create(self->rank, self->tag, ranks, count, &self->mailbox, &error);

    if (status == DP_OK && open_fd(self) != 0) {
        status = dp_error_set(&error, DP_ERR_SYSTEM, "no epoll: %s", strerror(errno));
        dp_mailbox_destroy(self->mailbox);
        self->mailbox = NULL;
        if (self->fd >= 0) close(self->fd);
        self->fd = -1;
    }
    if (status != DP_OK) {
        dp_log_info(&self->log, "control messages of this node go over %s: %s",
                    self->lower->ops->name, error.text);
        return DP_OK;
    }
    for (int i = 0; status == DP_OK && i < count; i++) {
        status = dp_ring_reader_init(&self->peers[i].in, dp_mailbox_ring(self->mailbox, ranks[i]));
    }
    return status;
}

dp_status_t dp_transport_shm_create(int rank, uint64_t tag, const int *ranks, int count,
                                    dp_transport_t *lower, const dp_log_t *log,
                                    dp_transport_t **out, dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "shm",
        .address = shm_address,
        .connect = shm_connect,
        .send = shm_send,
        .poll = shm_poll,
        .give_up = shm_give_up,
        .fd = shm_fd,
        .arm = shm_arm,
        .rearm = shm_rearm,
        .wake = shm_wake,
        .close = shm_close,
        .destroy = shm_destroy,
    };
    shm_t *self = calloc(1, sizeof(*self) + (size_t)count * sizeof(self->peers[0]));
    dp_status_t status = DP_OK;

    if (self == NULL) {
        dp_transport_destroy(lower);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    }
    self->base.ops = &ops;
    self->lower = lower;
    self->rank = rank;
    self->tag = tag;
    self->fd = -1;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    for (; self->peer_count < count; self->peer_count++) {
        shm_peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->queue_end = &peer->queue;
    }
    if (count > 0) status = open_own_mailbox(self, ranks, count);
    if (status != DP_OK) {
        shm_destroy(&self->base);
        return dp_error_set(error, status, "rank %d: no memory for %d neighbours", rank, count);
    }
    *out = &self->base;
    return DP_OK;
}
