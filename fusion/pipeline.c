/*
 * pipeline.c - the data plane's life: what is made at the start, in which order it ends, and what
 * it has done; and the way into it, by lanes. The picture is in pipeline.h.
 *
 * Called by the thread that creates and ends a context, and by those that launch. For what the
 * ranks agree on, dp_pipeline_submit() is called by one thread at a time, in the global order, and
 * nothing but that order decides about lanes: so all ranks of a group decide alike. The launches of
 * an ordered group say which lane is theirs. runner.c carries launches out. This file must not know
 * how the ranks agreed on a launch, nor how bytes move.
 */
#include "fusion/job.h"

#include <stdlib.h>
#include <time.h>

static const char *const thread_names[DP_LANE_COUNT] = {
    "dp launch", "dp gathers", "dp ordered", "dp ordered 2", "dp ordered 3", "dp ordered 4"};

#define ALIGNMENT 64 /* of pieces in a fused buffer: a cache line, and the widest vector */

dp_status_t dp_pipeline_create(const dp_config_t *config, int rank, int ranks, dp_device_t *device,
                               dp_engine_t *engine, const dp_log_t *log, dp_trace_t *trace,
                               const dp_pipeline_callbacks_t *callbacks, dp_pipeline_t **out)
{
    dp_pipeline_t *pipeline = calloc(1, sizeof(*pipeline));
    dp_status_t status;

    if (pipeline == NULL) return DP_ERR_NO_MEMORY;
    pipeline->rank = rank;
    pipeline->ranks = ranks;
    pipeline->spin_ns = dp_config_idle_spin_ns(config);
    pipeline->limits = (dp_plan_limits_t){
        .buffer_bytes = dp_max(config->fusion_bytes, dp_plan_least_buffer_bytes(ranks)),
        .alignment = ALIGNMENT,
        .ranks = ranks,
        .casts = !engine->ops->compresses};
    pipeline->device = device;
    pipeline->engine = engine;
    pipeline->log = log;
    pipeline->trace = trace;
    pipeline->callbacks = *callbacks;
    pipeline->buffer_count = (size_t)config->fusion_buffers;
    pthread_mutex_init(&pipeline->lock, NULL);
    pthread_mutex_init(&pipeline->opening, NULL);
    pthread_mutex_init(&pipeline->record_lock, NULL);
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        const int is_shared = i == DP_LANE_GATHER && device->ops->is_async;

        dp_launch_queue_init(&pipeline->queues[i], pipeline, thread_names[i]);
        pipeline->lanes[i].queue = &pipeline->queues[is_shared ? DP_LANE_MAIN : i];
    }
    pipeline->name_bytes_in_flight = dp_trace_name(trace, "bytes in flight");
    pipeline->name_buffers_in_use = dp_trace_name(trace, "buffers in use");
    status = dp_pipeline_preallocate_launches(pipeline);
    if (status == DP_OK) status = dp_lane_open(pipeline, DP_LANE_MAIN);
    if (status == DP_OK) status = dp_launch_queue_start(&pipeline->queues[DP_LANE_MAIN]);
    if (status != DP_OK) goto fail;
    *out = pipeline;
    return DP_OK;
fail:
    dp_pipeline_destroy(pipeline);
    return status;
}

void dp_pipeline_destroy(dp_pipeline_t *pipeline)
{
    if (pipeline == NULL) return;
    for (int i = 0; i < DP_LANE_COUNT; i++)
        dp_launch_queue_stop(&pipeline->queues[i]);
    for (int i = 0; i < DP_LANE_COUNT; i++)
        dp_lane_close(pipeline, (dp_lane_t)i);
    for (int i = 0; i < DP_LANE_COUNT; i++)
        dp_launch_queue_fini(&pipeline->queues[i]);
    while (pipeline->idle != NULL) {
        dp_pipeline_launch_t *launch = pipeline->idle;

        pipeline->idle = launch->next;
        free(launch->items);
        free(launch);
    }
    while (pipeline->pool != NULL) {
        dp_fusion_job_t *job = pipeline->pool;

        pipeline->pool = job->next;
        dp_fusion_job_destroy(job);
    }
    pthread_mutex_destroy(&pipeline->opening);
    pthread_mutex_destroy(&pipeline->record_lock);
    pthread_mutex_destroy(&pipeline->lock);
    free(pipeline);
}

void dp_pipeline_stats(const dp_pipeline_t *pipeline, dp_pipeline_stats_t *out)
{
    struct timespec used;
    clockid_t clock;

    *out = (dp_pipeline_stats_t){
        .buckets = atomic_load_explicit(&pipeline->buckets_done, memory_order_relaxed),
        .bytes_packed = atomic_load_explicit(&pipeline->bytes_packed, memory_order_relaxed),
        .bytes_wire = atomic_load_explicit(&pipeline->bytes_wire, memory_order_relaxed),
        .transfer_ns = atomic_load_explicit(&pipeline->transfer_ns, memory_order_relaxed),
        .cpu_ns = pipeline->device->ops->cpu_ns(pipeline->device)};
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        const dp_launch_queue_t *queue = &pipeline->queues[i];

        if (!atomic_load_explicit(&queue->is_started, memory_order_acquire)) continue;
        if (pthread_getcpuclockid(queue->thread, &clock) == 0 && clock_gettime(clock, &used) == 0)
            out->cpu_ns += (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    }
}

