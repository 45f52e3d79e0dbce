/*
 * bucket_stages.c - what the stages of a bucket do on the host device: pack copies inputs into the
 * fused buffer, unpack copies results out of it, end completes the bucket.
 *
 * Runs on the streams' threads, or inline in the thread that runs launches; a bucket is in one
 * stage at a time, so its fields need no lock. It must not know which stream it is on.
 */
#include "fusion/bucket.h"
#include "fusion/identity.h"

#include <math.h>
#include <string.h>

/* ---- Timeline and statistics ---------------------------------------------------------------- */

static void record(dp_bucket_t *bucket, dp_trace_track_t *track, dp_trace_kind_t kind,
                   uint64_t start_ns, uint64_t end_ns)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    pthread_mutex_lock(&pipeline->record_lock);
    dp_trace_record(track, (dp_trace_record_t){.kind = kind,
                                               .start_ns = start_ns,
                                               .duration_ns = end_ns - start_ns,
                                               .bucket = bucket->op.sequence,
                                               .id = (uint64_t)bucket->op.collective + 1,
                                               .bytes = bucket->plan->payload_bytes,
                                               .aux = (uint32_t)dp_min(bucket->plan->piece_count,
                                                                       DP_TRACE_AUX_MAX) &
                                                      DP_TRACE_AUX_MAX,
                                               .name = bucket->name});
    pthread_mutex_unlock(&pipeline->record_lock);
}

void dp_bucket_count_in_flight(dp_bucket_t *bucket, int starts)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t bytes = bucket->plan->payload_bytes, now_ns;
    dp_trace_track_t *track = pipeline->lanes[DP_LANE_MAIN].wire_track;

    pthread_mutex_lock(&pipeline->record_lock);
    pipeline->bytes_in_flight += starts ? bytes : -bytes;
    now_ns = dp_trace_now(track); /* under the lock: the lane's records are in the order of time */
    dp_trace_counter_at(track, pipeline->name_bytes_in_flight, pipeline->bytes_in_flight, now_ns);
    if (bucket->buffer != NULL) {
        pipeline->buffers_in_use += starts ? 1 : (uint64_t)-1;
        dp_trace_counter_at(track, pipeline->name_buffers_in_use, pipeline->buffers_in_use, now_ns);
    }
    pthread_mutex_unlock(&pipeline->record_lock);
}

/* Adds what of the span lies behind the spans counted before. record_lock is held. */
static void count_span(dp_pipeline_t *pipeline, uint64_t begin_ns, uint64_t end_ns)
{
    begin_ns = dp_max(begin_ns, pipeline->busy_until_ns);
    if (end_ns <= begin_ns) return;
    atomic_fetch_add_explicit(&pipeline->transfer_ns, end_ns - begin_ns, memory_order_relaxed);
    pipeline->busy_until_ns = end_ns;
}

/* Adds to transfer_ns the time in which at least one bucket was under way, without the time in
 * which its operation waited for other ranks to come. */
static void note_time(dp_bucket_t *bucket, uint64_t end_ns)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    const dp_engine_op_t *op = &bucket->op;

    pthread_mutex_lock(&pipeline->record_lock);
    if (op->wait_ns != 0) count_span(pipeline, bucket->begin_ns, op->begin_ns);
    count_span(pipeline, op->wait_ns != 0 ? op->begin_ns + op->wait_ns : bucket->begin_ns, end_ns);
    pthread_mutex_unlock(&pipeline->record_lock);
}

/* ---- Pack ----------------------------------------------------------------------------------- */

/* The factor of the cast into the fused buffer, and of the one back. */
double dp_bucket_pack_scale(const dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);

    if (!dp_bucket_folds_scales(bucket)) return 1.0;
    return dp_bucket_is_cast(bucket) ? ldexp(state->prescale, state->exponent) : state->prescale;
}

double dp_bucket_unpack_scale(const dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);

    if (!dp_bucket_folds_scales(bucket)) return 1.0;
    return dp_bucket_is_cast(bucket) ? ldexp(state->postscale, -state->exponent) : state->postscale;
}

size_t dp_bucket_rows(const dp_bucket_t *bucket)
{
    return bucket->plan->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)bucket->job->ranks
                                                                    : 1;
}

/* What this rank, having joined, gives instead of data. */
static void pack_absent(const dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);
    size_t count = dp_bucket_rows(bucket) * dp_bucket_piece(bucket, index)->count;
    dp_dtype_t dtype = dp_bucket_buffer_dtype(bucket);

    if (bucket->plan->collective == DP_COLLECTIVE_ALLGATHER) {
        memset(dp_bucket_buffer_at(bucket, index), 0, count * dp_dtype_bytes(dtype));
        return;
    }
    dp_identity_fill(dp_bucket_buffer_at(bucket, index), count, dtype, bucket->plan->reduce,
                     dp_bucket_is_cast(bucket) ? 1.0 : state->prescale);
}

static void pack_piece(const dp_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = dp_bucket_tensor(bucket, index);
    size_t stride = tensor->count * dp_dtype_bytes(tensor->dtype);
    dp_cast_piece_t piece = {.from = dp_bucket_user_in(bucket, index),
                             .to = dp_bucket_buffer_at(bucket, index),
                             .count = dp_bucket_piece(bucket, index)->count,
                             .scale = dp_bucket_pack_scale(bucket, index)};
    dp_cast_args_t args = {.from = tensor->dtype,
                           .to = dp_bucket_buffer_dtype(bucket),
                           .pieces = &piece,
                           .piece_count = 1};

    for (size_t row = 0; row < dp_bucket_rows(bucket); row++) {
        dp_kernel_cast(&args);
        piece.from = (const unsigned char *)piece.from + stride;
        piece.to = (unsigned char *)piece.to + piece.count * dp_dtype_bytes(args.to);
    }
}

