/*
 * plan.h - the device memory of a replica, worked out before any of it is allocated.
 *
 * Pure arithmetic: sizes go in, offsets into two blocks of memory come out, so that a machine
 * without a GPU can test it and a run can say what it needs before it fails. It must not know about
 * streams or kernels.
 */
#ifndef GPT2_CUDA_PLAN_H
#define GPT2_CUDA_PLAN_H

#include <stdio.h>

#include "examples/gpt2/cuda/types.h"
#include "examples/gpt2/base/error.h"
#include "examples/gpt2/model/shape.h"

/* Activations that backward computes again instead of keeping them for every layer. */
typedef enum gpt2_recompute {
    GPT2_RECOMPUTE_NONE,
    GPT2_RECOMPUTE_GELU,     /* GELU's output */
    GPT2_RECOMPUTE_GELU_NORM /* and the norms' outputs */
} gpt2_recompute_t;

typedef struct gpt2_cuda_plan_options {
    gpt2_shape_t shape;
    gpt2_cuda_type_t type;
    gpt2_recompute_t recompute;
    size_t batch;         /* sequences per pass */
    size_t length;        /* tokens of each */
    size_t logits_bytes;  /* at most, of logits that exist together; 0: 2 GiB */
    size_t scratch_bytes; /* the most that a kernel of ours wants */
    size_t matmul_bytes;  /* held by the set of matrix products; for the report */
    size_t embed_bytes;   /* of the plan that comes with a batch */
    int own_gradients;    /* 1: no strategy brings memory for them */
    int level;          /* of mixed precision: 2: vectors are kept in fp32 beside 16-bit weights */
    int is_supplied;    /* 1: libdp has weights and gradients, moments come with the parts */
    size_t table_bytes; /* of the optimizer's, beside the moments */
    size_t lookups;     /* rows of lookups' gradients behind the arena of them; 0: none */
} gpt2_cuda_plan_options_t;

/* One block's, in elements of the type; rows = batch * length. Blocks share what is recomputed. */
typedef struct gpt2_cuda_block {
    void *input;     /* [rows][C] residual stream before the block */
    void *ln1;       /* [rows][C] */
    float *ln1_mean; /* [rows] */
    float *ln1_rstd; /* [rows] */
    void *qkv;       /* [rows][3C] */
    void *attention; /* [rows][C] */
    float *lse;      /* [batch][heads][length] */
    void *middle;    /* [rows][C] residual stream after attention */
    void *ln2;       /* [rows][C] */
    float *ln2_mean; /* [rows] */
    float *ln2_rstd; /* [rows] */
    void *fc;        /* [rows][4C] before GELU */
    void *gelu;      /* [rows][4C] */
} gpt2_cuda_block_t;

/* Places in the block of what training keeps from step to step. */
typedef struct gpt2_cuda_state {
    float *weights;   /* arena */
    float *m;         /* arena */
    float *v;         /* arena */
    float *gradients; /* arena; NULL: a strategy's */
    void *low;        /* arena of the type: the weights that passes read; fp32: = weights */
    char *copies; /* supplied at level 1: weights converted to the type: tokens, root, two blocks in
                     turn */
    float *vectors; /* level 2: the 1-D tensors, rounded, group behind group */
    uint32_t
        *grains;     /* level 2: where they lie, [of root, then of a block], in GPT2_TENSOR_ALIGN */
    int32_t *tokens; /* [lookups] announced */
    uint8_t *decays; /* [arena / 64]: 1 where weight decay applies */
    char *tables;    /* [table_bytes] the optimizer's */
} gpt2_cuda_state_t;

/* Places in the block of what a pass keeps and scratches. */
typedef struct gpt2_cuda_activations {
    gpt2_cuda_block_t *blocks; /* [layers], host memory */
    void *output;              /* [rows][C] residual stream after the last block */
    void *lnf;                 /* [rows][C] */
    float *lnf_mean;           /* [rows] */
    float *lnf_rstd;           /* [rows] */
    void *logits;              /* [head_rows][padded vocabulary] */
    float *losses;             /* [rows] */
    void *d_stream;            /* [rows][C] gradient of the residual stream */
    float *stream_sums;        /* [C] of the columns of d_stream */
    void *d_normed;            /* [rows][C] gradient of a norm's output */
    void *d_attention;         /* [rows][C] */
    void *d_qkv;               /* [rows][3C] */
    void *d_fc;                /* [rows][4C] */
    void *scratch;             /* of one kernel at a time */
    char *batch;               /* tokens as they are uploaded: see gpt2_cuda_upload_t */
} gpt2_cuda_activations_t;

typedef struct gpt2_cuda_plan {
    gpt2_cuda_plan_options_t options;
    size_t rows;
    size_t head_rows;    /* rows whose logits exist at a time; divides rows */
    size_t upload_bytes; /* inputs [rows], targets [rows], the embedding's plan */
    /* what the bytes are for; they sum up to total */
    size_t weights;
    size_t moments;
    size_t low;
    size_t gradients;  /* from libdp or the plug-in, with the rows of lookups */
    size_t rows_apart; /* of these, those rows */
    size_t kept;       /* by layers, for backward */
    size_t logits;
    size_t scratch;
    size_t matmul;
    size_t total;
    size_t state_bytes; /* of the two blocks */
    size_t activation_bytes;
} gpt2_cuda_plan_t;

/* Of GPT2_TENSOR_ALIGN elements: those of a 1-D tensor (0: it is none), and of all in a group. */
size_t gpt2_cuda_plan_grains(const gpt2_tensor_t *tensor);
size_t gpt2_cuda_plan_vectors(const gpt2_layout_t *layout, size_t group);

/* Works out the plan; refuses a shape that the kernels cannot do. */
int gpt2_cuda_plan_make(const gpt2_cuda_plan_options_t *options, const gpt2_layout_t *layout,
                        gpt2_cuda_plan_t *plan, gpt2_error_t *error);

/* Says, for people, how to fit into `room` bytes instead: another --recompute at the same batch, or
 * fewer sequences per pass. scratch_bytes and embed_bytes count as they are, so that what is named
 * does fit. Returns text. */
#define GPT2_CUDA_ADVICE_MAX 160
const char *gpt2_cuda_plan_advise(const gpt2_cuda_plan_options_t *options,
                                  const gpt2_layout_t *layout, size_t room,
                                  char text[GPT2_CUDA_ADVICE_MAX]);

/* Places in blocks of memory [state_bytes] and [activation_bytes] that start on 256 bytes.
 * activations->blocks is the caller's. */
void gpt2_cuda_plan_place(const gpt2_cuda_plan_t *plan, const gpt2_layout_t *layout, char *memory,
                          gpt2_cuda_state_t *state);
void gpt2_cuda_plan_place_pass(const gpt2_cuda_plan_t *plan, char *memory,
                               gpt2_cuda_activations_t *activations);

/* A line or two for people. free_bytes: of the device, after all of it was allocated. */
void gpt2_cuda_plan_print(const gpt2_cuda_plan_t *plan, size_t free_bytes, FILE *out);

/* "none", "gelu", "gelu+norm"; -1: no such word. */
int gpt2_recompute_parse(const char *word, gpt2_recompute_t *out);
const char *gpt2_recompute_name(gpt2_recompute_t recompute);

#endif
