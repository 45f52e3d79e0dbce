/*
 * matmul.h - the matrix products of the model, as cuBLASLt plans made once.
 *
 * Everything here is row-major, as in the rest of the trainer. A linear layer has in
 * [rows][inputs], weight W [outputs][inputs], out [rows][outputs]:
 *
 *     FORWARD       out = in W^T (+ bias) (+ added)
 *     FORWARD_GELU  before = in W^T + bias, out = gelu(before)
 *     INPUT         d_in = d_out W
 *     INPUT_GELU    d_in = (d_out W) * gelu'(before), and dbias = or += its columns' sums, fp32
 *     WEIGHT        dW = or += d_out^T in
 *
 * The head is a linear layer with wte as W, and no bias. A plan knows which of cuBLASLt's kernels
 * is the quickest for its shape, and whether bias, GELU and sums are better fused into it or done
 * by kernels.h: both are tried with random data when the plan is made, unless a cache has the
 * answer. Where cuBLASLt refuses a fusion the plan does without, in silence.
 *
 * bf16, fp16: inputs of it, fp32 accumulation, results of it (WEIGHT: fp32 results). fp32: true
 * fp32, no TF32, and GELU is always that of kernels.h. Which kernel runs decides how sums are
 * split, so results are bit-equal from run to run only for the same choices: from a cache, or
 * without tuning.
 *
 * One set belongs to one device and one thread; calls neither allocate nor synchronise. Runs of a
 * set share its workspace: use one stream at a time, or order the streams.
 */
#ifndef GPT2_CUDA_MATMUL_H
#define GPT2_CUDA_MATMUL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "examples/gpt2/cuda/types.h"
#include "examples/gpt2/base/error.h"

typedef struct gpt2_matmuls gpt2_matmuls_t; /* the set: handle, workspace, cache, plans */
typedef struct gpt2_matmul gpt2_matmul_t;   /* one plan; belongs to its set */

typedef enum gpt2_matmul_kind {
    GPT2_MATMUL_FORWARD,
    GPT2_MATMUL_FORWARD_GELU,
    GPT2_MATMUL_INPUT,
    GPT2_MATMUL_INPUT_GELU,
    GPT2_MATMUL_WEIGHT
} gpt2_matmul_kind_t;

typedef struct gpt2_matmul_shape {
    gpt2_matmul_kind_t kind;
    gpt2_cuda_type_t type;
    size_t rows;
    size_t inputs;
    size_t outputs;
    int bias; /* FORWARD: there is a bias; INPUT_GELU: the gradient of one is wanted */
    int adds; /* FORWARD: something is added; WEIGHT: most runs accumulate, so that is what is
                 timed, any run may do either */
} gpt2_matmul_shape_t;

typedef struct gpt2_matmul_options {
    /* For cuBLASLt; the set's scratch comes on top. A product that is split over k puts a copy of
     * its result there for each part: 9.4 MB for 124M's fc, whose weight gradient has too few tiles
     * for a large chip otherwise. */
    size_t workspace_bytes;
    int tune;          /* 1: time candidates; 0: take the first that cuBLASLt names */
    int fuse;          /* 1: fuse what is quicker fused; 0: never (parity, comparisons) */
    const char *cache; /* a folder for tuned choices; NULL: none; borrowed */
    /* Lines for people: a damaged cache, no memory to tune with. NULL: not wanted. */
    void (*notice)(void *user, const char *text);
    void *user;
} gpt2_matmul_options_t;
#define GPT2_MATMUL_OPTIONS_INIT                                                                   \
    {                                                                                              \
        (size_t)128 << 20, 1, 1, NULL, NULL, NULL                                                  \
    }

/**
 * Creates an empty set on the current device. A cache made by other versions or another chip is
 * left alone, as each has its own file; a damaged one is ignored with a notice.
 *
 * @param options NULL: the defaults; copied, but for what is borrowed
 * @param out     returned; give it back with gpt2_matmuls_destroy()
 */
int gpt2_matmuls_create(const gpt2_matmul_options_t *options, gpt2_matmuls_t **out,
                        gpt2_error_t *error);
void gpt2_matmuls_destroy(gpt2_matmuls_t *set); /* and its plans; the device must be idle */

/**
 * The plan of a shape: the one that exists, or a new one. A new one allocates, tunes on a stream of
 * its own and synchronises: make all plans before the first step. Tuning loads up to 48 kernels and
 * runs each up to ten times: products of 65,536 rows take 0.4 to 2 ms on an H200, so a shape takes
 * 0.1 to 0.6 s, and GPT-2's fifteen some 3 to 8 s where no cache has them. The first one of a set
 * runs for some 0.2 s before it is timed, so that the GPU's clock is up.
 *
 * @param out borrowed from the set
 */
int gpt2_matmuls_plan(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape,
                      const gpt2_matmul_t **out, gpt2_error_t *error);

/* Writes what was tuned since the set was created to the cache, whole or not at all. Nothing to
 * write, or no cache: 0. Several processes may do so at once: the last one wins. */
int gpt2_matmuls_save(gpt2_matmuls_t *set, gpt2_error_t *error);

/* Device memory the set holds now: workspace and scratch. */
size_t gpt2_matmuls_bytes(const gpt2_matmuls_t *set);

/* "forward gelu 8192x768x3072 bf16: kernel 3 of 12, fused, 21.3 us": for a report. Returns text. */
#define GPT2_MATMUL_TEXT_MAX 160
const char *gpt2_matmul_describe(const gpt2_matmul_t *plan, char text[GPT2_MATMUL_TEXT_MAX]);

/* 1: what comes beside the product is fused into it. */
int gpt2_matmul_is_fused(const gpt2_matmul_t *plan);

/*
 * Runs of plans of the kinds named. Pointers are device memory of the plan's type, to 16 bytes;
 * dweight and dbias are fp32. 0, or a cudaError_t (cuBLASLt's own failures: cudaErrorUnknown).
 */

/* FORWARD: before NULL. FORWARD_GELU: before [rows][outputs] is written. bias, and added
 * [rows][outputs], which may be out: NULL by the shape. */
int gpt2_matmul_forward(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, void *out,
                        void *before, const void *in, const void *weight, const void *bias,
                        const void *added);

/* INPUT: before NULL. INPUT_GELU: before [rows][inputs] as FORWARD_GELU of the layer below left it.
 * dbias [inputs], of that layer: NULL by the shape; accumulate: added to. */
int gpt2_matmul_input(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, void *d_in,
                      const void *d_out, const void *weight, const void *before, float *dbias,
                      int accumulate);

/* WEIGHT. */
int gpt2_matmul_weight(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, float *dweight,
                       int accumulate, const void *d_out, const void *in);

#ifdef __cplusplus
}
#endif
#endif
