/*
 * host_partial.c - the arithmetic between hosts: a host's sum, the sum of hosts, the final cast.
 *
 * Always in the same order: local ranks ascending, then hosts ascending. Sums of 16-bit floats stay
 * fp32 until the end. On a 16-bit wire every host's sum is rounded, the own one like the others,
 * and so is the result that is sent back: all ranks end with the same bits. Whatever the partition,
 * an element meets the same operations.
 */
#include "runtime/engine/host_between.h"

#include <math.h>
#include <string.h>

dp_numeric_t dp_numeric_choose(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    dp_numeric_t numeric = {DP_NUMERIC_PLAIN, op->dtype, op->dtype,
                            dp_host_wants_tally(engine, op)};

    /* These figures travel: all hosts must agree whether they do. */
    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) numeric.wants_tally = 1;
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

/* What elements are multiplied by on their way to a 16-bit wire, and after it. */
static float wire_scale(const dp_engine_piece_t *piece)
{
    return (float)ldexp(piece->prescale, piece->exponent);
}

static float unwire_scale(const dp_engine_piece_t *piece)
{
    return (float)ldexp(piece->postscale, -piece->exponent);
}

static void cast(dp_dtype_t from_type, const void *from, dp_dtype_t to_type, void *to, size_t count,
                 dp_tally_t *tally)
{
    const dp_cast_piece_t piece = {from, to, count, 1.0f, tally};
    const dp_cast_args_t args = {from_type, to_type, &piece, 1, 0};

    dp_kernel_cast(&args);
}

/* ---- This host's sum ----------------------------------------------------------------------------
 */

/* 16-bit inputs, block by block so that the fp32 copies stay in the first cache. */
static void make_wide(dp_host_engine_t *engine, const dp_engine_piece_t *piece, size_t count,
                      float *to)
{
    const dp_engine_op_t *op = engine->op;
    float **temps = engine->between->temps;
    const size_t bytes = dp_dtype_bytes(op->dtype);

    for (size_t at = 0; at < count; at += DP_TALLY_BLOCK) {
        void *out = to + at;
        const dp_reduce_args_t args = {
            .dtype = DP_F32,
            .reduce = op->reduce,
            .in = (const void *const *)(void *)temps,
            .in_count = engine->local_size,
            .out = &out,
            .out_count = 1,
            .count = DP_MIN(count - at, (size_t)DP_TALLY_BLOCK),
            .prescale = piece->prescale,
            .postscale = 1.0,
        };

        for (int k = 0; k < engine->local_size; k++) {
            cast(op->dtype, (const char *)engine->ins[k] + at * bytes, DP_F32, temps[k], args.count,
                 NULL);
        }
        dp_kernel_reduce(&args);
    }
}

