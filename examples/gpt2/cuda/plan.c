/*
 * plan.c - adds up a replica's device memory and cuts it out of two blocks.
 *
 * The same functions run twice: first with a NULL block, which gives the sizes, then with the
 * allocated one, which gives the pointers. So the two cannot disagree.
 */
#include "examples/gpt2/cuda/plan.h"

#include <string.h>

#include "examples/gpt2/cuda/kernels.h"

#define GRAIN 256                      /* bytes: of the starts of all pieces */
#define LOGITS_BYTES ((size_t)2 << 30) /* large products, and memory stays for the rest */

/* Hands out pieces; with memory NULL it only counts. */
typedef struct byte_cutter {
    char *memory;
    size_t used;
} byte_cutter_t;

static void *cut_bytes(byte_cutter_t *cutter, size_t bytes)
{
    char *piece = cutter->memory == NULL ? NULL : cutter->memory + cutter->used;

    cutter->used += (bytes + GRAIN - 1) / GRAIN * GRAIN;
    return piece;
}

int gpt2_recompute_parse(const char *word, gpt2_recompute_t *out)
{
    for (int i = GPT2_RECOMPUTE_NONE; i <= GPT2_RECOMPUTE_GELU_NORM; i++) {
        if (strcmp(word, gpt2_recompute_name((gpt2_recompute_t)i)) != 0) continue;
        *out = (gpt2_recompute_t)i;
        return 0;
    }
    return -1;
}

const char *gpt2_recompute_name(gpt2_recompute_t recompute)
{
    switch (recompute) {
    case GPT2_RECOMPUTE_NONE:
        return "none";
    case GPT2_RECOMPUTE_GELU:
        return "gelu";
    case GPT2_RECOMPUTE_GELU_NORM:
        return "gelu+norm";
    }
    return "";
}

size_t gpt2_cuda_plan_grains(const gpt2_tensor_t *tensor)
{
    return tensor->decay ? 0 : (tensor->count + GPT2_TENSOR_ALIGN - 1) / GPT2_TENSOR_ALIGN;
}

size_t gpt2_cuda_plan_vectors(const gpt2_layout_t *layout, size_t group)
{
    size_t grains = 0;

    for (size_t i = 0; i < layout->count; i++) {
        if (layout->tensors[i].group == group) grains += gpt2_cuda_plan_grains(&layout->tensors[i]);
    }
    return grains;
}

/* Arenas, or what passes need beside what they are supplied with. */
static void cut_weights(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan,
                        const gpt2_layout_t *layout, gpt2_cuda_state_t *state)
{
    const gpt2_cuda_plan_options_t *options = &plan->options;
    const size_t bytes = layout->arena_count * sizeof(float);
    const size_t element = gpt2_cuda_type_bytes(options->type);
    const gpt2_group_t *groups = layout->groups;

    if (!options->is_supplied) {
        state->weights = cut_bytes(cutter, bytes);
        state->m = cut_bytes(cutter, bytes);
        state->v = cut_bytes(cutter, bytes);
        state->gradients = options->own_gradients ? cut_bytes(cutter, plan->gradients) : NULL;
        state->low = options->type == GPT2_CUDA_F32
                         ? state->weights
                         : cut_bytes(cutter, layout->arena_count * element);
    } else if (options->type != GPT2_CUDA_F32 && options->level < 2) {
        state->copies =
            cut_bytes(cutter, (groups[GPT2_GROUP_WTE].count + groups[GPT2_GROUP_ROOT].count +
                               2 * groups[gpt2_layout_group(0)].count) *
                                  element);
    }
}

/* Level 2: vectors in fp32, and where they lie. */
static void cut_vectors(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan,
                        const gpt2_layout_t *layout, gpt2_cuda_state_t *state)
{
    const size_t of_root = gpt2_cuda_plan_vectors(layout, GPT2_GROUP_ROOT);
    const size_t of_block = gpt2_cuda_plan_vectors(layout, gpt2_layout_group(0));
    const size_t all = of_root + of_block * (size_t)layout->shape.layers;

    if (plan->options.level < 2) return;
    state->vectors = cut_bytes(cutter, all * GPT2_TENSOR_ALIGN * sizeof(*state->vectors));
    state->grains = cut_bytes(cutter, (of_root + of_block) * sizeof(*state->grains));
}

