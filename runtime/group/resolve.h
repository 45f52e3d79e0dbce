/*
 * resolve.h - the IPv4 addresses of a name, within a deadline.
 */
#ifndef DP_GROUP_RESOLVE_H
#define DP_GROUP_RESOLVE_H

#include "runtime/base/error.h"

/* Writes up to max addresses as text, and how many. DP_ERR_TIMEOUT; DP_ERR_SYSTEM: the name has
 * none, or its server does not answer: later it may. */
dp_status_t dp_resolve(const char *name, char (*addresses)[16], int max, int *count,
                       uint64_t deadline_ns, dp_error_t *error);

#endif
