/*
 * cases_shards.c - dp_shards_t: every stage gives the bits of dp_gradients_t and the same update,
 * whatever the passes, the prefetch and the groups of ranks.
 *
 * The model is a list of groups of two tensors each, with gaps between them. Its gradients depend
 * on the weights, so a stale or foreign weight shows in the result.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/ranks/cases_shards.h"

const shape_t shard_shapes[SHARD_GROUPS] = {
    {"root", 4300, 1, {100, 204}},       {"block.0", 10000, 0, {5000, 1808}},
    {"block.1", 10000, 0, {5000, 1808}}, {"block.2", 10000, 0, {5000, 1808}},
    {"block.3", 10000, 0, {5000, 1808}}, {"wte", 20011, 0, {8192, 11819}},
};

size_t shard_tensor_first(int g, int t)
{
    return t == 0 ? 0 : shard_shapes[g].count - shard_shapes[g].tensors[1];
}

/* A number in [-1, 1) that depends on all of its arguments. */
static float noise(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu ^ (c + 1) * 0x165667b19e3779f9u;

    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 32) * 0x94d049bb133111ebu;
    return (float)(int32_t)(x >> 32) / 2147483648.0f;
}

float shard_first_weight(int g, size_t i)
{
    return noise(77, (uint64_t)g, i);
}

/* One rank's gradient of one pass: written by the first, added by later ones. */
void shard_backward(const dp_context_t *dp, int g, int step, int pass, const float *weights,
                    float *gradients)
{
    const uint64_t draw = (uint64_t)(step * 16 + pass) * 64 + (uint64_t)dp_rank(dp);

    for (int t = 0; t < 2; t++) {
        const size_t first = shard_tensor_first(g, t);

        for (size_t i = first; i < first + shard_shapes[g].tensors[t]; i++) {
            const float one = noise(draw, (uint64_t)g, i) + 0.125f * weights[i];

            gradients[i] = pass == 0 ? one : gradients[i] + one;
        }
    }
}

/* Momentum, so that the optimizer has a state. */
void shard_update(float *weights, const float *gradients, float *momentum, size_t count,
                  double clip_coef)
{
    for (size_t i = 0; i < count; i++) {
        momentum[i] = 0.9f * momentum[i] + (float)clip_coef * gradients[i];
        weights[i] -= 0.05f * momentum[i];
    }
}

/* ---- The reference -------------------------------------------------------------------------- */

typedef struct reference {
    float *weights[SHARD_GROUPS];
    double norms[SHARD_STEPS];
} reference_t;

static void reference_free(reference_t *reference)
{
    for (int g = 0; g < SHARD_GROUPS; g++)
        free(reference->weights[g]);
}

static void list_tensors(dp_gradient_t *tensors, char (*names)[32], float *const *weights,
                         float *const *gradients)
{
    for (int g = 0; g < SHARD_GROUPS; g++) {
        for (int t = 0; t < 2; t++) {
            const size_t first = shard_tensor_first(g, t);

            snprintf(names[2 * g + t], sizeof(names[0]), "%s.%d", shard_shapes[g].name, t);
            tensors[2 * g + t] =
                (dp_gradient_t){names[2 * g + t], weights[g] + first, gradients[g] + first,
                                shard_shapes[g].tensors[t], DP_F32};
        }
    }
}

