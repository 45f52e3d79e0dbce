/*
 * exchange.h - what an item that moves blocks between single ranks asks of the engine.
 *
 * Pure. Knows which counts a rank gives; must not know how blocks travel.
 */
#ifndef DP_FUSION_EXCHANGE_H
#define DP_FUSION_EXCHANGE_H

#include "fusion/pipeline.h"

/* How many blocks a rank of the group gives, that is of send_counts are read: 0, 1 or `ranks`. */
size_t dp_exchange_parts(const dp_pipeline_item_t *item, int rank, int ranks);

/* A rank that has joined gives an empty block and drops what comes. */
void dp_exchange_fill(dp_engine_exchange_t *exchange, const dp_pipeline_item_t *item, int rank,
                      int ranks);

#endif
