/*
 * cuda_sight.h - what profilers see of the device: names of streams, ranges around launches.
 *
 * NVTX is a header: without a profiler attached a range costs a load and a branch. Where the header
 * is not found there is nothing to see. It must not know what is launched.
 */
#ifndef DP_DEVICE_CUDA_SIGHT_H
#define DP_DEVICE_CUDA_SIGHT_H

#include <cuda_runtime_api.h>

#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

static inline void dp_cuda_name_stream(cudaStream_t stream, const char *name)
{
    nvtxNameCudaStreamA(stream, name);
}

static inline void dp_cuda_range_begin(const char *name)
{
    (void)nvtxRangePushA(name);
}

static inline void dp_cuda_range_end(void)
{
    (void)nvtxRangePop();
}
#else
static inline void dp_cuda_name_stream(cudaStream_t stream, const char *name)
{
    (void)stream;
    (void)name;
}

static inline void dp_cuda_range_begin(const char *name)
{
    (void)name;
}

static inline void dp_cuda_range_end(void)
{
}
#endif

#endif
