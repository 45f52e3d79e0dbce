/*
 * cuda.c - a CUDA device: which one, its memory, the word that says `do not use this`, its life.
 *
 * Allocations are plain, never managed: pages that move would make every access of a collective a
 * fault. All kernels are loaded when the device is made; one that CUDA loads at its first launch
 * waits for the device to be idle, which a collective in flight is not. It must not know engines.
 */
#include "runtime/device/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Errors ------------------------------------------------------------------------------- */

/* After these a device does nothing more until its process ends. */
static int is_final(int code)
{
    switch ((cudaError_t)code) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNotReady:
    case cudaErrorNotSupported:
    case cudaErrorStreamCaptureUnsupported: /* of a graph that the program captures */
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
        return 0;
    default:
        return 1;
    }
}

dp_status_t dp_cuda_result(cuda_device_t *device, int code, const char *call)
{
    const int length = (int)strcspn(call, "(");
    int is_first = 0;

    if (code == cudaSuccess) return DP_OK;
    (void)cudaGetLastError(); /* told below; the program's next question is not answered with it */
    if (is_final(code)) {
        pthread_mutex_lock(&device->lock);
        is_first = device->failure.status == DP_OK;
        if (is_first) {
            dp_error_set(&device->failure, DP_ERR_SYSTEM, "GPU %d failed: %.*s: %s: %s",
                         device->ordinal, length, call, cudaGetErrorName((cudaError_t)code),
                         cudaGetErrorString((cudaError_t)code));
        }
        pthread_mutex_unlock(&device->lock);
        /* The program has left main() without dp_finalize(): CUDA is gone, maybe the word's memory
         * too, and that is no news. */
        if (code == cudaErrorCudartUnloading) {
            atomic_store_explicit(&device->is_unloaded, 1, memory_order_relaxed);
            return DP_ERR_SYSTEM;
        }
        if (is_first) device->base.ops->abort(&device->base);
    }
    if (is_first || !is_final(code)) {
        dp_log_error(device->log, "GPU %d: %.*s: %s: %s", device->ordinal, length, call,
                     cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code));
    }
    return code == cudaErrorMemoryAllocation ? DP_ERR_NO_MEMORY : DP_ERR_SYSTEM;
}

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

/* ---- Threads of the program --------------------------------------------------------------- */

static void *driver_entry(const char *name)
{
    enum cudaDriverEntryPointQueryResult result;
    void *function = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return result == cudaDriverEntryPointSuccess ? function : NULL;
}

static cuda_driver_t find_driver(void)
{
    cuda_driver_t driver = {NULL, NULL};
    void *current = driver_entry("cuCtxGetCurrent");
    void *state = driver_entry("cuDevicePrimaryCtxGetState");

    memcpy(&driver.get_current, &current, sizeof(current));
    memcpy(&driver.get_state, &state, sizeof(state));
    return driver;
}

/* 1: the calling thread works with a device already. One that does not says that it is on device 0,
 * and its next call would make a context there. */
static int has_context(const cuda_driver_t *driver)
{
    CUcontext context = NULL;

    if (driver->get_current == NULL) return 0;
    return driver->get_current(&context) == CUDA_SUCCESS && context != NULL;
}

/* 1: going back to this device makes no context there that was not. */
static int is_in_use(const cuda_driver_t *driver, int ordinal)
{
    unsigned flags = 0;
    int is_active = 0;

    if (driver->get_state == NULL) return 0;
    return driver->get_state((CUdevice)ordinal, &flags, &is_active) == CUDA_SUCCESS && is_active;
}

/* Whatever graph the program captures meanwhile, a thread of ours goes on: its work is no part of
 * the graph. */
static dp_status_t ignore_captures(cuda_device_t *device)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    return DP_CUDA(device, cudaThreadExchangeStreamCaptureMode(&mode));
}

dp_status_t dp_cuda_arrive(cuda_device_t *device)
{
    if (has_context(&device->driver)) return DP_OK;
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

/* Without a context the thread is new here. */
dp_status_t dp_cuda_enter(cuda_device_t *device)
{
    int now = -1;
    dp_status_t status;

    if (has_context(&device->driver)) {
        status = DP_CUDA(device, cudaGetDevice(&now));
        if (status != DP_OK || now == device->ordinal) return status;
    } else {
        status = ignore_captures(device);
        if (status != DP_OK) return status;
    }
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

dp_status_t dp_cuda_visit(cuda_device_t *device, int *back)
{
    int now = device->ordinal;
    dp_status_t status = dp_cuda_arrive(device);

    *back = -1;
    if (status == DP_OK) status = DP_CUDA(device, cudaGetDevice(&now));
    if (status != DP_OK || now == device->ordinal) return status;
    if (is_in_use(&device->driver, now)) *back = now;
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

void dp_cuda_leave(cuda_device_t *device, int back)
{
    if (back >= 0) (void)DP_CUDA(device, cudaSetDevice(back));
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

/* ---- Memory ------------------------------------------------------------------------------- */

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

/* ---- The word ----------------------------------------------------------------------------- */

/* The word lies in the host's memory and is written by a plain store: no stream has to come to it,
 * none could, as all of them may be behind the very operation that is given up. */
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

static const uint32_t *cuda_skip_flag(dp_device_t *self)
{
    return dp_cuda_of(self)->skip;
}

/* ---- Life --------------------------------------------------------------------------------- */

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
    .health = cuda_health,
    .settle = dp_cuda_completion_drain,
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
static dp_status_t choose(const dp_device_options_t *options, cuda_driver_t *driver, int *ordinal,
                          int *is_ours, dp_error_t *error)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);

    if (code != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "no CUDA device: %s",
                            code == cudaSuccess ? "there are 0" : cudaGetErrorString(code));
    }
    *driver = find_driver(); /* the runtime has found it by now */
    *is_ours = !has_context(driver);
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
static dp_status_t prepare(cuda_device_t *device)
{
    struct cudaDeviceProp properties;
    int least = 0;
    void *word = NULL;
    dp_status_t status = DP_CUDA(device, cudaGetDeviceProperties(&properties, device->ordinal));

    if (status == DP_OK) {
        status = DP_CUDA(device, cudaDeviceGetStreamPriorityRange(&least, &device->priority));
    }
    if (status != DP_OK) return status;
    snprintf(device->about, sizeof(device->about), "%.80s, GPU %d, sm_%d%d, %zu MiB",
             properties.name, device->ordinal, properties.major, properties.minor,
             properties.totalGlobalMem / DP_MIB);
    status = DP_CUDA(device, cudaHostAlloc(&word, sizeof(*device->skip), cudaHostAllocMapped));
    if (status != DP_OK) return status;
    device->skip = word;
    *device->skip = 0;
    status = DP_CUDA(device, dp_cuda_kernels_preload());
    if (status == DP_OK) status = make_clock(device);
    if (status == DP_OK) status = dp_cuda_clock_start(device);
    if (status == DP_OK) status = dp_cuda_completion_start(device);
    return status;
}

dp_status_t dp_device_cuda_create(const dp_device_options_t *options, const dp_log_t *log,
                                  dp_device_t **out, dp_error_t *error)
{
    cuda_driver_t driver = {NULL, NULL};
    cuda_device_t *device;
    int ordinal = -1, is_ours = 0;
    dp_status_t status = choose(options, &driver, &ordinal, &is_ours, error);

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
    device->tail = &device->head;
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->change, NULL);
    status = prepare(device);
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
