/*
 * naive.h - each kernel as the plain loop one would write first; what the fast ones are tested by.
 */
#ifndef DP_TESTS_NAIVE_H
#define DP_TESTS_NAIVE_H

#include "kernels/kernels.h"

/* As the functions of kernels.h with the same ends of names, bit for bit. */
void dp_naive_reduce(const dp_reduce_args_t *args);
void dp_naive_cast(const dp_cast_args_t *args);
void dp_naive_reduce_cast(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                          size_t count, float scale);
void dp_naive_expand(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                     size_t count, float scale, dp_tally_t *tally);

/* Adds the figures of [count] elements of a floating-point type. */
void dp_naive_tally(dp_tally_t *tally, dp_dtype_t dtype, const void *values, size_t count);

#endif
