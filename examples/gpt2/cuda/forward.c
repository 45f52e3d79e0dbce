/*
 * forward.c - the blocks, the head and its loss, as launches on the replica's stream.
 *
 * A block is seven launches: four products, two of which add to the stream as they are stored,
 * attention, and two norms.
 */
#include "examples/gpt2/cuda/replica.h"

#include "examples/gpt2/cuda/attention.h"
#include "examples/gpt2/cuda/kernels.h"

int gpt2_cuda_check(int code, const char *what, gpt2_error_t *error)
{
    if (code == 0) return 0;
    return gpt2_fail(error, "GPU: %s: %s", what, cudaGetErrorString((cudaError_t)code));
}

void gpt2_cuda_note(gpt2_cuda_pass_t *pass, const char *what, int code)
{
    if (code == 0 || pass->code != 0) return;
    pass->code = code;
    pass->what = what;
}

const void *gpt2_cuda_weight(const gpt2_cuda_replica_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->layout->tensors[index];

    return gpt2_cuda_at(self, self->low_at[tensor->group], tensor->place);
}

const float *gpt2_cuda_full_weight(const gpt2_cuda_replica_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->layout->tensors[index];

    if (self->plan.options.level == 2) return self->state.vectors + self->vector_places[index];
    return self->full_at[tensor->group] + tensor->place;
}

float *gpt2_cuda_gradient(const gpt2_cuda_replica_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->layout->tensors[index];

    return self->gradients_at[tensor->group] + tensor->place;
}

size_t gpt2_cuda_block_index(const gpt2_cuda_replica_t *self, int layer, gpt2_block_tensor_t which)
{
    return gpt2_layout_block(self->layout, layer) + (size_t)which;
}

void *gpt2_cuda_at(const gpt2_cuda_replica_t *self, void *array, size_t at)
{
    return (char *)array + at * gpt2_cuda_type_bytes(self->type);
}

void gpt2_cuda_span_begin(const gpt2_cuda_pass_t *pass, const char *name)
{
    if (pass->hooks != NULL && pass->hooks->span_begin != NULL) {
        pass->hooks->span_begin(pass->hooks->user, name);
    }
}

void gpt2_cuda_span_end(const gpt2_cuda_pass_t *pass)
{
    if (pass->hooks != NULL && pass->hooks->span_end != NULL) {
        pass->hooks->span_end(pass->hooks->user);
    }
}

static const void *block_weight(const gpt2_cuda_replica_t *self, int layer,
                                gpt2_block_tensor_t which)
{
    return gpt2_cuda_weight(self, gpt2_cuda_block_index(self, layer, which));
}

static const float *vector(const gpt2_cuda_replica_t *self, int layer, gpt2_block_tensor_t which)
{
    return gpt2_cuda_full_weight(self, gpt2_cuda_block_index(self, layer, which));
}

/* Where the stream is behind a block: the next one's input, or the last one's output. */
static void *stream_behind(const gpt2_cuda_replica_t *self, int layer)
{
    const gpt2_cuda_activations_t *all = &self->pass;

    return layer + 1 < self->layout->shape.layers ? all->blocks[layer + 1].input : all->output;
}

/* The first norm of a block, or behind the last one the final norm. */
static void norm_stream(gpt2_cuda_pass_t *pass, int layer)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const int is_final = layer == self->layout->shape.layers;
    const gpt2_cuda_block_t *block = is_final ? NULL : &all->blocks[layer];
    const size_t index = is_final ? 0 : gpt2_cuda_block_index(self, layer, GPT2_LN1_W);

    gpt2_cuda_note(pass, "norm",
                   gpt2_cuda_norm_forward(
                       self->stream, self->type, is_final ? all->lnf : block->ln1,
                       is_final ? all->lnf_mean : block->ln1_mean,
                       is_final ? all->lnf_rstd : block->ln1_rstd,
                       is_final ? all->output : block->input, gpt2_cuda_full_weight(self, index),
                       gpt2_cuda_full_weight(self, index + 1), pass->rows, pass->width));
}

static void forward_block(gpt2_cuda_pass_t *pass, int layer)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_cuda_products_t *products = &self->products;
    const gpt2_cuda_block_t *block = &self->pass.blocks[layer];
    const int heads = self->layout->shape.heads;
    const int size = self->layout->shape.width / heads;

    gpt2_cuda_note(pass, "qkv",
                   gpt2_matmul_forward(products->qkv, self->stream, block->qkv, NULL, block->ln1,
                                       block_weight(self, layer, GPT2_QKV_W),
                                       block_weight(self, layer, GPT2_QKV_B), NULL));
    gpt2_cuda_note(pass, "attention",
                   gpt2_attention_forward(self->stream, self->type, block->qkv, block->attention,
                                          block->lse, (int)(pass->rows / self->length),
                                          (int)self->length, heads, size));
    gpt2_cuda_note(pass, "proj",
                   gpt2_matmul_forward(products->proj, self->stream, block->middle, NULL,
                                       block->attention, block_weight(self, layer, GPT2_PROJ_W),
                                       block_weight(self, layer, GPT2_PROJ_B), block->input));
    gpt2_cuda_note(
        pass, "norm",
        gpt2_cuda_norm_forward(self->stream, self->type, block->ln2, block->ln2_mean,
                               block->ln2_rstd, block->middle, vector(self, layer, GPT2_LN2_W),
                               vector(self, layer, GPT2_LN2_B), pass->rows, pass->width));
    gpt2_cuda_note(pass, "fc",
                   gpt2_matmul_forward(products->fc, self->stream, block->gelu, block->fc,
                                       block->ln2, block_weight(self, layer, GPT2_FC_W),
                                       block_weight(self, layer, GPT2_FC_B), NULL));
    gpt2_cuda_note(pass, "fcproj",
                   gpt2_matmul_forward(products->fcproj, self->stream, stream_behind(self, layer),
                                       NULL, block->gelu, block_weight(self, layer, GPT2_FCPROJ_W),
                                       block_weight(self, layer, GPT2_FCPROJ_B), block->middle));
}

