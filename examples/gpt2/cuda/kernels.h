/*
 * kernels.h - the arithmetic between the large matrix products, on a GPU.
 *
 * The twins of examples/gpt2/cpu/kernels.h. Functions enqueue on a stream and return a cudaError_t
 * as int: 0, or why nothing was enqueued. No state, no allocation, no synchronisation, no atomics
 * in sums: results are bit-equal from run to run, and do not depend on the GPU's size. Where there
 * is nothing to do (0 rows) they return 0.
 *
 * Matrices are dense and row-major, `void *` is of the given type, `float *` always fp32; all of
 * it device memory. Any size works; with pointers to 16 bytes and rows of a multiple of 8 elements
 * every access is one of 16 bytes. Sums are fp32 in a fixed order unless stated otherwise.
 * `accumulate` adds to what is there, otherwise it is overwritten and need not be initialised.
 */
#ifndef GPT2_CUDA_KERNELS_H
#define GPT2_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "examples/gpt2/cuda/types.h"
#include "examples/gpt2/base/error.h"
#include "examples/gpt2/cpu/kernels.h"

/* Loads every kernel, so that none is loaded inside a step. */
int gpt2_cuda_kernels_prepare(void);

/* ---- Embeddings (embed.cu) ------------------------------------------------------------------ */

/* *bad [1] becomes 1 + the last index whose token is outside [0, vocab) where there is one, and
 * stays as it is otherwise; never smaller than it was. */
int gpt2_cuda_check_tokens(gpt2_cuda_stream_t stream, uint32_t *bad, const int32_t *tokens,
                           size_t count, int vocab);

/* out [rows][width] = wte [token] + wpe [row % length]. A token outside [0, vocab) gives NaN. */
int gpt2_cuda_embed_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out,
                            const int32_t *tokens, const void *wte, const void *wpe, size_t rows,
                            size_t length, size_t width, int vocab);

/*
 * Which rows of the batch belong to each token: made on the host beside the batch, copied to the
 * device with it, gpt2_cuda_embed_plan_bytes(rows) either way.
 */
size_t gpt2_cuda_embed_plan_bytes(size_t rows);

/* Sorts the rows by token. counts [vocab] is scratch of the host. Refuses a token outside of the
 * vocabulary, naming it and its place. rows < 2^31. */
int gpt2_cuda_embed_plan_make(void *plan, const int32_t *tokens, size_t rows, int vocab,
                              int32_t *counts, gpt2_error_t *error);

/* Bytes of device scratch below. */
size_t gpt2_cuda_embed_scratch_bytes(size_t rows, size_t width);

/*
 * dwte [token] += the sum of d_out over the token's rows, in the order of the batch (or, without
 * accumulate, =); rows of tokens that do not occur are not touched.
 * dwpe [context][width] likewise by position; without accumulate positions past length become 0.
 * Either may be NULL: not wanted. With tied embeddings dwte holds the head's gradient already.
 */
int gpt2_cuda_embed_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *dwte,
                             int accumulate_wte, float *dwpe, int accumulate_wpe, const void *d_out,
                             const void *plan, float *scratch, size_t rows, size_t length,
                             size_t context, size_t width);

/* ---- Norms (norm.cu) ------------------------------------------------------------------------ */

/* out = (x - mean) * rstd * weight + shift, row by row. mean, rstd [rows]; both NULL: not wanted.
 * epsilon is GPT-2's 1e-5. Here and below vectors of [width] are fp32, whatever the type: in 16
 * bits those of GPT-2 cost a gradient as many digits as all its matrices do. */
int gpt2_cuda_norm_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out, float *mean,
                           float *rstd, const void *x, const float *weight, const float *shift,
                           size_t rows, size_t width);

/* Widest row of norm_backward; wider ones are refused. A thread has eight columns, and 640 threads
 * are as many as the registers of a multiprocessor are enough for. */
#define GPT2_CUDA_WIDTH_MAX 5120

size_t gpt2_cuda_norm_scratch_bytes(size_t rows, size_t width);

/* dx += (fresh: =) the gradient of the norm's input x; dweight, dshift [width]. dx_sums [width] =
 * the sums of dx's columns, as stored; NULL: not wanted. d_out may be dx only if fresh. scratch:
 * gpt2_cuda_norm_scratch_bytes(). */
int gpt2_cuda_norm_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *dx, int fresh,
                            float *dweight, float *dshift, int accumulate, float *dx_sums,
                            const void *d_out, const void *x, const float *weight,
                            const float *mean, const float *rstd, float *scratch, size_t rows,
                            size_t width);

/* ---- Around the matrix products (gelu.cu, sums.cu) -------------------------------------------
 * Needed where cuBLASLt has no epilogue for it, and to recompute. GELU is the tanh form.
 */

/* x [rows][width] += bias [width]. */
int gpt2_cuda_add_bias(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, const void *bias,
                       size_t rows, size_t width);

