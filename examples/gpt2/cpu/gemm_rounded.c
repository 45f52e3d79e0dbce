/*
 * gemm_rounded.c - matrix products of mixed precision where the processor has none: operands
 * rounded to 16 bits, sums in fp32 by another product.
 *
 * bf16 leaves the result in fp32, as oneDNN's product in bf16 does. fp16 rounds it too, to Inf
 * above 65504: what a GPU's product in fp16 overflows at, this one does. Called by every thread of
 * the team on blocks of its own; all memory is the caller's scratch. It must not know what the
 * matrices are.
 */
#include "examples/gpt2/cpu/kernels.h"

#include <pthread.h>

/* A block of each operand, and of the result, behind the scratch of the product below. */
#define ROWS_MAX ((size_t)256)
#define COLUMNS_MAX ((size_t)384)
#define DEPTH_MAX ((size_t)256)
_Static_assert((ROWS_MAX + COLUMNS_MAX) * DEPTH_MAX + ROWS_MAX * COLUMNS_MAX <=
                   GPT2_GEMM_SCRATCH - GPT2_GEMM_PANELS,
               "blocks fit behind the panels");

/* One call of gpt2_gemm_fn, and how it is done. */
typedef struct rounded_product {
    gpt2_gemm_fn base;
    void (*round)(float *out, const float *in, size_t count);
    int rounds_result;
    int trans_a, trans_b;
    float alpha, beta;
    const float *a, *b;
    size_t lda, ldb;
    float *c;
    size_t ldc;
    float *scratch;
} rounded_product_t;

static size_t at_most(size_t left, size_t most)
{
    return left < most ? left : most;
}

/* [rows][columns] of from, rounded, one row behind the other. */
static void round_block(const rounded_product_t *p, float *to, const float *from, size_t ld,
                        size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        p->round(to + row * columns, from + row * ld, columns);
}

/* c [rows][columns] = round(tile) + beta * c. */
static void store_tile(const rounded_product_t *p, float *c, float *tile, size_t rows,
                       size_t columns)
{
    p->round(tile, tile, rows * columns);
    for (size_t row = 0; row < rows; row++) {
        float *to = c + row * p->ldc;
        const float *from = tile + row * columns;

        for (size_t i = 0; i < columns; i++)
            to[i] = p->beta == 0.0f ? from[i] : p->beta * to[i] + from[i];
    }
}

/* Rows i.. and columns j.. of the result, over all of k. */
static void multiply_rounded(const rounded_product_t *p, size_t i, size_t rows, size_t j,
                             size_t columns, size_t k)
{
    float *block_a = p->scratch + GPT2_GEMM_PANELS;
    float *block_b = block_a + ROWS_MAX * DEPTH_MAX;
    float *tile = block_b + COLUMNS_MAX * DEPTH_MAX;
    float *c = p->c + i * p->ldc + j;

    for (size_t at = 0; at < k; at += DEPTH_MAX) {
        const size_t depth = at_most(k - at, DEPTH_MAX);
        const float first = p->rounds_result ? 0.0f : p->beta;

        round_block(p, block_a, p->a + (p->trans_a ? at * p->lda + i : i * p->lda + at), p->lda,
                    p->trans_a ? depth : rows, p->trans_a ? rows : depth);
        round_block(p, block_b, p->b + (p->trans_b ? j * p->ldb + at : at * p->ldb + j), p->ldb,
                    p->trans_b ? columns : depth, p->trans_b ? depth : columns);
        p->base(p->trans_a, p->trans_b, rows, columns, depth, p->alpha, block_a,
                p->trans_a ? rows : depth, block_b, p->trans_b ? depth : columns,
                at == 0 ? first : 1.0f, p->rounds_result ? tile : c,
                p->rounds_result ? columns : p->ldc, p->scratch);
    }
    if (p->rounds_result) store_tile(p, c, tile, rows, columns);
}

