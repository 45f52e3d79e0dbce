/*
 * vector.h - blocks of fp32 in vector registers; for the sources compiled per instruction set.
 *
 * A block is at most DP_TALLY_BLOCK elements: 16 KiB of fp32, which stays in the first-level cache
 * between the passes below. The vector types are the compiler's, as wide as this variant has
 * registers; element-wise arithmetic gives the same bits at every width. Memory may be unaligned.
 * Its callers are the kernels of this folder, on the thread that runs an operation.
 */
#ifndef DP_KERNELS_VECTOR_H
#define DP_KERNELS_VECTOR_H

#include "kernels/convert.h"
#include "kernels/variant.h"

#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define BLOCK DP_TALLY_BLOCK
/* Partial sums of a block: element i goes to sum i % 16, in every variant. */
#define TALLY_LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float f32v __attribute__((vector_size(4 * LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * LANES)));
typedef float f32h __attribute__((vector_size(2 * LANES))); /* half as many */
typedef double f64h __attribute__((vector_size(4 * LANES)));
typedef f32v f32v_mem __attribute__((aligned(1), may_alias));
typedef float f32_mem __attribute__((aligned(1), may_alias));
typedef uint16_t u16_mem __attribute__((aligned(1), may_alias));

INLINE f32v load(const void *base, size_t at)
{
    return *(const f32v_mem *)((const f32_mem *)base + at);
}

INLINE void store(void *base, size_t at, f32v value)
{
    *(f32v_mem *)((f32_mem *)base + at) = value;
}

INLINE f32v spread(float value)
{
    return value - (f32v){0}; /* minus +0 keeps -0 */
}

INLINE f32v choose(i32v mask, f32v yes, f32v no)
{
    return (f32v)(((i32v)yes & mask) | ((i32v)no & ~mask));
}

/* Any NaN becomes the canonical one. */
INLINE f32v canonical(f32v value)
{
    i32v is_number = value == value; /* NOLINT(misc-redundant-expression) */

    return choose(is_number, value, spread(NAN));
}

INLINE float canonical_1(float value)
{
    return value == value ? value : NAN;
}

/* ---- The figures of a block ----------------------------------------------------------------- */

INLINE double fold_lanes(double *lanes)
{
    for (int width = TALLY_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

/* Half 0 or 1 of a vector. */
INLINE f64h widen_to_double(f32v value, int half)
{
#if defined(__AVX512F__)
    __m512d whole = (__m512d)value;

    return (f64h)_mm512_cvtps_pd(
        (__m256)(half == 0 ? _mm512_castpd512_pd256(whole) : _mm512_extractf64x4_pd(whole, 1)));
#elif defined(__AVX2__)
    __m256 whole = (__m256)value;

    return (f64h)_mm256_cvtps_pd(half == 0 ? _mm256_castps256_ps128(whole)
                                           : _mm256_extractf128_ps(whole, 1));
#else
    f32h part;

    memcpy(&part, (const char *)&value + (size_t)half * sizeof(part), sizeof(part));
    return __builtin_convertvector(part, f64h);
#endif
}

/* sum + value * value. A square of an fp32 number is exact in double, so fused or not is the same.
 */
INLINE f64h add_square(f64h sum, f64h value)
{
#if defined(__AVX512F__)
    return (f64h)_mm512_fmadd_pd((__m512d)value, (__m512d)value, (__m512d)sum);
#elif defined(__AVX2__)
    return (f64h)_mm256_fmadd_pd((__m256d)value, (__m256d)value, (__m256d)sum);
#else
    return sum + value * value;
#endif
}

/* The larger of numbers below 2^31. */
INLINE i32v larger(i32v a, i32v b)
{
#if defined(__AVX512F__)
    return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    i32v mask = a > b;

    return (a & mask) | (b & ~mask);
#endif
}

/* Elements [begin, count) of a block one by one, what is not finite left out and counted. */
static inline uint64_t tally_slowly(double *lanes, float *absmax, const void *values, size_t begin,
                                    size_t count)
{
    uint64_t nonfinite = 0;

    for (size_t i = begin; i < count; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): vector stores have written them */
        float magnitude = fabsf(((const f32_mem *)values)[i]);

        if (magnitude < INFINITY) {
            *absmax = magnitude > *absmax ? magnitude : *absmax;
            lanes[i % TALLY_LANES] += (double)magnitude * (double)magnitude;
        } else {
            nonfinite++;
        }
    }
    return nonfinite;
}

/*
 * The figures of a block while it is looked at. Magnitudes compare like integers, and Inf and NaN
 * are the largest: so the fast loop need not look at each element, and a block that has one is done
 * again.
 */
typedef struct figures {
    f64h sums[2 * TALLY_LANES / LANES];
    i32v largest;
} figures_t;

/* Adds vector j of TALLY_LANES elements. */
INLINE void add_figures(figures_t *figures, f32v value, size_t j)
{
    f64h *sums = figures->sums + 2 * j;

    figures->largest = larger(figures->largest, (i32v)value & 0x7fffffff);
    sums[0] = add_square(sums[0], widen_to_double(value, 0));
    sums[1] = add_square(sums[1], widen_to_double(value, 1));
}

/* Half 0 or 1 of the vector in memory: a load that widens takes less than taking registers apart.
 */
INLINE f64h load_double(const void *base, size_t at, int half)
{
#if defined(__AVX512F__)
    const void *from = (const f32_mem *)base + at + (size_t)half * 8;

    return (f64h)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX2__)
    const void *from = (const f32_mem *)base + at + (size_t)half * 4;

    return (f64h)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
    return widen_to_double(load(base, at), half);
#endif
}

