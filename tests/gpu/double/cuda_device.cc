/*
 * cuda_device.cc - the CUDA runtime's double: memory, devices, and what it asks of the driver.
 */
#include "tests/gpu/double/cuda_runtime_internal.h"
#include "tests/gpu/double/simt.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#define MEMORY_BYTES ((size_t)8 << 30)

/* ---- Memory ---------------------------------------------------------------------------------- */

#define FILLED ((size_t)4 << 20)

static cudaError_t allocate(void **memory, size_t bytes, int device)
{
    *memory = bytes <= MEMORY_BYTES ? aligned_alloc(256, bytes / 256 * 256 + 256) : NULL;
    if (*memory == NULL) return last_error = cudaErrorMemoryAllocation;
    /* Memory is not zero by chance; of a large piece, a workspace as a rule, the ends must do. */
    memset(*memory, 0xa5, bytes < FILLED ? bytes : FILLED);
    if (bytes > FILLED) memset((char *)*memory + bytes - FILLED, 0xa5, FILLED);
    rt.allocations[(uintptr_t)*memory] = allocation_t{bytes, device};
    return cudaSuccess;
}

static cudaError_t give_back(void *memory)
{
    if (memory == NULL) return cudaSuccess;
    if (rt.allocations.erase((uintptr_t)memory) == 0) return last_error = cudaErrorInvalidValue;
    free(memory);
    return cudaSuccess;
}

/* NULL: memory the runtime knows nothing of. */
static const allocation_t *allocation_of(const void *memory)
{
    std::map<uintptr_t, allocation_t>::const_iterator it =
        rt.allocations.upper_bound((uintptr_t)memory);

    if (it == rt.allocations.begin()) return NULL;
    --it;
    return (uintptr_t)memory - it->first < it->second.bytes ? &it->second : NULL;
}

extern "C" {

int cuda_double_unmap(void *memory)
{
    guard_t guard(rt.lock);
    const std::map<uintptr_t, allocation_t>::iterator found =
        rt.allocations.find((uintptr_t)memory);

    if (found == rt.allocations.end()) return 0;
    memset(memory, 0xdd, found->second.bytes);
    rt.allocations.erase(found);
    rt.unmapped.push_back(memory); /* until the reset: who reads it finds what was written */
    return 1;
}

#undef cudaMalloc
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    guard_t guard(rt.lock);

    UNSAFE();
    return allocate(memory, bytes, device_now());
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    guard_t guard(rt.lock);

    FAULT();
    return allocate(memory, bytes, -1);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    return cudaMallocHost(memory, bytes);
}

/* Waits for the whole device, and lets nobody ask it meanwhile. Ranks that are threads have a
 * device each. */
cudaError_t cudaFree(void *memory)
{
    guard_t guard(rt.lock);
    const allocation_t *found = allocation_of(memory);

    touch();
    if (rt.captured != NULL && !is_relaxed) return last_error = cudaErrorStreamCaptureUnsupported;
    if (found != NULL) await_device(guard, found->device < 0 ? device_now() : found->device);
    return give_back(memory);
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t)
{
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    guard_t guard(rt.lock);

    push(stream_of(stream), [memory] {
        guard_t inner(rt.lock);

        give_back(memory);
    });
    return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *wanted)
{
    guard_t guard(rt.lock);

    FAULT();
    if (wanted->location.type != cudaMemLocationTypeDevice || wanted->location.id >= rt.devices)
        return last_error = cudaErrorInvalidValue;
    *pool = (cudaMemPool_t) new int(wanted->location.id);
    rt.pools++;
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    guard_t guard(rt.lock);

    touch();
    delete (int *)pool;
    rt.pools--;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, enum cudaMemPoolAttr, void *)
{
    guard_t guard(rt.lock);

    FAULT();
    return cudaSuccess;
}

