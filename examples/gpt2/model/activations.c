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
    const gpt2_stage_t stage = gpt2_stage_of(options);
    const gpt2_local_t local = gpt2_local_of(&options->shape, stage.parts, stage.part);
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t width = (size_t)options->shape.width;

    block->input = cut_floats(cutter, rows * width);
    block->ln1 = cut_floats(cutter, rows * width);
    block->ln1_mean = cut_floats(cutter, rows);
    block->ln1_rstd = cut_floats(cutter, rows);
    block->qkv = cut_floats(cutter, rows * local.width * 3);
    block->attention = cut_floats(cutter, rows * local.width);
    block->lse = cut_floats(cutter, rows * local.heads);
    block->middle = cut_floats(cutter, rows * width);
    block->ln2 = cut_floats(cutter, rows * width);
    block->ln2_mean = cut_floats(cutter, rows);
    block->ln2_rstd = cut_floats(cutter, rows);
    block->fc = cut_floats(cutter, rows * local.hidden);
    block->gelu = cut_floats(cutter, rows * local.hidden);
}

/* The same on every part, whatever it has of the vocabulary. */
static size_t logit_rows(const gpt2_model_options_t *options)
{
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t fit = HEAD_BYTES / sizeof(float) / (size_t)options->shape.vocab;

    if (fit < HEAD_ROWS_MIN) fit = HEAD_ROWS_MIN;
    return fit < rows ? fit : rows;
}

gpt2_stage_t gpt2_stage_of(const gpt2_model_options_t *options)
{
    if (options->stage.is_staged) return options->stage;
    return (gpt2_stage_t){
        .parts = 1, .last = options->shape.layers, .has_embedding = 1, .has_head = 1, .slots = 1};
}

/* The results of one forward that its backward reads. */
static void cut_kept(float_cutter_t *cutter, gpt2_kept_t *kept, const gpt2_model_options_t *options)
{
    const gpt2_stage_t stage = gpt2_stage_of(options);
    const size_t rows = (size_t)options->batch * (size_t)options->length;
    const size_t width = (size_t)options->shape.width;
    gpt2_block_activations_t shared;

    memset(&shared, 0, sizeof(shared));
    if (!options->training) cut_block(cutter, &shared, options);
    for (int layer = stage.first; layer < stage.last; layer++) {
        gpt2_block_activations_t *block = kept->blocks == NULL ? &shared : &kept->blocks[layer];

        if (options->training) {
            cut_block(cutter, block, options);
        } else {
            *block = shared;
        }
    }
    /* Without training the stream is updated in place. */
    kept->output = options->training ? cut_floats(cutter, rows * width) : shared.input;
    kept->lnf = cut_floats(cutter, rows * width);
    kept->lnf_mean = cut_floats(cutter, rows);
    kept->lnf_rstd = cut_floats(cutter, rows);
}

static void cut_activations(float_cutter_t *cutter, gpt2_activations_t *all,
                            const gpt2_model_options_t *options)
{
    const gpt2_stage_t stage = gpt2_stage_of(options);
    const gpt2_local_t local = gpt2_local_of(&options->shape, stage.parts, stage.part);
    size_t rows = (size_t)options->batch * (size_t)options->length;
    size_t width = (size_t)options->shape.width;
    size_t threads = (size_t)options->threads;

    for (int slot = 0; slot < stage.slots; slot++) {
        gpt2_kept_t counted = {.blocks = NULL};

        cut_kept(cutter, all->kept == NULL ? &counted : &all->kept[slot], options);
    }
    all->projected = cut_floats(cutter, rows * width);
    all->head_rows = stage.has_head ? logit_rows(options) : 0;
    all->logits = cut_floats(cutter, all->head_rows * local.vocab);
    all->highest = cut_floats(cutter, all->head_rows);
    all->totals = cut_floats(cutter, 2 * all->head_rows);
    if (options->pieces > 1) all->piece = cut_floats(cutter, rows * width);
    if (options->training) {
        all->d_stream = cut_floats(cutter, rows * width);
        all->d_normed = cut_floats(cutter, rows * width);
        all->d_attention = cut_floats(cutter, rows * local.width);
        all->d_qkv = cut_floats(cutter, rows * local.width * 3);
        all->d_fc = cut_floats(cutter, rows * local.hidden);
        all->norm_sums = cut_floats(cutter, 4 * threads * width);
    }
    all->gemm_scratch = cut_floats(cutter, threads * GPT2_GEMM_SCRATCH);
    all->score_stride = 2 * (size_t)GPT2_SCORE_ROWS * (size_t)options->length + GPT2_SCORE_ROWS;
    all->score_scratch = cut_floats(cutter, threads * all->score_stride);
    all->loss_sums = (double *)(void *)cut_floats(cutter, threads * 16);
}

static void free_memory(gpt2_activations_t *all, const gpt2_model_options_t *options)
{
    if (gpt2_stage_of(options).parts == 1) {
        free(all->memory);
    } else if (all->memory != NULL) {
        options->gradients.free(options->gradients.user, all->memory);
    }
}

int gpt2_activations_create(const gpt2_model_options_t *options, gpt2_activations_t **out,
                            size_t *bytes, gpt2_error_t *error)
{
    const gpt2_stage_t stage = gpt2_stage_of(options);
    float_cutter_t cutter = {NULL, 0};
    gpt2_activations_t counted;
    gpt2_activations_t *all;

    memset(&counted, 0, sizeof(counted));
    cut_activations(&cutter, &counted, options);
    *bytes = cutter.used * sizeof(float);
    if (out == NULL) return 0;
    all = calloc(1, sizeof(*all));
    if (all == NULL) return gpt2_fail(error, "out of memory for the activations' plan");
    all->kept = calloc((size_t)stage.slots, sizeof(*all->kept));
    all->blocks = calloc((size_t)stage.slots * (size_t)options->shape.layers, sizeof(*all->blocks));
    /* Of parts it is summed over them. */
    all->memory = stage.parts > 1 ? options->gradients.alloc(options->gradients.user, *bytes)
                                  : aligned_alloc(256, *bytes);
    if (all->kept == NULL || all->blocks == NULL || all->memory == NULL) {
        free_memory(all, options);
        free(all->blocks);
        free(all->kept);
        free(all);
        return gpt2_fail(error,
                         "out of memory: %zu MiB for the activations of %d sequences of %d tokens; "
                         "a smaller --batch or a larger --accumulate needs less",
                         *bytes >> 20, options->batch, options->length);
    }
    for (int slot = 0; slot < stage.slots; slot++)
        all->kept[slot].blocks = all->blocks + (size_t)slot * (size_t)options->shape.layers;
    cutter.memory = all->memory;
    cutter.used = 0;
    cut_activations(&cutter, all, options);
    gpt2_activations_select(all, 0);
    *out = all;
    return 0;
}

void gpt2_activations_select(gpt2_activations_t *all, int slot)
{
    const gpt2_kept_t *kept = &all->kept[slot];

    all->blocks = kept->blocks;
    all->output = kept->output;
    all->lnf = kept->lnf;
    all->lnf_mean = kept->lnf_mean;
    all->lnf_rstd = kept->lnf_rstd;
}

void gpt2_activations_destroy(gpt2_activations_t *all, const gpt2_model_options_t *options)
{
    if (all == NULL) return;
    free_memory(all, options);
    free(all->kept[0].blocks);
    free(all->kept);
    free(all);
}
