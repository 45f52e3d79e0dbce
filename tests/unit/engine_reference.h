/*
 * engine_reference.h - what a collective must give, in plain C, element by element.
 */
#ifndef DP_TESTS_ENGINE_REFERENCE_H
#define DP_TESTS_ENGINE_REFERENCE_H

#include "engine_world.h"

/* A rank's input repeats after so many elements. A prime: whatever the engine cuts, no two
 * of its parts begin alike. */
#define REFERENCE_PERIOD 1021

/* Elements `first` and on of what rank `rank` puts in: small enough that no type overflows. exact:
 * whole numbers whose sums are exact in every type. */
void reference_fill(dp_dtype_t dtype, void *data, size_t count, int rank, size_t first, int exact);

/* A reduction of what all ranks put in. wire, exponent: as it travels between nodes. */
typedef struct reference {
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;
    int exponent;
    double prescale, postscale;
    int exact; /* as in reference_fill() */
} reference_t;

/* Elements `first` and on of its result. */
void reference_reduce(const engine_world_t *world, const reference_t *what, size_t first,
                      size_t count, void *out);

/* The first element in which the two differ; count: none. */
size_t reference_differs(dp_dtype_t dtype, const void *a, const void *b, size_t count);

#endif
