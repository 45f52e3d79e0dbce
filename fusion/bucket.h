/*
 * bucket.h - one bucket, from its plan to its end.
 *
 * bucket_stages.c says what the engine is asked for and copies on both sides of its operation, or
 * bucket_async.c has the device copy; bucket.c queues all that on the streams. `index` is a piece
 * of the bucket throughout.
 *
 * runner.c calls dp_bucket_start() on the thread that runs the launch; the functions that copy run
 * on the threads of the streams.
 */
#ifndef DP_FUSION_BUCKET_H
#define DP_FUSION_BUCKET_H

#include "fusion/job.h"

static inline const dp_plan_piece_t *dp_bucket_piece(const dp_bucket_t *bucket, size_t index)
{
    return &bucket->job->plan.pieces[bucket->plan->piece_begin + index];
}

static inline const dp_plan_entry_t *dp_bucket_entry(const dp_bucket_t *bucket, size_t index)
{
    return &bucket->job->entries[dp_bucket_piece(bucket, index)->entry];
}

static inline const dp_pipeline_tensor_t *dp_bucket_tensor(const dp_bucket_t *bucket, size_t index)
{
    return bucket->job->sources[dp_bucket_piece(bucket, index)->entry].tensor;
}

static inline dp_fusion_item_t *dp_bucket_item(const dp_bucket_t *bucket, size_t index)
{
    return &bucket->job->items[bucket->job->sources[dp_bucket_piece(bucket, index)->entry].item];
}

static inline int dp_bucket_engine_compresses(const dp_bucket_t *bucket)
{
    return bucket->job->pipeline->engine->ops->compresses;
}

static inline const dp_device_ops_t *dp_bucket_device(const dp_bucket_t *bucket)
{
    return bucket->job->pipeline->device->ops;
}

/* ---- bucket_stages.c ------------------------------------------------------------------------ */

/* 1: the elements in its fused buffer are of another type than the tensors'. */
int dp_bucket_is_cast(const dp_bucket_t *bucket);

/* 1: a reduce_scatter that leaves this rank's row in the fused buffer, where unpack finds it. */
int dp_bucket_keeps_row(const dp_bucket_t *bucket);

/* 1: the norm, the largest magnitude and so on of its results are wanted. */
int dp_bucket_wants_tally(const dp_bucket_t *bucket);

/* 1: its scales are applied by the casts around the engine, which sees factors of 1. */
int dp_bucket_folds_scales(const dp_bucket_t *bucket);

/* 1: this rank has to fill a fused buffer for it. */
int dp_bucket_needs_buffer(const dp_bucket_t *bucket);

/* Where a piece is read from and written to in the program's memory, NULL where this rank gives or
 * wants nothing; and where it lies in the fused buffer. */
const unsigned char *dp_bucket_user_in(const dp_bucket_t *bucket, size_t index);
unsigned char *dp_bucket_user_out(const dp_bucket_t *bucket, size_t index);
unsigned char *dp_bucket_buffer_at(const dp_bucket_t *bucket, size_t index, size_t row);

/* Fills in op, its pieces and its exchange. */
void dp_bucket_fill_op(dp_bucket_t *bucket);

/* The timeline's counters, when a bucket starts and when it ends. */
void dp_bucket_count_in_flight(dp_bucket_t *bucket, int starts);

/* Stages, for dp_device_ops_t.call(); the argument is the bucket. */
void dp_bucket_pack(void *bucket);
void dp_bucket_unpack(void *bucket); /* nothing, unless the engine left results in the buffer */
void dp_bucket_end(void *bucket);    /* the last one: the bucket may be gone when it returns */
void dp_bucket_unpack_and_end(void *bucket);

/* How many rows the fused buffer has. */
size_t dp_bucket_rows(const dp_bucket_t *bucket);
/* 1: the engine's result of a piece has to be copied, scaled or measured. */
int dp_bucket_needs_unpack(const dp_bucket_t *bucket, size_t index);
double dp_bucket_pack_scale(const dp_bucket_t *bucket, size_t index);
double dp_bucket_unpack_scale(const dp_bucket_t *bucket, size_t index);

/* After an abort the abort's reason replaces the operation's status, because the engine then
 * reports only a consequence. */
void dp_bucket_final_status(dp_bucket_t *bucket);

/* ---- bucket_async.c ------------------------------------------------------------------------- */

/* Pack and unpack as work of a device's stream. */
dp_status_t dp_bucket_queue_pack(dp_bucket_t *bucket, dp_stream_t *stream);
dp_status_t dp_bucket_queue_unpack(dp_bucket_t *bucket, dp_stream_t *stream);

/* ---- bucket.c ------------------------------------------------------------------------------- */

/* Starts a bucket; is_last: of its launch. It ends by dp_fusion_job_end_bucket(), perhaps before
 * this returns. progress_lock is held. */
void dp_bucket_start(dp_bucket_t *bucket, int is_last);

#endif
