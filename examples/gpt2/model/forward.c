/*
 * forward.c - the blocks, the head and its loss.
 *
 * Every member of the team runs the whole function on its own rows; barriers stand where rows
 * meet, which is only in attention.
 */
#include "examples/gpt2/model/pass.h"

#include <string.h>

void gpt2_member_init(gpt2_member_t *self, gpt2_pass_t *pass, int index, int members)
{
    size_t last;
    gpt2_model_t *model = pass->model;
    gpt2_activations_t *all = model->activations;

    self->pass = pass;
    self->model = model;
    self->all = all;
    self->kernels = model->kernels;
    self->index = index;
    self->members = members;
    self->rows = (size_t)pass->batch->count * (size_t)pass->batch->length;
    gpt2_team_part(self->rows, 1, index, members, &self->first, &last);
    self->own = last - self->first;
    self->width = (size_t)model->options.shape.width;
    self->gemm_scratch = all->gemm_scratch + (size_t)index * GPT2_GEMM_SCRATCH;
    self->score_scratch = all->score_scratch + (size_t)index * all->score_stride;
}

float *gpt2_member_weight(const gpt2_member_t *self, int layer, gpt2_block_tensor_t which)
{
    size_t index = gpt2_layout_block(self->model->layout, layer) + (size_t)which;

    return gpt2_model_weight(self->model, index);
}

float *gpt2_member_gradient(const gpt2_member_t *self, int layer, gpt2_block_tensor_t which)
{
    size_t index = gpt2_layout_block(self->model->layout, layer) + (size_t)which;

    return gpt2_model_gradient(self->model, index);
}

void gpt2_member_linear(const gpt2_member_t *self, float *out, const float *in, const float *weight,
                        size_t inputs, size_t outputs)
{
    if (self->own == 0) return;
    self->model->gemm(0, 1, self->own, outputs, inputs, 1.0f, in + self->first * inputs, inputs,
                      weight, inputs, 0.0f, out + self->first * outputs, outputs,
                      self->gemm_scratch);
}

void gpt2_member_span_begin(const gpt2_member_t *self, const char *name)
{
    const gpt2_hooks_t *hooks = self->pass->hooks;

    if (self->index == 0 && hooks != NULL && hooks->span_begin != NULL) {
        hooks->span_begin(hooks->user, name);
    }
}

void gpt2_member_span_end(const gpt2_member_t *self)
{
    const gpt2_hooks_t *hooks = self->pass->hooks;

    if (self->index == 0 && hooks != NULL && hooks->span_end != NULL) hooks->span_end(hooks->user);
}

/* stream [own rows] = token embedding + position embedding. */
static void embed_tokens(const gpt2_member_t *self, float *stream)
{
    const gpt2_layout_t *layout = self->model->layout;
    const float *wte = gpt2_model_weight(self->model, gpt2_layout_wte(layout));
    const float *wpe = gpt2_model_weight(self->model, gpt2_layout_wpe(layout));
    size_t width = self->width;

    for (size_t row = self->first; row < self->first + self->own; row++) {
        size_t token = (size_t)self->pass->batch->inputs[row];
        size_t position = row % (size_t)self->pass->batch->length;

        self->kernels->add(stream + row * width, wte + token * width, wpe + position * width,
                           width);
    }
}

/* All heads of all sequences, dealt out to the members. */
static void attend_heads(const gpt2_member_t *self, const gpt2_block_activations_t *block)
{
    size_t heads = (size_t)self->model->options.shape.heads;
    size_t length = (size_t)self->pass->batch->length;
    size_t from;
    size_t to;

    gpt2_team_part((size_t)self->pass->batch->count * heads, 1, self->index, self->members, &from,
                   &to);
    for (size_t i = from; i < to; i++) {
        size_t row = i / heads * length;

        gpt2_head_attend(self->model, block->attention + row * self->width, block->lse + i * length,
                         block->qkv + row * 3 * self->width, (int)(i % heads), length,
                         self->score_scratch, self->gemm_scratch);
    }
}

/* next = stream + projected + bias on own rows (projected NULL: stream as it is), then the norm. */
static void join_norm(const gpt2_member_t *self, float *out, float *next, float *mean, float *rstd,
                      const float *stream, const float *projected, const float *bias,
                      const float *weight, const float *shift)
{
    size_t at = self->first * self->width;

    self->kernels->add_norm(out + at, next == NULL ? NULL : next + at, mean + self->first,
                            rstd + self->first, stream + at,
                            projected == NULL ? NULL : projected + at, bias, weight, shift,
                            self->own, self->width);
}

