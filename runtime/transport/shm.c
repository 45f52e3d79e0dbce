/*
 * shm.c - the transport that carries control messages between neighbours on one node through shared
 * memory, and everything else over the transport below it, called lower.
 *
 * Called through the ops table by the thread that owns the transport: the coordinator's, or one
 * that waits in its stead. Only wake() may be called by others. It must not know what messages
 * mean.
 *
 * Each rank has a mailbox (mailbox.h) and gives its descriptors to its neighbours over UNIX sockets
 * (near.h), which also show a death: a ring cannot tell that its writer is gone, a socket can.
 *
 *     connect()            the other's descriptors arrive
 *     +----------------+                          +------------------------------+
 *     | messages wait  | -----------------------> | rings: send, poll, wake-ups  |
 *     +----------------+                          +------------------------------+
 *             | the socket shows a death, or the ring is damaged  | likewise
 *             v                                                   v
 *     lost: what the rank had written before lies in this rank's memory and is delivered first
 *
 *     outer (fd(), others sleep on it) --+-- wake: eventfd
 *                                        +-- doorbell
 *                                        +-- lower's descriptors
 *                                        +-- near: epoll over sockets and processes
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
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/transport/frame.h"
#include "runtime/transport/mailbox.h"
#include "runtime/transport/near.h"

#define CLOSE_STEP_MS 5 /* longest sleep in close(), should an event be missed */

/* Looking at the sockets is a system call. Once all mailboxes have come they only report deaths,
 * and every 16th poll looks. */
#define LOOK_EVERY 16

_Static_assert(DP_NEAR_FILES == DP_MAILBOX_FILES, "what neighbours give each other is a mailbox");

/* A message that waits for the neighbour's mailbox, or for room in the ring. */
typedef struct outgoing {
    struct outgoing *next;
    size_t bytes;
    size_t done; /* as dp_ring_write() left it */
    uint8_t data[];
} outgoing_t;

typedef struct shm_peer {
    int rank;
    dp_mailbox_t *mailbox; /* that rank's, where this one writes; NULL: it has yet to come */
    dp_ring_writer_t out;  /* this rank's ring in that mailbox */
    dp_ring_reader_t in;   /* that rank's ring in this one's mailbox */
    outgoing_t *queue;     /* waits to be sent, oldest first */
    outgoing_t **queue_end;
    int is_send_closed; /* it reads nothing any more: what is sent to it is dropped */
    int is_lost;        /* found out, and still to be reported behind its last messages */
    int is_reported;    /* PEER_LOST was returned: nothing of it is read any more */
    char text[160];     /* how it was lost */
} shm_peer_t;