/* The norm behind a block is the next one's first and is joined to its end, so for that moment a
 * pass needs the weights of both. */
static void forward_blocks(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_cuda_block_t *first = &self->pass.blocks[0];
    const gpt2_layout_t *layout = self->layout;
    const int layers = layout->shape.layers;

    if (gpt2_cuda_fetch(pass, GPT2_GROUP_WTE, GPT2_FORWARD) != 0 ||
        gpt2_cuda_fetch(pass, GPT2_GROUP_ROOT, GPT2_FORWARD) != 0 ||
        gpt2_cuda_fetch(pass, gpt2_layout_group(0), GPT2_FORWARD) != 0) {
        return;
    }
    gpt2_cuda_note(pass, "embedding",
                   gpt2_cuda_embed_forward(self->stream, self->type, first->input, pass->inputs,
                                           gpt2_cuda_weight(self, gpt2_layout_wte(layout)),
                                           gpt2_cuda_weight(self, gpt2_layout_wpe(layout)),
                                           pass->rows, self->length, pass->width,
                                           layout->shape.vocab));
    norm_stream(pass, 0);
    for (int layer = 0; layer < layers; layer++) {
        forward_block(pass, layer);
        if (layer + 1 < layers &&
            gpt2_cuda_fetch(pass, gpt2_layout_group(layer + 1), GPT2_FORWARD) != 0) {
            return;
        }
        norm_stream(pass, layer + 1);
        gpt2_cuda_return(pass, gpt2_layout_group(layer), GPT2_FORWARD);
    }
}

void gpt2_cuda_forward(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_span_begin(pass, "forward");
    forward_blocks(pass);
    gpt2_cuda_span_end(pass);
}

void gpt2_cuda_head_logits(gpt2_cuda_pass_t *pass, size_t part)
{
    gpt2_cuda_replica_t *self = pass->self;
    size_t first = part * self->plan.head_rows;

    gpt2_cuda_note(pass, "head",
                   gpt2_matmul_forward(self->products.head, self->stream, self->pass.logits, NULL,
                                       gpt2_cuda_at(self, self->pass.lnf, first * pass->width),
                                       gpt2_cuda_weight(self, gpt2_layout_wte(self->layout)), NULL,
                                       NULL));
}

/* Gradients of the part's rows: of the final norm's output, and of the tied embedding. */
static void head_backward(gpt2_cuda_pass_t *pass, size_t part, size_t counted)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const size_t rows = self->plan.head_rows;
    const size_t vocab = (size_t)self->layout->shape.vocab_padded;
    const size_t at = part * rows * pass->width;
    const size_t wte = gpt2_layout_wte(self->layout);

    if (counted < rows) {
        gpt2_cuda_note(
            pass, "head",
            (int)cudaMemsetAsync(gpt2_cuda_at(self, all->logits, counted * vocab), 0,
                                 (rows - counted) * vocab * gpt2_cuda_type_bytes(self->type),
                                 self->stream));
    }
    gpt2_cuda_note(pass, "head",
                   gpt2_matmul_input(self->products.head_input, self->stream,
                                     gpt2_cuda_at(self, all->d_normed, at), all->logits,
                                     gpt2_cuda_weight(self, wte), NULL, NULL, 0));
    gpt2_cuda_note(pass, "head",
                   gpt2_matmul_weight(self->products.head_weight, self->stream,
                                      gpt2_cuda_gradient(self, wte), pass->accumulate || part > 0,
                                      all->logits, gpt2_cuda_at(self, all->lnf, at)));
}

/* Logits of the whole batch never exist together: part by part they become the loss and then their
 * own gradient. */
void gpt2_cuda_head(gpt2_cuda_pass_t *pass, double *loss)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_activations_t *all = &self->pass;
    const gpt2_shape_t *shape = &self->layout->shape;
    const size_t rows = self->plan.head_rows;

    if (self->is_stopped) return;
    if (pass->training && gpt2_cuda_fetch(pass, GPT2_GROUP_WTE, GPT2_BACKWARD) != 0) return;
    gpt2_cuda_span_begin(pass, "backward head");
    for (size_t part = 0; part < pass->rows / rows; part++) {
        size_t first = part * rows;
        size_t counted = pass->counted <= first         ? 0
                         : pass->counted - first < rows ? pass->counted - first
                                                        : rows;

        gpt2_cuda_head_logits(pass, part);
        gpt2_cuda_note(pass, "classifier",
                       gpt2_cuda_classifier(self->stream, self->type, all->losses + first,
                                            all->logits, pass->targets + first, pass->weight,
                                            pass->training, counted, shape->vocab,
                                            shape->vocab_padded));
        if (pass->training) head_backward(pass, part, counted);
    }
    gpt2_cuda_note(pass, "loss",
                   gpt2_cuda_sum(self->stream, loss, pass->training && pass->accumulate,
                                 all->losses, pass->counted, self->sum_scratch));
    if (!pass->training) gpt2_cuda_return_head(pass);
    gpt2_cuda_span_end(pass);
}
