/*
 * forward.c - the blocks, the head and its loss.
 *
 * Every member of the team runs the whole function on its own rows; barriers stand where rows
 * meet, which is only in attention.
 */
#include "examples/gpt2/model/pass.h"

#include <math.h>
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

/* stream [own rows] = token embedding + position embedding. A part has zeros for tokens of others
 * until the sum. */
static void embed_tokens(const gpt2_member_t *self, float *stream)
{
    const gpt2_model_t *model = self->model;
    const gpt2_layout_t *layout = model->layout;
    const float *wte = gpt2_model_weight(model, gpt2_layout_wte(layout));
    const float *wpe = gpt2_model_weight(model, gpt2_layout_wpe(layout));
    size_t width = self->width;

    for (size_t row = self->first; row < self->first + self->own; row++) {
        size_t token = (size_t)self->pass->batch->inputs[row] - model->local.first_token;
        float *to = stream + row * width;

        if (token < model->local.vocab) { /* a token below the first one wraps around */
            memcpy(to, wte + token * width, width * sizeof(*to));
        } else {
            memset(to, 0, width * sizeof(*to));
        }
    }
    gpt2_member_sum(self, stream, self->rows * width, 0);
    for (size_t row = self->first; row < self->first + self->own; row++) {
        float *to = stream + row * width;

        self->kernels->add(to, to, wpe + row % (size_t)self->pass->batch->length * width, width);
    }
}

