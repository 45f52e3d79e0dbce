/*
 * shape.h - the sizes that make a GPT-2: presets, limits, and where each tensor lies in the arena.
 *
 * Weights, gradients and both AdamW moments share one layout. The list of tensors has the order in
 * which backward finishes them (final norm, last block ... first block, positions, tokens). The
 * arena has it group by group: what a pass uses together is one contiguous span, ready at one
 * moment, and the unit in which sharding divides a model among ranks (groups.h).
 */
#ifndef GPT2_SHAPE_H
#define GPT2_SHAPE_H

#include <stddef.h>

#include "examples/gpt2/base/error.h"

/* Floats. Tensors begin at multiples of it: libdp adds squares up in blocks of this size, so the
 * norm has the same bits wherever ranks divide a group, as long as no block has two tensors. */
#define GPT2_TENSOR_ALIGN 4096
#define GPT2_VECTOR_ALIGN 64 /* floats: 256 bytes, a whole number of any vector */
#define GPT2_BLOCK_TENSORS 12
#define GPT2_NAME_MAX 48
#define GPT2_LAYERS_MAX 1024

typedef struct gpt2_shape {
    int vocab;        /* tokens that occur */
    int vocab_padded; /* rows of the embedding; those past vocab stay zero */
    int context;      /* positions */
    int layers;
    int heads;
    int width;
} gpt2_shape_t;

/* The tensors of one block, in completion order. */
typedef enum gpt2_block_tensor {
    GPT2_FCPROJ_W = 0, /* [C][4C] */
    GPT2_FCPROJ_B,
    GPT2_FC_W, /* [4C][C] */
    GPT2_FC_B,
    GPT2_LN2_W,
    GPT2_LN2_B,
    GPT2_PROJ_W, /* [C][C] */
    GPT2_PROJ_B,
    GPT2_QKV_W, /* [3C][C] */
    GPT2_QKV_B,
    GPT2_LN1_W,
    GPT2_LN1_B
} gpt2_block_tensor_t;

/* The dimension of a tensor that tensor parallelism cuts (Shoeybi et al. 2019, arXiv:1909.08053).
 * Outputs are a weight's rows and a bias' elements, inputs a weight's columns. */
typedef enum gpt2_cut {
    GPT2_CUT_NONE,      /* every place has all of it */
    GPT2_CUT_HEADS,     /* outputs, by heads: a range of queries, one of keys, one of values */
    GPT2_CUT_HEADS_IN,  /* inputs, by heads */
    GPT2_CUT_HIDDEN,    /* outputs, by the units between the two products of the MLP */
    GPT2_CUT_HIDDEN_IN, /* inputs, likewise */
    GPT2_CUT_VOCAB      /* rows of the token embedding; those of the padding are the last place's */
} gpt2_cut_t;

typedef struct gpt2_tensor {
    char name[GPT2_NAME_MAX]; /* "h.3.attn.qkv.weight" */
    size_t offset;            /* floats from the start of the arena */
    size_t place;             /* floats from the start of its group */
    size_t count;             /* rows * columns */
    size_t group;             /* position in the layout's groups */
    int rows;
    int columns;
    int layer; /* -1: outside the blocks */
    int decay; /* 1: weight decay applies (2-D tensors) */
    gpt2_cut_t cut;
    /* Where the elements lie in the whole tensor: runs of `run` elements, each `stride` behind the
     * one before, from `first` on. A whole tensor is one run. */
    size_t first;
    size_t run;
    size_t stride;
} gpt2_tensor_t;

/* Tensors that a pass uses together, in the order in which forward needs them: the token embedding,
 * the root (positions and final norm), then block by block. */
#define GPT2_GROUP_WTE ((size_t)0)
#define GPT2_GROUP_ROOT ((size_t)1)

typedef struct gpt2_group {
    char name[GPT2_NAME_MAX]; /* "wte", "root", "h.3" */
    size_t offset;            /* floats from the start of the arena */
    size_t count;             /* floats, a multiple of GPT2_TENSOR_ALIGN */
    int is_elsewhere;         /* 1: another stage of the pipeline has it; this arena does not */
} gpt2_group_t;

typedef struct gpt2_layout {
    gpt2_shape_t shape;        /* of the whole model */
    struct gpt2_layout *whole; /* the layout that this one is a slice of; itself where it is none */
    gpt2_tensor_t *tensors;    /* [count] */
    size_t count;              /* 2 + 12 * layers + 2 */
    gpt2_group_t *groups;      /* [group_count] */
    size_t group_count;        /* 2 + layers */
    size_t arena_count;        /* floats, with gaps for alignment, which stay zero */
    size_t parameter_count;    /* floats of the model itself */
} gpt2_layout_t;

/* The shape of a preset. NULL preset names are unknown: -1 with the list and the nearest name. */
int gpt2_shape_preset(const char *name, gpt2_shape_t *shape, gpt2_error_t *error);

/* "tiny, quick, ...": for help texts. Static. */
const char *gpt2_shape_preset_names(void);

/* Refuses a shape that cannot work, with the value and the rule. */
int gpt2_shape_check(const gpt2_shape_t *shape, gpt2_error_t *error);

/* Computes the layout; give it back with gpt2_layout_destroy(). */
int gpt2_layout_create(const gpt2_shape_t *shape, gpt2_layout_t **out, gpt2_error_t *error);
void gpt2_layout_destroy(gpt2_layout_t *layout);

/* The part that one place of `parts` on the tensor axis has of a dimension that is cut: of n, those
 * from n part / parts to n (part + 1) / parts. */
typedef struct gpt2_local {
    size_t heads;
    size_t first_head;
    size_t width; /* of these heads together */
    size_t first_column;
    size_t hidden;
    size_t first_hidden;
    size_t vocab; /* without the padding */
    size_t first_token;
} gpt2_local_t;

gpt2_local_t gpt2_local_of(const gpt2_shape_t *shape, int parts, int part);

/* Refuses more parts than heads or tokens. flag: "--tp ", for the text. */
int gpt2_parts_check(const gpt2_shape_t *shape, const char *flag, int parts, gpt2_error_t *error);

/* Makes a whole layout that of one place: tensors that are cut become smaller. */
int gpt2_layout_slice(gpt2_layout_t *layout, int parts, int part, gpt2_error_t *error);

/* Leaves groups out of the arena: held [group_count] has a 0 for each. */
void gpt2_layout_hold(gpt2_layout_t *layout, const int *held);

/* Positions of tensors in the list. */
size_t gpt2_layout_block(const gpt2_layout_t *layout, int layer); /* its first tensor */
size_t gpt2_layout_wpe(const gpt2_layout_t *layout);
size_t gpt2_layout_wte(const gpt2_layout_t *layout);

/* The position of a block in the list of groups. */
size_t gpt2_layout_group(int layer);

/* Floats of the largest group. */
size_t gpt2_layout_largest_group(const gpt2_layout_t *layout);

/* The tensor of that name, or count where there is none. */
size_t gpt2_layout_find(const gpt2_layout_t *layout, const char *name);

#endif
