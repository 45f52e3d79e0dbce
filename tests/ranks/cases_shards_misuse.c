/*
 * cases_shards_misuse.c - dp_shards_t where things go wrong: overflows, loops in the wrong order,
 * ranks that differ, and what is left to dp_finalize().
 */
#include <math.h>
#include <stdlib.h>

#include "tests/ranks/cases_shards.h"

/* An Inf on one rank: all skip, and the loss scale moves as hysteresis says, on all alike. */
int case_shards_overflow(dp_context_t *dp)
{
    static const double scales[6] = {8.0, 4.0, 2.0, 2.0, 4.0, 4.0}; /* after each step */

    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
        shard_rig_t rig = {.passes = 1};
        uint64_t before = 0, after = 0;

        options.stage = (dp_shard_stage_t)stage;
        options.initial_loss_scale = 8.0;
        options.growth_interval = 2;
        options.hysteresis = 2;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_hash(rig.shards, &before), DP_OK);
        for (int step = 0; step < 6; step++) {
            dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
            const int is_bad = step < 3;

            rig.spoils_step = is_bad ? step + 1 : 0;
            if (shard_rig_step(dp, &rig, step, &result) != 0) return 1;
            EXPECT(dp, result.skip == is_bad && result.loss_scale == scales[step],
                   "stage %d step %d: skip %d, loss scale %g", stage, step, result.skip,
                   result.loss_scale);
            EXPECT(dp, isinf(result.norm) == is_bad && (result.nonfinite == 1) == is_bad,
                   "norm %g, %llu not finite", result.norm, (unsigned long long)result.nonfinite);
            EXPECT_STATUS(dp, dp_shards_hash(rig.shards, &after), DP_OK);
            EXPECT(dp, (after == before) == is_bad, "stage %d step %d: the weights moved: %d",
                   stage, step, after != before);
        }
        EXPECT_STATUS(dp, dp_shards_loss_scale_get(rig.shards, &state), DP_OK);
        EXPECT(dp, state.scale == 4.0 && state.good_steps == 1 && state.hysteresis_left == 2,
               "%g, %d good, %d left", state.scale, state.good_steps, state.hysteresis_left);
        state.scale = 64.0;
        EXPECT_STATUS(dp, dp_shards_loss_scale_set(rig.shards, &state), DP_OK);
        state.scale = -1.0;
        EXPECT_STATUS(dp, dp_shards_loss_scale_set(rig.shards, &state), DP_ERR_INVALID);
        EXPECT_STATUS(dp, dp_shards_loss_scale_get(rig.shards, &state), DP_OK);
        EXPECT(dp, state.scale == 64.0, "%g", state.scale);
        shard_rig_destroy(&rig);
    }
    return 0;
}

/* Slots of weights that are all in use. */
static int misuse_weight_slots(dp_context_t *dp, dp_shards_t *shards)
{
    const float *weights;

    EXPECT_STATUS(dp, shards_wait(shards, 1, &weights), DP_OK);
    EXPECT_STATUS(dp, shards_wait(shards, 2, &weights), DP_OK);
    EXPECT_STATUS(dp, dp_shards_gather(shards, 3, NULL), DP_OK); /* a hint without room */
    EXPECT_STATUS(dp, shards_wait(shards, 3, &weights), DP_ERR_ORDER);
    EXPECT_TEXT(dp, dp_error_text(dp), "all 2 slots for units of 10000 elements are in use");
    EXPECT_STATUS(dp, dp_shards_load(shards, 3, weights), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_shards_release(shards, 2), DP_OK);
    EXPECT_STATUS(dp, shards_wait(shards, 3, &weights), DP_OK);
    EXPECT_STATUS(dp, dp_shards_release(shards, 3), DP_OK);
    EXPECT_STATUS(dp, dp_shards_release(shards, 1), DP_OK);
    return 0;
}

