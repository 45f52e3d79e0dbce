/*
 * launches.c - the launches of a pipeline: those to be used again, those in the queues, and how all
 * of them are failed.
 *
 * Called by the thread that submits (coordinator or waiter), by the launch threads, and by any
 * thread that finds a failure. The lower half of fusion: job.c, bucket.c and the others call this
 * file. It must not know how a launch is carried out, nor which lane it travels in.
 */
#include "fusion/pipeline_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"

/* Launches made in advance. A waiter that sees its request complete may submit the next launch
 * before the last one is back in the pool, so one would not do. */
#define LAUNCHES 8

/* ---- To be used again ----------------------------------------------------------------------- */

dp_status_t dp_pipeline_launch_take(dp_pipeline_t *pipeline, size_t item_count,
                                    dp_pipeline_launch_t **out)
{
    dp_pipeline_launch_t *launch;
    dp_pipeline_item_t *items;
    size_t room;

    pthread_mutex_lock(&pipeline->lock);
    launch = pipeline->idle;
    if (launch != NULL) pipeline->idle = launch->next;
    pthread_mutex_unlock(&pipeline->lock);
    if (launch == NULL) launch = calloc(1, sizeof(*launch));
    if (launch == NULL) return DP_ERR_NO_MEMORY;
    items = launch->items;
    room = launch->item_room;
    if (room < item_count) {
        room = dp_max(2 * room, item_count);
        items = realloc(launch->items, room * sizeof(*items));
        if (items == NULL) {
            dp_pipeline_launch_give(pipeline, launch);
            return DP_ERR_NO_MEMORY;
        }
    }
    *launch = (dp_pipeline_launch_t){.items = items, .item_count = item_count, .item_room = room};
    if (item_count > 0) memset(items, 0, item_count * sizeof(*items));
    *out = launch;
    return DP_OK;
}

void dp_pipeline_launch_give(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch)
{
    pthread_mutex_lock(&pipeline->lock);
    launch->next = pipeline->idle;
    pipeline->idle = launch;
    pthread_mutex_unlock(&pipeline->lock);
}

dp_status_t dp_pipeline_preallocate_launches(dp_pipeline_t *pipeline)
{
    dp_pipeline_launch_t *launches[LAUNCHES];
    dp_status_t status = DP_OK;
    int made = 0;

    while (made < LAUNCHES && status == DP_OK) {
        status = dp_pipeline_launch_take(pipeline, 1, &launches[made]);
        if (status == DP_OK) made++;
    }
    while (made > 0)
        dp_pipeline_launch_give(pipeline, launches[--made]);
    return status;
}

void dp_pipeline_launch_end(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch)
{
    dp_pipeline_launch_t *whole = launch->whole != NULL ? launch->whole : launch;
    dp_launch_queue_t *queue = pipeline->lanes[launch->lane].queue;
    uint64_t sequence = launch->sequence;
    const int is_agreed = launch->lane < DP_LANE_ORDERED;
    int is_over;

    if (launch->lane != DP_LANE_MAIN && launch->group != NULL)
        atomic_fetch_sub_explicit(&launch->group->beside, 1, memory_order_release);
    /* acq_rel: the part that ends last gives the memory back behind all that the other did */
    is_over = atomic_load_explicit(&whole->parts_left, memory_order_acquire) == 0 ||
              atomic_fetch_sub_explicit(&whole->parts_left, 1, memory_order_acq_rel) == 1;
    if (launch != whole) dp_pipeline_launch_give(pipeline, launch);
    if (is_over) dp_pipeline_launch_give(pipeline, whole);
    atomic_fetch_sub_explicit(&queue->pending, 1, memory_order_acq_rel);
    if (is_over && is_agreed) pipeline->callbacks.launch_done(pipeline->callbacks.user, sequence);
}

/* ---- The queues ----------------------------------------------------------------------------- */

void dp_launch_queue_init(dp_launch_queue_t *queue, dp_pipeline_t *pipeline, const char *name)
{
    queue->pipeline = pipeline;
    queue->thread_name = name;
    queue->last = &queue->first;
    pthread_mutex_init(&queue->progress_lock, NULL);
}

void dp_launch_queue_fini(dp_launch_queue_t *queue)
{
    pthread_mutex_destroy(&queue->progress_lock);
}

/*
 * Wakes the launch thread, unless another thread is about to run the queue. Both tests need
 * sequential consistency, as each side writes one variable and then reads the other's:
 *
 *   this side              launch thread (runner.c)      dp_pipeline_progress_end()
 *   queue the launch
 *   doorbell + 1           is_asleep = 1                 progress_threads - 1
 *   read is_asleep         read doorbell, or sleep       look at the queue
 *   read progress_threads
 *
 * So of two that cross, at least one sees the other: no launch is left in the queue while nobody
 * looks at it. A launch thread that rests wakes by itself and looks, so a launch whose waiter is
 * only likely to come waits for it no longer than that.
 */
