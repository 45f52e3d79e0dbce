/*
 * kernels.h - the arithmetic between the large matrix products, as one table per instruction set.
 *
 * vector.c, adamw.c and gemm_own.c are compiled once for each set; the program takes the best one
 * the processor has. All matrices are row-major float; `ld` is the distance between rows. exp is
 * a polynomial of degree 6 after range reduction: relative error below 2e-7.
 */
#ifndef GPT2_KERNELS_H
#define GPT2_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define GPT2_GEMM_SCRATCH ((size_t)256 * 1024) /* floats of scratch that one gemm call needs */

/*
 * C [m][n] = alpha * op(A) op(B) + beta * C, op(A) [m][k], op(B) [k][n]; transposed where trans
 * is not 0. With beta 0 the old C is not read. scratch: GPT2_GEMM_SCRATCH floats, one per thread.
 */
typedef void (*gpt2_gemm_fn)(int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                             const float *a, size_t lda, const float *b, size_t ldb, float beta,
                             float *c, size_t ldc, float *scratch);

/* One AdamW update; see Loshchilov and Hutter 2019, arXiv:1711.05101. */
typedef struct gpt2_adamw {
    float learning_rate;
    float beta1;
    float beta2;
    float epsilon;
    float decay;       /* weight decay, decoupled */
    float gradient_by; /* multiplies each gradient: clipping */
    float correction1; /* 1 - beta1^step */
    float correction2; /* 1 - beta2^step */
} gpt2_adamw_t;

typedef struct gpt2_kernels {
    const char *isa; /* "avx512" */
    gpt2_gemm_fn gemm;
    /* sum = a + b + bias (b NULL: sum = a, not written); out = norm(sum) * weight + shift. */
    void (*add_norm)(float *out, float *sum, float *mean, float *rstd, const float *a,
                     const float *b, const float *bias, const float *weight, const float *shift,
                     size_t rows, size_t width);
    /* dx += (or, fresh: =) gradient of the norm's input; dweight and dshift [width] +=. */
    void (*norm_backward)(float *dx, int fresh, float *dweight, float *dshift, const float *dout,
                          const float *x, const float *weight, const float *mean, const float *rstd,
                          size_t rows, size_t width);
    void (*add_bias)(float *x, const float *bias, size_t rows, size_t width);
    /* sums [columns] = (fresh) or += the sum over rows of x. */
    void (*column_sums)(float *sums, int fresh, const float *x, size_t rows, size_t columns,
                        size_t ld);
    /* x += bias, out = gelu(x), tanh form. */
    void (*gelu)(float *out, float *x, const float *bias, size_t rows, size_t width);
    void (*gelu_backward)(float *dout, const float *x, size_t count); /* in place */
    /* Row i of s [rows][columns] sees its first + i + 1 leading scores: softmax(scale * s) there,
     * zero behind; lse[i] = log of the sum of exponentials. */
    void (*causal_softmax)(float *s, float *lse, float scale, size_t first, size_t rows,
                           size_t columns);
    /* The same probabilities again, from the stored lse. */
    void (*causal_probabilities)(float *s, const float *lse, float scale, size_t first, size_t rows,
                                 size_t columns);
    /* ds = p * (dp - dot) * scale, in place of dp; dot[i] belongs to row i. */
    void (*score_backward)(float *dp, const float *p, const float *dot, float scale, size_t rows,
                           size_t columns);
    float (*dot)(const float *a, const float *b, size_t count);
    /* Softmax loss of one row of logits; with gradient, logits becomes (p - onehot) * weight. */
    double (*cross_entropy)(float *logits, size_t vocab, int32_t target, float weight,
                            int gradient);
    void (*add)(float *out, const float *a, const float *b, size_t count);
    /* To bf16, to nearest, ties to even; NaN stays NaN. */
    void (*narrow)(uint16_t *out, const float *in, size_t count);
    double (*sum_squares)(const float *x, size_t count);
    /* out [rows] = weight [rows][columns] x + bias (NULL: none). */
    void (*matvec)(float *out, const float *weight, const float *x, const float *bias, size_t rows,
                   size_t columns);
    /* Bit-equal for every instruction set, so that replicas on unlike machines stay equal. */
    void (*adamw)(float *weights, const float *gradients, float *m, float *v, size_t count,
                  const gpt2_adamw_t *adamw);
} gpt2_kernels_t;

/* The sets this processor runs, best first, NULL-terminated. Static. */
const gpt2_kernels_t *const *gpt2_kernels_list(void);

/* The product through CBLAS, or NULL where the build has none; scratch is not used. */
gpt2_gemm_fn gpt2_gemm_blas(void);
const char *gpt2_gemm_blas_core(void); /* which of OpenBLAS's kernels runs, "SkylakeX"; or "" */

/* The product through oneDNN, or NULL where the build has none; and with operands cut to bf16, or
 * NULL where the processor does not multiply bf16 either. Sums stay fp32. Threads: any. */
gpt2_gemm_fn gpt2_gemm_dnnl(void);
gpt2_gemm_fn gpt2_gemm_dnnl_bf16(void);

/*
 * "own", "blas", "dnnl", "dnnl-bf16", or "auto": oneDNN in fp32; else CBLAS, unless it is an
 * OpenBLAS that does not know this processor and fell back to kernels of an older instruction set
 * than ours (0.3.21 takes newer Xeons for a Prescott, and is then three times slower); else our
 * own. Never by timing: a run resumed elsewhere must not change its arithmetic by chance. NULL: not
 * in this build, or not for this processor. Threads: any.
 */
gpt2_gemm_fn gpt2_gemm_choose(const char *which, const gpt2_kernels_t *kernels);

/* What a product is called in a report, "oneDNN". Static. */
const char *gpt2_gemm_name(gpt2_gemm_fn gemm, const gpt2_kernels_t *kernels);

#endif
