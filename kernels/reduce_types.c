/*
 * reduce_types.c - reductions of integers, bool and f64: one plain loop per type and operation.
 *
 * Compiled once per instruction set; the compiler makes the vectors. Integers are reduced in their
 * unsigned twin, widened where C would promote them to int, so that they wrap. The engines call it
 * through select.c, on the thread that runs an operation.
 */
#include "kernels/vector.h"

#define FOR_BLOCK(expression)                                                                      \
    for (size_t i = 0; i < count; i++) {                                                           \
        block[i] = expression;                                                                     \
    }                                                                                              \
    break

/* NOLINTBEGIN(bugprone-macro-parentheses): types take none */
/*
 * type: elements; work: the unsigned type sums and products are made in; divide: the type averages
 * are divided in. Up to 32 bits that is a floating-point type with so many more bits that a
 * quotient is never rounded up to the next integer; there are vector instructions for it.
 */
#define DEFINE_INTEGER(name, type, work, divide)                                                   \
    typedef type name##_mem __attribute__((aligned(1), may_alias));                                \
    static void combine_##name(dp_reduce_t reduce, type *restrict block,                           \
                               const name##_mem *restrict in, size_t count)                        \
    {                                                                                              \
        switch (reduce) {                                                                          \
        case DP_SUM:                                                                               \
        case DP_AVERAGE:                                                                           \
            FOR_BLOCK((type)((work)block[i] + (work)in[i]));                                       \
        case DP_PRODUCT:                                                                           \
            FOR_BLOCK((type)((work)block[i] * (work)in[i]));                                       \
        case DP_MIN:                                                                               \
            FOR_BLOCK(in[i] < block[i] ? in[i] : block[i]);                                        \
        case DP_MAX:                                                                               \
            FOR_BLOCK(in[i] > block[i] ? in[i] : block[i]);                                        \
        case DP_REDUCE_COUNT:                                                                      \
            break;                                                                                 \
        }                                                                                          \
    }                                                                                              \
    static void reduce_##name(const dp_reduce_args_t *args)                                        \
    {                                                                                              \
        _Alignas(64) type block[BLOCK];                                                            \
                                                                                                   \
        for (size_t at = 0; at < args->count; at += BLOCK) {                                       \
            size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;                    \
                                                                                                   \
            claim_block(args, at * sizeof(type), count * sizeof(type));                            \
            memcpy(block, (const name##_mem *)args->in[0] + at, count * sizeof(type));             \
            for (int k = 1; k < args->in_count; k++) {                                             \
                combine_##name(args->reduce, block, (const name##_mem *)args->in[k] + at, count);  \
            }                                                                                      \
            if (args->divisor > 1) {                                                               \
                for (size_t i = 0; i < count; i++) {                                               \
                    block[i] = (type)((divide)block[i] / (divide)args->divisor);                   \
                }                                                                                  \
            }                                                                                      \
            emit_block(args, at * sizeof(type), block, count * sizeof(type), NULL);                \
        }                                                                                          \
    }

DEFINE_INTEGER(u8, uint8_t, unsigned, float)
DEFINE_INTEGER(i8, int8_t, unsigned, float)
DEFINE_INTEGER(u16, uint16_t, unsigned, float)
DEFINE_INTEGER(i16, int16_t, unsigned, float)
DEFINE_INTEGER(i32, int32_t, uint32_t, double)
DEFINE_INTEGER(u32, uint32_t, uint32_t, double)
DEFINE_INTEGER(i64, int64_t, uint64_t, int64_t)
DEFINE_INTEGER(u64, uint64_t, uint64_t, uint64_t)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Sum, average and max are the logical or, product and min the logical and. */
static void reduce_bool(const dp_reduce_args_t *args)
{
    _Alignas(64) uint8_t block[BLOCK];
    int is_and = args->reduce == DP_PRODUCT || args->reduce == DP_MIN;

    for (size_t at = 0; at < args->count; at += BLOCK) {
        size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;

        claim_block(args, at, count);
        memset(block, is_and, count);
        for (int k = 0; k < args->in_count; k++) {
            const uint8_t *in = (const uint8_t *)args->in[k] + at;

            if (is_and) {
                for (size_t i = 0; i < count; i++)
                    block[i] &= in[i] != 0;
            } else {
                for (size_t i = 0; i < count; i++)
                    block[i] |= in[i] != 0;
            }
        }
        emit_block(args, at, block, count, NULL);
    }
}

typedef double f64_mem __attribute__((aligned(1), may_alias));

static void combine_f64(dp_reduce_t reduce, double *restrict block, const f64_mem *restrict in,
                        size_t count, double pre)
{
    switch (reduce) {
    case DP_SUM:
    case DP_AVERAGE:
        FOR_BLOCK(block[i] + pre * in[i]);
    case DP_PRODUCT:
        FOR_BLOCK(block[i] * (pre * in[i]));
    case DP_MIN: /* a NaN in is taken, one in the block stays */
        for (size_t i = 0; i < count; i++) {
            double value = pre * in[i];

            block[i] = ((value < block[i]) | (value != value)) ? value : block[i];
        }
        break;
    case DP_MAX:
        for (size_t i = 0; i < count; i++) {
            double value = pre * in[i];

            block[i] = ((value > block[i]) | (value != value)) ? value : block[i];
        }
        break;
    case DP_REDUCE_COUNT:
        break;
    }
}

static void tally_f64(dp_tally_t *tally, const double *block, size_t count)
{
    double sums[TALLY_LANES] = {0}, largest[TALLY_LANES] = {0}, absmax = 0.0;
    int64_t bad[TALLY_LANES] = {0};
    uint64_t nonfinite = 0;

    for (size_t i = 0; i < count; i += TALLY_LANES) {
        size_t lanes = count - i < TALLY_LANES ? count - i : TALLY_LANES;

        for (size_t j = 0; j < lanes; j++) {
            double magnitude = fabs(block[i + j]);
            int is_finite = magnitude < (double)INFINITY;

            magnitude = is_finite ? magnitude : 0.0;
            sums[j] += magnitude * magnitude;
            largest[j] = magnitude > largest[j] ? magnitude : largest[j];
            bad[j] += !is_finite;
        }
    }
    for (int j = 0; j < TALLY_LANES; j++) {
        absmax = largest[j] > absmax ? largest[j] : absmax;
        nonfinite += (uint64_t)bad[j];
    }
    dp_tally_add_block(tally, fold_lanes(sums), absmax, nonfinite);
}

static void reduce_f64(const dp_reduce_args_t *args)
{
    _Alignas(64) double block[BLOCK];
    double pre = args->prescale, post = args->postscale;

    for (size_t at = 0; at < args->count; at += BLOCK) {
        size_t count = args->count - at < BLOCK ? args->count - at : BLOCK;
        const f64_mem *first = (const f64_mem *)args->in[0] + at;

        claim_block(args, at * sizeof(double), count * sizeof(double));
        for (size_t i = 0; i < count; i++)
            block[i] = pre * first[i];
        for (int k = 1; k < args->in_count; k++) {
            combine_f64(args->reduce, block, (const f64_mem *)args->in[k] + at, count, pre);
        }
        for (size_t i = 0; i < count; i++) {
            double value = block[i] * post;

            block[i] = value == value ? value : (double)NAN;
        }
        if (args->tally != NULL) tally_f64(args->tally, block, count);
        emit_block(args, at * sizeof(double), block, count * sizeof(double), NULL);
    }
}

void DP_VARIANT(dp_reduce_types)(const dp_reduce_args_t *args)
{
    switch (args->dtype) {
    case DP_U8:
        reduce_u8(args);
        break;
    case DP_I8:
        reduce_i8(args);
        break;
    case DP_U16:
        reduce_u16(args);
        break;
    case DP_I16:
        reduce_i16(args);
        break;
    case DP_I32:
        reduce_i32(args);
        break;
    case DP_U32:
        reduce_u32(args);
        break;
    case DP_I64:
        reduce_i64(args);
        break;
    case DP_U64:
        reduce_u64(args);
        break;
    case DP_BOOL:
        reduce_bool(args);
        break;
    case DP_F64:
        reduce_f64(args);
        break;
    case DP_F16:
    case DP_BF16:
    case DP_F32:
    case DP_DTYPE_COUNT:
        break; /* reduce.c's */
    }
}
