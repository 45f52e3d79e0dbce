/*
 * simt.h - runs CUDA kernels on a CPU: for tests on machines without a GPU.
 *
 * A .cu file compiled by the host's C++ compiler with DP_SIMT has this before its first line; its
 * launches are SIMT_LAUNCH. Threads of a block are fibers of one operating system thread, switched
 * at barriers, shuffles and mma; blocks run one after the other. So kernels run as written, index
 * arithmetic, fragment layouts and all. Which fiber goes first is chosen anew for every launch: a
 * missing barrier gives wrong numbers in some order. Shared memory begins as NaN for every block,
 * and copies in flight land as early or as late as they may, by the same choice. A barrier that not
 * all threads reach, a block that waits for itself, an access outside of shared memory and a copy
 * that is never waited for end the program with words. Nothing here is fast.
 */
#ifndef DP_TESTS_SIMT_H
#define DP_TESTS_SIMT_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline

/* Which thread runs; dim3-like, as in CUDA. */
struct simt_index {
    unsigned x, y, z;
};
/* __thread: no initialisation on first use, which the undefined-behaviour sanitizer takes for a
 * null pointer. initial-exec: kernels ask for these all the time, and a shared library would call a
 * function for each; they are small enough for the room that a program keeps for such. */
#define SIMT_THREAD __thread __attribute__((tls_model("initial-exec")))
extern SIMT_THREAD simt_index threadIdx, blockIdx;
extern SIMT_THREAD dim3 blockDim, gridDim;

/* Which launch it is: the kernel, whose limits count, and where it stands, for messages. */
typedef struct simt_site {
    const void *kernel;
    const char *name, *file;
    int line;
} simt_site_t;

/* Queues a launch on a stream of the runtime's double; runs it at once where there is none. One
 * that sm_90 would refuse is refused, and the reason written to stderr. */
cudaError_t simt_launch(const simt_site_t &site, dim3 grid, dim3 block, size_t shared_bytes,
                        void *stream, std::function<void()> body);
/* More than 48 KiB of dynamic shared memory must be allowed to a kernel first. */
#define SIMT_SHARED_MAX ((size_t)227 * 1024)
void simt_allow_shared(const void *kernel, size_t bytes);
template <typename... P> static inline const void *simt_address(void (*kernel)(P...))
{
    return (const void *)kernel;
}
/* A call of a kernel with its arguments as they are now. */
template <typename... P>
static inline std::function<void()> simt_bind(void (*kernel)(P...), std::common_type_t<P>... all)
{
    return [=] { kernel(all...); };
}
/* Stands for cudaLaunchKernel(): it returns the outcome of this launch. */
#define SIMT_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
    simt_launch(simt_site_t{simt_address(kernel), #kernel, __FILE__, __LINE__}, dim3(grid),        \
                dim3(block), (shared), (void *)(stream), simt_bind(kernel, __VA_ARGS__))
/* Runs a grid in the calling thread. */
void simt_run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body);
/* How a stream takes a launch; NULL: at once. Set by the runtime's double. */
extern cudaError_t (*simt_enqueue)(void *stream, std::function<void()> work);
/* 0: fibers in ascending order, 1: descending, else shuffled by this number, with one warp of each
 * block behind the others. */
extern unsigned simt_order;

/* Which blocks of a grid run; NULL: all. */
extern bool (*simt_wants)(const simt_index &block);
/* The launch that runs in this thread. */
extern SIMT_THREAD simt_site_t simt_running;

void *simt_dynamic_shared(void);
#define SIMT_DYNAMIC_SHARED(type, name) type *name = (type *)simt_dynamic_shared()
unsigned long long simt_global_ns(void);

void simt_barrier(void);               /* of the block */
void simt_warp_barrier(unsigned mask); /* of the warp's threads in mask */
/* Every thread of the warp in mask gives `bytes` (<= 64) and sees what lane gave. */
void simt_exchange(unsigned mask, const void *give, void *take, size_t bytes, unsigned lane);
/* The same, seeing what all 32 lanes gave: take is [32][bytes]. */
void simt_exchange_all(const void *give, void *take, size_t bytes);
unsigned simt_lane(void);

/* The products of tensor cores, for examples/gpt2/cuda/mma.cuh. All 32 threads of a warp call. */
void simt_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void simt_mma_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void simt_ldmatrix(uint32_t (&out)[4], const void *row, bool is_transposed);
/* Times that ldmatrix had to read a bank again, in all threads since the program began. */
unsigned long long simt_bank_conflicts(void);

/* cp.async: `bytes` of the thread's to, of which `taken` come from memory and the rest is 0. */
void simt_async_copy(void *to, const void *from, size_t bytes, size_t taken);
void simt_async_commit(void);
void simt_async_wait(size_t left);
/* Ends the program unless the aligned bytes lie in the block's dynamic shared memory. */
void simt_check_shared(const void *at, size_t bytes);

static inline void __syncthreads(void)
{
    simt_barrier();
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    simt_warp_barrier(mask);
}

template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane)
{
    T result;

    simt_exchange(mask, &value, &result, sizeof(T), (unsigned)lane % 32);
    return result;
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta)
{
    const unsigned from = simt_lane() + delta;

    return __shfl_sync(mask, value, (int)(from < 32 ? from : simt_lane()));
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta)
{
    return __shfl_sync(mask, value,
                       (int)(simt_lane() >= delta ? simt_lane() - delta : simt_lane()));
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return __shfl_sync(mask, value, (int)(simt_lane() ^ (unsigned)bits));
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned all[32], ballot = 0, own = predicate != 0;

    (void)mask;
    simt_exchange_all(&own, all, sizeof(own));
    for (unsigned i = 0; i < 32; i++)
        ballot |= all[i] << i;
    return ballot;
}

static inline unsigned __float_as_uint(float value)
{
    unsigned bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

/* Streams of the double run on several threads, so atomics are real ones. */
template <typename T> static inline T atomicAdd(T *to, T value)
{
    T old, sum;

    __atomic_load(to, &old, __ATOMIC_SEQ_CST);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(to, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

template <typename T> static inline T atomicMax(T *to, T value)
{
    T old;

    __atomic_load(to, &old, __ATOMIC_SEQ_CST);
    while (old < value && !__atomic_compare_exchange(to, &old, &value, false, __ATOMIC_SEQ_CST,
                                                     __ATOMIC_SEQ_CST)) {
    }
    return old;
}

template <typename T> static inline T atomicExch(T *to, T value)
{
    T old;

    __atomic_exchange(to, &value, &old, __ATOMIC_SEQ_CST);
    return old;
}

static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}
static inline void __threadfence_system(void)
{
}
static inline void __nanosleep(unsigned)
{
}
template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}
/* glibc has functions of these names already */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
#endif