/* x += bias (NULL: x is only read), out = gelu(x). */
int gpt2_cuda_gelu_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out, void *x,
                           const void *bias, size_t rows, size_t width);

/* dx = d_out * gelu'(x); dx may be d_out. */
int gpt2_cuda_gelu_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *dx,
                            const void *d_out, const void *x, size_t count);

size_t gpt2_cuda_column_sum_scratch_bytes(size_t rows, size_t width);

/* sums [width] of the columns of x: the gradient of a bias. */
int gpt2_cuda_column_sum(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *sums,
                         int accumulate, const void *x, float *scratch, size_t rows, size_t width);

/* ---- The loss (classifier.cu) --------------------------------------------------------------- */

/*
 * losses [rows] = -log softmax(logits [0, vocab))[target], natural logarithm. With gradient, logits
 * [rows][vocab_padded] become (softmax - onehot) * weight, and 0 in padded columns; else they stay.
 * Padded columns may hold anything before the call. A target outside [0, vocab) gives NaN.
 */
int gpt2_cuda_classifier(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *losses,
                         void *logits, const int32_t *targets, float weight, int gradient,
                         size_t rows, int vocab, int vocab_padded);

/* ---- Sums over an arena (sums.cu): fp64 accumulators ---------------------------------------- */

#define GPT2_CUDA_SUM_SCRATCH_BYTES ((size_t)1024 * sizeof(double))

/* *out [1] = or += the sum of x, as for losses. */
int gpt2_cuda_sum(gpt2_cuda_stream_t stream, double *out, int accumulate, const float *x,
                  size_t count, double *scratch);
/* The same of squares, as for the norm of gradients. */
int gpt2_cuda_sum_squares(gpt2_cuda_stream_t stream, double *out, int accumulate, const float *x,
                          size_t count, double *scratch);

/* The figures of dp_gradients_sync_on() for a rank alone: *skip = 1 where the sum is not finite or
 * *also (NULL: no such flag) is not 0, else 0; *clip = min(1, max_norm / sqrt(sum * by * by))
 * (max_norm 0: 1); *norm (NULL: not wanted). */
int gpt2_cuda_clip(gpt2_cuda_stream_t stream, uint32_t *skip, float *clip, float *norm,
                   const double *sum_squares, const uint32_t *also, float by, float max_norm);

/* to [..][width], rows [count][width]: row places [i] of to += rows [i]. No place twice. */
int gpt2_cuda_add_rows(gpt2_cuda_stream_t stream, float *to, const float *rows,
                       const int32_t *places, size_t count, size_t width);

/* ---- Optimizer and copies (adamw.cu) -------------------------------------------------------- */

#define GPT2_CUDA_DECAY_GRAIN 4096 /* elements that share one answer: GPT2_TENSOR_ALIGN */

/*
 * AdamW over an arena in one launch; with the operations of the host's, each rounded once, so that
 * both get the same bits. decays [ceil(count / GPT2_CUDA_DECAY_GRAIN)]: 1 where weight decay
 * applies, else 0; NULL: nowhere.
 *
 * @param copy   [count] of copy_type, which has 16 bits, written in the same pass; NULL: none
 * @param adamw  by value; clipping is gradient_by * *clip
 * @param clip   device [1]; NULL: 1
 * @param skip   device [1]: nothing is written where it is not 0; NULL: 0
 */
int gpt2_cuda_adamw(gpt2_cuda_stream_t stream, float *weights, const float *gradients, float *m,
                    float *v, gpt2_cuda_type_t copy_type, void *copy, const uint8_t *decays,
                    size_t count, const gpt2_adamw_t *adamw, const float *clip,
                    const uint32_t *skip);

/* ---- LAMB (lamb.cu) ------------------------------------------------------------------------- */

/* A tensor, or the part of one that lies in some memory. */
typedef struct gpt2_cuda_lamb_tensor {
    uint64_t offset;  /* of the memory */
    uint64_t count;   /* elements */
    uint32_t block;   /* its first one of GPT2_LAMB_BLOCK elements, among those of the memory */
    uint32_t adapts;  /* 1: decayed, with a rate of its own */
    uint32_t squares; /* the same block among those of all tensors */
    uint32_t rate;    /* the tensor's number */
} gpt2_cuda_lamb_tensor_t;

/* Device memory. */
typedef struct gpt2_cuda_lamb {
    size_t blocks; /* of the memory's tensors */
    size_t tensor_count;
    gpt2_cuda_lamb_tensor_t *tensors; /* [tensor_count] */
    uint32_t *owners;                 /* [blocks] the tensor of each block */
    double *squares;                  /* [all blocks][2] scratch: of weights, of directions */
    float *rates;                     /* [all tensors] scratch */
} gpt2_cuda_lamb_t;

/* An update, but for the memory that it is made on. */
typedef struct gpt2_cuda_lamb_step {
    const gpt2_lamb_t *lamb; /* clipping is gradient_by * *clip */
    double learning_rate;
    double phi_max;
    const float *clip; /* as for AdamW, and so is skip */
    const uint32_t *skip;
} gpt2_cuda_lamb_step_t;