void dp_launch_queue_ring_doorbell(dp_launch_queue_t *queue, dp_queue_wake_t wake)
{
    if (wake != DP_QUEUE_PROGRESS_FOLLOWS)
        atomic_store(&queue->is_awaited, wake == DP_QUEUE_PROGRESS_LIKELY);
    atomic_fetch_add(&queue->doorbell, 1);
    if (wake == DP_QUEUE_PROGRESS_FOLLOWS) return;
    if (wake == DP_QUEUE_PROGRESS_LIKELY && atomic_load(&queue->is_resting) != 0) return;
    if (atomic_load(&queue->is_asleep) != 0 && atomic_load(&queue->progress_threads) == 0)
        dp_futex_wake(&queue->doorbell);
}

dp_pipeline_launch_t *dp_launch_queue_take(dp_launch_queue_t *queue)
{
    dp_pipeline_launch_t *launch;

    pthread_mutex_lock(&queue->pipeline->lock);
    launch = queue->first;
    if (launch != NULL) {
        queue->first = launch->next;
        if (queue->first == NULL) queue->last = &queue->first;
        queue->queued--;
    }
    pthread_mutex_unlock(&queue->pipeline->lock);
    return launch;
}

const dp_pipeline_launch_t *dp_launch_queue_peek(dp_launch_queue_t *queue, int *is_next)
{
    const dp_pipeline_launch_t *launch;

    pthread_mutex_lock(&queue->pipeline->lock);
    launch = queue->first;
    /* Acquire pairs with dp_pipeline_launch_end(): what the launches before did is done. */
    *is_next = atomic_load_explicit(&queue->pending, memory_order_acquire) == queue->queued;
    pthread_mutex_unlock(&queue->pipeline->lock);
    return launch;
}

int dp_launch_queue_is_empty(dp_launch_queue_t *queue)
{
    int is_empty;

    pthread_mutex_lock(&queue->pipeline->lock);
    is_empty = queue->first == NULL;
    pthread_mutex_unlock(&queue->pipeline->lock);
    return is_empty;
}

void dp_launch_queue_add(dp_launch_queue_t *queue, dp_pipeline_launch_t *launch,
                         int progress_follows)
{
    const dp_queue_wake_t wake = progress_follows          ? DP_QUEUE_PROGRESS_FOLLOWS
                                 : launch->is_awaited_soon ? DP_QUEUE_PROGRESS_LIKELY
                                                           : DP_QUEUE_WAKE;

    launch->next = NULL;
    atomic_fetch_add_explicit(&queue->pending, 1, memory_order_relaxed);
    pthread_mutex_lock(&queue->pipeline->lock);
    *queue->last = launch;
    queue->last = &launch->next;
    queue->queued++;
    pthread_mutex_unlock(&queue->pipeline->lock);
    dp_launch_queue_ring_doorbell(queue, wake);
}

size_t dp_pipeline_pending(const dp_pipeline_t *pipeline)
{
    size_t pending = 0;

    for (int i = 0; i < DP_LANE_ORDERED; i++)
        pending += atomic_load_explicit(&pipeline->queues[i].pending, memory_order_acquire);
    return pending;
}

int dp_pipeline_is_busy(const dp_pipeline_t *pipeline, dp_lane_t lane)
{
    return atomic_load_explicit(&pipeline->lanes[lane].queue->pending, memory_order_acquire) > 0;
}

/* ---- Failure -------------------------------------------------------------------------------- */

void dp_pipeline_abort(dp_pipeline_t *pipeline, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&pipeline->lock);
    if (!atomic_load_explicit(&pipeline->is_aborted, memory_order_relaxed)) {
        pipeline->abort_status = status;
        snprintf(pipeline->abort_text, sizeof(pipeline->abort_text), "%s", text);
        /* pairs with dp_pipeline_is_aborted(): a reader that sees 1 sees status and text */
        atomic_store_explicit(&pipeline->is_aborted, 1, memory_order_release);
    }
    pthread_mutex_unlock(&pipeline->lock);
    /* The order matters: first the skip flag, which keeps a queued optimizer from using what was
     * half reduced; then the engine, which lets the streams move on. */
    if (pipeline->device->ops->is_async) pipeline->device->ops->abort(pipeline->device);
    pipeline->engine->ops->abort(pipeline->engine, pipeline->abort_status, pipeline->abort_text);
}

void dp_pipeline_break(dp_pipeline_t *pipeline, const dp_error_t *error)
{
    if (!dp_pipeline_is_aborted(pipeline)) dp_log_error(pipeline->log, "%s", error->text);
    dp_pipeline_abort(pipeline, error->status, error->text);
}
