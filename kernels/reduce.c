/*
 * reduce.c - reductions of fp32 and of 16-bit floats, block by block.
 *
 * Compiled once per instruction set. A block is reduced, tallied while it lies in the first-level
 * cache, and written to every output. The f32 sum of two to four inputs is the path that must reach
 * the speed of memory (sum_f32()); everything else takes one pass over the block per input. The
 * engines call it through select.c, on the thread that runs an operation.
 */
#include "kernels/vector.h"

/* into[i] = into[i] op pre * from[i] */
static void combine_block(dp_reduce_t reduce, float *into, const void *from, size_t count,
                          float pre)
{
    const f32_mem *in = from;
    size_t i = 0;

#define COMBINE(vector_expression, scalar_expression)                                              \
    for (; i + LANES <= count; i += LANES) {                                                       \
        f32v a = load(into, i), b = load(in, i) * pre;                                             \
        store(into, i, vector_expression);                                                         \
    }                                                                                              \
    for (; i < count; i++) {                                                                       \
        float a = into[i], b = in[i] * pre;                                                        \
        into[i] = scalar_expression;                                                               \
    }                                                                                              \
    return;

    switch (reduce) {
    case DP_SUM:
    case DP_AVERAGE:
        COMBINE(a + b, a + b)
    case DP_PRODUCT:
        COMBINE(a * b, a * b)
    case DP_MIN: /* a NaN in b is taken; one in a stays, because it compares false */
        COMBINE(choose((b < a) | (b != b), b, a), ((b < a) | (b != b)) ? b : a)
    case DP_MAX:
        COMBINE(choose((b > a) | (b != b), b, a), ((b > a) | (b != b)) ? b : a)
    case DP_REDUCE_COUNT:
        return;
    }
#undef COMBINE
}

static void scale_block(float *block, const void *from, size_t count, float scale)
{
    const f32_mem *in = from;

    for (size_t i = 0; i < count; i++)
        block[i] = in[i] * scale;
}

static void finish_block(float *block, size_t count, float post)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        store(block, i, canonical(load(block, i) * post));
    for (; i < count; i++)
        block[i] = canonical_1(block[i] * post);
}

/* 1: a sum that one pass over memory can do: no output is to be streamed. */
static int is_one_pass(const dp_reduce_args_t *args)
{
    if (args->reduce != DP_SUM && args->reduce != DP_AVERAGE) return 0;
    if (args->in_count < 2 || args->in_count > 4 || args->out_count < 1) return 0;
    for (int k = 0; args->streaming && k < args->out_count; k++) {
        if (!is_input(args, args->out[k])) return 0;
    }
    return 1;
}

static void sum_f32(const dp_reduce_args_t *args)
{
    for (size_t at = 0; at < args->count; at += BLOCK) {
        const size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;
        void *to[2] = {(f32_mem *)args->out[0] + at, NULL};

        if (args->out_count > 1) to[1] = (f32_mem *)args->out[1] + at;
        sum_whole_block(to, args->in, args->in_count, at, count, args->count - at,
                        (float)args->prescale, (float)args->postscale, args->tally);
        for (int k = 2; k < args->out_count; k++)
            memcpy((f32_mem *)args->out[k] + at, to[0], count * sizeof(float));
    }
}

static void reduce_f32(const dp_reduce_args_t *args)
{
    _Alignas(64) float block[BLOCK];
    float pre = (float)args->prescale, post = (float)args->postscale;
    int is_sum = args->reduce == DP_SUM || args->reduce == DP_AVERAGE;
    int is_short_sum = is_sum && args->in_count <= 8;
    int is_direct = args->out_count > 0 && (!args->streaming || is_input(args, args->out[0]));

    for (size_t at = 0; at < args->count; at += BLOCK) {
        size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;
        void *result = block;

        claim_block(args, at * sizeof(float), count * sizeof(float));
        if (is_short_sum) {
            /* One pass, so the first output can take the sums even where it is an input. */
            if (is_direct) result = (f32_mem *)args->out[0] + at;
            sum_block(result, args->in, args->in_count, at, count, pre, post);
        } else {
            scale_block(block, (const f32_mem *)args->in[0] + at, count, pre);
            for (int k = 1; k < args->in_count; k++) {
                combine_block(args->reduce, block, (const f32_mem *)args->in[k] + at, count, pre);
            }
            finish_block(block, count, post);
        }
        if (args->tally != NULL) tally_block(args->tally, result, count);
        emit_block(args, at * sizeof(float), result, count * sizeof(float));
    }
}

static void reduce_16(const dp_reduce_args_t *args)
{
    _Alignas(64) float block[BLOCK];
    _Alignas(64) float other[BLOCK];
    _Alignas(64) uint16_t narrow[BLOCK];
    float pre = (float)args->prescale, post = (float)args->postscale;

    for (size_t at = 0; at < args->count; at += BLOCK) {
        size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;

        claim_block(args, at * sizeof(uint16_t), count * sizeof(uint16_t));
        widen_block(args->dtype, block, (const u16_mem *)args->in[0] + at, count, pre);
        for (int k = 1; k < args->in_count; k++) {
            widen_block(args->dtype, other, (const u16_mem *)args->in[k] + at, count, pre);
            combine_block(args->reduce, block, other, count, 1.0f);
        }
        finish_block(block, count, post);
        narrow_block(args->dtype, narrow, block, count, 1.0f);
        if (args->tally != NULL) {
            widen_block(args->dtype, block, narrow, count, 1.0f); /* as the reader will see it */
            tally_block(args->tally, block, count);
        }
        emit_block(args, at * sizeof(uint16_t), narrow, count * sizeof(uint16_t));
    }
}

void DP_VARIANT(dp_reduce)(const dp_reduce_args_t *args)
{
    switch (args->dtype) {
    case DP_F32:
        if (is_one_pass(args)) {
            sum_f32(args);
        } else {
            reduce_f32(args);
        }
        break;
    case DP_F16:
    case DP_BF16:
        reduce_16(args);
        break;
    default:
        DP_VARIANT(dp_reduce_types)(args);
    }
    if (args->streaming) finish_stream();
}
