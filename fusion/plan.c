/*
 * plan.c - decides which ready tensors share one fused transfer.
 *
 * Pure arithmetic: what one LAUNCH lists goes in, buckets of pieces come out, equal on every rank
 * because the input is. Called by job.c, on the thread that runs the launch. It must not know about
 * threads, devices, sockets or configuration.
 */
#include "fusion/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many entries of another kind in a row a bucket looks past for one of its own. It bounds the
 * work, and how far a tensor can overtake others. */
#define LOOK_AHEAD 64

static size_t rows_of(dp_collective_t collective, int ranks)
{
    return collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)ranks : 1;
}

static dp_dtype_t buffer_dtype(const dp_plan_entry_t *entry, const dp_plan_limits_t *limits)
{
    if (entry->wire == DP_WIRE_NONE || entry->in_place || !limits->casts) return entry->dtype;
    return entry->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;
}

int dp_plan_is_alone(dp_collective_t collective)
{
    switch (collective) {
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_ALLTOALL:
    case DP_COLLECTIVE_ALLGATHERV:
    case DP_COLLECTIVE_GATHERV:
    case DP_COLLECTIVE_SCATTERV:
    case DP_COLLECTIVE_ALLTOALLV:
    case DP_COLLECTIVE_SEND:
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_GROUP_DESTROY:
        return 1;
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_REDUCE_SCATTER:
    case DP_COLLECTIVE_BARRIER:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTERV:
    case DP_COLLECTIVE_JOIN:
    case DP_COLLECTIVE_COUNT:
        break;
    }
    return 0;
}

/* Of a piece of `count` elements, in all its rows. SIZE_MAX when they do not fit size_t. */
static size_t payload_bytes(const dp_plan_entry_t *entry, size_t count, int ranks)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, dp_dtype_bytes(entry->dtype), &bytes)) return SIZE_MAX;
    if (__builtin_mul_overflow(bytes, rows_of(entry->collective, ranks), &bytes)) return SIZE_MAX;
    return bytes;
}

/* A fused buffer of rows of so many bytes: each begins aligned. SIZE_MAX likewise. */
static size_t bytes_of_rows(dp_collective_t collective, size_t row_bytes,
                            const dp_plan_limits_t *limits)
{
    const size_t rows = rows_of(collective, limits->ranks);
    size_t bytes;

    if (rows == 1 || row_bytes > limits->buffer_bytes) return row_bytes;
    bytes = dp_align_up(row_bytes, limits->alignment);
    return __builtin_mul_overflow(bytes, rows, &bytes) ? SIZE_MAX : bytes;
}

size_t dp_plan_least_buffer_bytes(int ranks)
{
    return (size_t)DP_TALLY_BLOCK * 8 * (size_t)ranks; /* 8: the largest element */
}

/* Makes room for one more element at least; 0: no memory. */
static int grow(void **array, size_t *room, size_t count, size_t bytes)
{
    size_t wanted = *room == 0 ? 16 : *room;
    void *larger;

    if (count <= *room) return 1;
    while (wanted < count)
        wanted *= 2;
    larger = realloc(*array, wanted * bytes);
    if (larger == NULL) return 0;
    *array = larger;
    *room = wanted;
    return 1;
}

static int is_same_kind(const dp_plan_entry_t *a, const dp_plan_entry_t *b)
{
    return a->collective == b->collective && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->wire == b->wire && a->in_place == b->in_place && a->divisor == b->divisor &&
           (a->root == b->root || a->collective == DP_COLLECTIVE_REDUCE);
}

/* The largest part of an entry that fits a fused buffer: a multiple of DP_TALLY_BLOCK; 0: none. */
static size_t part_count(const dp_plan_entry_t *entry, const dp_plan_limits_t *limits)
{
    const size_t rows = rows_of(entry->collective, limits->ranks);
    const size_t count = limits->buffer_bytes / rows / dp_dtype_bytes(buffer_dtype(entry, limits));

    return count / DP_TALLY_BLOCK * DP_TALLY_BLOCK;
}

