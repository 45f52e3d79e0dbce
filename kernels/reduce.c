/*
 * reduce.c - reductions of fp32 and of 16-bit floats, in fp32, block by block.
 *
 * Compiled once per instruction set. Sums must reach the speed of memory, so one pass adds all
 * inputs, takes the figures and writes two outputs (sum_in_one_pass()). Everything else takes one
 * pass over a block per input, while the block lies in the first-level cache. The engines call it
 * through select.c, on the thread that runs an operation.
 */
#include "kernels/vector.h"

/* into[i] = into[i] op pre * from[i] */
INLINE void combine_block(dp_dtype_t dtype, dp_reduce_t reduce, float *into, const void *from,
                          size_t count, float pre)
{
    size_t i = 0;

#define COMBINE(vector_expression, scalar_expression)                                              \
    for (; i + LANES <= count; i += LANES) {                                                       \
        f32v a = load(into, i), b = load_as(dtype, from, i) * pre;                                 \
        store(into, i, vector_expression);                                                         \
    }                                                                                              \
    for (; i < count; i++) {                                                                       \
        float a = into[i], b = load_as_1(dtype, from, i) * pre;                                    \
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

INLINE void scale_block(dp_dtype_t dtype, float *block, const void *from, size_t count, float scale)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        store(block, i, load_as(dtype, from, i) * scale);
    for (; i < count; i++)
        block[i] = load_as_1(dtype, from, i) * scale;
}

/* to[i] = post * block[i]; with has_figures block takes what a reader of the result will see. */
INLINE void finish_block(dp_dtype_t dtype, void *to, float *block, size_t count, float post,
                         int has_figures)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        f32v seen;

        store_packed(dtype, to, i, pack_as(dtype, canonical(load(block, i) * post), &seen));
        if (has_figures) store(block, i, seen);
    }
    for (; i < count; i++) {
        store_as_1(dtype, to, i, canonical_1(block[i] * post));
        if (has_figures) block[i] = load_as_1(dtype, to, i);
    }
}

/* ---- Sums in one pass ------------------------------------------------------------------------ */

/* Makes the NaNs of a block that was written to one or two places canonical. */
INLINE void mend_block(dp_dtype_t dtype, void *const *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float value = canonical_1(load_as_1(dtype, to[0], i));

        store_as_1(dtype, to[0], i, value);
        if (to[1] != NULL) store_as_1(dtype, to[1], i, value);
    }
}

#define SUMS_MAX 64 /* inputs of a sum in one pass */
#define AHEAD 1024  /* how many bytes ahead of the sum the prefetches go */

/*
 * Asks for the line of an output, to write it. Where an output is an input of another rank, whose
 * core has just written it, a load would bring a line that is shared with that core, and the store
 * after it would wait for it once more: at 256 KiB to 1 MiB that is half of the time or more. Never
 * past the end: what comes there may be what another rank is writing.
 */
INLINE void claim(void *at)
{
    __builtin_prefetch(at, 1);
}

/*
 * Part j of a line of 64 bytes: LANES elements in their order. Of bf16 a register holds twice as
 * many, and taking every other one is cheaper than widening half of them: part 2q are the elements
 * 0, 2, 4 ... of register q, part 2q + 1 the elements 1, 3, 5 ...
 */
INLINE f32v load_part(dp_dtype_t dtype, const unsigned char *line, size_t j)
{
    u32v both;

    if (dtype != DP_BF16) return load_as(dtype, line, j * LANES);
    both = *(const u32v_mem *)(const void *)(line + j / 2 * sizeof(both));
    return (f32v)(j % 2 == 0 ? both << 16 : both & 0xffff0000u);
}

