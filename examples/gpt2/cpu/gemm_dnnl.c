/*
 * gemm_dnnl.c - the matrix product through oneDNN 2: in fp32, or with both operands cut to bf16.
 *
 * One thread per call, as everywhere (team.h): oneDNN's OpenMP is told so. The bf16 product cuts
 * blocks of the operands to 8 bits of mantissa in the caller's scratch and adds up in fp32;
 * products too small to gain stay in fp32. All that knows oneDNN is in this file.
 */
#include "examples/gpt2/cpu/kernels.h"

#if defined(GPT2_WITH_DNNL)
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>

/* A block of each operand, as bf16, fits the scratch. */
#define ROWS_MAX ((size_t)256)
#define COLUMNS_MAX ((size_t)384)
#define DEPTH_MAX ((size_t)768)
_Static_assert((ROWS_MAX + COLUMNS_MAX) * DEPTH_MAX <= 2 * GPT2_GEMM_SCRATCH, "blocks fit");

static void gemm_fp32(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                      const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                      size_t ldc, float *scratch)
{
    (void)scratch;
    omp_set_num_threads(1); /* of this thread's calls alone */
    (void)dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n,
                     (dnnl_dim_t)k, alpha, a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c,
                     (dnnl_dim_t)ldc);
}

/* ---- bf16 ----------------------------------------------------------------------------------- */

/* Made once, then only read. */
static struct {
    dnnl_engine_t engine;
    void (*narrow)(uint16_t *out, const float *in, size_t count);
    int works;
} shared;

/* One block: [rows][columns] of the result from bf16 operands as they lie in the scratch. */
typedef struct dnnl_product {
    size_t rows, columns, depth;
    int trans_a, trans_b;
    uint16_t *a; /* [rows][depth], or [depth][rows] */
    uint16_t *b; /* [depth][columns], or [columns][depth] */
    float *c;
    size_t ldc;
    float alpha, beta;
} dnnl_product_t;

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *memory, size_t rows, size_t columns,
                                     dnnl_data_type_t type, size_t row_stride, size_t column_stride)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    const dnnl_dims_t strides = {(dnnl_dim_t)row_stride, (dnnl_dim_t)column_stride};

    return dnnl_memory_desc_init_by_strides(memory, 2, dims, type, strides);
}

/* Sets oneDNN's attributes for alpha * product + beta * C. */
static dnnl_status_t set_scales(dnnl_primitive_attr_t attributes, float alpha, float beta)
{
    dnnl_post_ops_t after = NULL;
    dnnl_status_t status = dnnl_success;

    /* Set only where alpha is not 1 and beta not 0: oneDNN's fastest kernels take no scales. */
    if (alpha != 1.0f) {
        status = dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &alpha);
    }
    if (status != dnnl_success || beta == 0.0f) return status;
    status = dnnl_post_ops_create(&after);
    if (status == dnnl_success) status = dnnl_post_ops_append_sum(after, beta);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attributes, after);
    if (after != NULL) dnnl_post_ops_destroy(after);
    return status;
}

/* The kernel for these shapes; oneDNN keeps those it has made, so it costs some microseconds. */
static dnnl_status_t make_primitive(const dnnl_product_t *p, dnnl_memory_desc_t memories[3],
                                    dnnl_primitive_t *primitive)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_matmul_desc_t wanted;
    dnnl_status_t status = describe_matrix(&memories[0], p->rows, p->depth, dnnl_bf16,
                                           p->trans_a ? 1 : p->depth, p->trans_a ? p->rows : 1);

    if (status == dnnl_success) {
        status = describe_matrix(&memories[1], p->depth, p->columns, dnnl_bf16,
                                 p->trans_b ? 1 : p->columns, p->trans_b ? p->depth : 1);
    }
    if (status == dnnl_success) {
        status = describe_matrix(&memories[2], p->rows, p->columns, dnnl_f32, p->ldc, 1);
    }
    if (status == dnnl_success) {
        status = dnnl_matmul_desc_init(&wanted, &memories[0], &memories[1], NULL, &memories[2]);
    }
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success) status = set_scales(attributes, p->alpha, p->beta);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&chosen, &wanted, attributes, shared.engine, NULL);
    }
    if (status == dnnl_success) status = dnnl_primitive_create(primitive, chosen);
    if (chosen != NULL) dnnl_primitive_desc_destroy(chosen);
    if (attributes != NULL) dnnl_primitive_attr_destroy(attributes);
    return status;
}