/* Plain data parallelism, tensor by tensor. */
static int reference_make(dp_context_t *dp, int passes, reference_t *reference)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradient_t tensors[2 * SHARD_GROUPS];
    float *gradients[SHARD_GROUPS], *momentum[SHARD_GROUPS];
    char names[2 * SHARD_GROUPS][32];
    dp_gradients_t *object;

    for (int g = 0; g < SHARD_GROUPS; g++) {
        const size_t count = shard_shapes[g].count;

        reference->weights[g] = calloc(count, sizeof(float));
        gradients[g] = calloc(count, sizeof(float));
        momentum[g] = calloc(count, sizeof(float));
        EXPECT(dp, reference->weights[g] && gradients[g] && momentum[g], "no memory");
        for (int t = 0; t < 2; t++)
            for (size_t i = 0; i < shard_shapes[g].tensors[t]; i++) {
                const size_t at = shard_tensor_first(g, t) + i;

                reference->weights[g][at] = shard_first_weight(g, at);
            }
    }
    list_tensors(tensors, names, reference->weights, gradients);
    options.accumulation_steps = passes;
    options.clip_norm = SHARD_CLIP;
    EXPECT_STATUS(dp, dp_gradients_create(dp, tensors, 2 * SHARD_GROUPS, &options, &object), DP_OK);
    for (int step = 0; step < SHARD_STEPS; step++) {
        for (int pass = 0; pass < passes; pass++)
            for (int g = SHARD_GROUPS - 1; g >= 0; g--) {
                shard_backward(dp, g, step, pass, reference->weights[g], gradients[g]);
                for (int t = 0; t < 2; t++) {
                    EXPECT_STATUS(dp, dp_gradients_ready(object, (size_t)(2 * g + t), NULL), DP_OK);
                }
            }
        EXPECT_STATUS(dp, dp_gradients_sync(object, &result), DP_OK);
        EXPECT(dp, result.clip_coef < 1.0, "norm %g is not clipped", result.norm);
        reference->norms[step] = result.norm;
        for (int g = 0; g < SHARD_GROUPS; g++) {
            shard_update(reference->weights[g], gradients[g], momentum[g], shard_shapes[g].count,
                         result.clip_coef);
        }
    }
    dp_gradients_destroy(object);
    for (int g = 0; g < SHARD_GROUPS; g++) {
        free(gradients[g]);
        free(momentum[g]);
    }
    return 0;
}

/* ---- The loop of dp.h ----------------------------------------------------------------------- */

int shard_rig_create(dp_context_t *dp, const dp_shards_options_t *options, shard_rig_t *rig)
{
    dp_shard_unit_t groups[SHARD_GROUPS];

    rig->passes = options->accumulation_steps;
    for (int g = 0; g < SHARD_GROUPS; g++) {
        groups[g] = (dp_shard_unit_t){.name = shard_shapes[g].name,
                                      .count = shard_shapes[g].count,
                                      .is_whole = shard_shapes[g].is_whole};
    }
    EXPECT_STATUS(dp, dp_shards_create(dp, groups, SHARD_GROUPS, options, &rig->shards), DP_OK);
    for (size_t g = 0; g < SHARD_GROUPS; g++) {
        float *full = NULL;

        rig->rows[g] = (dp_shard_row_t)DP_SHARD_ROW_INIT;
        EXPECT_STATUS(dp, dp_shards_row(rig->shards, g, &rig->rows[g]), DP_OK);
        rig->momentum[g] = calloc(rig->rows[g].count + 1, sizeof(float));
        full = calloc(shard_shapes[g].count, sizeof(float));
        EXPECT(dp, full != NULL && rig->momentum[g] != NULL, "no memory");
        for (int t = 0; t < 2; t++)
            for (size_t i = 0; i < shard_shapes[g].tensors[t]; i++) {
                const size_t at = shard_tensor_first((int)g, t) + i;

                full[at] = shard_first_weight((int)g, at);
            }
        /* Two ways to begin: from rank 0's weights, or each rank by itself. */
        if (g % 2 == 0) {
            EXPECT_STATUS(dp, dp_shards_load(rig->shards, g, dp_rank(dp) == 0 ? full : NULL),
                          DP_OK);
        } else {
            memcpy(rig->rows[g].weights, full + rig->rows[g].first,
                   rig->rows[g].count * sizeof(float));
        }
        free(full);
    }
    return 0;
}

void shard_rig_destroy(shard_rig_t *rig)
{
    dp_shards_destroy(rig->shards);
    for (int g = 0; g < SHARD_GROUPS; g++)
        free(rig->momentum[g]);
}

