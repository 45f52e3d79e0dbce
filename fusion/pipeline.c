/*
 * pipeline.c - the data plane's life: what is made at the start, in which order it ends, and what
 * it has done.
 *
 * Launches enter in lanes.c and are carried out from runner.c on. Called by the thread that creates
 * and ends a context. This file must not know how the ranks agreed on a launch, nor how bytes move.
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
    pipeline->spin_ns = config->spin_ns;
    pipeline->limits = (dp_plan_limits_t){
        .buffer_bytes = dp_max(config->fusion_bytes, dp_plan_least_buffer_bytes(ranks)),
        .alignment = ALIGNMENT,
        .ranks = ranks};
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
