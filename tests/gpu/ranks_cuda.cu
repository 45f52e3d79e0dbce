/*
 * ranks_cuda.cu - whole contexts on GPUs: device memory, streams, and an optimizer that follows
 * dp_gradients_sync_on() without the processor ever waiting, with an abort or a death at any stage.
 *
 *     dprun -np 2 [--share-gpu] ranks_cuda allreduce | rows | free | steps | mixed | scaled |
 *                                          check | abort STAGE | loop N |
 *                                          shards STAGE | scales STAGE (ranks_shards.cu)
 *
 * Sees dp.h alone, like a program. Compiled once for a GPU and once for the doubles, where sizes
 * matter: they are small. Exits with 77 where there is no GPU.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp.h"
#include "kernels/cuda_launch.cuh"
#include "tests/gpu/ranks_shards.h"

enum { TENSORS = 5, STEPS = 6, THREADS = 64 };
static const size_t counts[TENSORS] = {1000, 1, 5000, 333, 64};

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "ranks_cuda:%d: %s: ", __LINE__, #condition);                          \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define CUDA(call) CHECK((call) == cudaSuccess, "%s", cudaGetErrorString(cudaGetLastError()))
#define DP(rig, call) CHECK((call) == DP_OK, "%s", dp_error_text((rig)->dp))

/* ---- Kernels -------------------------------------------------------------------------------- */

static __global__ void fill(float *out, size_t count, float value)
{
    for (size_t i = threadIdx.x; i < count; i += THREADS)
        out[i] = value;
}

static __global__ void count_others(const float *in, size_t count, float value, unsigned *others)
{
    for (size_t i = threadIdx.x; i < count; i += THREADS) {
        if (in[i] != value) atomicAdd(others, 1u);
    }
}

/* Holds the stream up until the processor opens it. */
static __global__ void pass(const uint32_t *gate)
{
#ifdef DP_SIMT
    while (__atomic_load_n(gate, __ATOMIC_SEQ_CST) == 0)
        usleep(100);
#else
    while (*(const volatile uint32_t *)gate == 0) {
    }
#endif
}

/* The steps of all optimizers. */
typedef struct log {
    unsigned steps, skips, half_reduced;
    float clip, norm; /* of the last step */
} log_t;

/* A step of an optimizer that knows what the average must be. */
static __global__ void descend(float *weight, const float *gradient, size_t count, float average,
                               const uint32_t *skip, const float *clip, const float *norm,
                               log_t *log)
{
    if (threadIdx.x == 0) {
        log->clip = *clip;
        log->norm = *norm;
        if (*skip != 0) {
            log->skips++;
        } else {
            log->steps++;
        }
    }
    if (*skip != 0) return;
    for (size_t i = threadIdx.x; i < count; i += THREADS) {
        if (gradient[i] != average) atomicAdd(&log->half_reduced, 1u);
        weight[i] -= *clip * gradient[i];
    }
}

/* ---- A program ------------------------------------------------------------------------------ */

/* Zeros, there when it returns: cudaMemset() alone is behind the caller's back, on a stream that
 * those of this program do not wait for. */
static cudaError_t zero(void *memory, size_t bytes)
{
    const cudaError_t code = cudaMemset(memory, 0, bytes);

    return code == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : code;
}

typedef struct rig {
    dp_context_t *dp;
    int rank, size;
    cudaStream_t stream;
    dp_gradients_t *gradients;
    dp_gradient_t tensors[TENSORS];
    dp_device_result_t result;
    log_t *log;     /* on the device */
    uint32_t *gate; /* pinned */
} rig_t;

static const char *const names[TENSORS] = {"layer.4", "layer.3", "layer.2", "layer.1", "layer.0"};

