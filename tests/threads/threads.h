/*
 * threads.h - ranks that are threads of one process: their bootstrap, their transport, and a
 * context over both. Tests of libdp's insides are linked to it; libdp itself knows nothing of it.
 */
#ifndef DP_TESTS_THREADS_H
#define DP_TESTS_THREADS_H

#include "runtime/group/bootstrap.h"
#include "runtime/transport/transport.h"

/* size ranks as threads of this process; bootstraps[size] are returned, all share one table. */
dp_status_t threads_bootstrap(int size, dp_bootstrap_t **bootstraps);

/* Ranks find each other by address, a pointer in it. log: borrowed; may be NULL. */
dp_status_t threads_transport(int rank, uint64_t tag, const dp_log_t *log, dp_transport_t **out,
                              dp_error_t *error);

/* A context of such a rank: dp_context_create() over threads_transport(). The bootstrap is taken,
 * also on failure. */
dp_status_t threads_context(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                            dp_context_t **out, dp_error_t *error);

#endif
