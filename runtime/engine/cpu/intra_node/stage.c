/*
 * stage.c - an allreduce inside a node of memory that its ranks do not share, piece by piece
 * through small shared staging buffers. Taken where ranks may not read each other's memory
 * (pull.c), or where that is slower (method.h). Called after the arrival, on the thread that runs
 * operations.
 *
 * Each rank reduces its shard; the others copy their parts of it into that rank's staging buffers.
 * In every step a rank does three things, on three different pieces:
 *
 *   step       k          k+1        k+2        k+3
 *   copy in    piece k    k+1        k+2        k+3      my parts, to the owners of the shards
 *   reduce     k-1        piece k    k+1        k+2      my shard
 *   copy out   k-2        k-1        piece k    k+1      the owners' results, to my output
 *            --barrier- --barrier- --barrier- --barrier-
 *
 * A rank reads in one step what another wrote in the step before, so two buffers of each kind, in
 * turn, are enough. They stay in the caches; so do the lines of a tensor that is reduced in place,
 * between copying a piece in and copying its result out. Each line is thus read from memory once.
 */
#include "runtime/engine/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)64 * DP_KIB)        /* of all others together */
#define PIECE_LEAST ((size_t)DP_TALLY_BLOCK * 8) /* of one of them: a block of the largest type */

struct dp_host_staging {
    dp_arena_t *arena; /* borrowed */
    int count;         /* of the node's ranks */
    size_t piece_bytes;
    char *memory; /* in the arena: [2][count] pieces for the others, [2] results */
};

/* ---- Memory --------------------------------------------------------------------------------- */

static size_t staging_bytes(const dp_host_staging_t *staging)
{
    return 2 * ((size_t)staging->count + 1) * staging->piece_bytes;
}

/* Where the part for local rank `local` of a group lies, in a step of this parity. */
static size_t part_at(const dp_host_staging_t *staging, size_t step, int local)
{
    return ((step & 1) * (size_t)staging->count + (size_t)local) * staging->piece_bytes;
}

static size_t result_at(const dp_host_staging_t *staging, size_t step)
{
    return (2 * (size_t)staging->count + (step & 1)) * staging->piece_bytes;
}

/* For so many ranks of a node. */
static dp_status_t create_staging(dp_arena_t *arena, int count, dp_host_staging_t **out)
{
    dp_host_staging_t *staging = calloc(1, sizeof(*staging));
    void *memory;
    dp_status_t status;

    if (staging == NULL) return DP_ERR_NO_MEMORY;
    staging->arena = arena;
    staging->count = count;
    staging->piece_bytes = PIECE_BYTES / (size_t)dp_max(count - 1, 1) / PIECE_LEAST * PIECE_LEAST;
    staging->piece_bytes = dp_max(staging->piece_bytes, PIECE_LEAST);
    status = dp_arena_alloc(arena, staging_bytes(staging), &memory);
    if (status != DP_OK) {
        free(staging);
        return status;
    }
    staging->memory = memory;
    *out = staging;
    return DP_OK;
}

void dp_host_staging_destroy(dp_host_staging_t *staging)
{
    free(staging); /* the memory goes with the arena: others may still look */
}

/* Allocates the buffers at the first operation of this kind, and publishes where they are. */
static dp_status_t publish_staging(dp_cpu_group_t *group)
{
    const dp_cpu_engine_t *engine = group->engine;
    dp_cpu_lane_t *lane = group->lane;
    const int count = engine->topology->node_size[engine->topology->node[engine->rank]];
    dp_status_t status = DP_OK;

    if (lane->staging == NULL) status = create_staging(engine->arena, count, &lane->staging);
    if (status != DP_OK) {
        return dp_cpu_fail(group, status,
                           "%s %llu%s: rank %d: no shared memory to hand over tensors in pieces",
                           dp_collective_name(group->op->collective),
                           (unsigned long long)group->op->sequence, group->title, engine->rank);
    }
    dp_cpu_descriptor(group, group->local_rank)->staging =
        dp_arena_offset(engine->arena, lane->staging->memory, staging_bytes(lane->staging));
    return DP_OK;
}

/* ---- The three parts of a step -------------------------------------------------------------- */

typedef struct staging_run {
    dp_cpu_group_t *group;
    const dp_engine_op_t *op;
    const dp_host_staging_t *staging;
    size_t blocks; /* of a piece */
    size_t elem_bytes;
    int wanted; /* figures are */
} staging_run_t;

static dp_range_t shard_of(const staging_run_t *run, int local)
{
    return dp_range_part(dp_layout_all(&run->group->layout), local, run->group->local_size);
}

/* Piece `index` of a shard; empty past its end. */
static dp_range_t piece_of(const staging_run_t *run, int local, size_t index)
{
    const dp_range_t shard = shard_of(run, local);

    if (index >= dp_range_chunks(shard, run->blocks)) return (dp_range_t){shard.end, shard.end};
    return dp_range_chunk(shard, index, run->blocks);
}

