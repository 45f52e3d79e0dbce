/*
 * values.c - all ranks give each other one value, over the bootstrap.
 *
 * Called by init.c and network.c in dp_init() and dp_finalize(), on the program's thread.
 */
#include "coordinator/api/context/values.h"

#include <stdlib.h>

#include "coordinator/api/context/context.h"

dp_status_t dp_context_exchange(dp_context_t *context, const char *name, const void *value,
                                size_t value_bytes, void ***values, size_t **bytes,
                                uint64_t deadline_ns, dp_error_t *error)
{
    dp_status_t status;

    *values = calloc((size_t)context->size, sizeof(**values));
    *bytes = calloc((size_t)context->size, sizeof(**bytes));
    if (*values == NULL || *bytes == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the values of %d ranks",
                            context->size);
    }
    status = context->bootstrap->ops->exchange(context->bootstrap, name, value, value_bytes,
                                               *values, *bytes, deadline_ns, error);
    return status;
}

void dp_context_free_values(dp_context_t *context, void **values, size_t *bytes)
{
    for (int rank = 0; values != NULL && rank < context->size; rank++)
        free(values[rank]);
    free(values);
    free(bytes);
}
