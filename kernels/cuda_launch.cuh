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
#include <stdint.h>

#include <type_traits>

#ifdef DP_SIMT
#define DP_LAUNCH SIMT_LAUNCH
#define dp_global_ns() simt_global_ns()
#define dp_store_word(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#else
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    dp_launch_kernel(kernel, grid, block, shared, (cudaStream_t)(stream), __VA_ARGS__)

/* As kernel<<<>>>(), and returns what became of this very launch: cudaGetLastError() would name,
 * and clear, an error that the program left behind in this thread before. */
template <typename... P>
static inline cudaError_t dp_launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block,
                                           size_t shared, cudaStream_t stream,
                                           std::common_type_t<P>... all)
{
    void *arguments[] = {(void *)&all...};

    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

/* The device's clock, ns. */
static __device__ __forceinline__ unsigned long long dp_global_ns(void)
{
    unsigned long long now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Into pinned memory, which threads of the processor read meanwhile. */
static __device__ __forceinline__ void dp_store_word(uint32_t *word, uint32_t value)
{
    *(volatile uint32_t *)word = value;
    __threadfence_system();
}
#endif

#endif
