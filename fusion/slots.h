/*
 * slots.h - the ring of fused buffers, in memory the engine can reduce in.
 *
 * All of it is allocated up front, so that a launch that every rank carries out cannot fail on one
 * for want of memory; pages that are never used cost address space only. Slots are taken in turn
 * and are free again at a point in a stream. Launch thread only.
 */
#ifndef DP_FUSION_SLOTS_H
#define DP_FUSION_SLOTS_H

#include "runtime/engine/engine.h"

typedef struct dp_fused_buffer {
    void *memory;
    dp_event_t *packed;   /* recorded on the pack stream: filled */
    dp_event_t *reduced;  /* on the engine stream: holds the result */
    dp_event_t *released; /* on the last stream that uses it */
} dp_fused_buffer_t;

typedef struct dp_fused_buffers {
    dp_device_t *device;        /* borrowed */
    dp_engine_t *engine;        /* borrowed */
    dp_fused_buffer_t *buffers; /* [count] */
    size_t count, next;
    size_t used; /* of them, in turn */
} dp_fused_buffers_t;

/* On failure nothing stays allocated. Both are borrowed until fini. */
dp_status_t dp_fused_buffers_init(dp_fused_buffers_t *buffers, dp_device_t *device,
                                  dp_engine_t *engine, size_t count, size_t bytes);

/* The next slot, waiting until it is released. */
dp_status_t dp_fused_buffers_acquire(dp_fused_buffers_t *buffers, dp_fused_buffer_t **out);

/* After all work on the slots is done. Zeroed or half-built is fine. */
void dp_fused_buffers_fini(dp_fused_buffers_t *buffers);

#endif
