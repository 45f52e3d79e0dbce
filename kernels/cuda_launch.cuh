/*
 * cuda_launch.cuh - how kernels are launched: on a device, or, compiled with DP_SIMT for tests, by
 * fibers on the CPU. Those files begin with the test's header, which gives SIMT_...
 *
 * DP_LAUNCH(kernel, grid, block, shared bytes, stream, arguments ...) is a cudaError_t. A kernel
 * with commas in its template arguments is named by a pointer first.
 */
#ifndef DP_KERNELS_CUDA_LAUNCH_CUH
#define DP_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#ifdef DP_SIMT
#define DP_LAUNCH SIMT_LAUNCH
#define dp_global_ns() simt_global_ns()
#else
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    (kernel<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__), cudaGetLastError())

/* The device's clock, ns. */
static __device__ __forceinline__ unsigned long long dp_global_ns(void)
{
    unsigned long long now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#endif

#endif