static int open_rig(rig_t *rig, double clip_norm, double loss_scale)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;

    options.clip_norm = clip_norm;
    options.initial_loss_scale = loss_scale;
    CUDA(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&rig->log, sizeof(log_t)));
    CUDA(zero(rig->log, sizeof(log_t)));
    CUDA(cudaHostAlloc((void **)&rig->gate, sizeof(*rig->gate), cudaHostAllocMapped));
    *rig->gate = 0;
    for (int i = 0; i < TENSORS; i++) {
        const size_t bytes = counts[i] * sizeof(float);
        dp_gradient_t *tensor = &rig->tensors[i];

        *tensor = dp_gradient_t{names[i], NULL, NULL, counts[i], DP_F32};
        CUDA(cudaMalloc(&tensor->weight, bytes));
        CUDA(zero(tensor->weight, bytes));
        if (i % 2 == 0) {
            DP(rig, dp_alloc(rig->dp, bytes, &tensor->gradient)); /* reduced in place */
        } else {
            CUDA(cudaMalloc(&tensor->gradient, bytes)); /* through a fused buffer */
        }
    }
    DP(rig, dp_gradients_create(rig->dp, rig->tensors, TENSORS, &options, &rig->gradients));
    rig->result = dp_device_result_t DP_DEVICE_RESULT_INIT;
    return 0;
}

static void close_rig(rig_t *rig)
{
    dp_gradients_destroy(rig->gradients);
    for (int i = 0; i < TENSORS; i++) {
        cudaFree(rig->tensors[i].weight);
        if (i % 2 != 0) cudaFree(rig->tensors[i].gradient);
    }
    cudaFree(rig->log);
    cudaFreeHost(rig->gate);
    cudaStreamDestroy(rig->stream);
}

static float average_of(const rig_t *rig, int i, int step)
{
    return (float)((rig->size + 1) * (i + 1) * (step + 1)) / 2.0f;
}

/* Makes a gradient on the stream and sends it on its way. */
static dp_status_t backward(rig_t *rig, int i, int step, float factor)
{
    dp_gradient_t *tensor = &rig->tensors[i];
    const float value = factor * (float)((rig->rank + 1) * (i + 1) * (step + 1));

    if (DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, (float *)tensor->gradient, tensor->count,
                  value) != cudaSuccess)
        return DP_ERR_SYSTEM;
    return dp_gradients_ready(rig->gradients, (size_t)i, rig->stream);
}

/* Whatever has gone wrong before: the word must keep it off. */
static void optimize(rig_t *rig, int step)
{
    for (int i = 0; i < TENSORS; i++) {
        dp_gradient_t *tensor = &rig->tensors[i];

        DP_LAUNCH(descend, 1, THREADS, 0, rig->stream, (float *)tensor->weight,
                  (const float *)tensor->gradient, tensor->count, average_of(rig, i, step),
                  rig->result.skip, rig->result.clip_coef, rig->result.norm, rig->log);
    }
}

