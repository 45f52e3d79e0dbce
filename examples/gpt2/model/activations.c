/*
 * activations.c - adds up the buffers of a pass and cuts them out of one allocation.
 *
 * The same functions run twice: first with a NULL block, which gives the size, then with the
 * allocated one, which gives the pointers. So the two cannot disagree.
 */
#include "examples/gpt2/model/activations.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES ((size_t)1 << 20) /* logits worked on at a time stay near the cache ... */
#define HEAD_ROWS_MIN 256            /* ... but the products need rows enough to be efficient */

/* Hands out pieces; with memory NULL it only counts. */
typedef struct float_cutter {
    float *memory;
    size_t used;
} float_cutter_t;

static float *cut_floats(float_cutter_t *cutter, size_t count)
{
    float *piece = cutter->memory == NULL ? NULL : cutter->memory + cutter->used;

    cutter->used += (count + GPT2_VECTOR_ALIGN - 1) & ~(size_t)(GPT2_VECTOR_ALIGN - 1);
    return piece;
}

static void cut_block(float_cutter_t *cutter, gpt2_block_activations_t *block,
                      const gpt2_model_options_t *options)
{
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t width = (size_t)options->shape.width;

    block->input = cut_floats(cutter, rows * width);
    block->ln1 = cut_floats(cutter, rows * width);
    block->ln1_mean = cut_floats(cutter, rows);
    block->ln1_rstd = cut_floats(cutter, rows);
    block->qkv = cut_floats(cutter, rows * width * 3);
    block->attention = cut_floats(cutter, rows * width);
    block->lse = cut_floats(cutter, rows * (size_t)options->shape.heads);
    block->middle = cut_floats(cutter, rows * width);
    block->ln2 = cut_floats(cutter, rows * width);
    block->ln2_mean = cut_floats(cutter, rows);
    block->ln2_rstd = cut_floats(cutter, rows);
    block->fc = cut_floats(cutter, rows * width * 4);
    block->gelu = cut_floats(cutter, rows * width * 4);
}

static size_t logit_rows(const gpt2_model_options_t *options)
{
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t fit = HEAD_BYTES / sizeof(float) / (size_t)options->shape.vocab;

    if (fit < HEAD_ROWS_MIN) fit = HEAD_ROWS_MIN;
    return fit < rows ? fit : rows;
}

static void cut_activations(float_cutter_t *cutter, gpt2_activations_t *all,
                            const gpt2_model_options_t *options)
{
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t width = (size_t)options->shape.width;
    size_t threads = (size_t)options->threads;
    gpt2_block_activations_t shared;

    memset(&shared, 0, sizeof(shared));
    if (!options->training) cut_block(cutter, &shared, options);
    for (int layer = 0; layer < options->shape.layers; layer++) {
        gpt2_block_activations_t *block = all->blocks == NULL ? &shared : &all->blocks[layer];

        if (options->training) {
            cut_block(cutter, block, options);
        } else {
            *block = shared;
        }
    }
    /* Without training the stream is updated in place. */
    all->output = options->training ? cut_floats(cutter, rows * width) : shared.input;
    all->lnf = cut_floats(cutter, rows * width);
    all->lnf_mean = cut_floats(cutter, rows);
    all->lnf_rstd = cut_floats(cutter, rows);
    all->projected = cut_floats(cutter, rows * width);
    all->head_rows = logit_rows(options);
    all->logits = cut_floats(cutter, all->head_rows * (size_t)options->shape.vocab);
    if (options->training) {
        all->d_stream = cut_floats(cutter, rows * width);
        all->d_normed = cut_floats(cutter, rows * width);
        all->d_attention = cut_floats(cutter, rows * width);
        all->d_qkv = cut_floats(cutter, rows * width * 3);
        all->d_fc = cut_floats(cutter, rows * width * 4);
        all->norm_sums = cut_floats(cutter, 4 * threads * width);
    }
    all->gemm_scratch = cut_floats(cutter, threads * GPT2_GEMM_SCRATCH);
    all->score_stride = 2 * (size_t)GPT2_SCORE_ROWS * (size_t)options->length + GPT2_SCORE_ROWS;
    all->score_scratch = cut_floats(cutter, threads * all->score_stride);
    all->loss_sums = (double *)(void *)cut_floats(cutter, threads * 16);
}

int gpt2_activations_create(const gpt2_model_options_t *options, gpt2_activations_t **out,
                            size_t *bytes, gpt2_error_t *error)
{
    float_cutter_t cutter = {NULL, 0};
    gpt2_activations_t counted;
    gpt2_activations_t *all;

    memset(&counted, 0, sizeof(counted));
    cut_activations(&cutter, &counted, options);
    *bytes = cutter.used * sizeof(float);
    if (out == NULL) return 0;
    all = calloc(1, sizeof(*all));
    if (all == NULL) return gpt2_fail(error, "out of memory for the activations' plan");
    all->blocks = calloc((size_t)options->shape.layers, sizeof(*all->blocks));
    all->memory = aligned_alloc(256, *bytes);
    if (all->blocks == NULL || all->memory == NULL) {
        gpt2_activations_destroy(all);
        return gpt2_fail(error,
                         "out of memory: %zu MiB for the activations of %d sequences of %d tokens; "
                         "a smaller --batch or a larger --accumulate needs less",
                         *bytes >> 20, options->batch, options->length);
    }
    cutter.memory = all->memory;
    cutter.used = 0;
    cut_activations(&cutter, all, options);
    *out = all;
    return 0;
}

void gpt2_activations_destroy(gpt2_activations_t *all)
{
    if (all == NULL) return;
    free(all->blocks);
    free(all->memory);
    free(all);
}
