/*
 * bucket.c - queues one bucket: pack into a fused buffer, reduce, unpack.
 *
 * Called by the thread that runs launches, with progress_lock held. It queues the stages on the
 * pack, reduce and unpack streams and goes on to the next bucket; stages that have nothing to do
 * are left out, so a bucket in place crosses one other thread at most. It must not know what a
 * stage does to the data (bucket_stages.c, bucket_async.c).
 *
 * The first stream waits for the ready events of the bucket's items, the done event of an item is
 * recorded on the last stream of its last bucket. All parts of an item end on one stream, so what
 * waits for that event waits for all of them; dp_bucket_end() comes behind it, so nobody touches
 * the event after done().
 *
 * Why this cannot deadlock: streams and fused buffers are given work in one order, and this thread
 * blocks only until a buffer is released, that is for work queued earlier. So a ready event that
 * depends on the done event of an earlier launch will fire: that event is on its stream by then.
 */
#include "fusion/bucket.h"

#include <stdio.h>
#include <time.h>

/* Up to here a bucket runs inline, in the calling thread, where the streams are idle: the copy is
 * over before another thread would have woken up. */
#define SMALL_BYTES (64 * DP_KIB)
/* The same limit for a bucket that packs or unpacks and is the last one queued: no later bucket
 * could overlap with its stages. */
#define LAST_BUCKET_BYTES DP_MIB

/* DP_CHECK_DATA: compares the inputs of items that begin in this bucket with their checksums at
 * submission. The operation runs all the same: the other ranks are committed to it. */
static void begin_items(dp_bucket_t *bucket)
{
    dp_fusion_job_t *job = bucket->job;

    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        dp_fusion_item_t *state = dp_bucket_item(bucket, i);
        uint64_t hash;

        if (state->is_begun || state->item->input_hash == 0) continue;
        if (dp_bucket_device(bucket)->is_async) continue; /* it may lie in a GPU's memory */
        hash = dp_pipeline_input_hash(state->item, job->rank, job->ranks);
        if (hash == 0 || hash == state->item->input_hash) continue;
        state->status = DP_ERR_CHECK;
        state->text = NULL;
    }
}

/* Waits until a stream has done all it was given. Recording can only fail for want of memory, and
 * works again at the latest when the stream is idle; or because the device does nothing more. */
static void drain(const dp_lane_streams_t *lane, dp_stream_t *stream)
{
    const struct timespec pause = {0, 1000000};
    dp_pipeline_t *pipeline = lane->queue->pipeline;
    dp_event_t *drained = lane->queue->drained;

    while (pipeline->device->ops->event_record(drained, stream) != DP_OK) {
        dp_error_t error;

        if (pipeline->device->ops->is_async &&
            pipeline->device->ops->health(pipeline->device, &error) != DP_OK) {
            break;
        }
        nanosleep(&pause, NULL);
    }
    pipeline->device->ops->event_wait(drained);
    if (pipeline->device->ops->is_async) pipeline->device->ops->drain(pipeline->device);
}

/* A stage could not be queued: this rank can no longer do what all have agreed on. */
static void fail_bucket(dp_bucket_t *bucket, dp_status_t status)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    const dp_lane_streams_t *lane = bucket->job->lane;
    dp_error_t error;

    dp_error_set(&error, status, "rank %d: tensor %s: the data plane failed: %s", pipeline->rank,
                 dp_bucket_item(bucket, 0)->item->name, dp_status_string(status));
    dp_pipeline_break(pipeline, &error);
    drain(lane, lane->pack);
    drain(lane, lane->reduce);
    if (lane->unpack != NULL) drain(lane, lane->unpack);
    bucket->op.status = status;
    dp_bucket_final_status(bucket);
    dp_fusion_job_end_bucket(bucket->job, bucket);
}

/* ---- Stages --------------------------------------------------------------------------------- */

/* Makes a stream wait for the items whose first part is in this bucket. */
static dp_status_t await_ready(dp_bucket_t *bucket, dp_stream_t *stream)
{
    const dp_device_ops_t *device = bucket->job->pipeline->device->ops;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < bucket->plan->piece_count && status == DP_OK; i++) {
        dp_fusion_item_t *state = dp_bucket_item(bucket, i);

        if (state->is_begun) continue;
        state->is_begun = 1;
        if (state->item->ready != NULL) status = device->stream_wait(stream, state->item->ready);
    }
    return status;
}

