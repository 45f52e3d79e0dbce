/*
 * kernel_data.h - buffers of awkward numbers for the kernel tests, the same from run to run.
 */
#ifndef DP_TESTS_KERNEL_DATA_H
#define DP_TESTS_KERNEL_DATA_H

#include "kernels/kernels.h"

/* A small generator (xorshift64*); state must not be 0. */
uint64_t kernel_random(uint64_t *state);

/* Fills [count] elements: for floats plain values with subnormals, Inf, NaN, -0 and halfway cases
 * among them; calm: only plain values of magnitude about 1. `to` may be unaligned. */
void kernel_fill(dp_dtype_t dtype, void *to, size_t count, uint64_t *state, int calm);

#endif
