/*
 * station.h - dprun's process on one of several nodes: it connects to dprun, starts an agent for
 * the node's ranks and relays between them. `dprun --station`, or `dprun --node` on all nodes but
 * the first, runs it.
 */
#ifndef DP_LAUNCHER_STATION_H
#define DP_LAUNCHER_STATION_H

#include "launcher/dprun/remote/protocol.h"

typedef struct dp_station_options {
    dp_remote_ticket_t ticket; /* its secret is wiped once there is a link */
    int has_lifeline;          /* standard input ends when the process that started this is gone */
    uint64_t start_timeout_ns; /* to reach dprun */
} dp_station_options_t;

/* Serves one job. Returns the exit code: the job's, or 1 when dprun was lost or never reached. */
int dp_station_run(dp_station_options_t *options);

/* Reads the ticket from standard input, then serves. */
int dp_station_main(void);

#endif
