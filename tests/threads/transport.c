/*
 * transport.c - the transport between ranks that are threads of one process.
 *
 * Called through the ops table by each rank's thread. Each rank has a port: a queue under a mutex,
 * and an eventfd that is written only while the rank sleeps or is about to. Neighbours hold
 * references to a port, so one whose owner is destroyed stays valid, but closed, until the last of
 * them lets go. An address is a pointer to the port: it may be used only while its transport lives.
 */
#include "tests/threads/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/transport/frame.h"

#define ADDRESS_MAGIC 0x64706c6f6f706261ull /* "dploopba" */

typedef struct address {
    uint64_t magic;
    uint64_t pid;
    uint64_t port;
} address_t;

typedef enum item_kind {
    ITEM_MESSAGE,
    ITEM_BYE, /* the sender closed in order */
    ITEM_GONE /* the sender was destroyed without closing */
} item_kind_t;

typedef struct loopback_item {
    struct loopback_item *next;
    item_kind_t kind;
    uint64_t tag;
    int from;
    size_t bytes;
    uint8_t data[];
} loopback_item_t;

/* Where one rank receives. */
typedef struct port {
    pthread_mutex_t lock;
    int fd;           /* eventfd */
    atomic_int wakes; /* wake() was called; pairs with arm()'s exchange */
    int refs;         /* guarded by lock, likewise below */
    int is_open;      /* 0: pushed items are dropped */
    int is_armed;     /* the owner sleeps or is about to */
    loopback_item_t *head;
    loopback_item_t **tail;
} port_t;

typedef struct loopback_peer {
    int rank;
    port_t *port; /* holds a reference */
    int has_left; /* it said BYE or was reported lost */
} loopback_peer_t;

typedef struct loopback {
    dp_transport_t base;
    int rank;
    uint64_t tag;
    dp_log_t log;
    port_t *port;
    loopback_peer_t *peers;
    int peer_count;
    loopback_item_t *current; /* returned by the last poll(): valid until the next one */
    int is_closed;
    uint64_t refused;
} loopback_t;

/* ---- Ports ---------------------------------------------------------------------------------- */

static void free_loopback_items(loopback_item_t *item)
{
    while (item != NULL) {
        loopback_item_t *next = item->next;

        free(item);
        item = next;
    }
}

static port_t *port_create(void)
{
    port_t *port = calloc(1, sizeof(*port));

    if (port == NULL) return NULL;
    port->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (port->fd < 0) {
        free(port);
        return NULL;
    }
    pthread_mutex_init(&port->lock, NULL);
    port->refs = 1;
    port->is_open = 1;
    port->tail = &port->head;
    return port;
}

/* The last holder frees it: the owner or a neighbour, whichever lets go later. */
static void port_release(port_t *port)
{
    int refs;

    pthread_mutex_lock(&port->lock);
    refs = --port->refs;
    pthread_mutex_unlock(&port->lock);
    if (refs > 0) return;
    free_loopback_items(port->head);
    pthread_mutex_destroy(&port->lock);
    close(port->fd);
    free(port);
}

