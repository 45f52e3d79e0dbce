/*
 * bucket_op.c - fills in what a bucket asks of the engine: addresses, scales, roots, or an
 * exchange.
 *
 * Called by the thread that runs launches, before any stage of the bucket is queued. An engine that
 * does not compress (op.wire) gets fused buffers of the 16-bit type instead: pack casts to it with
 * the scales folded in, unpack casts back. On an asynchronous device the casts apply the scales in
 * any case. Must not touch the data.
 */
#include "fusion/bucket.h"
#include "fusion/exchange.h"

/* ---- What a bucket needs -------------------------------------------------------------------- */

int dp_bucket_is_cast(const dp_bucket_t *bucket)
{
    return bucket->plan->wire != DP_WIRE_NONE && !bucket->plan->in_place &&
           !dp_bucket_engine_compresses(bucket);
}

dp_dtype_t dp_bucket_buffer_dtype(const dp_bucket_t *bucket)
{
    if (!dp_bucket_is_cast(bucket)) return bucket->plan->dtype;
    return bucket->plan->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;
}

static int is_reduction(const dp_bucket_t *bucket)
{
    return bucket->plan->collective == DP_COLLECTIVE_ALLREDUCE ||
           bucket->plan->collective == DP_COLLECTIVE_REDUCE_SCATTER ||
           bucket->plan->collective == DP_COLLECTIVE_REDUCE;
}

int dp_bucket_wants_tally(const dp_bucket_t *bucket)
{
    return is_reduction(bucket) && dp_dtype_is_float(bucket->plan->dtype) &&
           (bucket->plan->reduce == DP_SUM || bucket->plan->reduce == DP_AVERAGE);
}

int dp_bucket_folds_scales(const dp_bucket_t *bucket)
{
    if (!is_reduction(bucket) || !dp_dtype_is_float(bucket->plan->dtype)) return 0;
    return dp_bucket_is_cast(bucket) || dp_bucket_device(bucket)->is_async;
}

static int is_root_of(const dp_bucket_t *bucket, size_t index)
{
    return dp_bucket_entry(bucket, index)->root == bucket->job->rank;
}

int dp_bucket_needs_buffer(const dp_bucket_t *bucket)
{
    if (bucket->plan->in_place || dp_plan_is_alone(bucket->plan->collective)) return 0;
    return bucket->plan->collective != DP_COLLECTIVE_BROADCAST || is_root_of(bucket, 0);
}

/* ---- Addresses ------------------------------------------------------------------------------ */

static size_t offset_of(const dp_bucket_t *bucket, size_t index)
{
    return dp_bucket_piece(bucket, index)->first *
           dp_dtype_bytes(dp_bucket_tensor(bucket, index)->dtype);
}

const unsigned char *dp_bucket_user_in(const dp_bucket_t *bucket, size_t index)
{
    const unsigned char *in = dp_bucket_tensor(bucket, index)->in;

    return in == NULL ? NULL : in + offset_of(bucket, index);
}

unsigned char *dp_bucket_user_out(const dp_bucket_t *bucket, size_t index)
{
    unsigned char *out = dp_bucket_tensor(bucket, index)->out;

    if (bucket->plan->collective == DP_COLLECTIVE_REDUCE && !is_root_of(bucket, index)) return NULL;
    return out == NULL ? NULL : out + offset_of(bucket, index);
}

unsigned char *dp_bucket_buffer_at(const dp_bucket_t *bucket, size_t index)
{
    DP_ASSERT(bucket->buffer != NULL);
    return (unsigned char *)bucket->buffer->memory + dp_bucket_piece(bucket, index)->buffer_offset;
}

