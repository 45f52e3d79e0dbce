/*
 * pipeline_internal.h - the state of a pipeline, and the lower half of it: launches, queues and
 * failure (launches.c).
 *
 * The files of fusion/ that work on it, each calling only those to its left:
 *
 *   launches.c, fused_buffers.c <-- lane_streams.c, job.c
 *       <-- bucket_stages.c, bucket_async.c <-- bucket.c <-- runner.c <-- pipeline.c
 *
 * Threads: submitters fill the queues; of each queue one thread at a time, the holder of its
 * progress_lock, runs launches (the launch thread, or a waiting thread in its place); the streams'
 * threads run stages; anybody may abort.
 */
#ifndef DP_FUSION_PIPELINE_INTERNAL_H
#define DP_FUSION_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fusion/pipeline.h"
#include "fusion/fused_buffers.h"

typedef struct dp_fusion_job dp_fusion_job_t;

/* Whether the launch thread has to wake for a launch. */
typedef enum dp_queue_wake {
    DP_QUEUE_WAKE,
    DP_QUEUE_PROGRESS_LIKELY, /* not if it rests: a waiting thread will probably come before */
    DP_QUEUE_PROGRESS_FOLLOWS /* no: a thread is about to run the queue */
} dp_queue_wake_t;

/* Launches in their order, and who runs them. */
typedef struct dp_launch_queue {
    dp_pipeline_t *pipeline;
    const char *thread_name;
    pthread_t thread;
    _Atomic int is_started; /* stored after the thread: dp_pipeline_stats() asks for its clock */

    /* guarded by progress_lock, which is held while a launch is taken from the queue and run */
    pthread_mutex_t progress_lock;
    dp_fused_buffers_t buffers;
    dp_event_t *drained;

    /* guarded by the pipeline's lock */
    dp_pipeline_launch_t *first, **last;
    size_t queued; /* launches from first to last */

    /* how the launch thread is woken: see dp_launch_queue_ring_doorbell() */
    _Atomic uint32_t doorbell; /* grows when the launch thread has something to look at; a futex */
    _Atomic uint32_t is_asleep;
    _Atomic uint32_t is_resting;       /* it wakes by itself soon */
    _Atomic uint32_t is_awaited;       /* a waiting thread will probably run what is queued */
    _Atomic uint32_t progress_threads; /* threads that will run the queue themselves */
    _Atomic int is_stopping;
    _Atomic size_t pending; /* launches submitted and not finished */
} dp_launch_queue_t;

/* The streams that buckets of one lane go through. Of other lanes than the main one all is NULL
 * until some group opens its own. */
typedef struct dp_lane_streams {
    dp_launch_queue_t *queue;            /* that its launches come through */
    dp_stream_t *pack, *reduce, *unpack; /* no unpack in the gather lane: nothing is left to do */
    /* guarded by the pipeline's record_lock: a track of the timeline has one writer at a time */
    dp_trace_track_t *pack_track, *wire_track, *unpack_track;
} dp_lane_streams_t;

struct dp_pipeline {
    /* set at creation */
    int rank, ranks; /* of the world */
    uint64_t spin_ns;
    dp_device_t *device;
    dp_engine_t *engine;
    const dp_log_t *log;
    dp_trace_t *trace;
    dp_pipeline_callbacks_t callbacks;
    dp_plan_limits_t limits;
    size_t buffer_count;                                /* of each ring of fused buffers */
    uint32_t name_bytes_in_flight, name_buffers_in_use; /* of the timeline's counters */

    dp_launch_queue_t queues[DP_LANE_COUNT]; /* the gather lane's not on an asynchronous device */
    dp_lane_streams_t lanes[DP_LANE_COUNT];
    dp_pipeline_group_t world; /* its gather lane; nothing else of it is used */

    pthread_mutex_t opening; /* of ordered lanes, one at a time */

    /* guarded by lock */
    pthread_mutex_t lock;
    dp_pipeline_launch_t *idle; /* to be used again */
    dp_fusion_job_t *pool;      /* likewise */
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
    _Atomic int is_aborted; /* stored after the two above; loads of it acquire them */

    /* guarded by record_lock */
    pthread_mutex_t record_lock;
    uint64_t busy_until_ns;
    uint64_t bytes_in_flight, buffers_in_use;

    _Atomic uint64_t buckets_done, bytes_packed, bytes_wire, transfer_ns; /* statistics */
};

/* Acquires abort_status and abort_text, which do not change once this is 1. */
static inline int dp_pipeline_is_aborted(const dp_pipeline_t *pipeline)
{
    return atomic_load_explicit(&pipeline->is_aborted, memory_order_acquire);
}

/* ---- launches.c ----------------------------------------------------------------------------- */

/* Makes launches in advance, so that the first ones need no memory. */
dp_status_t dp_pipeline_preallocate_launches(dp_pipeline_t *pipeline);
/* A launch is over, or its part in one lane is. */
void dp_pipeline_launch_end(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch);

void dp_launch_queue_init(dp_launch_queue_t *queue, dp_pipeline_t *pipeline, const char *name);
void dp_launch_queue_fini(dp_launch_queue_t *queue);
void dp_launch_queue_add(dp_launch_queue_t *queue, dp_pipeline_launch_t *launch,
                         int progress_follows);
/* The oldest launch of the queue, or NULL. progress_lock is held. */
dp_pipeline_launch_t *dp_launch_queue_take(dp_launch_queue_t *queue);
/* The same without taking it. *is_next: no launch before it is still running. */
const dp_pipeline_launch_t *dp_launch_queue_peek(dp_launch_queue_t *queue, int *is_next);
void dp_launch_queue_ring_doorbell(dp_launch_queue_t *queue, dp_queue_wake_t wake);
/* 1 when nothing is queued behind the launch that is being run. */
int dp_launch_queue_is_empty(dp_launch_queue_t *queue);

/* Ends the data plane: what is queued and running fails with this; the first one counts. */
void dp_pipeline_break(dp_pipeline_t *pipeline, const dp_error_t *error);

/* ---- lane_streams.c ------------------------------------------------------------------------- */

/* Makes a lane's streams, and of the main lane the fused buffers. On failure nothing stays. */
dp_status_t dp_lane_open(dp_pipeline_t *pipeline, dp_lane_t lane);
/* Makes the queue's fused buffers, unless they are there. progress_lock is held. */
dp_status_t dp_launch_queue_make_buffers(dp_launch_queue_t *queue);

/* Bytes of a fused buffer of a lane, which is the most that one bucket has; equal on all ranks. */
size_t dp_lane_buffer_bytes(const dp_pipeline_t *pipeline, dp_lane_t lane);
/* Once its queue is not served any more; parts may be missing. */
void dp_lane_close(dp_pipeline_t *pipeline, dp_lane_t lane);
/* Prepares the engine for the gather lane of this launch's group; on an asynchronous device makes
 * the streams too. If that fails, it breaks the data plane. Called by the thread that runs launches
 * of the main lane. */
dp_status_t dp_lane_open_for(dp_pipeline_t *pipeline, const dp_pipeline_launch_t *launch);
/* The gather lane cannot be made, which ends the data plane. */
void dp_lane_break(dp_pipeline_t *pipeline, dp_status_t status);

/* ---- runner.c ------------------------------------------------------------------------------- */

/* Starts a queue's launch thread, which runs its launches until it is stopped. */
dp_status_t dp_launch_queue_start(dp_launch_queue_t *queue);
/* Runs what is still queued, and joins the thread. Nothing if it was not started. */
void dp_launch_queue_stop(dp_launch_queue_t *queue);

#endif
