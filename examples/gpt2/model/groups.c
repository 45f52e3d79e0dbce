/*
 * groups.c - the map from parts of groups to pieces of tensors. Any thread.
 */
#include "examples/gpt2/model/groups.h"

#include <string.h>

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

size_t gpt2_slice_run(const gpt2_tensor_t *tensor, size_t element, size_t count, size_t *at)
{
    const size_t left = tensor->run - element % tensor->run;

    *at = tensor->first + element / tensor->run * tensor->stride + element % tensor->run;
    return left < count ? left : count;
}

/* Copies from a slice to the whole, or the other way round. */
static void copy_group(const gpt2_layout_t *slice, size_t group, const float *from, float *to,
                       int is_paste)
{
    for (size_t i = 0; i < slice->count; i++) {
        const gpt2_tensor_t *tensor = &slice->tensors[i];

        if (tensor->group != group) continue;
        for (size_t element = 0; element < tensor->count; element += tensor->run) {
            const size_t here = tensor->place + element;
            size_t there;
            const size_t count = gpt2_slice_run(tensor, element, tensor->run, &there);

            there += slice->whole->tensors[i].place;
            memcpy(to + (is_paste ? there : here), from + (is_paste ? here : there),
                   count * sizeof(*to));
        }
    }
}

void gpt2_group_cut(const gpt2_layout_t *slice, size_t group, const float *whole, float *part)
{
    copy_group(slice, group, whole, part, 0);
}

void gpt2_group_paste(const gpt2_layout_t *slice, size_t group, const float *part, float *whole)
{
    copy_group(slice, group, part, whole, 1);
}

/* Of elements first .. first + count - 1 of a tensor: a sum over the numbers, each at its place in
 * the list of whole tensors. */
static uint64_t hash_elements(const gpt2_layout_t *layout, size_t tensor, size_t first,
                              size_t count, const float *weights)
{
    uint64_t before = 0; /* numbers in the tensors before */
    uint64_t sum = 0;

    for (size_t i = 0; i < tensor; i++)
        before += layout->whole->tensors[i].count;
    for (size_t done = 0; done < count;) {
        size_t at;
        const size_t run =
            gpt2_slice_run(&layout->tensors[tensor], first + done, count - done, &at);

        sum += gpt2_hash_places(weights + done, run, before + at);
        done += run;
    }
    return sum;
}

uint64_t gpt2_tensor_hash(const gpt2_layout_t *layout, size_t tensor, const float *weights)
{
    return hash_elements(layout, tensor, 0, layout->tensors[tensor].count, weights);
}

uint64_t gpt2_part_hash(const gpt2_layout_t *layout, size_t group, const gpt2_part_t *part)
{
    gpt2_piece_t pieces[GPT2_PIECES_MAX];
    const size_t found = gpt2_group_pieces(layout, group, part->first, part->count, pieces);
    uint64_t sum = 0;

    for (size_t i = 0; i < found; i++) {
        sum += hash_elements(layout, pieces[i].tensor, pieces[i].first, pieces[i].count,
                             part->weights + pieces[i].at);
    }
    return sum;
}
