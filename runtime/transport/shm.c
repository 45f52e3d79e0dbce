/*
 * near.c - control messages between neighbours on one host go through shared memory, everything
 * else over the transport that this one wraps, called far.
 *
 * Each neighbour writes into its own ring of this rank's dock (dock.h). All messages of an edge
 * take one way, so there is one order: the rings, where both could open the other's dock, else far.
 * The first message over far, a greeting, says whether the sender could. Until it has come what is
 * sent waits here, so that nothing goes the other way meanwhile. Far also shows a death. Whatever
 * the dead had written lies in memory of the living: it is delivered first.
 *
 * Sleep. A neighbour rings the bell only if this rank has said that it sleeps: arm() and rearm()
 * say so and then look at everything once more, poll() takes it back. What a full ring leaves over
 * waits here, and goes on in poll(); who sleeps meanwhile has told the ring, and the reader that
 * makes room rings. Both handshakes are Dekker's (dock.c, ring.c). In all of them the sleeper says
 * first that it sleeps and then what for, so a neighbour that sees the second sees the first.
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

#define CLOSE_STEP_MS 5 /* longest nap in close(), should an event be missed */

/* A look at far is a system call. Where it only tells deaths every so many polls have one, first.
 */
#define FAR_EVERY 16

/* A message that waits for room. */
typedef struct letter {
    struct letter *next;
    size_t bytes;
    size_t done; /* as dp_ring_write() left it */
    uint8_t data[];
} letter_t;

typedef struct peer {
    int rank;
    dp_mailbox_t *dock; /* its own, where this rank writes; NULL: far carries this edge */
    dp_ring_writer_t out;
    letter_t *first; /* what waits, oldest first */
    letter_t **last;
    dp_ring_reader_t in;
    int has_greeted; /* over far */
    int is_deaf;     /* nothing is sent to it any more */
    int is_lost;
    int is_told;    /* and the owner knows: nothing of it is read any more */
    char text[160]; /* how it was lost */
} peer_t;

typedef struct near {
    dp_transport_t base;
    dp_transport_t *far; /* owned */
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_mailbox_t *dock; /* this rank's; NULL: far carries everything */
    int fd;             /* far's and the bell; -1: far's shows both */
    int next;           /* of peers, that poll() looks at first */
    int talkers;        /* edges that far carries, or may */
    unsigned skipped;   /* polls without a look at far */
    int is_down;        /* the dock says that this rank sleeps */
    int is_closed;
    int peer_count;
    peer_t peers[]; /* on this host */
} near_t;