typedef struct shm {
    dp_transport_t base;
    dp_transport_t *lower; /* owned; NULL: all neighbours are on this node */
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_mailbox_t *mailbox; /* this rank's; NULL: no neighbour is on this node, likewise near */
    dp_near_t *near;
    int wake;    /* eventfd of wake() */
    int outer;   /* epoll, see above */
    int next;    /* index of the peer that poll() looks at first */
    int awaited; /* neighbours on this node whose mailbox has not come, and may */
    unsigned polls_since_look;
    int lower_first; /* poll() asks lower first every other time, so neither side starves */
    int is_armed;    /* the mailbox declares that this rank sleeps */
    int is_connected;
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

    if (peer->queue == NULL || peer->mailbox == NULL) return;
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

    if (peer == NULL && self->lower != NULL)
        return self->lower->ops->send(self->lower, rank, data, bytes);
    if (peer == NULL || !self->is_connected || bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    if (self->is_closed || peer->is_send_closed) return DP_OK;
    if (peer->mailbox != NULL && peer->queue == NULL && dp_ring_fits(&peer->out, bytes)) {
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
    dp_status_t status;
    int must_wake = 0;

    if (peer->is_reported) return 0;
    status = dp_ring_read(&peer->in, &must_wake);
    if (must_wake && peer->mailbox != NULL) dp_mailbox_wake(peer->mailbox);
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

/* Opens the neighbour's mailbox, to write there. */
static void open_peer_mailbox(shm_t *self, shm_peer_t *peer, const int *files)
{
    dp_error_t error = {DP_OK, ""};
    char text[128];

    self->awaited--;
    if (dp_mailbox_open(files, peer->rank, self->rank, self->tag, &peer->mailbox, &error) !=
        DP_OK) {
        snprintf(text, sizeof(text), "its memory cannot be used: %.90s", error.text);
        mark_lost(peer, text);
        peer->is_send_closed = 1;
        shm_drop_queue(peer);
        dp_near_drop(self->near, peer->rank);
        return;
    }
    dp_ring_writer_init(&peer->out, dp_mailbox_ring(peer->mailbox, self->rank));
    flush_outgoing(self, peer);
    dp_mailbox_wake(peer->mailbox); /* it may wait for room that this rank made meanwhile */
}

/* A loss is reported by poll_peer(), behind the neighbour's last messages. */
static void look_near(shm_t *self)
{
    dp_near_event_t event;

    self->polls_since_look = 0;
    while (dp_near_poll(self->near, &event)) {
        shm_peer_t *peer = find_peer(self, event.rank);

        if (event.lost == NULL) {
            open_peer_mailbox(self, peer, event.files);
            continue;
        }
        if (peer->mailbox == NULL && !peer->is_lost) self->awaited--;
        mark_lost(peer, event.lost);
        peer->is_send_closed = 1;
        shm_drop_queue(peer);
    }
}

/* This rank polls: it finds messages without the doorbell from now on. */
static void disarm_mailbox(shm_t *self)
{
    if (!self->is_armed) return;
    self->is_armed = 0;
    dp_mailbox_disarm(self->mailbox);
}

/* This node's neighbours. 1: *out is an event. */
static int poll_near(shm_t *self, dp_transport_event_t *out)
{
    if (self->near == NULL || !self->is_connected) return 0;
    for (int i = 0; i < self->peer_count; i++)
        flush_outgoing(self, &self->peers[i]);
    if (++self->polls_since_look < LOOK_EVERY && poll_peers(self, out)) return 1;
    if (self->awaited > 0 || self->polls_since_look >= LOOK_EVERY) look_near(self);
    return poll_peers(self, out);
}

static int poll_lower(shm_t *self, dp_transport_event_t *out)
{
    return self->lower != NULL && self->lower->ops->poll(self->lower, out) == DP_OK;
}

static dp_status_t shm_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    shm_t *self = (shm_t *)base;

    disarm_mailbox(self);
    self->lower_first = !self->lower_first;
    if (self->lower_first && poll_lower(self, out)) return DP_OK;
    if (poll_near(self, out)) return DP_OK;
    return !self->lower_first && poll_lower(self, out) ? DP_OK : DP_ERR_PENDING;
}

/* This node's neighbours have sockets that close and pidfds; there silence is no loss yet. */
static void shm_give_up(dp_transport_t *base, int rank)
{
    shm_t *self = (shm_t *)base;

    if (find_peer(self, rank) != NULL || self->lower == NULL) return;
    if (self->lower->ops->give_up != NULL) self->lower->ops->give_up(self->lower, rank);
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

static int shm_fd(const dp_transport_t *base)
{
    return ((const shm_t *)base)->outer;
}

/* Whether this rank must not sleep because of a neighbour. Called after dp_mailbox_arm(), see
 * ring.c for why that order matters. */
static int has_work(shm_peer_t *peer)
{
    if (!peer->is_reported && (peer->is_lost || dp_ring_has(&peer->in))) return 1;
    if (peer->queue == NULL || peer->mailbox == NULL) return 0; /* the socket wakes it for that */
    return dp_ring_await(&peer->out);
}

static dp_status_t arm_mailbox(shm_t *self)
{
    self->polls_since_look = LOOK_EVERY; /* the next poll looks at the sockets, too */
    if (self->mailbox == NULL) return DP_OK;
    if (dp_near_has_news(self->near)) return DP_ERR_PENDING;
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
    uint64_t wakes;
    dp_status_t status;

    /* A wake() since the last sleep: the caller polls once more and finds what it was woken for. */
    if (read(self->wake, &wakes, sizeof(wakes)) == (ssize_t)sizeof(wakes)) return DP_ERR_PENDING;
    /* Before the rings are looked at: a doorbell cleared later could be the one for a message that
     * came after the look. */
    if (self->mailbox != NULL) dp_mailbox_clear_doorbell(self->mailbox);
    status = arm_mailbox(self);
    if (status == DP_OK && self->lower != NULL) status = self->lower->ops->arm(self->lower);
    if (status != DP_OK) disarm_mailbox(self);
    return status;
}

/* The doorbell is not cleared: another thread sleeps on it and may not have woken yet. */
static dp_status_t shm_rearm(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;
    dp_status_t status = arm_mailbox(self);

    if (status == DP_OK && self->lower != NULL) status = self->lower->ops->rearm(self->lower);
    if (status != DP_OK) disarm_mailbox(self);
    return status;
}

static void shm_wake(dp_transport_t *base)
{
    static const uint64_t one = 1;

    while (write(((shm_t *)base)->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* One byte with the length of this node's address, that address, lower's address. */
static dp_status_t shm_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    shm_t *self = (shm_t *)base;
    const size_t own = self->near == NULL ? 0 : DP_PEER_SOCKET_ADDRESS;
    uint8_t *at = data;
    size_t more = 0;
    dp_status_t status = DP_OK;

    if (room < 1 + own) return DP_ERR_INVALID;
    at[0] = (uint8_t)own;
    if (own > 0) dp_near_address(self->near, at + 1);
    if (self->lower != NULL)
        status = self->lower->ops->address(self->lower, at + 1 + own, room - 1 - own, &more);
    if (status == DP_OK) *bytes = 1 + own + more;
    return status;
}

/* The ranks that the transport below is to connect to. */
typedef struct others {
    int *ranks;
    const void **addresses;
    size_t *bytes;
    int count;
} others_t;

/* Checks all addresses, and collects those of neighbours on other nodes. */
static dp_status_t find_others(shm_t *self, const int *ranks, const uint8_t *const *addresses,
                               const size_t *bytes, int count, others_t *others, dp_error_t *error)
{
    for (int i = 0; i < count; i++) {
        const size_t own = bytes[i] == 0 ? 1 : addresses[i][0];
        const int is_near = find_peer(self, ranks[i]) != NULL;

        if (bytes[i] < 1 + own || (own != 0 && own != DP_PEER_SOCKET_ADDRESS) ||
            (is_near && own == 0) || (!is_near && self->lower == NULL)) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d makes no sense", self->rank,
                                ranks[i]);
        }
        if (is_near) continue;
        others->ranks[others->count] = ranks[i];
        others->addresses[others->count] = addresses[i] + 1 + own;
        others->bytes[others->count++] = bytes[i] - 1 - own;
    }
    return DP_OK;
}

static dp_status_t connect_all(shm_t *self, const int *ranks, const uint8_t *const *addresses,
                               const size_t *bytes, int count, others_t *others, dp_error_t *error)
{
    dp_status_t status = find_others(self, ranks, addresses, bytes, count, others, error);

    if (status == DP_OK && self->lower != NULL) {
        status = self->lower->ops->connect(self->lower, others->ranks, others->addresses,
                                           others->bytes, others->count, error);
    }
    if (status != DP_OK) return status;
    self->is_connected = 1;
    for (int i = 0; i < count; i++) {
        if (find_peer(self, ranks[i]) == NULL) continue;
        self->awaited++;
        dp_near_connect(self->near, ranks[i], addresses[i] + 1);
    }
    return DP_OK;
}

static dp_status_t shm_connect(dp_transport_t *base, const int *ranks, const void *const *addresses,
                               const size_t *bytes, int count, dp_error_t *error)
{
    shm_t *self = (shm_t *)base;
    others_t others = {calloc((size_t)count + 1, sizeof(int)),
                       calloc((size_t)count + 1, sizeof(void *)),
                       calloc((size_t)count + 1, sizeof(size_t)), 0};
    dp_status_t status;

    if (self->is_connected || self->is_closed) {
        status = dp_error_set(error, DP_ERR_INVALID, "rank %d: connected twice", self->rank);
    } else if (others.ranks == NULL || others.addresses == NULL || others.bytes == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                              self->rank, count);
    } else {
        status = connect_all(self, ranks, (const uint8_t *const *)addresses, bytes, count, &others,
                             error);
    }
    free(others.bytes);
    free(others.addresses);
    free(others.ranks);
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
        struct pollfd wait = {.fd = self->outer, .events = POLLIN};
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
    if (self->near != NULL) dp_near_close(self->near, self->is_connected ? deadline_ns : 0);
    if (self->lower != NULL) self->lower->ops->close(self->lower, deadline_ns);
}

static void shm_destroy(dp_transport_t *base)
{
    shm_t *self = (shm_t *)base;

    dp_transport_destroy(self->lower);
    dp_near_destroy(self->near);
    for (int i = 0; i < self->peer_count; i++) {
        shm_drop_queue(&self->peers[i]);
        dp_mailbox_destroy(self->peers[i].mailbox);
        dp_ring_reader_fini(&self->peers[i].in);
    }
    dp_mailbox_destroy(self->mailbox);
    if (self->wake >= 0) close(self->wake);
    if (self->outer >= 0) close(self->outer);
    free(self);
}

static int watch(const shm_t *self, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(self->outer, EPOLL_CTL_ADD, fd, &event);
}

/* Makes the descriptor that others sleep on. -1 with errno. */
static int open_fds(shm_t *self)
{
    self->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    self->outer = epoll_create1(EPOLL_CLOEXEC);
    if (self->wake < 0 || self->outer < 0 || watch(self, self->wake) != 0) return -1;
    if (self->mailbox != NULL && (watch(self, dp_mailbox_fd(self->mailbox)) != 0 ||
                                  watch(self, dp_near_fd(self->near)) != 0))
        return -1;
    if (self->lower == NULL) return 0;
    if (watch(self, self->lower->ops->fd(self->lower)) != 0) return -1;
    if (self->lower->ops->other_fd == NULL) return 0;
    return watch(self, self->lower->ops->other_fd(self->lower));
}

/* Makes this rank's mailbox, and the sockets over which neighbours get it. */
static dp_status_t open_mailbox(shm_t *self, const int *ranks, int count, dp_error_t *error)
{
    int files[DP_MAILBOX_FILES];
    dp_status_t status =
        dp_mailbox_create(self->rank, self->tag, ranks, count, &self->mailbox, error);

    for (int i = 0; status == DP_OK && i < count; i++) {
        status = dp_ring_reader_init(&self->peers[i].in, dp_mailbox_ring(self->mailbox, ranks[i]));
        if (status != DP_OK) dp_error_set(error, status, "no memory for %d neighbours", count);
    }
    if (status != DP_OK) return status;
    dp_mailbox_files(self->mailbox, files);
    return dp_near_create(self->rank, self->tag, ranks, count, files, &self->log, &self->near,
                          error);
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
    self->wake = self->outer = -1;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    for (; self->peer_count < count; self->peer_count++) {
        shm_peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->queue_end = &peer->queue;
    }
    if (count > 0) status = open_mailbox(self, ranks, count, error);
    if (status == DP_OK && open_fds(self) != 0)
        status = dp_error_set(error, DP_ERR_SYSTEM, "no epoll: %s", strerror(errno));
    if (status != DP_OK) {
        shm_destroy(&self->base);
        return status;
    }
    *out = &self->base;
    return DP_OK;
}
