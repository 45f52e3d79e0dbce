/*
 * slots.c - the ring of fused buffers, in memory the engine can reduce in.
 */
#include "fusion/slots.h"

#include <stdlib.h>
#include <string.h>

static dp_status_t slot_init(dp_fused_buffers_t *slots, dp_fused_buffer_t *slot, size_t bytes)
{
    const dp_device_ops_t *device = slots->device->ops;
    dp_status_t status = slots->engine->ops->alloc(slots->engine, bytes, &slot->memory);

    if (status == DP_OK) status = device->event_create(slots->device, &slot->packed);
    if (status == DP_OK) status = device->event_create(slots->device, &slot->reduced);
    if (status == DP_OK) status = device->event_create(slots->device, &slot->released);
    return status;
}

dp_status_t dp_fused_buffers_init(dp_fused_buffers_t *slots, dp_device_t *device,
                                  dp_engine_t *engine, size_t count, size_t bytes)
{
    dp_status_t status = DP_OK;

    *slots = (dp_fused_buffers_t){.device = device, .engine = engine};
    slots->slots = calloc(count, sizeof(*slots->slots));
    if (slots->slots == NULL) return DP_ERR_NO_MEMORY;
    slots->count = slots->used = count;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        status = slot_init(slots, &slots->slots[i], bytes);
    }
    if (status != DP_OK) dp_fused_buffers_fini(slots);
    return status;
}

dp_status_t dp_fused_buffers_acquire(dp_fused_buffers_t *slots, dp_fused_buffer_t **out)
{
    dp_fused_buffer_t *slot = &slots->slots[slots->next % slots->used];
    dp_status_t status = slots->device->ops->event_wait(slot->released);

    if (status != DP_OK) return status;
    slots->next = (slots->next + 1) % slots->used;
    *out = slot;
    return DP_OK;
}

void dp_fused_buffers_fini(dp_fused_buffers_t *slots)
{
    for (size_t i = 0; i < slots->count; i++) {
        dp_fused_buffer_t *slot = &slots->slots[i];

        if (slot->packed != NULL) slots->device->ops->event_destroy(slot->packed);
        if (slot->reduced != NULL) slots->device->ops->event_destroy(slot->reduced);
        if (slot->released != NULL) slots->device->ops->event_destroy(slot->released);
        if (slot->memory != NULL) slots->engine->ops->free(slots->engine, slot->memory);
    }
    free(slots->slots);
    memset(slots, 0, sizeof(*slots));
}