static int read_log(rig_t *rig, log_t *log)
{
    CUDA(cudaMemcpyAsync(log, rig->log, sizeof(*log), cudaMemcpyDeviceToHost, rig->stream));
    CUDA(cudaStreamSynchronize(rig->stream));
    CHECK(log->half_reduced == 0, "rank %d: %u elements were used half-reduced", rig->rank,
          log->half_reduced);
    return 0;
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static void *open_soon(void *gate)
{
    usleep(50000);
    __atomic_store_n((uint32_t *)gate, 1u, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Memory that a kernel still reads is freed behind it. */
static int run_free(rig_t *rig)
{
    enum { COUNT = 3000 };
    unsigned others = 1, *found;
    pthread_t thread;
    void *data;

    CUDA(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking));
    CUDA(cudaHostAlloc((void **)&rig->gate, sizeof(*rig->gate), cudaHostAllocMapped));
    CUDA(cudaMalloc((void **)&found, sizeof(*found)));
    CUDA(zero(found, sizeof(*found)));
    DP(rig, dp_alloc(rig->dp, COUNT * sizeof(float), &data));
    *rig->gate = 0;
    CUDA(DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, (float *)data, (size_t)COUNT, 7.0f));
    CUDA(cudaStreamSynchronize(rig->stream));
    CUDA(DP_LAUNCH(pass, 1, 1, 0, rig->stream, rig->gate));
    CUDA(DP_LAUNCH(count_others, 1, THREADS, 0, rig->stream, (const float *)data, (size_t)COUNT,
                   7.0f, found));
    CHECK(pthread_create(&thread, NULL, open_soon, rig->gate) == 0, "no thread");
    DP(rig, dp_free(rig->dp, data));
    pthread_join(thread, NULL);
    CUDA(cudaMemcpyAsync(&others, found, sizeof(others), cudaMemcpyDeviceToHost, rig->stream));
    CUDA(cudaStreamSynchronize(rig->stream));
    CHECK(others == 0, "%u elements were gone", others);
    cudaFree(found);
    cudaFreeHost(rig->gate);
    cudaStreamDestroy(rig->stream);
    return 0;
}

/* Operations on a stream, run ahead of both processor and device. */
static int run_allreduce(rig_t *rig)
{
    enum { COUNT = 3000, TIMES = 20 };
    dp_options_t options = DP_OPTIONS_INIT;
    unsigned others = 1, *found;
    float *data;

    CUDA(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&data, COUNT * sizeof(float)));
    CUDA(cudaMalloc((void **)&found, sizeof(*found)));
    CUDA(zero(found, sizeof(*found)));
    CHECK(strcmp(dp_setting(rig->dp, "DEVICE"), "cuda") == 0, "the device is %s",
          dp_setting(rig->dp, "DEVICE"));
    options.stream = rig->stream;
    for (int k = 0; k < TIMES; k++) {
        dp_handle_t *handle;

        CUDA(DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, data, (size_t)COUNT,
                       (float)(k + rig->rank)));
        DP(rig,
           dp_allreduce(dp_world(rig->dp), "data", data, data, COUNT, DP_F32, &options, &handle));
        DP(rig, dp_stream_wait(handle, rig->stream, -1.0));
        dp_release(handle);
        CUDA(DP_LAUNCH(count_others, 1, THREADS, 0, rig->stream, (const float *)data, (size_t)COUNT,
                       (float)(k * rig->size + rig->size * (rig->size - 1) / 2), found));
    }
    CUDA(cudaMemcpyAsync(&others, found, sizeof(others), cudaMemcpyDeviceToHost, rig->stream));
    CUDA(cudaStreamSynchronize(rig->stream));
    CHECK(others == 0, "%u elements are not the sum", others);
    DP(rig, dp_wait_all(rig->dp, -1.0));
    cudaFree(data);
    cudaFree(found);
    cudaStreamDestroy(rig->stream);
    return 0;
}

/* Rows in place, as sharded training has them: reduced and scattered, then gathered, on a stream
 * and without a copy. */
static int run_rows(rig_t *rig)
{
    enum { ROW = 3000, TIMES = 20 };
    const size_t all = (size_t)rig->size * ROW;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_stats_t stats = DP_STATS_INIT;
    float *gradients, *weights, *row, *own;
    unsigned others = 1, *found;

    CUDA(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&found, sizeof(*found)));
    CUDA(zero(found, sizeof(*found)));
    DP(rig, dp_alloc(rig->dp, all * sizeof(float), (void **)&gradients));
    DP(rig, dp_alloc(rig->dp, all * sizeof(float), (void **)&weights));
    row = gradients + (size_t)rig->rank * ROW;
    own = weights + (size_t)rig->rank * ROW;
    options.stream = rig->stream;
    options.launch_now = 1;
    for (int k = 0; k < TIMES; k++) {
        dp_handle_t *reduced, *gathered;

        CUDA(DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, gradients, all, (float)(k + rig->rank)));
        DP(rig, dp_reduce_scatter(dp_world(rig->dp), "gradients", gradients, row, ROW, DP_F32,
                                  &options, &reduced));
        DP(rig, dp_stream_wait(reduced, rig->stream, -1.0));
        dp_release(reduced);
        CUDA(DP_LAUNCH(count_others, 1, THREADS, 0, rig->stream, (const float *)row, (size_t)ROW,
                       (float)(k * rig->size + rig->size * (rig->size - 1) / 2), found));
        CUDA(DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, own, (size_t)ROW,
                       (float)(k + 10 * rig->rank)));
        DP(rig, dp_allgather(dp_world(rig->dp), "weights", own, weights, ROW, DP_F32, &options,
                             &gathered));
        DP(rig, dp_stream_wait(gathered, rig->stream, -1.0));
        dp_release(gathered);
        for (int r = 0; r < rig->size; r++)
            CUDA(DP_LAUNCH(count_others, 1, THREADS, 0, rig->stream,
                           (const float *)weights + (size_t)r * ROW, (size_t)ROW,
                           (float)(k + 10 * r), found));
    }
    CUDA(cudaMemcpyAsync(&others, found, sizeof(others), cudaMemcpyDeviceToHost, rig->stream));
    CUDA(cudaStreamSynchronize(rig->stream));
    CHECK(others == 0, "%u elements are not the sum, or of another rank", others);
    DP(rig, dp_wait_all(rig->dp, -1.0));
    DP(rig, dp_stats_get(rig->dp, &stats));
    CHECK(stats.bytes_packed == 0, "%llu bytes were copied",
          (unsigned long long)stats.bytes_packed);
    DP(rig, dp_free(rig->dp, gradients));
    DP(rig, dp_free(rig->dp, weights));
    cudaFree(found);
    cudaStreamDestroy(rig->stream);
    return 0;
}