static void cut_state(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan,
                      const gpt2_layout_t *layout, gpt2_cuda_state_t *state)
{
    const gpt2_cuda_plan_options_t *options = &plan->options;

    *state = (gpt2_cuda_state_t){0};
    cut_weights(cutter, plan, layout, state);
    cut_vectors(cutter, plan, layout, state);
    state->tokens = cut_bytes(cutter, options->lookups * sizeof(*state->tokens));
    state->decays = cut_bytes(cutter, layout->arena_count / GPT2_TENSOR_ALIGN);
    state->tables = cut_bytes(cutter, options->table_bytes);
}

/* Lays out the activations that a layer keeps; what backward makes again is in the block already,
 * shared by all. */
static void cut_cuda_block(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan,
                           gpt2_cuda_block_t *block)
{
    const gpt2_cuda_plan_options_t *options = &plan->options;
    size_t one = gpt2_cuda_type_bytes(options->type) * plan->rows * (size_t)options->shape.width;
    size_t row = sizeof(float) * plan->rows;

    block->input = cut_bytes(cutter, one);
    if (options->recompute < GPT2_RECOMPUTE_GELU_NORM) block->ln1 = cut_bytes(cutter, one);
    block->ln1_mean = cut_bytes(cutter, row);
    block->ln1_rstd = cut_bytes(cutter, row);
    block->qkv = cut_bytes(cutter, 3 * one);
    block->attention = cut_bytes(cutter, one);
    block->lse = cut_bytes(cutter, row * (size_t)options->shape.heads);
    block->middle = cut_bytes(cutter, one);
    if (options->recompute < GPT2_RECOMPUTE_GELU_NORM) block->ln2 = cut_bytes(cutter, one);
    block->ln2_mean = cut_bytes(cutter, row);
    block->ln2_rstd = cut_bytes(cutter, row);
    block->fc = cut_bytes(cutter, 4 * one);
    if (options->recompute < GPT2_RECOMPUTE_GELU) block->gelu = cut_bytes(cutter, 4 * one);
}

/* Lays out the activations that all layers share, as backward makes them again. */
static gpt2_cuda_block_t cut_shared(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan)
{
    const gpt2_cuda_plan_options_t *options = &plan->options;
    size_t one = gpt2_cuda_type_bytes(options->type) * plan->rows * (size_t)options->shape.width;
    gpt2_cuda_block_t shared = {0};

    if (options->recompute >= GPT2_RECOMPUTE_GELU) shared.gelu = cut_bytes(cutter, 4 * one);
    if (options->recompute >= GPT2_RECOMPUTE_GELU_NORM) {
        shared.ln1 = cut_bytes(cutter, one);
        shared.ln2 = cut_bytes(cutter, one);
    }
    return shared;
}

/* all->blocks NULL: only counts. *kept, *logits: the bytes for these. */
static void cut_pass(byte_cutter_t *cutter, const gpt2_cuda_plan_t *plan,
                     gpt2_cuda_activations_t *all, size_t *kept, size_t *logits)
{
    const gpt2_cuda_plan_options_t *options = &plan->options;
    size_t element = gpt2_cuda_type_bytes(options->type);
    size_t one = element * plan->rows * (size_t)options->shape.width;
    size_t row = sizeof(float) * plan->rows;
    gpt2_cuda_block_t shared = cut_shared(cutter, plan);
    size_t before = cutter->used;

    for (int layer = 0; layer < options->shape.layers; layer++) {
        gpt2_cuda_block_t block = shared;

        cut_cuda_block(cutter, plan, &block);
        if (all->blocks != NULL) all->blocks[layer] = block;
    }
    all->output = cut_bytes(cutter, one);
    all->lnf = cut_bytes(cutter, one);
    all->lnf_mean = cut_bytes(cutter, row);
    all->lnf_rstd = cut_bytes(cutter, row);
    *kept = cutter->used - before;
    before = cutter->used;
    all->logits =
        cut_bytes(cutter, element * plan->head_rows * (size_t)options->shape.vocab_padded);
    *logits = cutter->used - before;
    all->losses = cut_bytes(cutter, row);
    all->d_stream = cut_bytes(cutter, one);
    all->stream_sums = cut_bytes(cutter, sizeof(float) * (size_t)options->shape.width);
    all->d_normed = cut_bytes(cutter, one);
    all->d_attention = cut_bytes(cutter, one);
    all->d_qkv = cut_bytes(cutter, 3 * one);
    all->d_fc = cut_bytes(cutter, 4 * one);
    all->scratch = cut_bytes(cutter, options->scratch_bytes);
    all->batch = cut_bytes(cutter, plan->upload_bytes);
}

