/*
 * activations.h - what a pass keeps and scratches, one memory plan made at the start.
 *
 * Without training all layers share the buffers of one.
 */
#ifndef GPT2_ACTIVATIONS_H
#define GPT2_ACTIVATIONS_H

#include "examples/gpt2/model/model.h"

/* One block's; rows = batch * length. Local: what of a dimension is here, gpt2_local_t; 4C of the
 * hidden units and C of the heads' width, where the model is not one of several parts. */
typedef struct gpt2_block_activations {
    float *input;     /* [rows][C] residual stream before the block */
    float *ln1;       /* [rows][C] */
    float *ln1_mean;  /* [rows] */
    float *ln1_rstd;  /* [rows] */
    float *qkv;       /* [rows][3 local width] */
    float *attention; /* [rows][local width] */
    float *lse;       /* [batch][local heads][length] */
    float *middle;    /* [rows][C] residual stream after attention */
    float *ln2;       /* [rows][C] */
    float *ln2_mean;  /* [rows] */
    float *ln2_rstd;  /* [rows] */
    float *fc;        /* [rows][local hidden] before GELU */
    float *gelu;      /* [rows][local hidden] */
} gpt2_block_activations_t;

/* The results of one forward pass that its backward reads. */
typedef struct gpt2_kept {
    gpt2_block_activations_t *blocks; /* [layers] */
    float *output;
    float *lnf;
    float *lnf_mean;
    float *lnf_rstd;
} gpt2_kept_t;

struct gpt2_activations {
    float *memory;     /* all of it */
    gpt2_kept_t *kept; /* [slots]; without stages one */
    /* of the pass at hand */
    gpt2_block_activations_t *blocks; /* [layers] */
    float *output;                    /* [rows][C] residual stream after the last block */
    float *lnf;                       /* [rows][C] */
    float *lnf_mean;                  /* [rows] */
    float *lnf_rstd;                  /* [rows] */
    float *projected;                 /* [rows][C] what a block adds to the stream */
    float *logits;                    /* [head_rows][local vocab] */
    size_t head_rows;                 /* rows whose logits exist at a time */
    float *highest;                   /* [head_rows] the largest logit */
    float *totals;                    /* [2][rows at hand] sums of exponentials; targets' logits */
    float *piece;                     /* [rows][C] of options.pieces; else NULL */
    /* training only */
    float *d_stream;    /* [rows][C] gradient of the residual stream */
    float *d_normed;    /* [rows][C] gradient of a norm's output */
    float *d_attention; /* [rows][local width] */
    float *d_qkv;       /* [rows][3 local width] */
    float *d_fc;        /* [rows][local hidden] */
    float *norm_sums;   /* [2][threads][2][C] partial sums of a norm's weight and bias gradients */
    /* per thread */
    float *gemm_scratch;  /* [threads][GPT2_GEMM_SCRATCH] */
    float *score_scratch; /* [threads][2][GPT2_SCORE_ROWS][length] + [GPT2_SCORE_ROWS] */
    size_t score_stride;
    double *loss_sums; /* [threads][8]: a cache line each */
};

/* Rows of scores that attention works on at a time: they stay in the second-level cache, and the
 * half of the square that causality hides is skipped block by block. */
#define GPT2_SCORE_ROWS 64

/* The stage that the options mean: all of the model, with one slot, where there are no stages. */
gpt2_stage_t gpt2_stage_of(const gpt2_model_options_t *options);

/* Allocates the plan for these options, or (out NULL) only counts its bytes. */
int gpt2_activations_create(const gpt2_model_options_t *options, gpt2_activations_t **out,
                            size_t *bytes, gpt2_error_t *error);
void gpt2_activations_destroy(gpt2_activations_t *activations, const gpt2_model_options_t *options);

/* Makes a slot that of the pass at hand. */
void gpt2_activations_select(gpt2_activations_t *activations, int slot);

/*
 * Attention of one head of one sequence, by its number among those that are here. qkv
 * [length][3 local width] and out [length][local width] start at the sequence. scratch: one
 * thread's score_scratch.
 */
void gpt2_head_attend(const gpt2_model_t *model, float *out, float *lse, const float *qkv, int head,
                      size_t length, float *scratch, float *gemm_scratch);
void gpt2_head_attend_backward(const gpt2_model_t *model, float *d_qkv, const float *d_out,
                               const float *out, const float *lse, const float *qkv, int head,
                               size_t length, float *scratch, float *gemm_scratch);

#endif
