/*
 * optimizer.c - the list of optimizers, their moments, and an update group by group.
 *
 * Called by the replica on the main thread, which is member 0 of the team. It hands the spans of a
 * group to the kind of optimizer, which splits them over the team.
 */
#include "examples/gpt2/model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

static const gpt2_optimizer_kind_t *const KINDS[] = {&gpt2_optimizer_adamw, &gpt2_optimizer_lamb};
#define KIND_COUNT (sizeof(KINDS) / sizeof(KINDS[0]))

const gpt2_optimizer_kind_t *gpt2_optimizer_find(const char *name, gpt2_error_t *error)
{
    const char *names[KIND_COUNT];

    for (size_t i = 0; i < KIND_COUNT; i++) {
        names[i] = KINDS[i]->name;
        if (strcmp(names[i], name) == 0) return KINDS[i];
    }
    gpt2_fail(error, "--optimizer %s: no such optimizer, did you mean %s?", name,
              gpt2_nearest(name, names, KIND_COUNT));
    return NULL;
}

/* floats of both moments, zeroed. */
static int create_moments(gpt2_optimizer_t *optimizer, size_t floats, gpt2_error_t *error)
{
    const size_t bytes = (floats == 0 ? GPT2_VECTOR_ALIGN : floats) * sizeof(float);

    optimizer->m = aligned_alloc(256, bytes);
    optimizer->v = aligned_alloc(256, bytes);
    if (optimizer->m == NULL || optimizer->v == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of optimizer state", 2 * bytes >> 20);
    }
    memset(optimizer->m, 0, bytes);
    memset(optimizer->v, 0, bytes);
    return 0;
}

/* Every group is one part, whose moments have the layout of the arena. */
static int take_arenas(gpt2_optimizer_t *optimizer, const gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;

    if (create_moments(optimizer, layout->arena_count, error) != 0) return -1;
    for (size_t i = 0; i < layout->group_count; i++) {
        const size_t offset = layout->groups[i].offset;

        optimizer->parts[i] =
            (gpt2_part_t){.weights = model->weights_at[i],
                          .gradients = model->gradients_at[i],
                          .m = optimizer->m + offset,
                          .v = optimizer->v + offset,
                          /* a group that another stage has is an empty part */
                          .count = layout->groups[i].is_elsewhere ? 0 : layout->groups[i].count};
    }
    return 0;
}

int gpt2_optimizer_divide(gpt2_optimizer_t *optimizer, const gpt2_model_t *model,
                          const gpt2_part_t *parts, gpt2_error_t *error)
{
    const size_t groups = model->layout->group_count;
    size_t floats = 0;
    size_t at = 0;

    for (size_t i = 0; i < groups; i++)
        floats += parts[i].count;
    if (create_moments(optimizer, floats, error) != 0) return -1;
    if (parts[0].halves != NULL) {
        optimizer->masters = calloc(floats + 1, sizeof(float));
        if (optimizer->masters == NULL) {
            return gpt2_fail(error, "out of memory: %zu MiB of fp32 masters",
                             floats * sizeof(float) >> 20);
        }
    }
    for (size_t i = 0; i < groups; i++) {
        optimizer->parts[i] = parts[i];
        if (optimizer->masters != NULL) optimizer->parts[i].weights = optimizer->masters + at;
        optimizer->parts[i].m = optimizer->m + at;
        optimizer->parts[i].v = optimizer->v + at;
        at += parts[i].count;
    }
    return 0;
}

static int create_partials(gpt2_optimizer_t *optimizer, const gpt2_layout_t *layout,
                           gpt2_error_t *error)
{
    if (optimizer->kind->count_partials == NULL) return 0;
    optimizer->partial_count = optimizer->kind->count_partials(layout);
    optimizer->partials = calloc(optimizer->partial_count, sizeof(double));
    optimizer->of_whole = calloc(optimizer->partial_count, sizeof(double));
    if (optimizer->partials != NULL && optimizer->of_whole != NULL) return 0;
    return gpt2_fail(error, "out of memory for an optimizer");
}

