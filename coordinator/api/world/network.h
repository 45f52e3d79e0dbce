/*
 * network.h - finds the network interface that leads to the other nodes, by trying.
 *
 * Called by init.c in dp_init(), on the program's thread. It must not know what travels there.
 */
#ifndef DP_COORDINATOR_NETWORK_H
#define DP_COORDINATOR_NETWORK_H

#include "coordinator/api/context/context.h"

/* Finds the interface that leads to the other nodes, and writes it into the settings.
 * Collective. */
dp_status_t dp_context_find_network(dp_context_t *context, uint64_t deadline_ns, dp_error_t *error);

#endif