static peer_t *find_peer(near_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

/* ---- Loss --------------------------------------------------------------------------------- */

static void lose(peer_t *peer, const char *text)
{
    if (peer->is_lost) return;
    peer->is_lost = 1;
    snprintf(peer->text, sizeof(peer->text), "%s", text);
}

/* The process lives, so it can still be told why this rank gives it up: what is sent goes out. */
static void lose_damaged(near_t *self, peer_t *peer)
{
    if (!peer->is_lost)
        dp_log_error(&self->log, "the control ring of rank %d is damaged", peer->rank);
    lose(peer, "its control ring is damaged");
}

static void drop_letters(peer_t *peer)
{
    while (peer->first != NULL) {
        letter_t *letter = peer->first;

        peer->first = letter->next;
        free(letter);
    }
    peer->last = &peer->first;
}

/* ---- Sending ------------------------------------------------------------------------------ */

/* Goes on with what waits for room. */
static void pump(near_t *self, peer_t *peer)
{
    dp_status_t status = DP_OK;

    if (peer->first == NULL || !peer->has_greeted) return;
    if (dp_mailbox_is_closed(peer->dock)) peer->is_deaf = 1;
    while (peer->first != NULL && !peer->is_deaf && status == DP_OK) {
        letter_t *letter = peer->first;

        status = dp_ring_write(&peer->out, letter->data, letter->bytes, &letter->done);
        if (status != DP_OK) break;
        peer->first = letter->next;
        if (peer->first == NULL) peer->last = &peer->first;
        free(letter);
    }
    if (status == DP_ERR_SYSTEM) {
        lose_damaged(self, peer);
        peer->is_deaf = 1;
    }
    if (peer->is_deaf) drop_letters(peer);
    dp_mailbox_wake(peer->dock);
}

static dp_status_t near_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    near_t *self = (near_t *)base;
    peer_t *peer = find_peer(self, rank);
    letter_t *letter;
    size_t done = 0;

    if (peer == NULL || peer->dock == NULL)
        return self->far->ops->send(self->far, rank, data, bytes);
    if (bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    if (self->is_closed || peer->is_deaf) return DP_OK;
    if (peer->has_greeted && peer->first == NULL && dp_ring_fits(&peer->out, bytes)) {
        (void)dp_ring_write(&peer->out, data, bytes, &done); /* whole */
        dp_mailbox_wake(peer->dock);
        return DP_OK;
    }
    /* Whole or not at all: memory runs out before a byte is written. */
    letter = malloc(sizeof(*letter) + bytes);
    if (letter == NULL) return DP_ERR_NO_MEMORY;
    *letter = (letter_t){.bytes = bytes};
    if (bytes > 0) memcpy(letter->data, data, bytes);
    *peer->last = letter;
    peer->last = &letter->next;
    pump(self, peer);
    return DP_OK;
}

/* ---- Receiving ---------------------------------------------------------------------------- */

/* Looks at one neighbour. 1: *out is a message of its, or its loss. */
static int look_at(near_t *self, peer_t *peer, dp_transport_event_t *out)
{
    dp_status_t status = DP_ERR_AGAIN;
    int frees = 0;

    if (peer->is_told) return 0;
    if (peer->dock != NULL) status = dp_ring_read(&peer->in, &frees);
    if (frees) dp_mailbox_wake(peer->dock);
    if (status == DP_OK) {
        *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                      .rank = peer->rank,
                                      .data = peer->in.data,
                                      .bytes = peer->in.bytes};
        return 1;
    }
    if (status == DP_ERR_NO_MEMORY) lose(peer, "a message from it was lost (out of memory)");
    if (status == DP_ERR_SYSTEM) lose_damaged(self, peer);
    if (!peer->is_lost) return 0;
    /* After its messages: what it said before it died still counts. */
    peer->is_told = 1;
    *out = (dp_transport_event_t){
        .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
    return 1;
}

/* Looks at all, beginning behind the one that had something last. */
static int look_around(near_t *self, dp_transport_event_t *out)
{
    for (int i = 0; i < self->peer_count; i++) {
        const int place = (self->next + i) % self->peer_count;

        if (!look_at(self, &self->peers[place], out)) continue;
        self->next = place + 1;
        return 1;
    }
    return 0;
}

/* The neighbour has no way to this rank's memory: far carries both directions. */
static void go_far(near_t *self, peer_t *peer)
{
    for (const letter_t *letter = peer->first; letter != NULL; letter = letter->next) {
        if (self->far->ops->send(self->far, peer->rank, letter->data, letter->bytes) != DP_OK)
            lose(peer, "a message to it was lost (out of memory)");
    }
    drop_letters(peer);
    dp_mailbox_destroy(peer->dock);
    peer->dock = NULL;
}

static void take_greeting(near_t *self, peer_t *peer, const dp_transport_event_t *event)
{
    const uint8_t *word = event->data;

    peer->has_greeted = 1;
    if (event->bytes != 1 || word[0] > 1) {
        lose(peer, "its first message makes no sense");
    } else if (peer->dock != NULL && word[0] == 1) {
        self->talkers--;
        pump(self, peer);
    } else {
        go_far(self, peer);
    }
}

/* What came over far. 1: it is for the owner. */
static int take_far(near_t *self, const dp_transport_event_t *event)
{
    peer_t *peer = find_peer(self, event->rank);

    if (peer == NULL) return 1;
    if (event->kind == DP_TRANSPORT_PEER_LOST) {
        lose(peer, event->text);
        peer->is_deaf = 1;
        drop_letters(peer);
        return 0;
    }
    if (peer->has_greeted) return !peer->is_told;
    take_greeting(self, peer, event);
    return 0;
}

static int look_far(near_t *self, dp_transport_event_t *out)
{
    self->skipped = 0;
    while (self->far->ops->poll(self->far, out) == DP_OK) {
        if (take_far(self, out)) return 1;
    }
    return 0;
}

/* This rank is awake: what comes from now on is found without a bell. */
static void get_up(near_t *self)
{
    if (!self->is_down) return;
    self->is_down = 0;
    dp_mailbox_disarm(self->dock);
}

static dp_status_t near_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    near_t *self = (near_t *)base;

    get_up(self);
    for (int i = 0; i < self->peer_count; i++)
        pump(self, &self->peers[i]);
    self->skipped++;
    if (self->skipped < FAR_EVERY && look_around(self, out)) return DP_OK;
    if ((self->talkers > 0 || self->skipped >= FAR_EVERY) && look_far(self, out)) return DP_OK;
    return look_around(self, out) ? DP_OK : DP_ERR_AGAIN;
}

