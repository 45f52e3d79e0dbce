/*
 * pipeline.c - the data plane's life, and the thread that runs launches.
 *
 * Launches are taken from the queue in the global order; each becomes a job (job.c), whose buckets
 * are started one after the other (bucket.c). The launch thread does that, or a thread in
 * dp_wait() in its place: whoever holds progress_lock. An idle launch thread polls for DP_SPIN and
 * then sleeps on a futex. This file must not know how the ranks agreed on a launch, nor how bytes
 * move.
 */
#include "fusion/bucket.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/futex.h"

#define ALIGNMENT 64 /* of pieces in a fused buffer: a cache line, and the widest vector */
#define POLLS 32     /* between two looks at the clock */

/*
 * Polls for spin_ns, then sleeps, until the doorbell has another value than `heard`. The polling
 * load may be relaxed: what was queued is read under the lock afterwards. The store of is_asleep
 * and the load behind it are sequentially consistent, as dp_pipeline_ring_doorbell() writes the
 * doorbell and then reads is_asleep.
 */
static void await_doorbell(dp_pipeline_t *pipeline, uint32_t heard)
{
    uint64_t start_ns = pipeline->spin_ns > 0 ? dp_now_ns() : 0;
    unsigned polls = 0;

    while (atomic_load_explicit(&pipeline->doorbell, memory_order_relaxed) == heard) {
        if (pipeline->spin_ns == 0) break;
        dp_spin_pause();
        if (++polls % POLLS == 0 && dp_now_ns() - start_ns >= pipeline->spin_ns) break;
    }
    while (atomic_load(&pipeline->doorbell) == heard) {
        atomic_store(&pipeline->is_asleep, 1);
        if (atomic_load(&pipeline->doorbell) == heard) {
            dp_futex_wait(&pipeline->doorbell, heard, UINT64_MAX);
        }
        atomic_store(&pipeline->is_asleep, 0);
    }
}

/* ---- The launch thread ---------------------------------------------------------------------- */

static void run_launch(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch)
{
    size_t bucket_count;
    dp_error_t error;
    dp_fusion_job_t *job;

    if (!dp_pipeline_is_aborted(pipeline)) {
        dp_status_t status = dp_fusion_job_create(pipeline, launch, &job);

        if (status == DP_OK) {
            dp_fusion_job_complete_empty(job);
            bucket_count = job->plan.bucket_count;
            for (size_t b = 0; b < bucket_count; b++) {
                dp_bucket_start(&job->buckets[b], b + 1 == bucket_count);
            }
            dp_fusion_job_release(job);
            return;
        }
        dp_error_set(&error, status, "rank %d: launch %llu cannot be planned: %s", pipeline->rank,
                     (unsigned long long)launch->sequence, dp_status_string(status));
        dp_pipeline_break(pipeline, &error);
    }
    dp_fusion_launch_fail(pipeline, launch, pipeline->abort_status, pipeline->abort_text);
}

/* progress_lock is held, so launches run in the order of the queue whichever thread does it. 1:
 * there was one. */
static int run_next_launch(dp_pipeline_t *pipeline)
{
    dp_pipeline_launch_t *launch = dp_pipeline_take_launch(pipeline);

    if (launch != NULL) run_launch(pipeline, launch);
    return launch != NULL;
}

void dp_pipeline_progress_begin(dp_pipeline_t *pipeline)
{
    atomic_fetch_add(&pipeline->progress_threads, 1);
}

int dp_pipeline_progress(dp_pipeline_t *pipeline, const _Atomic uint32_t *state, uint32_t reached)
{
    int did = 0;

    if (pthread_mutex_trylock(&pipeline->progress_lock) != 0) return 0;
    while (atomic_load_explicit(state, memory_order_acquire) < reached && run_next_launch(pipeline))
        did = 1;
    pthread_mutex_unlock(&pipeline->progress_lock);
    /* A launch may have come while this thread held the lock. Its own waiter found the lock taken
     * and went to sleep, and its submitter woke nobody: so the launch thread has to. */
    if (!dp_pipeline_is_last(pipeline)) dp_pipeline_ring_doorbell(pipeline, 0);
    return did;
}