/* Stores the parts of a line to one or two places, and leaves in them what a reader will see. */
INLINE void store_parts(dp_dtype_t dtype, unsigned char *first, unsigned char *second, f32v *parts)
{
    if (dtype == DP_BF16) {
        for (size_t q = 0; q < TALLY_LANES / LANES; q++) {
            const f32v even = round_to_bf16(parts[2 * q]), odd = round_to_bf16(parts[2 * q + 1]);
            const u32v both = (u32v)even >> 16 | (u32v)odd;

            parts[2 * q] = even;
            parts[2 * q + 1] = odd;
            *(u32v_mem *)(void *)(first + q * sizeof(both)) = both;
            if (second != NULL) *(u32v_mem *)(void *)(second + q * sizeof(both)) = both;
        }
        return;
    }
    for (size_t j = 0; j < (dtype == DP_F32 ? TALLY_LANES : 2 * TALLY_LANES) / LANES; j++) {
        const packed_t packed = pack_as(dtype, parts[j], &parts[j]);

        store_packed(dtype, first, j * LANES, packed);
        if (second != NULL) store_packed(dtype, second, j * LANES, packed);
    }
}

/* Adds the figures of the parts of a line that lie at base. Sum s of a block takes elements s % 16;
 * of bf16 the sums of the even elements come first (sort_sums()). */
INLINE void add_part_figures(dp_dtype_t dtype, figures_t *figures, const void *base,
                             const f32v *parts)
{
    for (size_t j = 0; j < (dtype == DP_F32 ? TALLY_LANES : 2 * TALLY_LANES) / LANES; j++) {
        const size_t places = TALLY_LANES / LANES; /* of registers of doubles, for each parity */
        size_t half[2] = {2 * j % (2 * places), (2 * j + 1) % (2 * places)};

        if (dtype == DP_BF16) {
            half[0] = j % 2 * places + j / 2 * 2 % places;
            half[1] = j % 2 * places + (j / 2 * 2 + 1) % places;
        }
        figures->largest = larger(figures->largest, (i32v)parts[j] & 0x7fffffff);
        figures->sums[half[0]] =
            add_square(figures->sums[half[0]], load_double(base, j * LANES, 0));
        figures->sums[half[1]] =
            add_square(figures->sums[half[1]], load_double(base, j * LANES, 1));
    }
}

/* Puts the sums of bf16 in the order of all others. */
static inline void sort_sums(figures_t *figures)
{
    double from[TALLY_LANES], to[TALLY_LANES];

    memcpy(from, figures->sums, sizeof(from));
    for (size_t i = 0; i < TALLY_LANES; i++)
        to[i] = from[i % 2 * (TALLY_LANES / 2) + i / 2];
    memcpy(figures->sums, to, sizeof(to));
}

/* Part j of the sum of the lines at `at`. */
INLINE f32v sum_part(dp_dtype_t dtype, const unsigned char *const *from, int n, size_t at, size_t j,
                     float pre, float post, int is_scaled)
{
    f32v value = load_part(dtype, from[0] + at, j);

    if (is_scaled) value *= pre;
    for (int k = 1; k < n; k++) { /* here gradients are added: docs/design.md, section 3 */
        const f32v next = load_part(dtype, from[k] + at, j);

        value += is_scaled ? next * pre : next;
    }
    return is_scaled ? value * post : value;
}

INLINE float sum_element(dp_dtype_t dtype, const unsigned char *const *from, int n, size_t at,
                         float pre, float post, int is_scaled)
{
    float value = load_as_1(dtype, from[0], at);

    if (is_scaled) value *= pre;
    for (int k = 1; k < n; k++)
        value += is_scaled ? load_as_1(dtype, from[k], at) * pre : load_as_1(dtype, from[k], at);
    return canonical_1(is_scaled ? value * post : value);
}

/* Adds the figures of a block to the tally; i: how many of its elements they are of. */
INLINE void close_sum_figures(dp_dtype_t dtype, dp_tally_t *tally, const figures_t *figures,
                              void *const *to, size_t i, size_t count)
{
    const int32_t top = fold_largest(figures);
    _Alignas(64) float block[BLOCK];

    if (top > 0x7f800000) mend_block(dtype, to, i);
    if (dtype == DP_F32) {
        close_figures(tally, figures, to[0], i, count);
    } else {
        if (top >= 0x7f800000 || i < count) scale_block(dtype, block, to[0], count, 1.0f);
        close_figures(tally, figures, block, i, count);
    }
}

