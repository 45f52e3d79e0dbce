/*
 * backward.c - gradients, from the final norm down to the embeddings.
 *
 * A block's gradients are handed over as soon as the launches that write them are queued: libdp
 * orders what it does behind them on the stream. The tied embedding comes last, as its gradient is
 * the head's plus the rows that the batch looked up; where those lie apart it comes first, and they
 * last.
 */
#include "examples/gpt2/cuda/replica.h"

#include "examples/gpt2/cuda/attention.h"
#include "examples/gpt2/cuda/kernels.h"

static const void *block_weight(const gpt2_cuda_replica_t *self, int layer,
                                gpt2_block_tensor_t which)
{
    return gpt2_cuda_weight(self, gpt2_cuda_block_index(self, layer, which));
}

static float *block_gradient(const gpt2_cuda_replica_t *self, int layer, gpt2_block_tensor_t which)
{
    return gpt2_cuda_gradient(self, gpt2_cuda_block_index(self, layer, which));
}

/* Level 2: gradients are numbers of 16 bits before anybody sees them. Tensors that lie behind each
 * other are one launch. */
static void round_gradients(gpt2_cuda_pass_t *pass, size_t first, size_t count)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_tensor_t *tensors = self->layout->tensors;

    if (self->plan.options.level < 2) return;
    for (size_t i = first; i < first + count;) {
        const gpt2_tensor_t *begin = &tensors[i];
        size_t end = begin->place + begin->count;

        for (i++; i < first + count && tensors[i].group == begin->group && tensors[i].place >= end;
             i++)
            end = tensors[i].place + tensors[i].count;
        gpt2_cuda_note(pass, "gradients to 16 bits",
                       gpt2_cuda_round(self->stream, self->type,
                                       self->gradients_at[begin->group] + begin->place,
                                       end - begin->place));
    }
}

void gpt2_cuda_hand_over(gpt2_cuda_pass_t *pass, size_t first, size_t count)
{
    const gpt2_hooks_t *hooks = pass->hooks;

    if (pass->rows > 0) round_gradients(pass, first, count);
    if (pass->code != 0 || pass->stopped || hooks == NULL || hooks->ready == NULL) return;
    if (hooks->ready(hooks->user, first, count) != 0) pass->stopped = 1;
}

/* d_stream += (fresh: =) what d_normed is behind a norm. stream_sums = the sums of d_stream's
 * columns: the gradient of the bias that was added to the stream before the norm. */
static void cuda_norm_backward(gpt2_cuda_pass_t *pass, int fresh, size_t index, const void *x,
                               const float *mean, const float *rstd)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;

    gpt2_cuda_note(pass, "norm backward",
                   gpt2_cuda_norm_backward(self->stream, self->type, all->d_stream, fresh,
                                           gpt2_cuda_gradient(self, index),
                                           gpt2_cuda_gradient(self, index + 1), pass->accumulate,
                                           all->stream_sums, all->d_normed, x,
                                           gpt2_cuda_full_weight(self, index), mean, rstd,
                                           all->scratch, pass->rows, pass->width));
}

/* From where the norm behind left it: the gradients of this block may not have been there yet. */
static void take_stream_sums(gpt2_cuda_pass_t *pass, float *to)
{
    gpt2_cuda_replica_t *self = pass->self;
    const float *sums = self->pass.stream_sums;

    gpt2_cuda_note(pass, "bias",
                   pass->accumulate
                       ? gpt2_cuda_add_bias(self->stream, GPT2_CUDA_F32, to, sums, 1, pass->width)
                       : (int)cudaMemcpyAsync(to, sums, pass->width * sizeof(float),
                                              cudaMemcpyDeviceToDevice, self->stream));
}

static void recompute_norm(gpt2_cuda_pass_t *pass, int layer, gpt2_block_tensor_t which, void *out,
                           const void *x)
{
    gpt2_cuda_replica_t *self = pass->self;
    const size_t index = gpt2_cuda_block_index(self, layer, which);

    if (self->plan.options.recompute < GPT2_RECOMPUTE_GELU_NORM) return;
    gpt2_cuda_note(pass, "norm again",
                   gpt2_cuda_norm_forward(self->stream, self->type, out, NULL, NULL, x,
                                          gpt2_cuda_full_weight(self, index),
                                          gpt2_cuda_full_weight(self, index + 1), pass->rows,
                                          pass->width));
}

/* d_stream is the gradient of the block's output, then of the stream between the halves. */
static void mlp_backward(gpt2_cuda_pass_t *pass, int layer)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_cuda_products_t *products = &self->products;
    const gpt2_cuda_block_t *block = &all->blocks[layer];

    if (self->plan.options.recompute >= GPT2_RECOMPUTE_GELU) {
        gpt2_cuda_note(pass, "gelu again",
                       gpt2_cuda_gelu_forward(self->stream, self->type, block->gelu, block->fc,
                                              NULL, pass->rows, 4 * pass->width));
    }
    gpt2_cuda_note(pass, "fcproj weight",
                   gpt2_matmul_weight(products->fcproj_weight, self->stream,
                                      block_gradient(self, layer, GPT2_FCPROJ_W), pass->accumulate,
                                      all->d_stream, block->gelu));
    take_stream_sums(pass, block_gradient(self, layer, GPT2_FCPROJ_B));
    gpt2_cuda_note(pass, "fcproj input",
                   gpt2_matmul_input(products->fcproj_input, self->stream, all->d_fc, all->d_stream,
                                     block_weight(self, layer, GPT2_FCPROJ_W), block->fc,
                                     block_gradient(self, layer, GPT2_FC_B), pass->accumulate));
    recompute_norm(pass, layer, GPT2_LN2_W, block->ln2, block->middle);
    gpt2_cuda_note(pass, "fc weight",
                   gpt2_matmul_weight(products->fc_weight, self->stream,
                                      block_gradient(self, layer, GPT2_FC_W), pass->accumulate,
                                      all->d_fc, block->ln2));
    gpt2_cuda_note(pass, "fc input",
                   gpt2_matmul_input(products->fc_input, self->stream, all->d_normed, all->d_fc,
                                     block_weight(self, layer, GPT2_FC_W), NULL, NULL, 0));
    cuda_norm_backward(pass, 0, gpt2_cuda_block_index(self, layer, GPT2_LN2_W), block->middle,
                       block->ln2_mean, block->ln2_rstd);
}

