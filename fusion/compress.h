/*
 * compress.h - the power-of-two scale under which fp32 sums travel as 16-bit floats.
 *
 * Pure. The scale follows the largest magnitude of the last sum, so that the next one fits fp16
 * with room to spare and small elements stay normal numbers; being a power of two it costs no
 * rounding.
 */
#ifndef DP_FUSION_COMPRESS_H
#define DP_FUSION_COMPRESS_H

#include "runtime/base/common.h"

/*
 * The wire and exponent for a tensor whose previous raw sum (before postscale) had this largest
 * magnitude: negative or NaN: never seen, Inf: it overflowed. Then, and for 0, fp16 travels
 * uncompressed once. bf16 has the range of fp32 and always travels with exponent 0.
 */
dp_wire_t dp_compress_choose(dp_wire_t wanted, float last_absmax, int *exponent);

#endif
