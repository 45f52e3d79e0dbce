/*
 * backward.c - gradients, from the final norm down to the embeddings.
 *
 * Each member works on its own rows for gradients of activations, and on its own rows of a weight
 * for gradients of weights, so nothing is added in an order that depends on timing. As soon as a
 * block is complete, member 0 hands its gradients over and goes on.
 */
#include "examples/gpt2/model/pass.h"

#include <string.h>

/* d_in [own rows][inputs] = d_out W. */
static void linear_input(const gpt2_member_t *self, float *d_in, const float *d_out,
                         const float *weight, size_t inputs, size_t outputs)
{
    if (self->own == 0) return;
    self->model->gemm(0, 0, self->own, inputs, outputs, 1.0f, d_out + self->first * outputs,
                      outputs, weight, inputs, 0.0f, d_in + self->first * inputs, inputs,
                      self->gemm_scratch);
}

/* d_weight = d_out^T in and d_bias = column sums of d_out, for own rows of the weight. */
static void linear_weight(const gpt2_member_t *self, float *d_weight, float *d_bias,
                          const float *d_out, const float *in, size_t inputs, size_t outputs)
{
    size_t from;
    size_t to;
    int accumulate = self->pass->accumulate;

    gpt2_team_part(outputs, 16, self->index, self->members, &from, &to);
    if (to == from) return;
    self->model->gemm(1, 0, to - from, inputs, self->rows, 1.0f, d_out + from, outputs, in, inputs,
                      accumulate ? 1.0f : 0.0f, d_weight + from * inputs, inputs,
                      self->gemm_scratch);
    self->kernels->column_sums(d_bias + from, !accumulate, d_out + from, self->rows, to - from,
                               outputs);
}

/* Backward through a norm for this member's rows. Gradients of its weight and bias are added to
 * this member's partial sums, set number `set`. */
static void norm_input(const gpt2_member_t *self, int set, int fresh, const float *x,
                       const float *weight, const float *mean, const float *rstd)
{
    gpt2_activations_t *all = self->all;
    size_t at = self->first * self->width;
    float *sums = all->norm_sums +
                  ((size_t)set * (size_t)self->members + (size_t)self->index) * 2 * self->width;

    memset(sums, 0, 2 * self->width * sizeof(*sums));
    self->kernels->norm_backward(all->d_stream + at, fresh, sums, sums + self->width,
                                 all->d_normed + at, x + at, weight, mean + self->first,
                                 rstd + self->first, self->own, self->width);
}

/* Adds up the members' partial sums, in their order; after a barrier, on member 0. */
static void norm_weight(const gpt2_member_t *self, int set, float *d_weight, float *d_shift)
{
    size_t bytes = self->width * sizeof(float);
    const float *sums =
        self->all->norm_sums + (size_t)set * (size_t)self->members * 2 * self->width;

    if (self->index != 0) return;
    if (!self->pass->accumulate) {
        memset(d_weight, 0, bytes);
        memset(d_shift, 0, bytes);
    }
    for (int i = 0; i < self->members; i++) {
        self->kernels->add(d_weight, d_weight, sums, self->width);
        self->kernels->add(d_shift, d_shift, sums + self->width, self->width);
        sums += 2 * self->width;
    }
}

static void attend_backward(const gpt2_member_t *self, const gpt2_block_activations_t *block)
{
    gpt2_activations_t *all = self->all;
    size_t heads = self->model->local.heads;
    size_t width = self->model->local.width;
    size_t length = (size_t)self->pass->batch->length;
    size_t from;
    size_t to;

    gpt2_team_part((size_t)self->pass->batch->count * heads, 1, self->index, self->members, &from,
                   &to);
    for (size_t i = from; i < to; i++) {
        size_t row = i / heads * length;

        gpt2_head_attend_backward(
            self->model, all->d_qkv + row * 3 * width, all->d_attention + row * width,
            block->attention + row * width, block->lse + i * length, block->qkv + row * 3 * width,
            (int)(i % heads), length, self->score_scratch, self->gemm_scratch);
    }
}

/* Calls the ready hook on member 0. If it fails, every member stops at the next barrier. */
static void hand_over(const gpt2_member_t *self, size_t first, size_t count)
{
    const gpt2_hooks_t *hooks = self->pass->hooks;

    if (self->index != 0 || hooks == NULL || hooks->ready == NULL) return;
    if (hooks->ready(hooks->user, first, count) != 0) self->pass->failed = 1;
}

