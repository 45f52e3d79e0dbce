/*
 * generate.c - inference of one token at a time.
 *
 * Each new token costs one matrix-vector product per weight; the keys and values of earlier tokens
 * are kept. Runs on the calling thread.
 */
#include "examples/gpt2/model/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"

struct gpt2_generator {
    const gpt2_model_t *model;
    int32_t *tokens; /* [context] that the cache holds */
    size_t count;
    float *memory; /* all of the following */
    float *keys;   /* [layers][context][C] */
    float *values; /* [layers][context][C] */
    float *stream; /* [C] */
    float *normed; /* [C] */
    float *qkv;    /* [3C] */
    float *mixed;  /* [C] */
    float *fc;     /* [4C] */
    float *gelu;   /* [4C] */
    float *scores; /* [context] */
    float *logits; /* [vocab] */
};

int gpt2_generator_create(const gpt2_model_t *model, gpt2_generator_t **out, gpt2_error_t *error)
{
    const gpt2_shape_t *shape = &model->layout->shape;
    size_t width = (size_t)shape->width;
    size_t context = (size_t)shape->context;
    size_t cache = (size_t)shape->layers * context * width;
    gpt2_generator_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a generator");
    self->model = model;
    self->tokens = calloc(context, sizeof(*self->tokens));
    self->memory = calloc(2 * cache + 14 * width + context + (size_t)shape->vocab, sizeof(float));
    if (self->tokens == NULL || self->memory == NULL) {
        gpt2_generator_destroy(self);
        return gpt2_fail(error, "out of memory for the keys and values of %d tokens",
                         shape->context);
    }
    self->keys = self->memory;
    self->values = self->keys + cache;
    self->stream = self->values + cache;
    self->normed = self->stream + width;
    self->qkv = self->normed + width;
    self->mixed = self->qkv + 3 * width;
    self->fc = self->mixed + width;
    self->gelu = self->fc + 4 * width;
    self->scores = self->gelu + 4 * width;
    self->logits = self->scores + context;
    *out = self;
    return 0;
}

void gpt2_generator_destroy(gpt2_generator_t *self)
{
    if (self == NULL) return;
    free(self->tokens);
    free(self->memory);
    free(self);
}

static const float *layer_weight(const gpt2_generator_t *self, int layer, gpt2_block_tensor_t which)
{
    size_t index = gpt2_layout_block(self->model->layout, layer) + (size_t)which;

    return gpt2_model_weight(self->model, index);
}

/* normed = norm(stream) */
static void norm_token(gpt2_generator_t *self, const float *weights, const float *shift)
{
    float mean;
    float rstd;

    self->model->kernels->add_norm(self->normed, NULL, &mean, &rstd, self->stream, NULL, NULL,
                                   weights, shift, 1, (size_t)self->model->layout->shape.width);
}

/* mixed = attention of the token at `position` over itself and those before. */
static void attend_token(gpt2_generator_t *self, int layer, size_t position)
{
    const gpt2_shape_t *shape = &self->model->layout->shape;
    size_t width = (size_t)shape->width;
    size_t size = width / (size_t)shape->heads;
    float scale = 1.0f / sqrtf((float)size);
    float *keys = self->keys + (size_t)layer * (size_t)shape->context * width;
    float *values = self->values + (size_t)layer * (size_t)shape->context * width;

    memcpy(keys + position * width, self->qkv + width, width * sizeof(float));
    memcpy(values + position * width, self->qkv + 2 * width, width * sizeof(float));
    memset(self->mixed, 0, width * sizeof(float));
    for (size_t at = 0; at < width; at += size) {
        float lse;

        for (size_t t = 0; t <= position; t++) {
            self->scores[t] =
                self->model->kernels->dot(self->qkv + at, keys + t * width + at, size);
        }
        self->model->kernels->causal_softmax(self->scores, &lse, scale, position, 1, position + 1);
        for (size_t t = 0; t <= position; t++) {
            const float *value = values + t * width + at;
            for (size_t i = 0; i < size; i++)
                self->mixed[at + i] += self->scores[t] * value[i];
        }
    }
}

