/*
 * values.h - all ranks give each other one value, over the bootstrap.
 *
 * Called in dp_init() and dp_finalize(), on the program's thread.
 */
#ifndef DP_COORDINATOR_VALUES_H
#define DP_COORDINATOR_VALUES_H

#include "coordinator/api/context/context.h"

/* Collective: every rank gives one value under a name and gets all of them,
 * values[size]. Give them back with dp_context_free_values(), after a failure too. */
dp_status_t dp_context_exchange(dp_context_t *context, const char *name, const void *value,
                                size_t value_bytes, void ***values, size_t **bytes,
                                uint64_t deadline_ns, dp_error_t *error);
void dp_context_free_values(dp_context_t *context, void **values, size_t *bytes);

#endif