static dnnl_status_t multiply(const dnnl_product_t *p)
{
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    void *const data[3] = {p->a, p->b, p->c};
    dnnl_memory_desc_t memories[3];
    dnnl_exec_arg_t arguments[3] = {{0, NULL}, {0, NULL}, {0, NULL}};
    dnnl_primitive_t primitive = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_status_t status = make_primitive(p, memories, &primitive);

    if (status == dnnl_success) {
        status = dnnl_stream_create(&stream, shared.engine, dnnl_stream_default_flags);
    }
    for (int i = 0; i < 3 && status == dnnl_success; i++) {
        arguments[i].arg = names[i];
        status = dnnl_memory_create(&arguments[i].memory, &memories[i], shared.engine, data[i]);
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(primitive, stream, 3, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    for (int i = 0; i < 3; i++)
        if (arguments[i].memory != NULL) dnnl_memory_destroy(arguments[i].memory);
    if (stream != NULL) dnnl_stream_destroy(stream);
    if (primitive != NULL) dnnl_primitive_destroy(primitive);
    return status;
}

/* [rows][columns] of from, one behind the other. */
static void cut_to_bf16(uint16_t *to, const float *from, size_t ld, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        shared.narrow(to + row * columns, from + row * ld, columns);
}

static size_t at_most(size_t left, size_t most)
{
    return left < most ? left : most;
}

static void gemm_bf16(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                      const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                      size_t ldc, float *scratch)
{
    dnnl_product_t p = {.trans_a = trans_a, .trans_b = trans_b, .ldc = ldc, .alpha = alpha};

    if (m * n * k < GPT2_GEMM_SMALL) {
        gemm_fp32(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, scratch);
        return;
    }
    omp_set_num_threads(1);
    p.a = (uint16_t *)(void *)scratch;
    p.b = p.a + ROWS_MAX * DEPTH_MAX;
    for (size_t kc = 0; kc < k; kc += DEPTH_MAX) {
        p.depth = at_most(k - kc, DEPTH_MAX);
        p.beta = kc == 0 ? beta : 1.0f;
        for (size_t ic = 0; ic < m; ic += ROWS_MAX) {
            const float *block_a = a + (trans_a ? kc * lda + ic : ic * lda + kc);

            p.rows = at_most(m - ic, ROWS_MAX);
            cut_to_bf16(p.a, block_a, lda, trans_a ? p.depth : p.rows, trans_a ? p.rows : p.depth);
            for (size_t jc = 0; jc < n; jc += COLUMNS_MAX) {
                const float *block_b = b + (trans_b ? jc * ldb + kc : kc * ldb + jc);

                p.columns = at_most(n - jc, COLUMNS_MAX);
                p.c = c + ic * ldc + jc;
                cut_to_bf16(p.b, block_b, ldb, trans_b ? p.columns : p.depth,
                            trans_b ? p.depth : p.columns);
                if (multiply(&p) == dnnl_success) continue;
                gemm_fp32(trans_a, trans_b, p.rows, p.columns, p.depth, alpha, block_a, lda,
                          block_b, ldb, p.beta, p.c, ldc, NULL); /* no memory for its objects */
            }
        }
    }
}

/* Leaves `works` 0 on processors without bf16 instructions: there, fp32 is as fast. */
static void open_engine(void)
{
    shared.narrow = gpt2_kernels_list()[0]->narrow;
    if (dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx512_core_bf16) return;
    shared.works = dnnl_engine_create(&shared.engine, dnnl_cpu, 0) == dnnl_success;
}

gpt2_gemm_fn gpt2_gemm_dnnl(void)
{
    return gemm_fp32;
}

gpt2_gemm_fn gpt2_gemm_dnnl_bf16(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, open_engine);
    return shared.works ? gemm_bf16 : NULL;
}

#else

gpt2_gemm_fn gpt2_gemm_dnnl(void)
{
    return NULL;
}

gpt2_gemm_fn gpt2_gemm_dnnl_bf16(void)
{
    return NULL;
}

#endif
