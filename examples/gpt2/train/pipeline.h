/*
 * pipeline.h - a pipeline of stages on dp.h: runs the schedule's table, moves activations between
 * neighbours, sums gradients along the axes of the mesh, and brings the stages' state together for
 * checkpoints.
 *
 * strategy_coordinator.c calls it, on the main thread, for runs with --pp. It must not know how a
 * stage computes, nor where tensors lie but by what mesh.h says.
 */
#ifndef GPT2_PIPELINE_H
#define GPT2_PIPELINE_H

#include "examples/gpt2/train/strategy_dp.h"

typedef struct gpt2_pipeline gpt2_pipeline_t;

/* Makes groups and buffers for the mesh of the strategy. replica: this rank's stage; borrowed until
 * destroy, and so is dp. Collective. */
int gpt2_pipeline_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_pipeline_t **out,
                         gpt2_error_t *error);
void gpt2_pipeline_destroy(gpt2_pipeline_t *self);

/* Entries of gpt2_strategy_ops_t; see there. */
int gpt2_pipeline_passes(gpt2_pipeline_t *self, const gpt2_batch_t *batches, float weight,
                         const gpt2_hooks_t *hooks, gpt2_error_t *error);
int gpt2_pipeline_evaluate(gpt2_pipeline_t *self, const gpt2_batch_t *batch, double *loss_sum,
                           gpt2_error_t *error);
void gpt2_pipeline_bubble(const gpt2_pipeline_t *self, double *waited, double *total);
int gpt2_pipeline_ready(gpt2_pipeline_t *self, size_t first, size_t count, gpt2_error_t *error);
int gpt2_pipeline_sync(gpt2_pipeline_t *self, gpt2_sync_t *out, gpt2_error_t *error);
int gpt2_pipeline_collect(gpt2_pipeline_t *self, gpt2_arena_t arena, size_t group,
                          const float **data, gpt2_error_t *error);
void gpt2_pipeline_end_collect(gpt2_pipeline_t *self);
int gpt2_pipeline_distribute(gpt2_pipeline_t *self, gpt2_arena_t arena, size_t group,
                             const float *data, gpt2_error_t *error);
int gpt2_pipeline_hash(gpt2_pipeline_t *self, uint64_t *hash, gpt2_error_t *error);
int gpt2_pipeline_compare(gpt2_pipeline_t *self, int *same, gpt2_error_t *error);
void gpt2_pipeline_describe(const gpt2_pipeline_t *self, char *text, size_t room);

#endif
