/*
 * watch.h - finds a launched operation that does not move any more, and the rank that holds it up.
 * init.c gives the function to the loop as a callback.
 */
#ifndef DP_COORDINATOR_WATCH_H
#define DP_COORDINATOR_WATCH_H

#include "coordinator/api/context/context.h"

/* Called by the loop in each round, on the thread that owns progress. */
dp_status_t dp_on_watch(void *user, uint64_t now_ns, int *culprit, char *text, size_t room);

#endif
