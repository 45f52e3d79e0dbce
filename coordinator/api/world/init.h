/*
 * init.h - builds a context; dp_init() and tests call it.
 */
#ifndef DP_COORDINATOR_INIT_H
#define DP_COORDINATOR_INIT_H

#include "coordinator/api/context/context.h"

/* Builds a context on a bootstrap (taken, also on failure): what dp_init() does after reading the
 * environment, and what tests call for ranks in threads, with the loopback transport. */
dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              int use_loopback, dp_context_t **out, dp_error_t *error);

#endif
