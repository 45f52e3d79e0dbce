/*
 * gemm_blas.c - the matrix product through CBLAS, one thread per call.
 *
 * The team of team.h splits the work; OpenBLAS's own threads stay off.
 */
#include "examples/gpt2/cpu/kernels.h"

#if defined(GPT2_WITH_BLAS)
#include <cblas.h>
#include <limits.h>
#include <pthread.h>

static void gemm(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                 const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                 size_t ldc, float *scratch)
{
    (void)scratch;
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

#if defined(GPT2_WITH_OPENBLAS)
static void threads_off(void)
{
    openblas_set_num_threads(1);
}
#endif

gpt2_gemm_fn gpt2_gemm_blas(void)
{
#if defined(GPT2_WITH_OPENBLAS)
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, threads_off);
#endif
    return gemm;
}

const char *gpt2_gemm_blas_core(void)
{
#if defined(GPT2_WITH_OPENBLAS)
    return openblas_get_corename();
#else
    return "";
#endif
}

#else

gpt2_gemm_fn gpt2_gemm_blas(void)
{
    return NULL;
}

const char *gpt2_gemm_blas_core(void)
{
    return "";
}

#endif