/* ---- Sleeping ----------------------------------------------------------------------------- */

static int near_fd(const dp_transport_t *base)
{
    const near_t *self = (const near_t *)base;

    return self->fd < 0 ? self->far->ops->fd(self->far) : self->fd;
}

/* Whether there is something to do about a neighbour, after it was said that this rank sleeps. */
static int must_stay(peer_t *peer)
{
    if (!peer->is_told && (peer->is_lost || (peer->dock != NULL && dp_ring_has(&peer->in))))
        return 1;
    if (peer->first == NULL || !peer->has_greeted) return 0; /* its greeting will wake this rank */
    return dp_ring_await(&peer->out);
}

static dp_status_t lie_down(near_t *self)
{
    self->skipped = FAR_EVERY; /* who wakes may have been woken by far */
    if (self->dock == NULL) return DP_OK;
    self->is_down = 1;
    dp_mailbox_arm(self->dock);
    for (int i = 0; i < self->peer_count; i++) {
        if (!must_stay(&self->peers[i])) continue;
        get_up(self);
        return DP_ERR_AGAIN;
    }
    return DP_OK;
}

static dp_status_t near_arm(dp_transport_t *base)
{
    near_t *self = (near_t *)base;
    dp_status_t status;

    /* Before the look at the rings: who rings from here on does so for the coming sleep. */
    if (self->dock != NULL) dp_mailbox_clear_doorbell(self->dock);
    status = lie_down(self);
    if (status == DP_OK) status = self->far->ops->arm(self->far);
    if (status != DP_OK) get_up(self);
    return status;
}

/* The bell is left as it is: who sleeps on it may not have heard it yet. */
static dp_status_t near_rearm(dp_transport_t *base)
{
    near_t *self = (near_t *)base;
    dp_status_t status = lie_down(self);

    if (status == DP_OK) status = self->far->ops->rearm(self->far);
    if (status != DP_OK) get_up(self);
    return status;
}

static void near_wake(dp_transport_t *base)
{
    near_t *self = (near_t *)base;

    self->far->ops->wake(self->far);
}

/* ---- Opening and closing ------------------------------------------------------------------ */

/* One byte: how much of the dock's address follows; then far's. */
static dp_status_t near_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    near_t *self = (near_t *)base;
    const size_t own = self->dock == NULL ? 0 : DP_MAILBOX_ADDRESS;
    uint8_t *at = data;
    size_t far_bytes;
    dp_status_t status;

    if (room < 1 + own) return DP_ERR_INVALID;
    at[0] = (uint8_t)own;
    if (own > 0) dp_mailbox_address(self->dock, at + 1);
    status = self->far->ops->address(self->far, at + 1 + own, room - 1 - own, &far_bytes);
    if (status == DP_OK) *bytes = 1 + own + far_bytes;
    return status;
}

