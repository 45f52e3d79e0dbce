/*
 * plan.h - what a run will take, before it is run: memory of a rank by part, and bytes that a rank
 * sends in a step.
 *
 * Pure arithmetic over the layout: run.c prints it for --plan, summary.c writes it beside what was
 * measured. It must not know a strategy or a device. Numbers of bytes hold as if every rank were a
 * node of its own; ranks of one node exchange through shared memory and send nothing.
 */
#ifndef GPT2_PLAN_H
#define GPT2_PLAN_H

#include <stdio.h>

#include "examples/gpt2/model/shape.h"
#include "examples/gpt2/train/options.h"

/* The parts of the state that ranks divide among themselves. */
typedef enum gpt2_plan_stage {
    GPT2_PLAN_NONE,
    GPT2_PLAN_OPTIMIZER, /* the moments: ZeRO-1 */
    GPT2_PLAN_GRADIENTS, /* and the gradients: ZeRO-2 */
    GPT2_PLAN_WEIGHTS    /* and the weights: ZeRO-3, FSDP */
} gpt2_plan_stage_t;

typedef struct gpt2_plan_input {
    const gpt2_layout_t *layout;
    gpt2_plan_stage_t stage;
    int ranks;          /* >= 1 */
    int sharers;        /* ranks that share one copy of the state, a divisor of ranks */
    int accumulate;     /* backward passes per step */
    int slots;          /* blocks whose weights, or gradients, are whole at one time; 0: 2 */
    int sees_rows;      /* 1: sharers read each other's weights where they lie */
    int is_single;      /* 1: nothing is exchanged */
    int is_server;      /* 1: rank 0 receives gradients and sends weights */
    int halves;         /* 1: sharded weights have 16 bits, beside fp32 masters of a rank's rows */
    double wire_width;  /* bytes of a gradient's element on the wire */
    size_t activations; /* bytes */
    size_t library;     /* bytes */
} gpt2_plan_input_t;

typedef struct gpt2_plan {
    /* bytes of a rank */
    size_t weights;
    size_t gradients;
    size_t moments;
    size_t activations;
    size_t library; /* libdp's fused buffers, which are there from the start */
    size_t total;
    /* bytes that a rank sends in a step; of a server, the one that sends most */
    double sent_gradients;
    double sent_weights;
    double sent_streams; /* between the stages of a pipeline, forward and backward */
    double sent_sums;    /* along the tensor axis */
} gpt2_plan_t;

/* Works the plan out. */
void gpt2_plan_make(const gpt2_plan_input_t *input, gpt2_plan_t *plan);

/* Where a run takes place. */
typedef struct gpt2_plan_place {
    int ranks;
    int node;      /* ranks of a node, which under --shard hybrid share one copy of the state; other
                      stages share one among all */
    int sees_rows; /* 1: ranks of a node read each other's weights; gpt2_strategy_sees_rows() */
    size_t library; /* of gpt2_strategy_library() */
} gpt2_plan_place_t;

/* The plan of a run with these completed options, on CPUs. Of a pipeline: that of the stage that
 * takes most memory. */
int gpt2_plan_options(const gpt2_options_t *options, const gpt2_layout_t *layout,
                      const gpt2_plan_place_t *place, gpt2_plan_t *plan, gpt2_error_t *error);

/* For people. */
void gpt2_plan_print(const gpt2_plan_t *plan, const gpt2_options_t *options,
                     const gpt2_layout_t *layout, int ranks, FILE *out);

/* For a pipeline, its stages one by one, the bubble and the schedule; else nothing. */
int gpt2_plan_print_stages(const gpt2_options_t *options, const gpt2_layout_t *layout,
                           const gpt2_plan_place_t *place, FILE *out, gpt2_error_t *error);

/* The plan of the stage that takes most memory. */
int gpt2_plan_dearest_stage(const gpt2_options_t *options, const gpt2_layout_t *layout,
                            const gpt2_plan_place_t *place, gpt2_plan_t *plan, gpt2_error_t *error);

/* The most sequences that a rank handles in one pass. */
int gpt2_plan_micro_batch(const gpt2_options_t *options, int ranks);

#endif
