/*
 * cuda_runtime_internal.h - what the files of the CUDA runtime's double share.
 *
 * cuda_runtime.cc is faults, streams and events, cuda_device.cc memory, devices and the driver.
 */
#ifndef DP_TESTS_CUDA_DOUBLE_INTERNAL_H
#define DP_TESTS_CUDA_DOUBLE_INTERNAL_H

#include <cuda_runtime.h>
#include <stdint.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tests/gpu/double/cuda_runtime.h"

#define DEVICES_MAX 16

typedef struct event_state {
    uint64_t recorded, reached; /* records so far, and the last one its stream passed */
    double reached_ms;
    int device;
} event_state_t;

struct CUevent_st {
    std::shared_ptr<event_state_t> state;
    unsigned flags;
};

struct CUstream_st {
    int device;
    bool is_blocking; /* takes turns with the legacy default stream */
    std::deque<std::function<void()>> queue;
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
    int devices;
    bool is_active[DEVICES_MAX];
    std::map<uintptr_t, allocation_t> allocations;
    std::set<cudaStream_t> streams;
    CUstream_st *defaults[DEVICES_MAX][2]; /* legacy, per thread (one for all threads) */
    size_t events, calls;
    const char *fail_call;
    int fail_nth;
    cudaError_t fail_error, broken;
    unsigned jitter;
} runtime_t;

extern runtime_t &rt;
extern __thread int current; /* -1: the thread has no context */
extern __thread cudaError_t last_error;

typedef std::unique_lock<std::mutex> guard_t;

/* All of these with the lock held. */

/* What a call answers before it does anything. */
cudaError_t fault_locked(const char *call);
int device_now(void);
CUstream_st *stream_of(cudaStream_t handle);
void push(CUstream_st *stream, std::function<void()> item);
cudaError_t await(guard_t &guard, CUstream_st *stream); /* until it has done all it was given */
void await_defaults(guard_t &guard, int device); /* until its default streams have, or dropped it */

#define FAULT()                                                                                    \
    do {                                                                                           \
        const cudaError_t fault = fault_locked(__func__);                                          \
                                                                                                   \
        if (fault != cudaSuccess) return fault;                                                    \
    } while (0)

#endif
