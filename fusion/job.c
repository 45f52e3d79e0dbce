/*
 * job.c - a launch being carried out: which parts each item has, and when it is complete.
 *
 * Jobs are kept and used again with their arrays, so that a training loop allocates only while its
 * launches still grow. It must not know how a bucket is moved.
 */
#include "fusion/pipeline_internal.h"
#include "fusion/compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_sum(const dp_pipeline_item_t *item)
{
    return (item->collective == DP_COLLECTIVE_ALLREDUCE ||
            item->collective == DP_COLLECTIVE_REDUCE_SCATTER) &&
           (item->reduce == DP_SUM || item->reduce == DP_AVERAGE);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_job_t *job_make(dp_pipeline_t *pipeline)
{
    dp_job_t *job = calloc(1, sizeof(*job));

    if (job == NULL) return NULL;
    job->pipeline = pipeline;
    pthread_mutex_init(&job->lock, NULL);
    return job;
}

void dp_job_destroy(dp_job_t *job)
{
    if (job == NULL) return;
    dp_plan_fini(&job->plan);
    free(job->entries);
    free(job->sources);
    free(job->items);
    free(job->buckets);
    free(job->pieces);
    free(job->tallies);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

static dp_job_t *pool_take(dp_pipeline_t *pipeline)
{
    dp_job_t *job;

    pthread_mutex_lock(&pipeline->lock);
    job = pipeline->pool;
    if (job != NULL) pipeline->pool = job->next;
    pthread_mutex_unlock(&pipeline->lock);
    return job != NULL ? job : job_make(pipeline);
}

static void pool_give(dp_job_t *job)
{
    dp_pipeline_t *pipeline = job->pipeline;

    pthread_mutex_lock(&pipeline->lock);
    job->next = pipeline->pool;
    pipeline->pool = job;
    pthread_mutex_unlock(&pipeline->lock);
}

/* Replaces an array by a larger one; what was in it is not kept. 0: no memory. */
static int reserve(void *array, size_t room, size_t bytes)
{
    void *larger = malloc(room * bytes);
    void *old;

    if (larger == NULL) return 0;
    memcpy(&old, array, sizeof(old));
    free(old);
    memcpy(array, &larger, sizeof(larger));
    return 1;
}

static size_t grown(size_t room, size_t count)
{
    return DP_MAX(count, room + room / 2);
}

static dp_status_t reserve_entries(dp_job_t *job, size_t items, size_t entries)
{
    size_t room = grown(job->item_room, items);

    if (items > job->item_room) {
        if (!reserve(&job->items, room, sizeof(*job->items))) return DP_ERR_NO_MEMORY;
        job->item_room = room;
    }
    room = grown(job->entry_room, entries);
    if (entries > job->entry_room) {
        if (!reserve(&job->entries, room, sizeof(*job->entries)) ||
            !reserve(&job->sources, room, sizeof(*job->sources))) {
            return DP_ERR_NO_MEMORY;
        }
        job->entry_room = room;
    }
    return DP_OK;
}

static dp_status_t reserve_buckets(dp_job_t *job)
{
    size_t room = grown(job->bucket_room, job->plan.bucket_count);

    if (job->plan.bucket_count > job->bucket_room) {
        if (!reserve(&job->buckets, room, sizeof(*job->buckets))) return DP_ERR_NO_MEMORY;
        job->bucket_room = room;
    }
    room = grown(job->piece_room, job->plan.piece_count);
    if (job->plan.piece_count > job->piece_room) {
        if (!reserve(&job->pieces, room, sizeof(*job->pieces)) ||
            !reserve(&job->tallies, room, sizeof(*job->tallies))) {
            return DP_ERR_NO_MEMORY;
        }
        job->piece_room = room;
    }
    return DP_OK;
}

/* ---- Planning ------------------------------------------------------------------------------- */

static void fill_item(const dp_job_t *job, dp_job_item_t *state, const dp_pipeline_item_t *item)
{
    *state =
        (dp_job_item_t){.item = item, .postscale = item->postscale, .status = DP_OK, .text = ""};
    for (size_t t = 0; t < item->tensor_count && is_sum(item); t++) {
        state->wants_tally |= dp_job_is_float(item->tensors[t].dtype);
    }
    if (item->reduce == DP_AVERAGE) state->postscale /= (double)job->pipeline->ranks;
    dp_tally_init(&state->tally);
}

static void fill_entries(dp_job_t *job, const dp_pipeline_launch_t *launch)
{
    size_t e = 0;

    for (size_t i = 0; i < launch->item_count; i++) {
        const dp_pipeline_item_t *item = &launch->items[i];
        dp_wire_t wire;

        fill_item(job, &job->items[i], item);
        wire = dp_compress_choose(item->wire, item->last_absmax, &job->items[i].exponent);
        for (size_t t = 0; t < item->tensor_count; t++, e++) {
            const dp_pipeline_tensor_t *tensor = &item->tensors[t];
            int compresses = tensor->dtype == DP_F32 && is_sum(item);

            job->sources[e] = (dp_job_source_t){i, tensor};
            job->entries[e] = (dp_plan_entry_t){.collective = item->collective,
                                                .dtype = tensor->dtype,
                                                .reduce = item->reduce,
                                                .wire = compresses ? wire : DP_WIRE_NONE,
                                                .root = item->root,
                                                .count = tensor->count,
                                                .in_place = item->in_place != 0};
        }
    }
    job->entry_count = e;
}

static void fill_buckets(dp_job_t *job)
{
    for (size_t b = 0; b < job->plan.bucket_count; b++) {
        job->buckets[b] = (dp_job_bucket_t){.job = job, .plan = &job->plan.buckets[b]};
    }
    for (size_t p = 0; p < job->plan.piece_count; p++) {
        job->items[job->sources[job->plan.pieces[p].entry].item].parts_left++;
        dp_tally_init(&job->tallies[p]);
    }
    job->open = job->plan.bucket_count + 1;
}

dp_status_t dp_job_create(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, dp_job_t **out)
{
    dp_job_t *job = pool_take(pipeline);
    size_t entries = 0;
    dp_status_t status;

    if (job == NULL) return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < launch->item_count; i++)
        entries += launch->items[i].tensor_count;
    status = reserve_entries(job, launch->item_count, entries);
    if (status != DP_OK) goto fail;
    fill_entries(job, launch);
    status = dp_plan_make(&job->plan, job->entries, job->entry_count, &pipeline->limits);
    if (status == DP_OK) status = reserve_buckets(job);
    if (status != DP_OK) goto fail;
    fill_buckets(job);
    job->launch = launch;
    *out = job;
    return DP_OK;
fail:
    pool_give(job);
    return status;
}

/* ---- Completion ----------------------------------------------------------------------------- */

/* The largest magnitude before postscale, which the next exponent follows. */
static float raw_absmax(const dp_job_item_t *state)
{
    double scale = fabs(state->postscale);

    if (!state->wants_tally) return -1.0f;
    if (state->tally.nonfinite > 0) return INFINITY;
    return scale > 0.0 && scale < (double)INFINITY ? (float)(state->tally.absmax / scale) : -1.0f;
}

/* Tells the caller about an item whose parts are all over. Without locks. */
static void complete_item(dp_job_t *job, const dp_job_item_t *state)
{
    const dp_pipeline_callbacks_t *callbacks = &job->pipeline->callbacks;
    char text[DP_ERROR_TEXT_MAX] = "";
    dp_pipeline_done_t done = {.request = state->item->request,
                               .status = state->status,
                               .text = state->text,
                               .raw_absmax = -1.0f};

    if (state->begin_ns != 0) done.transfer_ns = dp_now_ns() - state->begin_ns;
    if (state->status == DP_OK) {
        done.tally = state->tally;
        done.raw_absmax = raw_absmax(state);
    } else if (state->text == NULL) {
        dp_error_t error;

        dp_error_set(&error, state->status, "rank %d: tensor %s was written while in flight",
                     job->pipeline->rank, state->item->name);
        memcpy(text, error.text, sizeof(text));
        done.text = text;
    }
    callbacks->done(callbacks->user, &done);
}

static void finish(dp_job_t *job)
{
    dp_pipeline_t *pipeline = job->pipeline;
    dp_pipeline_launch_t *launch = job->launch;
    uint64_t sequence = launch->sequence;

    job->launch = NULL;
    free(launch->items);
    free(launch);
    pool_give(job);
    atomic_fetch_sub_explicit(&pipeline->pending, 1, memory_order_acq_rel);
    pipeline->callbacks.launch_done(pipeline->callbacks.user, sequence);
}

void dp_job_release(dp_job_t *job)
{
    int is_over;

    pthread_mutex_lock(&job->lock);
    is_over = --job->open == 0;
    pthread_mutex_unlock(&job->lock);
    if (is_over) finish(job);
}

void dp_job_complete_empty(dp_job_t *job)
{
    for (size_t i = 0; i < job->launch->item_count; i++) {
        if (job->items[i].parts_left == 0) complete_item(job, &job->items[i]);
    }
}

/* Counts a part as over. 1: it was the item's last. */
static int end_part(dp_job_t *job, const dp_job_bucket_t *bucket, size_t piece)
{
    dp_job_item_t *state = &job->items[job->sources[job->plan.pieces[piece].entry].item];
    int is_over;

    pthread_mutex_lock(&job->lock);
    if (bucket->op.status != DP_OK && state->status == DP_OK) {
        state->status = bucket->op.status;
        state->text = bucket->op.text;
    }
    dp_tally_merge(&state->tally, &job->tallies[piece]);
    is_over = --state->parts_left == 0;
    pthread_mutex_unlock(&job->lock);
    return is_over;
}

void dp_job_end_bucket(dp_job_t *job, dp_job_bucket_t *bucket)
{
    const dp_plan_bucket_t *plan = bucket->plan;

    for (size_t p = plan->piece_begin; p < plan->piece_begin + plan->piece_count; p++) {
        if (end_part(job, bucket, p)) {
            complete_item(job, &job->items[job->sources[job->plan.pieces[p].entry].item]);
        }
    }
    dp_job_release(job);
}

void dp_launch_fail(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch, dp_status_t status,
                    const char *text)
{
    uint64_t sequence = launch->sequence;

    for (size_t i = 0; i < launch->item_count; i++) {
        dp_pipeline_done_t done = {.request = launch->items[i].request,
                                   .status = status,
                                   .text = text,
                                   .raw_absmax = -1.0f};

        pipeline->callbacks.done(pipeline->callbacks.user, &done);
    }
    free(launch->items);
    free(launch);
    atomic_fetch_sub_explicit(&pipeline->pending, 1, memory_order_acq_rel);
    pipeline->callbacks.launch_done(pipeline->callbacks.user, sequence);
}