/* Slots that are all in use, releases without a wait: told in words, and nothing is lost. */
static int misuse_slots(dp_context_t *dp, dp_shards_t *shards)
{
    dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
    float *gradients;

    EXPECT_STATUS(dp, dp_shards_release(shards, 1), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_shards_memory_get(shards, &memory), DP_OK);
    if (memory.mapped_weights == 0 && misuse_weight_slots(dp, shards) != 0) return 1;
    EXPECT_STATUS(dp, dp_shards_ready(shards, 1, NULL), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_shards_gradients(shards, 1, NULL, &gradients), DP_OK);
    EXPECT_STATUS(dp, dp_shards_gradients(shards, 2, NULL, &gradients), DP_OK);
    EXPECT_STATUS(dp, dp_shards_gradients(shards, 3, NULL, &gradients), DP_ERR_ORDER);
    EXPECT_TEXT(dp, dp_error_text(dp), "dp_shards_ready()");
    return 0;
}

/* Leaves every group ready but the last. */
static int misuse_ready(dp_context_t *dp, dp_shards_t *shards)
{
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    float *gradients;

    EXPECT_STATUS(dp, dp_shards_sync(shards, NULL), DP_ERR_ORDER);
    EXPECT_TEXT(dp, dp_error_text(dp), "without a single unit ready");
    for (size_t g = 0; g + 1 < SHARD_GROUPS; g++) {
        EXPECT_STATUS(dp, dp_shards_gradients(shards, g, NULL, &gradients), DP_OK);
        memset(gradients, 0, shard_shapes[g].count * sizeof(float));
        EXPECT_STATUS(dp, dp_shards_ready(shards, g, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_shards_ready(shards, g, NULL), DP_ERR_ORDER);
        EXPECT_STATUS(dp, dp_shards_gradients(shards, g, NULL, &gradients), DP_ERR_ORDER);
    }
    EXPECT_STATUS(dp, dp_shards_sync(shards, NULL), DP_ERR_ORDER);
    EXPECT_TEXT(dp, dp_error_text(dp), "unit wte");
    EXPECT_STATUS(dp, dp_shards_loss_scale_get(shards, &state), DP_ERR_ORDER);
    return 0;
}

int case_shards_order(dp_context_t *dp)
{
    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
        shard_rig_t rig = {.passes = 1};
        const float *weights;
        float *gradients;

        options.stage = (dp_shard_stage_t)stage;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        EXPECT_STATUS(dp, shards_wait(rig.shards, SHARD_GROUPS, &weights), DP_ERR_INVALID);
        EXPECT_STATUS(dp, dp_shards_wait(rig.shards, 0, NULL, NULL), DP_ERR_INVALID);
        EXPECT_STATUS(dp, dp_shards_gradients(NULL, 0, NULL, &gradients), DP_ERR_INVALID);
        if (stage == DP_SHARD_WEIGHTS && misuse_slots(dp, rig.shards) != 0) return 1;
        if (stage < DP_SHARD_WEIGHTS) {
            if (misuse_ready(dp, rig.shards) != 0) return 1;
            /* nothing was lost: the missing one, then the same sync again */
            EXPECT_STATUS(dp, dp_shards_gradients(rig.shards, SHARD_GROUPS - 1, NULL, &gradients),
                          DP_OK);
            gradients[0] = 3.0f;
            EXPECT_STATUS(dp, dp_shards_ready(rig.shards, SHARD_GROUPS - 1, NULL), DP_OK);
            EXPECT_STATUS(dp, dp_shards_sync(rig.shards, &result), DP_OK);
            EXPECT(dp, result.norm == 3.0, "%g", result.norm);
            EXPECT_STATUS(dp, dp_shards_sync(rig.shards, NULL), DP_ERR_ORDER);
        }
        shard_rig_destroy(&rig);
    }
    return 0;
}

