/*
 * bucket_async.c - pack and unpack on an asynchronous device: one cast kernel for all pieces of a
 * bucket, on a stream.
 *
 * Called by the launch thread, which queues the casts and goes on. Times and figures come back with
 * the device's stamps and tallies, before dp_bucket_end() runs. Scales are applied by the casts, so
 * that the engine only adds. Must not read or write the data itself: it is the device's.
 */
#include "fusion/bucket.h"

#define CAST_BATCH_MAX 256 /* pieces of one cast; what a device takes in one launch */

/* Pieces collected for one cast; cast_batch_flush() queues it. */
typedef struct cast_batch {
    dp_stream_t *stream;
    const dp_device_ops_t *device;
    dp_dtype_t from, to;
    dp_figures_t *figures; /* of all of them */
    dp_cast_piece_t pieces[CAST_BATCH_MAX];
    size_t count;
} cast_batch_t;

static dp_status_t cast_batch_flush(cast_batch_t *cast_batch)
{
    const dp_cast_args_t args = {.from = cast_batch->from,
                                 .to = cast_batch->to,
                                 .pieces = cast_batch->pieces,
                                 .piece_count = cast_batch->count};

    cast_batch->count = 0;
    if (args.piece_count == 0) return DP_OK;
    return cast_batch->device->cast(cast_batch->stream, &args, cast_batch->figures);
}

static dp_status_t cast_batch_add(cast_batch_t *cast_batch, const dp_cast_piece_t *piece)
{
    cast_batch->pieces[cast_batch->count++] = *piece;
    return cast_batch->count == CAST_BATCH_MAX ? cast_batch_flush(cast_batch) : DP_OK;
}

/* ---- Pack ----------------------------------------------------------------------------------- */

/* Fills in the identity in place of data: this rank has joined. Scales do not concern it: those of
 * the others are applied before it meets their data. */
static dp_status_t fill_absent(const dp_bucket_t *bucket, size_t index, dp_stream_t *stream)
{
    const size_t count = dp_bucket_piece(bucket, index)->count;
    const dp_dtype_t dtype = bucket->plan->buffer_dtype;
    dp_status_t status = DP_OK;

    if (bucket->plan->collective == DP_COLLECTIVE_ALLGATHER) {
        return dp_bucket_device(bucket)->fill(stream, DP_U8, DP_SUM,
                                              dp_bucket_buffer_at(bucket, index, 0),
                                              count * dp_dtype_bytes(dtype));
    }
    for (size_t row = 0; row < dp_bucket_rows(bucket) && status == DP_OK; row++) {
        status = dp_bucket_device(bucket)->fill(stream, dtype, bucket->plan->reduce,
                                                dp_bucket_buffer_at(bucket, index, row), count);
    }
    return status;
}

static dp_status_t cast_rows(const dp_bucket_t *bucket, size_t index, cast_batch_t *cast_batch)
{
    const dp_pipeline_tensor_t *tensor = dp_bucket_tensor(bucket, index);
    const size_t stride = tensor->count * dp_dtype_bytes(tensor->dtype);
    dp_cast_piece_t piece = {.from = dp_bucket_user_in(bucket, index),
                             .count = dp_bucket_piece(bucket, index)->count,
                             .scale = dp_bucket_pack_scale(bucket, index)};
    dp_status_t status = DP_OK;

    for (size_t row = 0; row < dp_bucket_rows(bucket) && status == DP_OK; row++) {
        piece.to = dp_bucket_buffer_at(bucket, index, row);
        status = cast_batch_add(cast_batch, &piece);
        piece.from = (const unsigned char *)piece.from + stride;
    }
    return status;
}

static dp_status_t stamp(const dp_bucket_t *bucket, dp_stream_t *stream, uint64_t *ns)
{
    return bucket->job->pipeline->trace == NULL ? DP_OK
                                                : dp_bucket_device(bucket)->stamp(stream, ns);
}

dp_status_t dp_bucket_queue_pack(dp_bucket_t *bucket, dp_stream_t *stream)
{
    cast_batch_t cast_batch = {.stream = stream, .device = dp_bucket_device(bucket)};
    dp_status_t status = stamp(bucket, stream, &bucket->pack_ns[0]);

    bucket->begin_ns = dp_now_ns();
    cast_batch.from = bucket->plan->dtype;
    cast_batch.to = bucket->plan->buffer_dtype;
    for (size_t i = 0; i < bucket->plan->piece_count && status == DP_OK; i++) {
        status = dp_bucket_item(bucket, i)->item->is_absent ? fill_absent(bucket, i, stream)
                                                            : cast_rows(bucket, i, &cast_batch);
    }
    if (status == DP_OK) status = cast_batch_flush(&cast_batch);
    if (status == DP_OK) status = stamp(bucket, stream, &bucket->pack_ns[1]);
    atomic_fetch_add_explicit(&bucket->job->pipeline->bytes_packed, bucket->plan->payload_bytes,
                              memory_order_relaxed);
    return status;
}

/* ---- Unpack --------------------------------------------------------------------------------- */

/* From here on casts count into these figures. */
static dp_status_t turn_to(cast_batch_t *cast_batch, dp_figures_t *figures)
{
    dp_status_t status = cast_batch->figures == figures ? DP_OK : cast_batch_flush(cast_batch);

    cast_batch->figures = figures;
    return status;
}

/* Queues the unpack before the engine's result is known to be good. If it fails, the skip flag
 * keeps optimizers off. */
dp_status_t dp_bucket_queue_unpack(dp_bucket_t *bucket, dp_stream_t *stream)
{
    cast_batch_t cast_batch = {.stream = stream, .device = dp_bucket_device(bucket)};
    dp_status_t status = DP_OK;
    int is_begun = 0;

    cast_batch.from = bucket->plan->buffer_dtype;
    cast_batch.to = bucket->plan->dtype;
    for (size_t i = 0; i < bucket->plan->piece_count && status == DP_OK; i++) {
        const dp_engine_piece_t *reduced;
        dp_cast_piece_t piece;

        if (!dp_bucket_needs_unpack(bucket, i)) continue;
        if (!is_begun) status = stamp(bucket, stream, &bucket->unpack_ns[0]);
        is_begun = 1;
        reduced = &bucket->op.pieces[i];
        piece = (dp_cast_piece_t){.from = reduced->out,
                                  .to = dp_bucket_user_out(bucket, i),
                                  .count = reduced->count,
                                  .scale = dp_bucket_unpack_scale(bucket, i)};
        if (dp_bucket_wants_tally(bucket)) {
            piece.tally = &bucket->job->tallies[bucket->plan->piece_begin + i];
            if (status == DP_OK) {
                status = turn_to(&cast_batch, dp_bucket_item(bucket, i)->item->figures);
            }
        }
        if (status == DP_OK) status = cast_batch_add(&cast_batch, &piece);
    }
    if (status == DP_OK) status = cast_batch_flush(&cast_batch);
    return status == DP_OK && is_begun ? stamp(bucket, stream, &bucket->unpack_ns[1]) : status;
}
