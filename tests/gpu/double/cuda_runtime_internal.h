/*
 * cuda_runtime_internal.h - what the files of the CUDA runtime's double share.
 *
 * cuda_runtime.cc is faults, streams and events, cuda_device.cc memory, devices and the driver.
 */
#ifndef DP_TESTS_CUDA_DOUBLE_INTERNAL_H
#define DP_TESTS_CUDA_DOUBLE_INTERNAL_H

#include <cuda_runtime.h>
#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/gpu/double/cuda_runtime.h"

#define DEVICES_MAX 32
#define CONNECTIONS_MAX 32

typedef struct event_state {
    uint64_t recorded, reached; /* records so far, and the last one its stream passed */
    double reached_ms;
    int device;
} event_state_t;

struct CUevent_st {
    std::shared_ptr<event_state_t> state;
    unsigned flags;
};

/* A queue of the hardware, which several streams share: what a stream was given begins after all
 * that any of them was given before has begun. */
typedef struct connection {
    uint64_t pushed, begun;
} connection_t;

typedef struct item {
    std::function<void()> run;
    uint64_t turn; /* in the connection */
} item_t;

struct CUstream_st {
    int device;
    bool is_blocking; /* takes turns with the legacy default stream */
    connection_t *connection;
    std::deque<item_t> queue;
    uint64_t pushed, finished;
    bool is_stopping;
    std::thread *worker;
};

typedef struct allocation {
    size_t bytes;
    int device; /* -1: pinned host memory */
} allocation_t;

typedef struct runtime {
    std::mutex lock;
    std::condition_variable change;
    int devices, connections;
    bool is_active[DEVICES_MAX];
    std::map<uintptr_t, allocation_t> allocations;
    std::vector<void *> unmapped;
    std::set<cudaStream_t> streams;
    CUstream_st *defaults[DEVICES_MAX][2]; /* legacy, per thread (one for all threads) */
    connection_t queues[DEVICES_MAX][CONNECTIONS_MAX];
    unsigned streams_made[DEVICES_MAX];
    size_t events, pools, calls;
    unsigned freeing[DEVICES_MAX]; /* calls that wait for the device, and let nobody ask it */
    cudaStream_t captured;         /* into a graph; NULL: none */
    const char *fail_call;
    int fail_nth;
    cudaError_t fail_error, broken;
    unsigned jitter;
    std::atomic<long> slow_us{0};
    double clock_ms; /* what events record; 0: the host's clock */
} runtime_t;

extern runtime_t &rt;
extern __thread int current;     /* -1: the thread has no context */
extern __thread bool is_relaxed; /* about captures of other threads */
extern __thread cudaError_t last_error;

typedef std::unique_lock<std::mutex> guard_t;

/* All of these with the lock held. */

/* The answer of a call before it works. */
cudaError_t fault_locked(const char *call);
int device_now(void);
void touch(void); /* makes a context, where the thread has none */
CUstream_st *stream_of(cudaStream_t handle);
void push(CUstream_st *stream, std::function<void()> item);
cudaError_t await(guard_t &guard, CUstream_st *stream); /* until it has done all it was given */
void await_device(guard_t &guard, int device);          /* until all of its streams have */
/* A call that asks the device waits for those that wait for it. */
void await_frees(guard_t &guard, int device);

/* Calls that only say how things are, or which device. */
#define ASK()                                                                                      \
    do {                                                                                           \
        const cudaError_t fault = fault_locked(__func__);                                          \
                                                                                                   \
        if (fault != cudaSuccess) return fault;                                                    \
    } while (0)

/* All others make a context where the thread has none. */
#define FAULT()                                                                                    \
    do {                                                                                           \
        const cudaError_t fault = fault_locked(__func__);                                          \
                                                                                                   \
        if (fault != cudaSuccess) return fault;                                                    \
        touch();                                                                                   \
    } while (0)

/* Refuses a call that a capture in another thread forbids. */
#define UNSAFE()                                                                                   \
    do {                                                                                           \
        FAULT();                                                                                   \
        if (rt.captured != NULL && !is_relaxed)                                                    \
            return last_error = cudaErrorStreamCaptureUnsupported;                                 \
    } while (0)

#endif
