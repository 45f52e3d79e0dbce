/*
 * parts.c - products whose inner dimension the tensor axis divides, and their sums over the axis.
 *
 * A place has a range of heads, of the MLP's units and of tokens. A product over all of them is the
 * sum of one product per place; biases are added behind that sum. Member 0 of the team, which is
 * the caller's thread, asks for the sum while the others wait or compute something else.
 */
#include "examples/gpt2/model/pass.h"

/* What a piece has of an inner dimension: ranges of `count` elements, `stride` apart, from `first`
 * on. */
typedef struct inner {
    size_t first;
    size_t count;
    size_t ranges;
    size_t stride;
} inner_t;

/* local: the piece's part of the dimensions; here: what this process has of them. */
static inner_t piece_of(gpt2_inner_t which, const gpt2_local_t *local, const gpt2_local_t *here)
{
    switch (which) {
    case GPT2_INNER_HEADS:
        return (inner_t){local->first_column - here->first_column, local->width, 1, 0};
    case GPT2_INNER_QKV:
        return (inner_t){local->first_column - here->first_column, local->width, 3, here->width};
    case GPT2_INNER_HIDDEN:
        return (inner_t){local->first_hidden - here->first_hidden, local->hidden, 1, 0};
    case GPT2_INNER_VOCAB:
        break;
    }
    return (inner_t){local->first_token - here->first_token, local->vocab, 1, 0};
}

void gpt2_member_inner(const gpt2_member_t *self, gpt2_inner_t which, size_t row, size_t rows,
                       float *out, const float *in, const float *weight, int is_transposed)
{
    const gpt2_model_t *model = self->model;
    const gpt2_local_t *here = &model->local;
    const size_t width = self->width;
    const int pieces = model->options.pieces > 1 ? model->options.pieces : 1;
    const size_t inner = which == GPT2_INNER_HEADS    ? here->width
                         : which == GPT2_INNER_QKV    ? 3 * here->width
                         : which == GPT2_INNER_HIDDEN ? here->hidden
                                                      : here->vocab;

    if (rows == 0) return;
    out += row * width;
    for (int i = 0; i < pieces; i++) {
        const gpt2_local_t local =
            pieces == 1 ? *here : gpt2_local_of(&model->options.shape, pieces, i);
        inner_t piece = piece_of(which, &local, here);
        float *to = i == 0 ? out : self->all->piece + row * width;

        /* A model that has all of it, in one piece, takes the ranges as one. */
        if (model->options.stage.parts == 1 && pieces == 1) piece = (inner_t){0, inner, 1, 0};
        for (size_t range = 0; range < piece.ranges; range++) {
            const size_t at = piece.first + range * piece.stride;
            const size_t ld = is_transposed ? inner : width;

            model->gemm(0, is_transposed, rows, width, piece.count, 1.0f, in + at, inner,
                        weight + (is_transposed ? at : at * width), ld, range == 0 ? 0.0f : 1.0f,
                        to, width, self->gemm_scratch);
        }
        if (i > 0) self->kernels->add(out, out, to, rows * width);
    }
}

/* Member 0's call into the reducer. Behind a failure the pass runs to its end without further ones;
 * nobody uses what it computes. */
static void reduce_failed(const gpt2_member_t *self)
{
    self->pass->failed = self->model->is_stopped = 1;
}

void gpt2_member_sum_start(const gpt2_member_t *self, float *values, size_t count, int is_max)
{
    const gpt2_reducer_t *reducer = self->model->reducer;

    if (reducer == NULL) return;
    gpt2_team_barrier(self->model->team);
    if (self->index != 0 || self->model->is_stopped) return;
    if (reducer->start(reducer->user, values, count, is_max) != 0) reduce_failed(self);
}

void gpt2_member_sum_finish(const gpt2_member_t *self)
{
    const gpt2_reducer_t *reducer = self->model->reducer;

    if (reducer == NULL) return;
    if (self->index == 0 && !self->model->is_stopped && reducer->finish(reducer->user) != 0)
        reduce_failed(self);
    gpt2_team_barrier(self->model->team);
}

void gpt2_member_sum(const gpt2_member_t *self, float *values, size_t count, int is_max)
{
    gpt2_member_sum_start(self, values, count, is_max);
    gpt2_member_sum_finish(self);
}
