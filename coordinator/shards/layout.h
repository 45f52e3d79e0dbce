/*
 * layout.h - which elements of a unit belong to which rank, and which units take turns in slots.
 *
 *     unit of 10000 elements, 2 ranks:   row 0             row 1
 *                                         [0 .. 8192)       [8192 .. 10000) zeros [.. 16384)
 *
 * Rows are equal and begin at multiples of the tally's blocks, so a collective moves them in place
 * and exact sums of squares do not depend on the number of ranks. Called at creation, on the
 * program's thread. Pure arithmetic: it must not know about memory.
 */
#ifndef DP_SHARDS_LAYOUT_H
#define DP_SHARDS_LAYOUT_H

#include <stddef.h>

#define DP_SHARD_ALIGN ((size_t)4096) /* elements; DP_TALLY_BLOCK */

typedef struct dp_shard_layout {
    size_t count;  /* elements of the unit */
    size_t row;    /* elements of one row, with padding */
    size_t padded; /* of all rows together */
} dp_shard_layout_t;

/* rows: how many; 1: the unit is whole. 0: so many elements cannot be. */
int dp_shard_layout_make(size_t count, int rows, dp_shard_layout_t *out);

/* The elements of row `index` that are not padding. */
void dp_shard_layout_row(const dp_shard_layout_t *layout, int index, size_t *first, size_t *count);

/*
 * Divides units into pools: the units of a pool take turns in its slots. Units of equal count
 * are one pool where there are three or more of them, else each is a pool by itself.
 *
 * @param counts  [n]; 0: this unit needs no slot
 * @param pools   [n] receives each unit's pool, ascending from 0 by first appearance; -1: none
 * @param members [n] receives the number of units of each pool
 * @return the number of pools
 */
size_t dp_shard_layout_pools(const size_t *counts, size_t n, int *pools, size_t *members);

#endif