static dp_status_t open_bucket(dp_plan_t *plan, const dp_plan_limits_t *limits,
                               const dp_plan_entry_t *entry)
{
    void *buckets = plan->buckets;

    if (!grow(&buckets, &plan->bucket_room, plan->bucket_count + 1, sizeof(*plan->buckets))) {
        return DP_ERR_NO_MEMORY;
    }
    plan->buckets = buckets;
    plan->buckets[plan->bucket_count] =
        (dp_plan_bucket_t){.collective = entry->collective,
                           .dtype = entry->dtype,
                           .buffer_dtype = buffer_dtype(entry, limits),
                           .reduce = entry->reduce,
                           .wire = entry->wire,
                           .root = entry->root,
                           .in_place = entry->in_place,
                           .divisor = entry->divisor,
                           .piece_begin = plan->piece_count};
    plan->bucket_count++;
    return DP_OK;
}

/* Appends a piece to the last bucket, which has room for it. */
static dp_status_t add_piece(dp_plan_t *plan, const dp_plan_limits_t *limits,
                             const dp_plan_entry_t *entry, dp_plan_piece_t piece)
{
    dp_plan_bucket_t *bucket = &plan->buckets[plan->bucket_count - 1];
    void *pieces = plan->pieces;

    if (!grow(&pieces, &plan->piece_room, plan->piece_count + 1, sizeof(*plan->pieces))) {
        return DP_ERR_NO_MEMORY;
    }
    plan->pieces = pieces;
    if (!entry->in_place && !dp_plan_is_alone(entry->collective)) {
        piece.buffer_offset = dp_align_up(bucket->row_bytes, limits->alignment);
        bucket->row_bytes =
            piece.buffer_offset + piece.count * dp_dtype_bytes(bucket->buffer_dtype);
        bucket->buffer_bytes = bytes_of_rows(bucket->collective, bucket->row_bytes, limits);
        bucket->row_bytes = bucket->buffer_bytes / rows_of(bucket->collective, limits->ranks);
    }
    bucket->payload_bytes += payload_bytes(entry, piece.count, limits->ranks);
    bucket->piece_count++;
    plan->pieces[plan->piece_count++] = piece;
    return DP_OK;
}

/* Whether the last bucket has room for all of an entry. */
static int fits(const dp_plan_t *plan, const dp_plan_limits_t *limits, const dp_plan_entry_t *entry)
{
    const dp_plan_bucket_t *bucket = &plan->buckets[plan->bucket_count - 1];
    const size_t most = limits->buffer_bytes;
    const size_t bytes = payload_bytes(entry, entry->count, limits->ranks);
    const size_t row_bytes = entry->count * dp_dtype_bytes(bucket->buffer_dtype);

    if (bytes == SIZE_MAX) return 0;
    if (entry->in_place)
        return bucket->payload_bytes <= most && bytes <= most - bucket->payload_bytes;
    return row_bytes <= most &&
           bytes_of_rows(bucket->collective,
                         dp_align_up(bucket->row_bytes, limits->alignment) + row_bytes,
                         limits) <= most;
}

/* Opens the bucket that begins with an entry. An entry larger than a fused buffer is cut: its full
 * parts get buckets of their own first, and what is left begins a bucket that others may join.
 * Parts begin at multiples of DP_TALLY_BLOCK, so that figures do not depend on the cuts. */
static dp_status_t begin_with(dp_plan_t *plan, const dp_plan_limits_t *limits,
                              const dp_plan_entry_t *entries, size_t index)
{
    const dp_plan_entry_t *entry = &entries[index];
    const size_t row_bytes = entry->count * dp_dtype_bytes(buffer_dtype(entry, limits));
    dp_plan_piece_t piece = {.entry = index, .first = 0, .count = entry->count};
    int is_alone = dp_plan_is_alone(entry->collective);
    dp_status_t status;

    if (!is_alone && payload_bytes(entry, entry->count, limits->ranks) == SIZE_MAX)
        return DP_ERR_INVALID;
    if (!is_alone && !entry->in_place &&
        bytes_of_rows(entry->collective, row_bytes, limits) > limits->buffer_bytes) {
        size_t part = part_count(entry, limits);

        if (part == 0) return DP_ERR_INVALID;
        for (; entry->count - piece.first > part; piece.first += part) {
            piece.count = part;
            status = open_bucket(plan, limits, entry);
            if (status == DP_OK) status = add_piece(plan, limits, entry, piece);
            if (status != DP_OK) return status;
        }
        piece.count = entry->count - piece.first;
    }
    status = open_bucket(plan, limits, entry);
    return status == DP_OK ? add_piece(plan, limits, entry, piece) : status;
}

