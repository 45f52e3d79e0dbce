/*
 * shape.c - presets and the arena's layout. Pure arithmetic.
 */
#include "examples/gpt2/model/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

typedef struct preset {
    const char *name;
    gpt2_shape_t shape;
} preset_t;

/* vocab is what --vocab or the data overrides; bytes for the small ones. */
static const preset_t PRESETS[] = {
    {"tiny", {256, 256, 64, 2, 2, 64}},
    {"quick", {256, 256, 64, 4, 4, 128}},
    {"small", {256, 256, 256, 6, 6, 384}},
    {"124M", {50257, 50304, 1024, 12, 12, 768}},
    {"350M", {50257, 50304, 1024, 24, 16, 1024}},
    {"774M", {50257, 50304, 1024, 36, 20, 1280}},
    {"1558M", {50257, 50304, 1024, 48, 25, 1600}},
};
#define PRESET_COUNT (sizeof(PRESETS) / sizeof(PRESETS[0]))

const char *gpt2_shape_preset_names(void)
{
    return "tiny, quick, small, 124M, 350M, 774M, 1558M";
}

int gpt2_shape_preset(const char *name, gpt2_shape_t *shape, gpt2_error_t *error)
{
    const char *names[PRESET_COUNT];

    for (size_t i = 0; i < PRESET_COUNT; i++) {
        names[i] = PRESETS[i].name;
        if (strcmp(PRESETS[i].name, name) != 0) continue;
        *shape = PRESETS[i].shape;
        return 0;
    }
    return gpt2_fail(error, "--preset %s: no such preset, did you mean %s? There are %s", name,
                     gpt2_nearest(name, names, PRESET_COUNT), gpt2_shape_preset_names());
}

static int check_range(const char *what, int value, int low, int high, gpt2_error_t *error)
{
    if (value >= low && value <= high) return 0;
    return gpt2_fail(error, "%s %d is out of range %d to %d", what, value, low, high);
}

int gpt2_shape_check(const gpt2_shape_t *shape, gpt2_error_t *error)
{
    if (check_range("--vocab", shape->vocab, 2, 1 << 24, error) != 0) return -1;
    if (check_range("--context", shape->context, 1, 1 << 20, error) != 0) return -1;
    if (check_range("--layers", shape->layers, 1, GPT2_LAYERS_MAX, error) != 0) return -1;
    if (check_range("--heads", shape->heads, 1, 1024, error) != 0) return -1;
    if (check_range("--width", shape->width, 1, 1 << 16, error) != 0) return -1;
    if (shape->vocab_padded < shape->vocab) {
        return gpt2_fail(error, "padded vocabulary %d is below the vocabulary %d",
                         shape->vocab_padded, shape->vocab);
    }
    if (shape->width % shape->heads != 0) {
        return gpt2_fail(error, "--width %d is not a multiple of --heads %d", shape->width,
                         shape->heads);
    }
    return 0;
}

static void append_tensor(gpt2_layout_t *layout, int layer, const char *name, int rows, int columns,
                          int decay, gpt2_cut_t cut)
{
    gpt2_tensor_t *tensor = &layout->tensors[layout->count++];

    if (layer >= 0) {
        (void)snprintf(tensor->name, sizeof(tensor->name), "h.%d.%s", layer, name);
        tensor->group = gpt2_layout_group(layer);
    } else {
        (void)snprintf(tensor->name, sizeof(tensor->name), "%s", name);
        tensor->group = strcmp(name, "wte.weight") == 0 ? GPT2_GROUP_WTE : GPT2_GROUP_ROOT;
    }
    tensor->layer = layer;
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->decay = decay;
    tensor->cut = cut;
    tensor->count = (size_t)rows * (size_t)columns;
    tensor->run = tensor->stride = tensor->count;
    layout->parameter_count += tensor->count;
}

/* Each tensor lies behind those of its group. */
static void place_tensors(gpt2_layout_t *layout)
{
    const size_t align = GPT2_TENSOR_ALIGN;

    for (size_t i = 0; i < layout->group_count; i++)
        layout->groups[i].count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        gpt2_group_t *group = &layout->groups[layout->tensors[i].group];

        layout->tensors[i].place = group->count;
        group->count += (layout->tensors[i].count + align - 1) & ~(align - 1);
    }
}