/* Steps without a wait, one of which overflows on one rank. The ranks' orders differ where they
 * may. Marked for the timeline, which changes nothing: the outer span has the waits in it. */
static int run_steps(rig_t *rig)
{
    enum { BAD = 3 };
    const int turn = strcmp(dp_setting(rig->dp, "ORDER"), "program") == 0 ? 0 : rig->rank;
    double squares = 0.0, wanted = 0.0;
    void *none;
    log_t log;

    if (open_rig(rig, 1000.0, 0.0) != 0) return 1;
    for (int s = 0; s < STEPS; s++) {
        dp_stream_span_begin(rig->dp, "step", rig->stream);
        dp_stream_span_begin(rig->dp, "backward", rig->stream);
        for (int i = 0; i < TENSORS; i++) {
            const float factor = s == BAD && i == 2 && rig->rank == 0 ? INFINITY : 1.0f;

            DP(rig, backward(rig, (i + turn) % TENSORS, s, factor));
        }
        dp_stream_span_end(rig->dp, rig->stream);
        /* An error that nobody has asked for is none of the library's, which leaves none behind. */
        CHECK(s != 1 || cudaMalloc(&none, SIZE_MAX / 2) != cudaSuccess, "so much memory");
        DP(rig, dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result));
        if (s == 1) (void)cudaGetLastError();
        CHECK(cudaPeekAtLastError() == cudaSuccess, "step %d: %s", s,
              cudaGetErrorString(cudaGetLastError()));
        optimize(rig, s);
        if (s != STEPS - 1) dp_stream_span_end(rig->dp, rig->stream); /* the last stays open */
        if (s != BAD) continue;
        if (read_log(rig, &log) != 0) return 1; /* the only look in between */
        CHECK(log.skips == TENSORS && log.steps == BAD * TENSORS, "%u skips, %u steps", log.skips,
              log.steps);
        CHECK(isinf(log.norm) && log.clip == 0.0f, "norm %g, clip %g", (double)log.norm,
              (double)log.clip);
    }
    if (read_log(rig, &log) != 0) return 1;
    CHECK(log.skips == TENSORS && log.steps == (STEPS - 1) * TENSORS, "%u skips, %u steps",
          log.skips, log.steps);
    for (int i = 0; i < TENSORS; i++)
        squares += (double)counts[i] * pow((double)average_of(rig, i, STEPS - 1), 2.0);
    wanted = sqrt(squares);
    CHECK(fabs((double)log.norm - wanted) < 1e-6 * wanted, "norm %g, not %g", (double)log.norm,
          wanted);
    CHECK(fabsf(log.clip - (float)(1000.0 / wanted)) < 1e-6f, "clip %g", (double)log.clip);
    close_rig(rig);
    return 0;
}

