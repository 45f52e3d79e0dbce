/*
 * partial.c - the arithmetic between nodes: a node's sum, the sum of nodes, the final cast.
 *
 * Always in the same order: local ranks ascending, then nodes ascending. Sums of 16-bit floats stay
 * fp32 until the end. On a 16-bit wire every node's sum is rounded, the own one like the others,
 * and so is the result that is sent back: all ranks end with the same bits. Every partition applies
 * the same operations to an element.
 *
 * Called by reduce.c, on the thread that runs the operation. It must not know how chunks travel.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

#include <math.h>
#include <string.h>

dp_numeric_t dp_numeric_choose(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    dp_numeric_t numeric = {DP_NUMERIC_PLAIN, op->dtype, op->dtype, dp_cpu_wants_tally(group, op)};

    /* These figures travel: all nodes must agree whether they do. */
    if (op->collective != DP_COLLECTIVE_ALLREDUCE) numeric.wants_tally = dp_cpu_has_figures(op);
    if (op->dtype == DP_F32 && (op->wire == DP_WIRE_FP16 || op->wire == DP_WIRE_BF16) &&
        (op->reduce == DP_SUM || op->reduce == DP_AVERAGE)) {
        numeric.mode = DP_NUMERIC_WIRE;
        numeric.partial = numeric.result = op->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;
    } else if ((op->dtype == DP_F16 || op->dtype == DP_BF16) && op->reduce != DP_MIN &&
               op->reduce != DP_MAX) {
        numeric.mode = DP_NUMERIC_WIDE;
        numeric.partial = DP_F32;
    }
    return numeric;
}

/* The factor of elements on their way to a 16-bit wire, and after it. */
static float wire_scale(const dp_engine_piece_t *piece)
{
    return (float)ldexp(piece->prescale, piece->exponent);
}

static float unwire_scale(const dp_engine_piece_t *piece)
{
    return (float)ldexp(piece->postscale, -piece->exponent);
}

static void cast_block(dp_dtype_t from_type, const void *from, dp_dtype_t to_type, void *to,
                       size_t count, dp_tally_t *tally)
{
    const dp_cast_piece_t piece = {from, to, count, 1.0f, tally};
    const dp_cast_args_t args = {from_type, to_type, &piece, 1, 0};

    dp_kernel_cast(&args);
}

/* ---- This node's sum ------------------------------------------------------------------------ */

/* 16-bit inputs, block by block so that the fp32 copies stay in the first cache. */
static void make_wide(dp_cpu_group_t *group, const dp_engine_piece_t *piece, size_t count,
                      float *to)
{
    const dp_engine_op_t *op = group->op;
    float **temps = group->inter_node->pool->temps;
    const size_t bytes = dp_dtype_bytes(op->dtype);

    for (size_t at = 0; at < count; at += DP_TALLY_BLOCK) {
        void *out = to + at;
        const dp_reduce_args_t args = {
            .dtype = DP_F32,
            .reduce = op->reduce,
            .in = (const void *const *)(void *)temps,
            .in_count = group->local_size,
            .out = &out,
            .out_count = 1,
            .count = dp_min(count - at, (size_t)DP_TALLY_BLOCK),
            .prescale = piece->prescale,
            .postscale = 1.0,
        };

        for (int k = 0; k < group->local_size; k++) {
            cast_block(op->dtype, (const char *)group->ins[k] + at * bytes, DP_F32, temps[k],
                       args.count, NULL);
        }
        dp_kernel_reduce(&args);
    }
}