void dp_bucket_pack(void *argument)
{
    dp_bucket_t *bucket = argument;
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t start_ns = dp_now_ns();

    bucket->begin_ns = start_ns;
    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        if (dp_bucket_item(bucket, i)->item->is_absent) {
            pack_absent(bucket, i);
        } else {
            pack_piece(bucket, i);
        }
    }
    atomic_fetch_add_explicit(&pipeline->bytes_packed, bucket->plan->payload_bytes,
                              memory_order_relaxed);
    record(bucket, bucket->job->lane->pack_track, DP_TRACE_PACK, start_ns, dp_now_ns());
}

/* ---- Unpack --------------------------------------------------------------------------------- */

/* Of a broadcast, an allgather and a reduce_scatter the engine itself writes the results to their
 * places. */
int dp_bucket_needs_unpack(const dp_bucket_t *bucket, size_t index)
{
    if (dp_plan_is_alone(bucket->plan->collective)) return 0;
    if (dp_bucket_user_out(bucket, index) == NULL) return 0;
    if (dp_bucket_wants_tally(bucket) && !dp_bucket_engine_compresses(bucket)) return 1;
    if (dp_bucket_unpack_scale(bucket, index) != 1.0) return 1;
    if (bucket->plan->collective == DP_COLLECTIVE_ALLREDUCE ||
        bucket->plan->collective == DP_COLLECTIVE_REDUCE) {
        return !bucket->plan->in_place;
    }
    return dp_bucket_is_cast(bucket);
}

static void unpack_piece(dp_bucket_t *bucket, size_t index)
{
    const dp_engine_piece_t *reduced = &bucket->op.pieces[index];
    dp_cast_piece_t piece = {.from = reduced->out,
                             .to = dp_bucket_user_out(bucket, index),
                             .count = reduced->count,
                             .scale = dp_bucket_unpack_scale(bucket, index)};
    dp_cast_args_t args = {.from = dp_bucket_buffer_dtype(bucket),
                           .to = dp_bucket_tensor(bucket, index)->dtype,
                           .pieces = &piece,
                           .piece_count = 1};

    if (dp_bucket_wants_tally(bucket) && reduced->tally == NULL) {
        piece.tally = &bucket->job->tallies[bucket->plan->piece_begin + index];
    }
    dp_kernel_cast(&args);
}

void dp_bucket_unpack(void *argument)
{
    dp_bucket_t *bucket = argument;
    uint64_t start_ns = 0;

    if (bucket->op.status != DP_OK) return;
    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        if (!dp_bucket_needs_unpack(bucket, i)) continue;
        if (start_ns == 0) start_ns = dp_now_ns();
        unpack_piece(bucket, i);
    }
    if (start_ns == 0) return;
    record(bucket, bucket->job->lane->unpack_track, DP_TRACE_UNPACK, start_ns, dp_now_ns());
}

/* ---- End ------------------------------------------------------------------------------------ */

void dp_bucket_final_status(dp_bucket_t *bucket)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    if (bucket->op.status == DP_OK || bucket->op.status == DP_ERR_TRUNCATED) return;
    if (!dp_pipeline_is_aborted(pipeline)) return;
    bucket->op.status = pipeline->abort_status;
    memcpy(bucket->op.text, pipeline->abort_text, sizeof(bucket->op.text));
}

/* Asks an asynchronous device what it alone knows: when it copied, and whether it has failed. */
static void ask_device(dp_bucket_t *bucket)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    dp_error_t error;

    if (bucket->pack_ns[0] != 0 && bucket->pack_ns[1] >= bucket->pack_ns[0]) {
        record(bucket, bucket->job->lane->pack_track, DP_TRACE_PACK, bucket->pack_ns[0],
               bucket->pack_ns[1]);
        bucket->begin_ns = bucket->pack_ns[0];
    }
    if (bucket->unpack_ns[0] != 0 && bucket->unpack_ns[1] >= bucket->unpack_ns[0]) {
        record(bucket, bucket->job->lane->unpack_track, DP_TRACE_UNPACK, bucket->unpack_ns[0],
               bucket->unpack_ns[1]);
    }
    if (pipeline->device->ops->health(pipeline->device, &error) == DP_OK) return;
    dp_pipeline_break(pipeline, &error);
    if (bucket->op.status != DP_OK) return;
    bucket->op.status = error.status;
    memcpy(bucket->op.text, error.text, sizeof(bucket->op.text));
}

void dp_bucket_end(void *argument)
{
    dp_bucket_t *bucket = argument;
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    if (dp_bucket_device(bucket)->is_async) ask_device(bucket);
    if (bucket->op.begin_ns != 0) {
        record(bucket, bucket->job->lane->wire_track, DP_TRACE_WIRE, bucket->op.begin_ns,
               bucket->op.end_ns);
        if (bucket->begin_ns == 0) bucket->begin_ns = bucket->op.begin_ns;
    }
    if (bucket->begin_ns != 0) note_time(bucket, dp_now_ns());
    dp_bucket_count_in_flight(bucket, 0);
    atomic_fetch_add_explicit(&pipeline->buckets_done, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pipeline->bytes_wire, bucket->op.wire_bytes, memory_order_relaxed);
    dp_bucket_final_status(bucket);
    dp_fusion_job_end_bucket(bucket->job, bucket);
}

void dp_bucket_unpack_and_end(void *argument)
{
    dp_bucket_unpack(argument);
    dp_bucket_end(argument);
}
