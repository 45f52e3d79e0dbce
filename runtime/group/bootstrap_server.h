/*
 * bootstrap_server.h - rank 0 of a job not started by dprun serves its rendezvous, in a thread.
 */
#ifndef DP_GROUP_BOOTSTRAP_SERVER_H
#define DP_GROUP_BOOTSTRAP_SERVER_H

#include "runtime/base/auth.h"
#include "runtime/base/log.h"

typedef struct dp_bootstrap_server dp_bootstrap_server_t;

/* Starts a thread that serves `size` ranks on listeners[count] (taken, also on an error). */
dp_status_t dp_bootstrap_server_start(const int *listeners, int count, int size,
                                      const dp_secret_t *secret, const dp_log_t *log,
                                      dp_bootstrap_server_t **out, dp_error_t *error);

/* A beacon's file, to be removed as soon as all ranks have come, or at the stop; copied. Removes it
 * at once where they have. */
void dp_bootstrap_server_guard(dp_bootstrap_server_t *server, const char *path);

/* Tells ranks that still wait for rank 0 that it left, sees the answers out (bounded), and ends the
 * thread. NULL is fine. */
void dp_bootstrap_server_stop(dp_bootstrap_server_t *server);

#endif
