/*
 * embed_sharded.c - a training loop in which no rank keeps all of the model: layers of weights are
 * fitted, each rank sees its own examples, and all stages of sharding end with the same bits.
 *
 *     dprun -np 3 build/embed_sharded [STAGE]     0: none, 1: optimizer, 2: gradients, 3: weights
 */
#include <stdio.h>
#include <stdlib.h>

#include "dp.h"

enum { LAYERS = 4, WIDTH = 10000, STEPS = 20 };

/* A number in [-1, 1) for each seed. */
static float noise(unsigned seed)
{
    return (float)((seed * 2654435761u ^ seed >> 7) * 2246822519u >> 8) / 8388608.0f - 1.0f;
}

/* Feature i of a layer: the same in all examples, but for a tenth. */
static float feature(int example, int layer, int i)
{
    const unsigned place = (unsigned)(layer * WIDTH + i);

    return noise(place) + 0.1f * noise(place + 1000003u * (unsigned)(example + 1));
}

int main(int argc, char **argv)
{
    const dp_shard_unit_t units[LAYERS] = {
        {"in", WIDTH, 0}, {"a", WIDTH, 0}, {"b", WIDTH, 0}, {"out", WIDTH, 0}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_shards_t *shards = NULL;
    dp_context_t *dp;
    uint64_t hash;
    float error = 0.0f;

    if (dp_init(NULL, &dp) != DP_OK) return 1;
    options.stage = argc > 1 ? (dp_shard_stage_t)atoi(argv[1]) : DP_SHARD_WEIGHTS;
    options.clip_norm = 100.0;
    if (dp_shards_create(dp, units, LAYERS, &options, &shards) != DP_OK) goto failed; /* zeros */
    for (int step = 0; step < STEPS; step++) {
        const int example = step * dp_size(dp) + dp_rank(dp);
        const void *weights;
        float *gradients;

        error = -1.0f; /* the model shall say 1, whatever it sees */
        for (size_t l = 0; l < LAYERS; l++) {
            if (l + 1 < LAYERS && dp_shards_gather(shards, l + 1, NULL) != DP_OK) goto failed;
            if (dp_shards_wait(shards, l, NULL, &weights) != DP_OK) goto failed;
            for (int i = 0; i < WIDTH; i++)
                error += ((const float *)weights)[i] * feature(example, (int)l, i);
            if (dp_shards_release(shards, l) != DP_OK) goto failed;
        }
        for (size_t l = LAYERS; l-- > 0;) { /* a linear model's backward needs no weights */
            if (dp_shards_gradients(shards, l, NULL, &gradients) != DP_OK) goto failed;
            for (int i = 0; i < WIDTH; i++)
                gradients[i] = 2.0f * error * feature(example, (int)l, i);
            if (dp_shards_ready(shards, l, NULL) != DP_OK) goto failed;
        }
        if (dp_shards_sync(shards, &result) != DP_OK) goto failed;
        for (size_t l = 0; l < LAYERS && !result.skip; l++) {
            dp_shard_row_t row = DP_SHARD_ROW_INIT;
            float *mine;

            if (dp_shards_row(shards, l, &row) != DP_OK) goto failed;
            mine = row.weights;
            for (size_t i = 0; i < row.count; i++)
                mine[i] -= 1e-5f * (float)result.clip_coef * row.gradients[i];
            if (dp_shards_gather(shards, l, NULL) != DP_OK) goto failed;
        }
    }
    if (dp_shards_hash(shards, &hash) != DP_OK) goto failed;
    printf("rank %d of %d: error %.3f, norm %.9g, weights %016llx\n", dp_rank(dp), dp_size(dp),
           (double)error, result.norm, (unsigned long long)hash);
    dp_shards_destroy(shards);
    return dp_finalize(dp) == DP_OK ? 0 : 1;
failed:
    fprintf(stderr, "embed_sharded: %s\n", dp_error_text(dp));
    dp_finalize(dp);
    return 1;
}