static int pass_of(dp_context_t *dp, shard_rig_t *rig, int step, int pass)
{
    dp_shards_t *shards = rig->shards;
    const float *weights;
    float *gradients;

    for (size_t g = 0; g < SHARD_GROUPS; g++) {
        double sum = 0.0;

        if (g + 1 < SHARD_GROUPS) EXPECT_STATUS(dp, dp_shards_gather(shards, g + 1, NULL), DP_OK);
        EXPECT_STATUS(dp, shards_wait(shards, g, &weights), DP_OK);
        for (size_t i = 0; i < shard_shapes[g].count; i++)
            sum += (double)weights[i];
        EXPECT(dp, isfinite(sum), "the weights of group %zu add up to %g", g, sum);
        EXPECT_STATUS(dp, dp_shards_release(shards, g), DP_OK);
    }
    for (size_t g = SHARD_GROUPS; g-- > 0;) {
        if (g > 0) EXPECT_STATUS(dp, dp_shards_gather(shards, g - 1, NULL), DP_OK);
        EXPECT_STATUS(dp, shards_wait(shards, g, &weights), DP_OK);
        EXPECT_STATUS(dp, dp_shards_gradients(shards, g, NULL, &gradients), DP_OK);
        shard_backward(dp, (int)g, step, pass, weights, gradients);
        if (rig->spoils_step == step + 1 && dp_rank(dp) == dp_size(dp) - 1 && g == SHARD_GROUPS - 2)
            gradients[77] = INFINITY;
        EXPECT_STATUS(dp, dp_shards_release(shards, g), DP_OK);
        EXPECT_STATUS(dp, dp_shards_ready(shards, g, NULL), DP_OK);
    }
    return 0;
}

int shard_rig_step(dp_context_t *dp, shard_rig_t *rig, int step, dp_gradients_result_t *result)
{
    for (int pass = 0; pass < rig->passes; pass++)
        if (pass_of(dp, rig, step, pass) != 0) return 1;
    EXPECT_STATUS(dp, dp_shards_sync(rig->shards, result), DP_OK);
    for (size_t g = 0; g < SHARD_GROUPS; g++) {
        const dp_shard_row_t *row = &rig->rows[g];

        if (!result->skip)
            shard_update(row->weights, row->gradients, rig->momentum[g], row->count,
                         result->clip_coef);
        EXPECT_STATUS(dp, dp_shards_gather(rig->shards, g, NULL), DP_OK);
    }
    return 0;
}

/* ---- Comparing ------------------------------------------------------------------------------ */

static int weights_equal(dp_context_t *dp, shard_rig_t *rig, const reference_t *reference,
                         float tolerance)
{
    for (size_t g = 0; g < SHARD_GROUPS; g++) {
        const float *wanted = reference->weights[g], *weights;

        EXPECT_STATUS(dp, shards_wait(rig->shards, g, &weights), DP_OK);
        for (size_t i = 0; i < shard_shapes[g].count; i++)
            EXPECT(dp, fabsf(weights[i] - wanted[i]) <= tolerance,
                   "group %zu element %zu is %.9g, wanted %.9g", g, i, (double)weights[i],
                   (double)wanted[i]);
        EXPECT(dp,
               memcmp(weights + rig->rows[g].first, rig->rows[g].weights,
                      rig->rows[g].count * sizeof(float)) == 0,
               "group %zu: the row is not what was gathered", g);
        EXPECT_STATUS(dp, dp_shards_release(rig->shards, g), DP_OK);
    }
    return 0;
}

/* Runs the loop and compares. tolerance 0: to the bit, the norm too. *hash: of the end. */
static int run_and_compare(dp_context_t *dp, const dp_shards_options_t *options,
                           const reference_t *reference, float tolerance, uint64_t *hash)
{
    shard_rig_t rig = {.passes = 1};

    if (shard_rig_create(dp, options, &rig) != 0) return 1;
    for (int step = 0; step < SHARD_STEPS; step++) {
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;

        if (shard_rig_step(dp, &rig, step, &result) != 0) return 1;
        EXPECT(dp, fabs(result.norm - reference->norms[step]) <= (double)tolerance * result.norm,
               "stage %d, %d passes: the norm of step %d is %.17g, wanted %.17g",
               (int)options->stage, options->accumulation_steps, step, result.norm,
               reference->norms[step]);
    }
    if (weights_equal(dp, &rig, reference, tolerance) != 0) return 1;
    EXPECT_STATUS(dp, dp_shards_hash(rig.shards, hash), DP_OK);
    shard_rig_destroy(&rig);
    return 0;
}

