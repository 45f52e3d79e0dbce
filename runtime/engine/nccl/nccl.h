/*
 * nccl.h - the NCCL engine: collectives of engine.h on a CUDA device.
 */
#ifndef DP_ENGINE_NCCL_H
#define DP_ENGINE_NCCL_H

#include "runtime/engine/engine.h"

/*
 * Collective. The device is asynchronous, its streams are cudaStream_t (ops->stream_native), and
 * its GPU is the calling thread's current one. All arguments are borrowed until destroy; trace may
 * be NULL. DP_ERR_UNSUPPORTED: the NCCL found is older than 2.26.2, or of another major version;
 * DP_ERR_MISMATCH: ranks have different ones.
 */
dp_status_t dp_engine_nccl_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                  dp_device_t *device, const dp_config_t *config,
                                  const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                  dp_error_t *error);

/* "NCCL 2.28.9 (/usr/lib/libnccl.so.2), built with 2.28.9". */
void dp_engine_nccl_describe(char *text, size_t room);

#endif