int gpt2_optimizer_create(const gpt2_model_t *model, const gpt2_optimizer_settings_t *settings,
                          gpt2_optimizer_t **out, gpt2_error_t *error)
{
    gpt2_optimizer_t *optimizer = calloc(1, sizeof(*optimizer));

    if (optimizer == NULL) return gpt2_fail(error, "out of memory for an optimizer");
    optimizer->settings = *settings;
    optimizer->kind = settings->kind != NULL ? settings->kind : &gpt2_optimizer_adamw;
    optimizer->parts = calloc(model->layout->group_count, sizeof(*optimizer->parts));
    if (optimizer->parts == NULL) {
        gpt2_optimizer_destroy(optimizer);
        return gpt2_fail(error, "out of memory for an optimizer");
    }
    if (create_partials(optimizer, model->layout, error) != 0 ||
        (!model->options.is_supplied && take_arenas(optimizer, model, error) != 0)) {
        gpt2_optimizer_destroy(optimizer);
        return -1;
    }
    *out = optimizer;
    return 0;
}

void gpt2_optimizer_destroy(gpt2_optimizer_t *optimizer)
{
    if (optimizer == NULL) return;
    free(optimizer->m);
    free(optimizer->v);
    free(optimizer->masters);
    free(optimizer->parts);
    free(optimizer->partials);
    free(optimizer->of_whole);
    free(optimizer);
}

double gpt2_learning_rate(const gpt2_optimizer_settings_t *settings, uint64_t step)
{
    double low = settings->learning_rate * settings->final_rate;
    double progress;

    if (step < settings->warmup) {
        return settings->learning_rate * (double)(step + 1) / (double)settings->warmup;
    }
    if (step >= settings->steps || settings->steps <= settings->warmup) return low;
    progress = (double)(step - settings->warmup) / (double)(settings->steps - settings->warmup);
    return low + (settings->learning_rate - low) * 0.5 * (1.0 + cos(3.141592653589793 * progress));
}

/* spans [GPT2_PIECES_MAX] = what is updated here of a group; returns how many there are. */
static size_t list_spans(const gpt2_optimizer_t *optimizer, const gpt2_layout_t *layout,
                         size_t group, gpt2_span_t *spans)
{
    const gpt2_part_t *part = &optimizer->parts[group];
    gpt2_piece_t pieces[GPT2_PIECES_MAX];
    const size_t found = gpt2_group_pieces(layout, group, part->first, part->count, pieces);

    for (size_t i = 0; i < found; i++) {
        const size_t at = pieces[i].at;

        spans[i] = (gpt2_span_t){.tensor = pieces[i].tensor,
                                 .first = pieces[i].first,
                                 .count = pieces[i].count,
                                 .weights = part->weights + at,
                                 .gradients = part->gradients + at,
                                 .m = part->m + at,
                                 .v = part->v + at,
                                 .is_whole = part->is_whole};
    }
    return found;
}

/* Adds the partial sums up: over ranks, and those of whole spans, which all ranks have. */
static int add_partials(gpt2_optimizer_t *optimizer, const gpt2_model_t *model)
{
    const gpt2_supply_t *supply = model->supply;

    if (supply != NULL &&
        supply->sum(supply->user, optimizer->partials, optimizer->partial_count) != 0) {
        return -1;
    }
    for (size_t i = 0; i < optimizer->partial_count; i++)
        optimizer->partials[i] += optimizer->of_whole[i];
    return 0;
}

int gpt2_optimizer_begin(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                         double clip)
{
    const size_t bytes = optimizer->partial_count * sizeof(double);

    optimizer->updates++;
    optimizer->learning_rate = learning_rate;
    optimizer->clip = clip;
    if (optimizer->kind->prepare == NULL) return 0;
    memset(optimizer->partials, 0, bytes);
    memset(optimizer->of_whole, 0, bytes);
    for (size_t i = 0; i < model->layout->group_count; i++) {
        gpt2_span_t spans[GPT2_PIECES_MAX];
        const size_t count = list_spans(optimizer, model->layout, i, spans);

        optimizer->kind->prepare(optimizer, model, spans, count);
    }
    return add_partials(optimizer, model);
}

void gpt2_optimizer_update_group(gpt2_optimizer_t *optimizer, gpt2_model_t *model, size_t group)
{
    gpt2_span_t spans[GPT2_PIECES_MAX];
    const size_t count = list_spans(optimizer, model->layout, group, spans);

    optimizer->kind->apply(optimizer, model, spans, count);
}

void gpt2_optimizer_update(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                           double clip)
{
    (void)gpt2_optimizer_begin(optimizer, model, learning_rate, clip); /* no supply, no failure */
    for (size_t i = 0; i < model->layout->group_count; i++)
        gpt2_optimizer_update_group(optimizer, model, i);
}

double gpt2_arena_sum_squares(gpt2_model_t *model, const float *arena)
{
    double total = 0.0;

    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        total += model->kernels->sum_squares(arena + tensor->offset, tensor->count);
    }
    return total;
}
