/*
 * cuda.c - a CUDA device as an ops table: which GPU, its memory, the skip flag, its life.
 *
 * Created by dp_init() through the plug-in, used by every thread. Allocations are plain, never
 * managed: pages that move would make every access of a collective a fault. All kernels are loaded
 * when the device is made: CUDA would load one at its first launch, and wait for the device to be
 * idle, which it is not while a collective is in flight. It must not know engines.
 */
#include "runtime/device/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Health, and the calling thread's device ------------------------------------------------ */

static dp_status_t cuda_health(dp_device_t *self, dp_error_t *error)
{
    cuda_device_t *device = dp_cuda_of(self);
    dp_status_t status;

    pthread_mutex_lock(&device->lock);
    status = device->failure.status;
    if (status != DP_OK) *error = device->failure;
    pthread_mutex_unlock(&device->lock);
    return status;
}

static dp_status_t cuda_visit(dp_device_t *self, int *back)
{
    cuda_device_t *device = dp_cuda_of(self);

    return back == NULL ? dp_cuda_enter(device) : dp_cuda_visit(device, back);
}

static void cuda_leave(dp_device_t *self, int back)
{
    dp_cuda_leave(dp_cuda_of(self), back);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static dp_status_t cuda_clear(dp_device_t *self, void *memory, size_t bytes)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) {
        status = DP_CUDA(device, cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread));
    }
    if (status == DP_OK) status = DP_CUDA(device, cudaStreamSynchronize(cudaStreamPerThread));
    dp_cuda_leave(device, back);
    return status;
}

static dp_status_t cuda_fetch(dp_device_t *self, void *to, const void *from, size_t bytes)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) {
        status = DP_CUDA(
            device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    }
    if (status == DP_OK) status = DP_CUDA(device, cudaStreamSynchronize(cudaStreamPerThread));
    dp_cuda_leave(device, back);
    return status;
}

static void cuda_synchronize(dp_device_t *self)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;

    if (dp_cuda_visit(device, &back) == DP_OK) (void)DP_CUDA(device, cudaDeviceSynchronize());
    dp_cuda_leave(device, back);
}

static dp_status_t cuda_alloc(dp_device_t *self, size_t bytes, void **memory)
{
    cuda_device_t *device = dp_cuda_of(self);
    const size_t room = dp_max(bytes, (size_t)1);
    void *data = NULL;
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) status = DP_CUDA(device, cudaMalloc(&data, room));
    dp_cuda_leave(device, back);
    if (status == DP_OK) {
        status = cuda_clear(self, data, room);
        if (status != DP_OK) (void)cudaFree(data);
    }
    if (status == DP_OK) *memory = data;
    return status;
}

static void cuda_free(dp_device_t *self, void *memory)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;

    if (memory == NULL) return;
    (void)dp_cuda_visit(device, &back);
    (void)DP_CUDA(device, cudaFree(memory));
    dp_cuda_leave(device, back);
}

static dp_status_t cuda_pinned_alloc(dp_device_t *self, size_t bytes, void **memory)
{
    cuda_device_t *device = dp_cuda_of(self);
    void *data = NULL;
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) {
        status =
            DP_CUDA(device, cudaHostAlloc(&data, dp_max(bytes, (size_t)1), cudaHostAllocPortable));
    }
    dp_cuda_leave(device, back);
    if (status == DP_OK) *memory = data;
    return status;
}

static void cuda_pinned_free(dp_device_t *self, void *memory)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;

    if (memory == NULL) return;
    (void)dp_cuda_visit(device, &back);
    (void)DP_CUDA(device, cudaFreeHost(memory));
    dp_cuda_leave(device, back);
}

static dp_memory_kind_t cuda_kind(dp_device_t *self, const void *pointer)
{
    cuda_device_t *device = dp_cuda_of(self);
    struct cudaPointerAttributes attributes;
    cudaError_t code;
    int back;

    if (dp_cuda_visit(device, &back) != DP_OK) return DP_MEMORY_HOST;
    code = cudaPointerGetAttributes(&attributes, pointer);
    if (code != cudaSuccess) (void)cudaGetLastError();
    dp_cuda_leave(device, back);
    if (code != cudaSuccess) return DP_MEMORY_HOST;
    switch (attributes.type) {
    case cudaMemoryTypeDevice:
        return attributes.device == device->ordinal ? DP_MEMORY_DEVICE : DP_MEMORY_OTHER_DEVICE;
    case cudaMemoryTypeHost:
    case cudaMemoryTypeManaged:
        return DP_MEMORY_DEVICE;
    default:
        return DP_MEMORY_HOST;
    }
}

