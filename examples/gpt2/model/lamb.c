/*
 * lamb.c - LAMB (You et al. 2020, arXiv:1904.00962) over spans of tensors: Adam's direction, with
 * weight decay as a part of it, at a rate of its own for each tensor.
 *
 *     direction = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay * weight
 *     weight   -= learning rate * phi(|weights|) / |directions| * direction
 *
 * with norms over the tensor, phi(x) = min(x, phi_max), and a quotient of 1 where a norm is 0.
 *
 * Called by optimizer.c on the main thread. A rank may have parts of tensors only. So the squares
 * behind a norm are added up per GPT2_LAMB_BLOCK elements, counted from the tensor's first, which
 * one rank owns; then the blocks in one order. The norm has the same bits for any number of threads
 * and ranks. The first half leaves the directions where the gradients were.
 */
#include "examples/gpt2/model/lamb.h"

#include <math.h>

typedef struct update {
    gpt2_optimizer_t *optimizer;
    gpt2_model_t *model;
    const gpt2_span_t *spans;
    size_t count;
    gpt2_lamb_t lamb;
} update_t;

static size_t blocks_of(size_t count)
{
    return (count + GPT2_LAMB_BLOCK - 1) / GPT2_LAMB_BLOCK;
}

size_t gpt2_lamb_block(const gpt2_layout_t *layout, size_t tensor)
{
    size_t blocks = 0;

    for (size_t i = 0; i < tensor; i++)
        blocks += blocks_of(layout->tensors[i].count);
    return blocks;
}

double gpt2_lamb_rate(double learning_rate, double phi_max, const double *squares)
{
    const double directions = sqrt(squares[1]);
    double weights = sqrt(squares[0]);

    if (phi_max > 0.0 && weights > phi_max) weights = phi_max;
    if (weights == 0.0 || directions == 0.0) return learning_rate;
    return learning_rate * (weights / directions);
}

gpt2_lamb_t gpt2_lamb_of(const gpt2_optimizer_settings_t *settings, uint64_t update, double clip)
{
    const double beta1 = settings->beta1;
    const double beta2 = settings->beta2;
    const int correct = !settings->without_correction;

    return (gpt2_lamb_t){
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .rest1 = (float)(1.0 - beta1),
        .rest2 = (float)(1.0 - beta2),
        .epsilon = (float)settings->epsilon,
        .decay = (float)settings->decay,
        .gradient_by = (float)clip,
        .correction1 = correct ? (float)(1.0 - pow(beta1, (double)update)) : 1.0f,
        .correction2 = correct ? (float)(1.0 - pow(beta2, (double)update)) : 1.0f,
    };
}

int gpt2_lamb_adapts(const gpt2_optimizer_settings_t *settings, const gpt2_tensor_t *tensor)
{
    return tensor->decay || settings->adapts_all;
}

static size_t count_partials(const gpt2_layout_t *layout)
{
    return 2 * gpt2_lamb_block(layout, layout->count);
}

/* The partial sums of a span: two for each of its blocks. */
static double *partials_of(const update_t *update, const gpt2_span_t *span)
{
    double *partials = span->is_whole ? update->optimizer->of_whole : update->optimizer->partials;

    return partials + 2 * (gpt2_lamb_block(update->model->layout, span->tensor) +
                           span->first / GPT2_LAMB_BLOCK);
}

static void prepare_member(void *argument, int index, int members)
{
    update_t *update = argument;
    const gpt2_model_t *model = update->model;

    for (size_t i = 0; i < update->count; i++) {
        const gpt2_span_t *span = &update->spans[i];
        double *partials = partials_of(update, span);
        gpt2_lamb_t lamb = update->lamb;
        size_t first;
        size_t last;

        if (!gpt2_lamb_adapts(&update->optimizer->settings,
                              &model->layout->tensors[span->tensor])) {
            lamb.decay = 0.0f;
        }
        gpt2_team_part(span->count, GPT2_LAMB_BLOCK, index, members, &first, &last);
        partials += first / GPT2_LAMB_BLOCK * 2;
        model->kernels->lamb_direct(span->weights + first, span->gradients + first, span->m + first,
                                    span->v + first, last - first, &lamb, partials);
    }
}

static void lamb_prepare(gpt2_optimizer_t *optimizer, gpt2_model_t *model, const gpt2_span_t *spans,
                         size_t count)
{
    update_t update = {
        .optimizer = optimizer,
        .model = model,
        .spans = spans,
        .count = count,
        .lamb = gpt2_lamb_of(&optimizer->settings, optimizer->updates, optimizer->clip),
    };

    gpt2_team_run(model->team, prepare_member, &update);
}

/* Every member works the rates out for itself: that is less work than waiting for another one. */
static void apply_member(void *argument, int index, int members)
{
    const update_t *update = argument;
    const gpt2_optimizer_t *optimizer = update->optimizer;
    const gpt2_model_t *model = update->model;

    for (size_t i = 0; i < update->count; i++) {
        const gpt2_span_t *span = &update->spans[i];
        const gpt2_tensor_t *tensor = &model->layout->tensors[span->tensor];
        double rate = optimizer->learning_rate;
        size_t first;
        size_t last;

        if (gpt2_lamb_adapts(&optimizer->settings, tensor)) {
            double squares[2];

            model->kernels->lamb_add(
                squares, optimizer->partials + 2 * gpt2_lamb_block(model->layout, span->tensor),
                blocks_of(tensor->count));
            rate = gpt2_lamb_rate(rate, optimizer->settings.phi_max, squares);
        }
        gpt2_team_part(span->count, GPT2_LAMB_BLOCK, index, members, &first, &last);
        model->kernels->lamb_apply(span->weights + first, span->gradients + first, last - first,
                                   (float)rate);
    }
}

static void lamb_apply(gpt2_optimizer_t *optimizer, gpt2_model_t *model, const gpt2_span_t *spans,
                       size_t count)
{
    update_t update = {.optimizer = optimizer, .model = model, .spans = spans, .count = count};

    gpt2_team_run(model->team, apply_member, &update);
}

const gpt2_optimizer_kind_t gpt2_optimizer_lamb = {
    .name = "lamb",
    .epsilon = 1e-6,
    .count_partials = count_partials,
    .prepare = lamb_prepare,
    .apply = lamb_apply,
};
