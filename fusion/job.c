/*
 * job.c - makes a job of a launch, and completes its items when their parts have ended.
 *
 * Made by the thread that runs launches; dp_fusion_job_end_bucket() is called by whichever thread
 * ran a bucket's last stage, hence the lock. Jobs are kept and used again with their arrays, so
 * that a training loop allocates only while its launches still grow. It must not know how a bucket
 * is moved.
 */
#include "fusion/job.h"
#include "fusion/item_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_sum(const dp_pipeline_item_t *item)
{
    return dp_collective_reduces(item->collective) &&
           (item->reduce == DP_SUM || item->reduce == DP_AVERAGE);
}

static int makes_or_ends_group(const dp_pipeline_item_t *item)
{
    return item->collective == DP_COLLECTIVE_GROUP_CREATE ||
           item->collective == DP_COLLECTIVE_GROUP_DESTROY;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_fusion_job_t *job_make(dp_pipeline_t *pipeline)
{
    dp_fusion_job_t *job = calloc(1, sizeof(*job));

    if (job == NULL) return NULL;
    job->pipeline = pipeline;
    pthread_mutex_init(&job->lock, NULL);
    return job;
}

void dp_fusion_job_destroy(dp_fusion_job_t *job)
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

static dp_fusion_job_t *pool_take(dp_pipeline_t *pipeline)
{
    dp_fusion_job_t *job;

    pthread_mutex_lock(&pipeline->lock);
    job = pipeline->pool;
    if (job != NULL) pipeline->pool = job->next;
    pthread_mutex_unlock(&pipeline->lock);
    return job != NULL ? job : job_make(pipeline);
}

static void pool_give(dp_fusion_job_t *job)
{
    dp_pipeline_t *pipeline = job->pipeline;

    pthread_mutex_lock(&pipeline->lock);
    job->next = pipeline->pool;
    pipeline->pool = job;
    pthread_mutex_unlock(&pipeline->lock);
}

/* Replaces an array by a larger one. The contents are lost, as each launch fills the array anew.
 * array points at a pointer of any type, hence memcpy(). 0: no memory. */
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
    return dp_max(count, room + room / 2);
}

static dp_status_t reserve_items(dp_fusion_job_t *job, size_t items, size_t entries)
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

static dp_status_t reserve_buckets(dp_fusion_job_t *job)
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

static double power(double base, int exponent)
{
    double result = 1.0;

    for (; exponent > 0; exponent /= 2, base *= base) {
        if (exponent % 2 != 0) result *= base;
    }
    return result;
}

static void fill_item(const dp_fusion_job_t *job, dp_fusion_item_t *state,
                      const dp_pipeline_item_t *item)
{
    int contributors = item->contributors > 0 ? item->contributors : job->ranks;

    *state = (dp_fusion_item_t){.item = item,
                                .prescale = item->prescale,
                                .postscale = item->postscale,
                                .divisor = item->count_joined ? job->ranks : contributors,
                                .status = DP_OK,
                                .text = ""};
    for (size_t t = 0; t < item->tensor_count && is_sum(item); t++) {
        state->wants_tally |= dp_dtype_is_float(item->tensors[t].dtype);
    }
    if (item->reduce == DP_AVERAGE) state->postscale /= (double)state->divisor;
    /* A joined rank gives the identity of the reduction. Of a product with a prescale p that would
     * be 1/p, which may not exist: so the prescales are applied afterwards, p^contributors at once.
     */
    if (item->reduce == DP_PRODUCT && contributors < job->ranks) {
        state->postscale *= power(state->prescale, contributors);
        state->prescale = 1.0;
    }
    dp_tally_init(&state->tally);
}

static size_t entries_of(const dp_pipeline_item_t *item)
{
    return makes_or_ends_group(item) ? 1 : item->tensor_count;
}

/* Of an exchange whose program makes room only when the counts are known. */
#define COUNT_UNKNOWN ((size_t)1 << 20)

/* About how many elements an exchange moves through this rank. The planner does not need it; it
 * decides whether the bucket runs inline, and shows in the timeline. */
static size_t exchange_count(const dp_fusion_job_t *job, const dp_pipeline_item_t *item)
{
    size_t parts = dp_exchange_parts(item, job->rank, job->ranks), sent = 0;
    int gathers =
        item->collective == DP_COLLECTIVE_ALLGATHERV ||
        ((item->collective == DP_COLLECTIVE_GATHER || item->collective == DP_COLLECTIVE_GATHERV) &&
         item->root == job->rank);

    if (parts == 0 && item->output != NULL) return COUNT_UNKNOWN;
    if (parts == 0) return item->is_absent ? 0 : item->capacity;
    for (size_t i = 0; i < parts; i++)
        sent += item->send_counts[i];
    return gathers ? dp_min(sent * (size_t)job->ranks, item->capacity) : sent;
}

