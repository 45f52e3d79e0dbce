/*
 * variant.c - the table of one instruction set. Compiled once for each; select.c reads the tables.
 */
#include "kernels/variant.h"

#define DP_VARIANT_TEXT_(suffix) #suffix
#define DP_VARIANT_TEXT(suffix) DP_VARIANT_TEXT_(suffix)

const dp_kernel_table_t DP_VARIANT(dp_kernels) = {
    .name = DP_VARIANT_TEXT(DP_KERNELS_SUFFIX),
    .reduce = DP_VARIANT(dp_reduce),
    .cast = DP_VARIANT(dp_cast),
    .reduce_cast = DP_VARIANT(dp_reduce_cast),
    .expand = DP_VARIANT(dp_expand),
};
