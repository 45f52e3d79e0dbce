/*
 * cast.c - packing, unpacking and the two halves of a compressed reduction.
 *
 * Compiled once per instruction set. Works block by block like reduce.c; an fp32 block in between
 * is needed only where both sides are 16-bit types and a scale is asked for. The engines and the
 * pipeline call it through select.c, on any thread.
 */
#include "kernels/vector.h"

static int is_16(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16;
}

static void copy_bytes(void *to, const void *from, size_t bytes, int streaming)
{
    if (to == from) return;
    if (streaming) {
        stream_bytes(to, from, bytes);
    } else {
        memmove(to, from, bytes);
    }
}

static void scale_f32(void *to, const void *from, size_t count, float scale)
{
    const f32_mem *in = from;
    f32_mem *out = to;
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        store(out, i, load(in, i) * scale);
    for (; i < count; i++)
        out[i] = in[i] * scale;
}

typedef double f64_mem __attribute__((aligned(1), may_alias));

/* to may equal from. */
static void scale_f64(void *to, const void *from, size_t count, double scale)
{
    const f64_mem *in = from;
    f64_mem *out = to;

    for (size_t i = 0; i < count; i++)
        out[i] = in[i] * scale;
}

/* A copy of a type that is neither scaled nor cast, or of f64. */
static void cast_plain(const dp_cast_args_t *args, const dp_cast_piece_t *piece)
{
    size_t bytes = piece->count * dp_kernel_dtype_bytes(args->from);

    if (args->from == DP_F64 && piece->scale != 1.0) {
        scale_f64(piece->to, piece->from, piece->count, piece->scale);
    } else {
        copy_bytes(piece->to, piece->from, bytes, args->streaming);
    }
    if (args->from == DP_F64 && piece->tally != NULL) {
        const void *in = piece->to;
        dp_reduce_args_t reread = {.dtype = DP_F64,
                                   .reduce = DP_SUM,
                                   .in = &in,
                                   .in_count = 1,
                                   .count = piece->count,
                                   .prescale = 1.0,
                                   .postscale = 1.0,
                                   .tally = piece->tally};

        DP_VARIANT(dp_reduce_types)(&reread);
    }
}

/* One block between two floating-point types; block is room for it in fp32. */
static void cast_block(const dp_cast_args_t *args, const dp_cast_piece_t *piece, size_t at,
                       size_t count, float *block)
{
    int from_16 = is_16(args->from), to_16 = is_16(args->to);
    const unsigned char *from =
        (const unsigned char *)piece->from + at * dp_kernel_dtype_bytes(args->from);
    unsigned char *to = (unsigned char *)piece->to + at * dp_kernel_dtype_bytes(args->to);

    if (from_16 && to_16) {
        if (args->from == args->to && piece->scale == 1.0) {
            copy_bytes(to, from, count * sizeof(uint16_t), args->streaming);
        } else {
            widen_block(args->from, block, from, count, (float)piece->scale);
            narrow_block(args->to, to, block, count, 1.0f);
        }
    } else if (from_16) {
        void *target = args->streaming ? (void *)block : (void *)to;

        widen_block(args->from, target, from, count, (float)piece->scale);
        if (piece->tally != NULL) tally_block(piece->tally, target, count);
        copy_bytes(to, target, count * sizeof(float), args->streaming);
        return;
    } else if (to_16) {
        narrow_block(args->to, to, from, count, (float)piece->scale);
    } else {
        const void *source = from;

        if (piece->scale != 1.0) {
            source = args->streaming ? (void *)block : (void *)to;
            scale_f32(args->streaming ? (void *)block : (void *)to, from, count,
                      (float)piece->scale);
        }
        if (piece->tally != NULL) tally_block(piece->tally, source, count);
        copy_bytes(to, source, count * sizeof(float), args->streaming);
        return;
    }
    if (piece->tally != NULL) {
        widen_block(args->to, block, to, count, 1.0f); /* as the reader will see it */
        tally_block(piece->tally, block, count);
    }
}

void DP_VARIANT(dp_cast)(const dp_cast_args_t *args)
{
    _Alignas(64) float block[BLOCK];
    int is_small_float = is_16(args->from) || args->from == DP_F32;

    for (size_t p = 0; p < args->piece_count; p++) {
        const dp_cast_piece_t *piece = &args->pieces[p];

        if (!is_small_float ||
            (args->from == args->to && piece->scale == 1.0 && piece->tally == NULL)) {
            cast_plain(args, piece);
            continue;
        }
        for (size_t at = 0; at < piece->count; at += BLOCK) {
            size_t count = piece->count - at < BLOCK ? piece->count - at : BLOCK;

            cast_block(args, piece, at, count, block);
        }
    }
    if (args->streaming) finish_stream();
}

void DP_VARIANT(dp_reduce_cast)(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                                size_t count, float scale)
{
    _Alignas(64) float block[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        const void *next[8] = {(const f32_mem *)(const void *)in[0] + at};
        int done = 1, width = 1;

        for (;;) {
            while (width < 8 && done < in_count)
                next[width++] = (const f32_mem *)(const void *)in[done++] + at;
            sum_block(block, next, width, 0, n, 1.0f, 1.0f);
            if (done == in_count) break;
            next[0] = block; /* the sum so far is the first input of the next pass */
            width = 1;
        }
        narrow_block(wire, (u16_mem *)out + at, block, n, scale);
    }
}

void DP_VARIANT(dp_expand)(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                           size_t count, float scale, dp_tally_t *tally)
{
    _Alignas(64) float block[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;

        widen_block(wire, block, (const u16_mem *)in + at, n, scale);
        if (tally != NULL) tally_block(tally, block, n);
        for (int k = 0; k < out_count; k++) {
            memcpy((unsigned char *)(void *)out[k] + at * sizeof(float), block, n * sizeof(float));
        }
    }
}
