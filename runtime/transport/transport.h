/*
 * transport.h - moves control messages between ranks. One owner thread: the coordinator's.
 *
 * Messages are short (tens of bytes to a few KiB; at most DP_MESSAGE_MAX), reliable and ordered per
 * pair of ranks. A dead peer is an event, never a hang.
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
    DP_TRANSPORT_MESSAGE,  /* data is valid until the next poll() */
    DP_TRANSPORT_PEER_LOST /* once per rank; text says how it was seen */
} dp_transport_event_kind_t;

typedef struct dp_transport_event {
    dp_transport_event_kind_t kind;
    int rank;
    const void *data;
    size_t bytes;
    const char *text;
} dp_transport_event_t;

typedef struct dp_transport_ops {
    const char *name; /* "ucx", "unix", "loopback", "near" */
    /* This rank's address, for the bootstrap's exchange. */
    dp_status_t (*address)(dp_transport_t *self, void *data, size_t room, size_t *bytes);
    /* Opens the way to each neighbour. Nothing stays open on error. */
    dp_status_t (*connect)(dp_transport_t *self, const int *ranks, const void *const *addresses,
                           const size_t *bytes, int count, dp_error_t *error);
    /* Queues a message, copied. To a lost peer: dropped. */
    dp_status_t (*send)(dp_transport_t *self, int rank, const void *data, size_t bytes);
    /* The next event; DP_ERR_AGAIN when there is none now. */
    dp_status_t (*poll)(dp_transport_t *self, dp_transport_event_t *out);
    /* Readable when poll() may have something, once arm() said DP_OK. */
    int (*fd)(const dp_transport_t *self);
    /* Makes fd() readable also while another descriptor is, until that is closed. 0, or -1 with
     * errno. NULL: this transport cannot. Few epolls may be nested. */
    int (*watch)(dp_transport_t *self, int fd);
    /* Prepares for sleep on fd(); DP_ERR_AGAIN: poll() again first. */
    dp_status_t (*arm)(dp_transport_t *self);
    /* Likewise by a thread that has polled while another one sleeps on fd(), and polls no more. It
     * leaves that sleep alone; DP_ERR_AGAIN: poll() again first, or wake(). */
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

/* Ranks that are threads of one process find each other by address (a pointer in it). */
dp_status_t dp_transport_loopback_create(int rank, uint64_t tag, const dp_log_t *log,
                                         dp_transport_t **out, dp_error_t *error);

/*
 * UNIX sockets between neighbours of one machine, which are found and checked as line.h says; all
 * others are reached over `beyond`, which is taken, also on failure.
 *
 * @param ranks  [count] neighbours on this machine; copied. Who is one of theirs has them among its
 *               own. Without any, no socket is made
 * @param beyond NULL: there are no others
 */
dp_status_t dp_transport_unix_create(int rank, uint64_t tag, const int *ranks, int count,
                                     dp_transport_t *beyond, const dp_log_t *log,
                                     dp_transport_t **out, dp_error_t *error);

/*
 * Between ranks of one host messages go through shared memory, all else over `far`, which is taken,
 * also on failure: to other hosts, and the news that a neighbour died. Where memory cannot be had
 * `far` carries everything.
 *
 * @param ranks [count] neighbours on this host; copied. Who is one of theirs has them among its own
 */
dp_status_t dp_transport_shm_create(int rank, uint64_t tag, const int *ranks, int count,
                                    dp_transport_t *far, const dp_log_t *log, dp_transport_t **out,
                                    dp_error_t *error);

void dp_transport_destroy(dp_transport_t *transport); /* NULL is fine */

#endif
