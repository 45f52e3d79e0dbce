/*
 * identity.h - what a rank that has joined gives to a reduction: the element that changes nothing.
 *
 * Pure. A negative prescale turns the order of elements round, and with it what changes nothing.
 */
#ifndef DP_FUSION_IDENTITY_H
#define DP_FUSION_IDENTITY_H

#include <stddef.h>

#include "dp.h"

/*
 * Fills [count] elements so that prescale times them, combined with anything, gives that. Products
 * want a prescale of 1. For a prescale of 0 minimum and maximum get 0: whatever else takes part
 * became 0 too.
 */
void dp_identity_fill(void *to, size_t count, dp_dtype_t dtype, dp_reduce_t reduce,
                      double prescale);

#endif
