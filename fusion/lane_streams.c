/*
 * lane_streams.c - what buckets of a lane go through: streams, tracks of the timeline, fused
 * buffers.
 *
 * The main lane's are made with the pipeline, the gather lane's when the first group opens its own:
 * by the thread that submits, or by the launch thread of an asynchronous device; an ordered lane's
 * by the thread that creates the group. It must not know which launch travels in which lane.
 */
#include "fusion/pipeline_internal.h"

/* ---- Streams -------------------------------------------------------------------------------- */

typedef struct lane_names {
    const char *pack, *reduce; /* of streams, and so of their threads */
    const char *unpack;        /* likewise; NULL: engines write gathers where they belong */
    const char *wire;          /* of the timeline's track; the others are as the streams */
} lane_names_t;

static const lane_names_t names[DP_LANE_COUNT] = {
    [DP_LANE_MAIN] = {"pack", "reduce", "unpack", "wire"},
    [DP_LANE_GATHER] = {"gather pack", "gather", NULL, "gather"},
    [DP_LANE_ORDERED] = {"ordered pack", "ordered", "ordered unpack", "ordered"},
    [DP_LANE_ORDERED + 1] = {"ordered pack 2", "ordered 2", "ordered unpack 2", "ordered 2"},
    [DP_LANE_ORDERED + 2] = {"ordered pack 3", "ordered 3", "ordered unpack 3", "ordered 3"},
    [DP_LANE_ORDERED + 3] = {"ordered pack 4", "ordered 4", "ordered unpack 4", "ordered 4"},
};

/* Fused buffers are populated, so that a node that has no memory left is told at once. In the lanes
 * of gathers and of ordered groups what needs one is small as a rule, and larger ones travel in
 * several buckets; but in the lane of an ordered world everything travels. */
#define SMALL_BUFFER_BYTES ((size_t)4 << 20)

size_t dp_lane_buffer_bytes(const dp_pipeline_t *pipeline, dp_lane_t lane)
{
    const size_t least = dp_max(SMALL_BUFFER_BYTES, dp_plan_least_buffer_bytes(pipeline->ranks));
    const size_t most = pipeline->limits.buffer_bytes;
    const int is_worlds = lane == DP_LANE_MAIN || lane == pipeline->world.own_lane;

    return is_worlds ? most : dp_min(least, most);
}

dp_status_t dp_launch_queue_make_buffers(dp_launch_queue_t *queue)
{
    const dp_pipeline_t *pipeline = queue->pipeline;
    const dp_lane_t lane = (dp_lane_t)(queue - pipeline->queues);

    if (queue->buffers.count != 0) return DP_OK;
    return dp_fused_buffers_init(&queue->buffers, pipeline->device, pipeline->engine,
                                 pipeline->buffer_count, dp_lane_buffer_bytes(pipeline, lane));
}

/* Makes what the queue's launch thread needs. Other lanes' buffers come with the first operation
 * that needs one: sharded weights in engine memory never do. */
static dp_status_t prepare_queue(dp_launch_queue_t *queue, dp_lane_t lane)
{
    dp_device_t *device = queue->pipeline->device;
    const dp_status_t status = device->ops->event_create(device, &queue->drained);

    return status == DP_OK && lane == DP_LANE_MAIN ? dp_launch_queue_make_buffers(queue) : status;
}

/* Ends of other lanes' operations are told while a reduction that was enqueued before goes on. */
static dp_status_t branch_streams(const dp_device_t *device, const dp_lane_streams_t *streams)
{
    dp_status_t status = device->ops->stream_branch(streams->pack);

    return status == DP_OK ? device->ops->stream_branch(streams->reduce) : status;
}

dp_status_t dp_lane_open(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    dp_device_t *device = pipeline->device;
    dp_lane_streams_t *streams = &pipeline->lanes[lane];
    const lane_names_t *name = &names[lane];
    dp_status_t status;

    streams->pack_track = dp_trace_track(pipeline->trace, name->pack, DP_TRACE_TRACK_STREAM);
    streams->wire_track = dp_trace_track(pipeline->trace, name->wire, DP_TRACE_TRACK_STREAM);
    if (name->unpack != NULL) {
        streams->unpack_track =
            dp_trace_track(pipeline->trace, name->unpack, DP_TRACE_TRACK_STREAM);
    }
    status = device->ops->stream_create(device, name->pack, &streams->pack);
    if (status == DP_OK)
        status = device->ops->stream_create(device, name->reduce, &streams->reduce);
    if (status == DP_OK && name->unpack != NULL)
        status = device->ops->stream_create(device, name->unpack, &streams->unpack);
    if (status == DP_OK && streams->queue == &pipeline->queues[lane])
        status = prepare_queue(streams->queue, lane);
    if (status == DP_OK && device->ops->is_async && lane != DP_LANE_MAIN)
        status = branch_streams(device, streams);
    if (status != DP_OK) dp_lane_close(pipeline, lane);
    return status;
}

/* The streams in the order of the stages: destroying one finishes its work, which the next awaits.
 */
void dp_lane_close(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    const dp_device_ops_t *device = pipeline->device->ops;
    dp_lane_streams_t *streams = &pipeline->lanes[lane];
    dp_launch_queue_t *queue = &pipeline->queues[lane];

    if (streams->pack != NULL) device->stream_destroy(streams->pack);
    if (streams->reduce != NULL) device->stream_destroy(streams->reduce);
    if (streams->unpack != NULL) device->stream_destroy(streams->unpack);
    if (queue->drained != NULL) device->event_destroy(queue->drained);
    dp_fused_buffers_fini(&queue->buffers);
    streams->pack = streams->reduce = streams->unpack = NULL;
    queue->drained = NULL;
}

/* ---- The gather lane of a group ------------------------------------------------------------- */

void dp_lane_break(dp_pipeline_t *pipeline, dp_status_t status)
{
    dp_error_t error;

    dp_error_set(&error, status, "rank %d: the lane for gathers cannot be made: %s", pipeline->rank,
                 dp_status_string(status));
    dp_pipeline_break(pipeline, &error);
}

dp_status_t dp_lane_open_for(dp_pipeline_t *pipeline, const dp_pipeline_launch_t *launch)
{
    dp_engine_t *engine = pipeline->engine;
    dp_engine_group_t *group = launch->group != NULL ? launch->group->engine : NULL;
    dp_error_t error = {DP_OK, ""};
    dp_status_t status = DP_OK;

    if (pipeline->device->ops->is_async && pipeline->lanes[DP_LANE_GATHER].pack == NULL)
        status = dp_lane_open(pipeline, DP_LANE_GATHER);
    if (status == DP_OK && engine->ops->open_gather_lane != NULL)
        status = engine->ops->open_gather_lane(engine, group, &error);
    if (status == DP_OK) return DP_OK;
    if (error.text[0] == '\0') {
        dp_lane_break(pipeline, status);
    } else {
        dp_pipeline_break(pipeline, &error);
    }
    return status;
}
