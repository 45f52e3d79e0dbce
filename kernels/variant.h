/*
 * variant.h - the sources that are compiled once per instruction set, and the tables they fill.
 *
 * reduce.c, reduce_types.c, cast.c and variant.c are built as "c", "avx2" and "avx512"; the names
 * they define get that suffix through DP_VARIANT(). select.c picks a table, tests walk all of them.
 */
#ifndef DP_KERNELS_VARIANT_H
#define DP_KERNELS_VARIANT_H

#include "kernels/kernels.h"

typedef struct dp_kernel_table {
    const char *name; /* "avx512" */
    void (*reduce)(const dp_reduce_args_t *args);
    void (*cast)(const dp_cast_args_t *args);
    void (*reduce_cast)(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                        size_t count, float scale);
    void (*expand)(dp_dtype_t wire, const void *in, float *const *out, int out_count, size_t count,
                   float scale, dp_tally_t *tally);
} dp_kernel_table_t;

extern const dp_kernel_table_t dp_kernels_c;
#if defined(__x86_64__)
extern const dp_kernel_table_t dp_kernels_avx2;
extern const dp_kernel_table_t dp_kernels_avx512;
#endif

/* The tables this machine can run, best first; NULL past the last one. */
const dp_kernel_table_t *dp_kernels_table(int index);

/* Bytes of an element. */
size_t dp_kernel_dtype_bytes(dp_dtype_t dtype);

/* Adds what one block of at most DP_TALLY_BLOCK elements held. */
void dp_tally_add_block(dp_tally_t *tally, double sum_squares, double absmax, uint64_t nonfinite);

/* Shared by the variant's own sources. */
#define DP_VARIANT_JOIN_(name, suffix) name##_##suffix
#define DP_VARIANT_JOIN(name, suffix) DP_VARIANT_JOIN_(name, suffix)
#define DP_VARIANT(name) DP_VARIANT_JOIN(name, DP_KERNELS_SUFFIX)
#if defined(DP_KERNELS_SUFFIX)
void DP_VARIANT(dp_reduce)(const dp_reduce_args_t *args);
void DP_VARIANT(dp_reduce_types)(const dp_reduce_args_t *args); /* integers, bool, f64 */
void DP_VARIANT(dp_cast)(const dp_cast_args_t *args);
void DP_VARIANT(dp_reduce_cast)(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                                size_t count, float scale);
void DP_VARIANT(dp_expand)(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                           size_t count, float scale, dp_tally_t *tally);
#endif

#endif
