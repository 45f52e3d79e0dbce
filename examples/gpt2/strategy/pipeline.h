/*
 * pipeline.h - a pipeline of stages on dp.h: runs the schedule's table, and moves activations and
 * their gradients between neighbours.
 *
 * strategy_coordinator.c calls it, on the main thread, for runs with --pp. It must not know how a
 * stage computes, nor where tensors lie but by what mesh.h says.
 */
#ifndef GPT2_PIPELINE_H
#define GPT2_PIPELINE_H

#include "examples/gpt2/strategy/stage_state.h"
#include "examples/gpt2/strategy/stage_sums.h"

typedef struct gpt2_pipeline gpt2_pipeline_t;

/* Makes groups and buffers for the mesh of the strategy. replica: this rank's stage; borrowed until
 * destroy, and so is dp. Collective. */
int gpt2_pipeline_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_pipeline_t **out,
                         gpt2_error_t *error);
void gpt2_pipeline_destroy(gpt2_pipeline_t *self);

/* Its other parts: the sums of gradients, and the state. Borrowed until destroy. */
gpt2_stage_sums_t *gpt2_pipeline_sums(const gpt2_pipeline_t *self);
gpt2_stage_state_t *gpt2_pipeline_state(const gpt2_pipeline_t *self);

/* Entries of gpt2_strategy_ops_t; see there. */
int gpt2_pipeline_passes(gpt2_pipeline_t *self, const gpt2_batch_t *batches, float weight,
                         const gpt2_hooks_t *hooks, gpt2_error_t *error);
int gpt2_pipeline_evaluate(gpt2_pipeline_t *self, const gpt2_batch_t *batch, double *loss_sum,
                           gpt2_error_t *error);
void gpt2_pipeline_waits(const gpt2_pipeline_t *self, gpt2_waits_t *waits);
void gpt2_pipeline_describe(const gpt2_pipeline_t *self, char *text, size_t room);

#endif
