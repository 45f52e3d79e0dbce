/*
 * pass.h - what forward.c and backward.c share: one pass, seen by one member of the team.
 */
#ifndef GPT2_PASS_H
#define GPT2_PASS_H

#include "examples/gpt2/model/activations.h"

/* A pass; shared by all members. */
typedef struct gpt2_pass {
    gpt2_model_t *model;
    const gpt2_batch_t *batch;
    const gpt2_hooks_t *hooks;
    int training;   /* head only */
    int accumulate; /* gradients are added to */
    float weight;   /* of each token's loss */
    float *logits;  /* where gpt2_model_logits() wants them */
    int failed; /* a hook, the supply or the reducer stopped the pass; written by member 0 before a
                 * barrier */
} gpt2_pass_t;

/* One member's view: the rows that are its own wherever rows are independent. */
typedef struct gpt2_member {
    gpt2_pass_t *pass;
    gpt2_model_t *model;
    gpt2_activations_t *all;
    const gpt2_kernels_t *kernels;
    int index;
    int members;
    size_t rows;  /* of the whole pass: count * length */
    size_t first; /* own rows: first .. first + own - 1 */
    size_t own;
    size_t width;
    float *gemm_scratch;
    float *score_scratch;
} gpt2_member_t;

/* Fills in a member's view. */
void gpt2_member_init(gpt2_member_t *self, gpt2_pass_t *pass, int index, int members);

/* Weights and gradients of a block's tensor. */
float *gpt2_member_weight(const gpt2_member_t *self, int layer, gpt2_block_tensor_t which);
float *gpt2_member_gradient(const gpt2_member_t *self, int layer, gpt2_block_tensor_t which);

/* out = in W^T on own rows; in [rows][inputs], weight [outputs][inputs]. */
void gpt2_member_linear(const gpt2_member_t *self, float *out, const float *in, const float *weight,
                        size_t inputs, size_t outputs);

/* The inner dimensions that the tensor axis divides. */
typedef enum gpt2_inner {
    GPT2_INNER_HEADS,  /* all heads' outputs */
    GPT2_INNER_QKV,    /* all heads' queries, keys and values */
    GPT2_INNER_HIDDEN, /* the MLP's units */
    GPT2_INNER_VOCAB   /* tokens */
} gpt2_inner_t;

/* out [row ..][C] = in [rows][inner] W, as far as this process has the inner dimension: a part of
 * the product until it is summed. W is [inner][C], or transposed [C][inner]; in begins with `row`.
 */
void gpt2_member_inner(const gpt2_member_t *self, gpt2_inner_t which, size_t row, size_t rows,
                       float *out, const float *in, const float *weight, int is_transposed);

/* Sums values [count] over the places of the tensor axis, or takes their maximum. Members meet
 * before start(), when all have written, and behind finish(). Without a reducer nothing. */
void gpt2_member_sum_start(const gpt2_member_t *self, float *values, size_t count, int is_max);
void gpt2_member_sum_finish(const gpt2_member_t *self);
void gpt2_member_sum(const gpt2_member_t *self, float *values, size_t count, int is_max);

/* Asks the supply for groups, and gives them back; only member 0 speaks, and where it fails sets
 * failed. Without a supply nothing. Members meet at a barrier behind a fetch, before they use what
 * it brought, and before a return. */
void gpt2_member_fetch(const gpt2_member_t *self, size_t group, gpt2_phase_t phase);
void gpt2_member_return(const gpt2_member_t *self, size_t group, gpt2_phase_t phase);
/* The barrier behind fetches, where there is a supply. Not 0: they failed; leave the pass. */
int gpt2_member_fetched(const gpt2_member_t *self);
/* The barrier before a return, where there is a supply. */
void gpt2_member_meet(const gpt2_member_t *self);

/* A pass without sequences, with a supply: its calls and nothing else. */
void gpt2_walk_forward(gpt2_pass_t *pass);
void gpt2_walk_head(gpt2_pass_t *pass);
void gpt2_walk_backward(gpt2_pass_t *pass);

/* Marks for the timeline; only member 0 speaks. */
void gpt2_member_span_begin(const gpt2_member_t *self, const char *name);
void gpt2_member_span_end(const gpt2_member_t *self);

#endif
