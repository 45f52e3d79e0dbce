/*
 * model.c - life of a model and its initial weights; passes are in forward.c and backward.c.
 */
#include "examples/gpt2/model/activations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/model/groups.h"

static void *plain_alloc(void *user, size_t bytes)
{
    size_t rounded = (bytes + 255) & ~(size_t)255;
    void *memory = aligned_alloc(256, rounded == 0 ? 256 : rounded);

    (void)user;
    if (memory != NULL) memset(memory, 0, bytes);
    return memory;
}

static void plain_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static int name_blocks(gpt2_model_t *model, gpt2_error_t *error)
{
    int layers = model->options.shape.layers;

    model->block_names = calloc((size_t)layers, sizeof(*model->block_names));
    if (model->block_names == NULL) return gpt2_fail(error, "out of memory for span names");
    for (int layer = 0; layer < layers; layer++) {
        (void)snprintf(model->block_names[layer], sizeof(*model->block_names), "backward h.%d",
                       layer);
    }
    return 0;
}

/* Arenas, unless weights and gradients are supplied, and the tables of where groups lie. */
static int create_arenas(gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    const gpt2_allocator_t *gradients = &model->options.gradients;
    const size_t bytes = layout->arena_count * sizeof(float);

    model->weights_at = calloc(layout->group_count, sizeof(*model->weights_at));
    model->gradients_at = calloc(layout->group_count, sizeof(*model->gradients_at));
    if (model->weights_at == NULL || model->gradients_at == NULL) {
        return gpt2_fail(error, "out of memory for %zu groups", layout->group_count);
    }
    if (model->options.is_supplied) return 0;
    model->weights = plain_alloc(NULL, bytes);
    if (model->weights == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of weights", bytes >> 20);
    }
    if (model->options.training) {
        model->gradients = gradients->alloc(gradients->user, bytes);
        if (model->gradients == NULL) {
            return gpt2_fail(error, "out of memory: %zu MiB of gradients", bytes >> 20);
        }
    }
    if (model->options.stage.has_embedding && model->options.stage.has_head &&
        model->options.stage.is_staged) {
        const size_t lookups = layout->tensors[gpt2_layout_wte(layout)].count * sizeof(float);

        model->lookups = plain_alloc(NULL, lookups);
        if (model->lookups == NULL) {
            return gpt2_fail(error, "out of memory: %zu MiB of lookups' gradients", lookups >> 20);
        }
    }
    for (size_t i = 0; i < layout->group_count; i++) {
        if (layout->groups[i].is_elsewhere) continue;
        model->weights_at[i] = model->weights + layout->groups[i].offset;
        if (model->gradients == NULL) continue;
        model->gradients_at[i] = model->gradients + layout->groups[i].offset;
    }
    return 0;
}

/* A stage holds the groups that it computes with. */
static void hold_groups(gpt2_model_t *model)
{
    const gpt2_stage_t *stage = &model->options.stage;
    int held[GPT2_LAYERS_MAX + 2];

    for (int layer = 0; layer < model->options.shape.layers; layer++)
        held[gpt2_layout_group(layer)] = layer >= stage->first && layer < stage->last;
    held[GPT2_GROUP_WTE] = held[GPT2_GROUP_ROOT] = stage->has_embedding || stage->has_head;
    gpt2_layout_hold(model->layout, held);
}

int gpt2_model_create(const gpt2_model_options_t *options, gpt2_model_t **out, gpt2_error_t *error)
{
    size_t bytes;
    gpt2_model_t *model;

    if (gpt2_shape_check(&options->shape, error) != 0) return -1;
    if (options->length < 1 || options->length > options->shape.context) {
        return gpt2_fail(error, "sequence length %d is out of range 1 to the context of %d",
                         options->length, options->shape.context);
    }
    model = calloc(1, sizeof(*model));
    if (model == NULL) return gpt2_fail(error, "out of memory for a model");
    model->options = *options;
    if (model->options.gradients.alloc == NULL) {
        model->options.gradients = (gpt2_allocator_t){plain_alloc, plain_free, NULL};
    }
    model->kernels = options->kernels != NULL ? options->kernels : gpt2_kernels_list()[0];
    model->gemm = options->gemm;
    if (model->gemm == NULL) model->gemm = gpt2_gemm_choose("auto", model->kernels);
    model->options.stage = gpt2_stage_of(options);
    model->local =
        gpt2_local_of(&options->shape, model->options.stage.parts, model->options.stage.part);
    if (gpt2_layout_create(&options->shape, &model->layout, error) != 0) goto fail;
    if (gpt2_layout_slice(model->layout, model->options.stage.parts, model->options.stage.part,
                          error) != 0) {
        goto fail;
    }
    hold_groups(model);
    if (name_blocks(model, error) != 0) goto fail;
    if (gpt2_team_create(options->threads, &model->team, error) != 0) goto fail;
    if (create_arenas(model, error) != 0) goto fail;
    if (!options->weights_only &&
        gpt2_activations_create(&model->options, &model->activations, &bytes, error) != 0) {
        goto fail;
    }
    *out = model;
    return 0;
fail:
    gpt2_model_destroy(model);
    return -1;
}

void gpt2_model_destroy(gpt2_model_t *model)
{
    if (model == NULL) return;
    gpt2_activations_destroy(model->activations, &model->options);
    if (model->gradients != NULL) {
        model->options.gradients.free(model->options.gradients.user, model->gradients);
    }
    free(model->weights);
    free(model->lookups);
    free(model->weights_at);
    free(model->gradients_at);
    gpt2_team_destroy(model->team);
    free(model->block_names);
    gpt2_layout_destroy(model->layout);
    free(model);
}