/* One token through all blocks; its logits only where they are wanted. */
static void step(gpt2_generator_t *self, int32_t token, int want_logits)
{
    const gpt2_model_t *model = self->model;
    const gpt2_layout_t *layout = model->layout;
    const gpt2_kernels_t *kernels = model->kernels;
    size_t width = (size_t)layout->shape.width;
    size_t position = self->count++;
    const float *wte = gpt2_model_weight(model, gpt2_layout_wte(layout));
    const float *wpe = gpt2_model_weight(model, gpt2_layout_wpe(layout));

    self->tokens[position] = token;
    kernels->add(self->stream, wte + (size_t)token * width, wpe + position * width, width);
    for (int layer = 0; layer < layout->shape.layers; layer++) {
        norm_token(self, layer_weight(self, layer, GPT2_LN1_W),
                   layer_weight(self, layer, GPT2_LN1_B));
        kernels->matvec(self->qkv, layer_weight(self, layer, GPT2_QKV_W), self->normed,
                        layer_weight(self, layer, GPT2_QKV_B), 3 * width, width);
        attend_token(self, layer, position);
        kernels->matvec(self->normed, layer_weight(self, layer, GPT2_PROJ_W), self->mixed,
                        layer_weight(self, layer, GPT2_PROJ_B), width, width);
        kernels->add(self->stream, self->stream, self->normed, width);
        norm_token(self, layer_weight(self, layer, GPT2_LN2_W),
                   layer_weight(self, layer, GPT2_LN2_B));
        kernels->matvec(self->fc, layer_weight(self, layer, GPT2_FC_W), self->normed, NULL,
                        4 * width, width);
        kernels->gelu(self->gelu, self->fc, layer_weight(self, layer, GPT2_FC_B), 1, 4 * width);
        kernels->matvec(self->normed, layer_weight(self, layer, GPT2_FCPROJ_W), self->gelu,
                        layer_weight(self, layer, GPT2_FCPROJ_B), width, 4 * width);
        kernels->add(self->stream, self->stream, self->normed, width);
    }
    if (!want_logits) return;
    norm_token(self, gpt2_model_weight(model, 0), gpt2_model_weight(model, 1));
    kernels->matvec(self->logits, wte, self->normed, NULL, (size_t)layout->shape.vocab, width);
}

const float *gpt2_generator_feed(gpt2_generator_t *self, int32_t token)
{
    size_t context = (size_t)self->model->layout->shape.context;

    if (self->count == context) {
        /* Positions are learned, so a shifted window must be computed anew. */
        size_t kept = context / 2;

        memmove(self->tokens, self->tokens + context - kept, kept * sizeof(*self->tokens));
        self->count = 0;
        for (size_t i = 0; i < kept; i++)
            step(self, self->tokens[i], 0);
    }
    step(self, token, 1);
    return self->logits;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The k-th largest logit. */
static float threshold(const float *logits, size_t vocab, int top_k)
{
    float value;
    float *sorted = malloc(vocab * sizeof(*sorted));

    if (sorted == NULL) return -INFINITY; /* then all are candidates */
    memcpy(sorted, logits, vocab * sizeof(*sorted));
    qsort(sorted, vocab, sizeof(*sorted), descending);
    value = sorted[top_k - 1];
    free(sorted);
    return value;
}

int32_t gpt2_generator_pick(const gpt2_generator_t *self, const float *logits,
                            const gpt2_sampling_t *sampling, uint64_t index)
{
    size_t vocab = (size_t)self->model->layout->shape.vocab;
    size_t best = 0;
    float lowest = -INFINITY;
    double total = 0.0;
    double target;

    for (size_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    if (sampling->temperature <= 0.0) return (int32_t)best;
    if (sampling->top_k > 0 && (size_t)sampling->top_k < vocab) {
        lowest = threshold(logits, vocab, sampling->top_k);
    }
    for (size_t i = 0; i < vocab; i++) {
        if (logits[i] < lowest) continue;
        total += exp((double)(logits[i] - logits[best]) / sampling->temperature);
    }
    target = total * gpt2_random_uniform(sampling->seed, 0, index);
    for (size_t i = 0; i < vocab; i++) {
        if (logits[i] < lowest) continue;
        target -= exp((double)(logits[i] - logits[best]) / sampling->temperature);
        if (target < 0.0) return (int32_t)i;
    }
    return (int32_t)best; /* rounding ate the last of the mass */
}