/*
 * Fills the bucket just opened by entry `first` with entries of its kind that follow, until one
 * does not fit. It stops there, although a smaller one behind it might fit: tensors of one kind
 * keep their order, which is the order in which the backward pass made them ready.
 */
static dp_status_t fill_bucket(dp_plan_t *plan, const dp_plan_limits_t *limits,
                               const dp_plan_entry_t *entries, size_t count, size_t first)
{
    const dp_plan_entry_t *kind = &entries[first];
    size_t others = 0;

    for (size_t i = first + 1; i < count && others < LOOK_AHEAD; i++) {
        const dp_plan_entry_t *entry = &entries[i];
        dp_plan_piece_t piece = {.entry = i, .first = 0, .count = entry->count};
        dp_status_t status;

        if (plan->taken[i]) continue;
        if (!is_same_kind(kind, entry)) {
            others++;
            continue;
        }
        if (!fits(plan, limits, entry)) return DP_OK;
        status = add_piece(plan, limits, entry, piece);
        if (status != DP_OK) return status;
        plan->taken[i] = 1;
        others = 0;
    }
    return DP_OK;
}

dp_status_t dp_plan_make(dp_plan_t *plan, const dp_plan_entry_t *entries, size_t count,
                         const dp_plan_limits_t *limits)
{
    void *taken = plan->taken;
    dp_status_t status = DP_OK;

    plan->bucket_count = plan->piece_count = 0;
    if (!grow(&taken, &plan->entry_room, count, 1)) return DP_ERR_NO_MEMORY;
    plan->taken = taken;
    for (size_t i = 0; i < count; i++) {
        plan->taken[i] = (entries[i].count == 0 && !dp_plan_is_alone(entries[i].collective)) ||
                         entries[i].collective == DP_COLLECTIVE_BARRIER;
    }
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        if (plan->taken[i]) continue;
        status = begin_with(plan, limits, entries, i);
        if (status == DP_OK && !dp_plan_is_alone(entries[i].collective)) {
            status = fill_bucket(plan, limits, entries, count, i);
        }
    }
    if (status != DP_OK) plan->bucket_count = plan->piece_count = 0;
    return status;
}

void dp_plan_fini(dp_plan_t *plan)
{
    free(plan->buckets);
    free(plan->pieces);
    free(plan->taken);
    memset(plan, 0, sizeof(*plan));
}

/* ---- Compression ---------------------------------------------------------------------------- */

/*
 * The largest magnitude of the last sum is brought to [2^7, 2^8): 256 times below the top of fp16,
 * because the sums of single machines can be larger than the sum of all, and gradients grow tenfold
 * from one step to the next at the start of a training. An element 2^21 times smaller than the
 * largest is still a normal number there.
 */
enum {
    target_exponent = 8, /* of 2^8, which the magnitude stays below */
    exponent_max = 96    /* so that 2^-exponent times a postscale stays a normal fp32 number */
};

dp_wire_t dp_plan_wire(dp_wire_t wanted, float last_absmax, int *exponent)
{
    int magnitude;

    *exponent = 0;
    if (wanted == DP_WIRE_BF16) return DP_WIRE_BF16;
    if (wanted != DP_WIRE_FP16) return DP_WIRE_NONE;
    if (!(last_absmax > 0.0f) || isinf(last_absmax)) return DP_WIRE_NONE;
    frexpf(last_absmax, &magnitude); /* last_absmax is in [2^(magnitude-1), 2^magnitude) */
    *exponent = dp_min(target_exponent - magnitude, exponent_max);
    return DP_WIRE_FP16;
}