dp_status_t dp_partial_make(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                            size_t row, char *packed)
{
    const dp_engine_op_t *op = engine->op;
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    dp_segment_t segment;

    while (dp_layout_next(&engine->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &op->pieces[segment.piece];
        void *out = packed;
        const dp_reduce_args_t args = {
            .dtype = op->dtype,
            .reduce = op->reduce,
            .in = engine->ins,
            .in_count = engine->local_size,
            .out = &out,
            .out_count = 1,
            .count = segment.count,
            .prescale = piece->prescale,
            .postscale = 1.0,
        };

        for (int k = 0; k < engine->local_size; k++) {
            engine->ins[k] =
                dp_host_in(engine, k, segment.piece, row * piece->stride + segment.start,
                           segment.count, elem_bytes);
            if (engine->ins[k] == NULL) return dp_host_bad_offset(engine, k);
        }
        switch (numeric->mode) {
        case DP_NUMERIC_PLAIN:
            dp_kernel_reduce(&args);
            break;
        case DP_NUMERIC_WIDE:
            make_wide(engine, piece, segment.count, out);
            break;
        case DP_NUMERIC_WIRE:
            dp_kernel_reduce_cast((const float *const *)(void *)engine->ins, engine->local_size,
                                  numeric->partial, out, segment.count, wire_scale(piece));
            break;
        }
        packed += segment.count * dp_dtype_bytes(numeric->partial);
    }
    return DP_OK;
}

/* ---- The sum of hosts
 * ----------------------------------------------------------------------------- */

/* Where the running segment lies in every host's partial sum. */
static void point_at(dp_host_engine_t *engine, const char *const *partials, size_t offset)
{
    for (int h = 0; h < engine->host_count; h++)
        engine->ins[h] = partials[h] + offset;
}

/* Sums what engine->ins points at into out. */
static void sum_hosts(dp_host_engine_t *engine, dp_dtype_t dtype, const void *const *in,
                      size_t count, double postscale, void *out, dp_tally_t *tally)
{
    const dp_reduce_args_t args = {
        .dtype = dtype,
        .reduce = engine->op->reduce,
        .in = in,
        .in_count = engine->host_count,
        .out = &out,
        .out_count = 1,
        .count = count,
        .prescale = 1.0,
        .postscale = postscale,
        .divisor = dp_host_divisor(engine, engine->op),
        .tally = tally,
    };

    dp_kernel_reduce(&args);
}

/* Back to fp32, block by block: engine->between->temps[h] holds host h's part. */
static void expand_hosts(dp_host_engine_t *engine, dp_dtype_t wire, size_t at, size_t count)
{
    for (int h = 0; h < engine->host_count; h++) {
        dp_kernel_expand(wire, (const uint16_t *)engine->ins[h] + at, &engine->between->temps[h], 1,
                         count, 1.0f, NULL);
    }
}

/* One segment of wide or wired partial sums. packed: the result in its type between hosts, or NULL:
 * to out, in the operation's type. */
static void sum_blocks(dp_host_engine_t *engine, const dp_numeric_t *numeric,
                       const dp_engine_piece_t *piece, size_t count, char *packed, char *out,
                       dp_tally_t *tally)
{
    float **temps = engine->between->temps;
    const void *const *wired = (const void *const *)(void *)temps;
    const dp_dtype_t dtype = engine->op->dtype;

    for (size_t at = 0; at < count; at += DP_TALLY_BLOCK) {
        const size_t elems = DP_MIN(count - at, (size_t)DP_TALLY_BLOCK);

        if (numeric->mode == DP_NUMERIC_WIDE) {
            sum_hosts(engine, DP_F32, engine->ins, elems, piece->postscale, temps[0], NULL);
            cast(DP_F32, temps[0], dtype,
                 (packed != NULL ? packed : out) + at * dp_dtype_bytes(dtype), elems, tally);
            for (int h = 0; h < engine->host_count; h++) {
                engine->ins[h] = (const float *)engine->ins[h] + elems;
            }
        } else {
            expand_hosts(engine, numeric->partial, at, elems);
            if (packed != NULL) {
                dp_kernel_reduce_cast((const float *const *)(void *)temps, engine->host_count,
                                      numeric->partial, packed + at * sizeof(uint16_t), elems,
                                      1.0f);
            } else {
                sum_hosts(engine, DP_F32, wired, elems, (double)unwire_scale(piece),
                          out + at * sizeof(float), tally);
            }
        }
    }
}

void dp_partial_combine(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                        const char *const *partials, char *packed)
{
    size_t before = 0; /* elements */
    dp_segment_t segment;

    while (dp_layout_next(&engine->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &engine->op->pieces[segment.piece];
        char *to = packed + before * dp_dtype_bytes(numeric->result);

        point_at(engine, partials, before * dp_dtype_bytes(numeric->partial));
        if (numeric->mode == DP_NUMERIC_PLAIN) {
            sum_hosts(engine, numeric->partial, engine->ins, segment.count, piece->postscale, to,
                      NULL);
        } else {
            sum_blocks(engine, numeric, piece, segment.count, to, NULL, NULL);
        }
        before += segment.count;
    }
}

void dp_partial_finish(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                       const char *const *partials)
{
    const size_t elem_bytes = dp_dtype_bytes(engine->op->dtype);
    size_t before = 0; /* elements */
    dp_segment_t segment;

    while (dp_layout_next(&engine->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &engine->op->pieces[segment.piece];
        dp_tally_t *tally = dp_host_tally(engine, segment.piece, numeric->wants_tally);
        char *out = (char *)piece->out + segment.start * elem_bytes;

        point_at(engine, partials, before * dp_dtype_bytes(numeric->partial));
        if (numeric->mode == DP_NUMERIC_PLAIN) {
            sum_hosts(engine, numeric->partial, engine->ins, segment.count, piece->postscale, out,
                      tally);
        } else {
            sum_blocks(engine, numeric, piece, segment.count, NULL, out, tally);
        }
        before += segment.count;
    }
}

/* ---- To everybody
 * ----------------------------------------------------------------------------------- */

static void deliver_plain(dp_host_engine_t *engine, dp_dtype_t dtype, const void *from,
                          size_t count, dp_tally_t *tally)
{
    const dp_reduce_args_t args = {
        .dtype = dtype,
        .reduce = DP_SUM,
        .in = &from,
        .in_count = 1,
        .out = engine->outs,
        .out_count = engine->local_size,
        .count = count,
        .prescale = 1.0,
        .postscale = 1.0,
        .tally = tally,
    };

    if (tally != NULL) {
        dp_kernel_reduce(&args);
        return;
    }
    for (int k = 0; k < engine->local_size; k++) {
        memcpy(engine->outs[k], from, count * dp_dtype_bytes(dtype));
    }
}

dp_status_t dp_partial_deliver(dp_host_engine_t *engine, const dp_numeric_t *numeric,
                               dp_range_t range, const char *packed)
{
    const dp_dtype_t dtype = engine->op->dtype;
    dp_segment_t segment;

    while (dp_layout_next(&engine->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &engine->op->pieces[segment.piece];
        dp_tally_t *tally = dp_host_tally(engine, segment.piece, numeric->wants_tally);

        for (int k = 0; k < engine->local_size; k++) {
            engine->outs[k] = dp_host_out(engine, k, segment.piece, segment.start, segment.count,
                                          dp_dtype_bytes(dtype));
            if (engine->outs[k] == NULL) return dp_host_bad_offset(engine, k);
        }
        if (numeric->mode == DP_NUMERIC_WIRE) {
            dp_kernel_expand(numeric->result, packed, (float *const *)(void *)engine->outs,
                             engine->local_size, segment.count, unwire_scale(piece), tally);
        } else {
            deliver_plain(engine, dtype, packed, segment.count, tally);
        }
        packed += segment.count * dp_dtype_bytes(numeric->result);
    }
    return DP_OK;
}
