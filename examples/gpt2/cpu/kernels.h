/*
 * kernels.h - the arithmetic between the large matrix products, as one table per instruction set.
 *
 * vector.c, adamw.c, lamb.c and gemm_own.c are compiled once for each set; the program takes the
 * best one the processor has. All matrices are row-major float; `ld` is the distance between rows.
 * exp is a polynomial of degree 6 after range reduction: relative error below 2e-7.
 */
#ifndef GPT2_KERNELS_H
#define GPT2_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt2/cpu/compress_kernels.h"

#define GPT2_GEMM_SCRATCH ((size_t)512 * 1024) /* floats of scratch that one gemm call needs */
#define GPT2_GEMM_PANELS ((size_t)256 * 1024)  /* of these, without emulated rounding */

/* The type in which matrix products take their operands; their sums are fp32. */
typedef enum gpt2_precision { GPT2_FP32, GPT2_BF16, GPT2_FP16 } gpt2_precision_t;

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

#define GPT2_LAMB_BLOCK 4096 /* elements whose squares are added up together */
#define GPT2_LAMB_LANES 32   /* sums of a block that are kept apart: a warp's threads */

/* One LAMB update; see You et al. 2020, arXiv:1904.00962. */
typedef struct gpt2_lamb {
    float beta1;
    float beta2;
    float rest1; /* 1 - beta1 and 1 - beta2, which floats would miss by 1e-5 of .001 */
    float rest2;
    float epsilon;
    float decay;       /* weight decay, a part of the direction */
    float gradient_by; /* multiplies each gradient: clipping */
    float correction1; /* 1 - beta1^step; 1: without bias correction */
    float correction2; /* 1 - beta2^step; 1: likewise */
} gpt2_lamb_t;

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
    /* The parts of a softmax: the largest number; x = exp(x - highest), and their sum; x *= by. A
     * NaN among the numbers is one in the sum. */
    float (*largest)(const float *x, size_t count);
    float (*exponentials)(float *x, size_t count, float highest);
    void (*scale)(float *x, float by, size_t count);
    void (*add)(float *out, const float *a, const float *b, size_t count);
    /* To bf16, to nearest, ties to even; NaN stays NaN. */
    void (*narrow)(uint16_t *out, const float *in, size_t count);
    /* out = in, each rounded to nearest even to a number of the type; out may be in. fp16: Inf from
     * 65520 on, subnormals kept. Bit-equal for every instruction set. */
    void (*round_bf16)(float *out, const float *in, size_t count);
    void (*round_fp16)(float *out, const float *in, size_t count);
    double (*sum_squares)(const float *x, size_t count);
    /* out [rows] = weight [rows][columns] x + bias (NULL: none). */
    void (*matvec)(float *out, const float *weight, const float *x, const float *bias, size_t rows,
                   size_t columns);
    /* Bit-equal for every instruction set, so that replicas on unlike machines stay equal. */
    void (*adamw)(float *weights, const float *gradients, float *m, float *v, size_t count,
                  const gpt2_adamw_t *adamw);
    /* LAMB, likewise bit-equal. The first half: updates the moments, replaces gradients by
     * directions, and leaves for each GPT2_LAMB_BLOCK elements, counted from the first, the sums of
     * squares of weights and directions: squares [ceil(count / GPT2_LAMB_BLOCK)][2]. */
    void (*lamb_direct)(const float *weights, float *gradients, float *m, float *v, size_t count,
                        const gpt2_lamb_t *lamb, double *squares);
    /* sums [2] = those of all blocks [blocks][2], in one order. */
    void (*lamb_add)(double *sums, const double *squares, size_t blocks);
    /* The second half: weights -= rate * directions. */
    void (*lamb_apply)(float *weights, const float *directions, size_t count, float rate);
    const gpt2_compress_kernels_t *compress;
} gpt2_kernels_t;

/* The sets this processor runs, best first, NULL-terminated. Static. */
const gpt2_kernels_t *const *gpt2_kernels_list(void);

/* The product through CBLAS, or NULL where the build has none; scratch is not used. */
gpt2_gemm_fn gpt2_gemm_blas(void);
const char *gpt2_gemm_blas_core(void); /* which of OpenBLAS's kernels runs, "SkylakeX"; or "" */

/* The product through oneDNN, or NULL where the build has none; and with operands cut to bf16, or
 * NULL where the processor does not multiply bf16 either. Sums stay fp32; of less than
 * GPT2_GEMM_SMALL multiplications the operands do too, as cutting costs more than it saves.
 * Threads: any. */
#define GPT2_GEMM_SMALL ((size_t)1 << 21)
gpt2_gemm_fn gpt2_gemm_dnnl(void);
gpt2_gemm_fn gpt2_gemm_dnnl_bf16(void);

/*
 * base (our own product of the best set, CBLAS's or oneDNN's) with operands rounded to the type
 * first; fp16: the result is rounded too, so it overflows as fp16 does. fp32: base itself. NULL:
 * base is NULL or none of these. Threads: any.
 */
gpt2_gemm_fn gpt2_gemm_rounded(gpt2_gemm_fn base, gpt2_precision_t precision);
/* oneDNN's product in bf16, with small products by gpt2_gemm_rounded(); NULL: there is none. */
gpt2_gemm_fn gpt2_gemm_bf16(void);
/* The name of such a product in a report; NULL: it is none. Static. */
const char *gpt2_gemm_rounded_name(gpt2_gemm_fn gemm);

/*
 * "own", "blas", "dnnl", "dnnl-bf16", or "auto": oneDNN in fp32; else CBLAS, unless it is an
 * OpenBLAS that does not know this processor and fell back to kernels of an older instruction set
 * than ours (0.3.21 takes newer Xeons for a Prescott, and is then three times slower); else our
 * own. Never by timing: a run resumed elsewhere must not change its arithmetic by chance. NULL: not
 * in this build, or not for this processor. Threads: any.
 */
gpt2_gemm_fn gpt2_gemm_choose(const char *which, const gpt2_kernels_t *kernels);

/* The same for products of this precision. bf16: oneDNN's where the processor has it and which is
 * "auto" or "dnnl-bf16", with small products rounded too; else, and for fp16, gpt2_gemm_rounded().
 */
gpt2_gemm_fn gpt2_gemm_choose_precise(gpt2_precision_t precision, const char *which,
                                      const gpt2_kernels_t *kernels);

/* The name of a product in a report, "oneDNN". Static. */
const char *gpt2_gemm_name(gpt2_gemm_fn gemm, const gpt2_kernels_t *kernels);

#endif
