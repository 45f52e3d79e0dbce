/*
 * bootstrap.h - how the ranks of a world find each other before any transport exists.
 *
 * One collective, exchange, is all that the rest of the runtime needs. Three ways provide it: the
 * rendezvous of dprun, one that rank 0 serves where others started the job, and a world of one.
 */
#ifndef DP_GROUP_BOOTSTRAP_H
#define DP_GROUP_BOOTSTRAP_H

#include "runtime/base/auth.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/failure.h"

typedef struct dp_bootstrap dp_bootstrap_t;

typedef struct dp_bootstrap_ops {
    const char *name; /* "dprun", "elsewhere", "solo" */
    /* Every rank gives a value under the same name and receives all, values[size] in rank order;
     * each is returned (free() it), with a NUL behind its last byte. On error nothing is returned.
     * DP_ERR_TIMEOUT, DP_ERR_PEER_LOST and DP_ERR_MISMATCH name the rank. Threads: one at a time.
     */
    dp_status_t (*exchange)(dp_bootstrap_t *self, const char *name, const void *value,
                            size_t value_bytes, void **values, size_t *bytes, uint64_t deadline_ns,
                            dp_error_t *error);
    /* Best effort: tells the launcher why this rank's world ended. Never blocks. Threads: any. */
    void (*report)(dp_bootstrap_t *self, const dp_failure_t *failure);
    /* Likewise: this rank notices from here on when a neighbour falls silent. NULL: no launcher
     * listens. */
    void (*running)(dp_bootstrap_t *self);
    void (*destroy)(dp_bootstrap_t *self);
} dp_bootstrap_ops_t;

struct dp_bootstrap {
    const dp_bootstrap_ops_t *ops;
    int rank;
    int size;
    int local_rank; /* -1: not given, found by host name */
    int local_size;
    uint64_t deadline_ns; /* when DP_START_TIMEOUT ends (dp_now_ns()); 0: it begins later */
    uint64_t tag;         /* control frames of this job carry it */
    dp_secret_t secret;   /* of this world alone; lines between nodes prove it (transport/line.h) */
    char job[64];
};

/* By the environment (starter.h): dprun's variables, another launcher's, else a world of one. Half
 * of a launcher's variables is an error that names what is there and what is missing. */
dp_status_t dp_bootstrap_create(const dp_config_t *config, dp_bootstrap_t **out, dp_error_t *error);

/* A world that the program describes: a rank, and a key-value store that its ranks share (dp.h). */
typedef struct dp_bootstrap_store {
    dp_store_put_fn put;
    dp_store_get_fn get;
    void *user;
    int rank;
    int size;
    double seconds; /* for all ranks to come; 0: DP_START_TIMEOUT */
} dp_bootstrap_store_t;

/* By a store; the environment's launcher is not asked. Blocks as dp_bootstrap_create() does. */
dp_status_t dp_bootstrap_create_by_store(const dp_config_t *config,
                                         const dp_bootstrap_store_t *store, dp_bootstrap_t **out,
                                         dp_error_t *error);

void dp_bootstrap_destroy(dp_bootstrap_t *bootstrap); /* NULL is fine */

#endif
