/*
 * engine_reference.h - what a collective must give, in plain C, element by element.
 */
#ifndef DP_TESTS_ENGINE_REFERENCE_H
#define DP_TESTS_ENGINE_REFERENCE_H

#include "engine_world.h"

/* Element `index` of what rank `rank` puts in: small enough that no type overflows. exact: whole
 * numbers whose sums are exact in every type. */
void reference_fill(dp_dtype_t dtype, void *data, size_t count, int rank, size_t first, int exact);

/* One element of the result. inputs[size] are the ranks' elements. wire, exponent: as they travel
 * between hosts. */
void reference_reduce(const engine_world_t *world, dp_dtype_t dtype, dp_reduce_t reduce,
                      dp_wire_t wire, int exponent, double prescale, double postscale,
                      const void *const *inputs, void *out);

#endif