/* Where the engine finds and leaves a piece. */
static void fill_addresses(const dp_bucket_t *bucket, size_t index, dp_engine_piece_t *piece)
{
    const dp_plan_bucket_t *plan = bucket->plan;
    size_t rows = dp_bucket_tensor(bucket, index)->count;

    piece->in = plan->in_place           ? (const void *)dp_bucket_user_in(bucket, index)
                : bucket->buffer != NULL ? (const void *)dp_bucket_buffer_at(bucket, index)
                                         : NULL;
    piece->out = dp_bucket_user_out(bucket, index);
    switch (plan->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        if (!plan->in_place) piece->out = dp_bucket_buffer_at(bucket, index);
        break;
    case DP_COLLECTIVE_REDUCE:
        if (!plan->in_place && is_root_of(bucket, index)) {
            piece->out = dp_bucket_buffer_at(bucket, index);
        }
        break;
    case DP_COLLECTIVE_BROADCAST:
        if (!is_root_of(bucket, index)) piece->in = NULL;
        break;
    case DP_COLLECTIVE_ALLGATHER:
        piece->stride = rows;
        break;
    case DP_COLLECTIVE_REDUCE_SCATTER:
        piece->stride = plan->in_place ? rows : piece->count;
        if (dp_bucket_is_cast(bucket)) {
            piece->out = dp_bucket_buffer_at(bucket, index) +
                         (size_t)bucket->job->rank * piece->count *
                             dp_dtype_bytes(dp_bucket_buffer_dtype(bucket));
        }
        break;
    default:
        break;
    }
}

/* ---- The operation -------------------------------------------------------------------------- */

static void fill_piece(dp_bucket_t *bucket, size_t index)
{
    const dp_fusion_item_t *state = dp_bucket_item(bucket, index);
    dp_engine_piece_t *piece = &bucket->op.pieces[index];

    *piece = (dp_engine_piece_t){.count = dp_bucket_piece(bucket, index)->count,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .exponent = bucket->op.wire != DP_WIRE_NONE ? state->exponent : 0,
                                 .root = dp_bucket_entry(bucket, index)->root};
    if (is_reduction(bucket) && dp_dtype_is_float(bucket->plan->dtype) &&
        !dp_bucket_folds_scales(bucket)) {
        piece->prescale = state->prescale;
        piece->postscale = state->postscale;
    }
    if (dp_bucket_wants_tally(bucket) && dp_bucket_engine_compresses(bucket)) {
        piece->tally = &bucket->job->tallies[bucket->plan->piece_begin + index];
    }
    fill_addresses(bucket, index, piece);
}

/* Making and ending a group takes a barrier of it. */
static void fill_group_op(dp_bucket_t *bucket)
{
    bucket->op.collective = DP_COLLECTIVE_BARRIER;
    bucket->op.group = dp_bucket_item(bucket, 0)->item->group->engine;
}

void dp_bucket_fill_op(dp_bucket_t *bucket)
{
    dp_fusion_job_t *job = bucket->job;
    const dp_plan_bucket_t *plan = bucket->plan;
    const dp_pipeline_item_t *item = dp_bucket_item(bucket, 0)->item;

    bucket->op =
        (dp_engine_op_t){.group = job->launch->group != NULL ? job->launch->group->engine : NULL,
                         .lane = job->launch->lane,
                         .collective = plan->collective,
                         .dtype = dp_bucket_buffer_dtype(bucket),
                         .reduce = plan->reduce,
                         .wire = dp_bucket_engine_compresses(bucket) ? plan->wire : DP_WIRE_NONE,
                         .root = plan->root,
                         .peer = item->peer,
                         .divisor = plan->divisor,
                         .sequence = job->launch->sequence,
                         .digest = job->launch->digest,
                         .give_up_ns = job->give_up_ns,
                         .last_rank = -1};
    switch (plan->collective) {
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_GROUP_DESTROY:
        fill_group_op(bucket);
        return;
    default:
        break;
    }
    if (dp_plan_is_alone(plan->collective)) {
        dp_exchange_fill(&bucket->exchange, item, job->rank, job->ranks);
        bucket->op.exchange = &bucket->exchange;
        return;
    }
    bucket->op.pieces = &job->pieces[plan->piece_begin];
    bucket->op.piece_count = plan->piece_count;
    bucket->op.is_packed = plan->collective == DP_COLLECTIVE_ALLREDUCE && !plan->in_place;
    for (size_t i = 0; i < plan->piece_count; i++)
        fill_piece(bucket, i);
}