/* The largest divisor of rows whose logits fit. */
static size_t plan_head_rows(const gpt2_cuda_plan_options_t *options, size_t rows)
{
    size_t row = gpt2_cuda_type_bytes(options->type) * (size_t)options->shape.vocab_padded;
    size_t fit = (options->logits_bytes == 0 ? LOGITS_BYTES : options->logits_bytes) / row;

    for (size_t parts = 1; parts < rows; parts++) {
        if (rows % parts == 0 && rows / parts <= fit) return rows / parts;
    }
    return 1;
}

static int check_options(const gpt2_cuda_plan_options_t *options, gpt2_error_t *error)
{
    const gpt2_shape_t *shape = &options->shape;
    int size = shape->width / shape->heads;

    if (options->type != GPT2_CUDA_F32 && (size % 16 != 0 || size > 128)) {
        return gpt2_fail(error,
                         "--precision %s needs heads of 16, 32, ... or 128 channels; --width %d "
                         "over --heads %d gives %d",
                         gpt2_cuda_type_name(options->type), shape->width, shape->heads, size);
    }
    if (shape->width > GPT2_CUDA_WIDTH_MAX) {
        return gpt2_fail(error, "--width %d is above the %d that a GPU's kernels can do",
                         shape->width, GPT2_CUDA_WIDTH_MAX);
    }
    if (options->batch * options->length < 1 ||
        options->batch > ((size_t)1 << 31) / options->length) {
        return gpt2_fail(error, "%zu sequences of %zu tokens in one pass", options->batch,
                         options->length);
    }
    return 0;
}

int gpt2_cuda_plan_make(const gpt2_cuda_plan_options_t *options, const gpt2_layout_t *layout,
                        gpt2_cuda_plan_t *plan, gpt2_error_t *error)
{
    byte_cutter_t state = {NULL, 0};
    byte_cutter_t pass = {NULL, 0};
    gpt2_cuda_state_t state_pieces;
    gpt2_cuda_activations_t pass_pieces = {0};
    size_t arena = layout->arena_count * sizeof(float);

    if (check_options(options, error) != 0) return -1;
    memset(plan, 0, sizeof(*plan));
    plan->options = *options;
    plan->rows = options->batch * options->length;
    plan->head_rows = plan_head_rows(options, plan->rows);
    plan->upload_bytes = 2 * plan->rows * sizeof(int32_t) + options->embed_bytes;
    plan->rows_apart = options->lookups * (size_t)options->shape.width * sizeof(float);
    plan->gradients = options->is_supplied ? 0 : arena + plan->rows_apart;
    cut_state(&state, plan, layout, &state_pieces);
    cut_pass(&pass, plan, &pass_pieces, &plan->kept, &plan->logits);
    plan->state_bytes = state.used;
    plan->activation_bytes = pass.used;
    plan->weights = options->is_supplied ? 0 : arena;
    plan->moments = 2 * plan->weights;
    plan->low = state.used - 3 * plan->weights - (options->own_gradients ? plan->gradients : 0);
    plan->matmul = options->matmul_bytes;
    plan->scratch = pass.used - plan->kept - plan->logits;
    plan->total = plan->weights + plan->moments + plan->gradients + plan->low + plan->kept +
                  plan->logits + plan->scratch + plan->matmul;
    return 0;
}

