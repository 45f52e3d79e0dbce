/*
 * bucket.c - one bucket: fill a slot, hand it to the engine, give the result out.
 *
 * The launch thread starts a bucket by queueing its stages on the pack, reduce and unpack streams;
 * stages that have nothing to do are left out, so an in-place bucket crosses one thread at most. An
 * engine that does not compress (op.wire) gets slots of the 16-bit type instead: pack casts to it
 * with the scales folded in, unpack casts back.
 */
#include "fusion/pipeline_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Up to here a bucket runs inline where the streams are idle: the copy is over before another
 * thread would have woken up. */
#define SMALL_BYTES (64 * DP_KIB)
/* The same for one with nothing behind it whose stages could overlap. */
#define ALONE_BYTES DP_MIB

/* ---- What a bucket needs -------------------------------------------------------------------- */

static const dp_plan_piece_t *piece_of(const dp_job_bucket_t *bucket, size_t index)
{
    return &bucket->job->plan.pieces[bucket->plan->piece_begin + index];
}

static const dp_pipeline_tensor_t *tensor_of(const dp_job_bucket_t *bucket, size_t index)
{
    return bucket->job->sources[piece_of(bucket, index)->entry].tensor;
}

static dp_job_item_t *item_of(const dp_job_bucket_t *bucket, size_t index)
{
    return &bucket->job->items[bucket->job->sources[piece_of(bucket, index)->entry].item];
}

static int is_root(const dp_job_bucket_t *bucket)
{
    return bucket->plan->root == bucket->job->pipeline->rank;
}

/* The elements of slots are of another type than the tensors'. */
static int is_cast(const dp_job_bucket_t *bucket)
{
    return bucket->plan->wire != DP_WIRE_NONE && !bucket->plan->in_place &&
           !bucket->job->pipeline->engine->ops->compresses;
}

static dp_dtype_t slot_dtype(const dp_job_bucket_t *bucket)
{
    if (!is_cast(bucket)) return bucket->plan->dtype;
    return bucket->plan->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;
}

static int is_reduction(const dp_job_bucket_t *bucket)
{
    return bucket->plan->collective == DP_COLLECTIVE_ALLREDUCE ||
           bucket->plan->collective == DP_COLLECTIVE_REDUCE_SCATTER;
}

static int wants_tally(const dp_job_bucket_t *bucket)
{
    return is_reduction(bucket) && dp_job_is_float(bucket->plan->dtype) &&
           (bucket->plan->reduce == DP_SUM || bucket->plan->reduce == DP_AVERAGE);
}

static int needs_pack(const dp_job_bucket_t *bucket)
{
    if (bucket->plan->in_place) return 0;
    return bucket->plan->collective != DP_COLLECTIVE_BROADCAST || is_root(bucket);
}

/* What a broadcast, an allgather or a reduce_scatter gives is written to its place by the engine.
 */
static int needs_unpack(const dp_job_bucket_t *bucket)
{
    if (wants_tally(bucket) && !bucket->job->pipeline->engine->ops->compresses) return 1;
    if (bucket->plan->collective == DP_COLLECTIVE_ALLREDUCE) return !bucket->plan->in_place;
    return is_cast(bucket);
}

/* ---- Addresses ------------------------------------------------------------------------------ */

static const unsigned char *user_in(const dp_job_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = tensor_of(bucket, index);

    if (tensor->in == NULL) return NULL;
    return (const unsigned char *)tensor->in +
           piece_of(bucket, index)->first * dp_dtype_bytes(tensor->dtype);
}

static unsigned char *user_out(const dp_job_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = tensor_of(bucket, index);

    return (unsigned char *)tensor->out +
           piece_of(bucket, index)->first * dp_dtype_bytes(tensor->dtype);
}

static unsigned char *slot_at(const dp_job_bucket_t *bucket, size_t index)
{
    return (unsigned char *)bucket->slot->memory + piece_of(bucket, index)->slot_offset;
}

/* Where the engine finds and leaves a piece. */
static void fill_addresses(const dp_job_bucket_t *bucket, size_t index, dp_engine_piece_t *piece)
{
    const dp_plan_bucket_t *plan = bucket->plan;
    size_t rows = tensor_of(bucket, index)->count;

    piece->in = plan->in_place         ? (const void *)user_in(bucket, index)
                : bucket->slot != NULL ? (const void *)slot_at(bucket, index)
                                       : NULL;
    piece->out = user_out(bucket, index);
    switch (plan->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        if (!plan->in_place) piece->out = slot_at(bucket, index);
        break;
    case DP_COLLECTIVE_BROADCAST:
        if (!is_root(bucket)) piece->in = NULL;
        break;
    case DP_COLLECTIVE_ALLGATHER:
        piece->stride = rows;
        break;
    case DP_COLLECTIVE_REDUCE_SCATTER:
        piece->stride = plan->in_place ? rows : piece->count;
        if (is_cast(bucket)) {
            piece->out = slot_at(bucket, index) + (size_t)bucket->job->pipeline->rank *
                                                      piece->count *
                                                      dp_dtype_bytes(slot_dtype(bucket));
        }
        break;
    default:
        break;
    }
}