/* Events are made by threads of the program too. */
static dp_status_t cuda_event_create(dp_device_t *self, dp_event_t **out)
{
    cuda_device_t *device = dp_cuda_of(self);
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) status = dp_cuda_event_create(self, out);
    dp_cuda_leave(device, back);
    return status;
}

/* ---- The skip flag -------------------------------------------------------------------------- */

/* The flag lies in pinned host memory and is set by a plain store, not by work on a stream: every
 * stream may be stuck behind the very operation that is given up. Kernels read it through the
 * mapped address. */
static void cuda_abort(dp_device_t *self)
{
    cuda_device_t *device = dp_cuda_of(self);

    if (atomic_load_explicit(&device->is_unloaded, memory_order_relaxed)) return;
    __atomic_store_n(device->skip, 1u, __ATOMIC_SEQ_CST);
}

static dp_status_t cuda_decide(dp_stream_t *stream, dp_figures_t *figures, double clip_norm,
                               int is_failed)
{
    cuda_device_t *device = stream->device;
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK) {
        status = DP_CUDA(device, dp_cuda_figures_decide(figures, device->skip, clip_norm, is_failed,
                                                        stream->native));
    }
    dp_cuda_leave(device, back);
    return status;
}

static dp_status_t cuda_add_figures(dp_stream_t *stream, dp_figures_t *into, dp_figures_t *from)
{
    cuda_device_t *device = stream->device;
    int back;
    dp_status_t status = dp_cuda_visit(device, &back);

    if (status == DP_OK)
        status = DP_CUDA(device, dp_cuda_figures_merge(into, from, stream->native));
    dp_cuda_leave(device, back);
    return status;
}

static const uint32_t *cuda_skip_flag(dp_device_t *self)
{
    return dp_cuda_of(self)->skip;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static uint64_t cuda_cpu_ns(const dp_device_t *self)
{
    return dp_cuda_completion_cpu_ns((cuda_device_t *)(uintptr_t)self);
}

static const char *cuda_describe(const dp_device_t *self)
{
    return ((const cuda_device_t *)(const void *)self)->about;
}

static void cuda_destroy(dp_device_t *self)
{
    cuda_device_t *device = dp_cuda_of(self);

    dp_cuda_completion_stop(device);
    for (size_t i = 0; i < DP_ARRAY_LEN(device->bases); i++) {
        if (device->bases[i].event != NULL) (void)cudaEventDestroy(device->bases[i].event);
    }
    if (device->clock != NULL) (void)cudaStreamDestroy(device->clock);
    if (device->skip != NULL) (void)cudaFreeHost(device->skip);
    pthread_cond_destroy(&device->change);
    pthread_mutex_destroy(&device->base_lock);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static const dp_device_ops_t cuda_ops = {
    .name = "cuda",
    .is_async = 1,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_create = dp_cuda_stream_create,
    .stream_destroy = dp_cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = dp_cuda_event_destroy,
    .event_record = dp_cuda_event_record,
    .event_done = dp_cuda_event_done,
    .event_wait = dp_cuda_event_wait,
    .stream_wait = dp_cuda_stream_wait,
    .call = dp_cuda_call,
    .cpu_ns = cuda_cpu_ns,
    .destroy = cuda_destroy,
    .cast = dp_cuda_work_cast,
    .fill = dp_cuda_work_fill,
    .copy = dp_cuda_work_copy,
    .stamp = dp_cuda_stamp,
    .kind = cuda_kind,
    .clear = cuda_clear,
    .fetch = cuda_fetch,
    .pinned_alloc = cuda_pinned_alloc,
    .pinned_free = cuda_pinned_free,
    .stream_adopt = dp_cuda_stream_adopt,
    .stream_native = dp_cuda_stream_native,
    .abort = cuda_abort,
    .skip_flag = cuda_skip_flag,
    .decide = cuda_decide,
    .add_figures = cuda_add_figures,
    .health = cuda_health,
    .stream_branch = dp_cuda_stream_branch,
    .drain = dp_cuda_completion_drain,
    .synchronize = cuda_synchronize,
    .enter = cuda_visit,
    .leave = cuda_leave,
    .describe = cuda_describe,
};

int dp_device_cuda_ordinal(const dp_device_t *device)
{
    return ((const cuda_device_t *)(const void *)device)->ordinal;
}

/* Which GPU, and the driver's calls; says in words why there is none. */
static dp_status_t choose_gpu(const dp_device_options_t *options, cuda_driver_t *driver,
                              int *ordinal, int *is_ours, dp_error_t *error)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);

    if (code != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "no CUDA device: %s",
                            code == cudaSuccess ? "there are 0" : cudaGetErrorString(code));
    }
    *driver = dp_cuda_find_driver(); /* the runtime has found it by now */
    *is_ours = !dp_cuda_has_context(driver);
    *ordinal = dp_max(options->local_rank, 0) % count;
    code = *is_ours ? cudaSetDevice(*ordinal) : cudaGetDevice(ordinal);
    if (code == cudaSuccess) return DP_OK;
    (void)cudaGetLastError();
    return dp_error_set(error, DP_ERR_SYSTEM, "GPU %d of %d cannot be used: %s", *ordinal, count,
                        cudaGetErrorString(code));
}

