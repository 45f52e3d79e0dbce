/*
 * cases_lanes.c - a sharded loop: gradients are reduced and scattered while weights are gathered,
 * in place, in the world and in a group of its own; results to the bit, in either order of
 * launches.
 */
#include "tests/ranks/cases_internal.h"

enum { LAYERS = 4, STEPS = 8, ROW = 5000 };

typedef struct shard_loop {
    dp_group_t *group;
    float *weights[LAYERS], *gradients[LAYERS]; /* [size * ROW] */
    dp_handle_t *gathers[LAYERS], *scatters[LAYERS], *sums[LAYERS];
    double sum[LAYERS]; /* of a small tensor beside */
} shard_loop_t;

static size_t row_begin(const shard_loop_t *loop)
{
    return (size_t)dp_group_rank(loop->group) * ROW;
}

/* The value of element i of a layer after so many steps: small whole numbers. */
static float weight_of(size_t i, int layer, int step)
{
    return (float)((i % 97) + (size_t)layer * 3 + (size_t)step * 5);
}

static int submit_gather(dp_context_t *dp, shard_loop_t *loop, int layer, int step)
{
    char name[32];
    float *weights = loop->weights[layer];
    const size_t first = row_begin(loop);

    for (size_t i = first; i < first + ROW; i++)
        weights[i] = weight_of(i, layer, step);
    snprintf(name, sizeof(name), "weights.%d", layer);
    EXPECT_STATUS(dp,
                  dp_allgather(loop->group, name, weights + first, weights, ROW, DP_F32, NULL,
                               &loop->gathers[layer]),
                  DP_OK);
    return 0;
}

static int submit_gradients(dp_context_t *dp, shard_loop_t *loop, int layer, int step)
{
    const size_t all = (size_t)dp_group_size(loop->group) * ROW;
    char name[32];
    float *gradients = loop->gradients[layer];

    for (size_t i = 0; i < all; i++)
        gradients[i] = weight_of(i, layer, step) + (float)dp_group_rank(loop->group);
    snprintf(name, sizeof(name), "gradients.%d", layer);
    EXPECT_STATUS(dp,
                  dp_reduce_scatter(loop->group, name, gradients, gradients + row_begin(loop), ROW,
                                    DP_F32, NULL, &loop->scatters[layer]),
                  DP_OK);
    loop->sum[layer] = step + layer;
    snprintf(name, sizeof(name), "sum.%d", layer);
    EXPECT_STATUS(dp,
                  dp_allreduce(loop->group, name, &loop->sum[layer], &loop->sum[layer], 1, DP_F64,
                               NULL, &loop->sums[layer]),
                  DP_OK);
    return 0;
}

static int finish_gather(dp_context_t *dp, shard_loop_t *loop, int layer, int step)
{
    const size_t all = (size_t)dp_group_size(loop->group) * ROW;

    EXPECT_STATUS(dp, dp_wait(loop->gathers[layer], 60.0, NULL), DP_OK);
    for (size_t i = 0; i < all; i++) {
        EXPECT(dp, loop->weights[layer][i] == weight_of(i, layer, step),
               "step %d, layer %d, element %zu is %g", step, layer, i,
               (double)loop->weights[layer][i]);
    }
    return 0;
}

static int finish_gradients(dp_context_t *dp, shard_loop_t *loop, int layer, int step)
{
    const int size = dp_group_size(loop->group);
    const size_t first = row_begin(loop);

    EXPECT_STATUS(dp, dp_wait(loop->scatters[layer], -1.0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_wait(loop->sums[layer], -1.0, NULL), DP_OK);
    EXPECT(dp, loop->sum[layer] == size * (step + layer), "the sum is %g", loop->sum[layer]);
    for (size_t i = first; i < first + ROW; i++) {
        const float wanted =
            (float)size * weight_of(i, layer, step) + (float)(size * (size - 1) / 2);

        EXPECT(dp, loop->gradients[layer][i] == wanted, "step %d, layer %d, element %zu is %g",
               step, layer, i, (double)loop->gradients[layer][i]);
    }
    return 0;
}

/* A backward pass that reduces layer l while it gathers layer l - 1. */
static int run_steps(dp_context_t *dp, shard_loop_t *loop)
{
    for (int step = 0; step < STEPS; step++) {
        if (submit_gather(dp, loop, LAYERS - 1, step) != 0) return 1;
        for (int layer = LAYERS - 1; layer >= 0; layer--) {
            if (layer > 0 && submit_gather(dp, loop, layer - 1, step) != 0) return 1;
            if (finish_gather(dp, loop, layer, step) != 0) return 1;
            if (submit_gradients(dp, loop, layer, step) != 0) return 1;
        }
        for (int layer = LAYERS - 1; layer >= 0; layer--)
            if (finish_gradients(dp, loop, layer, step) != 0) return 1;
    }
    return 0;
}

static int run_loop(dp_context_t *dp, dp_group_t *group, int in_arena)
{
    const size_t bytes = (size_t)dp_group_size(group) * ROW * sizeof(float);
    shard_loop_t loop = {.group = group};
    int failed;

    for (int layer = 0; layer < LAYERS; layer++) {
        loop.weights[layer] = (float *)(void *)case_allocate(dp, bytes, in_arena);
        loop.gradients[layer] = (float *)(void *)case_allocate(dp, bytes, in_arena);
        EXPECT(dp, loop.weights[layer] != NULL && loop.gradients[layer] != NULL, "no memory");
    }
    failed = run_steps(dp, &loop);
    for (int layer = 0; layer < LAYERS; layer++) {
        case_give_back(dp, (char *)loop.weights[layer], in_arena);
        case_give_back(dp, (char *)loop.gradients[layer], in_arena);
    }
    return failed;
}

int case_lanes(dp_context_t *dp)
{
    int ranks[64];
    const int size = dp_size(dp);
    const int count = size > 1 ? size - 1 : 1;

    for (int i = 0; i < count; i++)
        ranks[i] = i;
    for (int in_arena = 1; in_arena >= 0; in_arena--)
        if (run_loop(dp, dp_world(dp), in_arena) != 0) return 1;
    for (int round = 0; round < 2; round++) {
        dp_group_t *group = NULL;

        if (dp_rank(dp) < count) {
            EXPECT_STATUS(dp, dp_group_create(dp, "shards", ranks, count, NULL, &group), DP_OK);
            if (run_loop(dp, group, 1) != 0) return 1;
            EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
        }
    }
    return run_loop(dp, dp_world(dp), 1);
}
