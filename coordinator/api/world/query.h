/*
 * query.h - rounds of training, for the progress texts.
 */
#ifndef DP_COORDINATOR_QUERY_H
#define DP_COORDINATOR_QUERY_H

#include "coordinator/api/context/context.h"

/* A sync is over, which ends a round unless the program marks steps itself. */
void dp_context_round(dp_context_t *context);

#endif
