/*
 * matmul_internal.h - what the files behind matmul.h share: the set, its plans, and the choice that
 * a plan runs with.
 */
#ifndef GPT2_CUDA_MATMUL_INTERNAL_H
#define GPT2_CUDA_MATMUL_INTERNAL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "examples/gpt2/cuda/matmul.h"

#define GPT2_MATMUL_CANDIDATES 16 /* kernels asked for, of each form */

/* How much of what stands beside a product cuBLASLt does: nothing, an epilogue, and where there are
 * GELU's derivative and a bias' gradient, both. */
#define GPT2_MATMUL_FORMS 3

/* How a plan runs. */
typedef struct gpt2_matmul_choice {
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    int form;           /* below GPT2_MATMUL_FORMS */
    int kernel;         /* its place among the candidates, from 1 */
    int candidates;     /* of that form */
    float microseconds; /* with random data; 0: not timed */
} gpt2_matmul_choice_t;

/* The choice for a tuned plan. A choice holds only under the options it was made with. */
typedef struct gpt2_matmul_entry {
    gpt2_matmul_shape_t shape;
    size_t workspace_bytes;
    int fuse;
    gpt2_matmul_choice_t choice;
} gpt2_matmul_entry_t;

typedef struct gpt2_matmul_cache {
    char *folder; /* NULL: no cache */
    char *path;
    char *header; /* the chip and versions: the first lines of the file */
    gpt2_matmul_entry_t *entries;
    size_t count;
    int is_changed;
} gpt2_matmul_cache_t;

/* Pointers of one run, as cuBLASLt sees them: d = op(a) op(b) + c. */
typedef struct gpt2_matmul_operands {
    const void *a;
    const void *b;
    const void *c; /* NULL: nothing is added */
    void *d;
    void *beside; /* the bias, or where its gradient goes */
    void *before; /* what GELU takes */
    int adds;     /* to the bias' gradient */
} gpt2_matmul_operands_t;

struct gpt2_matmul {
    gpt2_matmuls_t *set;
    gpt2_matmul_t *next;
    gpt2_matmul_shape_t shape;
    cublasLtMatmulDesc_t operations[GPT2_MATMUL_FORMS]; /* NULL: there is no such form */
    cublasLtMatrixLayout_t a, b, d;
    size_t a_count, b_count, d_count; /* elements */
    gpt2_matmul_choice_t choice;
};

struct gpt2_matmuls {
    gpt2_matmul_options_t options;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace; /* device [options.workspace_bytes] */
    float *scratch;  /* device: shares of column sums, or a bias' gradient as cuBLASLt writes it */
    size_t scratch_bytes;
    int is_warm; /* the device's clock is up: something was timed */
    gpt2_matmul_t *plans;
    gpt2_matmul_cache_t cache;
};

/* ---- matmul.c ------------------------------------------------------------------------------- */

/* Runs a plan with some choice. 0 or a cudaError_t. */
int gpt2_matmul_execute(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                        gpt2_cuda_stream_t stream, const gpt2_matmul_operands_t *operands);

void gpt2_matmul_notice(const gpt2_matmuls_t *set, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- matmul_tune.c -------------------------------------------------------------------------- */

/* Finds the plan's choice: the quickest that works, or without tuning the first. is_timed: whether
 * candidates were compared. */
int gpt2_matmul_tune(const gpt2_matmul_t *plan, gpt2_matmul_choice_t *out, int *is_timed,
                     gpt2_error_t *error);

/* ---- matmul_cache.c ------------------------------------------------------------------------- */

/* Names the file of this chip and reads it, if it is there and whole. */
int gpt2_matmul_cache_open(gpt2_matmuls_t *set, gpt2_error_t *error);
void gpt2_matmul_cache_close(gpt2_matmul_cache_t *cache);

/* Finds the choice for a shape under the set's options, or NULL. */
const gpt2_matmul_choice_t *gpt2_matmul_cache_find(const gpt2_matmuls_t *set,
                                                   const gpt2_matmul_shape_t *shape);

/* Remembers, or replaces what was known. */
void gpt2_matmul_cache_add(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape,
                           const gpt2_matmul_choice_t *choice);

int gpt2_matmul_shapes_equal(const gpt2_matmul_shape_t *a, const gpt2_matmul_shape_t *b);

#endif
