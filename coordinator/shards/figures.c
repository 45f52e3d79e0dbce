/*
 * figures.c - memory for the figures of dp_shards_t (exact sums, norm, skip), on the device where
 * there is one, so that a decision can be made there.
 *
 * Called on the program's thread.
 */
#include "coordinator/api/context/device.h"
#include "coordinator/shards/shards.h"

dp_status_t dp_shards_create_figures(dp_shards_t *shards)
{
    dp_device_t *device = shards->context->device;
    void *memory[2] = {NULL, NULL};
    dp_status_t status;

    shards->figures = &shards->on_host;
    if (!device->ops->is_async) return DP_OK;
    status = device->ops->alloc(device, sizeof(dp_figures_t), &memory[0]);
    if (status == DP_OK) status = device->ops->alloc(device, sizeof(dp_figures_t), &memory[1]);
    if (status != DP_OK) {
        device->ops->free(device, memory[0]);
        return status;
    }
    shards->figures = memory[0];
    shards->row_figures = memory[1];
    return device->ops->event_create(device, &shards->decided);
}

/* A stream of the program may still write or read them. */
void dp_shards_free_figures(dp_shards_t *shards)
{
    dp_device_t *device = shards->context->device;

    if (shards->figures == NULL || !dp_shards_on_device(shards)) return;
    if (shards->decided != NULL) {
        (void)device->ops->event_wait(shards->decided);
        device->ops->event_destroy(shards->decided);
    }
    device->ops->free(device, shards->figures);
    device->ops->free(device, shards->row_figures);
}

dp_status_t dp_shards_clear_sums(dp_shards_t *shards)
{
    dp_context_t *context = shards->context;
    dp_status_t status;

    if (!dp_shards_on_device(shards)) return DP_OK;
    status = dp_context_clear(context, shards->figures->sums, sizeof(shards->figures->sums));
    if (status != DP_OK) return status;
    return dp_context_clear(context, shards->row_figures->sums, sizeof(shards->row_figures->sums));
}