/* Memory of a pool is there for other pieces of the same stream at once, and never waits. */
#undef cudaMallocFromPoolAsync
cudaError_t cudaMallocFromPoolAsync(void **memory, size_t bytes, cudaMemPool_t pool, cudaStream_t)
{
    guard_t guard(rt.lock);

    FAULT();
    return allocate(memory, bytes, *(const int *)pool);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    guard_t guard(rt.lock);
    const allocation_t *found = allocation_of(memory);

    FAULT();
    memset(attributes, 0, sizeof(*attributes));
    attributes->device = found == NULL ? -2 : found->device < 0 ? device_now() : found->device;
    attributes->type = found == NULL       ? cudaMemoryTypeUnregistered
                       : found->device < 0 ? cudaMemoryTypeHost
                                           : cudaMemoryTypeDevice;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    guard_t guard(rt.lock);

    FAULT();
    *unused = (size_t)6 << 30;
    *total = MEMORY_BYTES;
    return cudaSuccess;
}

/* Pageable memory is read, or written, before the call returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t handle)
{
    guard_t guard(rt.lock);
    CUstream_st *stream = stream_of(handle);
    const allocation_t *from_known = allocation_of(from), *to_known = allocation_of(to);

    FAULT();
    if (from_known == NULL && to_known != NULL) {
        std::vector<unsigned char> kept((const unsigned char *)from,
                                        (const unsigned char *)from + bytes);

        push(stream, [to, kept] { memcpy(to, kept.data(), kept.size()); });
        return cudaSuccess;
    }
    push(stream, [=] { memcpy(to, from, bytes); });
    return to_known == NULL ? await(guard, stream) : cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t status = cudaMemcpyAsync(to, from, bytes, kind, NULL);

    return status == cudaSuccess ? cudaStreamSynchronize(NULL) : status;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    guard_t guard(rt.lock);

    FAULT();
    push(stream_of(stream), [=] { memset(to, value, bytes); });
    return cudaSuccess;
}

/* On the legacy stream, behind the caller's back: other streams do not wait for it. */
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- Devices --------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    guard_t guard(rt.lock);

    *count = rt.devices;
    ASK();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    guard_t guard(rt.lock);

    ASK();
    *device = device_now();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    guard_t guard(rt.lock);

    ASK();
    if (device < 0 || device >= rt.devices) return last_error = cudaErrorInvalidDevice;
    current = device;
    rt.is_active[device] = true;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    guard_t guard(rt.lock);

    ASK();
    if (device < 0 || device >= rt.devices) return last_error = cudaErrorInvalidDevice;
    memset(properties, 0, sizeof(*properties));
    strcpy(properties->name, "double");
    properties->uuid.bytes[0] = (char)(device + 1);
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->totalGlobalMem = MEMORY_BYTES;
    properties->warpSize = 32;
    properties->sharedMemPerBlockOptin = 227 * 1024;
    properties->sharedMemPerMultiprocessor = 228 * 1024;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    guard_t guard(rt.lock);

    ASK();
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 * 1024;
        break;
    default:
        *value = 0;
        break;
    }
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *)
{
    guard_t guard(rt.lock);

    FAULT();
    memset(attributes, 0, sizeof(*attributes));
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    guard_t guard(rt.lock);

    FAULT();
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > SIMT_SHARED_MAX) return cudaErrorInvalidValue;
    simt_allow_shared(kernel, (size_t)value);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t status)
{
    return status == cudaSuccess ? "no error" : "an error of the double";
}

const char *cudaGetErrorName(cudaError_t status)
{
    switch (status) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    default:
        return "cudaErrorOfTheDouble";
    }
}

/* ---- The driver ------------------------------------------------------------------------------ */

static CUresult get_current(CUcontext *context)
{
    *context = current < 0 ? NULL : (CUcontext)(uintptr_t)(current + 1);
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice device, unsigned *flags, int *is_active)
{
    guard_t guard(rt.lock);

    *flags = 0;
    *is_active = rt.is_active[device];
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    guard_t guard(rt.lock);

    ASK();
    *function = strcmp(name, "cuCtxGetCurrent") == 0              ? (void *)get_current
                : strcmp(name, "cuDevicePrimaryCtxGetState") == 0 ? (void *)get_state
                                                                  : NULL;
    if (result != NULL) {
        *result =
            *function != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return *function != NULL ? cudaSuccess : cudaErrorSymbolNotFound;
}
}
