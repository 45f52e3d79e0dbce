/*
 * resolve.h - the IP addresses of a name, within a deadline.
 */
#ifndef DP_NETWORK_RESOLVE_H
#define DP_NETWORK_RESOLVE_H

#include "runtime/base/error.h"

#define DP_RESOLVE_ROOM 40 /* of an address as text; version 6 without a scope */

/* Writes up to max addresses as text, version 4 first, and how many. DP_ERR_TIMEOUT; DP_ERR_SYSTEM:
 * the name has none, or its server does not answer: later it may. */
dp_status_t dp_resolve(const char *name, char (*addresses)[DP_RESOLVE_ROOM], int max, int *count,
                       uint64_t deadline_ns, dp_error_t *error);

#endif