/* Every stage, number of passes and prefetch gives the bits of dp_gradients_t. */
int case_shards(dp_context_t *dp)
{
    for (int passes = 1; passes <= 3; passes += 2) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        reference_t reference;
        uint64_t hash = 0, first = 0;

        if (reference_make(dp, passes, &reference) != 0) return 1;
        options.accumulation_steps = passes;
        options.clip_norm = SHARD_CLIP;
        for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
            for (int prefetch = stage == DP_SHARD_WEIGHTS ? 1 : 2; prefetch <= 3; prefetch++) {
                if (stage != DP_SHARD_WEIGHTS && prefetch == 3) continue;
                options.stage = (dp_shard_stage_t)stage;
                options.prefetch = prefetch;
                if (run_and_compare(dp, &options, &reference, 0.0f, &hash) != 0) return 1;
                if (stage == DP_SHARD_NONE) first = hash;
                EXPECT(dp, hash == first, "the checksum of stage %d is %016llx, of none %016llx",
                       stage, (unsigned long long)hash, (unsigned long long)first);
            }
        }
        reference_free(&reference);
    }
    return 0;
}

/* Shares the state out within a part of the ranks, and averages over the parts. Where a part is a
 * node, the order of the additions is that of all ranks together. */
int case_shards_hybrid(dp_context_t *dp)
{
    const int size = dp_size(dp), rank = dp_rank(dp);
    const int part = size % 2 == 0 ? size / 2 : size;
    const int is_node = dp_node_count(dp) * part == size && dp_local_size(dp) == part;
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    reference_t reference;
    uint64_t hash;

    if (reference_make(dp, 1, &reference) != 0) return 1;
    options.clip_norm = SHARD_CLIP;
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "part", rank / part, 0, NULL, &options.group),
                  DP_OK);
    EXPECT_STATUS(
        dp, dp_group_split(dp_world(dp), "copies", rank % part, 0, NULL, &options.replicas), DP_OK);
    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        const float tolerance = is_node || part == size ? 0.0f : 1e-5f;

        options.stage = (dp_shard_stage_t)stage;
        if (run_and_compare(dp, &options, &reference, tolerance, &hash) != 0) return 1;
    }
    reference_free(&reference);
    EXPECT_STATUS(dp, dp_group_destroy(options.replicas), DP_OK);
    EXPECT_STATUS(dp, dp_group_destroy(options.group), DP_OK);
    return 0;
}

/* Gradients that travel between nodes as fp16: close, and the same on all ranks. */
int case_shards_wire(dp_context_t *dp)
{
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    reference_t reference;
    uint64_t hash;

    if (reference_make(dp, 1, &reference) != 0) return 1;
    options.clip_norm = SHARD_CLIP;
    options.wire = DP_WIRE_FP16;
    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        options.stage = (dp_shard_stage_t)stage;
        if (run_and_compare(dp, &options, &reference, 1e-3f, &hash) != 0) return 1;
    }
    reference_free(&reference);
    return 0;
}

/* Rows that are written outside of a step, as a checkpoint that is loaded later does. */
int case_shards_changed(dp_context_t *dp)
{
    for (int stage = DP_SHARD_NONE; stage <= DP_SHARD_WEIGHTS; stage++) {
        dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
        shard_rig_t rig = {.passes = 1};

        options.stage = (dp_shard_stage_t)stage;
        if (shard_rig_create(dp, &options, &rig) != 0) return 1;
        if (shard_rig_step(dp, &rig, 0, &result) != 0) return 1;
        for (size_t g = 0; g < SHARD_GROUPS; g++) {
            const dp_shard_row_t *row = &rig.rows[g];
            const float *weights;

            EXPECT_STATUS(dp, shards_wait(rig.shards, g, &weights), DP_OK);
            EXPECT_STATUS(dp, dp_shards_release(rig.shards, g), DP_OK);
            for (size_t i = 0; i < row->count; i++)
                ((float *)row->weights)[i] = (float)(row->first + i);
            EXPECT_STATUS(dp, dp_shards_changed(rig.shards, g), DP_OK);
            EXPECT_STATUS(dp, shards_wait(rig.shards, g, &weights), DP_OK);
            for (size_t i = 0; i < shard_shapes[g].count; i++)
                EXPECT(dp, weights[i] == (float)i, "stage %d group %zu element %zu is %g", stage, g,
                       i, (double)weights[i]);
            EXPECT_STATUS(dp, dp_shards_release(rig.shards, g), DP_OK);
        }
        shard_rig_destroy(&rig);
    }
    return 0;
}
