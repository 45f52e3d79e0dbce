/*
 * optimizer.h - AdamW over a model's arena, and the learning rate's schedule.
 */
#ifndef GPT2_OPTIMIZER_H
#define GPT2_OPTIMIZER_H

#include <stdint.h>

#include "examples/gpt2/model/model.h"

typedef struct gpt2_optimizer_settings {
    double learning_rate; /* the peak */
    double final_rate;    /* at the end of the cosine, as a fraction of the peak */
    uint64_t warmup;      /* steps of linear rise */
    uint64_t steps;       /* of the whole run */
    double beta1;
    double beta2;
    double epsilon;
    double decay; /* on 2-D tensors only */
} gpt2_optimizer_settings_t;

typedef struct gpt2_optimizer {
    gpt2_optimizer_settings_t settings;
    uint64_t updates; /* made so far; skipped steps do not count */
    float *m;         /* arena, first moments */
    float *v;         /* arena, second moments */
} gpt2_optimizer_t;

/* Moments start at zero. Give it back with gpt2_optimizer_destroy(). */
int gpt2_optimizer_create(const gpt2_model_t *model, const gpt2_optimizer_settings_t *settings,
                          gpt2_optimizer_t **out, gpt2_error_t *error);
void gpt2_optimizer_destroy(gpt2_optimizer_t *optimizer);

/* The learning rate of a step, counted from 0. Pure. */
double gpt2_learning_rate(const gpt2_optimizer_settings_t *settings, uint64_t step);

/* Updates the weights from the gradients, each multiplied by `clip`. */
void gpt2_optimizer_update(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                           double clip);

/* Sum of squares of an arena, tensor by tensor on the calling thread. */
double gpt2_arena_sum_squares(gpt2_model_t *model, const float *arena);

#endif
