/*
 * cuda_runtime.cc - the CUDA runtime's calls over host memory: streams are threads, events
 * counters.
 *
 * One lock for everything: what matters is that every order a device may choose can happen here,
 * not that it is fast. It must not know what the kernels do.
 */
#include "tests/gpu/double/cuda_runtime_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/double/simt.h"

/* Never destroyed: default streams may outlive main(). */
runtime_t &rt = *new runtime_t();
__thread int current = -1; /* -1: the thread has no context */
__thread cudaError_t last_error;
static const int is_ready = [] {
    const char *wanted = getenv("DP_TEST_GPUS"); /* as the driver's double */

    rt.devices = wanted == NULL ? 1 : atoi(wanted);
    return 1;
}();

/* ---- Faults -----------------------------------------------------------------------------------
 */

extern "C" void cuda_double_reset(void)
{
    guard_t guard(rt.lock);

    rt.devices = is_ready;
    rt.fail_nth = 0;
    rt.fail_call = NULL;
    rt.broken = cudaSuccess;
    rt.jitter = 0;
    rt.calls = 0;
    memset(rt.is_active, 0, sizeof(rt.is_active));
    current = -1;
    last_error = cudaSuccess;
}

extern "C" void cuda_double_set_devices(int count)
{
    guard_t guard(rt.lock);

    rt.devices = count;
}

extern "C" void cuda_double_fail(const char *call, int nth, int error)
{
    guard_t guard(rt.lock);

    rt.fail_call = call;
    rt.fail_nth = nth;
    rt.fail_error = (cudaError_t)error;
}

extern "C" void cuda_double_break(int error)
{
    guard_t guard(rt.lock);

    rt.broken = (cudaError_t)error;
    rt.change.notify_all();
}

extern "C" void cuda_double_set_jitter(unsigned seed)
{
    guard_t guard(rt.lock);

    rt.jitter = seed;
}

extern "C" size_t cuda_double_live(void)
{
    guard_t guard(rt.lock);

    return rt.allocations.size() + rt.streams.size() + rt.events;
}

extern "C" size_t cuda_double_calls(void)
{
    guard_t guard(rt.lock);

    return rt.calls;
}

cudaError_t fault_locked(const char *call)
{
    if (rt.devices == 0) return last_error = cudaErrorNoDevice;
    if (rt.broken != cudaSuccess) return last_error = rt.broken;
    rt.calls++;
    if (rt.fail_nth == 0) return cudaSuccess;
    if (rt.fail_call != NULL && strcmp(rt.fail_call, call) != 0) return cudaSuccess;
    return --rt.fail_nth == 0 ? last_error = rt.fail_error : cudaSuccess;
}

/* ---- Streams ----------------------------------------------------------------------------------
 */

int device_now(void)
{
    return current < 0 ? 0 : current;
}

static void rest(void)
{
    static thread_local uint64_t random;
    struct timespec pause = {0, 0};

    if (rt.jitter == 0) return; /* read without the lock, set while nothing runs */
    if (random == 0) random = rt.jitter * 0x9e3779b97f4a7c15u + (uint64_t)(uintptr_t)&random;
    random = random * 6364136223846793005u + 1442695040888963407u;
    if ((random >> 60) < 12) return;
    pause.tv_nsec = (long)((random >> 33) % 400000);
    nanosleep(&pause, NULL);
}

static void work(CUstream_st *stream)
{
    guard_t guard(rt.lock);

    for (;;) {
        std::function<void()> item;

        while (stream->queue.empty() && !stream->is_stopping)
            rt.change.wait(guard);
        if (stream->queue.empty()) return;
        item = std::move(stream->queue.front());
        stream->queue.pop_front();
        if (rt.broken == cudaSuccess) {
            guard.unlock();
            rest();
            item();
            item = nullptr;
            guard.lock();
        }
        stream->finished++;
        rt.change.notify_all();
    }
}

static CUstream_st *make_stream(int device, bool is_blocking)
{
    CUstream_st *stream = new CUstream_st();

    stream->device = device;
    stream->is_blocking = is_blocking;
    return stream;
}