/* The sums over the places of the tensor axis are under way while gradients of weights are
 * computed.
 */
static void block_backward(const gpt2_member_t *self, int layer)
{
    gpt2_activations_t *all = self->all;
    gpt2_block_activations_t *block = &all->blocks[layer];
    gpt2_team_t *team = self->model->team;
    const size_t width = self->width;
    const size_t heads = self->model->local.width;
    const size_t hidden = self->model->local.hidden;

    /* MLP: d_stream is the gradient of the block's output, complete for all rows. */
    linear_weight(self, gpt2_member_gradient(self, layer, GPT2_FCPROJ_W),
                  gpt2_member_gradient(self, layer, GPT2_FCPROJ_B), all->d_stream, block->gelu,
                  hidden, width);
    linear_input(self, all->d_fc, all->d_stream, gpt2_member_weight(self, layer, GPT2_FCPROJ_W),
                 hidden, width);
    self->kernels->gelu_backward(all->d_fc + self->first * hidden, block->fc + self->first * hidden,
                                 self->own * hidden);
    gpt2_team_barrier(team);
    gpt2_member_inner(self, GPT2_INNER_HIDDEN, self->first, self->own, all->d_normed,
                      all->d_fc + self->first * hidden, gpt2_member_weight(self, layer, GPT2_FC_W),
                      0);
    gpt2_member_sum_start(self, all->d_normed, self->rows * width, 0);
    linear_weight(self, gpt2_member_gradient(self, layer, GPT2_FC_W),
                  gpt2_member_gradient(self, layer, GPT2_FC_B), all->d_fc, block->ln2, width,
                  hidden);
    gpt2_member_sum_finish(self);
    norm_input(self, 0, 0, block->middle, gpt2_member_weight(self, layer, GPT2_LN2_W),
               block->ln2_mean, block->ln2_rstd);
    gpt2_team_barrier(team);

    /* Attention: d_stream is now the gradient of the stream between the two halves. */
    norm_weight(self, 0, gpt2_member_gradient(self, layer, GPT2_LN2_W),
                gpt2_member_gradient(self, layer, GPT2_LN2_B));
    linear_weight(self, gpt2_member_gradient(self, layer, GPT2_PROJ_W),
                  gpt2_member_gradient(self, layer, GPT2_PROJ_B), all->d_stream, block->attention,
                  heads, width);
    linear_input(self, all->d_attention, all->d_stream,
                 gpt2_member_weight(self, layer, GPT2_PROJ_W), heads, width);
    gpt2_team_barrier(team);
    attend_backward(self, block);
    gpt2_team_barrier(team);
    gpt2_member_inner(self, GPT2_INNER_QKV, self->first, self->own, all->d_normed,
                      all->d_qkv + self->first * 3 * heads,
                      gpt2_member_weight(self, layer, GPT2_QKV_W), 0);
    gpt2_member_sum_start(self, all->d_normed, self->rows * width, 0);
    linear_weight(self, gpt2_member_gradient(self, layer, GPT2_QKV_W),
                  gpt2_member_gradient(self, layer, GPT2_QKV_B), all->d_qkv, block->ln1, width,
                  3 * heads);
    gpt2_member_sum_finish(self);
    norm_input(self, 1, 0, block->input, gpt2_member_weight(self, layer, GPT2_LN1_W),
               block->ln1_mean, block->ln1_rstd);
    gpt2_team_barrier(team);
    norm_weight(self, 1, gpt2_member_gradient(self, layer, GPT2_LN1_W),
                gpt2_member_gradient(self, layer, GPT2_LN1_B));
}

/* Members share the columns, so each token's row is summed in batch order whatever their number. A
 * token's row is on one place of the tensor axis, positions are on all. */
