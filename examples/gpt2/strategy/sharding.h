/*
 * sharding.h - ranks that share out moments, gradients and weights, by dp.h's dp_shards_*(): what
 * the strategies on libdp do under --shard (strategy_coordinator.c).
 *
 * The groups are the layout's. libdp owns the memory of weights and gradients and moves it; this
 * file says when: it supplies the replica's passes, and starts a group's way as soon as the
 * optimizer has updated it. Main thread only. It must not know what a pass computes.
 */
#ifndef GPT2_SHARDING_H
#define GPT2_SHARDING_H

#include "examples/gpt2/strategy/strategy_dp.h"

typedef struct gpt2_sharding gpt2_sharding_t;

/* Makes the groups' memory and supplies the replica with it. Collective. Give it back with
 * gpt2_sharding_destroy(), after the replica's last pass. */
int gpt2_sharding_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_sharding_t **out,
                         gpt2_error_t *error);
void gpt2_sharding_destroy(gpt2_sharding_t *sharding);

/* As the entries of gpt2_strategy_ops_t. */
int gpt2_sharding_ready(gpt2_sharding_t *sharding, size_t first, size_t count, gpt2_error_t *error);
int gpt2_sharding_sync(gpt2_sharding_t *sharding, gpt2_sync_t *out, gpt2_error_t *error);
dp_status_t gpt2_sharding_get_scale(gpt2_sharding_t *sharding, dp_loss_scale_t *state);
dp_status_t gpt2_sharding_set_scale(gpt2_sharding_t *sharding, const dp_loss_scale_t *state);
int gpt2_sharding_collect(gpt2_sharding_t *sharding, gpt2_arena_t arena, size_t group,
                          const float **data, gpt2_error_t *error);
void gpt2_sharding_end_collect(gpt2_sharding_t *sharding);
int gpt2_sharding_distribute(gpt2_sharding_t *sharding, gpt2_arena_t arena, size_t group,
                             const float *data, gpt2_error_t *error);
int gpt2_sharding_hash(gpt2_sharding_t *sharding, uint64_t *hash, gpt2_error_t *error);
void gpt2_sharding_describe(const gpt2_sharding_t *sharding, char *text, size_t room);
int gpt2_sharding_compare(gpt2_sharding_t *sharding, int *same, gpt2_error_t *error);

#endif