/* Opens the neighbour's dock, to write there. Without one of its own this rank could not be told
 * that there is room again. */
static void open_dock(near_t *self, peer_t *peer, const uint8_t *address)
{
    dp_error_t error = {DP_OK, ""};

    if (self->dock == NULL) return;
    if (dp_mailbox_open(address, peer->rank, self->rank, self->tag, &peer->dock, &error) != DP_OK) {
        dp_log_info(&self->log, "messages to rank %d go over %s: no way to its memory: %s",
                    peer->rank, self->far->ops->name, error.text);
        return;
    }
    dp_ring_writer_init(&peer->out, dp_mailbox_ring(peer->dock, self->rank));
}

static void close_docks(near_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        drop_letters(&self->peers[i]);
        dp_mailbox_destroy(self->peers[i].dock);
        self->peers[i].dock = NULL;
    }
}

/* Tells each neighbour of this host which way messages to it go. */
static dp_status_t greet(near_t *self, const int *ranks, int count)
{
    dp_status_t status = DP_OK;

    for (int i = 0; status == DP_OK && i < count; i++) {
        const peer_t *peer = find_peer(self, ranks[i]);
        const uint8_t word = peer != NULL && peer->dock != NULL;

        if (peer != NULL) status = self->far->ops->send(self->far, peer->rank, &word, 1);
    }
    return status;
}

static dp_status_t connect_all(near_t *self, const int *ranks, const uint8_t *const *addresses,
                               const size_t *bytes, int count, const void **far_addresses,
                               size_t *far_bytes, dp_error_t *error)
{
    dp_status_t status;

    for (int i = 0; i < count; i++) {
        const size_t own = bytes[i] == 0 ? 1 : addresses[i][0];
        peer_t *peer = find_peer(self, ranks[i]);

        if (bytes[i] < 1 + own || (own != 0 && own != DP_MAILBOX_ADDRESS)) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d makes no sense", self->rank,
                                ranks[i]);
        }
        far_addresses[i] = addresses[i] + 1 + own;
        far_bytes[i] = bytes[i] - 1 - own;
        if (peer != NULL && peer->dock == NULL && own > 0) open_dock(self, peer, addresses[i] + 1);
    }
    status = self->far->ops->connect(self->far, ranks, far_addresses, far_bytes, count, error);
    if (status != DP_OK) return status;
    self->talkers = count;
    status = greet(self, ranks, count);
    if (status == DP_OK) return DP_OK;
    return dp_error_set(error, status, "rank %d: no memory for a first message", self->rank);
}

static dp_status_t near_connect(dp_transport_t *base, const int *ranks,
                                const void *const *addresses, const size_t *bytes, int count,
                                dp_error_t *error)
{
    near_t *self = (near_t *)base;
    const void **far_addresses = calloc((size_t)count + 1, sizeof(*far_addresses));
    size_t *far_bytes = calloc((size_t)count + 1, sizeof(*far_bytes));
    dp_status_t status;

    if (far_addresses == NULL || far_bytes == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                              self->rank, count);
    } else {
        status = connect_all(self, ranks, (const uint8_t *const *)addresses, bytes, count,
                             far_addresses, far_bytes, error);
    }
    if (status != DP_OK) close_docks(self);
    free(far_bytes);
    free(far_addresses);
    return status;
}

static int has_letters(const near_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].first != NULL) return 1;
    }
    return 0;
}

/* What was sent lies in the neighbours' memory once it is written, however they end. What arrives
 * is dropped, so that two ranks with full rings do not wait for each other. */
