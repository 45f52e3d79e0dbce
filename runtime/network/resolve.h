/*
 * resolve.h - the IP addresses of a name: within a deadline, or as an answer that an event loop
 * waits for.
 */
#ifndef DP_NETWORK_RESOLVE_H
#define DP_NETWORK_RESOLVE_H

#include "runtime/base/error.h"

#define DP_RESOLVE_ROOM 40 /* of an address as text; version 6 without a scope */

/* Looks a name up in a thread of its own, which may outlive the object that asked. */
typedef struct dp_resolution dp_resolution_t;

/* *out is returned: dp_resolution_free(). DP_ERR_SYSTEM: no thread or descriptor;
 * DP_ERR_NO_MEMORY. */
dp_status_t dp_resolution_start(const char *name, dp_resolution_t **out, dp_error_t *error);
int dp_resolution_fd(const dp_resolution_t *lookup); /* readable from the answer on; borrowed */
/* Writes up to max addresses as text, version 4 first, and how many. DP_ERR_TIMEOUT: there is no
 * answer yet; DP_ERR_SYSTEM: the name has none, or its server does not answer: later it may. */
dp_status_t dp_resolution_read(dp_resolution_t *lookup, char (*addresses)[DP_RESOLVE_ROOM], int max,
                               int *count, dp_error_t *error);
void dp_resolution_free(dp_resolution_t *lookup); /* NULL is fine; the thread finishes by itself */

/* Likewise, and waits until the deadline. */
dp_status_t dp_resolve(const char *name, char (*addresses)[DP_RESOLVE_ROOM], int max, int *count,
                       uint64_t deadline_ns, dp_error_t *error);

#endif
