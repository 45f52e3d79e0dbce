/*
 * item_input.h - what this rank gives to an operation: the parts of an exchange, or the element
 * that changes nothing where the rank has joined.
 *
 * Pure. Knows which counts a rank gives; must not know how bytes travel.
 */
#ifndef DP_FUSION_ITEM_INPUT_H
#define DP_FUSION_ITEM_INPUT_H

#include "fusion/pipeline.h"

/* How many blocks a rank of the group gives, that is of send_counts are read: 0, 1 or `ranks`. */
size_t dp_exchange_parts(const dp_pipeline_item_t *item, int rank, int ranks);

/* A rank that has joined gives an empty block and drops what comes. */
void dp_exchange_fill(dp_engine_exchange_t *exchange, const dp_pipeline_item_t *item, int rank,
                      int ranks);

/*
 * Fills [count] elements so that prescale times them, combined with anything, gives that. Products
 * want a prescale of 1. A negative prescale turns the order of elements round, and with it what
 * changes nothing. For a prescale of 0 minimum and maximum get 0: whatever else takes part became 0
 * too.
 */
void dp_identity_fill(void *to, size_t count, dp_dtype_t dtype, dp_reduce_t reduce,
                      double prescale);

#endif
