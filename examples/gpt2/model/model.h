/*
 * model.h - one replica of a GPT-2: weights, activations, forward, loss, backward.
 *
 * Pre-norm blocks, GELU in its tanh form, learned positions, the head tied to the token
 * embedding (Radford et al. 2019). It must not know about ranks: gradients are handed over through
 * a callback as backward completes them.
 */
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H

#include <stdint.h>

#include "examples/gpt2/cpu/kernels.h"
#include "examples/gpt2/model/shape.h"
#include "examples/gpt2/cpu/team.h"

/* Where the large arenas come from; must return zeroed memory aligned to 64 bytes, or NULL. */
typedef struct gpt2_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *memory);
    void *user;
} gpt2_allocator_t;

/* The part of a model that one place of the mesh has: a stage of a pipeline, and of its tensors one
 * slice. All zero: the model has all of it. */
typedef struct gpt2_stage {
    int is_staged; /* 1: the rest counts */
    int parts; /* places along the tensor axis, which divide heads, units of the MLP and tokens */
    int part;  /* of them, this one */
    int first; /* blocks first .. last - 1 are here; first == last: none is */
    int last;
    int has_embedding; /* 1: tokens come in; else a residual stream from the stage before */
    int has_head;      /* 1: the final norm, the head and the loss are here */
    int slots;         /* passes whose activations are kept at one time */
} gpt2_stage_t;

typedef struct gpt2_model_options {
    gpt2_shape_t shape;
    gpt2_stage_t stage;
    int batch;        /* most sequences per pass */
    int length;       /* most tokens per sequence, <= context */
    int threads;      /* >= 1 */
    int training;     /* 0: no gradients, no stored activations of other layers; loss only */
    int weights_only; /* 1: to hold weights; no pass can be made */
    int is_supplied;  /* 1: weights and gradients come from gpt2_model_supply(), not from arenas */
    /* More than 1: products whose inner dimension so many places along the tensor axis would divide
     * are computed in as many pieces, which are added in order: so one process has their bits. */
    int pieces;
    const gpt2_kernels_t *kernels; /* NULL: the best this processor runs */
    gpt2_gemm_fn gemm;             /* NULL: gpt2_gemm_choose("auto") */
    gpt2_allocator_t gradients;    /* all NULL: plain memory; of parts, the activations' too */
} gpt2_model_options_t;

/* One pass' input; borrowed during the call. */
typedef struct gpt2_batch {
    const int32_t *inputs;  /* [count][length] */
    const int32_t *targets; /* [count][length] */
    int count;              /* sequences, <= batch; 0 is allowed */
    int length;
} gpt2_batch_t;

/* Calls during a pass; every entry may be NULL. Called on the caller's thread. */
typedef struct gpt2_hooks {
    void *user;
    /* Gradients first .. first+count-1 of the layout are complete. Not 0: backward stops. */
    int (*ready)(void *user, size_t first, size_t count);
    void (*span_begin)(void *user, const char *name); /* "forward", "backward h.3", ... */
    void (*span_end)(void *user);
} gpt2_hooks_t;

typedef enum gpt2_phase { GPT2_FORWARD, GPT2_BACKWARD } gpt2_phase_t;

/* Where passes get weights and gradients from if the model has no arenas. Every pass makes the same
 * calls in the same order, also with no sequences. Called on the caller's thread. */
typedef struct gpt2_supply {
    void *user;
    /* Before a pass uses a group: *weights, and for backward *gradients too, lie [group's count]
     * there until after_use(). Not 0: the pass stops. For the tokens' group backward begins with
     * the head. */
    int (*before_use)(void *user, size_t group, gpt2_phase_t phase, float **weights,
                      float **gradients);
    /* The pass, or this half of it, needs the group no more. */
    int (*after_use)(void *user, size_t group, gpt2_phase_t phase);
    /* The optimizer has updated this rank's part of the group. */
    int (*after_update)(void *user, size_t group);
    /* values [count] = their sums over the ranks that divide the groups among them: host memory,
     * or the device's, where it is queued. */
    int (*sum)(void *user, double *values, size_t count);
    const gpt2_error_t *error; /* why an entry stopped a pass */
} gpt2_supply_t;

/* Sums over the places along the tensor axis, one at a time. Every place makes the same calls in
 * the same order. Called on the caller's thread. */
typedef struct gpt2_reducer {
    void *user;
    /* values [count] become their sum, or their maximum, over the places, between start() and the
     * end of finish(). Not 0: the model stops. */
    int (*start)(void *user, float *values, size_t count, int is_max);
    int (*finish)(void *user);
    const gpt2_error_t *error; /* why an entry stopped the model */
} gpt2_reducer_t;

