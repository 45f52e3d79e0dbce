/*
 * runner.c - runs the launches of a queue: on its launch thread, or on a thread in dp_wait() in its
 * place, whichever holds the queue's progress_lock.
 *
 * Launches are taken from the queue in the order in which they were submitted; each becomes a job
 * (job.c), whose buckets are started one after the other (bucket.c). An idle launch thread polls
 * for DP_SPIN and then sleeps on a futex. Called by pipeline.c and lanes.c, which start and
 * stop queues, and by wait.c and launch.c of coordinator/api for a waiting thread. It must not know
 * why a launch is in this queue, nor how bytes move.
 */
#include "fusion/bucket.h"

#include <sched.h>
#include <string.h>

#include "runtime/base/limits.h"
#include "runtime/base/thread.h"

#define POLLS 32         /* between two looks at the clock */
#define REST_NS 1000000u /* of a launch thread in whose place waiting threads run the launches */
#define RELEASE_NS 20000u

/*
 * Polls for spin_ns, then sleeps, until the doorbell has another value than `heard`. The polling
 * load may be relaxed: the queue itself is read under the lock afterwards. The store of is_asleep
 * and the load behind it are sequentially consistent, as dp_launch_queue_ring_doorbell() writes the
 * doorbell and then reads is_asleep.
 */
static void await_doorbell(dp_launch_queue_t *queue, uint32_t heard)
{
    const uint64_t spin_ns = queue->pipeline->spin_ns;
    uint64_t start_ns = spin_ns > 0 ? dp_now_ns() : 0;
    unsigned polls = 0;

    while (atomic_load_explicit(&queue->doorbell, memory_order_relaxed) == heard) {
        if (spin_ns == 0) break;
        dp_spin_pause();
        if (++polls % POLLS == 0 && dp_now_ns() - start_ns >= spin_ns) break;
    }
    while (atomic_load(&queue->doorbell) == heard) {
        atomic_store(&queue->is_asleep, 1);
        if (atomic_load(&queue->doorbell) == heard) {
            dp_futex_wait(&queue->doorbell, heard, UINT64_MAX);
        }
        atomic_store(&queue->is_asleep, 0);
    }
}

/* Leaves what is queued to the waiting thread that probably comes for it, for REST_NS at most.
 * 1: more came meanwhile of which the same is true. */
static int rest(dp_launch_queue_t *queue, uint32_t heard)
{
    if (!atomic_exchange(&queue->is_awaited, 0)) return 0;
    atomic_store(&queue->is_resting, 1);
    atomic_store(&queue->is_asleep, 1);
    if (atomic_load(&queue->doorbell) == heard) dp_futex_wait(&queue->doorbell, heard, REST_NS);
    atomic_store(&queue->is_asleep, 0);
    atomic_store(&queue->is_resting, 0);
    return atomic_load(&queue->is_awaited) != 0;
}

/* ---- The launch thread ---------------------------------------------------------------------- */

/* 1: the launch can be carried out. Else the data plane is broken, for this reason. */
static int prepare_launch(dp_pipeline_t *pipeline, const dp_pipeline_launch_t *launch)
{
    if (!launch->opens_gather_lane) return 1;
    return dp_lane_open_for(pipeline, launch) == DP_OK;
}

