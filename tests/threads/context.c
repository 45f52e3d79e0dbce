/*
 * context.c - a rank of dp.h as a thread of the test; each of the test's threads makes its own.
 */
#include "tests/threads/threads.h"

#include "coordinator/api/world/init.h"

dp_status_t threads_context(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                            dp_context_t **out, dp_error_t *error)
{
    dp_transport_t *transport;
    dp_log_t log;
    dp_status_t status;

    dp_log_init(&log, (dp_log_level_t)config->log_level, bootstrap->rank);
    status = threads_transport(bootstrap->rank, bootstrap->tag, &log, &transport, error);
    if (status != DP_OK) {
        dp_bootstrap_destroy(bootstrap);
        return status;
    }
    return dp_context_create(config, bootstrap, transport, out, error);
}