static int ends_here(const dp_bucket_t *bucket, const dp_fusion_item_t *state)
{
    return state->item->done != NULL && !state->is_issued &&
           state->last_bucket == (size_t)(bucket - bucket->job->buckets);
}

/* Some item wants to know when its last part, which is in this bucket, is over. */
static int has_done_event(const dp_bucket_t *bucket)
{
    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        if (ends_here(bucket, dp_bucket_item(bucket, i))) return 1;
    }
    return 0;
}

/* 1: it has one stage, and nothing waits for an event in the middle of it. Then handing it to a
 * stream's thread gains nothing: that one would work while the launch thread waits. */
static int is_plain(const dp_bucket_t *bucket)
{
    return bucket->buffer == NULL && !dp_bucket_device(bucket)->is_async && !has_done_event(bucket);
}

static dp_work_size_t size_of(const dp_bucket_t *bucket, int is_last)
{
    size_t bytes = bucket->plan->payload_bytes;

    if (bytes <= SMALL_BYTES) return DP_WORK_SMALL;
    if (!is_last || (bytes > LAST_BUCKET_BYTES && !is_plain(bucket))) return DP_WORK_LARGE;
    return dp_launch_queue_is_empty(bucket->job->lane->queue) ? DP_WORK_SMALL : DP_WORK_LARGE;
}

/* Records the done events of the items whose last part is in this bucket. */
static dp_status_t issue_items(dp_bucket_t *bucket, dp_stream_t *stream)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;

    for (size_t i = 0; i < bucket->plan->piece_count; i++) {
        dp_fusion_item_t *state = dp_bucket_item(bucket, i);
        dp_status_t status;

        if (!ends_here(bucket, state)) continue;
        status = pipeline->device->ops->event_record(state->item->done, stream);
        if (status != DP_OK) return status;
        state->is_issued = 1;
        if (pipeline->callbacks.issued != NULL) {
            pipeline->callbacks.issued(pipeline->callbacks.user, state->item->request);
        }
    }
    return DP_OK;
}

/* Unpack and end are one stage unless an item's done event is recorded between them. */
static dp_status_t queue_end(dp_bucket_t *bucket, dp_stream_t *stream, dp_work_size_t size)
{
    const dp_device_ops_t *device = bucket->job->pipeline->device->ops;
    dp_status_t status;

    if (device->is_async) {
        status = dp_bucket_queue_unpack(bucket, stream);
        if (status == DP_OK) status = issue_items(bucket, stream);
        if (status == DP_OK) status = device->call(stream, size, dp_bucket_end, bucket);
        return status;
    }
    if (!has_done_event(bucket)) {
        return device->call(stream, size, dp_bucket_unpack_and_end, bucket);
    }
    status = device->call(stream, size, dp_bucket_unpack, bucket);
    if (status == DP_OK) status = issue_items(bucket, stream);
    if (status == DP_OK) status = device->call(stream, size, dp_bucket_end, bucket);
    return status;
}

/* 1: it ends on the unpack stream. Follows from what all parts of an item have in common. */
static int hands_over(const dp_bucket_t *bucket)
{
    switch (bucket->plan->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
        return bucket->buffer != NULL;
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return bucket->buffer != NULL && dp_bucket_keeps_row(bucket);
    default:
        return 0;
    }
}

/* Queues the stages. Once the last one is queued another thread may have ended the bucket: it must
 * not be touched any more. */
static dp_status_t queue_stages(dp_bucket_t *bucket, dp_work_size_t size)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    const dp_device_ops_t *device = pipeline->device->ops;
    dp_engine_t *engine = pipeline->engine;
    const dp_lane_streams_t *lane = bucket->job->lane;
    dp_fused_buffer_t *buffer = bucket->buffer;
    int moves_on = hands_over(bucket);
    dp_stream_t *last = moves_on ? lane->unpack : lane->reduce;
    dp_status_t status = await_ready(bucket, buffer != NULL ? lane->pack : lane->reduce);

    if (status == DP_OK && buffer != NULL) {
        status = device->is_async ? dp_bucket_queue_pack(bucket, lane->pack)
                                  : device->call(lane->pack, size, dp_bucket_pack, bucket);
        if (status == DP_OK) status = device->event_record(buffer->packed, lane->pack);
        if (status == DP_OK) status = device->stream_wait(lane->reduce, buffer->packed);
    }
    if (status == DP_OK) {
        status = engine->ops->enqueue(engine, lane->reduce, size, &bucket->op);
    }
    if (status == DP_OK && moves_on) {
        status = device->event_record(buffer->reduced, lane->reduce);
        if (status == DP_OK) status = device->stream_wait(last, buffer->reduced);
    }
    if (status == DP_OK) status = queue_end(bucket, last, size);
    if (status != DP_OK) return status;
    /* The bucket is on its way, so this failure is not its own. */
    if (buffer != NULL && device->event_record(buffer->released, last) != DP_OK) drain(lane, last);
    return DP_OK;
}

