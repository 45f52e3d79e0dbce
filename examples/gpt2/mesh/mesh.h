/*
 * mesh.h - ranks at the places of a box with named axes, and how each group of tensors lies in it.
 *
 * Pure arithmetic. One table (mesh.c) says for each kind of tensor and each axis whether the places
 * along the axis have copies of it or slices, or one of them has it. Which ranks hold a tensor,
 * along which axes its gradient is summed, and which rank counts it in norms, hashes and
 * checkpoints follow from that table. It must not know libdp, a device or a strategy.
 */
#ifndef GPT2_MESH_H
#define GPT2_MESH_H

#include "examples/gpt2/mesh/schedule.h"
#include "examples/gpt2/model/model.h"

/* Innermost first: ranks next to each other differ along the first axis that has more than one
 * place, so that the axis with the most bytes stays within a node. Context and expert parallelism
 * have their place in the order, and one rank each. */
typedef enum gpt2_axis {
    GPT2_AXIS_TENSOR = 0,
    GPT2_AXIS_CONTEXT,
    GPT2_AXIS_EXPERT,
    GPT2_AXIS_DATA,
    GPT2_AXIS_PIPELINE,
    GPT2_AXES
} gpt2_axis_t;

#define GPT2_STAGES_MAX 256

/* Stage k has the blocks first[k] .. first[k + 1] - 1. The first one has the embedding as well, the
 * last one the final norm and the head; the last one may have no block. */
typedef struct gpt2_stages {
    int count;
    int first[GPT2_STAGES_MAX + 1];
} gpt2_stages_t;

typedef struct gpt2_mesh {
    int size[GPT2_AXES]; /* places along each axis */
    int at[GPT2_AXES];   /* this rank's */
    int is_staged;       /* 1: the copies of the model are divided, if only into one stage */
    gpt2_stages_t stages;
    gpt2_schedule_kind_t schedule;
    int micros; /* micro-batches of a step on each place of the data axis */
} gpt2_mesh_t;

/* Works out the sizes for `world` ranks and the place of `rank`. given [GPT2_AXES]: places along
 * the tensor, data and pipeline axes, 0 where they are not given. Refuses a product that is not the
 * world, with its factors. */
int gpt2_mesh_make(const int *given, int world, int rank, gpt2_mesh_t *mesh, gpt2_error_t *error);

/* What a token costs in a block, or in the head, in multiplications: 12 C^2 + T C, and V C. */
double gpt2_block_cost(const gpt2_shape_t *shape, int seq);
double gpt2_head_cost(const gpt2_shape_t *shape);
double gpt2_stage_cost(const gpt2_shape_t *shape, int seq, const gpt2_stages_t *stages, int stage);

/* Cuts the model so that the dearest stage costs least. list: "9,3", the blocks of each stage;
 * NULL: by cost. Every stage but the last needs a block. */
int gpt2_stages_cut(const gpt2_shape_t *shape, int seq, int count, const char *list,
                    gpt2_stages_t *stages, gpt2_error_t *error);

/* The part of the model at this rank's place, with `slots` of the schedule. */
gpt2_stage_t gpt2_mesh_stage(const gpt2_mesh_t *mesh);

/* 1: losses are added up here: on the last stage, and once along the tensor axis. */
int gpt2_mesh_has_loss(const gpt2_mesh_t *mesh);

/* ---- What follows from the table ------------------------------------------------------------ */

/* 1: this rank has the group's tensors, or its slices of them. */
int gpt2_mesh_holds(const gpt2_mesh_t *mesh, size_t group);

/* The lowest place along the pipeline that has the group. */
int gpt2_mesh_owner(const gpt2_mesh_t *mesh, size_t group);

/* 1: what this rank has of the tensor is counted here, wherever every element must be counted once:
 * on the lowest place that has it, along every axis. */
int gpt2_mesh_counts(const gpt2_mesh_t *mesh, const gpt2_tensor_t *tensor);

/* 1: places along the axis have parts of the tensor's gradient, so it is summed over them. */
int gpt2_mesh_sums(const gpt2_mesh_t *mesh, const gpt2_tensor_t *tensor, gpt2_axis_t axis);

/* 1: places along the axis have slices of the tensor. */
int gpt2_mesh_is_split(const gpt2_tensor_t *tensor, gpt2_axis_t axis);

/* The norm of a gradient: squares [tensors] has the sum of squares of each tensor that this rank
 * counts, and 0 for the others, summed over all ranks. Added in the list's order, so that the bits
 * are the same in every layout. */
double gpt2_mesh_norm(const gpt2_layout_t *layout, const double *squares);

#endif