/* ---- Lanes ---------------------------------------------------------------------------------- */

/* Streams, and a queue with a launch thread, for all groups that use the lane. Any thread. */
static dp_status_t start_lane(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    dp_launch_queue_t *queue = &pipeline->queues[lane];
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&pipeline->opening);
    if (!queue->is_started) {
        status = dp_lane_open(pipeline, lane);
        if (status == DP_OK) {
            status = dp_launch_queue_start(queue);
            if (status != DP_OK) dp_lane_close(pipeline, lane);
        }
    }
    pthread_mutex_unlock(&pipeline->opening);
    return status;
}

dp_status_t dp_pipeline_order(dp_pipeline_t *pipeline, dp_pipeline_group_t *group, dp_lane_t lane,
                              dp_lane_t gather_lane)
{
    dp_pipeline_group_t *at = group != NULL ? group : &pipeline->world;
    dp_status_t status;

    DP_ASSERT(lane >= DP_LANE_ORDERED && lane < DP_LANE_COUNT);
    status = start_lane(pipeline, lane);
    if (status != DP_OK) return status;
    at->own_lane = lane;
    at->gather_lane = gather_lane;
    return DP_OK;
}

/* From the next launch on the group's gathers travel in that lane. On an asynchronous device the
 * launch thread makes it, when it comes to this launch. */
static void open_gather_lane(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                             dp_pipeline_group_t *group, dp_lane_t lane)
{
    const dp_status_t status = pipeline->device->ops->is_async ? DP_OK : start_lane(pipeline, lane);

    if (status != DP_OK) {
        dp_lane_break(pipeline, status);
        return;
    }
    launch->opens_gather_lane = lane == DP_LANE_GATHER; /* the engine has opened the others */
    atomic_store_explicit(&group->has_gather_lane, 1, memory_order_release);
}

dp_lane_t dp_pipeline_lane(const dp_pipeline_t *pipeline, const dp_pipeline_group_t *group,
                           int is_ordered, dp_collective_t collective)
{
    const dp_pipeline_group_t *at = group != NULL ? group : &pipeline->world;

    if (dp_lane_of(collective) == DP_LANE_MAIN ||
        !atomic_load_explicit(&at->has_gather_lane, memory_order_acquire))
        return is_ordered ? at->own_lane : DP_LANE_MAIN;
    return is_ordered ? at->gather_lane : DP_LANE_GATHER;
}

static size_t count_gathers(const dp_pipeline_launch_t *launch, int *has_allgather)
{
    size_t count = 0;

    *has_allgather = 0;
    for (size_t i = 0; i < launch->item_count; i++) {
        const dp_collective_t collective = launch->items[i].collective;

        count += dp_lane_of(collective) == DP_LANE_GATHER;
        if (collective == DP_COLLECTIVE_ALLGATHER) *has_allgather = 1;
    }
    return count;
}

/* Moves the items for the gather lane, in their order, into a launch of their own; NULL: no memory,
 * and the data plane is broken. */
static dp_pipeline_launch_t *cut_gathers(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                                         size_t count)
{
    dp_pipeline_launch_t *part;
    size_t kept = 0, moved = 0;

    if (dp_pipeline_launch_take(pipeline, count, &part) != DP_OK) {
        dp_lane_break(pipeline, DP_ERR_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < launch->item_count; i++) {
        if (dp_lane_of(launch->items[i].collective) == DP_LANE_GATHER) {
            part->items[moved++] = launch->items[i];
        } else {
            launch->items[kept++] = launch->items[i];
        }
    }
    launch->item_count = kept;
    part->sequence = launch->sequence;
    part->digest = launch->digest;
    part->group = launch->group;
    part->whole = launch;
    atomic_store_explicit(&launch->parts_left, 2, memory_order_relaxed);
    return part;
}

static void add_to_lane(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, dp_lane_t lane,
                        int progress_lane)
{
    launch->lane = lane;
    if (lane != DP_LANE_MAIN && launch->group != NULL)
        atomic_fetch_add_explicit(&launch->group->beside, 1, memory_order_relaxed);
    dp_launch_queue_add(pipeline->lanes[lane].queue, launch, progress_lane == (int)lane);
}

void dp_pipeline_submit(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, int progress_lane)
{
    dp_pipeline_group_t *group = launch->group != NULL ? launch->group : &pipeline->world;
    const dp_lane_t gather_lane =
        launch->lane == DP_LANE_MAIN ? DP_LANE_GATHER : group->gather_lane;
    int has_allgather;
    const size_t gathers = count_gathers(launch, &has_allgather);
    dp_pipeline_launch_t *part = NULL;
    dp_lane_t lane = launch->lane;

    if (gathers > 0 && atomic_load_explicit(&group->has_gather_lane, memory_order_relaxed)) {
        if (gathers == launch->item_count) {
            lane = gather_lane;
        } else {
            part = cut_gathers(pipeline, launch, gathers);
        }
    } else if (has_allgather && gather_lane != DP_LANE_MAIN && !dp_pipeline_is_aborted(pipeline)) {
        open_gather_lane(pipeline, launch, group, gather_lane);
    }
    add_to_lane(pipeline, launch, lane, progress_lane);
    if (part != NULL) add_to_lane(pipeline, part, gather_lane, progress_lane);
}
