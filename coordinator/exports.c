/*
 * exports.c - the one source of libdp.so itself; everything else comes from the folders' archives.
 *
 * It runs nothing. It only asserts sizes and values of dp.h that programs built earlier rely on.
 */
#include "dp.h"

_Static_assert(sizeof(dp_status_t) == sizeof(int), "statuses travel as int");
_Static_assert(DP_BOOL == 12 && DP_DTYPE_COUNT == 13, "types are part of the wire protocol");