static void deliver_rest(near_t *self, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = near_fd(&self->base), .events = POLLIN};
        dp_transport_event_t event;

        while (near_poll(&self->base, &event) == DP_OK) {
        }
        if (!has_letters(self) || dp_now_ns() >= deadline_ns) return;
        if (near_arm(&self->base) == DP_OK) (void)poll(&wait, 1, CLOSE_STEP_MS);
    }
}

static void near_close(dp_transport_t *base, uint64_t deadline_ns)
{
    near_t *self = (near_t *)base;

    if (self->is_closed) return;
    deliver_rest(self, deadline_ns);
    self->is_closed = 1;
    /* Who has more for this rank than its ring holds need not wait. */
    if (self->dock != NULL) dp_mailbox_close(self->dock);
    self->far->ops->close(self->far, deadline_ns);
}

static void near_destroy(dp_transport_t *base)
{
    near_t *self = (near_t *)base;

    dp_transport_destroy(self->far);
    close_docks(self);
    for (int i = 0; i < self->peer_count; i++)
        dp_ring_reader_fini(&self->peers[i].in);
    dp_mailbox_destroy(self->dock);
    if (self->fd >= 0) close(self->fd);
    free(self);
}

/* The bell and far's descriptor become one. */
static int open_fd(near_t *self)
{
    const int fds[] = {self->far->ops->fd(self->far), dp_mailbox_fd(self->dock)};

    if (self->far->ops->watch != NULL) return self->far->ops->watch(self->far, fds[1]);
    self->fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->fd < 0) return -1;
    for (size_t i = 0; i < DP_ARRAY_LEN(fds); i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};

        if (epoll_ctl(self->fd, EPOLL_CTL_ADD, fds[i], &event) != 0) return -1;
    }
    return 0;
}

/* Makes what neighbours need to write to this rank, or leaves everything to far. */
static dp_status_t open_own(near_t *self, const int *ranks, int count)
{
    dp_error_t error = {DP_OK, ""};
    dp_status_t status =
        dp_mailbox_create(self->rank, self->tag, ranks, count, &self->dock, &error);

    if (status == DP_OK && open_fd(self) != 0) {
        status = dp_error_set(&error, DP_ERR_SYSTEM, "no epoll: %s", strerror(errno));
        dp_mailbox_destroy(self->dock);
        self->dock = NULL;
        if (self->fd >= 0) close(self->fd);
        self->fd = -1;
    }
    if (status != DP_OK) {
        dp_log_info(&self->log, "control messages of this host go over %s: %s",
                    self->far->ops->name, error.text);
        return DP_OK;
    }
    for (int i = 0; status == DP_OK && i < count; i++) {
        status = dp_ring_reader_init(&self->peers[i].in, dp_mailbox_ring(self->dock, ranks[i]));
    }
    return status;
}

dp_status_t dp_transport_shm_create(int rank, uint64_t tag, const int *ranks, int count,
                                    dp_transport_t *far, const dp_log_t *log, dp_transport_t **out,
                                    dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "near",
        .address = near_address,
        .connect = near_connect,
        .send = near_send,
        .poll = near_poll,
        .fd = near_fd,
        .arm = near_arm,
        .rearm = near_rearm,
        .wake = near_wake,
        .close = near_close,
        .destroy = near_destroy,
    };
    near_t *self = calloc(1, sizeof(*self) + (size_t)count * sizeof(self->peers[0]));
    dp_status_t status = DP_OK;

    if (self == NULL) {
        dp_transport_destroy(far);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    }
    self->base.ops = &ops;
    self->far = far;
    self->rank = rank;
    self->tag = tag;
    self->fd = -1;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    for (; self->peer_count < count; self->peer_count++) {
        peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->last = &peer->first;
    }
    if (count > 0) status = open_own(self, ranks, count);
    if (status != DP_OK) {
        near_destroy(&self->base);
        return dp_error_set(error, status, "rank %d: no memory for %d neighbours", rank, count);
    }
    *out = &self->base;
    return DP_OK;
}
