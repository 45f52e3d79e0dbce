/*
 * host_local.c - collectives inside a host: everybody reads and writes everybody's memory.
 *
 * An allreduce gives each rank a shard. It reads all inputs of the shard, in the order of the
 * ranks, and writes the result into all outputs in the same pass, so each byte moves twice and
 * nothing is staged. Small operations take one meet: every rank shows its input and computes
 * everything.
 */
#include "runtime/engine/host_internal.h"

#include <string.h>

#define STREAM_BYTES (8 * DP_MIB) /* a shard this large has left the caches before it is read */

/* memcpy() for buffers that may be the same. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes != 0) memcpy(to, from, bytes);
}

static int local_root(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    return engine->topology->local_rank[op->root];
}

/* ---- Small ------------------------------------------------------------------------------------
 */

static int is_small(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    const size_t elems = engine->layout.elem_count;
    size_t bytes;

    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) return 0;
    if (elems > DP_EAGER_BYTES) return 0;
    bytes = elems * dp_dtype_bytes(op->dtype);
    return bytes <= DP_EAGER_BYTES && bytes * (size_t)engine->local_size <= DP_EAGER_TOTAL;
}

/* Reduces piece after piece from what everybody showed, into this rank's output. */
static void small_reduce(dp_host_engine_t *engine, dp_engine_op_t *op, const char *const *shown)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const int wanted = dp_host_wants_tally(engine, op);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        const size_t before = engine->layout.elem_begin[i] * elem_bytes;
        const dp_reduce_args_t args = {
            .dtype = op->dtype,
            .reduce = op->reduce,
            .in = engine->ins,
            .in_count = engine->local_size,
            .out = &piece->out,
            .out_count = 1,
            .count = piece->count,
            .prescale = piece->prescale,
            .postscale = piece->postscale,
            .divisor = dp_host_divisor(engine, op),
            .tally = wanted ? piece->tally : NULL,
        };

        if (piece->count == 0) continue;
        for (int k = 0; k < engine->local_size; k++)
            engine->ins[k] = shown[k] + before;
        dp_kernel_reduce(&args);
    }
}

static void small_copy(dp_host_engine_t *engine, dp_engine_op_t *op, const char *from, size_t row)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];

        if (piece->count == 0) continue;
        copy((char *)piece->out + row * piece->stride * elem_bytes,
             from + engine->layout.elem_begin[i] * elem_bytes, piece->count * elem_bytes);
    }
}

static dp_status_t run_small(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const char **shown = (const char **)(void *)engine->outs; /* free for this: one output only */
    dp_status_t status = dp_host_arrive(engine, op, 1);

    if (status != DP_OK) return status;
    for (int k = 0; k < engine->local_size; k++) {
        shown[k] = dp_arena_at(engine->arena, k, dp_host_slot(engine, k)->eager, DP_EAGER_BYTES);
        if (shown[k] == NULL) return dp_host_bad_offset(engine, k);
    }
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        small_reduce(engine, op, shown);
        break;
    case DP_COLLECTIVE_BROADCAST:
        small_copy(engine, op, shown[local_root(engine, op)], 0);
        break;
    case DP_COLLECTIVE_ALLGATHER:
        for (int k = 0; k < engine->local_size; k++) {
            small_copy(engine, op, shown[k], (size_t)engine->local_ranks[k]);
        }
        break;
    default:
        break;
    }
    return DP_OK;
}

/* ---- Large ------------------------------------------------------------------------------------
 */

