/*
 * job.h - a job: one launch being carried out, with its plan, its buckets, and what its items have
 * come to.
 *
 *   launch --> job --> bucket 0, bucket 1, ...  (dp_plan_make() decides)
 *     item 0: tensors a, b        piece of a, piece of b, piece of c
 *     item 1: tensor c            the rest of c
 *
 * The thread that runs launches makes the job and starts its buckets. Each bucket ends once, on the
 * thread that ran its last stage. An item is complete when its last piece has ended; the thread
 * that ends the last bucket gives the job back to the pool, so nobody touches a job after its own
 * dp_fusion_job_end_bucket() or dp_fusion_job_release().
 */
#ifndef DP_FUSION_JOB_H
#define DP_FUSION_JOB_H

#include "fusion/pipeline_internal.h"

/* Where entry `e` of the planner came from; parallel to job->entries. */
typedef struct dp_fusion_source {
    size_t item;
    const dp_pipeline_tensor_t *tensor; /* NULL: it makes or ends a group */
} dp_fusion_source_t;

/* The outcome of one item of the launch. Its tensors may be spread over several buckets. */
typedef struct dp_fusion_item {
    const dp_pipeline_item_t *item;
    int wants_tally;    /* a sum or average with float tensors */
    int exponent;       /* compressed, its elements travel times 2^exponent */
    double prescale;    /* of its float tensors; folded into the next where ranks have joined */
    double postscale;   /* likewise; 1/divisor folded in for averages */
    int divisor;        /* of averages */
    size_t last_bucket; /* that has a part of it */
    /* guarded by the queue's progress_lock: the thread that runs launches */
    int is_begun;  /* its first bucket was started */
    int is_issued; /* its done event was recorded */
    /* guarded by job->lock once its first bucket was started */
    size_t parts_left;
    size_t count; /* elements written to this rank's outputs */
    dp_tally_t tally;
    dp_status_t status; /* the first failure */
    const char *text;   /* of it; lives as long as the job; NULL: the check failed */
} dp_fusion_item_t;

/* One bucket under way. No lock: its stages follow each other, and only the running one writes. */
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
    /* set before the first bucket is started */
    dp_pipeline_launch_t *launch;
    dp_lane_streams_t *lane; /* that it travels in */
    int rank, ranks;         /* of the launch's group */
    uint64_t give_up_ns;     /* as in dp_engine_op_t */
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
    size_t open; /* guarded by lock: buckets not ended, and one while buckets are being started */
};

/* Plans a launch and gives it arrays; takes one from the pool where it can. The launch is taken on
 * DP_OK only. give_up_ns: as in dp_engine_op_t. */
dp_status_t dp_fusion_job_create(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                                 uint64_t give_up_ns, dp_fusion_job_t **out);
void dp_fusion_job_destroy(dp_fusion_job_t *job);

/* Completes the items that have no parts: barriers and empty tensors. */
void dp_fusion_job_complete_empty(dp_fusion_job_t *job);

/* A bucket is over, op.status tells how: completes the items of which it was the last part. */
void dp_fusion_job_end_bucket(dp_fusion_job_t *job, dp_bucket_t *bucket);

/* No further bucket will be started. The job may be gone afterwards. */
void dp_fusion_job_release(dp_fusion_job_t *job);

/* Fails all items of a launch that got no job, and frees it. */
void dp_fusion_launch_fail(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                           dp_status_t status, const char *text);

#endif
