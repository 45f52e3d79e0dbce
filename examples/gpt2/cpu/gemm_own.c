/*
 * gemm_own.c - the matrix product where no BLAS was found: packed panels and one micro-kernel.
 *
 * The method is Goto and van de Geijn 2008 (ACM TOMS 34:3): a panel of B is packed for the
 * second-level cache, a block of A for the first, and an ROWS x COLUMNS tile of C stays in
 * registers. Packing also takes the transposes away and fills ragged edges with zeros.
 */
#include "examples/gpt2/cpu/isa.h"

#include <string.h>

typedef float vector_t __attribute__((vector_size(GPT2_LANES * 4), aligned(4), may_alias));

/* Registers: 32 with AVX-512, 16 otherwise; a tile leaves room for two of B and one of A. */
#if GPT2_LANES == 16
#define ROWS ((size_t)12)
#else
#define ROWS ((size_t)6)
#endif
#define LANES ((size_t)GPT2_LANES)
#define COLUMNS (2 * LANES)
#define DEPTH_MAX ((size_t)256) /* k of one panel */
#define ROWS_MAX ((size_t)192)  /* rows of A packed at once: 192 KiB */
#define COLUMNS_MAX ((size_t)768)
_Static_assert((ROWS_MAX + COLUMNS_MAX) * DEPTH_MAX <= GPT2_GEMM_PANELS, "panels fit the scratch");
_Static_assert(ROWS_MAX % ROWS == 0 && COLUMNS_MAX % COLUMNS == 0, "panels hold whole tiles");

/* Four floats whatever the instruction set: the unit of transposing. */
typedef float quad_t __attribute__((vector_size(16), aligned(4), may_alias));

/* to [depth][stride] = the transpose of from [rows][depth]. */
static void transpose(float *to, size_t stride, const float *from, size_t ld, size_t rows,
                      size_t depth)
{
    size_t row = 0;

    for (; row + 4 <= rows; row += 4) {
        const float *f = from + row * ld;
        float *t = to + row;
        size_t p = 0;

        for (; p + 4 <= depth; p += 4) {
            quad_t a = *(const quad_t *)(const void *)(f + p);
            quad_t b = *(const quad_t *)(const void *)(f + ld + p);
            quad_t c = *(const quad_t *)(const void *)(f + 2 * ld + p);
            quad_t d = *(const quad_t *)(const void *)(f + 3 * ld + p);
            quad_t ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            quad_t ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            quad_t cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
            quad_t cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
            quad_t *out = (quad_t *)(void *)(t + p * stride);

            *out = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
            out = (quad_t *)(void *)(t + (p + 1) * stride);
            *out = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
            out = (quad_t *)(void *)(t + (p + 2) * stride);
            *out = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
            out = (quad_t *)(void *)(t + (p + 3) * stride);
            *out = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
        }
        for (; p < depth; p++) {
            for (size_t i = 0; i < 4; i++)
                t[p * stride + i] = f[i * ld + p];
        }
    }
    for (; row < rows; row++) {
        for (size_t p = 0; p < depth; p++)
            to[p * stride + row] = from[row * ld + p];
    }
}

/*
 * Packs `count` rows (or columns) of an operand into slivers of `sliver`: sliver, then depth, then
 * row. along: the operand's rows run along the depth, so that a sliver is its transpose.
 */
static inline __attribute__((always_inline)) void
pack(float *to, size_t sliver, int along, const float *from, size_t ld, size_t count, size_t depth)
{
    for (size_t first = 0; first < count; first += sliver) {
        size_t live = count - first < sliver ? count - first : sliver;

        if (live < sliver) memset(to, 0, depth * sliver * sizeof(*to));
        if (along) {
            transpose(to, sliver, from + first * ld, ld, live, depth);
        } else if (live == sliver) {
            for (size_t p = 0; p < depth; p++) {
                memcpy(to + p * sliver, from + p * ld + first, sliver * sizeof(*to));
            }
        } else {
            for (size_t p = 0; p < depth; p++) {
                memcpy(to + p * sliver, from + p * ld + first, live * sizeof(*to));
            }
        }
        to += depth * sliver;
    }
}

#define LOAD(from) (*(const vector_t *)(const void *)(from))
#define STORE(to, value) (*(vector_t *)(void *)(to) = (value))