dp_status_t dp_partial_make(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                            size_t row, char *packed)
{
    const dp_engine_op_t *op = group->op;
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    dp_segment_t segment;

    while (dp_layout_next(&group->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &op->pieces[segment.piece];
        void *out = packed;
        const dp_reduce_args_t args = {
            .dtype = op->dtype,
            .reduce = op->reduce,
            .in = group->ins,
            .in_count = group->local_size,
            .out = &out,
            .out_count = 1,
            .count = segment.count,
            .prescale = piece->prescale,
            .postscale = 1.0,
        };

        for (int k = 0; k < group->local_size; k++) {
            group->ins[k] =
                dp_cpu_input_at(group, k, segment.piece, row * piece->stride + segment.start,
                                segment.count, elem_bytes);
            if (group->ins[k] == NULL) return dp_cpu_bad_offset(group, k);
        }
        switch (numeric->mode) {
        case DP_NUMERIC_PLAIN:
            dp_kernel_reduce(&args);
            break;
        case DP_NUMERIC_WIDE:
            make_wide(group, piece, segment.count, out);
            break;
        case DP_NUMERIC_WIRE:
            dp_kernel_reduce_cast((const float *const *)(void *)group->ins, group->local_size,
                                  numeric->partial, out, segment.count, wire_scale(piece));
            break;
        }
        packed += segment.count * dp_dtype_bytes(numeric->partial);
    }
    return DP_OK;
}

/* ---- The sum of nodes ----------------------------------------------------------------------- */

/* Where the running segment lies in every node's partial sum. */
static void point_at(dp_cpu_group_t *group, const char *const *partials, size_t offset)
{
    for (int h = 0; h < group->node_count; h++)
        group->ins[h] = partials[h] + offset;
}

/* Sums what group->ins points at into out. */
static void sum_nodes(dp_cpu_group_t *group, dp_dtype_t dtype, const void *const *in, size_t count,
                      double postscale, void *out, dp_tally_t *tally)
{
    const dp_reduce_args_t args = {
        .dtype = dtype,
        .reduce = group->op->reduce,
        .in = in,
        .in_count = group->node_count,
        .out = &out,
        .out_count = 1,
        .count = count,
        .prescale = 1.0,
        .postscale = postscale,
        .divisor = dp_cpu_divisor(group, group->op),
        .tally = tally,
    };

    dp_kernel_reduce(&args);
}

/* Back to fp32, block by block: group->between->pool->temps[h] holds node h's part. */
static void expand_nodes(dp_cpu_group_t *group, dp_dtype_t wire, size_t at, size_t count)
{
    for (int h = 0; h < group->node_count; h++) {
        dp_kernel_expand(wire, (const uint16_t *)group->ins[h] + at,
                         &group->inter_node->pool->temps[h], 1, count, 1.0f, NULL);
    }
}

/* One segment of wide or wired partial sums. packed: the result in its type between nodes, or NULL:
 * to out, in the operation's type. */
static void sum_blocks(dp_cpu_group_t *group, const dp_numeric_t *numeric,
                       const dp_engine_piece_t *piece, size_t count, char *packed, char *out,
                       dp_tally_t *tally)
{
    float **temps = group->inter_node->pool->temps;
    const void *const *wired = (const void *const *)(void *)temps;
    const dp_dtype_t dtype = group->op->dtype;

    for (size_t at = 0; at < count; at += DP_TALLY_BLOCK) {
        const size_t elems = dp_min(count - at, (size_t)DP_TALLY_BLOCK);

        if (numeric->mode == DP_NUMERIC_WIDE) {
            sum_nodes(group, DP_F32, group->ins, elems, piece->postscale, temps[0], NULL);
            cast_block(DP_F32, temps[0], dtype,
                       (packed != NULL ? packed : out) + at * dp_dtype_bytes(dtype), elems, tally);
            for (int h = 0; h < group->node_count; h++) {
                group->ins[h] = (const float *)group->ins[h] + elems;
            }
        } else {
            expand_nodes(group, numeric->partial, at, elems);
            if (packed != NULL) {
                dp_kernel_reduce_cast((const float *const *)(void *)temps, group->node_count,
                                      numeric->partial, packed + at * sizeof(uint16_t), elems,
                                      1.0f);
            } else {
                sum_nodes(group, DP_F32, wired, elems, (double)unwire_scale(piece),
                          out + at * sizeof(float), tally);
            }
        }
    }
}

void dp_partial_combine(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                        const char *const *partials, char *packed)
{
    size_t before = 0; /* elements */
    dp_segment_t segment;

    while (dp_layout_next(&group->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &group->op->pieces[segment.piece];
        char *to = packed + before * dp_dtype_bytes(numeric->result);

        point_at(group, partials, before * dp_dtype_bytes(numeric->partial));
        if (numeric->mode == DP_NUMERIC_PLAIN) {
            sum_nodes(group, numeric->partial, group->ins, segment.count, piece->postscale, to,
                      NULL);
        } else {
            sum_blocks(group, numeric, piece, segment.count, to, NULL, NULL);
        }
        before += segment.count;
    }
}

/* The same where nobody wants the result, but all its figures. */
static void drop_segment(dp_cpu_group_t *group, const dp_numeric_t *numeric,
                         const dp_engine_piece_t *piece, size_t count, dp_tally_t *tally)
{
    const size_t partial_bytes = dp_dtype_bytes(numeric->partial);

    for (size_t at = 0; tally != NULL && at < count; at += DP_TALLY_BLOCK) {
        const size_t elems = dp_min(count - at, (size_t)DP_TALLY_BLOCK);
        char *dropped = group->lane->dropped;
        size_t done = elems; /* what the pointers have to be moved on by */

        if (numeric->mode == DP_NUMERIC_PLAIN) {
            sum_nodes(group, numeric->partial, group->ins, elems, piece->postscale, dropped, tally);
        } else {
            sum_blocks(group, numeric, piece, elems, NULL, dropped, tally);
            if (numeric->mode == DP_NUMERIC_WIDE) done = 0; /* it did so itself */
        }
        for (int h = 0; h < group->node_count; h++)
            group->ins[h] = (const char *)group->ins[h] + done * partial_bytes;
    }
}

void dp_partial_finish(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                       const char *const *partials)
{
    const size_t elem_bytes = dp_dtype_bytes(group->op->dtype);
    size_t before = 0; /* elements */
    dp_segment_t segment;

    while (dp_layout_next(&group->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &group->op->pieces[segment.piece];
        dp_tally_t *tally = dp_cpu_tally(group, segment.piece, numeric->wants_tally);
        char *out = piece->out == NULL ? NULL : (char *)piece->out + segment.start * elem_bytes;

        point_at(group, partials, before * dp_dtype_bytes(numeric->partial));
        if (piece->out == NULL) {
            drop_segment(group, numeric, piece, segment.count, tally);
        } else if (numeric->mode == DP_NUMERIC_PLAIN) {
            sum_nodes(group, numeric->partial, group->ins, segment.count, piece->postscale, out,
                      tally);
        } else {
            sum_blocks(group, numeric, piece, segment.count, NULL, out, tally);
        }
        before += segment.count;
    }
}

/* ---- To everybody --------------------------------------------------------------------------- */

/* Points group->outs at the outputs of this node that want a segment; *count: how many. */
static dp_status_t find_outs(dp_cpu_group_t *group, dp_segment_t segment, int *count)
{
    const dp_engine_op_t *op = group->op;
    const int root = op->pieces[segment.piece].root;
    dp_status_t status = DP_OK;

    *count = 0;
    for (int k = 0; status == DP_OK && k < group->local_size; k++) {
        void *out;

        if (op->collective == DP_COLLECTIVE_REDUCE && group->local_ranks[k] != root) continue;
        status = dp_cpu_output_at(group, k, segment.piece, segment.start, segment.count,
                                  dp_dtype_bytes(op->dtype), &out);
        if (status == DP_OK && out != NULL) group->outs[(*count)++] = out;
    }
    return status;
}

static void deliver_plain(dp_cpu_group_t *group, dp_dtype_t dtype, const void *from, size_t count,
                          int out_count, dp_tally_t *tally)
{
    const dp_reduce_args_t args = {
        .dtype = dtype,
        .reduce = DP_SUM,
        .in = &from,
        .in_count = 1,
        .out = group->outs,
        .out_count = out_count,
        .count = count,
        .prescale = 1.0,
        .postscale = 1.0,
        .tally = tally,
    };

    if (tally != NULL && out_count > 0) {
        dp_kernel_reduce(&args);
    } else if (tally != NULL) {
        group->ins[0] = from;
        dp_cpu_tally_only(group, &args);
    }
    for (int k = 0; tally == NULL && k < out_count; k++)
        memcpy(group->outs[k], from, count * dp_dtype_bytes(dtype));
}

/* Figures of a packed result on a 16-bit wire that nobody here wants. */
static void count_wired(dp_cpu_group_t *group, const dp_numeric_t *numeric, const char *packed,
                        size_t count, float scale, dp_tally_t *tally)
{
    float *dropped = group->lane->dropped;

    for (size_t at = 0; tally != NULL && at < count; at += DP_TALLY_BLOCK) {
        dp_kernel_expand(numeric->result, packed + at * sizeof(uint16_t), &dropped, 1,
                         dp_min(count - at, (size_t)DP_TALLY_BLOCK), scale, tally);
    }
}

dp_status_t dp_partial_deliver(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                               const char *packed, int counts)
{
    dp_segment_t segment;

    while (dp_layout_next(&group->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &group->op->pieces[segment.piece];
        dp_tally_t *tally = dp_cpu_tally(group, segment.piece, counts && numeric->wants_tally);
        int outs;

        if (find_outs(group, segment, &outs) != DP_OK) return group->failure.status;
        if (numeric->mode != DP_NUMERIC_WIRE) {
            deliver_plain(group, group->op->dtype, packed, segment.count, outs, tally);
        } else if (outs > 0) {
            dp_kernel_expand(numeric->result, packed, (float *const *)(void *)group->outs, outs,
                             segment.count, unwire_scale(piece), tally);
        } else {
            count_wired(group, numeric, packed, segment.count, unwire_scale(piece), tally);
        }
        packed += segment.count * dp_dtype_bytes(numeric->result);
    }
    return DP_OK;
}