/* The norm behind a block's output: the next block's first, or the final one. */
static void join_next(const gpt2_member_t *self, int layer, const float *stream,
                      const float *projected, const float *bias)
{
    gpt2_activations_t *all = self->all;
    gpt2_model_t *model = self->model;

    if (layer == model->options.stage.last && !model->options.stage.has_head) {
        /* The stream goes to the next stage, whose norm this is. One of this stage has its place,
         * into memory that nothing reads: so the sum has the bits that it has within a stage. */
        join_norm(self, all->lnf, all->output, all->lnf_mean, all->lnf_rstd, stream, projected,
                  bias, gpt2_member_weight(self, layer - 1, GPT2_LN1_W),
                  gpt2_member_weight(self, layer - 1, GPT2_LN1_B));
    } else if (layer < model->options.stage.last) {
        gpt2_block_activations_t *block = &all->blocks[layer];

        join_norm(self, block->ln1, projected == NULL ? NULL : block->input, block->ln1_mean,
                  block->ln1_rstd, stream, projected, bias,
                  gpt2_member_weight(self, layer, GPT2_LN1_W),
                  gpt2_member_weight(self, layer, GPT2_LN1_B));
    } else {
        join_norm(self, all->lnf, all->output, all->lnf_mean, all->lnf_rstd, stream, projected,
                  bias, gpt2_model_weight(model, 0), gpt2_model_weight(model, 1));
    }
}

/* One block, from its first norm's output to the next one's. */
static void forward_block(const gpt2_member_t *self, int layer)
{
    gpt2_activations_t *all = self->all;
    gpt2_block_activations_t *block = &all->blocks[layer];
    size_t width = self->width;

    gpt2_member_linear(self, block->qkv, block->ln1, gpt2_member_weight(self, layer, GPT2_QKV_W),
                       width, 3 * width);
    self->kernels->add_bias(block->qkv + self->first * 3 * width,
                            gpt2_member_weight(self, layer, GPT2_QKV_B), self->own, 3 * width);
    gpt2_team_barrier(self->model->team);
    attend_heads(self, block);
    gpt2_team_barrier(self->model->team);
    gpt2_member_linear(self, all->projected, block->attention,
                       gpt2_member_weight(self, layer, GPT2_PROJ_W), width, width);
    join_norm(self, block->ln2, block->middle, block->ln2_mean, block->ln2_rstd, block->input,
              all->projected, gpt2_member_weight(self, layer, GPT2_PROJ_B),
              gpt2_member_weight(self, layer, GPT2_LN2_W),
              gpt2_member_weight(self, layer, GPT2_LN2_B));
    gpt2_member_linear(self, block->fc, block->ln2, gpt2_member_weight(self, layer, GPT2_FC_W),
                       width, 4 * width);
    self->kernels->gelu(block->gelu + self->first * 4 * width, block->fc + self->first * 4 * width,
                        gpt2_member_weight(self, layer, GPT2_FC_B), self->own, 4 * width);
    gpt2_member_linear(self, all->projected, block->gelu,
                       gpt2_member_weight(self, layer, GPT2_FCPROJ_W), 4 * width, width);
}

/* The blocks in turn. The norm behind a block is the next one's first and is joined to its end, so
 * for that moment a pass needs the weights of both. */
static void forward_blocks(const gpt2_member_t *self)
{
    gpt2_activations_t *all = self->all;
    const gpt2_stage_t *stage = &self->model->options.stage;
    float *first = stage->first < stage->last ? all->blocks[stage->first].input : all->output;

    gpt2_member_fetch(self, GPT2_GROUP_WTE, GPT2_FORWARD);
    gpt2_member_fetch(self, GPT2_GROUP_ROOT, GPT2_FORWARD);
    gpt2_member_fetch(self, gpt2_layout_group(0), GPT2_FORWARD);
    if (gpt2_member_fetched(self)) return;
    if (stage->has_embedding) embed_tokens(self, first);
    join_next(self, stage->first, first, NULL, NULL);
    for (int layer = stage->first; layer < stage->last; layer++) {
        forward_block(self, layer);
        if (layer + 1 < stage->last) {
            gpt2_member_fetch(self, gpt2_layout_group(layer + 1), GPT2_FORWARD);
        }
        if (gpt2_member_fetched(self)) return;
        join_next(self, layer + 1, all->blocks[layer].middle, all->projected,
                  gpt2_member_weight(self, layer, GPT2_FCPROJ_B));
        gpt2_member_meet(self);
        gpt2_member_return(self, gpt2_layout_group(layer), GPT2_FORWARD);
    }
}

static void forward_member(void *argument, int index, int members)
{
    gpt2_member_t self;

    gpt2_member_init(&self, argument, index, members);
    gpt2_member_span_begin(&self, "forward");
    forward_blocks(&self);
    gpt2_member_span_end(&self);
}

void gpt2_model_forward(gpt2_model_t *model, const gpt2_batch_t *batch, const gpt2_hooks_t *hooks)
{
    gpt2_pass_t pass = {.model = model, .batch = batch, .hooks = hooks};

    if (model->is_stopped) return;
    if (batch->count > 0) {
        gpt2_team_run(model->team, forward_member, &pass);
    } else if (model->supply != NULL) {
        gpt2_walk_forward(&pass);
    }
}