/* The bytes of a plan with these instead of the options' own; SIZE_MAX: there is no such plan. */
static size_t bytes_with(const gpt2_cuda_plan_options_t *options, const gpt2_layout_t *layout,
                         gpt2_recompute_t recompute, size_t batch)
{
    gpt2_cuda_plan_options_t changed = *options;
    gpt2_cuda_plan_t plan;

    changed.recompute = recompute;
    changed.batch = batch;
    return gpt2_cuda_plan_make(&changed, layout, &plan, NULL) == 0 ? plan.total : SIZE_MAX;
}

const char *gpt2_cuda_plan_advise(const gpt2_cuda_plan_options_t *options,
                                  const gpt2_layout_t *layout, size_t room,
                                  char text[GPT2_CUDA_ADVICE_MAX])
{
    size_t batch = options->batch;
    size_t length = 0;

    text[0] = '\0';
    for (int i = (int)options->recompute + 1; i <= GPT2_RECOMPUTE_GELU_NORM; i++) {
        const gpt2_recompute_t recompute = (gpt2_recompute_t)i;
        const size_t bytes = bytes_with(options, layout, recompute, batch);

        if (bytes > room) continue;
        length = (size_t)snprintf(text, GPT2_CUDA_ADVICE_MAX, "--recompute %s wants %zu MiB; ",
                                  gpt2_recompute_name(recompute), bytes >> 20);
        break;
    }
    while (batch > 0 && bytes_with(options, layout, options->recompute, batch) > room)
        batch--;
    if (batch == 0) {
        (void)snprintf(text + length, GPT2_CUDA_ADVICE_MAX - length,
                       "with --recompute %s not even one sequence fits",
                       gpt2_recompute_name(options->recompute));
        return text;
    }
    (void)snprintf(text + length, GPT2_CUDA_ADVICE_MAX - length,
                   "%zu sequences per pass fit: a smaller --batch, or a larger --accumulate",
                   batch);
    return text;
}

void gpt2_cuda_plan_place(const gpt2_cuda_plan_t *plan, const gpt2_layout_t *layout, char *memory,
                          gpt2_cuda_state_t *state)
{
    byte_cutter_t cutter = {memory, 0};

    cut_state(&cutter, plan, layout, state);
}

void gpt2_cuda_plan_place_pass(const gpt2_cuda_plan_t *plan, char *memory,
                               gpt2_cuda_activations_t *activations)
{
    byte_cutter_t cutter = {memory, 0};
    size_t ignored;

    cut_pass(&cutter, plan, activations, &ignored, &ignored);
}

/* MiB */
static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

void gpt2_cuda_plan_print(const gpt2_cuda_plan_t *plan, size_t free_bytes, FILE *out)
{
    static const char *const low[] = {"tables", "bf16 weights", "fp16 weights"};
    const gpt2_cuda_plan_options_t *options = &plan->options;
    const char *whose = options->is_supplied ? " (with what libdp has)" : "";
    char rows[48] = "";

    if (plan->rows_apart > 0) {
        (void)snprintf(rows, sizeof(rows), " (rows apart: %.1f)", mib(plan->rows_apart));
    }
    (void)fprintf(out,
                  "memory  %.1f MiB on the GPU, %.0f free%s: weights %.1f, moments %.1f, gradients "
                  "%.1f%s, %s %.1f,\n"
                  "        kept for backward %.1f (%.2f per sequence of %zu, recompute %s), logits "
                  "%.1f, scratch %.1f, products %.1f\n",
                  mib(plan->total), mib(free_bytes), whose, mib(plan->weights), mib(plan->moments),
                  mib(plan->gradients), rows, low[options->type], mib(plan->low), mib(plan->kept),
                  mib(plan->kept) / (double)options->batch, options->length,
                  gpt2_recompute_name(options->recompute), mib(plan->logits), mib(plan->scratch),
                  mib(plan->matmul));
}