/* 1: the inputs have to be scaled before the engine sees them, on an asynchronous device, whose
 * casts apply the scales. Then the tensor goes through a fused buffer: a program's own input is
 * never changed. */
static int scales_first(const dp_fusion_job_t *job, size_t i, dp_dtype_t dtype)
{
    const dp_pipeline_t *pipeline = job->pipeline;

    return pipeline->device->ops->is_async &&
           dp_collective_reduces(job->launch->items[i].collective) && dp_dtype_is_float(dtype) &&
           job->items[i].prescale != 1.0;
}

/* 1: the tensor travels in another type, and the engine does not cast: so it has to go through a
 * fused buffer, where packing casts it. */
static int packs_for_wire(const dp_fusion_job_t *job, dp_wire_t wire)
{
    return wire != DP_WIRE_NONE && !job->pipeline->engine->ops->compresses;
}

/* Entry `e`: tensor t of an item. */
static void fill_entry(dp_fusion_job_t *job, size_t e, size_t i, size_t t)
{
    const dp_pipeline_item_t *item = &job->launch->items[i];
    const dp_pipeline_tensor_t *tensor = makes_or_ends_group(item) ? NULL : &item->tensors[t];
    dp_plan_entry_t *entry = &job->entries[e];

    job->sources[e] = (dp_fusion_source_t){i, tensor};
    *entry = (dp_plan_entry_t){.collective = item->collective,
                               .dtype = DP_U8,
                               .reduce = item->reduce,
                               .wire = DP_WIRE_NONE,
                               .root = item->root,
                               .in_place = item->in_place != 0};
    if (tensor == NULL) return;
    entry->dtype = tensor->dtype;
    entry->count = tensor->count;
    if (tensor->dtype == DP_F32 && is_sum(item)) {
        entry->wire = dp_plan_wire(item->wire, item->last_absmax, &job->items[i].exponent);
    }
    entry->in_place = entry->in_place && !scales_first(job, i, tensor->dtype) &&
                      !packs_for_wire(job, entry->wire);
    if (dp_plan_is_alone(item->collective)) entry->count = exchange_count(job, item);
    if (item->collective == DP_COLLECTIVE_REDUCE_SCATTERV) {
        entry->collective = DP_COLLECTIVE_REDUCE;
        entry->root = (int)t;
    }
    if (item->reduce == DP_AVERAGE && dp_collective_reduces(item->collective) &&
        !dp_dtype_is_float(tensor->dtype)) {
        entry->divisor = job->items[i].divisor;
    }
}

static void fill_entries(dp_fusion_job_t *job)
{
    size_t e = 0;

    for (size_t i = 0; i < job->launch->item_count; i++) {
        const dp_pipeline_item_t *item = &job->launch->items[i];
        size_t count = entries_of(item);

        fill_item(job, &job->items[i], item);
        for (size_t t = 0; t < count; t++)
            fill_entry(job, e++, i, t);
    }
    job->entry_count = e;
}

static void fill_buckets(dp_fusion_job_t *job)
{
    for (size_t b = 0; b < job->plan.bucket_count; b++) {
        const dp_plan_bucket_t *plan = &job->plan.buckets[b];

        job->buckets[b] = (dp_bucket_t){.job = job, .plan = plan};
        for (size_t p = plan->piece_begin; p < plan->piece_begin + plan->piece_count; p++) {
            dp_fusion_item_t *state = &job->items[job->sources[job->plan.pieces[p].entry].item];

            state->parts_left++;
            state->last_bucket = b;
            dp_tally_init(&job->tallies[p]);
        }
    }
    /* One more than there are buckets: the first ones may end while the last are being started, and
     * the job must not be given back before dp_fusion_job_release(). */
    job->open = job->plan.bucket_count + 1;
}

dp_status_t dp_fusion_job_create(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                                 uint64_t give_up_ns, dp_fusion_job_t **out)
{
    dp_fusion_job_t *job = pool_take(pipeline);
    dp_plan_limits_t limits = pipeline->limits;
    size_t entries = 0;
    dp_status_t status;

    if (job == NULL) return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < launch->item_count; i++)
        entries += entries_of(&launch->items[i]);
    status = reserve_items(job, launch->item_count, entries);
    if (status != DP_OK) goto fail;
    job->launch = launch;
    job->lane = &pipeline->lanes[launch->lane];
    job->rank = launch->group != NULL ? launch->group->rank : pipeline->rank;
    job->ranks = launch->group != NULL ? launch->group->size : pipeline->ranks;
    job->give_up_ns = give_up_ns;
    limits.ranks = job->ranks;
    limits.buffer_bytes = dp_lane_buffer_bytes(pipeline, launch->lane);
    fill_entries(job);
    status = dp_plan_make(&job->plan, job->entries, job->entry_count, &limits);
    if (status == DP_OK) status = reserve_buckets(job);
    if (status != DP_OK) goto fail;
    fill_buckets(job);
    *out = job;
    return DP_OK;
