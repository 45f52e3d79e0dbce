/*
 * pipeline_internal.h - what pipeline.c, job.c and bucket.c share.
 *
 * A job is a launch being carried out: its plan, its buckets and what its items have come to. The
 * launch thread makes it and starts its buckets; each bucket ends once, on whichever thread ran its
 * last stage; whoever ends the last one gives the job back.
 */
#ifndef DP_FUSION_PIPELINE_INTERNAL_H
#define DP_FUSION_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fusion/pipeline.h"
#include "fusion/slots.h"

typedef struct dp_fusion_job dp_fusion_job_t;

/* A tensor of an item as the planner's entry `e`; parallel to job->entries. */
typedef struct dp_fusion_source {
    size_t item;
    const dp_pipeline_tensor_t *tensor; /* NULL: it makes or ends a group */
} dp_fusion_source_t;

typedef struct dp_fusion_item {
    const dp_pipeline_item_t *item;
    int wants_tally;    /* a sum or average with float tensors */
    int exponent;       /* compressed, its elements travel times 2^exponent */
    double prescale;    /* of its float tensors; folded into the next where ranks have joined */
    double postscale;   /* likewise; 1/divisor folded in for averages */
    int divisor;        /* of averages */
    size_t last_bucket; /* that has a part of it */
    /* launch thread only */
    int is_begun;  /* its first bucket was started */
    int is_issued; /* its done event was recorded */
    /* guarded by job->lock once its first bucket was started */
    size_t parts_left;
    uint64_t begin_ns; /* when the first part began to move */
    size_t count;      /* elements written to this rank's outputs */
    dp_tally_t tally;
    dp_status_t status; /* the first failure */
    const char *text;   /* of it; lives as long as the job; NULL: the check failed */
} dp_fusion_item_t;

/* One bucket under way. Written by the stage that has it; stages follow each other. */
typedef struct dp_bucket {
    dp_fusion_job_t *job;
    const dp_plan_bucket_t *plan;
    dp_fused_buffer_t *buffer; /* NULL: in place, or this rank needs none */
    dp_engine_op_t op;
    dp_engine_exchange_t exchange; /* op's, where it has one */
    uint32_t name;                 /* of its first tensor, for the timeline */
    uint64_t begin_ns;
    uint64_t pack_ns[2], unpack_ns[2]; /* on an asynchronous device: begin and end; 0: not known */
} dp_bucket_t;

struct dp_fusion_job {
    dp_pipeline_t *pipeline;
    dp_fusion_job_t *next; /* in the pool */
    dp_pipeline_launch_t *launch;
    int rank, ranks; /* of the launch's group */
    dp_plan_t plan;
    dp_plan_entry_t *entries;    /* [entry_room] */
    dp_fusion_source_t *sources; /* [entry_room] */
    size_t entry_count, entry_room;
    dp_fusion_item_t *items;
    size_t item_room;
    dp_bucket_t *buckets;
    size_t bucket_room;
    dp_engine_piece_t *pieces; /* [piece_room], as plan.pieces */
    dp_tally_t *tallies;       /* likewise */
    size_t piece_room;
    pthread_mutex_t lock;
    size_t open; /* guarded by lock: buckets not ended, and one while the launch thread is here */
};

struct dp_pipeline {
    /* set at creation */
    int rank, ranks; /* of the world */
    uint64_t spin_ns;
    size_t buffer_room;      /* bytes of a slot */
    dp_plan_limits_t limits; /* launch thread only, as is the next */
    size_t in_place_least;
    dp_device_t *device;
    dp_engine_t *engine;
    const dp_log_t *log;
    dp_trace_t *trace;
    dp_pipeline_callbacks_t callbacks;
    int (*on_setting)(void *user, dp_pipeline_settings_t *settings); /* NULL: settings stay */
    dp_stream_t *pack, *reduce, *unpack;
    dp_event_t *drained;        /* launch thread only */
    dp_fused_buffers_t buffers; /* launch thread only */
    pthread_t thread;
    int is_started;
    pthread_mutex_t lock;
    /* guarded by lock */
    dp_pipeline_launch_t *first, **last;
    dp_pipeline_launch_t *idle; /* guarded by lock: to be used again */
    dp_fusion_job_t *pool;
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
    _Atomic int is_aborted; /* set after the two above; pairs with the acquire loads */
    _Atomic int is_stopping;
    _Atomic uint32_t doorbell; /* grows with what concerns the launch thread; it sleeps on it */
    _Atomic uint32_t is_asleep;
    _Atomic uint32_t progress_threads; /* threads that will look at the queue themselves */
    pthread_mutex_t progress_lock;     /* held while a launch is taken and carried out */
    _Atomic size_t pending;
    pthread_mutex_t record_lock; /* the stages' lanes have one writer at a time */
    dp_trace_lane_t *pack_lane, *wire_lane, *unpack_lane; /* guarded by record_lock */
    uint64_t busy_until_ns;                               /* guarded by record_lock */
    uint64_t bytes_in_flight, buffers_in_use;             /* guarded by record_lock */
    uint32_t name_bytes_in_flight, name_buffers_in_use;   /* of the counters */
    _Atomic uint64_t buckets_done, bytes_packed, bytes_wire, transfer_ns;
};

static inline int dp_pipeline_is_aborted(const dp_pipeline_t *pipeline)
{
    return atomic_load_explicit(&pipeline->is_aborted, memory_order_acquire);
}

/* 1 when nothing is queued behind what the launch thread works on. */
int dp_pipeline_is_last(dp_pipeline_t *pipeline);

/* Ends the data plane: what is queued and running fails with this; the first one counts. */
void dp_pipeline_break(dp_pipeline_t *pipeline, const dp_error_t *error);

/* ---- job.c ----------------------------------------------------------------------------------- */

/* Plans a launch and gives it arrays; takes one from the pool where it can. The launch is taken on
 * DP_OK only. */
dp_status_t dp_fusion_job_create(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                                 dp_fusion_job_t **out);
void dp_fusion_job_destroy(dp_fusion_job_t *job);

/* Completes the items that have no parts: barriers and empty tensors. */
void dp_fusion_job_complete_empty(dp_fusion_job_t *job);

/* A bucket is over, op.status tells how: completes the items of which it was the last part. */
void dp_fusion_job_end_bucket(dp_fusion_job_t *job, dp_bucket_t *bucket);

/* Drops the launch thread's hold. The job may be gone afterwards. */
void dp_fusion_job_release(dp_fusion_job_t *job);

/* Fails all items of a launch that got no job, and frees it. */
void dp_fusion_launch_fail(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                           dp_status_t status, const char *text);

/* ---- bucket.c -------------------------------------------------------------------------------- */

/* Starts a bucket; it ends by dp_job_end_bucket(), perhaps before this returns. */
void dp_bucket_start(dp_bucket_t *bucket, int is_last);

#endif
