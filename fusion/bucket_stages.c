/*
 * bucket_stages.c - what a bucket asks of the engine, and what its stages do on the host device:
 * pack copies inputs into the fused buffer, unpack copies results out of it, end completes the
 * bucket.
 *
 * The thread that runs launches fills in the engine's operation before any stage is queued. The
 * stages run on the streams' threads, or inline in that thread; a bucket is in one stage at a time,
 * so its fields need no lock. An engine that does not compress (op.wire) gets fused buffers of the
 * 16-bit type instead: pack casts to it with the scales folded in, unpack casts back. On an
 * asynchronous device the casts apply the scales in any case. It must not know which stream it is
 * on.
 */
#include "fusion/bucket.h"
#include "fusion/item_input.h"

#include <math.h>
#include <string.h>

/* ---- What a bucket needs -------------------------------------------------------------------- */

int dp_bucket_is_cast(const dp_bucket_t *bucket)
{
    return bucket->plan->buffer_dtype != bucket->plan->dtype;
}

/* Engines that cast write the row to its place themselves. */
int dp_bucket_keeps_row(const dp_bucket_t *bucket)
{
    return bucket->plan->collective == DP_COLLECTIVE_REDUCE_SCATTER && !bucket->plan->in_place &&
           !dp_bucket_engine_compresses(bucket);
}

int dp_bucket_wants_tally(const dp_bucket_t *bucket)
{
    return dp_collective_reduces(bucket->plan->collective) &&
           dp_dtype_is_float(bucket->plan->dtype) &&
           (bucket->plan->reduce == DP_SUM || bucket->plan->reduce == DP_AVERAGE);
}

int dp_bucket_folds_scales(const dp_bucket_t *bucket)
{
    if (!dp_collective_reduces(bucket->plan->collective) || !dp_dtype_is_float(bucket->plan->dtype))
        return 0;
    return dp_bucket_is_cast(bucket) || dp_bucket_device(bucket)->is_async;
}

static int is_root_of(const dp_bucket_t *bucket, size_t index)
{
    return dp_bucket_entry(bucket, index)->root == bucket->job->rank;
}

int dp_bucket_needs_buffer(const dp_bucket_t *bucket)
{
    if (bucket->plan->in_place || dp_plan_is_alone(bucket->plan->collective)) return 0;
    return bucket->plan->collective != DP_COLLECTIVE_BROADCAST || is_root_of(bucket, 0);
}

/* ---- Addresses ------------------------------------------------------------------------------ */

static size_t offset_of(const dp_bucket_t *bucket, size_t index)
{
    return dp_bucket_piece(bucket, index)->first *
           dp_dtype_bytes(dp_bucket_tensor(bucket, index)->dtype);
}

const unsigned char *dp_bucket_user_in(const dp_bucket_t *bucket, size_t index)
{
    const unsigned char *in = dp_bucket_tensor(bucket, index)->in;

    return in == NULL ? NULL : in + offset_of(bucket, index);
}

unsigned char *dp_bucket_user_out(const dp_bucket_t *bucket, size_t index)
{
    unsigned char *out = dp_bucket_tensor(bucket, index)->out;

    if (bucket->plan->collective == DP_COLLECTIVE_REDUCE && !is_root_of(bucket, index)) return NULL;
    return out == NULL ? NULL : out + offset_of(bucket, index);
}

unsigned char *dp_bucket_buffer_at(const dp_bucket_t *bucket, size_t index, size_t row)
{
    DP_ASSERT(bucket->buffer != NULL);
    return (unsigned char *)bucket->buffer->memory + row * bucket->plan->row_bytes +
           dp_bucket_piece(bucket, index)->buffer_offset;
}

/* Where the engine finds and leaves a piece. */
static void fill_addresses(const dp_bucket_t *bucket, size_t index, dp_engine_piece_t *piece)
{
    const dp_plan_bucket_t *plan = bucket->plan;
    size_t rows = dp_bucket_tensor(bucket, index)->count;

    piece->in = plan->in_place           ? (const void *)dp_bucket_user_in(bucket, index)
                : bucket->buffer != NULL ? (const void *)dp_bucket_buffer_at(bucket, index, 0)
                                         : NULL;
    piece->out = dp_bucket_user_out(bucket, index);
    switch (plan->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        if (!plan->in_place) piece->out = dp_bucket_buffer_at(bucket, index, 0);
        break;
    case DP_COLLECTIVE_REDUCE:
        if (!plan->in_place && is_root_of(bucket, index)) {
            piece->out = dp_bucket_buffer_at(bucket, index, 0);
        }
        break;
    case DP_COLLECTIVE_BROADCAST:
        if (!is_root_of(bucket, index)) piece->in = NULL;
        break;
    case DP_COLLECTIVE_ALLGATHER:
        piece->stride = rows;
        break;
    case DP_COLLECTIVE_REDUCE_SCATTER:
        piece->stride =
            plan->in_place ? rows : plan->row_bytes / dp_dtype_bytes(plan->buffer_dtype);
        if (dp_bucket_keeps_row(bucket))
            piece->out = dp_bucket_buffer_at(bucket, index, (size_t)bucket->job->rank);
        break;
    default:
        break;
    }
}