fail:
    job->launch = NULL;
    pool_give(job);
    return status;
}

/* ---- Completion ----------------------------------------------------------------------------- */

/* The largest magnitude before postscale, from which the next launch chooses the wire's exponent.
 */
static float raw_absmax(const dp_fusion_item_t *state)
{
    double scale = fabs(state->postscale);

    if (!state->wants_tally) return -1.0f;
    if (state->tally.nonfinite > 0) return INFINITY;
    return scale > 0.0 && scale < (double)INFINITY ? (float)(state->tally.absmax / scale) : -1.0f;
}

/* Reports an item whose parts have all ended. No lock is held: done() may wake a thread that
 * submits the next launch at once. */
static void complete_item(dp_fusion_job_t *job, const dp_fusion_item_t *state)
{
    const dp_pipeline_callbacks_t *callbacks = &job->pipeline->callbacks;
    char text[DP_ERROR_TEXT_MAX] = "";
    dp_pipeline_done_t done = {.request = state->item->request,
                               .status = state->status,
                               .text = state->text,
                               .raw_absmax = -1.0f};

    if (state->status == DP_OK) {
        done.count = state->count;
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

static void finish_job(dp_fusion_job_t *job)
{
    dp_pipeline_t *pipeline = job->pipeline;
    dp_pipeline_launch_t *launch = job->launch;

    job->launch = NULL;
    pool_give(job);
    dp_pipeline_launch_end(pipeline, launch);
}

void dp_fusion_job_release(dp_fusion_job_t *job)
{
    int is_over;

    pthread_mutex_lock(&job->lock);
    is_over = --job->open == 0;
    pthread_mutex_unlock(&job->lock);
    if (is_over) finish_job(job);
}

void dp_fusion_job_complete_empty(dp_fusion_job_t *job)
{
    for (size_t i = 0; i < job->launch->item_count; i++) {
        if (job->items[i].parts_left == 0) complete_item(job, &job->items[i]);
    }
}

/* Elements that a part has written to this rank's output. */
static size_t written(const dp_fusion_job_t *job, const dp_bucket_t *bucket, size_t piece)
{
    const dp_plan_piece_t *part = &job->plan.pieces[piece];
    const dp_fusion_source_t *source = &job->sources[part->entry];

    if (dp_plan_is_alone(bucket->plan->collective)) {
        return bucket->exchange.drops ? 0 : bucket->exchange.received;
    }
    if (job->items[source->item].item->is_absent) return 0;
    switch (bucket->plan->collective) {
    case DP_COLLECTIVE_ALLGATHER:
        return part->count * (size_t)job->ranks;
    case DP_COLLECTIVE_REDUCE:
        return job->entries[part->entry].root == job->rank ? part->count : 0;
    default:
        return part->count;
    }
}

/* Adds what a part came to to its item. 1: it was the item's last part. The lock makes what other
 * threads added for earlier parts visible to the one that completes the item. */
static int end_part(dp_fusion_job_t *job, const dp_bucket_t *bucket, size_t piece)
{
    dp_fusion_item_t *state = &job->items[job->sources[job->plan.pieces[piece].entry].item];
    int is_over;

    pthread_mutex_lock(&job->lock);
    if (bucket->op.status != DP_OK && state->status == DP_OK) {
        state->status = bucket->op.status;
        state->text = bucket->op.text;
    }
    state->count += written(job, bucket, piece);
    dp_tally_merge(&state->tally, &job->tallies[piece]);
    is_over = --state->parts_left == 0;
    pthread_mutex_unlock(&job->lock);
    return is_over;
}

void dp_fusion_job_end_bucket(dp_fusion_job_t *job, dp_bucket_t *bucket)
{
    const dp_plan_bucket_t *plan = bucket->plan;

    for (size_t p = plan->piece_begin; p < plan->piece_begin + plan->piece_count; p++) {
        if (end_part(job, bucket, p)) {
            complete_item(job, &job->items[job->sources[job->plan.pieces[p].entry].item]);
        }
    }
    dp_fusion_job_release(job);
}

void dp_fusion_launch_fail(dp_pipeline_t *pipeline, dp_pipeline_launch_t *launch,
                           dp_status_t status, const char *text)
{
    for (size_t i = 0; i < launch->item_count; i++) {
        dp_pipeline_done_t done = {.request = launch->items[i].request,
                                   .status = status,
                                   .text = text,
                                   .raw_absmax = -1.0f};

        pipeline->callbacks.done(pipeline->callbacks.user, &done);
    }
    dp_pipeline_launch_end(pipeline, launch);
}
