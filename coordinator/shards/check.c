/*
 * check.c - checksums of the weights of dp_shards_t, by the place of each element.
 *
 * A checksum is a sum, modulo 2^64, of one number for each element, made of its bits and its place
 * in the unit (of two elements together, where weights have 16 bits). So rows can be summed by
 * their owners, and the total is what a rank with all of the weights computes by itself:
 *
 *     rank 0: hash(row 0)  +  rank 1: hash(row 1)  =  hash(all weights of the unit)
 *
 * DP_CHECK_DATA compares the two at every sync, unit by unit; dp_shards_hash() adds the units up.
 * Called on the program's thread, collectively.
 */
#include <stdlib.h>

#include "coordinator/api/context/device.h"
#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/lists.h"
#include "coordinator/shards/shards.h"

/* Digests of a unit's weights on one rank. */
typedef struct unit_sums {
    uint64_t row; /* of its row; 0 where the unit is whole */
    uint64_t all; /* of all weights; counts where has_all is set */
    uint64_t has_all;
} unit_sums_t;
#define SUMS (sizeof(unit_sums_t) / sizeof(uint64_t))

static const float *gathered(const dp_unit_t *unit)
{
    return unit->is_stale || unit->gather != NULL ? NULL : dp_unit_all_weights(unit);
}

/* seed: units of equal contents must not cancel. */
static dp_status_t sum_unit(const dp_shards_t *shards, size_t g, int wants_all, unit_sums_t *sums)
{
    const dp_unit_t *unit = &shards->units[g];
    const float *all = wants_all || unit->is_whole ? gathered(unit) : NULL;
    dp_status_t status = DP_OK;

    *sums = (unit_sums_t){0, 0, all != NULL};
    if (all != NULL) {
        status = dp_context_hash_places(
            shards->context, all, dp_shards_words(shards, unit->layout.count), 0, g, &sums->all);
    }
    if (status == DP_OK && !unit->is_whole) {
        status = dp_context_hash_places(shards->context, unit->weight_row,
                                        dp_shards_words(shards, unit->row_count),
                                        dp_shards_words(shards, unit->row_first), g, &sums->row);
    }
    if (status == DP_OK) return DP_OK;
    return dp_unit_error(shards, unit, status, "no checksum of its weights");
}

/* ---- DP_CHECK_DATA ------------------------------------------------------------------------------- */

static dp_status_t differ(const dp_shards_t *shards, size_t g, const dp_group_t *group, int a,
                          uint64_t of_a, int b, uint64_t of_b)
{
    return dp_context_error(shards->context, DP_ERR_CHECK,
                            "weights of %s differ at sync %llu: checksum %016llx on rank %d, "
                            "%016llx on rank %d",
                            shards->units[g].name, (unsigned long long)shards->syncs,
                            (unsigned long long)of_a, dp_group_world_rank(group, a),
                            (unsigned long long)of_b, dp_group_world_rank(group, b));
}

/* all: [size of the group][count]. Within a copy: all weights are equal, and the sum of the rows.
 */
static dp_status_t compare_copy(const dp_shards_t *shards, const unit_sums_t *all, size_t g)
{
    const int size = dp_group_size(shards->group);
    uint64_t rows = 0;

    for (int rank = 0; rank < size; rank++)
        rows += all[(size_t)rank * shards->count + g].row;
    for (int rank = 0; rank < size; rank++) {
        const unit_sums_t *one = &all[(size_t)rank * shards->count + g];
        const unit_sums_t *first = &all[g];

        if (!one->has_all) continue;
        if (first->has_all && one->all != first->all)
            return differ(shards, g, shards->group, 0, first->all, rank, one->all);
        if (shards->units[g].is_whole || one->all == rows) continue;
        return dp_context_error(shards->context, DP_ERR_CHECK,
                                "weights of %s differ at sync %llu: checksum %016llx on rank %d, "
                                "and %016llx of the rows of all ranks",
                                shards->units[g].name, (unsigned long long)shards->syncs,
                                (unsigned long long)one->all,
                                dp_group_world_rank(shards->group, rank), (unsigned long long)rows);
    }
    return DP_OK;
}

