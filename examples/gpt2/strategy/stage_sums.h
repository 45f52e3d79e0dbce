/*
 * stage_sums.h - sums of a stage's gradients along the axes of the mesh, and the norm of all
 * stages'.
 *
 * pipeline.c owns one; strategy_coordinator.c calls it, on the main thread. mesh.h says along which
 * axes a tensor is summed, and which rank counts it.
 */
#ifndef GPT2_STAGE_SUMS_H
#define GPT2_STAGE_SUMS_H

#include "examples/gpt2/strategy/strategy_dp.h"

typedef struct gpt2_stage_sums gpt2_stage_sums_t;

/* Makes the groups of the axes. replica: this rank's stage; borrowed to the last sync, dp until
 * destroy. Collective. */
int gpt2_stage_sums_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                           const gpt2_strategy_settings_t *settings, gpt2_stage_sums_t **out,
                           gpt2_error_t *error);
void gpt2_stage_sums_destroy(gpt2_stage_sums_t *self);

/* Entries of gpt2_strategy_ops_t; ready() is called in the last pass of a step alone. */
int gpt2_stage_sums_ready(gpt2_stage_sums_t *self, size_t first, size_t count, gpt2_error_t *error);
int gpt2_stage_sums_sync(gpt2_stage_sums_t *self, gpt2_sync_t *out, gpt2_error_t *error);

#endif