/* ---- Groups --------------------------------------------------------------------------------- */

/* Tells the engine of a new group; the barrier that follows is where its ranks meet. A group that
 * is to end must exist: the engine would take NULL for the world. */
static dp_status_t open_group(dp_bucket_t *bucket)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    const dp_pipeline_item_t *item = dp_bucket_item(bucket, 0)->item;
    dp_error_t error = {DP_OK, ""};
    dp_status_t status;

    if (item->collective == DP_COLLECTIVE_GROUP_DESTROY && item->group->engine == NULL) {
        return DP_ERR_INVALID;
    }
    if (item->collective != DP_COLLECTIVE_GROUP_CREATE) return DP_OK;
    status = pipeline->engine->ops->group_create(pipeline->engine, item->members,
                                                 &item->group->engine, &error);
    if (status == DP_OK) return DP_OK;
    if (error.text[0] == '\0') {
        dp_error_set(&error, status, "rank %d: group %s cannot be made: %s", pipeline->rank,
                     item->members->name, dp_status_string(status));
    }
    dp_pipeline_break(pipeline, &error);
    return status;
}

/* Waits until this rank's launches in the group's other lane have ended; the barrier behind it then
 * proves that of all ranks. They were queued earlier and wait for nothing in this lane, and an
 * abort ends them, too. */
static void await_other_lane(const dp_pipeline_group_t *group)
{
    const struct timespec pause = {0, 50000};

    while (atomic_load_explicit(&group->beside, memory_order_acquire) != 0)
        nanosleep(&pause, NULL);
}

/* Once the barrier is over on all its ranks none of them looks at the others any more. Waits here,
 * because engines make and end groups on the launch thread alone; only earlier work is waited for.
 */
static dp_status_t close_group(dp_bucket_t *bucket)
{
    dp_engine_t *engine = bucket->job->pipeline->engine;
    const dp_lane_streams_t *lane = bucket->job->lane;
    dp_pipeline_group_t *group = dp_bucket_item(bucket, 0)->item->group;
    dp_status_t status;

    await_other_lane(group);
    status = engine->ops->enqueue(engine, lane->reduce, DP_WORK_SMALL, &bucket->op);
    if (status != DP_OK) return status;
    drain(lane, lane->reduce);
    if (bucket->op.status == DP_OK) {
        engine->ops->group_destroy(engine, group->engine);
        group->engine = NULL;
    }
    dp_bucket_end(bucket);
    return DP_OK;
}

/* ---- Start ---------------------------------------------------------------------------------- */

void dp_bucket_start(dp_bucket_t *bucket, int is_last)
{
    dp_pipeline_t *pipeline = bucket->job->pipeline;
    dp_launch_queue_t *queue = bucket->job->lane->queue;
    dp_status_t status = DP_OK;

    bucket->name = dp_trace_name(pipeline->trace, dp_bucket_item(bucket, 0)->item->name);
    if (dp_bucket_needs_buffer(bucket)) {
        status = dp_launch_queue_make_buffers(queue);
        if (status == DP_OK) status = dp_fused_buffers_acquire(&queue->buffers, &bucket->buffer);
    }
    if (status == DP_OK && !dp_pipeline_is_aborted(pipeline)) status = open_group(bucket);
    if (status == DP_OK && !dp_pipeline_is_aborted(pipeline)) {
        begin_items(bucket);
        dp_bucket_fill_op(bucket);
        dp_bucket_count_in_flight(bucket, 1);
        status = bucket->plan->collective == DP_COLLECTIVE_GROUP_DESTROY
                     ? close_group(bucket)
                     : queue_stages(bucket, size_of(bucket, is_last));
        if (status == DP_OK) return;
    }
    if (status != DP_OK) {
        fail_bucket(bucket, status);
        return;
    }
    bucket->op.status = DP_ERR_ABORTED;
    dp_bucket_final_status(bucket);
    dp_fusion_job_end_bucket(bucket->job, bucket);
}
