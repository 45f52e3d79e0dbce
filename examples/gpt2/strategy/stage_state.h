/*
 * stage_state.h - the state of all stages and slices brought together on rank 0, group by group,
 * and handed out from there: for checkpoints, samples, exports, and comparisons.
 *
 * pipeline.c owns one; strategy_coordinator.c calls it, on the main thread. mesh.h says which stage
 * has a group, and which rank counts a tensor.
 */
#ifndef GPT2_STAGE_STATE_H
#define GPT2_STAGE_STATE_H

#include "examples/gpt2/strategy/strategy_dp.h"

typedef struct gpt2_stage_state gpt2_stage_state_t;

/* pipe: the stages of one copy of the model, in order. parts: the places along the tensor axis that
 * have this stage, in order; NULL: one. All are borrowed until destroy; destroy does not use the
 * replica. */
int gpt2_stage_state_create(gpt2_dp_t *dp, gpt2_replica_t *replica, dp_group_t *pipe,
                            dp_group_t *parts, gpt2_stage_state_t **out, gpt2_error_t *error);
void gpt2_stage_state_destroy(gpt2_stage_state_t *self);

/* Entries of gpt2_strategy_ops_t. */
int gpt2_stage_state_collect(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                             const float **data, gpt2_error_t *error);
void gpt2_stage_state_end_collect(gpt2_stage_state_t *self);
int gpt2_stage_state_distribute(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                                const float *data, gpt2_error_t *error);
int gpt2_stage_state_hash(gpt2_stage_state_t *self, uint64_t *hash, gpt2_error_t *error);
int gpt2_stage_state_compare(gpt2_stage_state_t *self, int *same, gpt2_error_t *error);

#endif
