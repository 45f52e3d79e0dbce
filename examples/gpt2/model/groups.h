/*
 * groups.h - which elements of which tensors lie in a part of a group.
 *
 * A group (shape.h) divided among ranks gives rank r the elements r * row .. of it, across the
 * borders of tensors. Optimizers, checkpoints and comparisons need to know what these elements are.
 * Pure arithmetic: it must not know who the ranks are, or how bytes travel.
 */
#ifndef GPT2_GROUPS_H
#define GPT2_GROUPS_H

#include <stdint.h>

#include "examples/gpt2/model/shape.h"

#define GPT2_PIECES_MAX GPT2_BLOCK_TENSORS /* no group has more tensors */

/* Consecutive elements of one tensor. */
typedef struct gpt2_piece {
    size_t tensor; /* position in the layout's list */
    size_t first;  /* its first element of the tensor */
    size_t count;
    size_t at; /* where it begins, counted from the first element of the part */
} gpt2_piece_t;

/* The elements of a group that one rank updates, and where they lie. */
typedef struct gpt2_part {
    float *weights; /* [count]; the fp32 masters, where there are halves */
    uint16_t
        *halves; /* [count] the weights as other ranks get them, in 16 bits; NULL: as they are */
    float *gradients; /* [count] */
    float *m;         /* [count] first moments */
    float *v;         /* [count] second moments */
    size_t first;     /* element of the group */
    size_t count;     /* may be 0 */
    int is_whole;     /* 1: ranks do not divide the group, each updates all of it */
} gpt2_part_t;

/* Elements of one rank's row where `ranks` divide a group of `count` elements: rounded up to
 * GPT2_TENSOR_ALIGN, so that the last ranks' rows may end behind the group, or begin there. */
size_t gpt2_row_size(size_t count, int ranks);

/* Lists what elements first .. first + count - 1 of a group are, in the group's order; the gaps
 * between tensors are in no piece. pieces [GPT2_PIECES_MAX]. Returns how many there are. */
size_t gpt2_group_pieces(const gpt2_layout_t *layout, size_t group, size_t first, size_t count,
                         gpt2_piece_t *pieces);

/* Elements of a tensor that lie one behind the other in the whole tensor as well: from `element`
 * on, at most `count`. *at is where they begin there. */
size_t gpt2_slice_run(const gpt2_tensor_t *tensor, size_t element, size_t count, size_t *at);

/* Copies a group between a slice (slice: its layout) and the whole. */
void gpt2_group_cut(const gpt2_layout_t *slice, size_t group, const float *whole, float *part);
void gpt2_group_paste(const gpt2_layout_t *slice, size_t group, const float *part, float *whole);

/* A hash of the weights [count] of a tensor; adding up tensors, modulo 2^64, gives that of the
 * model. */
uint64_t gpt2_tensor_hash(const gpt2_layout_t *layout, size_t tensor, const float *weights);

/* A hash of the weights in a part of a group. The sum over all groups, modulo 2^64, is the same
 * however they are divided: it depends on the numbers and their places in the list of tensors. */
uint64_t gpt2_part_hash(const gpt2_layout_t *layout, size_t group, const gpt2_part_t *part);

/* Position in the list of the group's tensor that backward finishes last. */
size_t gpt2_group_last(const gpt2_layout_t *layout, size_t group);

#endif