/* all: [replicas][count]. Between copies: rows are equal. */
static dp_status_t compare_replicas(const dp_shards_t *shards, const unit_sums_t *all, size_t g)
{
    for (int rank = 1; rank < dp_group_size(shards->replicas); rank++) {
        const unit_sums_t *one = &all[(size_t)rank * shards->count + g];
        const uint64_t own = shards->units[g].is_whole ? one->all : one->row;
        const uint64_t first = shards->units[g].is_whole ? all[g].all : all[g].row;

        if (own != first) return differ(shards, g, shards->replicas, 0, first, rank, own);
    }
    return DP_OK;
}

typedef dp_status_t (*compare_fn)(const dp_shards_t *shards, const unit_sums_t *all, size_t g);

static dp_status_t compare_over(const dp_shards_t *shards, dp_group_t *group,
                                const unit_sums_t *own, compare_fn compare)
{
    unit_sums_t *all = calloc((size_t)dp_group_size(group) * shards->count, sizeof(*all));
    dp_status_t status;

    if (all == NULL) return dp_shards_no_memory(shards);
    status = dp_lists_allgather(group, shards->list_name, (const uint64_t *)own, (uint64_t *)all,
                                SUMS * shards->count);
    for (size_t g = 0; status == DP_OK && g < shards->count; g++)
        status = compare(shards, all, g);
    free(all);
    return status;
}

dp_status_t dp_shards_compare_weights(dp_shards_t *shards)
{
    unit_sums_t *own = calloc(shards->count, sizeof(*own));
    dp_status_t status = DP_OK;

    if (own == NULL) return dp_shards_no_memory(shards);
    for (size_t g = 0; status == DP_OK && g < shards->count; g++)
        status = sum_unit(shards, g, 1, &own[g]);
    if (status == DP_OK) status = compare_over(shards, shards->group, own, compare_copy);
    /* Also where the copies of this rank differ: ranks of others wait in it. */
    if (shards->replicas != NULL) {
        const dp_status_t found = compare_over(shards, shards->replicas, own, compare_replicas);

        if (status == DP_OK) status = found;
    }
    free(own);
    return status;
}

/* ---- dp_shards_hash ------------------------------------------------------------------------- */

/* Sums of all units together, of whole ones and of rows: [0] whole, [1] rows. Every rank's, in
 * all[size of the group][2]. */
static dp_status_t compare_totals(const dp_shards_t *shards, dp_group_t *group, const uint64_t *own,
                                  int rows_too, uint64_t *rows)
{
    const int size = dp_group_size(group);
    uint64_t *all = calloc((size_t)size * 2, sizeof(*all));
    dp_status_t status;

    *rows = 0;
    if (all == NULL) return dp_shards_no_memory(shards);
    status = dp_lists_allgather(group, shards->list_name, own, all, 2);
    for (int rank = 0; status == DP_OK && rank < size; rank++) {
        const uint64_t *one = &all[2 * (size_t)rank];

        *rows += one[1];
        if (one[0] == all[0] && (!rows_too || one[1] == all[1])) continue;
        status = dp_context_error(shards->context, DP_ERR_CHECK,
                                  "shards: the weights of rank %d and rank %d differ",
                                  dp_group_world_rank(group, 0), dp_group_world_rank(group, rank));
    }
    free(all);
    return status;
}

dp_status_t dp_shards_hash(dp_shards_t *shards, uint64_t *hash)
{
    uint64_t own[2] = {0, 0}, rows = 0, ignored;
    dp_status_t status = DP_OK;

    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    if (hash == NULL)
        return dp_context_error(shards->context, DP_ERR_INVALID, "shards: hash is NULL");
    for (size_t g = 0; status == DP_OK && g < shards->count; g++) {
        unit_sums_t sums;

        status = sum_unit(shards, g, 0, &sums);
        own[0] += sums.all;
        own[1] += sums.row;
    }
    if (status == DP_OK) status = compare_totals(shards, shards->group, own, 0, &rows);
    if (shards->replicas != NULL) {
        const dp_status_t found = compare_totals(shards, shards->replicas, own, 1, &ignored);

        if (status == DP_OK) status = found;
    }
    if (status == DP_OK) *hash = own[0] + rows;
    return status;
}