/* ---- The operation -------------------------------------------------------------------------- */

static void fill_piece(dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);
    dp_engine_piece_t *piece = &bucket->op.pieces[index];

    *piece = (dp_engine_piece_t){.count = dp_bucket_piece(bucket, index)->count,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .exponent = bucket->op.wire != DP_WIRE_NONE ? state->exponent : 0,
                                 .root = dp_bucket_entry(bucket, index)->root};
    if (dp_collective_reduces(bucket->plan->collective) && dp_dtype_is_float(bucket->plan->dtype) &&
        !dp_bucket_folds_scales(bucket)) {
        piece->prescale = state->prescale;
        piece->postscale = state->postscale;
    }
    if (dp_bucket_wants_tally(bucket) && dp_bucket_engine_compresses(bucket)) {
        piece->tally = &bucket->job->tallies[bucket->plan->piece_begin + index];
    }
    fill_addresses(bucket, index, piece);
}

/* Making and ending a group takes a barrier of it. */
static void fill_group_op(dp_bucket_t *bucket)
{
    bucket->op.collective = DP_COLLECTIVE_BARRIER;
    bucket->op.group = dp_bucket_item(bucket, 0)->item->group->engine;
}

void dp_bucket_fill_op(dp_bucket_t *bucket)
{
    dp_fusion_job_t *job = bucket->job;
    const dp_plan_bucket_t *plan = bucket->plan;
    const dp_pipeline_item_t *item = dp_bucket_item(bucket, 0)->item;

    bucket->op =
        (dp_engine_op_t){.group = job->launch->group != NULL ? job->launch->group->engine : NULL,
                         .lane = job->launch->lane,
                         .collective = plan->collective,
                         .dtype = bucket->plan->buffer_dtype,
                         .reduce = plan->reduce,
                         .wire = dp_bucket_engine_compresses(bucket) ? plan->wire : DP_WIRE_NONE,
                         .root = plan->root,
                         .peer = item->peer,
                         .divisor = plan->divisor,
                         .sequence = job->launch->sequence,
                         .digest = job->launch->digest,
                         .give_up_ns = job->give_up_ns,
                         .last_rank = -1};
    switch (plan->collective) {
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_GROUP_DESTROY:
        fill_group_op(bucket);
        return;
    default:
        break;
    }
    if (dp_plan_is_alone(plan->collective)) {
        dp_exchange_fill(&bucket->exchange, item, job->rank, job->ranks);
        bucket->op.exchange = &bucket->exchange;
        return;
    }
    bucket->op.pieces = &job->pieces[plan->piece_begin];
    bucket->op.piece_count = plan->piece_count;
    bucket->op.is_packed = !plan->in_place && (plan->collective == DP_COLLECTIVE_ALLREDUCE ||
                                               plan->collective == DP_COLLECTIVE_REDUCE_SCATTER);
    for (size_t i = 0; i < plan->piece_count; i++)
        fill_piece(bucket, i);
}

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

/* Fills in the identity in place of data: this rank has joined. */
static void pack_absent(const dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);
    const size_t count = dp_bucket_piece(bucket, index)->count;
    const dp_dtype_t dtype = bucket->plan->buffer_dtype;

    if (bucket->plan->collective == DP_COLLECTIVE_ALLGATHER) {
        memset(dp_bucket_buffer_at(bucket, index, 0), 0, count * dp_dtype_bytes(dtype));
        return;
    }
    for (size_t row = 0; row < dp_bucket_rows(bucket); row++) {
        dp_identity_fill(dp_bucket_buffer_at(bucket, index, row), count, dtype,
                         bucket->plan->reduce, dp_bucket_is_cast(bucket) ? 1.0 : state->prescale);
    }
}

static void pack_piece(const dp_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = dp_bucket_tensor(bucket, index);
    size_t stride = tensor->count * dp_dtype_bytes(tensor->dtype);
    dp_cast_piece_t piece = {.from = dp_bucket_user_in(bucket, index),
                             .count = dp_bucket_piece(bucket, index)->count,
                             .scale = dp_bucket_pack_scale(bucket, index)};
    dp_cast_args_t args = {.from = tensor->dtype,
                           .to = bucket->plan->buffer_dtype,
                           .pieces = &piece,
                           .piece_count = 1};

    for (size_t row = 0; row < dp_bucket_rows(bucket); row++) {
        piece.to = dp_bucket_buffer_at(bucket, index, row);
        dp_kernel_cast(&args);
        piece.from = (const unsigned char *)piece.from + stride;
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

/* Of a broadcast and an allgather, and of a reduce_scatter that keeps no row, the engine itself
 * writes the results to their places. */
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
    return dp_bucket_keeps_row(bucket);
}

static void unpack_piece(dp_bucket_t *bucket, size_t index)
{
    const dp_engine_piece_t *reduced = &bucket->op.pieces[index];
    dp_cast_piece_t piece = {.from = reduced->out,
                             .to = dp_bucket_user_out(bucket, index),
                             .count = reduced->count,
                             .scale = dp_bucket_unpack_scale(bucket, index)};
    dp_cast_args_t args = {.from = bucket->plan->buffer_dtype,
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
