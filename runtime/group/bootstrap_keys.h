/*
 * bootstrap_keys.h - the keys by which the ranks of a world meet in a key-value store of the
 * program.
 *
 * An earlier world may have met in the same store, and ranks that ended on the way may have left
 * keys there. So rank 0 gives each world a random name:
 *
 *     rank 0                                  rank N
 *     put dp/world = NAME                -->  get dp/world, again and again
 *     get dp/NAME/node/N                 <--  put dp/NAME/node/N
 *     put dp/NAME/rendezvous             -->  get dp/NAME/rendezvous, connect
 *     put dp/world = nobody, when all have met
 *
 * A name that was left behind leads nowhere, and rank N follows the next one. Called by
 * bootstrap_elsewhere.c on the thread of dp_init(). It knows no connections: the value of
 * dp/NAME/rendezvous is a text.
 */
#ifndef DP_GROUP_BOOTSTRAP_KEYS_H
#define DP_GROUP_BOOTSTRAP_KEYS_H

#include "runtime/group/bootstrap.h"

#define DP_BOOTSTRAP_NAME_ROOM 32

typedef struct dp_bootstrap_keys {
    const dp_bootstrap_store_t *store; /* borrowed */
    uint64_t timeout_ns, deadline_ns;
    char world[DP_BOOTSTRAP_NAME_ROOM]; /* rank N: the last one that it has answered */
} dp_bootstrap_keys_t;

/* The time begins for all ranks to come: what the store says, else start_timeout_ns. Returns it. */
uint64_t dp_bootstrap_keys_init(dp_bootstrap_keys_t *keys, const dp_bootstrap_store_t *store,
                                uint64_t start_timeout_ns);

/* Rank 0: names the world and waits for all ranks. is_one_node: all are on this node. */
dp_status_t dp_bootstrap_keys_lead(dp_bootstrap_keys_t *keys, int *is_one_node, dp_error_t *error);

/* Rank 0. */
dp_status_t dp_bootstrap_keys_put_address(const dp_bootstrap_keys_t *keys, const char *text,
                                          dp_error_t *error);

/* Another rank: one look for a world and its address. DP_ERR_TIMEOUT, without a text: there is none
 * yet. */
dp_status_t dp_bootstrap_keys_find_address(dp_bootstrap_keys_t *keys, char *text, size_t room,
                                           dp_error_t *error);

/* Rank 0, once all have met: a rank that reads the name from now on comes for the next world. */
void dp_bootstrap_keys_leave(const dp_bootstrap_keys_t *keys);

/* DP_ERR_TIMEOUT: this rank did not come. cause: "", or what was tried. */
dp_status_t dp_bootstrap_keys_name_late(const dp_bootstrap_keys_t *keys, int rank,
                                        const char *cause, dp_error_t *error);

#endif
