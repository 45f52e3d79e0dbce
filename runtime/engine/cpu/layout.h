/*
 * layout.h - an operation's elements as one line of blocks, and how ranks share it.
 *
 * Every piece is cut into blocks of DP_TALLY_BLOCK elements from its start, the last one shorter.
 * The blocks of all pieces, one after the other, are the line; for pieces of 2.5, 1 and 0.25
 * blocks:
 *
 *   block     0    1    2   |  3   |  4
 *   piece     0    0    0   |  1   |  2        block_begin = 0, 3, 4, 5
 *
 * Shards, parts of shards and chunks are ranges of blocks. Why blocks and not elements: the figures
 * of a block (norm and so on) are exact only if one rank computes all of it, and then they do not
 * depend on how pieces were grouped or on the shards of ranks. Pure arithmetic; all ranks come to
 * the same answer.
 */
#ifndef DP_ENGINE_CPU_LAYOUT_H
#define DP_ENGINE_CPU_LAYOUT_H

#include "runtime/engine/engine.h"

typedef struct dp_layout {
    size_t piece_count;
    size_t block_count;
    size_t elem_count;
    size_t *block_begin; /* [piece_count + 1] blocks before a piece */
    size_t *elem_begin;  /* [piece_count + 1] elements before a piece */
    size_t room;         /* pieces the arrays can hold */
} dp_layout_t;

/* Blocks begin .. end - 1. */
typedef struct dp_range {
    size_t begin;
    size_t end;
} dp_range_t;

/* A stretch of one piece. */
typedef struct dp_segment {
    size_t piece;
    size_t start; /* element of the piece */
    size_t count;
} dp_segment_t;

/* Lays out an operation's pieces; memory is kept from call to call. Zeroed: never used. */
dp_status_t dp_layout_set(dp_layout_t *layout, const dp_engine_piece_t *pieces, size_t count);
void dp_layout_fini(dp_layout_t *layout);

dp_range_t dp_layout_all(const dp_layout_t *layout);

/* Part `index` of `parts`, as equal as can be. */
dp_range_t dp_range_part(dp_range_t range, int index, int parts);

/* Chunk `index` of at most `blocks` blocks each. */
dp_range_t dp_range_chunk(dp_range_t range, size_t index, size_t blocks);
size_t dp_range_chunks(dp_range_t range, size_t blocks);

/* The piece that holds a block. */
size_t dp_layout_piece(const dp_layout_t *layout, size_t block);

size_t dp_layout_elems(const dp_layout_t *layout, dp_range_t range);

/* Takes the next segment off the front of a range; 0: the range is empty. */
int dp_layout_next(const dp_layout_t *layout, dp_range_t *range, dp_segment_t *segment);

#endif
