/*
 * layout.c - the arithmetic of rows and slots, see layout.h.
 */
#include "coordinator/shards/layout.h"

#include <stdint.h>

#include "runtime/base/common.h"

#define POOL_LEAST 3 /* units of one size that share slots: with fewer, two slots save nothing */

int dp_shard_layout_make(size_t count, int rows, dp_shard_layout_t *out)
{
    const size_t n = (size_t)rows;
    size_t row;

    /* A quarter of the address space in bytes: no later sum of sizes overflows. */
    if (count > SIZE_MAX / 4 / sizeof(float)) return 0;
    row = dp_align_up(count / n + (count % n != 0), DP_SHARD_ALIGN);
    if (row > SIZE_MAX / 4 / sizeof(float) / n) return 0;
    *out = (dp_shard_layout_t){count, row, row * n};
    return 1;
}

void dp_shard_layout_row(const dp_shard_layout_t *layout, int index, size_t *first, size_t *count)
{
    const size_t begin = dp_min((size_t)index * layout->row, layout->count);

    *first = begin;
    *count = dp_min(layout->row, layout->count - begin);
}

size_t dp_shard_layout_pools(const size_t *counts, size_t n, int *pools, size_t *members)
{
    size_t made = 0;

    for (size_t i = 0; i < n; i++)
        pools[i] = -1;
    for (size_t i = 0; i < n; i++) {
        size_t alike = 0;

        if (counts[i] == 0 || pools[i] >= 0) continue;
        for (size_t k = i; k < n; k++)
            alike += counts[k] == counts[i];
        /* Fewer than POOL_LEAST units of equal size do not share: each gets a pool of its own. */
        for (size_t k = i; k < n; k++)
            if (k == i || (alike >= POOL_LEAST && counts[k] == counts[i])) pools[k] = (int)made;
        members[made++] = alike >= POOL_LEAST ? alike : 1;
    }
    return made;
}
