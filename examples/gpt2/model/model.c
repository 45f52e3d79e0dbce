/*
 * model.c - life of a model and its initial weights; passes are in forward.c and backward.c.
 */
#include "examples/gpt2/model/activations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"

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

size_t gpt2_model_bytes(const gpt2_model_options_t *options)
{
    gpt2_layout_t *layout = NULL;
    size_t bytes = 0;

    if (gpt2_layout_create(&options->shape, &layout, NULL) != 0) return 0;
    (void)gpt2_activations_create(options, NULL, &bytes, NULL);
    bytes += layout->arena_count * sizeof(float);
    gpt2_layout_destroy(layout);
    return bytes;
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
    if (gpt2_layout_create(&options->shape, &model->layout, error) != 0) goto fail;
    if (name_blocks(model, error) != 0) goto fail;
    if (gpt2_team_create(options->threads, &model->team, error) != 0) goto fail;
    bytes = model->layout->arena_count * sizeof(float);
    model->weights = plain_alloc(NULL, bytes);
    if (model->weights == NULL) {
        gpt2_fail(error, "out of memory: %zu MiB of weights", bytes >> 20);
        goto fail;
    }
    if (options->training) {
        model->gradients = model->options.gradients.alloc(model->options.gradients.user, bytes);
        if (model->gradients == NULL) {
            gpt2_fail(error, "out of memory: %zu MiB of gradients", bytes >> 20);
            goto fail;
        }
    }
    if (!options->weights_only &&
        gpt2_activations_create(options, &model->activations, &bytes, error) != 0) {
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
    gpt2_activations_destroy(model->activations);
    if (model->gradients != NULL) {
        model->options.gradients.free(model->options.gradients.user, model->gradients);
    }
    free(model->weights);
    gpt2_team_destroy(model->team);
    free(model->block_names);
    gpt2_layout_destroy(model->layout);
    free(model);
}

float *gpt2_model_tensor(const gpt2_model_t *model, float *arena, size_t index)
{
    return arena + model->layout->tensors[index].offset;
}

typedef struct drawing {
    gpt2_model_t *model;
    uint64_t seed;
} drawing_t;

/* Part [first, last) of a tensor: every number is a function of its place. */
static void draw_part(const drawing_t *drawing, size_t index, size_t first, size_t last)
{
    const gpt2_layout_t *layout = drawing->model->layout;
    const gpt2_tensor_t *tensor = &layout->tensors[index];
    float *weights = drawing->model->weights + tensor->offset;
    const char *kind = strchr(tensor->name, '.');
    const int is_norm = strstr(tensor->name, "ln_") != NULL;
    double deviation = 0.02;

    if (kind != NULL && strstr(kind, "proj.weight") != NULL) {
        deviation = 0.02 / sqrt(2.0 * (double)layout->shape.layers);
    }
    if (!tensor->decay) {
        const float value = is_norm && strstr(tensor->name, "weight") != NULL ? 1.0f : 0.0f;

        for (size_t i = first; i < last; i++)
            weights[i] = value;
        return;
    }
    for (size_t i = first; i < last; i++)
        weights[i] = (float)(deviation * gpt2_random_normal(drawing->seed, index, i));
}

/* Runs on every thread of the team. */
static void draw_share(void *argument, int member, int members)
{
    const drawing_t *drawing = argument;
    const gpt2_layout_t *layout = drawing->model->layout;

    for (size_t i = 0; i < layout->count; i++) {
        size_t count = layout->tensors[i].count;
        size_t first;
        size_t last;

        if (i == gpt2_layout_wte(layout)) { /* its padding stays zero */
            count = (size_t)layout->shape.vocab * (size_t)layout->shape.width;
        }
        gpt2_team_part(count, GPT2_TENSOR_ALIGN, member, members, &first, &last);
        draw_part(drawing, i, first, last);
    }
}

void gpt2_model_init_weights(gpt2_model_t *model, uint64_t seed)
{
    drawing_t drawing = {model, seed};

    gpt2_team_run(model->team, draw_share, &drawing);
}
