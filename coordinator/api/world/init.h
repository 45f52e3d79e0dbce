/*
 * init.h - builds a context; dp_init() and tests call it.
 */
#ifndef DP_COORDINATOR_INIT_H
#define DP_COORDINATOR_INIT_H

#include "coordinator/api/context/context.h"

/* Builds a context on a bootstrap: what dp_init() does after reading the environment. transport:
 * NULL, or one to use instead of those that the topology asks for. Both are taken, also on
 * failure. */
dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              dp_transport_t *transport, dp_context_t **out, dp_error_t *error);

#endif
