/*
 * shared.c - collectives inside a node, over memory that all its ranks have mapped: each reads and
 * writes the others' buffers. Memory of one rank alone is read by the others (pull.h) and written
 * by nobody else. Called from dp_cpu_run_intra_node(), on the thread that runs operations; it must
 * not know about other nodes.
 *
 * A large allreduce takes one pass over the data. Every rank owns a shard:
 *
 *              shard 0    shard 1    shard 2
 *   rank 0's   [......]   [......]   [......]     inputs, where the ranks have them
 *   rank 1's   [......]   [......]   [......]
 *   rank 2's   [......]   [......]   [......]
 *                 |          |          |
 *               rank 0     rank 1     rank 2      each adds its shard in ascending local rank
 *                 |          |          |
 *   rank 0's   [======]   [======]   [======]     outputs: each writes its result into all of them
 *   rank 1's   [======]   [======]   [======]
 *   rank 2's   [======]   [======]   [======]
 *
 *   barrier 1 (arrive): where the buffers lie is published
 *   each rank reduces its shard, block by block that stays in its first cache
 *   barrier 2: all shards are written, and nobody reads the inputs any more
 *
 * So each byte is read once and written once and nothing is staged. In place is allowed: a block is
 * read from all inputs before it is written to any output, and no other rank touches that shard.
 *
 * Small operations take one barrier: every rank publishes a copy of its input, and each computes
 * the whole result from the copies. The copies need no second barrier, because a rank writes them
 * again two operations later, behind another barrier (control.h).
 */
#include "runtime/engine/cpu/intra_node/pull.h"

#include <string.h>

#define STREAM_BYTES (8 * DP_MIB) /* a shard this large has left the caches before it is read */

/* memcpy() for buffers that may be the same. */
static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes != 0) memcpy(to, from, bytes);
}

/* Runs the kernel; where no rank wants the output but some want its figures, without an output. */
static void run_kernel(dp_cpu_group_t *group, const dp_reduce_args_t *args)
{
    if (args->out_count > 0) {
        dp_kernel_reduce(args);
    } else if (args->tally != NULL) {
        dp_cpu_tally_only(group, args);
    }
}

static int local_root(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    return group->topology->local_rank[op->root];
}

/* ---- Small ---------------------------------------------------------------------------------- */

static int is_small(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    const size_t elems = group->layout.elem_count;

    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) return 0;
    if (elems > DP_EAGER_BYTES) return 0; /* so that the product does not overflow */
    return elems * dp_dtype_bytes(op->dtype) <= dp_cpu_eager_bytes(group);
}

/* Reduces piece after piece from the published copies into this rank's output. Of a reduce only the
 * pieces are kept that this rank is the root of; the others are computed for their figures. */
static void small_reduce(dp_cpu_group_t *group, dp_engine_op_t *op, const char *const *shown)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const int wanted = dp_cpu_wants_tally(group, op);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        const size_t before = group->layout.elem_begin[i] * elem_bytes;
        const int is_kept = piece->out != NULL && (op->collective == DP_COLLECTIVE_ALLREDUCE ||
                                                   piece->root == group->rank);
        const dp_reduce_args_t args = {
            .dtype = op->dtype,
            .reduce = op->reduce,
            .in = group->ins,
            .in_count = group->local_size,
            .out = &piece->out,
            .out_count = is_kept,
            .count = piece->count,
            .prescale = piece->prescale,
            .postscale = piece->postscale,
            .divisor = dp_cpu_divisor(group, op),
            .tally = wanted ? piece->tally : NULL,
        };

        if (piece->count == 0) continue;
        for (int k = 0; k < group->local_size; k++)
            group->ins[k] = shown[k] + before;
        run_kernel(group, &args);
    }
}

static void small_copy(dp_cpu_group_t *group, dp_engine_op_t *op, const char *from, size_t row)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];

        if (piece->count == 0 || piece->out == NULL) continue;
        copy_bytes((char *)piece->out + row * piece->stride * elem_bytes,
                   from + group->layout.elem_begin[i] * elem_bytes, piece->count * elem_bytes);
    }
}