/* The end of a pass without backward. */
static void return_head(const gpt2_member_t *self)
{
    gpt2_member_meet(self);
    gpt2_member_return(self, GPT2_GROUP_WTE, GPT2_FORWARD);
    gpt2_member_return(self, GPT2_GROUP_ROOT, GPT2_FORWARD);
}

/*
 * The head works on head_rows rows at a time: logits, loss, their gradient in place, the gradient
 * of the final norm's output, and the tied embedding's gradient. Logits of the whole batch never
 * exist together.
 */
static void head_member(void *argument, int index, int members)
{
    gpt2_pass_t *pass = argument;
    gpt2_member_t self;
    gpt2_activations_t *all;
    gpt2_model_t *model = pass->model;
    size_t vocab = (size_t)model->options.shape.vocab;
    size_t wte_index = gpt2_layout_wte(model->layout);
    const float *wte;
    double loss = 0.0;
    size_t v_first;
    size_t v_last;

    gpt2_member_init(&self, pass, index, members);
    all = self.all;
    if (pass->training) gpt2_member_fetch(&self, GPT2_GROUP_WTE, GPT2_BACKWARD);
    if (gpt2_member_fetched(&self)) return;
    wte = gpt2_model_weight(model, wte_index);
    gpt2_team_part(vocab, 16, index, members, &v_first, &v_last);
    for (size_t base = 0; base < self.rows; base += all->head_rows) {
        size_t rows = self.rows - base < all->head_rows ? self.rows - base : all->head_rows;
        size_t first;
        size_t last;

        gpt2_team_part(rows, 1, index, members, &first, &last);
        gpt2_member_span_begin(&self, "forward head");
        if (last > first) {
            model->gemm(0, 1, last - first, vocab, self.width, 1.0f,
                        all->lnf + (base + first) * self.width, self.width, wte, self.width, 0.0f,
                        all->logits + first * vocab, vocab, self.gemm_scratch);
        }
        for (size_t row = first; row < last; row++) {
            loss += self.kernels->cross_entropy(all->logits + row * vocab, vocab,
                                                pass->batch->targets[base + row], pass->weight,
                                                pass->training);
        }
        gpt2_member_span_end(&self);
        if (!pass->training) continue;
        gpt2_member_span_begin(&self, "backward head");
        if (last > first) {
            model->gemm(0, 0, last - first, self.width, vocab, 1.0f, all->logits + first * vocab,
                        vocab, wte, self.width, 0.0f, all->d_normed + (base + first) * self.width,
                        self.width, self.gemm_scratch);
        }
        gpt2_team_barrier(model->team);
        if (v_last > v_first) {
            float *d_wte = gpt2_model_gradient(model, wte_index);

            model->gemm(1, 0, v_last - v_first, self.width, rows, 1.0f, all->logits + v_first,
                        vocab, all->lnf + base * self.width, self.width,
                        base == 0 && !pass->accumulate ? 0.0f : 1.0f, d_wte + v_first * self.width,
                        self.width, self.gemm_scratch);
        }
        gpt2_team_barrier(model->team);
        gpt2_member_span_end(&self);
    }
    all->loss_sums[8 * (size_t)index] = loss;
    if (!pass->training) return_head(&self);
}

double gpt2_model_head(gpt2_model_t *model, const gpt2_batch_t *batch, int training, float weight,
                       int accumulate, const gpt2_hooks_t *hooks)
{
    double loss = 0.0;
    gpt2_pass_t pass = {.model = model,
                        .batch = batch,
                        .hooks = hooks,
                        .training = training,
                        .weight = weight,
                        .accumulate = accumulate};

    if (model->is_stopped) return 0.0;
    if (batch->count == 0) {
        if (model->supply != NULL) gpt2_walk_head(&pass);
        return 0.0;
    }
    gpt2_team_run(model->team, head_member, &pass);
    if (model->is_stopped) return 0.0;
    for (size_t i = 0; i < (size_t)gpt2_team_members(model->team); i++) {
        loss += model->activations->loss_sums[8 * i];
    }
    return loss;
}

static void logits_member(void *argument, int index, int members)
{
    gpt2_pass_t *pass = argument;
    gpt2_model_t *model = pass->model;
    gpt2_member_t self;

    gpt2_member_init(&self, pass, index, members);
    gpt2_member_linear(&self, pass->logits, self.all->lnf,
                       gpt2_model_weight(model, gpt2_layout_wte(model->layout)), self.width,
                       (size_t)model->options.shape.vocab);
    return_head(&self);
}

void gpt2_model_logits(gpt2_model_t *model, const gpt2_batch_t *batch, float *logits)
{
    gpt2_pass_t pass = {.model = model, .batch = batch, .logits = logits};

    if (model->is_stopped) return;
    if (batch->count > 0) {
        gpt2_team_run(model->team, logits_member, &pass);
    } else if (model->supply != NULL) {
        gpt2_walk_head(&pass);
    }
}
