/*
 * adamw.c - AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) over spans of tensors.
 *
 * Called by optimizer.c on the main thread. Members of the team own disjoint parts, and each
 * element's update depends on nothing else, so neither threads nor shards change a bit.
 */
#include "examples/gpt2/model/optimizer.h"

#include <math.h>

typedef struct update {
    gpt2_model_t *model;
    const gpt2_span_t *spans;
    size_t count;
    gpt2_adamw_t with_decay;
    gpt2_adamw_t without_decay;
} update_t;

static void update_member(void *argument, int index, int members)
{
    update_t *update = argument;
    const gpt2_model_t *model = update->model;

    for (size_t i = 0; i < update->count; i++) {
        const gpt2_span_t *span = &update->spans[i];
        const int decay = model->layout->tensors[span->tensor].decay;
        size_t first;
        size_t last;

        gpt2_team_part(span->count, GPT2_VECTOR_ALIGN, index, members, &first, &last);
        model->kernels->adamw(span->weights + first, span->gradients + first, span->m + first,
                              span->v + first, last - first,
                              decay ? &update->with_decay : &update->without_decay);
    }
}

static void adamw_apply(gpt2_optimizer_t *optimizer, gpt2_model_t *model, const gpt2_span_t *spans,
                        size_t count)
{
    const gpt2_optimizer_settings_t *settings = &optimizer->settings;
    const double step = (double)optimizer->updates;
    update_t update = {
        .model = model,
        .spans = spans,
        .count = count,
        .with_decay = {.learning_rate = (float)optimizer->learning_rate,
                       .beta1 = (float)settings->beta1,
                       .beta2 = (float)settings->beta2,
                       .epsilon = (float)settings->epsilon,
                       .decay = (float)settings->decay,
                       .gradient_by = (float)optimizer->clip,
                       .correction1 = (float)(1.0 - pow(settings->beta1, step)),
                       .correction2 = (float)(1.0 - pow(settings->beta2, step))},
    };

    update.without_decay = update.with_decay;
    update.without_decay.decay = 0.0f;
    gpt2_team_run(model->team, update_member, &update);
}

const gpt2_optimizer_kind_t gpt2_optimizer_adamw = {
    .name = "adamw",
    .epsilon = 1e-8,
    .apply = adamw_apply,
};