static void fill_op(dp_job_bucket_t *bucket)
{
    dp_job_t *job = bucket->job;
    const dp_plan_bucket_t *plan = bucket->plan;
    int engine_tallies = wants_tally(bucket) && job->pipeline->engine->ops->compresses;
    dp_wire_t wire = plan->wire;

    if (!job->pipeline->engine->ops->compresses) wire = DP_WIRE_NONE;
    bucket->op = (dp_engine_op_t){.collective = plan->collective,
                                  .dtype = slot_dtype(bucket),
                                  .reduce = plan->reduce,
                                  .wire = wire,
                                  .root = plan->root,
                                  .sequence = job->launch->sequence,
                                  .pieces = &job->pieces[plan->piece_begin],
                                  .piece_count = plan->piece_count,
                                  .last_rank = -1};
    for (size_t i = 0; i < plan->piece_count; i++) {
        const dp_job_item_t *state = item_of(bucket, i);
        dp_engine_piece_t *piece = &bucket->op.pieces[i];

        *piece = (dp_engine_piece_t){.count = piece_of(bucket, i)->count,
                                     .prescale = 1.0,
                                     .postscale = 1.0,
                                     .exponent = wire != DP_WIRE_NONE ? state->exponent : 0};
        if (is_reduction(bucket) && dp_job_is_float(plan->dtype) && !is_cast(bucket)) {
            piece->prescale = state->item->prescale;
            piece->postscale = state->postscale;
        }
        if (engine_tallies) piece->tally = &job->tallies[plan->piece_begin + i];
        fill_addresses(bucket, i, piece);
    }
}

/* ---- Pack ----------------------------------------------------------------------------------- */

/* The factor of the cast to a 16-bit type, and of the one back. */
static float pack_scale(const dp_job_bucket_t *bucket, size_t index)
{
    const dp_job_item_t *state = item_of(bucket, index);

    return is_cast(bucket) ? ldexpf((float)state->item->prescale, state->exponent) : 1.0f;
}

static float unpack_scale(const dp_job_bucket_t *bucket, size_t index)
{
    const dp_job_item_t *state = item_of(bucket, index);

    return is_cast(bucket) ? ldexpf((float)state->postscale, -state->exponent) : 1.0f;
}

static void pack_piece(const dp_job_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = tensor_of(bucket, index);
    size_t rows = 1, stride = tensor->count * dp_dtype_bytes(tensor->dtype);
    dp_cast_piece_t piece = {.from = user_in(bucket, index),
                             .to = slot_at(bucket, index),
                             .count = piece_of(bucket, index)->count,
                             .scale = pack_scale(bucket, index)};
    dp_cast_args_t args = {
        .from = tensor->dtype, .to = slot_dtype(bucket), .pieces = &piece, .piece_count = 1};

    if (bucket->plan->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
        rows = (size_t)bucket->job->pipeline->ranks;
    }
    for (size_t row = 0; row < rows; row++) {
        dp_kernel_cast(&args);
        piece.from = (const unsigned char *)piece.from + stride;
        piece.to = (unsigned char *)piece.to + piece.count * dp_dtype_bytes(args.to);
    }
}

static void record(dp_job_bucket_t *bucket, dp_trace_lane_t *lane, dp_trace_kind_t kind,
                   uint64_t start_ns, uint64_t end_ns)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    pthread_mutex_lock(&pipeline->record_lock);
    dp_trace_record(lane, (dp_trace_record_t){
                              .kind = kind,
                              .start_ns = start_ns,
                              .duration_ns = end_ns - start_ns,
                              .bucket = bucket->op.sequence,
                              .bytes = bucket->plan->payload_bytes,
                              .aux = (uint32_t)DP_MIN(bucket->plan->piece_count, DP_TRACE_AUX_MAX) &
                                     DP_TRACE_AUX_MAX,
                              .name = bucket->name});
    pthread_mutex_unlock(&pipeline->record_lock);
}