static dp_status_t make_clock(cuda_device_t *device)
{
    dp_status_t status =
        DP_CUDA(device, cudaStreamCreateWithPriority(&device->clock, cudaStreamNonBlocking, 0));

    for (size_t i = 0; i < DP_ARRAY_LEN(device->bases) && status == DP_OK; i++) {
        status = DP_CUDA(device,
                         cudaEventCreateWithFlags(&device->bases[i].event, cudaEventBlockingSync));
    }
    return status;
}

/* Everything that can fail, once the device is chosen. */
static dp_status_t prepare_device(cuda_device_t *device)
{
    struct cudaDeviceProp properties;
    int least = 0;
    void *flag = NULL;
    dp_status_t status = DP_CUDA(device, cudaGetDeviceProperties(&properties, device->ordinal));

    if (status == DP_OK) {
        status = DP_CUDA(device, cudaDeviceGetStreamPriorityRange(&least, &device->priority));
    }
    if (status != DP_OK) return status;
    snprintf(device->about, sizeof(device->about), "%.80s, GPU %d, sm_%d%d, %zu MiB",
             properties.name, device->ordinal, properties.major, properties.minor,
             properties.totalGlobalMem / DP_MIB);
    status = DP_CUDA(device, cudaHostAlloc(&flag, sizeof(*device->skip), cudaHostAllocMapped));
    if (status != DP_OK) return status;
    device->skip = flag;
    *device->skip = 0;
    status = DP_CUDA(device, dp_cuda_kernels_preload());
    if (status == DP_OK) status = make_clock(device);
    if (status == DP_OK) status = dp_cuda_clock_start(device);
    if (status == DP_OK) status = dp_cuda_completion_start(&device->completions[0]);
    return status;
}

dp_status_t dp_device_cuda_create(const dp_device_options_t *options, const dp_log_t *log,
                                  dp_device_t **out, dp_error_t *error)
{
    cuda_driver_t driver = {NULL, NULL};
    cuda_device_t *device;
    int ordinal = -1, is_ours = 0;
    dp_status_t status = choose_gpu(options, &driver, &ordinal, &is_ours, error);

    if (status != DP_OK) return status;
    device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the device of GPU %d", ordinal);
    }
    device->base.ops = &cuda_ops;
    device->log = log;
    device->driver = driver;
    device->ordinal = ordinal;
    device->spin_ns = options->spin_ns;
    dp_cuda_completion_init(device);
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->base_lock, NULL);
    pthread_cond_init(&device->change, NULL);
    status = prepare_device(device);
    if (status != DP_OK) {
        dp_error_set(error, status, "GPU %d cannot be prepared: %s", ordinal,
                     device->failure.status != DP_OK ? device->failure.text
                                                     : dp_status_string(status));
        cuda_destroy(&device->base);
        return status;
    }
    dp_log_info(log, "device %s (%s)", device->about,
                is_ours ? "by the local rank" : "the program's choice");
    *out = &device->base;
    return DP_OK;
}
