/*
 * optimizer.h - the optimizers as one table, over a model's groups or this rank's part of each, and
 * the learning rate's schedule.
 *
 * A kind of optimizer is one file (adamw.c, lamb.c) and a line in optimizer.c. It works on spans of
 * tensors and knows nothing of groups or ranks; where it needs sums over whole tensors, those of
 * other ranks come from the model's supply.
 */
#ifndef GPT2_OPTIMIZER_H
#define GPT2_OPTIMIZER_H

#include <stdint.h>

#include "examples/gpt2/model/groups.h"
#include "examples/gpt2/model/model.h"

typedef struct gpt2_optimizer gpt2_optimizer_t;
typedef struct gpt2_optimizer_kind gpt2_optimizer_kind_t;

typedef struct gpt2_optimizer_settings {
    double learning_rate; /* the peak */
    double final_rate;    /* at the end of the cosine, as a fraction of the peak */
    uint64_t warmup;      /* steps of linear rise */
    uint64_t steps;       /* of the whole run */
    double beta1;
    double beta2;
    double epsilon;
    double decay;                      /* on 2-D tensors only, but see adapts_all */
    const gpt2_optimizer_kind_t *kind; /* NULL: AdamW */
    /* LAMB alone; zeros are its defaults */
    double phi_max;         /* the largest norm of weights that counts; 0: any */
    int without_correction; /* 1: moments are used as they are, without bias correction */
    int adapts_all;         /* 1: 1-D tensors are decayed, and their rates adapted, as well */
} gpt2_optimizer_settings_t;

/* A part of one tensor that this rank updates. */
typedef struct gpt2_span {
    size_t tensor;  /* of the layout */
    size_t first;   /* element of the tensor; a multiple of GPT2_LAMB_BLOCK */
    size_t count;   /* likewise, or up to the tensor's end */
    float *weights; /* [count], and so the others */
    float *gradients;
    float *m;
    float *v;
    int is_whole; /* 1: every rank updates these elements, in the same way */
} gpt2_span_t;

struct gpt2_optimizer_kind {
    const char *name; /* as in --optimizer */
    double epsilon;   /* its usual one */
    /* How many partial sums an update of the whole model has. NULL: none. */
    size_t (*count_partials)(const gpt2_layout_t *layout);
    /* The first half of an update: moments, and partial sums of the spans. NULL: there is none. */
    void (*prepare)(gpt2_optimizer_t *optimizer, gpt2_model_t *model, const gpt2_span_t *spans,
                    size_t count);
    /* The second half, or all: the spans' weights. Gradients may be overwritten. */
    void (*apply)(gpt2_optimizer_t *optimizer, gpt2_model_t *model, const gpt2_span_t *spans,
                  size_t count);
};

extern const gpt2_optimizer_kind_t gpt2_optimizer_adamw;
extern const gpt2_optimizer_kind_t gpt2_optimizer_lamb;

struct gpt2_optimizer {
    gpt2_optimizer_settings_t settings;
    const gpt2_optimizer_kind_t *kind;
    uint64_t updates;   /* made so far; skipped steps do not count */
    float *m;           /* arena, first moments; of a supplied model part behind part */
    float *v;           /* arena, second moments; likewise */
    float *masters;     /* of parts whose weights have 16 bits, part behind part; else NULL */
    gpt2_part_t *parts; /* [groups] what is updated here: all of a group, or this rank's row */
    /* of the update in progress */
    double learning_rate;
    double clip;
    /* Each is a sum over some elements of one tensor. Of spans that ranks divide among them, one
     * rank has the sum and the others have zero, so adding up is exact. Those of whole spans are
     * kept apart meanwhile. */
    double *partials;     /* [partial_count] */
    double *of_whole;     /* [partial_count] */
    size_t partial_count; /* 0: the kind needs none */
};

/* The kind of that name, or NULL with the error. */
const gpt2_optimizer_kind_t *gpt2_optimizer_find(const char *name, gpt2_error_t *error);

/* Moments start at zero; where the model is supplied there are none before the parts are known.
 * Give it back with gpt2_optimizer_destroy(). */
int gpt2_optimizer_create(const gpt2_model_t *model, const gpt2_optimizer_settings_t *settings,
                          gpt2_optimizer_t **out, gpt2_error_t *error);
void gpt2_optimizer_destroy(gpt2_optimizer_t *optimizer);

/* For a supplied model: what of each group is updated here, and where its weights and gradients
 * lie; moments in `parts` are not read. Parts with halves get memory for their masters, zeroed.
 * parts [groups]: copied. Called once. */
int gpt2_optimizer_divide(gpt2_optimizer_t *optimizer, const gpt2_model_t *model,
                          const gpt2_part_t *parts, gpt2_error_t *error);

/* The learning rate of a step, counted from 0. Pure. */
double gpt2_learning_rate(const gpt2_optimizer_settings_t *settings, uint64_t step);

/* Updates the weights from the gradients, each multiplied by `clip`. The gradients hold none
 * afterwards. For a model with arenas. */
void gpt2_optimizer_update(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                           double clip);

/* The same in pieces: begin() counts the update and makes its first half, which may add sums up
 * over ranks (-1: the supply says why that failed); then every group once, in any order. */
int gpt2_optimizer_begin(gpt2_optimizer_t *optimizer, gpt2_model_t *model, double learning_rate,
                         double clip);
void gpt2_optimizer_update_group(gpt2_optimizer_t *optimizer, gpt2_model_t *model, size_t group);

/* Sum of squares of an arena, tensor by tensor on the calling thread. */
double gpt2_arena_sum_squares(gpt2_model_t *model, const float *arena);

#endif