/* A place in a local rank's staging buffers; NULL: what it published is not in its arena. */
static char *staged_at(const staging_run_t *run, int local, size_t place)
{
    char *memory;

    if (local == run->group->local_rank) return run->staging->memory + place;
    memory = dp_cpu_memory_at(run->group, local, dp_cpu_descriptor(run->group, local)->staging,
                              staging_bytes(run->staging));
    return memory == NULL ? NULL : memory + place;
}

/* Copies this rank's part of another's piece to where that one reads it. */
static void copy_in(const staging_run_t *run, int local, size_t index)
{
    char *to = run->staging->memory + part_at(run->staging, index, local);
    dp_range_t left = piece_of(run, local, index);
    dp_segment_t segment;

    while (dp_layout_next(&run->group->layout, &left, &segment)) {
        const size_t bytes = segment.count * run->elem_bytes;

        memcpy(to,
               (const char *)run->op->pieces[segment.piece].in + segment.start * run->elem_bytes,
               bytes);
        to += bytes;
    }
}

/* Reduces a segment of this rank's piece, of which the others' parts lie `before` bytes from where
 * theirs begin, into its output and into its own staging buffer for the others to copy out. */
static dp_status_t reduce_staged_segment(const staging_run_t *run, dp_segment_t segment,
                                         size_t index, size_t before)
{
    dp_cpu_group_t *group = run->group;
    const dp_engine_piece_t *piece = &run->op->pieces[segment.piece];
    const size_t at = segment.start * run->elem_bytes;
    void *outs[2] = {(char *)piece->out + at,
                     run->staging->memory + result_at(run->staging, index) + before};
    const dp_reduce_args_t args = {
        .dtype = run->op->dtype,
        .reduce = run->op->reduce,
        .in = group->ins,
        .in_count = group->local_size,
        .out = outs,
        .out_count = 2,
        .count = segment.count,
        .prescale = piece->prescale,
        .postscale = piece->postscale,
        .divisor = dp_cpu_divisor(group, run->op),
        .tally = dp_cpu_tally(group, segment.piece, run->wanted),
    };

    for (int k = 0; k < group->local_size; k++) {
        const char *part =
            staged_at(run, k, part_at(run->staging, index, group->local_rank) + before);

        if (part == NULL) return dp_cpu_bad_offset(group, k);
        group->ins[k] = k == group->local_rank ? (const char *)piece->in + at : part;
    }
    dp_kernel_reduce(&args);
    return DP_OK;
}

static dp_status_t reduce_piece(const staging_run_t *run, size_t index)
{
    dp_range_t left = piece_of(run, run->group->local_rank, index);
    size_t before = 0;
    dp_segment_t segment;

    while (dp_layout_next(&run->group->layout, &left, &segment)) {
        const dp_status_t status = reduce_staged_segment(run, segment, index, before);

        if (status != DP_OK) return status;
        before += segment.count * run->elem_bytes;
    }
    return DP_OK;
}

/* Copies what another rank made of its piece to this rank's output. */
static dp_status_t copy_out(const staging_run_t *run, int local, size_t index)
{
    const char *from = staged_at(run, local, result_at(run->staging, index));
    dp_range_t left = piece_of(run, local, index);
    dp_segment_t segment;

    if (from == NULL) return dp_cpu_bad_offset(run->group, local);
    while (dp_layout_next(&run->group->layout, &left, &segment)) {
        const size_t bytes = segment.count * run->elem_bytes;

        memcpy((char *)run->op->pieces[segment.piece].out + segment.start * run->elem_bytes, from,
               bytes);
        from += bytes;
    }
    return DP_OK;
}

/* ---- All of it ------------------------------------------------------------------------------ */

dp_status_t dp_host_staging_reduce(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const int self = group->local_rank;
    const int size = group->local_size;
    dp_status_t status = publish_staging(group);
    staging_run_t run = {.group = group,
                         .op = op,
                         .staging = group->lane->staging,
                         .elem_bytes = dp_dtype_bytes(op->dtype),
                         .wanted = dp_cpu_wants_tally(group, op)};
    size_t pieces;

    if (status != DP_OK) return status;
    run.blocks = run.staging->piece_bytes / (DP_TALLY_BLOCK * run.elem_bytes);
    pieces = dp_range_chunks(shard_of(&run, 0), run.blocks); /* no shard is larger */
    if (run.wanted) dp_cpu_clear_tallies(group, shard_of(&run, self));
    for (size_t step = 0; status == DP_OK && step < pieces + 2; step++) {
        for (int i = 1; step < pieces && i < size; i++)
            copy_in(&run, (self + i) % size, step);
        if (step >= 1) status = reduce_piece(&run, step - 1);
        for (int i = 1; status == DP_OK && step >= 2 && i < size; i++)
            status = copy_out(&run, (self + i) % size, step - 2);
        if (status == DP_OK) status = dp_cpu_node_barrier(group);
    }
    for (int k = 0; status == DP_OK && run.wanted && k < size; k++)
        status = dp_cpu_add_tallies(group, op, k, shard_of(&run, k));
    return status;
}