int case_shards_arguments(dp_context_t *dp)
{
    dp_shard_unit_t groups[2] = {{.name = "a", .count = 10}, {.name = "b", .count = 20}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
    dp_shard_row_t row = DP_SHARD_ROW_INIT;
    const size_t floats = (size_t)dp_size(dp) * 4096;
    const size_t seen = dp_node_count(dp) == 1 ? floats - 4096 : 0; /* of others, in each group */
    dp_shards_t *shards;

    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 0, NULL, &shards), DP_ERR_INVALID);
    groups[1].name = "a";
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, NULL, &shards), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "two units are called a");
    groups[1].name = "b";
    groups[1].count = 0;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, NULL, &shards), DP_ERR_INVALID);
    groups[1].count = 20;
    options.stage = (dp_shard_stage_t)4;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_INVALID);
    options.stage = DP_SHARD_GRADIENTS;
    options.accumulation_steps = 0;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_INVALID);
    options.accumulation_steps = 1;
    options.prefetch = 0;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_INVALID);
    options.prefetch = 2;
    options.clip_norm = -1.0;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_INVALID);
    options.clip_norm = 0.0;
    options.replicas = dp_world(dp);
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_INVALID);
    options.replicas = NULL;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_OK);
    EXPECT_STATUS(dp, dp_shards_memory_get(shards, &memory), DP_OK);
    EXPECT(dp,
           memory.weights == 2 * (floats - seen) * sizeof(float) &&
               memory.mapped_weights == 2 * seen * sizeof(float) &&
               memory.gradients == (size_t)2 * 4096 * sizeof(float) && memory.weight_slots == 0 &&
               memory.gradient_slots == 2 * floats * sizeof(float),
           "%zu %zu %zu %zu %zu", memory.weights, memory.mapped_weights, memory.gradients,
           memory.weight_slots, memory.gradient_slots);
    EXPECT_STATUS(dp, dp_shards_row(shards, 2, &row), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_shards_row(shards, 1, &row), DP_OK);
    EXPECT(dp, row.count == (dp_rank(dp) == 0 ? 20u : 0u), "%zu elements", row.count);
    row.size = 3;
    EXPECT_STATUS(dp, dp_shards_row(shards, 1, &row), DP_ERR_INVALID);
    dp_shards_destroy(shards);
    dp_shards_destroy(NULL);
    return 0;
}

/* Ranks that list different groups, or want another stage, are told, instead of waiting for ever.
 */
int case_shards_lists(dp_context_t *dp)
{
    dp_shard_unit_t groups[2] = {{.name = "a", .count = 10}, {.name = "b", .count = 20}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    const int is_last = dp_rank(dp) == dp_size(dp) - 1;
    dp_shards_t *shards;

    EXPECT_STATUS(dp, dp_shards_create(dp, groups, is_last ? 1 : 2, NULL, &shards),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, dp_error_text(dp), "units");
    if (is_last) groups[1].count--;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, NULL, &shards), DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, dp_error_text(dp), "unit 1 is b");
    groups[1].count = 20;
    if (is_last) options.stage = DP_SHARD_WEIGHTS;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, dp_error_text(dp), "other options");
    options.stage = DP_SHARD_GRADIENTS;
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, 2, &options, &shards), DP_OK);
    dp_shards_destroy(shards);
    return 0;
}

/* DP_CHECK_DATA finds no fault in a good run, and weights that one rank has changed. */
int case_shards_check(dp_context_t *dp)
{
    for (int stage = DP_SHARD_WEIGHTS; stage >= DP_SHARD_NONE; stage--) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
        shard_rig_t rig = {.passes = 1};
        dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
        const float *weights;
        int is_row, is_shared;
        size_t bad;
        float *gradients;

        options.stage = (dp_shard_stage_t)stage;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_memory_get(rig.shards, &memory), DP_OK);
        /* Weights that are there once cannot differ, but whole groups can. Else under WEIGHTS a row
         * that is newer than what was gathered of it, in other stages gathered weights. */
        is_shared = memory.mapped_weights > 0;
        is_row = stage == DP_SHARD_WEIGHTS && !is_shared;
        bad = is_shared ? 0 : is_row ? SHARD_GROUPS - 1 : 1;
        for (int step = 0; step < 2; step++)
            if (shard_rig_step(dp, &rig, step, &result) != 0) return 1;
        for (size_t g = 0; g < SHARD_GROUPS; g++) {
            EXPECT_STATUS(dp, shards_wait(rig.shards, g, &weights), DP_OK);
            if (g == bad && dp_rank(dp) == 1)
                *(float *)(is_row ? rig.rows[g].weights : (void *)(uintptr_t)weights) += 1.0f;
            EXPECT_STATUS(dp, dp_shards_release(rig.shards, g), DP_OK);
            EXPECT_STATUS(dp, dp_shards_gradients(rig.shards, g, NULL, &gradients), DP_OK);
            memset(gradients, 0, shard_shapes[g].count * sizeof(float));
            EXPECT_STATUS(dp, dp_shards_ready(rig.shards, g, NULL), DP_OK);
        }
        EXPECT_STATUS(dp, dp_shards_sync(rig.shards, &result), DP_ERR_CHECK);
        EXPECT_TEXT(dp, dp_error_text(dp),
                    is_row      ? "of the rows of all ranks"
                    : is_shared ? "weights of root differ"
                                : "weights of block.0 differ");
        shard_rig_destroy(&rig);
    }
    return 0;
}