static dp_status_t run_small(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const char **shown = (const char **)(void *)group->outs; /* free for this: one output only */
    dp_status_t status = dp_cpu_arrive(group, op, 1);

    if (status != DP_OK) return status;
    for (int k = 0; k < group->local_size; k++) {
        shown[k] = dp_cpu_memory_at(group, k, dp_cpu_descriptor(group, k)->eager, DP_EAGER_BYTES);
        if (shown[k] == NULL) return dp_cpu_bad_offset(group, k);
    }
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
        small_reduce(group, op, shown);
        break;
    case DP_COLLECTIVE_BROADCAST:
        small_copy(group, op, shown[local_root(group, op)], 0);
        break;
    case DP_COLLECTIVE_ALLGATHER:
        for (int k = 0; k < group->local_size; k++) {
            small_copy(group, op, shown[k], (size_t)group->local_ranks[k]);
        }
        break;
    default:
        break;
    }
    return DP_OK;
}

/* ---- Large ---------------------------------------------------------------------------------- */

/* 1: some rank has memory of its own. All ranks read the same descriptors, and so decide alike. */
static int has_private(const dp_cpu_group_t *group)
{
    int has = 0;

    for (int k = 0; k < group->local_size; k++)
        has |= dp_cpu_descriptor(group, k)->has_private_memory;
    return has;
}

/* Points group->outs at the outputs that a segment of the result goes to; *count: how many. is_own:
 * only this rank's. */
static dp_status_t find_outs(dp_cpu_group_t *group, const dp_engine_op_t *op, dp_segment_t segment,
                             int is_own, int *count)
{
    const dp_engine_piece_t *piece = &op->pieces[segment.piece];
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const int root = op->collective == DP_COLLECTIVE_REDUCE
                         ? group->topology->local_rank[piece->root]
                         : group->local_rank;
    dp_status_t status = DP_OK;

    *count = 0;
    if (is_own) {
        if (piece->out == NULL) return DP_OK;
        group->outs[(*count)++] = (char *)piece->out + segment.start * elem_bytes;
        return DP_OK;
    }
    for (int k = 0; status == DP_OK && k < group->local_size; k++) {
        void *out;

        if (op->collective == DP_COLLECTIVE_REDUCE && k != root) continue;
        status = dp_cpu_output_at(group, k, segment.piece, segment.start, segment.count, elem_bytes,
                                  &out);
        if (status == DP_OK && out != NULL) group->outs[(*count)++] = out;
    }
    return status;
}

static dp_status_t reduce_segment(dp_cpu_group_t *group, const dp_engine_op_t *op,
                                  dp_segment_t segment, size_t in_row, int is_own, int wanted)
{
    const dp_engine_piece_t *piece = &op->pieces[segment.piece];
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const size_t in_start = in_row * piece->stride + segment.start;
    dp_reduce_args_t args = {
        .dtype = op->dtype,
        .reduce = op->reduce,
        .in = group->ins,
        .in_count = group->local_size,
        .out = group->outs,
        .count = segment.count,
        .prescale = piece->prescale,
        .postscale = piece->postscale,
        .divisor = dp_cpu_divisor(group, op),
        .tally = dp_cpu_tally(group, segment.piece, wanted),
        .streaming = segment.count * elem_bytes >= STREAM_BYTES,
    };

    for (int k = 0; k < group->local_size; k++) {
        const dp_status_t status = dp_pull_input(group, k, segment.piece, in_start, segment.count,
                                                 elem_bytes, &group->ins[k]);

        if (status != DP_OK) return status;
    }
    if (find_outs(group, op, segment, is_own, &args.out_count) != DP_OK)
        return group->failure.status;
    run_kernel(group, &args);
    return DP_OK;
}

/* How many blocks are reduced at a time: all that a rank can see, or what is read at a time. */
static size_t chunk_blocks(const dp_cpu_group_t *group)
{
    const size_t block_bytes = DP_TALLY_BLOCK * dp_dtype_bytes(group->op->dtype);

    if (!has_private(group)) return dp_max(group->layout.block_count, (size_t)1);
    return dp_max(dp_pull_chunk_bytes(group) / block_bytes, (size_t)1);
}