static void embed_backward(const gpt2_member_t *self)
{
    gpt2_model_t *model = self->model;
    const gpt2_layout_t *layout = model->layout;
    const gpt2_batch_t *batch = self->pass->batch;
    float *d_wte = model->lookups != NULL ? model->lookups
                                          : gpt2_model_gradient(model, gpt2_layout_wte(layout));
    float *d_wpe = gpt2_model_gradient(model, gpt2_layout_wpe(layout));
    size_t from;
    size_t to;

    gpt2_team_part(self->width, 16, self->index, self->members, &from, &to);
    if (!self->pass->accumulate) {
        for (size_t row = 0; row < (size_t)layout->shape.context; row++) {
            memset(d_wpe + row * self->width + from, 0, (to - from) * sizeof(*d_wpe));
        }
    }
    for (size_t row = 0; row < self->rows; row++) {
        const float *d = self->all->d_stream + row * self->width + from;
        const size_t token = (size_t)batch->inputs[row] - model->local.first_token;
        float *position = d_wpe + row % (size_t)batch->length * self->width + from;

        self->kernels->add(position, position, d, to - from);
        if (token < model->local.vocab) {
            float *sum = d_wte + token * self->width + from;

            self->kernels->add(sum, sum, d, to - from);
        }
    }
}

/* The final norm, the blocks, the embeddings. */
static void backward_blocks(const gpt2_member_t *self)
{
    const gpt2_model_t *model = self->model;
    const gpt2_layout_t *layout = model->layout;
    const gpt2_stage_t *stage = &model->options.stage;

    gpt2_member_fetch(self, GPT2_GROUP_ROOT, GPT2_BACKWARD);
    if (gpt2_member_fetched(self)) return;
    if (stage->has_head) {
        norm_input(self, 0, 1, self->all->output, gpt2_model_weight(model, 0), self->all->lnf_mean,
                   self->all->lnf_rstd);
        gpt2_team_barrier(model->team);
        norm_weight(self, 0, gpt2_model_gradient(model, 0), gpt2_model_gradient(model, 1));
        hand_over(self, 0, 2);
    }
    for (int layer = stage->last - 1; layer >= stage->first; layer--) {
        gpt2_member_fetch(self, gpt2_layout_group(layer), GPT2_BACKWARD);
        if (gpt2_member_fetched(self)) return;
        gpt2_member_span_begin(self, model->block_names[layer]);
        block_backward(self, layer);
        gpt2_member_span_end(self);
        hand_over(self, gpt2_layout_block(layout, layer), GPT2_BLOCK_TENSORS);
        gpt2_member_return(self, gpt2_layout_group(layer), GPT2_BACKWARD);
    }
    if (stage->has_embedding) {
        embed_backward(self);
        gpt2_team_barrier(model->team);
        hand_over(self, gpt2_layout_wpe(layout), 2);
    }
    gpt2_member_return(self, GPT2_GROUP_WTE, GPT2_BACKWARD);
    gpt2_member_return(self, GPT2_GROUP_ROOT, GPT2_BACKWARD);
}

static void backward_member(void *argument, int index, int members)
{
    gpt2_member_t self;

    gpt2_member_init(&self, argument, index, members);
    gpt2_member_span_begin(&self, "backward");
    backward_blocks(&self);
    gpt2_member_span_end(&self);
}

/* A rank without sequences contributes zeros, in the same order as the others. */
static int backward_nothing(gpt2_pass_t *pass)
{
    const gpt2_model_t *model = pass->model;
    const gpt2_hooks_t *hooks = pass->hooks;

    if (model->supply != NULL) {
        gpt2_walk_backward(pass);
        return pass->failed ? -1 : 0;
    }
    if (!pass->accumulate) {
        memset(model->gradients, 0, model->layout->arena_count * sizeof(*model->gradients));
    }
    if (hooks == NULL || hooks->ready == NULL) return 0;
    for (size_t i = 0; i < model->layout->count; i++) {
        if (model->layout->groups[model->layout->tensors[i].group].is_elsewhere) continue;
        if (hooks->ready(hooks->user, i, 1) != 0) return -1;
    }
    return 0;
}

int gpt2_model_backward(gpt2_model_t *model, const gpt2_batch_t *batch, int accumulate,
                        const gpt2_hooks_t *hooks)
{
    gpt2_pass_t pass = {.model = model, .batch = batch, .hooks = hooks, .accumulate = accumulate};

    if (model->is_stopped) return -1;
    if (batch->count == 0) return backward_nothing(&pass);
    gpt2_team_run(model->team, backward_member, &pass);
    return pass.failed ? -1 : 0;
}
