/*
 * cases_shards.h - the model and the loop of the cases of dp_shards_t.
 */
#ifndef DP_TESTS_CASES_SHARDS_H
#define DP_TESTS_CASES_SHARDS_H

#include "tests/ranks/cases_internal.h"

enum { SHARD_GROUPS = 6, SHARD_STEPS = 3 };
#define SHARD_CLIP 5.0

/* A group of two tensors, the first at its beginning, the second at its end; both begin at
 * multiples of 4096. */
typedef struct shape {
    const char *name;
    size_t count;
    int is_whole;
    size_t tensors[2];
} shape_t;
extern const shape_t shard_shapes[SHARD_GROUPS];

size_t shard_tensor_first(int g, int t);
float shard_first_weight(int g, size_t i);
void shard_backward(const dp_context_t *dp, int g, int step, int pass, const float *weights,
                    float *gradients);
void shard_update(float *weights, const float *gradients, float *momentum, size_t count,
                  double clip_coef);

/* A program around the object. */
typedef struct shard_rig {
    dp_shards_t *shards;
    dp_shard_row_t rows[SHARD_GROUPS];
    float *momentum[SHARD_GROUPS];
    int passes;
    int spoils_step; /* the last rank gives an Inf in the step before this number; 0: never */
} shard_rig_t;

/* dp_shards_wait() where weights are of fp32, and a thread waits. */
static inline dp_status_t shards_wait(dp_shards_t *shards, size_t g, const float **weights)
{
    const void *memory = NULL;
    const dp_status_t status = dp_shards_wait(shards, g, NULL, &memory);

    if (status == DP_OK) *weights = memory;
    return status;
}

/* 0: all held. */
int shard_rig_create(dp_context_t *dp, const dp_shards_options_t *options, shard_rig_t *rig);
int shard_rig_step(dp_context_t *dp, shard_rig_t *rig, int step, dp_gradients_result_t *result);
void shard_rig_destroy(shard_rig_t *rig);

#endif
