/*
 * ucx_process.h - undoes what libucs does to a whole process: its signal handlers and its log.
 */
#ifndef DP_TRANSPORT_UCX_PROCESS_H
#define DP_TRANSPORT_UCX_PROCESS_H

/**
 * Sets every signal whose handler still lies in libucs to its default, so that a crash dumps core
 * at once and a closed terminal ends the rank. Handlers of the program are left alone.
 *
 * Threads: any. @return signals that were reset
 */
int dp_ucx_signals_restore(void);

/* The same, and UCX's log is silent unless UCX_LOG_LEVEL is set. Threads: one at a time. */
void dp_ucx_process_prepare(void);

#endif
