/*
 * cuda.h - a CUDA device as the ops table of device.h. Part of the plug-in, never of libdp.
 */
#ifndef DP_DEVICE_CUDA_H
#define DP_DEVICE_CUDA_H

#include "runtime/device/plugin.h"

/* See dp_plugin_t.device_create. */
dp_status_t dp_device_cuda_create(const dp_device_options_t *options, const dp_log_t *log,
                                  dp_device_t **out, dp_error_t *error);

/* The ordinal of such a device, as the CUDA runtime counts. */
int dp_device_cuda_ordinal(const dp_device_t *device);

#endif
