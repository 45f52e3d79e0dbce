/*
 * fused_buffers.h - the ring of fused buffers, in memory the engine can reduce in.
 *
 * All buffers of a lane are allocated together, those of the main lane at the start, so that a
 * launch that every rank runs cannot fail on one of them for want of memory; pages that are never
 * used cost address space only. Called by the thread that runs launches, under progress_lock.
 *
 * Three buffers, and three buckets under way. Each stage runs on a stream of its own; an event says
 * when the next stage may touch the buffer:
 *
 *   bucket k    buffer k mod 3   pack --packed--> reduce --reduced--> unpack --released-->
 *   bucket k+1  buffer k+1 mod 3         pack --packed--> reduce --reduced--> unpack -->
 *   bucket k+2  buffer k+2 mod 3                 pack --packed--> reduce --reduced--> unpack -->
 *   bucket k+3  buffer k mod 3   waits for the first "released", then packs
 *
 * So packing one bucket, reducing the one before and unpacking the one before that overlap, and a
 * buffer is never written while an earlier bucket still reads it.
 */
#ifndef DP_FUSION_FUSED_BUFFERS_H
#define DP_FUSION_FUSED_BUFFERS_H

#include "runtime/engine/engine.h"

typedef struct dp_fused_buffer {
    void *memory;
    dp_event_t *packed;   /* recorded on the pack stream: the inputs are in it */
    dp_event_t *reduced;  /* recorded on the engine's stream: the result is in it */
    dp_event_t *released; /* recorded on the last stream that uses it: it may be packed again */
} dp_fused_buffer_t;

typedef struct dp_fused_buffers {
    dp_device_t *device;        /* borrowed */
    dp_engine_t *engine;        /* borrowed */
    dp_fused_buffer_t *buffers; /* [count] */
    size_t count, next;
} dp_fused_buffers_t;

/* On failure nothing stays allocated. Both are borrowed until fini. */
dp_status_t dp_fused_buffers_init(dp_fused_buffers_t *buffers, dp_device_t *device,
                                  dp_engine_t *engine, size_t count, size_t bytes);

/* The next free buffer of the ring. Blocks while no bucket has released its own, which needs
 * nothing but work that was queued on the streams before. Ranks may take different ones: engines
 * are told where each lies. */
dp_status_t dp_fused_buffers_acquire(dp_fused_buffers_t *buffers, dp_fused_buffer_t **out);

/* After all work on the buffers is done. Zeroed or half-built is fine. */
void dp_fused_buffers_fini(dp_fused_buffers_t *buffers);

#endif