/* The largest magnitude, as an integer: above 0x7f800000 where there is a NaN. */
INLINE int32_t fold_largest(const figures_t *figures)
{
    int32_t top = 0;

    for (int j = 0; j < LANES; j++)
        top = figures->largest[j] > top ? figures->largest[j] : top;
    return top;
}

/* Adds them to the tally; i: how many of the block's elements they are of. */
static inline void close_figures(dp_tally_t *tally, const figures_t *figures, const void *values,
                                 size_t i, size_t count)
{
    const int32_t top = fold_largest(figures);
    double lanes[TALLY_LANES];
    float absmax = 0.0f;
    uint64_t nonfinite;

    if (top < 0x7f800000) {
        absmax = dp_bits_f32((uint32_t)top);
        memcpy(lanes, figures->sums, sizeof(lanes));
    } else {
        memset(lanes, 0, sizeof(lanes));
        i = 0;
    }
    nonfinite = tally_slowly(lanes, &absmax, values, i, count);
    dp_tally_add_block(tally, fold_lanes(lanes), (double)absmax, nonfinite);
}

static inline void tally_block(dp_tally_t *tally, const void *values, size_t count)
{
    figures_t figures = {0};
    size_t i = 0;

    for (; i + TALLY_LANES <= count; i += TALLY_LANES) {
        for (size_t j = 0; j < TALLY_LANES / LANES; j++)
            add_figures(&figures, load(values, i + j * LANES), j);
    }
    close_figures(tally, &figures, values, i, count);
}

/* ---- 16-bit floats -------------------------------------------------------------------------- */

typedef uint16_t u16v __attribute__((vector_size(2 * LANES)));
typedef uint32_t u32v __attribute__((vector_size(4 * LANES)));
typedef u16v u16v_mem __attribute__((aligned(1), may_alias));
typedef u32v u32v_mem __attribute__((aligned(1), may_alias));

#if !defined(__F16C__) && defined(__aarch64__)
typedef __fp16 f16v __attribute__((vector_size(2 * LANES)));
#endif

INLINE f32v f16_to_f32(u16v half)
{
#if defined(__AVX512F__)
    return (f32v)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
    return (f32v)_mm256_cvtph_ps((__m128i)half);
#elif defined(__aarch64__)
    return __builtin_convertvector((f16v)half, f32v);
#else
    f32v value = {0};

    for (int j = 0; j < LANES; j++)
        value[j] = dp_convert_f16_to_f32(half[j]);
    return value;
#endif
}

INLINE u16v f32_to_f16(f32v value)
{
#if defined(__AVX512F__)
    return (u16v)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (u16v)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (u16v) __builtin_convertvector(value, f16v);
#else
    u16v half = {0};

    for (int j = 0; j < LANES; j++)
        half[j] = dp_convert_f32_to_f16(value[j]);
    return half;
#endif
}