static dp_status_t reduce_segment(dp_host_engine_t *engine, const dp_engine_op_t *op,
                                  dp_segment_t segment, size_t in_row, int to_all, int wanted)
{
    const dp_engine_piece_t *piece = &op->pieces[segment.piece];
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const size_t in_start = in_row * piece->stride + segment.start;
    const dp_reduce_args_t args = {
        .dtype = op->dtype,
        .reduce = op->reduce,
        .in = engine->ins,
        .in_count = engine->local_size,
        .out = engine->outs,
        .out_count = to_all ? engine->local_size : 1,
        .count = segment.count,
        .prescale = piece->prescale,
        .postscale = piece->postscale,
        .divisor = dp_host_divisor(engine, op),
        .tally = dp_host_tally(engine, segment.piece, wanted),
        .streaming = segment.count * elem_bytes >= STREAM_BYTES,
    };

    for (int k = 0; k < engine->local_size; k++) {
        engine->ins[k] = dp_host_in(engine, k, segment.piece, in_start, segment.count, elem_bytes);
        if (engine->ins[k] == NULL) return dp_host_bad_offset(engine, k);
        if (!to_all) continue;
        engine->outs[k] =
            dp_host_out(engine, k, segment.piece, segment.start, segment.count, elem_bytes);
        if (engine->outs[k] == NULL) return dp_host_bad_offset(engine, k);
    }
    if (!to_all) engine->outs[0] = (char *)piece->out + segment.start * elem_bytes;
    dp_kernel_reduce(&args);
    return DP_OK;
}

static dp_status_t allreduce(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&engine->layout);
    const int wanted = dp_host_wants_tally(engine, op);
    dp_range_t left = dp_range_part(all, engine->local_rank, engine->local_size);
    dp_segment_t segment;
    dp_status_t status = DP_OK;

    if (wanted) dp_host_clear_tallies(engine, left);
    while (status == DP_OK && dp_layout_next(&engine->layout, &left, &segment)) {
        status = reduce_segment(engine, op, segment, 0, 1, wanted);
    }
    if (status == DP_OK) status = dp_host_meet(engine);
    for (int k = 0; status == DP_OK && wanted && k < engine->local_size; k++) {
        status = dp_host_add_tallies(engine, op, k, dp_range_part(all, k, engine->local_size));
    }
    return status;
}

static dp_status_t reduce_scatter(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&engine->layout);
    const int wanted = dp_host_wants_tally(engine, op);
    dp_range_t left = all;
    dp_segment_t segment;
    dp_status_t status = DP_OK;

    if (wanted) dp_host_clear_tallies(engine, all);
    while (status == DP_OK && dp_layout_next(&engine->layout, &left, &segment)) {
        status = reduce_segment(engine, op, segment, (size_t)engine->rank, 0, wanted);
    }
    if (status == DP_OK) status = dp_host_meet(engine);
    for (int k = 0; status == DP_OK && wanted && k < engine->local_size; k++) {
        status = dp_host_add_tallies(engine, op, k, all);
    }
    return status;
}

dp_status_t dp_host_copy_row(dp_host_engine_t *engine, dp_engine_op_t *op, int local, size_t row)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        const void *in;

        if (piece->count == 0) continue;
        in = dp_host_in(engine, local, i, 0, piece->count, elem_bytes);
        if (in == NULL) return dp_host_bad_offset(engine, local);
        copy((char *)piece->out + row * piece->stride * elem_bytes, in, piece->count * elem_bytes);
    }
    return DP_OK;
}

static dp_status_t allgather(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    dp_status_t status = DP_OK;

    for (int i = 0; status == DP_OK && i < engine->local_size; i++) {
        const int k = (engine->local_rank + i) % engine->local_size; /* not all at the same one */

        status = dp_host_copy_row(engine, op, k, (size_t)engine->local_ranks[k]);
    }
    return status == DP_OK ? dp_host_meet(engine) : status;
}

dp_status_t dp_host_local_run(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    dp_status_t status;

    if (is_small(engine, op)) return run_small(engine, op);
    status = dp_host_arrive(engine, op, 0);
    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        return allreduce(engine, op);
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return reduce_scatter(engine, op);
    case DP_COLLECTIVE_ALLGATHER:
        return allgather(engine, op);
    case DP_COLLECTIVE_BROADCAST:
        status = dp_host_copy_row(engine, op, local_root(engine, op), 0);
        return status == DP_OK ? dp_host_meet(engine) : status;
    default:
        break;
    }
    return DP_OK;
}
