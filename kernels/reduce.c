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

/* ---- Sums of fp32 in one pass ------------------------------------------------------------------ */

/* Makes the NaNs of a block that was written to one or two places canonical. */
static void mend_block(void *const *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float value = canonical_1(((const f32_mem *)to[0])[i]);

        ((f32_mem *)to[0])[i] = value;
        if (to[1] != NULL) ((f32_mem *)to[1])[i] = value;
    }
}

/* How many elements ahead of the sum the prefetches go. */
#define AHEAD 256

/*
 * Asks for the line at an element of an output, to write it. Where an output is an input of another
 * rank, whose core has just written it, a load would bring a line that is shared with that core,
 * and the store after it would wait for it once more: at 256 KiB to 1 MiB that is half of the time
 * or more. Never past the end: what comes there may be what another rank is writing.
 */
INLINE void claim(void *base, size_t at)
{
    __builtin_prefetch((f32_mem *)base + at, 1);
}

/* One vector of the sum. */
INLINE f32v sum_vector(const f32_mem *const *from, int n, size_t at, float pre, float post,
                       int is_scaled)
{
    f32v value = load(from[0], at);

    if (is_scaled) value *= pre;
    for (int k = 1; k < n; k++) /* here gradients are added: docs/design.md, section 3 */
        value += is_scaled ? load(from[k], at) * pre : load(from[k], at);
    return is_scaled ? value * post : value;
}

/*
 * Adds n inputs, stores the sums to one or two outputs (to[1] NULL: one) and, with has_figures,
 * takes their figures in the same pass. Memory is the limit, so the loop does little arithmetic:
 * it multiplies by no factor of 1, and with figures, which show NaNs, mend_block() repairs those
 * afterwards. left: elements to the end of the whole call, where prefetches stop.
 */
INLINE void sum_whole_block_n(void *const *to, const void *const *in, int n, size_t at,
                              size_t count, size_t left, float pre, float post, int is_scaled,
                              int has_figures, dp_tally_t *tally)
{
    const f32_mem *from[8];
    void *const first = to[0], *const second = to[1];
    int is_read_only[8];
    figures_t figures = {0};
    size_t i = 0;

    for (int k = 0; k < n; k++) {
        from[k] = (const f32_mem *)in[k] + at;
        is_read_only[k] = from[k] != first && (second == NULL || from[k] != second);
    }
    for (; i + TALLY_LANES <= count; i += TALLY_LANES) {
        f32v values[TALLY_LANES / LANES];

        if (i + AHEAD < left) {
            for (int k = 0; k < n; k++)
                if (is_read_only[k]) __builtin_prefetch(from[k] + i + AHEAD);
            claim(first, i + AHEAD);
            if (second != NULL) claim(second, i + AHEAD);
        }
        for (size_t j = 0; j < TALLY_LANES / LANES; j++) {
            values[j] = sum_vector(from, n, i + j * LANES, pre, post, is_scaled);
            if (!has_figures) values[j] = canonical(values[j]);
            store(first, i + j * LANES, values[j]);
            if (second != NULL) store(second, i + j * LANES, values[j]);
        }
        if (!has_figures) continue;
        __asm__ volatile("" ::
                             : "memory"); /* or values in registers would replace the loads below */
        for (size_t j = 0; j < TALLY_LANES / LANES; j++)
            add_stored_figures(&figures, first, i + j * LANES, values[j], j);
    }
    for (size_t rest = i; rest < count; rest++) {
        float value = is_scaled ? from[0][rest] * pre : from[0][rest];

        for (int k = 1; k < n; k++)
            value += is_scaled ? from[k][rest] * pre : from[k][rest];
        value = canonical_1(is_scaled ? value * post : value);
        ((f32_mem *)first)[rest] = value;
        if (second != NULL) ((f32_mem *)second)[rest] = value;
    }
    if (has_figures) {
        /* A copy: if the address of `figures` were taken, it would not stay in registers. */
        const figures_t all = figures;

        if (fold_largest(&all) > 0x7f800000) mend_block(to, i);
        close_figures(tally, &all, first, i, count);
    }
}

/* 2, 3 or 4 inputs; tally NULL: no figures. */
static inline void sum_whole_block(void *const *to, const void *const *in, int in_count, size_t at,
                                   size_t count, size_t left, float pre, float post,
                                   dp_tally_t *tally)
{
    const int is_scaled = pre != 1.0f || post != 1.0f;

#define WHOLE_CASE(n)                                                                              \
    if (is_scaled && tally != NULL) {                                                              \
        sum_whole_block_n(to, in, n, at, count, left, pre, post, 1, 1, tally);                     \
    } else if (is_scaled) {                                                                        \
        sum_whole_block_n(to, in, n, at, count, left, pre, post, 1, 0, NULL);                      \
    } else if (tally != NULL) {                                                                    \
        sum_whole_block_n(to, in, n, at, count, left, pre, post, 0, 1, tally);                     \
    } else {                                                                                       \
        sum_whole_block_n(to, in, n, at, count, left, pre, post, 0, 0, NULL);                      \
    }

    if (in_count == 2) {
        WHOLE_CASE(2)
    } else if (in_count == 3) {
        WHOLE_CASE(3)
    } else {
        WHOLE_CASE(4)
    }
#undef WHOLE_CASE
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

/* ---- All others ------------------------------------------------------------------------------ */

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
