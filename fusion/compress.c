/*
 * compress.c - the power-of-two scale under which fp32 sums travel as 16-bit floats.
 *
 * The largest magnitude of the last sum is brought to [2^7, 2^8): 256 times below the top of fp16,
 * because the sums of single machines can be larger than the sum of all, and gradients grow tenfold
 * from one step to the next at the start of a training. An element 2^21 times smaller than the
 * largest is still a normal number there.
 *
 * Called by job.c for each tensor of a launch, on the thread that runs the launch.
 */
#include "fusion/compress.h"

#include <math.h>

enum {
    target_exponent = 8, /* of 2^8, which the magnitude stays below */
    exponent_max = 96    /* so that 2^-exponent times a postscale stays a normal fp32 number */
};

dp_wire_t dp_compress_choose(dp_wire_t wanted, float last_absmax, int *exponent)
{
    int magnitude;

    *exponent = 0;
    if (wanted == DP_WIRE_BF16) return DP_WIRE_BF16;
    if (wanted != DP_WIRE_FP16) return DP_WIRE_NONE;
    if (!(last_absmax > 0.0f) || isinf(last_absmax)) return DP_WIRE_NONE;
    frexpf(last_absmax, &magnitude); /* last_absmax is in [2^(magnitude-1), 2^magnitude) */
    *exponent = dp_min(target_exponent - magnitude, exponent_max);
    return DP_WIRE_FP16;
}
