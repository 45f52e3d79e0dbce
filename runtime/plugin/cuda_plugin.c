/*
 * cuda_plugin.c - the one entry of libdp-cuda.so: a table of what is in it.
 *
 * DP_WITH_NCCL is looked at here and nowhere else. runtime/device/plugin.c finds the entry by its
 * name in dp_init().
 */
#include "runtime/device/plugin.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "runtime/base/build_info.h"
#include "runtime/base/driver.h"
#include "runtime/device/cuda.h"
#if DP_WITH_NCCL
#include "runtime/engine/nccl/nccl.h"
#endif

const dp_plugin_t *dp_cuda_plugin(uint32_t version);

static void describe(char *text, size_t room)
{
    cudaError_t (*known)(int *) = cudaRuntimeGetVersion;
    char nccl[256] = "without NCCL";
    int version = 0;

    if (cudaRuntimeGetVersion(&version) != cudaSuccess) version = 0;
#if DP_WITH_NCCL
    dp_engine_nccl_describe(nccl, sizeof(nccl));
#endif
    snprintf(text, room, "CUDA %d.%d (%s), %s", version / 1000, version % 1000 / 10,
             dp_library_path(&known), nccl);
}

static const dp_plugin_t plugin = {
    .version = DP_PLUGIN_VERSION,
    .build = DP_VERSION_TEXT,
    .device_create = dp_device_cuda_create,
#if DP_WITH_NCCL
    .engine_create = dp_engine_nccl_create,
#endif
    .describe = describe,
};

__attribute__((visibility("default"))) const dp_plugin_t *dp_cuda_plugin(uint32_t version)
{
    return version == DP_PLUGIN_VERSION ? &plugin : NULL;
}
