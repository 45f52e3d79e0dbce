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
#include <unistd.h>

#include "tests/gpu/double/simt.h"

/* Never destroyed: default streams may outlive main(). */
runtime_t &rt = *new runtime_t();
__thread int current = -1; /* -1: the thread has no context */
__thread bool is_relaxed;
__thread cudaError_t last_error;
static const int is_ready = [] {
    const char *wanted = getenv("DP_TEST_GPUS"); /* as the driver's double */
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    rt.devices = wanted == NULL ? 1 : atoi(wanted);
    rt.connections = connections == NULL ? 8 : atoi(connections);
    if (rt.connections < 1 || rt.connections > CONNECTIONS_MAX) rt.connections = CONNECTIONS_MAX;
    return 1;
}();

/* ---- Faults ---------------------------------------------------------------------------------- */

extern "C" void cuda_double_reset(void)
{
    guard_t guard(rt.lock);

    rt.devices = is_ready;
    rt.fail_nth = 0;
    rt.fail_call = NULL;
    rt.broken = cudaSuccess;
    rt.jitter = 0;
    rt.slow_us = 0;
    rt.clock_ms = 0.0;
    rt.calls = 0;
    memset(rt.is_active, 0, sizeof(rt.is_active));
    for (void *memory : rt.unmapped)
        free(memory);
    rt.unmapped.clear();
    rt.captured = NULL;
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

extern "C" void cuda_double_slow_queries(long us)
{
    rt.slow_us = us;
}

extern "C" void cuda_double_set_clock(double ms)
{
    guard_t guard(rt.lock);

    rt.clock_ms = ms;
}

extern "C" void cuda_double_capture(void *stream)
{
    guard_t guard(rt.lock);

    rt.captured = (cudaStream_t)stream;
}

extern "C" int cuda_double_has_context(int device)
{
    guard_t guard(rt.lock);

    return rt.is_active[device];
}

extern "C" int cuda_double_is_freeing(int device)
{
    guard_t guard(rt.lock);

    return rt.freeing[device] > 0;
}

extern "C" size_t cuda_double_live(void)
{
    guard_t guard(rt.lock);

    return rt.allocations.size() + rt.streams.size() + rt.events + rt.pools;
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

/* ---- Streams --------------------------------------------------------------------------------- */

int device_now(void)
{
    return current < 0 ? 0 : current;
}

void touch(void)
{
    current = device_now();
    rt.is_active[current] = true;
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

/* Until the item is the next of its connection to begin. */
static void await_turn(guard_t &guard, CUstream_st *stream, uint64_t turn)
{
    while (stream->connection->begun < turn && rt.broken == cudaSuccess)
        rt.change.wait(guard);
    stream->connection->begun++;
    rt.change.notify_all();
}

static void work(CUstream_st *stream)
{
    guard_t guard(rt.lock);

    for (;;) {
        item_t item;

        while (stream->queue.empty() && !stream->is_stopping)
            rt.change.wait(guard);
        if (stream->queue.empty()) return;
        item = std::move(stream->queue.front());
        stream->queue.pop_front();
        await_turn(guard, stream, item.turn);
        if (rt.broken == cudaSuccess) {
            guard.unlock();
            rest();
            item.run();
            item.run = nullptr;
            guard.lock();
        }
        stream->finished++;
        rt.change.notify_all();
    }
}

static CUstream_st *make_stream(int device, bool is_blocking)
{
    CUstream_st *stream = new CUstream_st();
    const unsigned number = rt.streams_made[device]++;

    stream->device = device;
    stream->is_blocking = is_blocking;
    stream->connection = &rt.queues[device][number % (unsigned)rt.connections];
    return stream;
}

CUstream_st *stream_of(cudaStream_t handle)
{
    const int kind = handle == cudaStreamPerThread ? 1 : 0;
    CUstream_st **stream = &rt.defaults[device_now()][kind];

    if (handle != NULL && handle != cudaStreamLegacy && handle != cudaStreamPerThread)
        return handle;
    if (*stream == NULL) *stream = make_stream(device_now(), true);
    return *stream;
}

static bool is_known(cudaStream_t handle)
{
    return handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread ||
           rt.streams.count(handle) != 0;
}

static void push_raw(CUstream_st *stream, std::function<void()> item)
{
    if (stream->worker == NULL) stream->worker = new std::thread(work, stream);
    stream->queue.push_back(item_t{std::move(item), stream->connection->pushed++});
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

/* After a failure only for the default streams, where memory is made ready: others may be stuck. */
static bool is_idle(int device)
{
    for (cudaStream_t at : rt.streams) {
        if (rt.broken == cudaSuccess && at->device == device && at->finished < at->pushed)
            return false;
    }
    for (CUstream_st *at : rt.defaults[device])
        if (at != NULL && at->finished < at->pushed) return false;
    return true;
}

void await_device(guard_t &guard, int device)
{
    rt.freeing[device]++;
    while (!is_idle(device))
        rt.change.wait(guard);
    rt.freeing[device]--;
    rt.change.notify_all();
}

void await_frees(guard_t &guard, int device)
{
    while (rt.freeing[device] > 0 && rt.broken == cudaSuccess)
        rt.change.wait(guard);
}

static cudaError_t enqueue_launch(void *stream, std::function<void()> item)
{
    guard_t guard(rt.lock);
    const cudaError_t fault = fault_locked("launch");

    if (fault != cudaSuccess) return fault;
    if (!is_known((cudaStream_t)stream)) return last_error = cudaErrorInvalidResourceHandle;
    if (stream_of((cudaStream_t)stream)->device != device_now())
        return last_error = cudaErrorInvalidResourceHandle;
    touch();
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

    UNSAFE();
    return await(guard, stream_of(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    guard_t guard(rt.lock);
    CUstream_st *stream = stream_of(handle);

    UNSAFE();
    if (stream->finished >= stream->pushed) return cudaSuccess;
    return last_error = cudaErrorNotReady;
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

    UNSAFE();
    while (!is_idle(device_now()))
        rt.change.wait(guard);
    return rt.broken;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    guard_t guard(rt.lock);

    FAULT();
    *status = rt.captured != NULL && stream == rt.captured ? cudaStreamCaptureStatusActive
                                                           : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const bool wanted = *mode == cudaStreamCaptureModeRelaxed;
    guard_t guard(rt.lock);

    ASK();
    *mode = is_relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
    is_relaxed = wanted;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    guard_t guard(rt.lock);

    FAULT();
    push(stream_of(stream), [=] { function(argument); });
    return cudaSuccess;
}

/* ---- Events ---------------------------------------------------------------------------------- */

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

static double host_clock_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
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

        state->reached_ms = rt.clock_ms > 0.0 ? rt.clock_ms : host_clock_ms();
        if (state->reached < ticket) state->reached = ticket;
        rt.change.notify_all();
    });
    return cudaSuccess;
}

/* Polls do not count as calls: their number is chance. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const long slow_us = rt.slow_us.load();

    if (slow_us > 0) usleep((useconds_t)slow_us);
    guard_t guard(rt.lock);
    const std::shared_ptr<event_state_t> state = event->state;
    const bool may_ask = rt.captured == NULL || is_relaxed;

    await_frees(guard, state->device);
    if (state->reached < state->recorded && rt.broken == cudaSuccess && may_ask) {
        touch();
        return last_error = cudaErrorNotReady;
    }
    UNSAFE();
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard_t guard(rt.lock);
    std::shared_ptr<event_state_t> state = event->state;
    const uint64_t ticket = state->recorded;

    UNSAFE();
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
        return last_error = cudaErrorNotReady;
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