/* The two ways to synchronise take turns, and calls in the wrong order lose nothing. */
static int run_mixed(rig_t *rig)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    log_t log;

    if (open_rig(rig, 0.0, 0.0) != 0) return 1;
    CHECK(dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result) == DP_ERR_ORDER, "order");
    CHECK(dp_gradients_sync_on(rig->gradients, NULL, NULL) == DP_ERR_UNSUPPORTED, "no stream");
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < TENSORS; i++) {
            if (i == TENSORS - 1) { /* too early: refused, and again with all of them */
                CHECK(dp_gradients_sync_on(rig->gradients, rig->stream, NULL) == DP_ERR_ORDER,
                      "a tensor is missing");
                optimize(rig, s);
            }
            DP(rig, backward(rig, i, s, 1.0f));
        }
        if (s % 2 == 0) {
            DP(rig, dp_gradients_sync(rig->gradients, &found));
            continue;
        }
        DP(rig, dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result));
        optimize(rig, s);
    }
    if (read_log(rig, &log) != 0) return 1;
    CHECK(log.steps == STEPS / 2 * TENSORS && log.skips == STEPS * TENSORS, "%u steps, %u skips",
          log.steps, log.skips);
    CHECK(found.norm > 0.0 && fabs((double)log.norm - found.norm * STEPS / (STEPS - 1)) < 1e-3,
          "norm %g after %g", (double)log.norm, found.norm); /* sums begin anew either way */
    CHECK(log.clip == 1.0f, "clip %g", (double)log.clip);
    close_rig(rig);
    return 0;
}

/* With a loss scale, which follows from a sync that nobody waited for. */
static int run_scaled(rig_t *rig)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    float scale = 1024.0f;
    log_t log;

    if (open_rig(rig, 0.0, (double)scale) != 0) return 1;
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < TENSORS; i++)
            DP(rig, backward(rig, i, s, s < 2 && rig->rank == 0 ? INFINITY : scale));
        if (s == STEPS - 1) break;
        DP(rig, dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result));
        optimize(rig, s);
        if (s < 2) scale /= 2.0f;
    }
    DP(rig, dp_gradients_sync(rig->gradients, &found));
    CHECK(found.loss_scale == 256.0, "the loss scale is %g", found.loss_scale);
    if (read_log(rig, &log) != 0) return 1;
    CHECK(log.skips == 2 * TENSORS && log.steps == (STEPS - 3) * TENSORS, "%u skips, %u steps",
          log.skips, log.steps);
    close_rig(rig);
    return 0;
}

/* Under DP_CHECK_DATA: weights that one rank alone has changed are found before the next optimizer,
 * by either way to synchronise, and are good again once they are the same. */
static int run_check(rig_t *rig)
{
    enum { ALTERED = 2 };
    dp_gradient_t *tensor = &rig->tensors[ALTERED];
    log_t log;

    if (open_rig(rig, 0.0, 0.0) != 0) return 1;
    for (int s = 0; s < STEPS; s++) {
        const int is_on_stream = s % 2 == 0, is_altered = s == 2 || s == 3;
        const float value = is_altered && rig->rank == 1 ? 7.0f : 5.0f;
        dp_status_t status;

        CUDA(DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, (float *)tensor->weight, tensor->count,
                       value));
        for (int i = 0; i < TENSORS; i++)
            DP(rig, backward(rig, i, s, 1.0f));
        status = is_on_stream ? dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result)
                              : dp_gradients_sync(rig->gradients, NULL);
        CHECK(status == (is_altered ? DP_ERR_CHECK : DP_OK), "step %d: %s", s,
              dp_status_string(status));
        if (is_on_stream) optimize(rig, s);
        if (!is_altered) continue;
        CHECK(strstr(dp_error_text(rig->dp), "weights of layer.2 differ") != NULL, "%s",
              dp_error_text(rig->dp));
        CHECK(strstr(dp_error_text(rig->dp), "on rank 1") != NULL, "%s", dp_error_text(rig->dp));
    }
    if (read_log(rig, &log) != 0) return 1;
    CHECK(log.steps == 2 * TENSORS && log.skips == TENSORS, "%u steps, %u skips", log.steps,
          log.skips);
    close_rig(rig);
    return 0;
}

