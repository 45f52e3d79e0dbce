/*
 * cuda_runtime.cc - the CUDA runtime's calls over host memory, for tests without a GPU.
 */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t)
{
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *)
{
    memset(attributes, 0, sizeof(*attributes));
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t status)
{
    return status == cudaSuccess ? "no error" : "an error";
}
}