/* LANES elements of f32, f16 or bf16 as fp32. A signalling NaN of bf16 may stay one: its users
 * calculate with it, which makes it quiet. */
INLINE f32v load_as(dp_dtype_t dtype, const void *base, size_t at)
{
    u16v half;

    if (dtype == DP_F32) return load(base, at);
    half = *(const u16v_mem *)((const u16_mem *)base + at);
    if (dtype == DP_F16) return f16_to_f32(half);
    return (f32v)(__builtin_convertvector(half, u32v) << 16);
}

INLINE float load_as_1(dp_dtype_t dtype, const void *base, size_t at)
{
    if (dtype == DP_F32) return ((const f32_mem *)base)[at];
    return dtype == DP_F16 ? dp_convert_f16_to_f32(((const u16_mem *)base)[at])
                           : dp_convert_bf16_to_f32(((const u16_mem *)base)[at]);
}

/* LANES elements, rounded to f32, f16 or bf16. */
typedef union packed {
    f32v whole;
    u16v half;
} packed_t;

/* To nearest even. A NaN stays one where it came from bf16 or is canonical: of others the rounding
 * may carry into the sign. */
INLINE f32v round_to_bf16(f32v value)
{
    const u32v bits = (u32v)value;

    return (f32v)((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

/* Rounds to nearest even. *seen: the value as a reader of the result will see it. */
INLINE packed_t pack_as(dp_dtype_t dtype, f32v value, f32v *seen)
{
    packed_t packed = {.whole = value};

    *seen = value;
    if (dtype == DP_BF16) {
        *seen = round_to_bf16(value);
        packed.half = __builtin_convertvector((u32v)*seen >> 16, u16v);
    } else if (dtype == DP_F16) {
        packed.half = f32_to_f16(value);
        *seen = f16_to_f32(packed.half);
    }
    return packed;
}

INLINE void store_packed(dp_dtype_t dtype, void *base, size_t at, packed_t packed)
{
    if (dtype == DP_F32) {
        store(base, at, packed.whole);
    } else {
        *(u16v_mem *)((u16_mem *)base + at) = packed.half;
    }
}

INLINE void store_as_1(dp_dtype_t dtype, void *base, size_t at, float value)
{
    if (dtype == DP_F32) {
        ((f32_mem *)base)[at] = value;
    } else {
        ((u16_mem *)base)[at] =
            dtype == DP_F16 ? dp_convert_f32_to_f16(value) : dp_convert_f32_to_bf16(value);
    }
}

/* to[i] = f32(from[i]) * scale */
static inline void widen_block(dp_dtype_t dtype, void *to, const void *from, size_t count,
                               float scale)
{
    const u16_mem *in = from;
    f32_mem *out = to;
    size_t i = 0;

    if (dtype == DP_F16) {
        for (; i + LANES <= count; i += LANES)
            store(out, i, load_as(DP_F16, in, i) * scale);
        for (; i < count; i++)
            out[i] = dp_convert_f16_to_f32(in[i]) * scale;
        return;
    }
    for (; i < count; i++)
        out[i] = dp_convert_bf16_to_f32(in[i]) * scale;
}

/* to[i] = 16 bits of from[i] * scale */
static inline void narrow_block(dp_dtype_t dtype, void *to, const void *from, size_t count,
                                float scale)
{
    const f32_mem *in = from;
    u16_mem *out = to;
    size_t i = 0;

    if (dtype == DP_F16) {
        for (; i + LANES <= count; i += LANES)
            *(u16v_mem *)(out + i) = f32_to_f16(load(in, i) * scale);
        for (; i < count; i++)
            out[i] = dp_convert_f32_to_f16(in[i] * scale);
        return;
    }
    for (; i < count; i++)
        out[i] = dp_convert_f32_to_bf16(in[i] * scale);
}

/* ---- Sums ----------------------------------------------------------------------------------- */

/* sum[i] = post * (pre * in_0[at + i] + ... ), n inputs; sum may be one of them. */
INLINE void sum_block_n(void *sum, const void *const *in, int n, size_t at, size_t count, float pre,
                        float post, int is_scaled)
{
    const f32_mem *from[8];
    f32_mem *to = sum;
    size_t i = 0;

    for (int k = 0; k < n; k++)
        from[k] = (const f32_mem *)in[k] + at;
    for (; i + LANES <= count; i += LANES) {
        f32v value = load(from[0], i);

        if (is_scaled) value *= pre;
        for (int k = 1; k < n; k++)
            value += is_scaled ? load(from[k], i) * pre : load(from[k], i);
        if (is_scaled) value *= post;
        store(to, i, canonical(value));
    }
    for (; i < count; i++) {
        float value = from[0][i];

        if (is_scaled) value *= pre;
        for (int k = 1; k < n; k++)
            value += is_scaled ? from[k][i] * pre : from[k][i];
        if (is_scaled) value *= post;
        to[i] = canonical_1(value);
    }
}

/* At most 8 inputs: their counts become constants, so that the loops unroll. */
static inline void sum_block(void *sum, const void *const *in, int in_count, size_t at,
                             size_t count, float pre, float post)
{
    int is_scaled = pre != 1.0f || post != 1.0f;

#define SUM_CASE(n)                                                                                \
    case n:                                                                                        \
        if (is_scaled) {                                                                           \
            sum_block_n(sum, in, n, at, count, pre, post, 1);                                      \
        } else {                                                                                   \
            sum_block_n(sum, in, n, at, count, pre, post, 0);                                      \
        }                                                                                          \
        return;

    switch (in_count) {
        SUM_CASE(2)
        SUM_CASE(3)
        SUM_CASE(4)
        SUM_CASE(5)
        SUM_CASE(6)
        SUM_CASE(7)
        SUM_CASE(8)
    default:
        break;
    }
#undef SUM_CASE
    if (is_scaled) {
        sum_block_n(sum, in, 1, at, count, pre, post, 1);
    } else {
        sum_block_n(sum, in, 1, at, count, pre, post, 0);
    }
}

/* ---- Output --------------------------------------------------------------------------------- */

/* Copies a block past the caches where the target's alignment allows. finish_stream() after it. */
static inline void stream_bytes(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
#if defined(__x86_64__)
    size_t head = (size_t)(-(uintptr_t)out & 63u);

    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    out += head;
    in += head;
    bytes -= head;
    for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((void *)out, _mm512_loadu_si512((const void *)in));
#elif defined(__AVX2__)
        _mm256_stream_si256((void *)out, _mm256_loadu_si256((const void *)in));
        _mm256_stream_si256((void *)(out + 32), _mm256_loadu_si256((const void *)(in + 32)));
#else
        for (int i = 0; i < 64; i += 16) {
            _mm_stream_si128((void *)(out + i), _mm_loadu_si128((const void *)(in + i)));
        }
#endif
    }
#endif
    memcpy(out, in, bytes);
}

/* Makes streamed stores visible to every thread that sees a later store. */
static inline void finish_stream(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

static inline int is_input(const dp_reduce_args_t *args, const void *out)
{
    for (int k = 0; k < args->in_count; k++) {
        if (args->in[k] == out) return 1;
    }
    return 0;
}

/* Asks for a block of every output that is written through the caches, before its inputs are read:
 * as claim(), for reductions that take several passes over a block. bytes: at least 1. */
static inline void claim_block(const dp_reduce_args_t *args, size_t offset, size_t bytes)
{
    for (int k = 0; k < args->out_count; k++) {
        const unsigned char *to = (const unsigned char *)args->out[k] + offset, *end = to + bytes;

        if (args->streaming && !is_input(args, args->out[k])) continue;
        do {
            __builtin_prefetch(to, 1);
            to += 64;
        } while (to < end);
    }
}

/* Writes a finished block to every output, except to where it already lies: block, and `also` if it
 * is not NULL. Streaming pays (a tenth) only where the lines were not read just before: on an input
 * it costs three times the time.
 */
static inline void emit_block(const dp_reduce_args_t *args, size_t offset, const void *block,
                              size_t bytes, const void *also)
{
    for (int k = 0; k < args->out_count; k++) {
        unsigned char *to = (unsigned char *)args->out[k] + offset;

        if (to == block || to == also) continue;
        if (args->streaming && !is_input(args, args->out[k])) {
            stream_bytes(to, block, bytes);
        } else {
            memcpy(to, block, bytes);
        }
    }
}

#endif