static dp_status_t reduce_range(dp_cpu_group_t *group, const dp_engine_op_t *op, dp_range_t range,
                                size_t in_row, int is_own, int wanted)
{
    const size_t blocks = chunk_blocks(group);
    dp_status_t status = DP_OK;

    for (size_t i = 0; status == DP_OK && i < dp_range_chunks(range, blocks); i++) {
        dp_range_t left = dp_range_chunk(range, i, blocks);
        dp_segment_t segment;

        while (status == DP_OK && dp_layout_next(&group->layout, &left, &segment))
            status = reduce_segment(group, op, segment, in_row, is_own, wanted);
    }
    return status;
}

static dp_status_t add_all_tallies(dp_cpu_group_t *group, dp_engine_op_t *op, int wanted)
{
    const dp_range_t all = dp_layout_all(&group->layout);
    dp_status_t status = DP_OK;

    for (int k = 0; status == DP_OK && wanted && k < group->local_size; k++)
        status = dp_cpu_add_tallies(group, op, k, dp_range_part(all, k, group->local_size));
    return status;
}

/* allreduce and reduce: a shard each. */
static dp_status_t reduce_shards(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_range_t own =
        dp_range_part(dp_layout_all(&group->layout), group->local_rank, group->local_size);
    const int wanted = dp_cpu_wants_tally(group, op);
    dp_status_t status;

    if (wanted) dp_cpu_clear_tallies(group, own);
    status = reduce_range(group, op, own, 0, 0, wanted);
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    return status == DP_OK ? add_all_tallies(group, op, wanted) : status;
}

/* ---- An allreduce of private memory --------------------------------------------------------- */

/* Chunk `index` of a local rank's shard; empty past its end. */
static dp_range_t chunk_of_shard(const dp_cpu_group_t *group, int local, size_t index,
                                 size_t blocks)
{
    const dp_range_t shard = dp_range_part(dp_layout_all(&group->layout), local, group->local_size);

    if (index >= dp_range_chunks(shard, blocks)) return (dp_range_t){shard.end, shard.end};
    return dp_range_chunk(shard, index, blocks);
}

/* Copies what another rank has made of a range to this rank's output. */
static dp_status_t fetch_result(dp_cpu_group_t *group, int local, dp_range_t range)
{
    const size_t elem_bytes = dp_dtype_bytes(group->op->dtype);
    dp_segment_t segment;
    dp_status_t status = DP_OK;

    while (status == DP_OK && dp_layout_next(&group->layout, &range, &segment)) {
        const dp_control_piece_t *piece = dp_cpu_published_piece(group, local, segment.piece);
        const size_t at = segment.start * elem_bytes, bytes = segment.count * elem_bytes;
        char *to = (char *)group->op->pieces[segment.piece].out + at;

        if (piece == NULL) return dp_cpu_bad_offset(group, local);
        if (dp_cpu_is_private(group, local)) {
            status = dp_pull_fetch(group, local, piece->out + at, to, bytes);
        } else {
            const void *from = dp_cpu_memory_at(group, local, piece->out + at, bytes);

            if (from == NULL) return dp_cpu_bad_offset(group, local);
            memcpy(to, from, bytes);
        }
    }
    return status;
}

/*
 * Each rank reduces its shard into its own output, and the others read it there. In a step a rank
 * does both, on two chunks:
 *
 *   step      0            1            2
 *   reduce    chunk 0      chunk 1                 of my shard, reading the others' inputs
 *   fetch                  chunk 0      chunk 1    of the others' shards, out of their outputs
 *             --barrier--  --barrier--  --barrier--
 *
 * A chunk is fetched just after it was written, from the cache of the core that wrote it. In place
 * it overwrites an input that its owner has read in the step before.
 */
