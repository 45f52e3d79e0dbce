/*
 * ucx_signals.h - takes back the signal dispositions that libucs installs before main().
 */
#ifndef DP_TRANSPORT_UCX_SIGNALS_H
#define DP_TRANSPORT_UCX_SIGNALS_H

/**
 * Sets every signal whose handler still lies in libucs to its default, so that a crash dumps core
 * at once and a closed terminal ends the rank. Handlers of the program are left alone.
 *
 * Threads: any. @return signals that were reset
 */
int dp_ucx_signals_restore(void);

#endif