static void *abort_soon(void *argument)
{
    usleep(20000);
    dp_abort(((rig_t *)argument)->dp, "on purpose");
    return NULL;
}

/* Waits for what ends only with the abort, then lets the stream go on. A thread of its own, as the
 * program's may wait for a launch, which waits for the device, and that for the stream. */
typedef struct opener {
    rig_t *rig;
    dp_handle_t *never;
    dp_status_t status;
} opener_t;

static void *open_after_abort(void *argument)
{
    opener_t *opener = (opener_t *)argument;

    opener->status = dp_wait(opener->never, -1.0, NULL);
    __atomic_store_n(opener->rig->gate, 1u, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Data that a program reduces beside its gradients, and the stream waits for before the sync: the
 * word that this leaves there answers for it too. */
enum { ROWS = 700 };

static void send_rows(rig_t *rig, float *rows, int step)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;

    options.reduce = DP_AVERAGE;
    options.stream = rig->stream;
    DP_LAUNCH(fill, 1, THREADS, 0, rig->stream, rows, (size_t)ROWS,
              (float)((rig->rank + 1) * (step + 1)));
    if (dp_allreduce(dp_world(rig->dp), "rows", rows, rows, ROWS, DP_F32, &options, &handle) !=
        DP_OK)
        return;
    (void)dp_stream_wait(handle, rig->stream, -1.0);
    dp_release(handle);
}

/* The last rank aborts in the last step: before its gradients, among them, before the sync, in it,
 * behind it, or before the sync but behind rows that are under way (5). All go on as if nothing
 * was; steps that were under way are skipped with the last. */
static int run_abort(rig_t *rig, int stage)
{
    const int is_culprit = rig->rank == rig->size - 1;
    const size_t row_bytes = ROWS * sizeof(float);
    const unsigned users = TENSORS + (stage == 5); /* optimizers of a step */
    opener_t opener = {rig, NULL, DP_OK};
    float *rows, *row_weight;
    pthread_t thread, opens;
    dp_handle_t *so_far;
    char name[32];
    log_t log;

    if (open_rig(rig, 0.0, 0.0) != 0) return 1;
    CUDA(cudaMalloc((void **)&rows, row_bytes));
    CUDA(cudaMalloc((void **)&row_weight, row_bytes));
    CUDA(zero(row_weight, row_bytes));
    /* This rank alone submits it, so it ends once this rank has given up. */
    snprintf(name, sizeof(name), "never %d", rig->rank);
    DP(rig, dp_barrier(dp_world(rig->dp), name, NULL, &opener.never));
    CHECK(pthread_create(&opens, NULL, open_after_abort, &opener) == 0, "no thread");
    for (int s = 0; s < STEPS; s++) {
        const int is_last = s == STEPS - 1, aborts = is_culprit && is_last;

        if (is_last && stage >= 3) { /* the averages are under way until the abort is known */
            cudaStreamSynchronize(rig->stream);
            /* A rank that is late would lose the step before as well. */
            DP(rig, dp_barrier(dp_world(rig->dp), "all have come so far", NULL, &so_far));
            DP(rig, dp_wait(so_far, -1.0, NULL));
            DP_LAUNCH(pass, 1, 1, 0, rig->stream, rig->gate);
        }
        if (aborts && stage == 0) dp_abort(rig->dp, "on purpose");
        for (int i = 0; i < TENSORS; i++) {
            if (aborts && stage == 1 && i == TENSORS / 2) dp_abort(rig->dp, "on purpose");
            (void)backward(rig, i, s, 1.0f);
        }
        if (aborts && stage == 2) dp_abort(rig->dp, "on purpose");
        if (stage == 5) send_rows(rig, rows, s);
        if (aborts && stage == 5) dp_abort(rig->dp, "on purpose");
        if (aborts && stage == 3 && pthread_create(&thread, NULL, abort_soon, rig) != 0) abort();
        (void)dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result);
        if (aborts && stage == 4) dp_abort(rig->dp, "on purpose");
        optimize(rig, s);
        if (stage == 5) {
            DP_LAUNCH(descend, 1, THREADS, 0, rig->stream, row_weight, rows, (size_t)ROWS,
                      (float)((rig->size + 1) * (s + 1)) / 2.0f, rig->result.skip,
                      rig->result.clip_coef, rig->result.norm, rig->log);
        }
        if (aborts && stage == 3) pthread_join(thread, NULL);
    }
    while (dp_error_text(rig->dp)[0] == '\0') /* any thread may ask, at any time */
        usleep(1000);
    pthread_join(opens, NULL);
    CHECK(opener.status == DP_ERR_ABORTED, "%s", dp_error_text(rig->dp));
    if (read_log(rig, &log) != 0) return 1;
    CHECK(log.steps + log.skips == STEPS * users, "%u steps, %u skips", log.steps, log.skips);
    if (stage != 2) CHECK(log.skips >= users, "no step was skipped");
    if (stage >= 3) CHECK(log.skips == users, "%u skips", log.skips);
    cudaFree(rows);
    cudaFree(row_weight);
    close_rig(rig);
    return 0;
}