typedef struct gpt2_activations gpt2_activations_t; /* activations.h */

/* The borders of a stage, [rows][width] each; NULL where it has none there. */
typedef struct gpt2_edges {
    float *input;    /* the residual stream before its first block: read */
    float *output;   /* behind its last block: written by forward */
    float *gradient; /* of the output as backward begins, of the input when it ends; with the head
                      * it is only written */
} gpt2_edges_t;

typedef struct gpt2_model {
    gpt2_model_options_t options;
    gpt2_layout_t *layout;
    gpt2_team_t *team;
    const gpt2_kernels_t *kernels;
    gpt2_gemm_fn gemm;
    float *weights;                /* arena; NULL where they are supplied */
    float *gradients;              /* arena; NULL without training, and where they are supplied */
    float **weights_at;            /* [groups] where a group's weights lie; NULL: not at hand */
    float **gradients_at;          /* [groups] likewise */
    const gpt2_supply_t *supply;   /* NULL: arenas */
    gpt2_local_t local;            /* heads, units of the MLP and tokens that are here */
    const gpt2_reducer_t *reducer; /* NULL: all of them are */
    int is_stopped; /* 1: supply or reducer stopped a pass; passes compute nothing from then on */
    gpt2_activations_t *activations;
    /* [vocab_padded][width] what lookups add to wte's gradient, of a staged model that has the head
     * as well: kept apart, so that the sum has the same bits as that of two stages; else NULL */
    float *lookups;
    char (*block_names)[24]; /* [layers]: "backward h.3" */
} gpt2_model_t;

/* Allocates everything a pass needs; weights are zero. Give it back with gpt2_model_destroy(). */
int gpt2_model_create(const gpt2_model_options_t *options, gpt2_model_t **out, gpt2_error_t *error);
void gpt2_model_destroy(gpt2_model_t *model);

/* From here on passes ask there. The object is borrowed until the model is destroyed. */
void gpt2_model_supply(gpt2_model_t *model, const gpt2_supply_t *supply);

/* For a model that is one of several parts, before its first pass. The object is borrowed until the
 * model is destroyed. */
void gpt2_model_reduce_by(gpt2_model_t *model, const gpt2_reducer_t *reducer);

/* Draws the weights: normal(0, 0.02), residual projections divided by sqrt(2 layers), norms 1 and
 * 0. Depends on the seed alone, not on how many threads of the model draw them. */
void gpt2_model_init_weights(gpt2_model_t *model, uint64_t seed);

/* The same numbers for a part of a group: weights [count] = its elements from `first` on. */
void gpt2_model_init_part(gpt2_model_t *model, uint64_t seed, size_t group, size_t first,
                          size_t count, float *weights);

/* For a staged model, before each forward, head and backward: whose activations these are, and
 * where its borders lie (borrowed until the next call). */
void gpt2_model_select(gpt2_model_t *model, int slot, const gpt2_edges_t *edges);

/* Of a staged model, before the first backward of a step: zeroes the gradients that this stage
 * holds but no pass of it writes. */
void gpt2_model_clear(gpt2_model_t *model);

/* Of a staged model, behind the last backward of a step: adds the lookups that were kept apart. */
void gpt2_model_join_lookups(gpt2_model_t *model);

/* Runs the blocks up to the final norm. */
void gpt2_model_forward(gpt2_model_t *model, const gpt2_batch_t *batch, const gpt2_hooks_t *hooks);

/*
 * After forward: the sum of the losses of all tokens, in nats. With training also the head's part
 * of backward, for the loss sum_i weight * loss_i: writes (accumulate 0) or adds to the gradients.
 * Every part of a model finds the same losses; all but the first return 0.
 */
double gpt2_model_head(gpt2_model_t *model, const gpt2_batch_t *batch, int training, float weight,
                       int accumulate, const gpt2_hooks_t *hooks);

/* After gpt2_model_head() with training: everything else. -1 where ready() or the supply stopped
 * it. */
int gpt2_model_backward(gpt2_model_t *model, const gpt2_batch_t *batch, int accumulate,
                        const gpt2_hooks_t *hooks);

/* After forward: logits [count * length][vocab]. */
void gpt2_model_logits(gpt2_model_t *model, const gpt2_batch_t *batch, float *logits);

/* A tensor's weights and gradients, where they are at hand. */
float *gpt2_model_weight(const gpt2_model_t *model, size_t index);
float *gpt2_model_gradient(const gpt2_model_t *model, size_t index);

#endif