/* The timeline's counters, when a bucket starts and when it ends. */
static void count_in_flight(dp_job_bucket_t *bucket, int starts)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t bytes = bucket->plan->payload_bytes;

    pthread_mutex_lock(&pipeline->record_lock);
    pipeline->bytes_in_flight += starts ? bytes : -bytes;
    dp_trace_counter(pipeline->wire_lane, pipeline->name_bytes_in_flight,
                     pipeline->bytes_in_flight);
    if (bucket->slot != NULL) {
        pipeline->slots_in_use += starts ? 1 : (uint64_t)-1;
        dp_trace_counter(pipeline->wire_lane, pipeline->name_slots_in_use, pipeline->slots_in_use);
    }
    pthread_mutex_unlock(&pipeline->record_lock);
}

static void pack_stage(void *argument)
{
    dp_job_bucket_t *bucket = argument;
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t start_ns = dp_now_ns();

    bucket->begin_ns = start_ns;
    for (size_t i = 0; i < bucket->plan->piece_count; i++)
        pack_piece(bucket, i);
    atomic_fetch_add_explicit(&pipeline->bytes_packed, bucket->plan->payload_bytes,
                              memory_order_relaxed);
    record(bucket, pipeline->pack_lane, DP_TRACE_PACK, start_ns, dp_now_ns());
}

/* ---- Unpack and end ------------------------------------------------------------------------- */

static void unpack_piece(dp_job_bucket_t *bucket, size_t index)
{
    const dp_pipeline_tensor_t *tensor = tensor_of(bucket, index);
    const dp_engine_piece_t *reduced = &bucket->op.pieces[index];
    dp_cast_piece_t piece = {.from = reduced->out,
                             .to = user_out(bucket, index),
                             .count = reduced->count,
                             .scale = unpack_scale(bucket, index)};
    dp_cast_args_t args = {
        .from = slot_dtype(bucket), .to = tensor->dtype, .pieces = &piece, .piece_count = 1};

    if (wants_tally(bucket) && reduced->tally == NULL) {
        piece.tally = &bucket->job->tallies[bucket->plan->piece_begin + index];
    }
    dp_kernel_cast(&args);
}

/* Counts the time in which at least one bucket was under way. */
static void note_time(dp_job_bucket_t *bucket, uint64_t end_ns)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t begin_ns;

    pthread_mutex_lock(&pipeline->record_lock);
    begin_ns = DP_MAX(bucket->begin_ns, pipeline->busy_until_ns);
    if (end_ns > begin_ns) {
        atomic_fetch_add_explicit(&pipeline->transfer_ns, end_ns - begin_ns, memory_order_relaxed);
        pipeline->busy_until_ns = end_ns;
    }
    pthread_mutex_unlock(&pipeline->record_lock);
}

/* After an abort its reason replaces whatever the engine ran into because of it. */
static void settle_status(dp_job_bucket_t *bucket)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    if (bucket->op.status == DP_OK || !dp_pipeline_is_aborted(pipeline)) return;
    bucket->op.status = pipeline->abort_status;
    memcpy(bucket->op.text, pipeline->abort_text, sizeof(bucket->op.text));
}

/* The last stage of every bucket. The bucket may be gone when it returns. */
static void end_stage(void *argument)
{
    dp_job_bucket_t *bucket = argument;
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    uint64_t start_ns = dp_now_ns(), end_ns = start_ns;

    if (bucket->op.begin_ns != 0) {
        record(bucket, pipeline->wire_lane, DP_TRACE_WIRE, bucket->op.begin_ns, bucket->op.end_ns);
        if (bucket->begin_ns == 0) bucket->begin_ns = bucket->op.begin_ns;
    }
    if (bucket->op.status == DP_OK && needs_unpack(bucket)) {
        for (size_t i = 0; i < bucket->plan->piece_count; i++)
            unpack_piece(bucket, i);
        end_ns = dp_now_ns();
        record(bucket, pipeline->unpack_lane, DP_TRACE_UNPACK, start_ns, end_ns);
    }
    if (bucket->begin_ns != 0) note_time(bucket, end_ns);
    count_in_flight(bucket, 0);
    atomic_fetch_add_explicit(&pipeline->buckets_done, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pipeline->bytes_wire, bucket->op.wire_bytes, memory_order_relaxed);
    settle_status(bucket);
    dp_job_end_bucket(bucket->job, bucket);
}

/* ---- Start ---------------------------------------------------------------------------------- */

static uint64_t hash_inputs(const dp_job_t *job, const dp_pipeline_item_t *item)
{
    uint64_t hash = 0;
    size_t rows = 1;

    if (item->collective == DP_COLLECTIVE_REDUCE_SCATTER) rows = (size_t)job->pipeline->ranks;
    for (size_t t = 0; t < item->tensor_count; t++) {
        const dp_pipeline_tensor_t *tensor = &item->tensors[t];

        if (tensor->in == NULL) continue;
        hash =
            dp_kernel_hash(tensor->in, rows * tensor->count * dp_dtype_bytes(tensor->dtype), hash);
    }
    return hash == 0 ? 1 : hash; /* 0 says that there is none */
}

