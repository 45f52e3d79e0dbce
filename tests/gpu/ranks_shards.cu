/*
 * ranks_shards.cu - sharded training on GPUs: gathers, gradients and an optimizer on a stream, and
 * dp_shards_sync_on(), which leaves the decision in the device's memory.
 *
 * A part of the program ranks_cuda. Sees dp.h alone, like a program. All elements of a group have
 * one value, so the processor knows what each must be.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"
#include "kernels/cuda_launch.cuh"
#include "tests/gpu/ranks_shards.h"

enum { GROUPS = 5, STEPS = 5, BAD = 2, THREADS = 64 };
static const dp_shard_unit_t groups[GROUPS] = {{"root", 100, 1},
                                               {"block.0", 5000, 0},
                                               {"block.1", 5000, 0},
                                               {"block.2", 5000, 0},
                                               {"wte", 6000, 0}};

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "ranks_shards:%d: %s: ", __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define CUDA(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorString(cudaGetLastError()))
#define DP(call) CHECK((call) == DP_OK, "%s", dp_error_text(run->dp))

static __global__ void fill_all(float *out, size_t count, float value)
{
    for (size_t i = threadIdx.x; i < count; i += THREADS)
        out[i] = value;
}

static __global__ void count_wrong(const float *in, size_t count, float value, unsigned *wrong)
{
    for (size_t i = threadIdx.x; i < count; i += THREADS)
        if (in[i] != value) atomicAdd(wrong, 1u);
}

/* The steps of the optimizers. */
typedef struct seen {
    unsigned wrong, skips;
    float norm;
} seen_t;

static __global__ void descend_row(float *weights, const float *gradients, size_t count,
                                   float average, const uint32_t *skip, const float *clip,
                                   const float *norm, seen_t *seen)
{
    if (threadIdx.x == 0) {
        seen->norm = *norm;
        seen->skips += *skip;
    }
    if (*skip != 0) return;
    for (size_t i = threadIdx.x; i < count; i += THREADS) {
        if (gradients[i] != average) atomicAdd(&seen->wrong, 1u);
        weights[i] -= *clip * gradients[i];
    }
}

typedef struct shards_run {
    dp_context_t *dp;
    dp_shards_t *shards;
    cudaStream_t stream;
    seen_t *seen;
    float scale;          /* of the loss */
    float wanted[GROUPS]; /* the weights of each group */
    double square;        /* of the norm of the last step */
} shards_run_t;

static float average_of(const shards_run_t *run, int g, int step)
{
    return (float)((dp_size(run->dp) + 1) * (g + 1) * (step + 1)) / 2.0f;
}

static int check_weights(shards_run_t *run, size_t g)
{
    const void *weights;

    DP(dp_shards_wait(run->shards, g, run->stream, &weights));
    CUDA(DP_LAUNCH(count_wrong, 1, THREADS, 0, run->stream, (const float *)weights, groups[g].count,
                   run->wanted[g], &run->seen->wrong));
    DP(dp_shards_release(run->shards, g));
    return 0;
}