/* sum = one sliver of A times one of B. Inlined, so that sum never leaves the registers. */
static inline __attribute__((always_inline)) void
multiply_slivers(vector_t sum[ROWS][2], const float *a, const float *b, size_t depth)
{
    const vector_t zero = {0.0f};

#pragma GCC unroll 12
    for (size_t i = 0; i < ROWS; i++)
        sum[i][0] = sum[i][1] = zero;
    for (size_t p = 0; p < depth; p++) {
        vector_t left = LOAD(b + p * COLUMNS);
        vector_t right = LOAD(b + p * COLUMNS + LANES);

#pragma GCC unroll 12
        for (size_t i = 0; i < ROWS; i++) {
            sum[i][0] += a[p * ROWS + i] * left;
            sum[i][1] += a[p * ROWS + i] * right;
        }
    }
}

/* A whole tile of C, from registers. */
static void whole_tile(float *c, size_t ldc, const float *a, const float *b, size_t depth,
                       float alpha, float beta)
{
    vector_t sum[ROWS][2];

    multiply_slivers(sum, a, b, depth);
    if (beta == 0.0f) {
#pragma GCC unroll 12
        for (size_t i = 0; i < ROWS; i++) {
            STORE(c + i * ldc, alpha * sum[i][0]);
            STORE(c + i * ldc + LANES, alpha * sum[i][1]);
        }
        return;
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < ROWS; i++) {
        float *to = c + i * ldc;
        STORE(to, beta * LOAD(to) + alpha * sum[i][0]);
        STORE(to + LANES, beta * LOAD(to + LANES) + alpha * sum[i][1]);
    }
}

/* A tile that the edge of C cuts to rows x columns. */
static void cut_tile(float *c, size_t ldc, const float *a, const float *b, size_t depth,
                     float alpha, float beta, size_t rows, size_t columns)
{
    vector_t sum[ROWS][2];
    float tile[ROWS * COLUMNS];

    multiply_slivers(sum, a, b, depth);
    memcpy(tile, sum, sizeof(tile));
    for (size_t i = 0; i < rows; i++) {
        float *to = c + i * ldc;
        const float *from = tile + i * COLUMNS;

        for (size_t j = 0; j < columns; j++) {
            to[j] = beta == 0.0f ? alpha * from[j] : beta * to[j] + alpha * from[j];
        }
    }
}

static void scale_rows(float *c, size_t ldc, size_t rows, size_t columns, float beta)
{
    for (size_t i = 0; i < rows; i++) {
        float *to = c + i * ldc;
        for (size_t j = 0; j < columns; j++)
            to[j] = beta == 0.0f ? 0.0f : to[j] * beta;
    }
}

/* One packed block of A times one packed panel of B. */
static void multiply_block(float *c, size_t ldc, const float *a, const float *b, size_t rows,
                           size_t columns, size_t depth, float alpha, float beta)
{
    for (size_t jr = 0; jr < columns; jr += COLUMNS) {
        size_t width = columns - jr < COLUMNS ? columns - jr : COLUMNS;

        for (size_t ir = 0; ir < rows; ir += ROWS) {
            size_t height = rows - ir < ROWS ? rows - ir : ROWS;
            float *to = c + ir * ldc + jr;

            if (height == ROWS && width == COLUMNS) {
                whole_tile(to, ldc, a + ir * depth, b + jr * depth, depth, alpha, beta);
            } else {
                cut_tile(to, ldc, a + ir * depth, b + jr * depth, depth, alpha, beta, height,
                         width);
            }
        }
    }
}

void GPT2_ISA_NAME(gpt2_gemm_own)(int trans_a, int trans_b, size_t m, size_t n, size_t k,
                                  float alpha, const float *a, size_t lda, const float *b,
                                  size_t ldb, float beta, float *c, size_t ldc, float *scratch)
{
    float *packed_a = scratch;
    float *packed_b = scratch + ROWS_MAX * DEPTH_MAX;

    if (k == 0) scale_rows(c, ldc, m, n, beta);
    for (size_t jc = 0; jc < n; jc += COLUMNS_MAX) {
        size_t columns = n - jc < COLUMNS_MAX ? n - jc : COLUMNS_MAX;

        for (size_t pc = 0; pc < k; pc += DEPTH_MAX) {
            size_t depth = k - pc < DEPTH_MAX ? k - pc : DEPTH_MAX;

            pack(packed_b, COLUMNS, trans_b, b + (trans_b ? jc * ldb + pc : pc * ldb + jc), ldb,
                 columns, depth);
            for (size_t ic = 0; ic < m; ic += ROWS_MAX) {
                size_t rows = m - ic < ROWS_MAX ? m - ic : ROWS_MAX;

                pack(packed_a, ROWS, !trans_a, a + (trans_a ? pc * lda + ic : ic * lda + pc), lda,
                     rows, depth);
                multiply_block(c + ic * ldc + jc, ldc, packed_a, packed_b, rows, columns, depth,
                               alpha, pc == 0 ? beta : 1.0f);
            }
        }
    }
}