CUstream_st *stream_of(cudaStream_t handle)
{
    const int kind = handle == cudaStreamPerThread ? 1 : 0;
    CUstream_st **slot = &rt.defaults[device_now()][kind];

    if (handle != NULL && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
        return handle;
    if (*slot == NULL) *slot = make_stream(device_now(), true);
    return *slot;
}

static bool is_known(cudaStream_t handle)
{
    return handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread ||
           rt.streams.count(handle) != 0;
}

static void push_raw(CUstream_st *stream, std::function<void()> item)
{
    if (stream->worker == NULL) stream->worker = new std::thread(work, stream);
    stream->queue.push_back(std::move(item));
    stream->pushed++;
    rt.change.notify_all();
}

static void push_wait(CUstream_st *stream, CUstream_st *other)
{
    const uint64_t until = other->pushed;

    if (other == stream || other->finished >= until) return;
    push_raw(stream, [other, until] {
        guard_t guard(rt.lock);

        while (other->finished < until && rt.broken == cudaSuccess)
            rt.change.wait(guard);
    });
}

void push(CUstream_st *stream, std::function<void()> item)
{
    CUstream_st *legacy = rt.defaults[stream->device][0];

    if (stream == legacy) {
        for (cudaStream_t other : rt.streams)
            if (other->is_blocking && other->device == stream->device) push_wait(stream, other);
    } else if (stream->is_blocking && legacy != NULL) {
        push_wait(stream, legacy);
    }
    push_raw(stream, std::move(item));
}

cudaError_t await(guard_t &guard, CUstream_st *stream)
{
    const uint64_t until = stream->pushed;

    while (stream->finished < until && rt.broken == cudaSuccess)
        rt.change.wait(guard);
    return rt.broken;
}

void await_defaults(guard_t &guard, int device)
{
    for (CUstream_st *at : rt.defaults[device]) {
        const uint64_t until = at == NULL ? 0 : at->pushed;

        while (at != NULL && at->finished < until)
            rt.change.wait(guard);
    }
}

static cudaError_t enqueue_launch(void *stream, std::function<void()> item)
{
    guard_t guard(rt.lock);
    const cudaError_t fault = fault_locked("launch");

    if (fault != cudaSuccess) return fault;
    if (!is_known((cudaStream_t)stream)) return last_error = cudaErrorInvalidResourceHandle;
    if (stream_of((cudaStream_t)stream)->device != device_now())
        return last_error = cudaErrorInvalidResourceHandle;
    push(stream_of((cudaStream_t)stream), std::move(item));
    return cudaSuccess;
}

static const int is_hooked = [] {
    simt_enqueue = enqueue_launch;
    return 1;
}();

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int)
{
    guard_t guard(rt.lock);

    FAULT();
    *out = make_stream(device_now(), (flags & cudaStreamNonBlocking) == 0);
    rt.streams.insert(*out);
    return is_hooked ? cudaSuccess : cudaErrorUnknown;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard_t guard(rt.lock);

    if (rt.streams.erase(stream) == 0) return last_error = cudaErrorInvalidResourceHandle;
    stream->is_stopping = true;
    rt.change.notify_all();
    guard.unlock();
    if (stream->worker != NULL) {
        stream->worker->join();
        delete stream->worker;
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard_t guard(rt.lock);

    FAULT();
    return await(guard, stream_of(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    guard_t guard(rt.lock);
    CUstream_st *stream = stream_of(handle);

    FAULT();
    return stream->finished >= stream->pushed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    guard_t guard(rt.lock);

    FAULT();
    if (!is_known(stream)) return last_error = cudaErrorInvalidResourceHandle;
    *device = stream_of(stream)->device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    guard_t guard(rt.lock);

    FAULT();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    guard_t guard(rt.lock);
    const std::set<cudaStream_t> streams = rt.streams;

    FAULT();
    for (cudaStream_t stream : streams) {
        if (stream->device == device_now() && rt.streams.count(stream) != 0) await(guard, stream);
    }
    for (CUstream_st *stream : rt.defaults[device_now()]) {
        if (stream != NULL) await(guard, stream);
    }
    return rt.broken;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    guard_t guard(rt.lock);

    FAULT();
    push(stream_of(stream), [=] { function(argument); });
    return cudaSuccess;
}

/* ---- Events -----------------------------------------------------------------------------------
 */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    guard_t guard(rt.lock);

    FAULT();
    *out = new CUevent_st();
    (*out)->state = std::make_shared<event_state_t>();
    (*out)->state->device = device_now();
    (*out)->flags = flags;
    rt.events++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard_t guard(rt.lock);

    delete event;
    rt.events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    guard_t guard(rt.lock);
    CUstream_st *stream = stream_of(handle);
    std::shared_ptr<event_state_t> state = event->state;
    uint64_t ticket;

    FAULT();
    if (stream->device != state->device) return last_error = cudaErrorInvalidResourceHandle;
    ticket = ++state->recorded;
    push(stream, [state, ticket] {
        guard_t inner(rt.lock);
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        state->reached_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        if (state->reached < ticket) state->reached = ticket;
        rt.change.notify_all();
    });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard_t guard(rt.lock);

    FAULT();
    return event->state->reached >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard_t guard(rt.lock);
    std::shared_ptr<event_state_t> state = event->state;
    const uint64_t ticket = state->recorded;

    FAULT();
    while (state->reached < ticket && rt.broken == cudaSuccess)
        rt.change.wait(guard);
    return rt.broken;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    guard_t guard(rt.lock);

    FAULT();
    if (((begin->flags | end->flags) & cudaEventDisableTiming) != 0 ||
        begin->state->recorded == 0 || end->state->recorded == 0)
        return last_error = cudaErrorInvalidResourceHandle;
    if (begin->state->reached < begin->state->recorded ||
        end->state->reached < end->state->recorded)
        return cudaErrorNotReady;
    *ms = (float)(end->state->reached_ms - begin->state->reached_ms);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
    guard_t guard(rt.lock);
    std::shared_ptr<event_state_t> state = event->state;
    const uint64_t ticket = state->recorded;

    FAULT();
    if (state->reached >= ticket) return cudaSuccess;
    push(stream_of(handle), [state, ticket] {
        guard_t inner(rt.lock);

        while (state->reached < ticket && rt.broken == cudaSuccess)
            rt.change.wait(inner);
    });
    return cudaSuccess;
}
}
