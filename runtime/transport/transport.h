/*
 * transport.h - moves control messages between ranks: one ops table, several implementations.
 *
 * Messages are short (tens of bytes to a few KiB; at most DP_MESSAGE_MAX), reliable and ordered per
 * pair of ranks. A dead peer is an event, never a hang. All calls but wake() come from one thread
 * at a time: the coordinator's, or a waiting thread that makes progress in its stead.
 *
 * Inside a node transports are stacked. Each carries the neighbours it can and gives the rest to
 * the one below, called lower:
 *
 *     shm       mailboxes in shared memory, between neighbours on one node
 *      |lower   neighbours on other nodes; none: NULL
 *     line      a TCP connection of our own for each of them: their deaths, and codes of messages
 *      |lower   messages
 *     ucx       TCP
 */
#ifndef DP_TRANSPORT_H
#define DP_TRANSPORT_H

#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

#define DP_MESSAGE_MAX ((size_t)1 << 20)
#define DP_ADDRESS_MAX 1152

typedef struct dp_transport dp_transport_t;

typedef enum dp_transport_event_kind {
    DP_TRANSPORT_MESSAGE,   /* data is valid until the next poll() */
    DP_TRANSPORT_PEER_LOST, /* once per rank; text says how it was seen */
    DP_TRANSPORT_ALIVE      /* the rank gave a sign of life, at seen_ns, and no message */
} dp_transport_event_kind_t;

typedef struct dp_transport_event {
    dp_transport_event_kind_t kind;
    int rank;
    const void *data;
    size_t bytes;
    const char *text;
    uint64_t seen_ns;
} dp_transport_event_t;

typedef struct dp_transport_ops {
    const char *name; /* "ucx", "line", "shm" */
    /* This rank's address, for the bootstrap's exchange. */
    dp_status_t (*address)(dp_transport_t *self, void *data, size_t room, size_t *bytes);
    /* Opens the way to each neighbour. Nothing stays open on error. */
    dp_status_t (*connect)(dp_transport_t *self, const int *ranks, const void *const *addresses,
                           const size_t *bytes, int count, dp_error_t *error);
    /* Queues a message, copied. To a lost peer: dropped. */
    dp_status_t (*send)(dp_transport_t *self, int rank, const void *data, size_t bytes);
    /* The next event; DP_ERR_PENDING when there is none now. */
    dp_status_t (*poll)(dp_transport_t *self, dp_transport_event_t *out);
    /* The owner has given a rank up for its silence: its connections end, and no loss of it is
     * reported. NULL: there is nothing to do. */
    void (*give_up)(dp_transport_t *self, int rank);
    /* Readable when poll() may have something, once arm() said DP_OK. */
    int (*fd)(const dp_transport_t *self);
    /* A second one that is readable likewise. One epoll over both would be one too many. NULL:
     * there is none. */
    int (*other_fd)(const dp_transport_t *self);
    /* Prepares for sleep on fd(): from now on what arrives makes it readable. DP_ERR_PENDING:
     * something has arrived already, poll() again first. */
    dp_status_t (*arm)(dp_transport_t *self);
    /* The same for a thread that has polled while another one sleeps on fd(), and stops polling.
     * The sleeper was armed, but poll() has disarmed it. rearm() must not clear what would wake it.
     * DP_ERR_PENDING: poll() again first, or wake(). */
    dp_status_t (*rearm)(dp_transport_t *self);
    /* Makes fd() readable. The only call for other threads; any thread, lock-free. */
    void (*wake)(dp_transport_t *self);
    /* Sends what is queued, within the deadline, then closes. Peers that close too are not lost. */
    void (*close)(dp_transport_t *self, uint64_t deadline_ns);
    void (*destroy)(dp_transport_t *self); /* drops what is still queued */
} dp_transport_ops_t;

struct dp_transport {
    const dp_transport_ops_t *ops;
};

/* UCX over TCP endpoints, so that a death is seen within a millisecond. tag: every frame carries
 * it, others are dropped. */
dp_status_t dp_transport_ucx_create(int rank, uint64_t tag, const dp_config_t *config,
                                    const dp_log_t *log, dp_transport_t **out, dp_error_t *error);

/*
 * Shared memory between neighbours of one node; all others are reached over `lower`, which is
 * taken, also on failure.
 *
 * @param ranks [count] neighbours on this node; copied. The relation is mutual: each of them names
 *              this rank as well. Without any, no memory is made
 * @param lower NULL: there are no other neighbours
 */
dp_status_t dp_transport_shm_create(int rank, uint64_t tag, const int *ranks, int count,
                                    dp_transport_t *lower, const dp_log_t *log,
                                    dp_transport_t **out, dp_error_t *error);

static inline void dp_transport_destroy(dp_transport_t *transport) /* NULL is fine */
{
    if (transport != NULL) transport->ops->destroy(transport);
}

#endif
