/*
 * compress_kernels.h - the arithmetic of compressed gradients: what is sent of a tensor and what
 * stays for later. A part of the table in kernels.h, one copy per instruction set.
 *
 * Threshold dropping (Aji and Heafield 2017, arXiv:1704.05021) sends the largest elements of a
 * tensor and keeps the rest, its residual, for the next steps; with momentum as in Lin et al. 2018,
 * arXiv:1712.01887. PowerSGD (Vogels et al. 2019, arXiv:1905.13727) sends a product of two thin
 * matrices. Nothing here knows of ranks, messages or steps.
 *
 * The update that is applied to the model, and its sum of squares, must be equal on all ranks, so
 * they have the same bits for every instruction set. A rank's own contribution need not.
 */
#ifndef GPT2_COMPRESS_KERNELS_H
#define GPT2_COMPRESS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define GPT2_TOPK_BLOCK 65536 /* elements that a 16-bit offset reaches */
#define GPT2_TOPK_PART 4096   /* elements whose squares are added up by themselves */
#define GPT2_TOPK_BINS                                                                             \
    65536 /* of a histogram: the upper 16 of a magnitude's 31 bits, or the rest */

/* A tensor's elements to choose from: value = residual + by * gradient or, with momentum,
 * residual + (factor * momentum + by * gradient). */
typedef struct gpt2_topk_values {
    const float *gradient; /* [count] */
    float by;              /* a power of two: 1 / the loss scale */
    float *residual;       /* [count] what was not sent so far */
    float *momentum;       /* [count]; NULL: none */
    float factor;
    size_t count;
} gpt2_topk_values_t;

/* How many of a tensor's elements are to be sent, and how the threshold for that is sampled. */
typedef struct gpt2_topk_quota {
    int everything;  /* 1: all of them */
    size_t stride;   /* every so-many-th element is in the sample ... */
    size_t sampled;  /* ... of so many, ... */
    size_t position; /* ... and so many of these are below the threshold, or as large */
    size_t wanted;   /* elements */
    size_t least;    /* with fewer above a threshold of more than 0 the choice is made exactly */
} gpt2_topk_quota_t;

/* Chosen elements by ascending position, in blocks of GPT2_TOPK_BLOCK. */
typedef struct gpt2_topk_list {
    uint32_t *block_counts; /* [ceil(count / GPT2_TOPK_BLOCK)] how many of each block */
    float *values;          /* [room] */
    uint16_t *offsets;      /* [room] from their block's first element */
    size_t room;
} gpt2_topk_list_t;

/* The messages of all ranks about one tensor, of one size and behind each other. */
typedef struct gpt2_topk_messages {
    gpt2_topk_list_t first; /* rank 0's */
    size_t stride;          /* bytes from one to the next, a multiple of 4 */
    int ranks;
    int own; /* this rank */
} gpt2_topk_messages_t;

/* A matrix to be approximated: residual + scale * gradient, [rows][columns]. p [rank][rows] and
 * q [rank][columns] are stored column by column, so that each is contiguous. */
typedef struct gpt2_powersgd_matrix {
    float *gradient;
    float *residual;
    float scale;
    size_t rows;
    size_t columns;
    size_t rank;
    float *p;
    float *q;
} gpt2_powersgd_matrix_t;

typedef struct gpt2_compress_kernels {
    /*
     * Chooses what is larger in magnitude than `above`, and the first `ties` elements that are just
     * as large; above < 0: everything. Returns how many these are: with more than list->room the
     * list is of no use. *nonfinite = 1 where a value is Inf or NaN.
     */
    size_t (*topk_select)(const gpt2_topk_values_t *values, float above, size_t ties,
                          const gpt2_topk_list_t *list, int *nonfinite);
    /* bins [GPT2_TOPK_BINS] += the values by the upper 16 bits of their magnitudes' 31; with upper
     * >= 0 the lower 15 bits, of those whose upper ones are these. */
    void (*topk_histogram)(const gpt2_topk_values_t *values, int32_t upper, uint32_t *bins);
    /* Makes the residual the values, and zero where they were chosen; the momentum moves on, and is
     * zero there as well. Each element is moved, not computed: sent + residual = value. */
    void (*topk_keep)(const gpt2_topk_values_t *values, const gpt2_topk_list_t *list);
    /* out [count] += the list's elements. */
    void (*topk_add)(float *out, size_t count, const gpt2_topk_list_t *list);

    /* x [count] *= by; returns the sum of squares. */
    double (*scale_squares)(float *x, size_t count, float by);

    /* p = matrix * q; q = transposed matrix * p. */
    void (*powersgd_rows)(const gpt2_powersgd_matrix_t *matrix);
    void (*powersgd_columns)(const gpt2_powersgd_matrix_t *matrix);
    /* Makes the columns x [rank][count] orthonormal, one after the other. A column that depends on
     * those before it, or is zero, becomes zero. */
    void (*powersgd_orthonormal)(float *x, size_t count, size_t rank);
    /* gradient = p * transposed q, residual = the matrix less that; returns the sum of squares of
     * the gradient. */
    double (*powersgd_finish)(const gpt2_powersgd_matrix_t *matrix);
} gpt2_compress_kernels_t;

#endif