static void signal_fd(int fd)
{
    const uint64_t one = 1;

    /* EAGAIN, the counter is full: the descriptor is readable already. */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

static dp_status_t push_item(port_t *port, item_kind_t kind, uint64_t tag, int from,
                             const void *data, size_t bytes)
{
    loopback_item_t *item = malloc(sizeof(*item) + bytes);
    int must_signal;

    if (item == NULL) return DP_ERR_NO_MEMORY;
    *item = (loopback_item_t){.kind = kind, .tag = tag, .from = from, .bytes = bytes};
    if (bytes > 0) memcpy(item->data, data, bytes);
    pthread_mutex_lock(&port->lock);
    if (!port->is_open) {
        pthread_mutex_unlock(&port->lock);
        free(item);
        return DP_OK;
    }
    *port->tail = item;
    port->tail = &item->next;
    must_signal = port->is_armed; /* once per sleep: many items make one system call */
    port->is_armed = 0;
    pthread_mutex_unlock(&port->lock);
    if (must_signal) signal_fd(port->fd); /* open: peer->port holds a reference */
    return DP_OK;
}

static loopback_item_t *pop_item(port_t *port)
{
    loopback_item_t *item;

    pthread_mutex_lock(&port->lock);
    item = port->head;
    if (item != NULL) {
        port->head = item->next;
        if (port->head == NULL) port->tail = &port->head;
    }
    pthread_mutex_unlock(&port->lock);
    return item;
}

/* ---- The transport -------------------------------------------------------------------------- */

static loopback_peer_t *find_peer(loopback_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

static void drop_peers(loopback_t *self)
{
    for (int i = 0; i < self->peer_count; i++)
        port_release(self->peers[i].port);
    free(self->peers);
    self->peers = NULL;
    self->peer_count = 0;
}

static dp_status_t loopback_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    loopback_t *self = (loopback_t *)base;
    const address_t address = {ADDRESS_MAGIC, (uint64_t)getpid(), (uint64_t)(uintptr_t)self->port};

    if (room < sizeof(address)) return DP_ERR_INVALID;
    memcpy(data, &address, sizeof(address));
    *bytes = sizeof(address);
    return DP_OK;
}

static dp_status_t loopback_connect(dp_transport_t *base, const int *ranks,
                                    const void *const *addresses, const size_t *bytes, int count,
                                    dp_error_t *error)
{
    loopback_t *self = (loopback_t *)base;

    if (self->peers != NULL || self->is_closed) {
        return dp_error_set(error, DP_ERR_INVALID, "rank %d: connected twice", self->rank);
    }
    if (count == 0) return DP_OK;
    self->peers = calloc((size_t)count, sizeof(*self->peers));
    if (self->peers == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                            self->rank, count);
    }
    for (int i = 0; i < count; i++) {
        address_t address = {0};
        port_t *port;

        if (bytes[i] == sizeof(address)) memcpy(&address, addresses[i], sizeof(address));
        if (address.magic != ADDRESS_MAGIC || address.pid != (uint64_t)getpid()) {
            drop_peers(self);
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d is not one of this process",
                                self->rank, ranks[i]);
        }
        port = (port_t *)(uintptr_t)address.port;
        pthread_mutex_lock(&port->lock);
        port->refs++;
        pthread_mutex_unlock(&port->lock);
        self->peers[self->peer_count++] = (loopback_peer_t){.rank = ranks[i], .port = port};
    }
    return DP_OK;
}

static dp_status_t loopback_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    loopback_t *self = (loopback_t *)base;
    loopback_peer_t *peer = find_peer(self, rank);

    if (peer == NULL || bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    if (peer->has_left || self->is_closed) return DP_OK;
    return push_item(peer->port, ITEM_MESSAGE, self->tag, self->rank, data, bytes);
}

/* 1: an item is an event for the owner, now in *out. */
static int item_to_event(loopback_t *self, loopback_item_t *item, dp_transport_event_t *out)
{
    loopback_peer_t *peer = find_peer(self, item->from);

    if (item->tag != self->tag || peer == NULL) {
        self->refused++;
        if ((self->refused & (self->refused - 1)) == 0) {
            dp_log_warn(&self->log, "dropped %llu control frames, the last from rank %d: %s",
                        (unsigned long long)self->refused, item->from,
                        peer == NULL ? "no neighbour" : "the tag of another job");
        }
        return 0;
    }
    *out = (dp_transport_event_t){.rank = item->from};
    switch (item->kind) {
    case ITEM_MESSAGE:
        out->kind = DP_TRANSPORT_MESSAGE;
        out->data = item->data;
        out->bytes = item->bytes;
        return 1;
    case ITEM_BYE:
        peer->has_left = 1;
        return 0;
    case ITEM_GONE:
        if (peer->has_left) return 0;
        peer->has_left = 1;
        out->kind = DP_TRANSPORT_PEER_LOST;
        out->text = "its transport was destroyed";
        return 1;
    }
    return 0;
}

