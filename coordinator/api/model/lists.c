/*
 * lists.c - compares lists of numbers between the ranks of a group: first how long they are, then
 * what is in them, in two allgathers. lists.h says for whom, and on which thread.
 */
#include "coordinator/api/model/lists.h"

#include <stdlib.h>

#include "coordinator/api/context/context.h"
#include "coordinator/api/context/texts.h"

static dp_status_t gather_in_time(dp_group_t *group, const char *name, const uint64_t *own,
                                  uint64_t *all, size_t count, double timeout)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;
    dp_status_t status;

    options.timeout = timeout;
    status = dp_allgather(group, name, own, all, count, DP_U64, &options, &handle);
    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

dp_status_t dp_lists_allgather(dp_group_t *group, const char *name, const uint64_t *own,
                               uint64_t *all, size_t count)
{
    return gather_in_time(group, name, own, all, count, 0.0);
}

/* all: [size of the group][2], length and status of each rank. */
static dp_status_t compare_lengths(dp_group_t *group, const char *name, size_t count,
                                   dp_status_t failed, double timeout, uint64_t *all,
                                   dp_list_difference_t *difference)
{
    const uint64_t own[2] = {count, (uint64_t)failed};
    const int size = dp_group_size(group);
    dp_status_t status = gather_in_time(group, name, own, all, 2, timeout);

    if (status != DP_OK) return status;
    for (int rank = 0; rank < size; rank++) {
        const uint64_t failure = all[2 * (size_t)rank + 1];

        if (failure == DP_OK) continue;
        *difference = (dp_list_difference_t){dp_group_world_rank(group, rank), 1, SIZE_MAX, 0};
        return (dp_status_t)failure;
    }
    for (int rank = 0; rank < size; rank++) {
        const uint64_t other = all[2 * (size_t)rank];

        if (other == count) continue;
        *difference =
            (dp_list_difference_t){dp_group_world_rank(group, rank), 0, SIZE_MAX, (size_t)other};
        return DP_ERR_MISMATCH;
    }
    return DP_OK;
}

dp_status_t dp_lists_compare(dp_group_t *group, const char *name, const uint64_t *own, size_t count,
                             dp_status_t failed, double timeout, dp_list_difference_t *difference)
{
    const size_t size = (size_t)dp_group_size(group);
    uint64_t *all = calloc(size * (count < 2 ? 2 : count), sizeof(*all));
    dp_status_t status;

    *difference = (dp_list_difference_t){-1, 0, 0, count};
    if (all == NULL) {
        return dp_context_error(group->context, DP_ERR_NO_MEMORY,
                                "%s: no memory for the lists of %zu ranks", name, size);
    }
    status = compare_lengths(group, name, count, failed, timeout, all, difference);
    if (status == DP_OK) status = dp_lists_allgather(group, name, own, all, count);
    for (size_t i = 0; status == DP_OK && i < size * count; i++) {
        if (all[i] == own[i % count]) continue;
        *difference = (dp_list_difference_t){dp_group_world_rank(group, (int)(i / count)), 0,
                                             i % count, count};
        status = DP_ERR_MISMATCH;
    }
    free(all);
    return status;
}