/* For dprun --inject: whoever is left finds no half-reduced gradient either. */
static int run_loop(rig_t *rig, int steps)
{
    dp_status_t status = DP_OK;
    log_t log;

    if (open_rig(rig, 0.0, 0.0) != 0) return 1;
    for (int s = 0; s < steps && status == DP_OK; s++) {
        dp_step_begin(rig->dp, (uint64_t)s);
        for (int i = 0; i < TENSORS; i++)
            (void)backward(rig, i, s, 1.0f);
        status = dp_gradients_sync_on(rig->gradients, rig->stream, &rig->result);
        optimize(rig, s);
        if (s % 4 == 3) cudaStreamSynchronize(rig->stream);
        dp_step_end(rig->dp);
    }
    if (read_log(rig, &log) != 0) return 1;
    printf("rank %d: %u steps, %u skips, %u half-reduced\n", rig->rank, log.steps / TENSORS,
           log.skips / TENSORS, log.half_reduced);
    fflush(stdout);
    close_rig(rig);
    return status != DP_OK;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const int number = argc > 2 ? atoi(argv[2]) : 0;
    const int aborts = strcmp(what, "abort") == 0;
    dp_status_t status;
    int devices = 0, failed;
    rig_t rig = {};

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    if (dp_init(NULL, &rig.dp) != DP_OK) return 1;
    rig.rank = dp_rank(rig.dp);
    rig.size = dp_size(rig.dp);
    failed = strcmp(what, "allreduce") == 0 ? run_allreduce(&rig)
             : strcmp(what, "rows") == 0    ? run_rows(&rig)
             : strcmp(what, "shards") == 0  ? run_shards(rig.dp, number, 0.0)
             : strcmp(what, "scales") == 0  ? run_shards(rig.dp, number, 1024.0)
             : strcmp(what, "free") == 0    ? run_free(&rig)
             : strcmp(what, "steps") == 0   ? run_steps(&rig)
             : strcmp(what, "mixed") == 0   ? run_mixed(&rig)
             : strcmp(what, "scaled") == 0  ? run_scaled(&rig)
             : strcmp(what, "check") == 0   ? run_check(&rig)
             : aborts                       ? run_abort(&rig, number)
             : strcmp(what, "loop") == 0    ? run_loop(&rig, number)
                                            : 2;
    if (failed == 2)
        fprintf(
            stderr,
            "ranks_cuda: allreduce, rows, shards STAGE, scales STAGE, free, steps, mixed, scaled, "
            "check, abort 0-5, loop N\n");
    status = dp_finalize(rig.dp);
    if (status != (aborts ? DP_ERR_ABORTED : DP_OK)) {
        fprintf(stderr, "ranks_cuda: dp_finalize: %s\n", dp_status_string(status));
        return 1;
    }
    return failed;
}
