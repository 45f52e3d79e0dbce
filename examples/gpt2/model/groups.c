/*
 * groups.c - the map from parts of groups to pieces of tensors. Any thread.
 */
#include "examples/gpt2/model/groups.h"

#include "examples/gpt2/base/hash.h"

size_t gpt2_row_size(size_t count, int ranks)
{
    const size_t blocks = (count + GPT2_TENSOR_ALIGN - 1) / GPT2_TENSOR_ALIGN;

    return (blocks + (size_t)ranks - 1) / (size_t)ranks * GPT2_TENSOR_ALIGN;
}

size_t gpt2_group_pieces(const gpt2_layout_t *layout, size_t group, size_t first, size_t count,
                         gpt2_piece_t *pieces)
{
    const size_t last = first + count;
    size_t found = 0;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const size_t end = tensor->place + tensor->count;
        const size_t from = tensor->place > first ? tensor->place : first;
        const size_t to = end < last ? end : last;

        if (tensor->group != group || from >= to) continue;
        pieces[found++] = (gpt2_piece_t){i, from - tensor->place, to - from, from - first};
    }
    return found;
}

size_t gpt2_group_last(const gpt2_layout_t *layout, size_t group)
{
    size_t last = 0;

    for (size_t i = 0; i < layout->count; i++) {
        if (layout->tensors[i].group == group) last = i;
    }
    return last;
}

uint64_t gpt2_part_hash(const gpt2_layout_t *layout, size_t group, const gpt2_part_t *part)
{
    gpt2_piece_t pieces[GPT2_PIECES_MAX];
    const size_t found = gpt2_group_pieces(layout, group, part->first, part->count, pieces);
    uint64_t before = 0; /* numbers in the tensors before */
    uint64_t sum = 0;
    size_t tensor = 0;

    for (size_t i = 0; i < found; i++) {
        for (; tensor < pieces[i].tensor; tensor++)
            before += layout->tensors[tensor].count;
        sum += gpt2_hash_places(part->weights + pieces[i].at, pieces[i].count,
                                before + pieces[i].first);
    }
    return sum;
}