static int run_step(shards_run_t *run, int step, int on_stream)
{
    dp_device_result_t result = DP_DEVICE_RESULT_INIT;
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    const int is_bad = step == BAD;

    for (size_t g = 0; g < GROUPS; g++) {
        if (g + 1 < GROUPS) DP(dp_shards_gather(run->shards, g + 1, run->stream));
        if (check_weights(run, g) != 0) return 1;
    }
    run->square = 0.0;
    for (size_t g = GROUPS; g-- > 0;) {
        const float average = average_of(run, (int)g, step);
        float value = run->scale * (float)((dp_rank(run->dp) + 1) * ((int)g + 1) * (step + 1));
        float *gradients;

        if (is_bad && g == 2 && dp_rank(run->dp) == 0) value = INFINITY;
        if (g > 0) DP(dp_shards_gather(run->shards, g - 1, run->stream));
        if (check_weights(run, g) != 0) return 1;
        DP(dp_shards_gradients(run->shards, g, run->stream, &gradients));
        CUDA(DP_LAUNCH(fill_all, 1, THREADS, 0, run->stream, gradients, groups[g].count, value));
        DP(dp_shards_ready(run->shards, g, run->stream));
        run->square += (double)groups[g].count * (double)average * (double)average;
    }
    if (on_stream) {
        DP(dp_shards_sync_on(run->shards, run->stream, &result));
    } else {
        DP(dp_shards_sync(run->shards, &found));
        CHECK(found.skip == is_bad, "skip %d in step %d", found.skip, step);
    }
    for (size_t g = 0; g < GROUPS; g++) {
        dp_shard_row_t row = DP_SHARD_ROW_INIT;

        DP(dp_shards_row(run->shards, g, &row));
        if (on_stream) {
            CUDA(DP_LAUNCH(descend_row, 1, THREADS, 0, run->stream, (float *)row.weights,
                           (const float *)row.gradients, row.count, average_of(run, (int)g, step),
                           result.skip, result.clip_coef, result.norm, run->seen));
        } else if (!found.skip) { /* the optimizer of a loop that waits */
            CUDA(DP_LAUNCH(fill_all, 1, THREADS, 0, run->stream, (float *)row.weights, row.count,
                           run->wanted[g] - average_of(run, (int)g, step)));
        }
        if (!is_bad) run->wanted[g] -= average_of(run, (int)g, step);
        DP(dp_shards_gather(run->shards, g, run->stream));
    }
    if (is_bad && run->scale > 1.0f) run->scale /= 2.0f;
    return 0;
}

static int begin(shards_run_t *run)
{
    float full[6000];

    CUDA(cudaStreamCreateWithFlags(&run->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&run->seen, sizeof(seen_t)));
    CUDA(cudaMemset(run->seen, 0, sizeof(seen_t)));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    for (size_t g = 0; g < GROUPS; g++) {
        run->wanted[g] = (float)g + 100.0f;
        for (size_t i = 0; i < groups[g].count; i++)
            full[i] = run->wanted[g];
        DP(dp_shards_load(run->shards, g, dp_rank(run->dp) == 0 ? full : NULL));
    }
    return 0;
}

int run_shards(dp_context_t *dp, int stage, double loss_scale)
{
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    shards_run_t state = {}, *run = &state;
    uint64_t hash = 0;
    seen_t seen;

    options.stage = (dp_shard_stage_t)stage;
    options.initial_loss_scale = loss_scale;
    run->dp = dp;
    run->scale = loss_scale > 0.0 ? (float)loss_scale : 1.0f;
    DP(dp_shards_create(dp, groups, GROUPS, &options, &run->shards));
    if (begin(run) != 0) return 1;
    CHECK(dp_shards_sync_on(run->shards, run->stream, NULL) == DP_ERR_ORDER, "nothing is ready");
    CHECK(dp_shards_sync_on(run->shards, NULL, NULL) == DP_ERR_UNSUPPORTED, "no stream");
    for (int step = 0; step < STEPS; step++)
        if (run_step(run, step, step != 1) != 0) return 1;
    for (size_t g = 0; g < GROUPS; g++)
        if (check_weights(run, g) != 0) return 1;
    CUDA(cudaMemcpyAsync(&seen, run->seen, sizeof(seen), cudaMemcpyDeviceToHost, run->stream));
    CUDA(cudaStreamSynchronize(run->stream));
    CHECK(seen.wrong == 0, "stage %d: %u elements are wrong", stage, seen.wrong);
    CHECK(seen.skips == GROUPS, "stage %d: %u skips", stage, seen.skips);
    CHECK(fabs((double)seen.norm - sqrt(run->square)) < 1e-6 * sqrt(run->square),
          "stage %d: norm %g, wanted %g", stage, (double)seen.norm, sqrt(run->square));
    DP(dp_shards_hash(run->shards, &hash));
    dp_shards_destroy(run->shards);
    cudaFree(run->seen);
    cudaStreamDestroy(run->stream);
    return 0;
}
