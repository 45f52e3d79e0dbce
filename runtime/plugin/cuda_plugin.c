/*
 * cuda_plugin.c - the one entry of libdp-cuda.so: a table of what is in it.
 *
 * DP_WITH_NCCL is looked at here and nowhere else. runtime/device/plugin.c finds the entry by its
 * name in dp_init().
 */
#include "runtime/device/plugin.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "kernels/cuda.h"
#include "runtime/base/build_info.h"
#include "runtime/base/driver.h"
#include "runtime/device/cuda.h"
#include "runtime/engine/emulated/emulated.h"
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

#if DP_WITH_NCCL
static dp_status_t pace(dp_stream_t *stream, uint64_t ns, dp_device_t *device)
{
    return dp_cuda_pace(ns, device->ops->stream_native(stream)) == cudaSuccess ? DP_OK
                                                                               : DP_ERR_SYSTEM;
}

static dp_status_t engine_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                 dp_device_t *device, const dp_config_t *config,
                                 const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                 dp_error_t *error)
{
    if (config->emulate_ranks > 0) {
        return dp_engine_emulated_create(bootstrap, device, config, log, trace, pace, out, error);
    }
    return dp_engine_nccl_create(bootstrap, topology, device, config, log, trace, out, error);
}
#endif

static const dp_plugin_t plugin = {
    .version = DP_PLUGIN_VERSION,
    .build = DP_VERSION_TEXT,
    .device_create = dp_device_cuda_create,
#if DP_WITH_NCCL
    .engine_create = engine_create,
#endif
    .describe = describe,
};

__attribute__((visibility("default"))) const dp_plugin_t *dp_cuda_plugin(uint32_t version)
{
    return version == DP_PLUGIN_VERSION ? &plugin : NULL;
}