/* The thirds of gpt2_cuda_lamb(), for tensors that lie apart or on several ranks: moments and
 * directions, and the sums of squares of the memory's blocks; the rates of all tensors, whose
 * blocks' sums are complete; the weights. */
int gpt2_cuda_lamb_direct(gpt2_cuda_stream_t stream, const float *weights, float *gradients,
                          float *m, float *v, const gpt2_cuda_lamb_t *places,
                          const gpt2_cuda_lamb_step_t *step);
int gpt2_cuda_lamb_rates(gpt2_cuda_stream_t stream, const gpt2_cuda_lamb_t *places,
                         const gpt2_cuda_lamb_step_t *step);
int gpt2_cuda_lamb_apply(gpt2_cuda_stream_t stream, float *weights, const float *gradients,
                         gpt2_cuda_type_t copy_type, void *copy, const gpt2_cuda_lamb_t *places,
                         const gpt2_cuda_lamb_step_t *step);

/*
 * LAMB over an arena, with the operations and sums of the host's in their order, so that both get
 * the same bits. Gradients become directions.
 *
 * @param places tables by value; the memory they point to is the device's
 * @param step   by value
 * Otherwise as gpt2_cuda_adamw().
 */
int gpt2_cuda_lamb(gpt2_cuda_stream_t stream, float *weights, float *gradients, float *m, float *v,
                   gpt2_cuda_type_t copy_type, void *copy, const gpt2_cuda_lamb_t *places,
                   const gpt2_cuda_lamb_step_t *step);

/* ---- Low-rank gradients (powersgd.cu): the twins of cpu/compress_kernels.h ------------------ */

/* Of scratch, for matrices of these sizes. */
size_t gpt2_cuda_powersgd_scratch_bytes(size_t rows, size_t columns, size_t rank);
/* All memory is the device's, and matrix itself by value. *squares [1] as for gpt2_cuda_sum(). */
int gpt2_cuda_powersgd_rows(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix);
int gpt2_cuda_powersgd_columns(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix,
                               void *scratch);
int gpt2_cuda_powersgd_orthonormal(gpt2_cuda_stream_t stream, float *x, size_t count, size_t rank);
int gpt2_cuda_powersgd_finish(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix,
                              double *squares, void *scratch);

/* ---- Threshold dropping (topk.cu): the twins of model/topk_choice.h and cpu/compress_kernels.h ----
 * All memory is the device's, the structures themselves by value. */

/* Of scratch, and sums of squares, for a tensor of so many elements (below 2^32). */
size_t gpt2_cuda_topk_scratch_bytes(size_t count);
size_t gpt2_cuda_topk_parts(size_t count);
/* Makes a message, head [2] included, as gpt2_topk_choose() and its caller do. */
int gpt2_cuda_topk_choose(gpt2_cuda_stream_t stream, const gpt2_topk_values_t *values,
                          const gpt2_topk_quota_t *quota, const gpt2_topk_list_t *list,
                          uint32_t *head, void *scratch);
/* *bad = 1 where one of the messages, whose heads are `stride` bytes apart, has an Inf or a NaN. */
int gpt2_cuda_topk_bad(gpt2_cuda_stream_t stream, uint32_t *bad, const uint32_t *heads,
                       size_t stride, int ranks);
/* topk_keep() of the rank's own message; gradient = by * the sum of all messages, by topk_add().
 * squares [parts]: what scale_squares() adds up, in its order, is their sum of squares. */
int gpt2_cuda_topk_finish(gpt2_cuda_stream_t stream, const gpt2_topk_values_t *values,
                          float *gradient, const gpt2_topk_messages_t *messages, float by,
                          double *squares);

/* ---- Rounding and copies (adamw.cu) --------------------------------------------------------- */

/* x [count] = the numbers of the type next to it, ties to even; they stay fp32. */
int gpt2_cuda_round(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *x, size_t count);

/* to [count][GPT2_CUDA_DECAY_GRAIN] = the grains [count] of from, which has 16 bits. Both begin at
 * multiples of 16 bytes. */
int gpt2_cuda_cast_grains(gpt2_cuda_stream_t stream, float *to, gpt2_cuda_type_t from_type,
                          const void *from, const uint32_t *grains, size_t count);

/* to [count] = from, rounded to nearest even. */
int gpt2_cuda_cast(gpt2_cuda_stream_t stream, gpt2_cuda_type_t to_type, void *to,
                   gpt2_cuda_type_t from_type, const void *from, size_t count);

/* x [count] = value. */
int gpt2_cuda_fill(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, float value,
                   size_t count);

/* x [count] = numbers in [-1, 1) by a hash of seed and index: data for timing, never constants. */
int gpt2_cuda_fill_random(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *x, uint64_t seed,
                          size_t count);

#ifdef __cplusplus
}
#endif
#endif
