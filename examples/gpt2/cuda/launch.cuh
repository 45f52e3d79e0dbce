/*
 * launch.cuh - how the trainer's kernels are launched: on a device, or, compiled with DP_SIMT for
 * tests, by fibers on the CPU. Those files begin with the test's header, which gives SIMT_...
 *
 * LAUNCH(kernel, grid, block, shared bytes, stream, arguments ...) is a cudaError_t. A kernel with
 * commas in its template arguments is named by a pointer first.
 */
#ifndef GPT2_CUDA_LAUNCH_CUH
#define GPT2_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include <type_traits>

#ifdef DP_SIMT
#define LAUNCH SIMT_LAUNCH
#define DYNAMIC_SHARED SIMT_DYNAMIC_SHARED
#else
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                           \
    launch_kernel(kernel, grid, block, shared, (cudaStream_t)(stream), __VA_ARGS__)

/* As kernel<<<>>>(), and returns what became of this very launch: cudaGetLastError() would name
 * what the thread left behind before, a "not ready" of somebody's query for one. */
template <typename... P>
static inline cudaError_t launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                        cudaStream_t stream, std::common_type_t<P>... all)
{
    void *arguments[] = {(void *)&all...};

    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

/* Aligned as asynchronous copies and swizzled tiles want it. */
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(128) unsigned char dynamic_shared[];                               \
    type *name = (type *)(void *)dynamic_shared
#endif

#define DEVICE_INLINE static __device__ __forceinline__
#define BOTH_INLINE static __host__ __device__ __forceinline__

#endif