static void attention_backward(gpt2_cuda_pass_t *pass, int layer)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_cuda_products_t *products = &self->products;
    const gpt2_cuda_block_t *block = &all->blocks[layer];
    const int heads = self->layout->shape.heads;
    const int size = self->layout->shape.width / heads;

    gpt2_cuda_note(pass, "proj weight",
                   gpt2_matmul_weight(products->proj_weight, self->stream,
                                      block_gradient(self, layer, GPT2_PROJ_W), pass->accumulate,
                                      all->d_stream, block->attention));
    take_stream_sums(pass, block_gradient(self, layer, GPT2_PROJ_B));
    gpt2_cuda_note(pass, "proj input",
                   gpt2_matmul_input(products->proj_input, self->stream, all->d_attention,
                                     all->d_stream, block_weight(self, layer, GPT2_PROJ_W), NULL,
                                     NULL, 0));
    gpt2_cuda_note(pass, "attention backward",
                   gpt2_attention_backward(
                       self->stream, self->type, block->qkv, block->attention, all->d_attention,
                       block->lse, all->d_qkv, block_gradient(self, layer, GPT2_QKV_B),
                       pass->accumulate, all->scratch, (int)(pass->rows / self->length),
                       (int)self->length, heads, size));
    recompute_norm(pass, layer, GPT2_LN1_W, block->ln1, block->input);
    gpt2_cuda_note(pass, "qkv weight",
                   gpt2_matmul_weight(products->qkv_weight, self->stream,
                                      block_gradient(self, layer, GPT2_QKV_W), pass->accumulate,
                                      all->d_qkv, block->ln1));
    gpt2_cuda_note(pass, "qkv input",
                   gpt2_matmul_input(products->qkv_input, self->stream, all->d_normed, all->d_qkv,
                                     block_weight(self, layer, GPT2_QKV_W), NULL, NULL, 0));
    cuda_norm_backward(pass, 0, gpt2_cuda_block_index(self, layer, GPT2_LN1_W), block->input,
                       block->ln1_mean, block->ln1_rstd);
}

/* Positions, and what was looked up: added to the head's part of the tokens' gradient, or in rows
 * of its own, where those of tokens that only other ranks have stay zeros. */
static void embedding_backward(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_layout_t *layout = self->layout;
    float *rows = self->base.rows;
    float *to = rows != NULL ? rows : gpt2_cuda_gradient(self, gpt2_layout_wte(layout));

    if (rows != NULL && !pass->accumulate) {
        gpt2_cuda_note(pass, "zeros",
                       (int)cudaMemsetAsync(rows, 0,
                                            self->base.row_count * pass->width * sizeof(float),
                                            self->stream));
    }
    gpt2_cuda_note(pass, "embedding backward",
                   gpt2_cuda_embed_backward(self->stream, self->type, to, 1,
                                            gpt2_cuda_gradient(self, gpt2_layout_wpe(layout)),
                                            pass->accumulate, all->d_stream, pass->embed_plan,
                                            all->scratch, pass->rows, self->length,
                                            (size_t)layout->shape.context, pass->width));
}

static void backward_blocks(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_layout_t *layout = self->layout;

    if (gpt2_cuda_fetch(pass, GPT2_GROUP_ROOT, GPT2_BACKWARD) != 0) return;
    if (self->base.rows != NULL) gpt2_cuda_hand_over(pass, gpt2_layout_wte(layout), 1);
    cuda_norm_backward(pass, 1, 0, all->output, all->lnf_mean, all->lnf_rstd);
    gpt2_cuda_hand_over(pass, 0, 2);
    for (int layer = layout->shape.layers - 1; layer >= 0; layer--) {
        if (gpt2_cuda_fetch(pass, gpt2_layout_group(layer), GPT2_BACKWARD) != 0) return;
        gpt2_cuda_span_begin(pass, self->block_names[layer]);
        mlp_backward(pass, layer);
        attention_backward(pass, layer);
        gpt2_cuda_span_end(pass);
        gpt2_cuda_hand_over(pass, gpt2_layout_block(layout, layer), GPT2_BLOCK_TENSORS);
        gpt2_cuda_return(pass, gpt2_layout_group(layer), GPT2_BACKWARD);
    }
    embedding_backward(pass);
    if (self->base.rows == NULL) {
        gpt2_cuda_hand_over(pass, gpt2_layout_wpe(layout), 2);
    } else {
        gpt2_cuda_hand_over(pass, gpt2_layout_wpe(layout), 1);
        gpt2_cuda_hand_over(pass, layout->count, 1);
    }
    gpt2_cuda_return(pass, GPT2_GROUP_WTE, GPT2_BACKWARD);
    gpt2_cuda_return(pass, GPT2_GROUP_ROOT, GPT2_BACKWARD);
}

void gpt2_cuda_backward(gpt2_cuda_pass_t *pass)
{
    if (pass->self->is_stopped) return;
    gpt2_cuda_span_begin(pass, "backward");
    backward_blocks(pass);
    gpt2_cuda_span_end(pass);
}
