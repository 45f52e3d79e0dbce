/*
 * exports.c - the one source of libdp.so itself; everything else comes from the folders' archives.
 *
 * Pins what other builds compiled against a header of ours rely on.
 */
#include "dp.h"

_Static_assert(sizeof(dp_status_t) == sizeof(int), "statuses travel as int");
_Static_assert(DP_BOOL == 12 && DP_DTYPE_COUNT == 13, "types are part of the wire protocol");
