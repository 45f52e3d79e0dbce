/*
 * probe.h - `dprun --probe`: the program whose ranks `dprun --check` starts, one on each node.
 *
 * The ranks try the network as libdp's do in dp_init() (runtime/network/reach.h), and rank 0 prints
 * what a user must know of it. That they ran at all shows the rest: login, station, agent,
 * rendezvous. dprun.c calls it as main of a rank, on its only thread.
 */
#ifndef DP_LAUNCHER_PROBE_H
#define DP_LAUNCHER_PROBE_H

/* names: of the nodes, by rank, up to NULL; NULL: each rank knows its own. Returns the exit code:
 * 1, of rank 0, where there is no network for all; 1, of any rank, that could not try it. */
int dp_probe_run(char *const *names);

#endif