/* All heads of all sequences, dealt out to the members. */
static void attend_heads(const gpt2_member_t *self, const gpt2_block_activations_t *block)
{
    size_t heads = self->model->local.heads;
    size_t width = self->model->local.width;
    size_t length = (size_t)self->pass->batch->length;
    size_t from;
    size_t to;

    gpt2_team_part((size_t)self->pass->batch->count * heads, 1, self->index, self->members, &from,
                   &to);
    for (size_t i = from; i < to; i++) {
        size_t row = i / heads * length;

        gpt2_head_attend(self->model, block->attention + row * width, block->lse + i * length,
                         block->qkv + row * 3 * width, (int)(i % heads), length,
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
    const size_t width = self->width;
    const size_t heads = self->model->local.width;
    const size_t hidden = self->model->local.hidden;

    gpt2_member_linear(self, block->qkv, block->ln1, gpt2_member_weight(self, layer, GPT2_QKV_W),
                       width, 3 * heads);
    self->kernels->add_bias(block->qkv + self->first * 3 * heads,
                            gpt2_member_weight(self, layer, GPT2_QKV_B), self->own, 3 * heads);
    gpt2_team_barrier(self->model->team);
    attend_heads(self, block);
    gpt2_team_barrier(self->model->team);
    gpt2_member_inner(self, GPT2_INNER_HEADS, self->first, self->own, all->projected,
                      block->attention + self->first * heads,
                      gpt2_member_weight(self, layer, GPT2_PROJ_W), 1);
    gpt2_member_sum(self, all->projected, self->rows * width, 0);
    join_norm(self, block->ln2, block->middle, block->ln2_mean, block->ln2_rstd, block->input,
              all->projected, gpt2_member_weight(self, layer, GPT2_PROJ_B),
              gpt2_member_weight(self, layer, GPT2_LN2_W),
              gpt2_member_weight(self, layer, GPT2_LN2_B));
    gpt2_member_linear(self, block->fc, block->ln2, gpt2_member_weight(self, layer, GPT2_FC_W),
                       width, hidden);
    self->kernels->gelu(block->gelu + self->first * hidden, block->fc + self->first * hidden,
                        gpt2_member_weight(self, layer, GPT2_FC_B), self->own, hidden);
    gpt2_member_inner(self, GPT2_INNER_HIDDEN, self->first, self->own, all->projected,
                      block->gelu + self->first * hidden,
                      gpt2_member_weight(self, layer, GPT2_FCPROJ_W), 1);
    gpt2_member_sum(self, all->projected, self->rows * width, 0);
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

/* ---- The head ------------------------------------------------------------------------------- */

/* Rows whose logits are at hand: `rows` from `base` on, of which a member has first .. last - 1. */
typedef struct chunk {
    size_t base;
    size_t rows;
    size_t first;
    size_t last;
} chunk_t;

static void find_highest(const gpt2_member_t *self, const chunk_t *chunk)
{
    const size_t vocab = self->model->local.vocab;

    for (size_t row = chunk->first; row < chunk->last; row++)
        self->all->highest[row] = self->kernels->largest(self->all->logits + row * vocab, vocab);
}

/* Makes logits their exponentials, and finds the sum and the target's logit, which is 0 where
 * another place has the target. In pieces the sums of these are added in order. */
static void find_totals(const gpt2_member_t *self, const chunk_t *chunk)
{
    const gpt2_model_t *model = self->model;
    const gpt2_local_t *here = &model->local;
    const int pieces = model->options.pieces > 1 ? model->options.pieces : 1;

    for (size_t row = chunk->first; row < chunk->last; row++) {
        float *logits = self->all->logits + row * here->vocab;
        const size_t target =
            (size_t)self->pass->batch->targets[chunk->base + row] - here->first_token;
        float total = 0.0f;

        self->all->totals[chunk->rows + row] = target < here->vocab ? logits[target] : 0.0f;
        for (int i = 0; i < pieces; i++) {
            const gpt2_local_t local =
                pieces == 1 ? *here : gpt2_local_of(&model->options.shape, pieces, i);

            total += self->kernels->exponentials(logits + local.first_token - here->first_token,
                                                 local.vocab, self->all->highest[row]);
        }
        self->all->totals[row] = total;
    }
}

/* The sum of the rows' losses; in training exponentials become the gradient of the logits. */
static double find_loss(const gpt2_member_t *self, const chunk_t *chunk)
{
    const gpt2_pass_t *pass = self->pass;
    const gpt2_local_t *here = &self->model->local;
    double loss = 0.0;

    for (size_t row = chunk->first; row < chunk->last; row++) {
        float *logits = self->all->logits + row * here->vocab;
        const size_t target = (size_t)pass->batch->targets[chunk->base + row] - here->first_token;
        const float total = self->all->totals[row];

        loss += log((double)total) -
                ((double)self->all->totals[chunk->rows + row] - (double)self->all->highest[row]);
        if (!pass->training) continue;
        self->kernels->scale(logits, pass->weight / total, here->vocab);
        if (target < here->vocab) logits[target] -= pass->weight;
    }
    return loss;
}

/* The softmax of the member's rows, and their loss: row by row where no other place has logits of
 * theirs, so that a row stays in the cache. */
static double softmax_rows(const gpt2_member_t *self, const chunk_t *chunk)
{
    double loss = 0.0;

    if (self->model->reducer == NULL) {
        chunk_t one = *chunk;

        for (size_t row = chunk->first; row < chunk->last; row++) {
            one.first = row;
            one.last = row + 1;
            find_highest(self, &one);
            find_totals(self, &one);
            loss += find_loss(self, &one);
        }
        return loss;
    }
    find_highest(self, chunk);
    gpt2_member_sum(self, self->all->highest, chunk->rows, 1);
    find_totals(self, chunk);
    gpt2_member_sum(self, self->all->totals, 2 * chunk->rows, 0);
    return find_loss(self, chunk);
}

/* The gradients of the final norm's output and of the tied embedding; the sum over places of the
 * one is under way while the other is computed. */
static void head_backward(const gpt2_member_t *self, const chunk_t *chunk, const float *wte)
{
    gpt2_activations_t *all = self->all;
    gpt2_model_t *model = self->model;
    const size_t vocab = model->local.vocab;
    const int is_fresh = chunk->base == 0 && !self->pass->accumulate;
    size_t first;
    size_t last;

    gpt2_team_part(vocab, 16, self->index, self->members, &first, &last);
    gpt2_member_inner(self, GPT2_INNER_VOCAB, chunk->base + chunk->first,
                      chunk->last - chunk->first, all->d_normed, all->logits + chunk->first * vocab,
                      wte, 0);
    gpt2_member_sum_start(self, all->d_normed + chunk->base * self->width,
                          chunk->rows * self->width, 0);
    gpt2_team_barrier(model->team);
    if (last > first) {
        float *d_wte = gpt2_model_gradient(model, gpt2_layout_wte(model->layout));

        model->gemm(1, 0, last - first, self->width, chunk->rows, 1.0f, all->logits + first, vocab,
                    all->lnf + chunk->base * self->width, self->width, is_fresh ? 0.0f : 1.0f,
                    d_wte + first * self->width, self->width, self->gemm_scratch);
    }
    gpt2_member_sum_finish(self);
    gpt2_team_barrier(model->team);
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
    const size_t vocab = model->local.vocab;
    const float *wte;
    double loss = 0.0;

    gpt2_member_init(&self, pass, index, members);
    all = self.all;
    if (pass->training) gpt2_member_fetch(&self, GPT2_GROUP_WTE, GPT2_BACKWARD);
    if (gpt2_member_fetched(&self)) return;
    wte = gpt2_model_weight(model, gpt2_layout_wte(model->layout));
    for (size_t base = 0; base < self.rows; base += all->head_rows) {
        chunk_t chunk = {.base = base, .rows = self.rows - base};

        if (chunk.rows > all->head_rows) chunk.rows = all->head_rows;
        gpt2_team_part(chunk.rows, 1, index, members, &chunk.first, &chunk.last);
        gpt2_member_span_begin(&self, "forward head");
        if (chunk.last > chunk.first) {
            model->gemm(0, 1, chunk.last - chunk.first, vocab, self.width, 1.0f,
                        all->lnf + (base + chunk.first) * self.width, self.width, wte, self.width,
                        0.0f, all->logits + chunk.first * vocab, vocab, self.gemm_scratch);
        }
        loss += softmax_rows(&self, &chunk);
        gpt2_member_span_end(&self);
        if (!pass->training) continue;
        gpt2_member_span_begin(&self, "backward head");
        head_backward(&self, &chunk, wte);
        gpt2_member_span_end(&self);
    }
    all->loss_sums[8 * (size_t)index] = model->options.stage.part == 0 ? loss : 0.0;
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
                       model->local.vocab);
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
