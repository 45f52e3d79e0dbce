/*
 * cases_shards_halves.c - dp_shards_t with weights of 16 bits: they are gathered as they are, take
 * half the memory, and have one checksum in every stage; gradients stay fp32.
 */
#include <stdlib.h>

#include "tests/ranks/cases_shards.h"

enum { HALVES_GROUPS = 3 };
static const dp_shard_unit_t halves_groups[HALVES_GROUPS] = {
    {"root", 4300, 1}, {"block", 10000, 0}, {"wte", 20012, 0}};

/* The value of element i of group g after `updates` updates. */
static uint16_t half_of(size_t g, size_t i, int updates)
{
    return (uint16_t)(i * 40503u + g * 977u + (size_t)updates * 61u);
}

/* All weights of a group are what the ranks have written. */
static int check_halves(dp_context_t *dp, dp_shards_t *shards, size_t g, int updates)
{
    const void *weights;
    const uint16_t *halves;

    EXPECT_STATUS(dp, dp_shards_wait(shards, g, NULL, &weights), DP_OK);
    halves = weights;
    for (size_t i = 0; i < halves_groups[g].count; i++) {
        EXPECT(dp, halves[i] == half_of(g, i, updates), "group %zu element %zu is %u, wanted %u", g,
               i, halves[i], half_of(g, i, updates));
    }
    EXPECT_STATUS(dp, dp_shards_release(shards, g), DP_OK);
    return 0;
}

/* The row from rank 0's weights, or by this rank itself. */
static int write_first(dp_context_t *dp, dp_shards_t *shards, size_t g, const dp_shard_row_t *row)
{
    const size_t count = halves_groups[g].count;
    dp_status_t status = DP_OK;
    uint16_t *full;

    full = calloc(count, sizeof(*full));
    EXPECT(dp, full != NULL, "no memory");
    for (size_t i = 0; i < count; i++)
        full[i] = half_of(g, i, 0);
    if (g % 2 == 1) {
        memcpy(row->weights, full + row->first, row->count * sizeof(*full));
    } else {
        status = dp_shards_load(shards, g, dp_rank(dp) == 0 ? full : NULL);
    }
    free(full);
    EXPECT_STATUS(dp, status, DP_OK);
    return 0;
}

/* One stage. *hash: of the weights after an update. */
static int run_halves(dp_context_t *dp, const dp_shards_options_t *options, uint64_t *hash,
                      dp_shards_memory_t *memory)
{
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_shards_t *shards;

    EXPECT_STATUS(dp, dp_shards_create(dp, halves_groups, HALVES_GROUPS, options, &shards), DP_OK);
    for (size_t g = 0; g < HALVES_GROUPS; g++) {
        dp_shard_row_t row = DP_SHARD_ROW_INIT;
        float *gradients;

        EXPECT_STATUS(dp, dp_shards_row(shards, g, &row), DP_OK);
        if (write_first(dp, shards, g, &row) != 0 || check_halves(dp, shards, g, 0) != 0) return 1;
        EXPECT_STATUS(dp, dp_shards_gradients(shards, g, NULL, &gradients), DP_OK);
        for (size_t i = 0; i < halves_groups[g].count; i++)
            gradients[i] = 1.0f;
        EXPECT_STATUS(dp, dp_shards_ready(shards, g, NULL), DP_OK);
    }
    EXPECT_STATUS(dp, dp_shards_sync(shards, &result), DP_OK);
    for (size_t g = 0; g < HALVES_GROUPS; g++) {
        dp_shard_row_t row = DP_SHARD_ROW_INIT;
        uint16_t *halves;

        EXPECT_STATUS(dp, dp_shards_row(shards, g, &row), DP_OK);
        halves = row.weights;
        for (size_t i = 0; i < row.count; i++) {
            EXPECT(dp, row.gradients[i] == 1.0f, "gradient %zu of group %zu is %g", i, g,
                   (double)row.gradients[i]);
            halves[i] = half_of(g, row.first + i, 1);
        }
        EXPECT_STATUS(dp, dp_shards_gather(shards, g, NULL), DP_OK);
    }
    for (size_t g = 0; g < HALVES_GROUPS; g++)
        if (check_halves(dp, shards, g, 1) != 0) return 1;
    EXPECT_STATUS(dp, dp_shards_hash(shards, hash), DP_OK);
    EXPECT_STATUS(dp, dp_shards_memory_get(shards, memory), DP_OK);
    dp_shards_destroy(shards);
    return 0;
}

int case_shards_halves(dp_context_t *dp)
{
    static const dp_shard_unit_t odd = {"odd", 10001, 0};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_t *shards;
    uint64_t first = 0;

    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_shards_memory_t memory = DP_SHARDS_MEMORY_INIT;
        uint64_t hash = 0;

        options.stage = (dp_shard_stage_t)stage;
        options.weights = stage % 2 == 0 ? DP_BF16 : DP_F16;
        if (run_halves(dp, &options, &hash, &memory) != 0) return 1;
        if (stage == DP_SHARD_NONE) first = hash;
        EXPECT(dp, hash == first, "the checksum of stage %d is %016llx, of none %016llx", stage,
               (unsigned long long)hash, (unsigned long long)first);
        if (stage <= DP_SHARD_OPTIMIZER) {
            EXPECT(dp, 2 * (memory.weights + memory.mapped_weights) == memory.gradients,
                   "weights %zu and %zu, gradients %zu", memory.weights, memory.mapped_weights,
                   memory.gradients);
        }
    }
    EXPECT_STATUS(dp, dp_shards_create(dp, &odd, 1, &options, &shards), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "unit odd has 10001 elements");
    options.weights = DP_F64;
    EXPECT_STATUS(dp, dp_shards_create(dp, halves_groups, HALVES_GROUPS, &options, &shards),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "weights of type");
    return 0;
}