/* The arena has the root first, then the blocks from the last to the first, then the tokens. */
static void place_groups(gpt2_layout_t *layout)
{
    const int layers = layout->shape.layers;

    layout->arena_count = 0;
    for (int i = -1; i <= layers; i++) {
        gpt2_group_t *group = &layout->groups[i < 0         ? GPT2_GROUP_ROOT
                                              : i == layers ? GPT2_GROUP_WTE
                                                            : gpt2_layout_group(layers - 1 - i)];

        group->offset = layout->arena_count;
        if (!group->is_elsewhere) layout->arena_count += group->count;
    }
    for (size_t i = 0; i < layout->count; i++) {
        gpt2_tensor_t *tensor = &layout->tensors[i];

        tensor->offset = layout->groups[tensor->group].offset + tensor->place;
    }
}

static void name_groups(gpt2_layout_t *layout)
{
    (void)snprintf(layout->groups[GPT2_GROUP_WTE].name, GPT2_NAME_MAX, "wte");
    (void)snprintf(layout->groups[GPT2_GROUP_ROOT].name, GPT2_NAME_MAX, "root");
    for (int layer = 0; layer < layout->shape.layers; layer++) {
        (void)snprintf(layout->groups[gpt2_layout_group(layer)].name, GPT2_NAME_MAX, "h.%d", layer);
    }
}

int gpt2_layout_create(const gpt2_shape_t *shape, gpt2_layout_t **out, gpt2_error_t *error)
{
    int width = shape->width;
    size_t count = 4 + (size_t)GPT2_BLOCK_TENSORS * (size_t)shape->layers;
    gpt2_layout_t *layout = calloc(1, sizeof(*layout));

    if (layout == NULL) return gpt2_fail(error, "out of memory for the layout");
    layout->shape = *shape;
    layout->group_count = 2 + (size_t)shape->layers;
    layout->tensors = calloc(count, sizeof(*layout->tensors));
    layout->groups = calloc(layout->group_count, sizeof(*layout->groups));
    if (layout->tensors == NULL || layout->groups == NULL) {
        gpt2_layout_destroy(layout);
        return gpt2_fail(error, "out of memory for %zu tensor names", count);
    }
    name_groups(layout);
    append_tensor(layout, -1, "ln_f.weight", 1, width, 0, GPT2_CUT_NONE);
    append_tensor(layout, -1, "ln_f.bias", 1, width, 0, GPT2_CUT_NONE);
    for (int layer = shape->layers - 1; layer >= 0; layer--) {
        append_tensor(layout, layer, "mlp.fcproj.weight", width, 4 * width, 1, GPT2_CUT_HIDDEN_IN);
        append_tensor(layout, layer, "mlp.fcproj.bias", 1, width, 0, GPT2_CUT_NONE);
        append_tensor(layout, layer, "mlp.fc.weight", 4 * width, width, 1, GPT2_CUT_HIDDEN);
        append_tensor(layout, layer, "mlp.fc.bias", 1, 4 * width, 0, GPT2_CUT_HIDDEN);
        append_tensor(layout, layer, "ln_2.weight", 1, width, 0, GPT2_CUT_NONE);
        append_tensor(layout, layer, "ln_2.bias", 1, width, 0, GPT2_CUT_NONE);
        append_tensor(layout, layer, "attn.proj.weight", width, width, 1, GPT2_CUT_HEADS_IN);
        append_tensor(layout, layer, "attn.proj.bias", 1, width, 0, GPT2_CUT_NONE);
        append_tensor(layout, layer, "attn.qkv.weight", 3 * width, width, 1, GPT2_CUT_HEADS);
        append_tensor(layout, layer, "attn.qkv.bias", 1, 3 * width, 0, GPT2_CUT_HEADS);
        append_tensor(layout, layer, "ln_1.weight", 1, width, 0, GPT2_CUT_NONE);
        append_tensor(layout, layer, "ln_1.bias", 1, width, 0, GPT2_CUT_NONE);
    }
    append_tensor(layout, -1, "wpe.weight", shape->context, width, 1, GPT2_CUT_NONE);
    append_tensor(layout, -1, "wte.weight", shape->vocab_padded, width, 1, GPT2_CUT_VOCAB);
    place_tensors(layout);
    place_groups(layout);
    layout->whole = layout;
    *out = layout;
    return 0;
}

/* *first, *count = the part of n that a place has. */
static void cut_dimension(size_t n, int parts, int part, size_t *first, size_t *count)
{
    *first = n * (size_t)part / (size_t)parts;
    *count = n * ((size_t)part + 1) / (size_t)parts - *first;
}

gpt2_local_t gpt2_local_of(const gpt2_shape_t *shape, int parts, int part)
{
    const size_t size = (size_t)shape->width / (size_t)shape->heads;
    gpt2_local_t local;

    cut_dimension((size_t)shape->heads, parts, part, &local.first_head, &local.heads);
    cut_dimension(4 * (size_t)shape->width, parts, part, &local.first_hidden, &local.hidden);
    cut_dimension((size_t)shape->vocab, parts, part, &local.first_token, &local.vocab);
    local.width = local.heads * size;
    local.first_column = local.first_head * size;
    return local;
}