static dp_status_t loopback_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    loopback_t *self = (loopback_t *)base;

    for (;;) {
        free(self->current);
        self->current = pop_item(self->port);
        if (self->current == NULL) return DP_ERR_PENDING;
        if (item_to_event(self, self->current, out)) return DP_OK;
    }
}

static int loopback_fd(const dp_transport_t *base)
{
    return ((const loopback_t *)base)->port->fd;
}

static dp_status_t loopback_arm(dp_transport_t *base)
{
    port_t *port = ((loopback_t *)base)->port;
    uint64_t rung;
    int is_empty;

    /* Before the queue is looked at: a signal cleared later could be the one for an item pushed
     * after the look. */
    while (read(port->fd, &rung, sizeof(rung)) < 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&port->lock);
    is_empty = port->head == NULL;
    port->is_armed = is_empty;
    pthread_mutex_unlock(&port->lock);
    /* Pairs with wake(), which stores before it signals: a signal that was cleared above is seen
     * here. */
    if (atomic_exchange(&port->wakes, 0) != 0) return DP_ERR_PENDING;
    return is_empty ? DP_OK : DP_ERR_PENDING;
}

/* Has no work: the first item since arm() has signalled, and poll() does not take that back, so
 * the sleeper wakes. */
static dp_status_t loopback_rearm(dp_transport_t *base)
{
    (void)base;
    return DP_OK;
}

static void loopback_wake(dp_transport_t *base)
{
    port_t *port = ((loopback_t *)base)->port;

    atomic_store(&port->wakes, 1);
    signal_fd(port->fd);
}

static void loopback_close(dp_transport_t *base, uint64_t deadline_ns)
{
    loopback_t *self = (loopback_t *)base;

    (void)deadline_ns; /* what was sent lies in the peers' queues already */
    if (self->is_closed) return;
    self->is_closed = 1;
    for (int i = 0; i < self->peer_count; i++) {
        if (push_item(self->peers[i].port, ITEM_BYE, self->tag, self->rank, NULL, 0) != DP_OK) {
            dp_log_warn(&self->log, "rank %d will see this rank as lost: no memory for a goodbye",
                        self->peers[i].rank);
        }
    }
}

static void loopback_destroy(dp_transport_t *base)
{
    loopback_t *self = (loopback_t *)base;
    loopback_item_t *dropped;

    for (int i = 0; i < self->peer_count && !self->is_closed; i++) {
        if (push_item(self->peers[i].port, ITEM_GONE, self->tag, self->rank, NULL, 0) != DP_OK) {
            dp_log_warn(&self->log, "rank %d cannot be told that this rank is gone: no memory",
                        self->peers[i].rank);
        }
    }
    drop_peers(self);
    if (self->port != NULL) {
        pthread_mutex_lock(&self->port->lock);
        self->port->is_open = 0;
        dropped = self->port->head;
        self->port->head = NULL;
        self->port->tail = &self->port->head;
        pthread_mutex_unlock(&self->port->lock);
        free_loopback_items(dropped);
        port_release(self->port);
    }
    free(self->current);
    free(self);
}

dp_status_t threads_transport(int rank, uint64_t tag, const dp_log_t *log, dp_transport_t **out,
                              dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "loopback",
        .address = loopback_address,
        .connect = loopback_connect,
        .send = loopback_send,
        .poll = loopback_poll,
        .fd = loopback_fd,
        .arm = loopback_arm,
        .rearm = loopback_rearm,
        .wake = loopback_wake,
        .close = loopback_close,
        .destroy = loopback_destroy,
    };
    loopback_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    self->base.ops = &ops;
    self->rank = rank;
    self->tag = tag;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    self->port = port_create();
    if (self->port == NULL) {
        loopback_destroy(&self->base);
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "rank %d: no queue for the loopback transport: %s", rank,
                            strerror(errno));
    }
    *out = &self->base;
    return DP_OK;
}