static dp_status_t reduce_private(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const int self = group->local_rank, size = group->local_size;
    const dp_range_t all = dp_layout_all(&group->layout);
    const size_t blocks = chunk_blocks(group);
    const size_t chunks = dp_range_chunks(dp_range_part(all, 0, size), blocks); /* none has more */
    const int wanted = dp_cpu_wants_tally(group, op);
    dp_status_t status = DP_OK;

    if (wanted) dp_cpu_clear_tallies(group, dp_range_part(all, self, size));
    for (size_t step = 0; status == DP_OK && step <= chunks; step++) {
        status = reduce_range(group, op, chunk_of_shard(group, self, step, blocks), 0, 1, wanted);
        for (int i = 1; status == DP_OK && step > 0 && i < size; i++) {
            const int k = (self + i) % size; /* not all from the same one */

            status = fetch_result(group, k, chunk_of_shard(group, k, step - 1, blocks));
        }
        if (status == DP_OK) status = dp_cpu_node_barrier(group);
    }
    return status == DP_OK ? add_all_tallies(group, op, wanted) : status;
}

/* ---- The others ----------------------------------------------------------------------------- */

static dp_status_t reduce_scatter(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&group->layout);
    const int wanted = dp_cpu_wants_tally(group, op);
    dp_status_t status;

    if (wanted) dp_cpu_clear_tallies(group, all);
    status = reduce_range(group, op, all, (size_t)group->rank, 1, wanted);
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    for (int k = 0; status == DP_OK && wanted && k < group->local_size; k++) {
        status = dp_cpu_add_tallies(group, op, k, all);
    }
    return status;
}

dp_status_t dp_cpu_copy_row(dp_cpu_group_t *group, dp_engine_op_t *op, int local, size_t row)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        const size_t bytes = piece->count * elem_bytes;
        char *to;

        if (bytes == 0 || piece->out == NULL) continue;
        to = (char *)piece->out + row * piece->stride * elem_bytes;
        if (dp_cpu_is_private(group, local)) {
            const dp_control_piece_t *published = dp_cpu_published_piece(group, local, i);
            dp_status_t status;

            if (published == NULL) return dp_cpu_bad_offset(group, local);
            status = dp_pull_fetch(group, local, published->in, to, bytes);
            if (status != DP_OK) return status;
        } else {
            const void *in = dp_cpu_input_at(group, local, i, 0, piece->count, elem_bytes);

            if (in == NULL) return dp_cpu_bad_offset(group, local);
            copy_bytes(to, in, bytes);
        }
    }
    return DP_OK;
}

static dp_status_t allgather(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    dp_status_t status = DP_OK;

    for (int i = 0; status == DP_OK && i < group->local_size; i++) {
        const int k = (group->local_rank + i) % group->local_size; /* not all at the same one */

        status = dp_cpu_copy_row(group, op, k, (size_t)group->local_ranks[k]);
    }
    return status == DP_OK ? dp_cpu_node_barrier(group) : status;
}

/* All ranks read the same descriptors, and so choose the same method. */
static dp_status_t allreduce(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const int use_staging = dp_cpu_descriptor(group, 0)->use_staging;
    const uint64_t start_ns = dp_now_ns();
    dp_status_t status;

    if (!has_private(group)) return reduce_shards(group, op);
    status = use_staging ? dp_host_staging_reduce(group, op) : reduce_private(group, op);
    if (status == DP_OK && group->local_rank == 0) {
        dp_method_record(&group->lane->methods, use_staging ? DP_METHOD_STAGING : DP_METHOD_PULL,
                         dp_cpu_input_bytes(group, op), dp_now_ns() - start_ns);
    }
    return status;
}

dp_status_t dp_cpu_run_intra_node(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    dp_status_t status;

    if (op->collective == DP_COLLECTIVE_BARRIER) {
        /* After the second barrier no rank still reads what this rank published: a group may end.
         */
        status = dp_cpu_arrive(group, op, 1);
        return status == DP_OK ? dp_cpu_node_barrier(group) : status;
    }
    if (is_small(group, op)) return run_small(group, op);
    status = dp_cpu_arrive(group, op, 0);
    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        return allreduce(group, op);
    case DP_COLLECTIVE_REDUCE:
        return reduce_shards(group, op);
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return reduce_scatter(group, op);
    case DP_COLLECTIVE_ALLGATHER:
        return allgather(group, op);
    case DP_COLLECTIVE_BROADCAST:
        status = dp_cpu_copy_row(group, op, local_root(group, op), 0);
        return status == DP_OK ? dp_cpu_node_barrier(group) : status;
    default:
        break;
    }
    return DP_OK;
}
