/*
 * pipeline_internal.h - the state of a pipeline, and the lower half of it: launches and failure
 * (launches.c).
 *
 * The files of fusion/ that work on it, each calling only those to its left:
 *
 *   launches.c, slots.c <-- job.c <-- bucket_op.c, bucket_stages.c, bucket_async.c <-- bucket.c
 *       <-- pipeline.c
 *
 * Threads: submitters fill the queue; one thread at a time, the holder of progress_lock, runs
 * launches (the launch thread, or a waiting thread in its place); the streams' threads run stages;
 * anybody may abort.
 */
#ifndef DP_FUSION_PIPELINE_INTERNAL_H
#define DP_FUSION_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fusion/pipeline.h"
#include "fusion/slots.h"

typedef struct dp_fusion_job dp_fusion_job_t;

struct dp_pipeline {
    /* set at creation */
    int rank, ranks; /* of the world */
    uint64_t spin_ns;
    dp_device_t *device;
    dp_engine_t *engine;
    const dp_log_t *log;
    dp_trace_t *trace;
    dp_pipeline_callbacks_t callbacks;
    dp_stream_t *pack, *reduce, *unpack;
    pthread_t thread;
    int is_started;
    uint32_t name_bytes_in_flight, name_buffers_in_use; /* of the timeline's counters */

    /* guarded by progress_lock, which is held while a launch is taken from the queue and run */
    pthread_mutex_t progress_lock;
    dp_plan_limits_t limits;
    dp_fused_buffers_t buffers;
    dp_event_t *drained;

    /* guarded by lock */
    pthread_mutex_t lock;
    dp_pipeline_launch_t *first, **last; /* the queue */
    dp_pipeline_launch_t *idle;          /* to be used again */
    dp_fusion_job_t *pool;               /* likewise */
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
    _Atomic int is_aborted; /* stored after the two above; loads of it acquire them */

    /* how the launch thread is woken: see dp_pipeline_ring_doorbell() */
    _Atomic uint32_t doorbell; /* grows when the launch thread has something to look at; a futex */
    _Atomic uint32_t is_asleep;
    _Atomic uint32_t progress_threads; /* threads that will run the queue themselves */
    _Atomic int is_stopping;
    _Atomic size_t pending; /* launches submitted and not finished */

    /* guarded by record_lock: a lane of the timeline has one writer at a time */
    pthread_mutex_t record_lock;
    dp_trace_lane_t *pack_lane, *wire_lane, *unpack_lane;
    uint64_t busy_until_ns;
    uint64_t bytes_in_flight, buffers_in_use;

    _Atomic uint64_t buckets_done, bytes_packed, bytes_wire, transfer_ns; /* statistics */
};

/* Acquires abort_status and abort_text, which do not change once this is 1. */
static inline int dp_pipeline_is_aborted(const dp_pipeline_t *pipeline)
{
    return atomic_load_explicit(&pipeline->is_aborted, memory_order_acquire);
}

/* Makes launches in advance, so that the first ones need no memory. */
dp_status_t dp_pipeline_preallocate_launches(dp_pipeline_t *pipeline);
/* The oldest launch of the queue, or NULL. progress_lock is held. */
dp_pipeline_launch_t *dp_pipeline_take_launch(dp_pipeline_t *pipeline);
/* progress_follows: the caller is about to run the queue, the launch thread need not wake. */
void dp_pipeline_ring_doorbell(dp_pipeline_t *pipeline, int progress_follows);

/* 1 when nothing is queued behind the launch that is being run. */
int dp_pipeline_is_last(dp_pipeline_t *pipeline);

/* Ends the data plane: what is queued and running fails with this; the first one counts. */
void dp_pipeline_break(dp_pipeline_t *pipeline, const dp_error_t *error);

#endif