int gpt2_parts_check(const gpt2_shape_t *shape, const char *flag, int parts, gpt2_error_t *error)
{
    if (parts > shape->heads) {
        return gpt2_fail(error, "%s%d: every part needs a head, but the model has %d", flag, parts,
                         shape->heads);
    }
    if (parts <= shape->vocab) return 0;
    return gpt2_fail(error, "%s%d: every part needs a token, but the vocabulary has %d", flag,
                     parts, shape->vocab);
}

static void slice_tensor(gpt2_tensor_t *tensor, const gpt2_shape_t *shape,
                         const gpt2_local_t *local, int is_last)
{
    const size_t width = (size_t)shape->width;
    const size_t inputs = tensor->decay ? (size_t)tensor->columns : 1; /* of one output */
    size_t outputs = 0;                                                /* 0: inputs are cut */

    switch (tensor->cut) {
    case GPT2_CUT_NONE:
        return;
    case GPT2_CUT_HEADS:
        outputs = 3 * local->width;
        tensor->first = local->first_column * inputs;
        tensor->run = local->width * inputs;
        tensor->stride = width * inputs;
        break;
    case GPT2_CUT_HIDDEN:
        outputs = local->hidden;
        tensor->first = local->first_hidden * inputs;
        tensor->run = outputs * inputs;
        break;
    case GPT2_CUT_VOCAB:
        outputs = local->vocab + (is_last ? (size_t)(shape->vocab_padded - shape->vocab) : 0);
        tensor->first = local->first_token * inputs;
        tensor->run = outputs * inputs;
        break;
    case GPT2_CUT_HEADS_IN:
        tensor->first = local->first_column;
        tensor->run = local->width;
        tensor->stride = width;
        break;
    case GPT2_CUT_HIDDEN_IN:
        tensor->first = local->first_hidden;
        tensor->run = local->hidden;
        tensor->stride = 4 * width;
        break;
    }
    if (outputs == 0 || !tensor->decay) {
        tensor->columns = (int)(outputs == 0 ? tensor->run : outputs);
    } else {
        tensor->rows = (int)outputs;
    }
    tensor->count = (size_t)tensor->rows * (size_t)tensor->columns;
}

int gpt2_layout_slice(gpt2_layout_t *layout, int parts, int part, gpt2_error_t *error)
{
    const gpt2_local_t local = gpt2_local_of(&layout->shape, parts, part);

    if (parts == 1) return 0;
    if (gpt2_layout_create(&layout->shape, &layout->whole, error) != 0) return -1;
    for (size_t i = 0; i < layout->count; i++)
        slice_tensor(&layout->tensors[i], &layout->shape, &local, part + 1 == parts);
    place_tensors(layout);
    place_groups(layout);
    return 0;
}

void gpt2_layout_hold(gpt2_layout_t *layout, const int *held)
{
    for (size_t i = 0; i < layout->group_count; i++)
        layout->groups[i].is_elsewhere = !held[i];
    place_groups(layout);
}

void gpt2_layout_destroy(gpt2_layout_t *layout)
{
    if (layout == NULL) return;
    if (layout->whole != layout) gpt2_layout_destroy(layout->whole);
    free(layout->tensors);
    free(layout->groups);
    free(layout);
}

size_t gpt2_layout_block(const gpt2_layout_t *layout, int layer)
{
    return 2 + (size_t)GPT2_BLOCK_TENSORS * (size_t)(layout->shape.layers - 1 - layer);
}

size_t gpt2_layout_wpe(const gpt2_layout_t *layout)
{
    return layout->count - 2;
}

size_t gpt2_layout_wte(const gpt2_layout_t *layout)
{
    return layout->count - 1;
}

size_t gpt2_layout_group(int layer)
{
    return 2 + (size_t)layer;
}

size_t gpt2_layout_find(const gpt2_layout_t *layout, const char *name)
{
    for (size_t i = 0; i < layout->count; i++) {
        if (strcmp(layout->tensors[i].name, name) == 0) return i;
    }
    return layout->count;
}

size_t gpt2_layout_largest_group(const gpt2_layout_t *layout)
{
    size_t largest = layout->groups[0].count;

    for (size_t i = 1; i < layout->group_count; i++) {
        if (layout->groups[i].count > largest) largest = layout->groups[i].count;
    }
    return largest;
}
