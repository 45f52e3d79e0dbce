/*
 * tensor_axis.h - the group of ranks that have the slices of one stage's tensors, and the sums over
 * it that a pass asks for.
 *
 * pipeline.c owns one, where the tensor axis has more than one place. Called on the main thread.
 */
#ifndef GPT2_TENSOR_AXIS_H
#define GPT2_TENSOR_AXIS_H

#include "examples/gpt2/strategy/strategy_dp.h"

typedef struct gpt2_tensor_axis gpt2_tensor_axis_t;

/* Makes the group and has the replica's passes sum over it. Both are borrowed: dp until destroy,
 * the replica until its last pass. Collective over the world. */
int gpt2_tensor_axis_create(gpt2_dp_t *dp, gpt2_replica_t *replica, gpt2_tensor_axis_t **out,
                            gpt2_error_t *error);
void gpt2_tensor_axis_destroy(gpt2_tensor_axis_t *self);

/* The group; its rank p has part p. NULL: NULL. */
dp_group_t *gpt2_tensor_axis_group(const gpt2_tensor_axis_t *self);

/* Seconds in which passes have waited for sums. NULL: 0. */
double gpt2_tensor_axis_waited(const gpt2_tensor_axis_t *self);

#endif