/* give_up_ns: as in dp_engine_op_t. */
static void run_launch(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, uint64_t give_up_ns)
{
    size_t bucket_count;
    dp_error_t error;
    dp_fusion_job_t *job;

    if (!dp_pipeline_is_aborted(pipeline) && prepare_launch(pipeline, launch)) {
        dp_status_t status = dp_fusion_job_create(pipeline, launch, give_up_ns, &job);

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
static int run_next_launch(dp_launch_queue_t *queue)
{
    dp_pipeline_launch_t *launch = dp_launch_queue_take(queue);

    if (launch != NULL) run_launch(queue->pipeline, launch, 0);
    return launch != NULL;
}

/* ---- A thread that waits -------------------------------------------------------------------- */

int dp_pipeline_is_brief(const dp_pipeline_t *pipeline, const dp_pipeline_group_t *group,
                         dp_collective_t collective, size_t bytes)
{
    const dp_engine_t *engine = pipeline->engine;

    if (collective == DP_COLLECTIVE_BARRIER) return 1; /* it takes no part of the engine */
    if (engine->ops->brief_bytes == NULL) return 0;
    if (collective != DP_COLLECTIVE_ALLREDUCE && collective != DP_COLLECTIVE_REDUCE &&
        collective != DP_COLLECTIVE_BROADCAST && collective != DP_COLLECTIVE_ALLGATHER)
        return 0;
    return bytes <= engine->ops->brief_bytes(engine, group != NULL ? group->engine : NULL);
}

/* All items together are small, so each bucket is, however they are divided. */
static int is_brief(const dp_pipeline_t *pipeline, const dp_pipeline_launch_t *launch)
{
    size_t bytes = 0;

    if (launch->opens_gather_lane) return 0;
    for (size_t i = 0; i < launch->item_count; i++) {
        const dp_pipeline_item_t *item = &launch->items[i];

        for (size_t t = 0; t < item->tensor_count; t++)
            bytes += item->tensors[t].count * dp_dtype_bytes(item->tensors[t].dtype);
        if (!dp_pipeline_is_brief(pipeline, launch->group, item->collective, bytes)) return 0;
    }
    return 1;
}

/* Runs the next launch on a thread that has to return by give_up_ns: only a brief launch, and only
 * if no earlier one is unfinished, as it could wait for that one's fused buffer. */
static int run_brief_launch(dp_launch_queue_t *queue, uint64_t give_up_ns)
{
    int is_next;
    const dp_pipeline_launch_t *launch = dp_launch_queue_peek(queue, &is_next);

    if (launch == NULL || !is_next || !is_brief(queue->pipeline, launch)) return 0;
    run_launch(queue->pipeline, dp_launch_queue_take(queue), give_up_ns);
    return 1;
}

void dp_pipeline_progress_begin(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    atomic_fetch_add(&pipeline->lanes[lane].queue->progress_threads, 1);
}

/* The launch thread wakes a waiter while it holds the lock still, so the waiter offers it the core
 * for a moment. No longer: another thread's launch may hold the lock for as long as it takes. */
static int acquire_progress(dp_launch_queue_t *queue, const _Atomic uint32_t *state,
                            uint32_t reached)
{
    uint64_t until_ns;

    if (pthread_mutex_trylock(&queue->progress_lock) == 0) return 1;
    until_ns = dp_now_ns() + RELEASE_NS;
    do {
        if (atomic_load_explicit(state, memory_order_acquire) >= reached) return 0;
        (void)sched_yield();
        if (pthread_mutex_trylock(&queue->progress_lock) == 0) return 1;
    } while (dp_now_ns() < until_ns);
    return 0;
}

int dp_pipeline_progress(dp_pipeline_t *pipeline, dp_lane_t lane, const _Atomic uint32_t *state,
                         uint32_t reached, uint64_t give_up_ns)
{
    dp_launch_queue_t *queue = pipeline->lanes[lane].queue;
    int did = 0;

    if (!acquire_progress(queue, state, reached)) return 0;
    while (
        atomic_load_explicit(state, memory_order_acquire) < reached &&
        (give_up_ns == UINT64_MAX ? run_next_launch(queue) : run_brief_launch(queue, give_up_ns)))
        did = 1;
    pthread_mutex_unlock(&queue->progress_lock);
    /* A launch may have come while this thread held the lock. Its own waiter found the lock taken
     * and went to sleep, and its submitter woke nobody: so the launch thread has to. */
    if (!dp_launch_queue_is_empty(queue)) dp_launch_queue_ring_doorbell(queue, DP_QUEUE_WAKE);
    return did;
}

void dp_pipeline_progress_end(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    dp_launch_queue_t *queue = pipeline->lanes[lane].queue;

    atomic_fetch_sub(&queue->progress_threads, 1);
    dp_pipeline_wake(pipeline, lane);
}

void dp_pipeline_wake(dp_pipeline_t *pipeline, dp_lane_t lane)
{
    dp_launch_queue_t *queue = pipeline->lanes[lane].queue;

    if (!dp_launch_queue_is_empty(queue)) dp_launch_queue_ring_doorbell(queue, DP_QUEUE_WAKE);
}

static void *launch_main(void *argument)
{
    dp_launch_queue_t *queue = argument;

    pthread_setname_np(pthread_self(), queue->thread_name);
    for (;;) {
        uint32_t heard = atomic_load(&queue->doorbell);
        int did;

        if (rest(queue, heard)) continue;
        heard = atomic_load(&queue->doorbell);
        pthread_mutex_lock(&queue->progress_lock);
        did = run_next_launch(queue);
        pthread_mutex_unlock(&queue->progress_lock);
        if (did) {
            continue;
        } else if (atomic_load(&queue->is_stopping)) {
            return NULL;
        } else {
            await_doorbell(queue, heard);
        }
    }
}

dp_status_t dp_launch_queue_start(dp_launch_queue_t *queue)
{
    const int code = dp_thread_start(&queue->thread, launch_main, queue);

    if (code != 0) {
        dp_log_error(queue->pipeline->log, "launch thread: no thread: %s",
                     dp_limits_describe_start(code));
        return DP_ERR_SYSTEM;
    }
    queue->is_started = 1;
    return DP_OK;
}

void dp_launch_queue_stop(dp_launch_queue_t *queue)
{
    if (!queue->is_started) return;
    atomic_store(&queue->is_stopping, 1);
    dp_launch_queue_ring_doorbell(queue, DP_QUEUE_WAKE);
    pthread_join(queue->thread, NULL);
    queue->is_started = 0;
}