/* DP_CHECK_DATA finds rows that differ between copies of a model, each of which one rank keeps. */
int case_shards_check_copies(dp_context_t *dp)
{
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "alone", dp_rank(dp), 0, NULL, &options.group),
                  DP_OK);
    options.replicas = dp_world(dp);
    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
        shard_rig_t rig = {.passes = 1};
        const size_t bad = SHARD_GROUPS - 1;
        const float *weights;
        float *gradients;

        options.stage = (dp_shard_stage_t)stage;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        if (dp_rank(dp) == 1) *(float *)rig.rows[bad].weights += 1.0f;
        EXPECT_STATUS(dp, dp_shards_changed(rig.shards, bad), DP_OK);
        for (size_t g = 0; g < SHARD_GROUPS; g++) {
            EXPECT_STATUS(dp, shards_wait(rig.shards, g, &weights), DP_OK);
            EXPECT_STATUS(dp, dp_shards_release(rig.shards, g), DP_OK);
            EXPECT_STATUS(dp, dp_shards_gradients(rig.shards, g, NULL, &gradients), DP_OK);
            memset(gradients, 0, shard_shapes[g].count * sizeof(float));
            EXPECT_STATUS(dp, dp_shards_ready(rig.shards, g, NULL), DP_OK);
        }
        EXPECT_STATUS(dp, dp_shards_sync(rig.shards, &result), DP_ERR_CHECK);
        EXPECT_TEXT(dp, dp_error_text(dp), shard_shapes[bad].name);
        EXPECT_TEXT(dp, dp_error_text(dp), "on rank 0");
        EXPECT_TEXT(dp, dp_error_text(dp), "on rank 1");
        shard_rig_destroy(&rig);
    }
    EXPECT_STATUS(dp, dp_group_destroy(options.group), DP_OK);
    return 0;
}

/* No more gathers are in flight than the options allow, where ranks copy weights. */
int case_shards_prefetch(dp_context_t *dp)
{
    for (int prefetch = 1; prefetch <= 3; prefetch++) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
        dp_stats_t before = DP_STATS_INIT, after = DP_STATS_INIT;
        shard_rig_t rig = {.passes = 1};
        const float *weights;

        options.stage = DP_SHARD_WEIGHTS;
        options.prefetch = prefetch;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_memory_get(rig.shards, &memory), DP_OK);
        EXPECT_STATUS(dp, dp_stats_get(dp, &before), DP_OK);
        for (size_t g = 0; g < SHARD_GROUPS; g++)
            EXPECT_STATUS(dp, dp_shards_gather(rig.shards, g, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_stats_get(dp, &after), DP_OK);
        if (memory.mapped_weights == 0)
            EXPECT(dp, after.submitted - before.submitted == (uint64_t)prefetch,
                   "%llu gathers in flight, wanted %d",
                   (unsigned long long)(after.submitted - before.submitted), prefetch);
        for (size_t g = 0; g < SHARD_GROUPS; g++) {
            EXPECT_STATUS(dp, shards_wait(rig.shards, g, &weights), DP_OK);
            EXPECT_STATUS(dp, dp_shards_release(rig.shards, g), DP_OK);
        }
        shard_rig_destroy(&rig);
    }
    return 0;
}

/* dp_finalize() ends the object that the program left, with a gather in flight. */
int case_shards_left(dp_context_t *dp)
{
    const dp_shard_unit_t groups[1] = {{.name = "a", .count = 100000}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_t *shards;

    for (int i = 0; i < 2; i++) {
        options.prefix = i == 0 ? "one." : "two.";
        options.stage = i == 0 ? DP_SHARD_OPTIMIZER : DP_SHARD_WEIGHTS;
        EXPECT_STATUS(dp, dp_shards_create(dp, groups, 1, &options, &shards), DP_OK);
        EXPECT_STATUS(dp, dp_shards_gather(shards, 0, NULL), DP_OK);
    }
    return 0;
}
