/*
 * thread.h - the coordinator thread, for loop.c: its events, its start, its end.
 */
#ifndef DP_COORDINATOR_LOOP_THREAD_H
#define DP_COORDINATOR_LOOP_THREAD_H

#include "coordinator/loop/loop.h"

/* Makes the event loop on which the thread sleeps. Closed by dp_loop_thread_close(), also after an
 * error. */
dp_status_t dp_loop_thread_open(dp_loop_t *loop);
dp_status_t dp_loop_thread_start(dp_loop_t *loop);
void dp_loop_thread_close(dp_loop_t *loop); /* once it is joined, or was not started */

#endif