void dp_pipeline_progress_end(dp_pipeline_t *pipeline)
{
    atomic_fetch_sub(&pipeline->progress_threads, 1);
    if (!dp_pipeline_is_last(pipeline)) dp_pipeline_ring_doorbell(pipeline, 0);
}

static void *launch_main(void *argument)
{
    dp_pipeline_t *pipeline = argument;

    pthread_setname_np(pthread_self(), "dp launch");
    for (;;) {
        uint32_t heard = atomic_load(&pipeline->doorbell);
        int did;

        pthread_mutex_lock(&pipeline->progress_lock);
        did = run_next_launch(pipeline);
        pthread_mutex_unlock(&pipeline->progress_lock);
        if (did) {
            continue;
        } else if (atomic_load(&pipeline->is_stopping)) {
            return NULL;
        } else {
            await_doorbell(pipeline, heard);
        }
    }
}

/* With all signals blocked, so that signals reach the program's own threads. The streams' threads
 * are started by the launch thread and inherit the mask. */
static dp_status_t start_thread(dp_pipeline_t *pipeline)
{
    sigset_t all, kept;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    code = pthread_create(&pipeline->thread, NULL, launch_main, pipeline);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    if (code != 0) {
        dp_log_error(pipeline->log, "launch thread: no thread: %s", strerror(code));
        return DP_ERR_SYSTEM;
    }
    pipeline->is_started = 1;
    return DP_OK;
}

/* ---- Life ----------------------------------------------------------------------------------- */

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
    pipeline->last = &pipeline->first;
    pthread_mutex_init(&pipeline->lock, NULL);
    pthread_mutex_init(&pipeline->progress_lock, NULL);
    pthread_mutex_init(&pipeline->record_lock, NULL);
    pipeline->pack_lane = dp_trace_lane(trace, "pack", DP_TRACE_LANE_STREAM);
    pipeline->wire_lane = dp_trace_lane(trace, "wire", DP_TRACE_LANE_STREAM);
    pipeline->unpack_lane = dp_trace_lane(trace, "unpack", DP_TRACE_LANE_STREAM);
    pipeline->name_bytes_in_flight = dp_trace_name(trace, "bytes in flight");
    pipeline->name_buffers_in_use = dp_trace_name(trace, "buffers in use");
    status = device->ops->stream_create(device, "pack", &pipeline->pack);
    if (status == DP_OK) status = device->ops->stream_create(device, "reduce", &pipeline->reduce);
    if (status == DP_OK) status = device->ops->stream_create(device, "unpack", &pipeline->unpack);
    if (status == DP_OK) status = device->ops->event_create(device, &pipeline->drained);
    if (status != DP_OK) goto fail;
    status = dp_fused_buffers_init(&pipeline->buffers, device, engine,
                                   (size_t)config->fusion_buffers, pipeline->limits.buffer_bytes);
    if (status != DP_OK) goto fail;
    status = dp_pipeline_preallocate_launches(pipeline);
    if (status == DP_OK) status = start_thread(pipeline);
    if (status != DP_OK) goto fail;
    *out = pipeline;
    return DP_OK;
fail:
    dp_pipeline_destroy(pipeline);
    return status;
}

void dp_pipeline_destroy(dp_pipeline_t *pipeline)
{
    const dp_device_ops_t *device;

    if (pipeline == NULL) return;
    device = pipeline->device->ops;
    if (pipeline->is_started) {
        atomic_store(&pipeline->is_stopping, 1);
        dp_pipeline_ring_doorbell(pipeline, 0);
        pthread_join(pipeline->thread, NULL);
    }
    /* In the order of the stages: destroying a stream finishes its work, which the next one awaits.
     */
    if (pipeline->pack != NULL) device->stream_destroy(pipeline->pack);
    if (pipeline->reduce != NULL) device->stream_destroy(pipeline->reduce);
    if (pipeline->unpack != NULL) device->stream_destroy(pipeline->unpack);
    if (pipeline->drained != NULL) device->event_destroy(pipeline->drained);
    dp_fused_buffers_fini(&pipeline->buffers);
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
    pthread_mutex_destroy(&pipeline->record_lock);
    pthread_mutex_destroy(&pipeline->progress_lock);
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
    if (pthread_getcpuclockid(pipeline->thread, &clock) == 0 && clock_gettime(clock, &used) == 0) {
        out->cpu_ns += (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    }
}
