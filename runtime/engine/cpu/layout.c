/*
 * layout.c - an operation's elements as one line of blocks, and how ranks share it.
 *
 * cpu.c lays out each operation, and the methods inside and between nodes ask for ranges, on the
 * thread that runs the operation. It must not know about memory, ranks of nodes or transports.
 */
#include "runtime/engine/cpu/layout.h"

#include <stdlib.h>

dp_status_t dp_layout_set(dp_layout_t *layout, const dp_engine_piece_t *pieces, size_t count)
{
    if (layout->block_begin == NULL || count > layout->room) {
        const size_t room = dp_max(count, (size_t)64);
        size_t *blocks = malloc((room + 1) * sizeof(*blocks));
        size_t *elems = malloc((room + 1) * sizeof(*elems));

        if (blocks == NULL || elems == NULL) {
            free(blocks);
            free(elems);
            return DP_ERR_NO_MEMORY;
        }
        dp_layout_fini(layout);
        layout->block_begin = blocks;
        layout->elem_begin = elems;
        layout->room = room;
    }
    layout->piece_count = count;
    layout->block_begin[0] = 0;
    layout->elem_begin[0] = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t elems = pieces[i].count;
        const size_t blocks = elems / DP_TALLY_BLOCK + (elems % DP_TALLY_BLOCK != 0);

        layout->block_begin[i + 1] = layout->block_begin[i] + blocks;
        layout->elem_begin[i + 1] = layout->elem_begin[i] + elems;
    }
    layout->block_count = layout->block_begin[count];
    layout->elem_count = layout->elem_begin[count];
    return DP_OK;
}

void dp_layout_fini(dp_layout_t *layout)
{
    free(layout->block_begin);
    free(layout->elem_begin);
    *layout = (dp_layout_t){0};
}

dp_range_t dp_layout_all(const dp_layout_t *layout)
{
    return (dp_range_t){0, layout->block_count};
}

dp_range_t dp_range_part(dp_range_t range, int index, int parts)
{
    const size_t blocks = range.end - range.begin;
    const size_t each = blocks / (size_t)parts;
    const size_t more = blocks % (size_t)parts; /* the first ones get one more */
    const size_t place = (size_t)index;
    const size_t begin = range.begin + place * each + dp_min(place, more);

    return (dp_range_t){begin, begin + each + (place < more)};
}

size_t dp_range_chunks(dp_range_t range, size_t blocks)
{
    return (range.end - range.begin + blocks - 1) / blocks;
}

dp_range_t dp_range_chunk(dp_range_t range, size_t index, size_t blocks)
{
    const size_t begin = range.begin + index * blocks;

    return (dp_range_t){begin, dp_min(begin + blocks, range.end)};
}

/* The last piece that begins at or before the block; empty ones before it begin there too. */
size_t dp_layout_piece(const dp_layout_t *layout, size_t block)
{
    size_t low = 0;
    size_t high = layout->piece_count;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (layout->block_begin[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Elements before a block. */
static size_t elems_before(const dp_layout_t *layout, size_t block)
{
    size_t piece;

    if (block >= layout->block_count) return layout->elem_count;
    piece = dp_layout_piece(layout, block);
    return layout->elem_begin[piece] + (block - layout->block_begin[piece]) * DP_TALLY_BLOCK;
}

size_t dp_layout_elems(const dp_layout_t *layout, dp_range_t range)
{
    if (range.begin >= range.end) return 0;
    return elems_before(layout, range.end) - elems_before(layout, range.begin);
}

int dp_layout_next(const dp_layout_t *layout, dp_range_t *range, dp_segment_t *segment)
{
    size_t piece;
    size_t first;
    size_t end;
    size_t count;

    if (range->begin >= range->end) return 0;
    piece = dp_layout_piece(layout, range->begin);
    first = layout->block_begin[piece];
    end = dp_min(range->end, layout->block_begin[piece + 1]);
    count = layout->elem_begin[piece + 1] - layout->elem_begin[piece];
    segment->piece = piece;
    /* The last block of a piece may be short: so the end is cut to the piece's elements. */
    segment->start = (range->begin - first) * DP_TALLY_BLOCK;
    segment->count = dp_min((end - first) * DP_TALLY_BLOCK, count) - segment->start;
    range->begin = end;
    return 1;
}
