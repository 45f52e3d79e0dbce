/*
 * fused_buffers.c - the ring of fused buffers, in memory the engine can reduce in. fused_buffers.h
 * has the picture, the callers and their thread.
 */
#include "fusion/fused_buffers.h"

#include <stdlib.h>
#include <string.h>

static dp_status_t fused_buffer_init(dp_fused_buffers_t *buffers, dp_fused_buffer_t *buffer,
                                     size_t bytes)
{
    const dp_device_ops_t *device = buffers->device->ops;
    dp_status_t status = buffers->engine->ops->alloc(buffers->engine, bytes, &buffer->memory);

    if (status == DP_OK) status = device->event_create(buffers->device, &buffer->packed);
    if (status == DP_OK) status = device->event_create(buffers->device, &buffer->reduced);
    if (status == DP_OK) status = device->event_create(buffers->device, &buffer->released);
    return status;
}

dp_status_t dp_fused_buffers_init(dp_fused_buffers_t *buffers, dp_device_t *device,
                                  dp_engine_t *engine, size_t count, size_t bytes)
{
    dp_status_t status = DP_OK;

    *buffers = (dp_fused_buffers_t){.device = device, .engine = engine};
    buffers->buffers = calloc(count, sizeof(*buffers->buffers));
    if (buffers->buffers == NULL) return DP_ERR_NO_MEMORY;
    buffers->count = count;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        status = fused_buffer_init(buffers, &buffers->buffers[i], bytes);
    }
    if (status != DP_OK) dp_fused_buffers_fini(buffers);
    return status;
}

dp_status_t dp_fused_buffers_acquire(dp_fused_buffers_t *buffers, dp_fused_buffer_t **out)
{
    const dp_device_ops_t *device = buffers->device->ops;
    size_t at = buffers->next;
    dp_status_t status;

    DP_ASSERT(buffers->count > 0);
    /* Where two lanes share the ring, a buffer behind the next one may be free before it. */
    for (size_t i = 0; i < buffers->count; i++) {
        const size_t index = (buffers->next + i) % buffers->count;

        if (!device->event_done(buffers->buffers[index].released)) continue;
        at = index;
        break;
    }
    status = device->event_wait(buffers->buffers[at].released);
    if (status != DP_OK) return status;
    buffers->next = (at + 1) % buffers->count;
    *out = &buffers->buffers[at];
    return DP_OK;
}

void dp_fused_buffers_fini(dp_fused_buffers_t *buffers)
{
    for (size_t i = 0; i < buffers->count; i++) {
        dp_fused_buffer_t *buffer = &buffers->buffers[i];

        if (buffer->packed != NULL) buffers->device->ops->event_destroy(buffer->packed);
        if (buffer->reduced != NULL) buffers->device->ops->event_destroy(buffer->reduced);
        if (buffer->released != NULL) buffers->device->ops->event_destroy(buffer->released);
        if (buffer->memory != NULL) buffers->engine->ops->free(buffers->engine, buffer->memory);
    }
    free(buffers->buffers);
    memset(buffers, 0, sizeof(*buffers));
}