static void run_rounded(const rounded_product_t *p, size_t m, size_t n, size_t k)
{
    if (k == 0) {
        p->base(p->trans_a, p->trans_b, m, n, k, p->alpha, p->a, p->lda, p->b, p->ldb, p->beta,
                p->c, p->ldc, p->scratch);
        return;
    }
    for (size_t i = 0; i < m; i += ROWS_MAX) {
        for (size_t j = 0; j < n; j += COLUMNS_MAX)
            multiply_rounded(p, i, at_most(m - i, ROWS_MAX), j, at_most(n - j, COLUMNS_MAX), k);
    }
}

/* ---- A product for each base and type --------------------------------------------------------
 *
 * gpt2_gemm_fn carries no context, so each is a function of its own.
 */

/* The best set; asked for once, as that can be slow in a virtual machine. */
static const gpt2_kernels_t *best;

static void find_best(void)
{
    best = gpt2_kernels_list()[0];
}

static const gpt2_kernels_t *best_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, find_best);
    return best;
}

static gpt2_gemm_fn own_base(void)
{
    return best_kernels()->gemm;
}

/* clang-format off */
#define ROUNDED(name, find_base, type, result)                                                     \
    static void name(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,          \
                     const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, \
                     size_t ldc, float *scratch)                                                   \
    {                                                                                              \
        const rounded_product_t product = {find_base(), best_kernels()->type, result,              \
                                           trans_a, trans_b, alpha, beta, a, b, lda, ldb, c, ldc,  \
                                           scratch};                                               \
                                                                                                   \
        run_rounded(&product, m, n, k);                                                            \
    }
/* clang-format on */
ROUNDED(own_bf16, own_base, round_bf16, 0)
ROUNDED(blas_bf16, gpt2_gemm_blas, round_bf16, 0)
ROUNDED(dnnl_bf16, gpt2_gemm_dnnl, round_bf16, 0)
ROUNDED(own_fp16, own_base, round_fp16, 1)
ROUNDED(blas_fp16, gpt2_gemm_blas, round_fp16, 1)
ROUNDED(dnnl_fp16, gpt2_gemm_dnnl, round_fp16, 1)

static void large_or_rounded(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                             const float *a, size_t lda, const float *b, size_t ldb, float beta,
                             float *c, size_t ldc, float *scratch)
{
    const gpt2_gemm_fn gemm = m * n * k < GPT2_GEMM_SMALL ? dnnl_bf16 : gpt2_gemm_dnnl_bf16();

    gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, scratch);
}

gpt2_gemm_fn gpt2_gemm_bf16(void)
{
    return gpt2_gemm_dnnl_bf16() == NULL ? NULL : large_or_rounded;
}

static const struct {
    gpt2_gemm_fn (*base)(void);
    gpt2_gemm_fn bf16;
    gpt2_gemm_fn fp16;
    const char *names[2];
} PRODUCTS[] = {
    {gpt2_gemm_dnnl,
     dnnl_bf16,
     dnnl_fp16,
     {"oneDNN, operands rounded to bf16", "oneDNN, fp16 emulated"}},
    {gpt2_gemm_blas,
     blas_bf16,
     blas_fp16,
     {"CBLAS, operands rounded to bf16", "CBLAS, fp16 emulated"}},
    {own_base,
     own_bf16,
     own_fp16,
     {"our own kernel, operands rounded to bf16", "our own kernel, fp16 emulated"}},
};
#define PRODUCT_COUNT (sizeof(PRODUCTS) / sizeof(PRODUCTS[0]))

gpt2_gemm_fn gpt2_gemm_rounded(gpt2_gemm_fn base, gpt2_precision_t precision)
{
    if (base == NULL || precision == GPT2_FP32) return base;
    for (size_t i = 0; i < PRODUCT_COUNT; i++) {
        if (PRODUCTS[i].base() != base) continue;
        return precision == GPT2_BF16 ? PRODUCTS[i].bf16 : PRODUCTS[i].fp16;
    }
    return NULL;
}

const char *gpt2_gemm_rounded_name(gpt2_gemm_fn gemm)
{
    if (gemm == large_or_rounded) return "oneDNN in bf16";
    for (size_t i = 0; i < PRODUCT_COUNT; i++) {
        if (PRODUCTS[i].bf16 == gemm) return PRODUCTS[i].names[0];
        if (PRODUCTS[i].fp16 == gemm) return PRODUCTS[i].names[1];
    }
    return NULL;
}
