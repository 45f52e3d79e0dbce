/*
 * lists.h - ranks compare lists that must be the same on all of them: the tensors of a model, the
 * groups of dp_shards_create(), checksums of weights.
 *
 * Called on the program's threads, collectively over a group. An entry of a list is a number, as a
 * rule a hash; it must not know of what.
 */
#ifndef DP_COORDINATOR_LISTS_H
#define DP_COORDINATOR_LISTS_H

#include <stddef.h>
#include <stdint.h>

#include "dp.h"

/* Every rank's values, all[size of the group][count], waited for. */
dp_status_t dp_lists_allgather(dp_group_t *group, const char *name, const uint64_t *own,
                               uint64_t *all, size_t count);

/* The first rank whose list is not this rank's, or that has failed. */
typedef struct dp_list_difference {
    int rank;       /* of the world; -1: there is none */
    int has_failed; /* 1: that rank says that it cannot go on */
    size_t place;   /* of the first entry that differs; SIZE_MAX: their lists have other lengths */
    size_t count;   /* entries of that rank's list */
} dp_list_difference_t;

/*
 * Compares the lists own[count] of all ranks.
 *
 * @param timeout seconds for all ranks to come, as in dp_options_t
 * @param failed DP_OK, or why this rank cannot go on: then no list is compared
 * @return DP_OK: equal on all ranks. DP_ERR_MISMATCH: difference says where. `failed` of the first
 *         rank that has one: difference names it. Else the failure of an operation, without a
 *         difference
 */
dp_status_t dp_lists_compare(dp_group_t *group, const char *name, const uint64_t *own, size_t count,
                             dp_status_t failed, double timeout, dp_list_difference_t *difference);

#endif