float *gpt2_model_weight(const gpt2_model_t *model, size_t index)
{
    const gpt2_tensor_t *tensor = &model->layout->tensors[index];

    return model->weights_at[tensor->group] + tensor->place;
}

float *gpt2_model_gradient(const gpt2_model_t *model, size_t index)
{
    const gpt2_tensor_t *tensor = &model->layout->tensors[index];

    return model->gradients_at[tensor->group] + tensor->place;
}

void gpt2_model_select(gpt2_model_t *model, int slot, const gpt2_edges_t *edges)
{
    const gpt2_stage_t *stage = &model->options.stage;
    gpt2_activations_t *all = model->activations;

    gpt2_activations_select(all, slot);
    if (edges->input != NULL && stage->first < stage->last) {
        all->blocks[stage->first].input = edges->input;
    } else if (edges->input != NULL) { /* the head alone */
        all->output = edges->input;
    }
    if (edges->output != NULL) all->output = edges->output;
    if (edges->gradient != NULL) all->d_stream = edges->gradient;
}

static void clear_gradient(gpt2_model_t *model, size_t index)
{
    memset(gpt2_model_gradient(model, index), 0,
           model->layout->tensors[index].count * sizeof(float));
}

void gpt2_model_clear(gpt2_model_t *model)
{
    const gpt2_stage_t *stage = &model->options.stage;
    const size_t wte = gpt2_layout_wte(model->layout);

    if (stage->has_embedding && stage->has_head) {
        memset(model->lookups, 0, model->layout->tensors[wte].count * sizeof(float));
    } else if (stage->has_embedding) {
        clear_gradient(model, 0);
        clear_gradient(model, 1);
        clear_gradient(model, wte);
    } else if (stage->has_head) {
        clear_gradient(model, gpt2_layout_wpe(model->layout));
    }
}

void gpt2_model_join_lookups(gpt2_model_t *model)
{
    const size_t wte = gpt2_layout_wte(model->layout);
    float *gradient;

    if (model->lookups == NULL) return;
    gradient = gpt2_model_gradient(model, wte);
    model->kernels->add(gradient, gradient, model->lookups, model->layout->tensors[wte].count);
}

void gpt2_model_supply(gpt2_model_t *model, const gpt2_supply_t *supply)
{
    model->supply = supply;
}

void gpt2_model_reduce_by(gpt2_model_t *model, const gpt2_reducer_t *reducer)
{
    model->reducer = reducer;
}

/* Initial numbers for part of a group; shared by the members of the team. */
typedef struct drawing {
    const gpt2_layout_t *layout;
    uint64_t seed;
    size_t group;
    size_t first;   /* element of the group */
    size_t count;   /* from there */
    float *weights; /* [count] */
} drawing_t;

/* Elements [first, last) of a whole tensor: every number is a function of its place. The padding of
 * the vocabulary stays zero. */
static void draw_elements(const drawing_t *drawing, size_t index, size_t first, size_t last,
                          float *weights)
{
    const gpt2_layout_t *layout = drawing->layout;
    const gpt2_tensor_t *tensor = &layout->tensors[index];
    const char *kind = strchr(tensor->name, '.');
    const int is_norm = strstr(tensor->name, "ln_") != NULL;
    double deviation = 0.02;

    if (kind != NULL && strstr(kind, "proj.weight") != NULL) {
        deviation = 0.02 / sqrt(2.0 * (double)layout->shape.layers);
    }
    if (!tensor->decay) {
        const float value = is_norm && strstr(tensor->name, "weight") != NULL ? 1.0f : 0.0f;

        for (size_t i = first; i < last; i++)
            weights[i - first] = value;
        return;
    }
    if (index == gpt2_layout_wte(layout)) {
        const size_t drawn = (size_t)layout->shape.vocab * (size_t)layout->shape.width;

        if (last > drawn) last = drawn;
    }
    for (size_t i = first; i < last; i++)
        weights[i - first] = (float)(deviation * gpt2_random_normal(drawing->seed, index, i));
}

/* Runs on every thread of the team. */
static void draw_share(void *argument, int member, int members)
{
    const drawing_t *drawing = argument;
    const gpt2_layout_t *layout = drawing->layout;
    gpt2_piece_t pieces[GPT2_PIECES_MAX];
    const size_t found =
        gpt2_group_pieces(layout, drawing->group, drawing->first, drawing->count, pieces);

    for (size_t i = 0; i < found; i++) {
        const gpt2_piece_t *piece = &pieces[i];
        size_t first;
        size_t last;

        gpt2_team_part(piece->count, GPT2_VECTOR_ALIGN, member, members, &first, &last);
        for (size_t done = first; done < last;) {
            size_t at;
            const size_t run = gpt2_slice_run(&layout->tensors[piece->tensor], piece->first + done,
                                              last - done, &at);

            draw_elements(drawing, piece->tensor, at, at + run,
                          drawing->weights + piece->at + done);
            done += run;
        }
    }
}

void gpt2_model_init_part(gpt2_model_t *model, uint64_t seed, size_t group, size_t first,
                          size_t count, float *weights)
{
    drawing_t drawing = {model->layout, seed, group, first, count, weights};

    gpt2_team_run(model->team, draw_share, &drawing);
}

void gpt2_model_init_weights(gpt2_model_t *model, uint64_t seed)
{
    for (size_t i = 0; i < model->layout->group_count; i++) {
        gpt2_model_init_part(model, seed, i, 0, model->layout->groups[i].count,
                             model->weights_at[i]);
    }
}