/* Looks at items whose first part is in this bucket. The operation still runs: all ranks are
 * committed to it. */
static void begin_items(dp_job_bucket_t *bucket)
{
    dp_job_t *job = bucket->job;

    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        dp_job_item_t *state = item_of(bucket, i);
        const dp_pipeline_item_t *item = state->item;

        if (state->is_begun) continue;
        state->is_begun = 1;
        state->begin_ns = dp_now_ns();
        if (item->input_hash == 0 || hash_inputs(job, item) == item->input_hash) continue;
        state->status = DP_ERR_CHECK;
        state->text = NULL;
    }
}

/* Waits until a stream has done all it was given. Recording can only fail for want of memory, and
 * works again at the latest when the stream is idle. */
static void drain(dp_pipeline_t *pipeline, dp_stream_t *stream)
{
    const struct timespec pause = {0, 1000000};

    while (pipeline->device->ops->event_record(pipeline->drained, stream) != DP_OK) {
        nanosleep(&pause, NULL);
    }
    pipeline->device->ops->event_wait(pipeline->drained);
}

/* A stage could not be queued: this rank can no longer do what all have agreed on. */
static void give_up(dp_job_bucket_t *bucket, dp_status_t status)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    dp_error_t error;

    dp_error_set(&error, status, "rank %d: tensor %s: the data plane failed: %s", pipeline->rank,
                 item_of(bucket, 0)->item->name, dp_status_string(status));
    dp_pipeline_break(pipeline, &error);
    drain(pipeline, pipeline->pack);
    drain(pipeline, pipeline->reduce);
    drain(pipeline, pipeline->unpack);
    bucket->op.status = status;
    settle_status(bucket);
    dp_job_end_bucket(bucket->job, bucket);
}

static dp_work_size_t size_of(const dp_job_bucket_t *bucket, int is_last)
{
    size_t bytes = bucket->plan->payload_bytes;

    if (bytes <= SMALL_BYTES) return DP_WORK_SMALL;
    if (bytes > ALONE_BYTES || !is_last) return DP_WORK_LARGE;
    return dp_pipeline_is_last(bucket->job->pipeline) ? DP_WORK_SMALL : DP_WORK_LARGE;
}

/* Queues the stages. Once the last one is queued the bucket may be gone. */
static dp_status_t queue_stages(dp_job_bucket_t *bucket, dp_work_size_t size)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    const dp_device_ops_t *device = pipeline->device->ops;
    dp_engine_t *engine = pipeline->engine;
    dp_slot_t *slot = bucket->slot;
    int hands_over = slot != NULL && needs_unpack(bucket);
    dp_stream_t *last = hands_over ? pipeline->unpack : pipeline->reduce;
    dp_status_t status = DP_OK;

    if (slot != NULL) {
        status = device->call(pipeline->pack, size, pack_stage, bucket);
        if (status == DP_OK) status = device->event_record(slot->packed, pipeline->pack);
        if (status == DP_OK) status = device->stream_wait(pipeline->reduce, slot->packed);
    }
    if (status == DP_OK) {
        status = engine->ops->enqueue(engine, pipeline->reduce, size, &bucket->op);
    }
    if (status == DP_OK && hands_over) {
        status = device->event_record(slot->reduced, pipeline->reduce);
        if (status == DP_OK) status = device->stream_wait(last, slot->reduced);
    }
    if (status == DP_OK) status = device->call(last, size, end_stage, bucket);
    if (status != DP_OK) return status;
    /* The bucket is on its way, so this failure is not its own. */
    if (slot != NULL && device->event_record(slot->released, last) != DP_OK) drain(pipeline, last);
    return DP_OK;
}

void dp_bucket_start(dp_job_bucket_t *bucket, int is_last)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    dp_status_t status = DP_OK;

    bucket->name = dp_trace_name(pipeline->trace, item_of(bucket, 0)->item->name);
    if (needs_pack(bucket)) status = dp_slots_take(&pipeline->slots, &bucket->slot);
    if (status == DP_OK && !dp_pipeline_is_aborted(pipeline)) {
        begin_items(bucket);
        fill_op(bucket);
        count_in_flight(bucket, 1);
        status = queue_stages(bucket, size_of(bucket, is_last));
        if (status == DP_OK) return;
    }
    if (status != DP_OK) {
        give_up(bucket, status);
        return;
    }
    bucket->op.status = DP_ERR_ABORTED;
    settle_status(bucket);
    dp_job_end_bucket(bucket->job, bucket);
}
