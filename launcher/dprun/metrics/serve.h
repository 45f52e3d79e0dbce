/*
 * serve.h - `--metrics WHERE`: the figures of the ranks of one node, for Prometheus.
 *
 * WHERE is `:PORT` (on 127.0.0.1), `HOST:PORT`, a folder or a file. dprun, or the station of each
 * node, opens it before anything is started and serves it from its event loop until the job ends.
 */
#ifndef DP_LAUNCHER_METRICS_SERVE_H
#define DP_LAUNCHER_METRICS_SERVE_H

#include <limits.h>

#include <event2/event.h>

#include "launcher/dprun/metrics/text.h"
#include "runtime/base/error.h"

typedef struct dp_metrics dp_metrics_t;

/* Opens the port, or looks whether the file can be written. NULL where: *out is NULL.
 * DP_ERR_CONFIG: it cannot be; DP_ERR_NO_MEMORY. */
dp_status_t dp_metrics_open(const char *where, dp_metrics_t **out, dp_error_t *error);

/* Serves it. source is copied, its texts are borrowed until dp_metrics_close(). NULL is fine. */
dp_status_t dp_metrics_start(dp_metrics_t *metrics, struct event_base *base,
                             const dp_metrics_source_t *source);

/* Ends it and removes the file: figures of a job that is over would look like those of one that
 * stands still. NULL is fine. Before event_base_free(). */
void dp_metrics_close(dp_metrics_t *metrics);

/* In a forked child that does not serve it: closes its descriptor. NULL is fine. */
void dp_metrics_forget(dp_metrics_t *metrics);

#endif
