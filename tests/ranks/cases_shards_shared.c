/*
 * cases_shards_shared.c - dp_shards_t where the ranks are of one node, so that they keep one copy
 * of the weights: who sees what, when a row may be written, and who may go first. On several nodes
 * the cases say that weights are copied.
 */
#include <stdlib.h>

#include "tests/ranks/cases_shards.h"

#define COUNT ((size_t)300000)

static int is_one_node(const dp_context_t *dp)
{
    return dp_node_count(dp) == 1 && dp_size(dp) > 1;
}

static int make_one_group(dp_context_t *dp, dp_shard_stage_t stage, dp_shards_t **shards,
                          dp_shard_row_t *row)
{
    const dp_shard_unit_t groups[1] = {{.name = "a", .count = COUNT}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;

    options.stage = stage;
    *row = (dp_shard_row_t)DP_SHARD_ROW_INIT;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 1, &options, shards), DP_OK);
    EXPECT_STATUS(dp, dp_shards_row(*shards, 0, row), DP_OK);
    return 0;
}

static int meet(dp_context_t *dp)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "meet", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, -1.0, NULL), DP_OK);
    return 0;
}

static void fill_row(const dp_shard_row_t *row, float shift)
{
    for (size_t i = 0; i < row->count; i++)
        ((float *)row->weights)[i] = (float)(row->first + i) + shift;
}

static int all_are(dp_context_t *dp, const float *weights, float shift)
{
    for (size_t i = 0; i < COUNT; i++) {
        EXPECT(dp, weights[i] == (float)i + shift, "element %zu is %g, wanted %g", i,
               (double)weights[i], (double)((float)i + shift));
    }
    return 0;
}

/* On one node a rank has memory for its row, and sees the others' rows; else it has copies. */
int case_shards_seen(dp_context_t *dp)
{
    for (int stage = DP_SHARD_OPTIMIZER; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
        dp_shard_row_t row;
        dp_shards_t *shards;
        const float *weights;
        size_t all;

        if (make_one_group(dp, (dp_shard_stage_t)stage, &shards, &row) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_memory_get(shards, &memory), DP_OK);
        all = memory.weights + memory.mapped_weights;
        if (is_one_node(dp)) {
            EXPECT(dp, memory.weights * (size_t)dp_size(dp) == all && memory.weight_slots == 0,
                   "stage %d: %zu bytes of weights, %zu seen, %zu in slots", stage, memory.weights,
                   memory.mapped_weights, memory.weight_slots);
        } else {
            EXPECT(dp, memory.mapped_weights == 0, "stage %d: %zu bytes seen", stage,
                   memory.mapped_weights);
        }
        fill_row(&row, 0.5f);
        EXPECT_STATUS(dp, shards_wait(shards, 0, &weights), DP_OK);
        if (all_are(dp, weights, 0.5f) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_release(shards, 0), DP_OK);
        dp_shards_destroy(shards);
    }
    return 0;
}

/* No sync is over before all ranks have come to theirs: until then a rank's weights stay. */
int case_shards_kept(dp_context_t *dp)
{
    enum { LOOKS = 200 };
    const int is_late = dp_rank(dp) == dp_size(dp) - 1;

    for (int step = 0; step < 5; step++) {
        dp_shard_row_t row;
        dp_shards_t *shards;
        const float *weights;
        float *gradients;

        if (make_one_group(dp, DP_SHARD_OPTIMIZER, &shards, &row) != 0) return 1;
        fill_row(&row, 0.0f);
        EXPECT_STATUS(dp, shards_wait(shards, 0, &weights), DP_OK);
        EXPECT_STATUS(dp, dp_shards_gradients(shards, 0, NULL, &gradients), DP_OK);
        memset(gradients, 0, COUNT * sizeof(float));
        EXPECT_STATUS(dp, dp_shards_ready(shards, 0, NULL), DP_OK);
        /* The others are in their sync, or on the way to it, and write their rows behind it. */
        for (int i = 0; is_late && i < LOOKS; i++)
            if (all_are(dp, weights, 0.0f) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_release(shards, 0), DP_OK);
        EXPECT_STATUS(dp, dp_shards_sync(shards, NULL), DP_OK);
        fill_row(&row, 1.0f);
        EXPECT_STATUS(dp, shards_wait(shards, 0, &weights), DP_OK);
        if (all_are(dp, weights, 1.0f) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_release(shards, 0), DP_OK);
        dp_shards_destroy(shards);
    }
    return 0;
}

/* A rank destroys its object while the others still compute with its row: the row stays until they
 * have destroyed theirs too, and is freed then. */
int case_shards_outlived(dp_context_t *dp)
{
    enum { TIMES = 30, PLACES = 10 };
    float *places[PLACES];
    int found = 0;

    for (int i = 0; i < TIMES; i++) {
        const int goes_first = dp_rank(dp) == i % dp_size(dp);
        dp_shard_row_t row;
        dp_shards_t *shards;
        const float *weights;
        int k = 0;

        if (make_one_group(dp, DP_SHARD_OPTIMIZER, &shards, &row) != 0) return 1;
        while (k < found && places[k] != row.weights)
            k++;
        EXPECT(dp, k < PLACES, "object %d has its row at a %d. place: rows are not freed", i, k);
        places[k] = row.weights;
        found += k == found;
        fill_row(&row, (float)i);
        EXPECT_STATUS(dp, shards_wait(shards, 0, &weights), DP_OK);
        if (goes_first) dp_shards_destroy(shards);
        if (meet(dp) != 0) return 1;
        if (goes_first) continue;
        if (all_are(dp, weights, (float)i) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_release(shards, 0), DP_OK);
        dp_shards_destroy(shards);
    }
    return 0;
}
