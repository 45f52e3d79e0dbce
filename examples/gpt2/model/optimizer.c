/*
 * optimizer.c - AdamW tensor by tensor, each split over the team.
 *
 * Called by the replica on the main thread, which is member 0 of the team. Members own disjoint
 * spans, so the result does not depend on how many there are.
 */
#include "examples/gpt2/model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct update {
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    gpt2_adamw_t adamw;
} update_t;

int gpt2_optimizer_create(const gpt2_model_t *model, const gpt2_optimizer_settings_t *settings,
                          gpt2_optimizer_t **out, gpt2_error_t *error)
{
    size_t bytes = model->layout->arena_count * sizeof(float);
    gpt2_optimizer_t *optimizer = calloc(1, sizeof(*optimizer));

    if (optimizer == NULL) return gpt2_fail(error, "out of memory for an optimizer");
    optimizer->settings = *settings;
    optimizer->m = aligned_alloc(256, bytes);
    optimizer->v = aligned_alloc(256, bytes);
    if (optimizer->m == NULL || optimizer->v == NULL) {
        gpt2_optimizer_destroy(optimizer);
        return gpt2_fail(error, "out of memory: %zu MiB of optimizer state", 2 * bytes >> 20);
    }
    memset(optimizer->m, 0, bytes);
    memset(optimizer->v, 0, bytes);
    *out = optimizer;
    return 0;
}

void gpt2_optimizer_destroy(gpt2_optimizer_t *optimizer)
{
    if (optimizer == NULL) return;
    free(optimizer->m);
    free(optimizer->v);
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

static void update_member(void *argument, int index, int members)
{
    update_t *update = argument;
    gpt2_model_t *model = update->model;
    gpt2_optimizer_t *optimizer = update->optimizer;
    gpt2_adamw_t with_decay = update->adamw;
    gpt2_adamw_t without_decay = update->adamw;

    without_decay.decay = 0.0f;
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        size_t first;
        size_t last;
        size_t at;

        gpt2_team_part(tensor->count, GPT2_TENSOR_ALIGN, index, members, &first, &last);
        at = tensor->offset + first;
        model->kernels->adamw(model->weights + at, model->gradients + at, optimizer->m + at,
                              optimizer->v + at, last - first,
                              tensor->decay ? &with_decay : &without_decay);
    }
}

void gpt2_optimizer_update(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                           double clip)
{
    const gpt2_optimizer_settings_t *settings = &optimizer->settings;
    double step = (double)++optimizer->updates;
    update_t update = {
        .model = model,
        .optimizer = optimizer,
        .adamw = {.learning_rate = (float)learning_rate,
                  .beta1 = (float)settings->beta1,
                  .beta2 = (float)settings->beta2,
                  .epsilon = (float)settings->epsilon,
                  .decay = (float)settings->decay,
                  .gradient_by = (float)clip,
                  .correction1 = (float)(1.0 - pow(settings->beta1, step)),
                  .correction2 = (float)(1.0 - pow(settings->beta2, step))},
    };

    gpt2_team_run(model->team, update_member, &update);
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