/*
 * Adds n inputs in fp32, stores the sums to one or two outputs (to[1] NULL: one) and, with
 * has_figures, takes their figures in the same pass. Memory is the limit, so the loop does little
 * arithmetic: it multiplies by no factor of 1, and with figures, which show NaNs, mend_block()
 * repairs those afterwards. A turn is a line of 64 bytes. left: elements to the end of the whole
 * call, where prefetches stop.
 */
INLINE void sum_whole_block_n(dp_dtype_t dtype, void *const *to, const void *const *in, int n,
                              size_t at, size_t count, size_t left, float pre, float post,
                              int is_scaled, int has_figures, dp_tally_t *tally)
{
    const size_t elem_bytes = dtype == DP_F32 ? 4 : 2, turn = 64 / elem_bytes;
    const unsigned char *from[SUMS_MAX];
    unsigned char *const first = to[0], *const second = to[1];
    int is_read_only[SUMS_MAX];
    _Alignas(64) float spilled[2 * TALLY_LANES];
    figures_t figures = {0};
    size_t i = 0;

    for (int k = 0; k < n; k++) {
        from[k] = (const unsigned char *)in[k] + at * elem_bytes;
        is_read_only[k] = from[k] != first && (second == NULL || from[k] != second);
    }
    for (; i + turn <= count; i += turn) {
        const size_t line = i * elem_bytes;
        f32v parts[2 * TALLY_LANES / LANES];

        if (i + AHEAD / elem_bytes < left) {
            for (int k = 0; k < n; k++)
                if (is_read_only[k]) __builtin_prefetch(from[k] + line + AHEAD);
            claim(first + line + AHEAD);
            if (second != NULL) claim(second + line + AHEAD);
        }
        for (size_t j = 0; j < turn / LANES; j++) {
            parts[j] = sum_part(dtype, from, n, line, j, pre, post, is_scaled);
            if (!has_figures) parts[j] = canonical(parts[j]);
        }
        store_parts(dtype, first + line, second != NULL ? second + line : NULL, parts);
        if (!has_figures) continue;
        for (size_t j = 0; dtype != DP_F32 && j < turn / LANES; j++)
            store(spilled, j * LANES, parts[j]);
        /* A load that widens takes less than taking registers apart: the figures are made from
         * memory. */
        __asm__ volatile("" ::: "memory");
        add_part_figures(dtype, &figures, dtype == DP_F32 ? first + line : (void *)spilled, parts);
    }
    for (size_t rest = i; rest < count; rest++) {
        const float value = sum_element(dtype, from, n, rest, pre, post, is_scaled);

        store_as_1(dtype, first, rest, value);
        if (second != NULL) store_as_1(dtype, second, rest, value);
    }
    if (has_figures) {
        /* A copy: if the address of `figures` were taken, it would not stay in registers. */
        figures_t all = figures;

        if (dtype == DP_BF16) sort_sums(&all);
        close_sum_figures(dtype, tally, &all, to, i, count);
    }
}

/* At most SUMS_MAX inputs, unrolled for the usual counts; tally NULL: no figures. */
INLINE void sum_whole_block(dp_dtype_t dtype, void *const *to, const void *const *in, int in_count,
                            size_t at, size_t count, size_t left, float pre, float post,
                            dp_tally_t *tally)
{
    const int is_scaled = pre != 1.0f || post != 1.0f;

#define WHOLE_CASE(n)                                                                              \
    if (is_scaled && tally != NULL) {                                                              \
        sum_whole_block_n(dtype, to, in, n, at, count, left, pre, post, 1, 1, tally);              \
    } else if (is_scaled) {                                                                        \
        sum_whole_block_n(dtype, to, in, n, at, count, left, pre, post, 1, 0, NULL);               \
    } else if (tally != NULL) {                                                                    \
        sum_whole_block_n(dtype, to, in, n, at, count, left, pre, post, 0, 1, tally);              \
    } else {                                                                                       \
        sum_whole_block_n(dtype, to, in, n, at, count, left, pre, post, 0, 0, NULL);               \
    }

    if (in_count == 2) {
        WHOLE_CASE(2)
    } else if (in_count == 4) {
        WHOLE_CASE(4)
    } else {
        WHOLE_CASE(in_count)
    }
#undef WHOLE_CASE
}

