/*
 * device.c - the device that a context works on, and the engine that goes with it.
 *
 * All ranks use the same kind: each says in its hello which it has chosen. The choice and the
 * making run in dp_init(); clearing and checksums, on any thread of the program. It must not know
 * what is in the plug-in.
 */
#include "coordinator/api/context/device.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/build_info.h"
#include "runtime/base/driver.h"

dp_status_t dp_context_choose_device(dp_context_t *context, dp_error_t *error)
{
    const int is_asked_for = context->config.device == DP_CONFIG_DEVICE_CUDA;
    char text[DP_ERROR_TEXT_MAX / 2] = "";
    dp_status_t status;

    if (context->config.device == DP_CONFIG_DEVICE_HOST) return DP_OK;
    /* Without DP_DEVICE, a program that has loaded the CUDA driver wants the GPU. The choice
     * becomes the setting in force, which dp_setting() tells. */
    context->config.device = DP_CONFIG_DEVICE_HOST;
    if (!is_asked_for && !dp_driver_is_loaded()) return DP_OK;
    status = dp_plugin_open(&context->plugin, DP_VERSION_TEXT, text, sizeof(text));
    if (status == DP_OK) {
        context->config.device = DP_CONFIG_DEVICE_CUDA;
        dp_log_info(&context->log, "plug-in %s", text);
        return DP_OK;
    }
    context->plugin = NULL;
    if (is_asked_for) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "rank %d: DP_DEVICE is cuda, but %s",
                            context->rank, text);
    }
    dp_log_info(&context->log, "device host: %s", text);
    return DP_OK;
}

const char *dp_context_device_name(const dp_context_t *context)
{
    return context->plugin == NULL ? "host" : "cuda";
}

static dp_status_t create_plugged_device(dp_context_t *context, dp_error_t *error)
{
    const dp_topology_t *topology = &context->topology;
    const dp_device_options_t options = {.local_rank = topology->local_rank[context->rank],
                                         .local_size =
                                             topology->node_size[topology->node[context->rank]],
                                         .spin_ns = dp_config_idle_spin_ns(&context->config)};
    dp_status_t status =
        context->plugin->device_create(&options, &context->log, &context->device, error);

    if (status != DP_OK) return status;
    if (context->config.check && context->rank == 0) {
        dp_log_info(
            &context->log,
            "DP_CHECK_DATA compares weights on a GPU, and does not watch buffers in flight");
    }
    return context->plugin->engine_create(context->bootstrap, topology, context->device,
                                          &context->config, &context->log, context->trace,
                                          &context->engine, error);
}

dp_status_t dp_context_make_device(dp_context_t *context, dp_error_t *error)
{
    dp_config_t *config = &context->config;
    dp_status_t status;

    if (context->plugin != NULL) return create_plugged_device(context, error);
    status = dp_device_host_create(dp_config_idle_spin_ns(config), &context->log, &context->device);
    if (status != DP_OK) return dp_error_set(error, status, "no memory for the host device");
    return dp_engine_cpu_create(context->bootstrap, &context->topology, context->device, config,
                                &context->log, context->trace, &context->engine, error);
}

dp_status_t dp_context_clear(dp_context_t *context, void *memory, size_t bytes)
{
    dp_device_t *device = context->device;

    if (device->ops->is_async) return device->ops->clear(device, memory, bytes);
    memset(memory, 0, bytes);
    return DP_OK;
}

/* Bytes per copy to the host: so many that the cost of starting a copy does not matter. */
#define HASH_BYTES ((size_t)4 * DP_MIB)

static int is_readable(dp_device_t *device, const void *memory, size_t bytes)
{
    return !device->ops->is_async ||
           (bytes > 0 && device->ops->kind(device, memory) == DP_MEMORY_HOST);
}

dp_status_t dp_context_hash(dp_context_t *context, const void *memory, size_t bytes, uint64_t *hash)
{
    dp_device_t *device = context->device;
    const unsigned char *at = memory;
    unsigned char *copy;
    dp_status_t status = DP_OK;

    *hash = 0;
    if (is_readable(device, memory, bytes)) {
        *hash = dp_kernel_hash(memory, bytes, 0);
        return DP_OK;
    }
    copy = malloc(dp_min(bytes, HASH_BYTES) + 1);
    if (copy == NULL) return DP_ERR_NO_MEMORY;
    for (size_t done = 0, part; status == DP_OK && done < bytes; done += part) {
        part = dp_min(bytes - done, HASH_BYTES);
        status = device->ops->fetch(device, copy, at + done, part);
        if (status == DP_OK) *hash = dp_kernel_hash(copy, part, *hash);
    }
    free(copy);
    return status;
}

dp_status_t dp_context_hash_places(dp_context_t *context, const float *memory, size_t count,
                                   uint64_t first, uint64_t seed, uint64_t *hash)
{
    const size_t most = HASH_BYTES / sizeof(float);
    dp_device_t *device = context->device;
    dp_status_t status = DP_OK;
    float *copy;

    *hash = 0;
    if (is_readable(device, memory, count)) {
        *hash = dp_kernel_hash_places(memory, count, first, seed);
        return DP_OK;
    }
    copy = malloc(dp_min(count, most) * sizeof(float) + 1);
    if (copy == NULL) return DP_ERR_NO_MEMORY;
    for (size_t done = 0, part; status == DP_OK && done < count; done += part) {
        part = dp_min(count - done, most);
        status = device->ops->fetch(device, copy, memory + done, part * sizeof(float));
        if (status == DP_OK) *hash += dp_kernel_hash_places(copy, part, first + done, seed);
    }
    free(copy);
    return status;
}
