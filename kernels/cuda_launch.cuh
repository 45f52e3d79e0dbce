/*
 * cuda_launch.cuh - how kernels are launched: on a device, or, compiled with DP_SIMT for tests, by
 * fibers on the CPU.
 *
 * DP_LAUNCH(kernel, grid, block, shared bytes, stream, arguments ...) is a cudaError_t. A kernel
 * with commas in its template arguments is named by a pointer first.
 */
#ifndef DP_KERNELS_CUDA_LAUNCH_CUH
#define DP_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#ifdef DP_SIMT
#include "tests/gpu/double/simt.h"
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    simt_launch(dim3(grid), dim3(block), (shared), (void *)(stream), simt_bind(kernel, __VA_ARGS__))
#define DP_DYNAMIC_SHARED(type, name) type *name = (type *)simt_dynamic_shared()
#define dp_global_ns() simt_global_ns()
#else
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    (kernel<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__), cudaGetLastError())
#define DP_DYNAMIC_SHARED(type, name)                                                              \
    extern __shared__ __align__(128) unsigned char dp_dynamic_shared[];                            \
    type *name = (type *)(void *)dp_dynamic_shared

/* The device's clock, ns. */
static __device__ __forceinline__ unsigned long long dp_global_ns(void)
{
    unsigned long long now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#endif

#endif
