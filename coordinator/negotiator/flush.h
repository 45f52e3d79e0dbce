/*
 * flush.h - the one order in which what is due becomes frames and outputs.
 */
#ifndef DP_COORDINATOR_FLUSH_H
#define DP_COORDINATOR_FLUSH_H

#include "coordinator/negotiator/negotiator.h"

void dp_flush(dp_negotiator_t *n);

#endif
