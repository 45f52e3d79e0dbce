/*
 * ucx_worker.h - a UCX context and worker set up for control messages: active messages, an event
 * descriptor, TCP only, one thread.
 */
#ifndef DP_TRANSPORT_UCX_WORKER_H
#define DP_TRANSPORT_UCX_WORKER_H

#include <ucp/api/ucp.h>

#include "runtime/base/config.h"
#include "runtime/base/error.h"

typedef struct dp_ucx_worker {
    ucp_context_h context;
    ucp_worker_h worker;
    int fd; /* readable on events once the worker was armed; the worker's */
} dp_ucx_worker_t;

/**
 * Opens both. On error nothing stays open.
 *
 * @param config ucx_devices picks network devices; borrowed during the call
 * @return DP_OK
 *         DP_ERR_SYSTEM with a text that names UCX_TLS, DP_UCX_DEVICES and what UCX said
 */
dp_status_t dp_ucx_worker_open(dp_ucx_worker_t *worker, int rank, const dp_config_t *config,
                               dp_error_t *error);

void dp_ucx_worker_close(dp_ucx_worker_t *worker); /* zeroed: fine. Endpoints are closed before */

#endif