/* 1: one pass adds up all inputs. A factor that is NaN would make NaNs that pack_as() cannot keep.
 */
static int is_one_pass(const dp_reduce_args_t *args)
{
    if (args->reduce != DP_SUM && args->reduce != DP_AVERAGE) return 0;
    if (args->prescale != args->prescale || args->postscale != args->postscale) return 0;
    return args->in_count <= SUMS_MAX && args->out_count >= 1;
}

/* 1: the result goes to output k through the caches. */
static int is_cached(const dp_reduce_args_t *args, int k)
{
    return k < args->out_count && (!args->streaming || is_input(args, args->out[k]));
}

/* The first two outputs take the sums directly, unless they are streamed. */
INLINE void sum_in_one_pass(dp_dtype_t dtype, const dp_reduce_args_t *args)
{
    const size_t elem_bytes = dtype == DP_F32 ? 4 : 2;
    _Alignas(64) unsigned char staged[BLOCK * sizeof(float)];

    for (size_t at = 0; at < args->count; at += BLOCK) {
        const size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;
        const size_t left = args->count - at;
        void *to[2] = {staged, NULL};

        if (is_cached(args, 0)) to[0] = (unsigned char *)args->out[0] + at * elem_bytes;
        if (is_cached(args, 1)) to[1] = (unsigned char *)args->out[1] + at * elem_bytes;
        sum_whole_block(dtype, to, args->in, args->in_count, at, count,
                        to[0] == staged ? count : left, (float)args->prescale,
                        (float)args->postscale, args->tally);
        emit_block(args, at * elem_bytes, to[0], count * elem_bytes, to[1]);
    }
}

/* ---- All others ------------------------------------------------------------------------------ */

/* A pass over the block for each input. */
INLINE void reduce_in_passes(dp_dtype_t dtype, const dp_reduce_args_t *args)
{
    const size_t elem_bytes = dtype == DP_F32 ? 4 : 2;
    const float pre = (float)args->prescale, post = (float)args->postscale;
    const int has_figures = args->tally != NULL;
    _Alignas(64) float block[BLOCK];
    _Alignas(64) uint16_t narrow[BLOCK];
    void *const result = dtype == DP_F32 ? (void *)block : narrow;

    for (size_t at = 0; at < args->count; at += BLOCK) {
        const size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;

        claim_block(args, at * elem_bytes, count * elem_bytes);
        scale_block(dtype, block, (const unsigned char *)args->in[0] + at * elem_bytes, count, pre);
        for (int k = 1; k < args->in_count; k++) {
            combine_block(dtype, args->reduce, block,
                          (const unsigned char *)args->in[k] + at * elem_bytes, count, pre);
        }
        finish_block(dtype, result, block, count, post, has_figures);
        if (has_figures) tally_block(args->tally, block, count);
        emit_block(args, at * elem_bytes, result, count * elem_bytes, NULL);
    }
}

INLINE void reduce_floats(dp_dtype_t dtype, const dp_reduce_args_t *args)
{
    if (is_one_pass(args)) {
        sum_in_one_pass(dtype, args);
    } else {
        reduce_in_passes(dtype, args);
    }
}

void DP_VARIANT(dp_reduce)(const dp_reduce_args_t *args)
{
    switch (args->dtype) {
    case DP_F32:
        reduce_floats(DP_F32, args);
        break;
    case DP_F16:
        reduce_floats(DP_F16, args);
        break;
    case DP_BF16:
        reduce_floats(DP_BF16, args);
        break;
    default:
        DP_VARIANT(dp_reduce_types)(args);
    }
    if (args->streaming) finish_stream();
}
