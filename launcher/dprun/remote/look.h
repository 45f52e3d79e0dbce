/*
 * look.h - facts of this machine: the row of `dprun --check -H`, a free port, UCX's version.
 *
 * Called by a station for its node and by dprun for its own machine.
 */
#ifndef DP_LAUNCHER_LOOK_H
#define DP_LAUNCHER_LOOK_H

#include "launcher/dprun/remote/protocol.h"

/* Fills in all but version, ucx and free_port. Unknown is 0 or "". */
void dp_look_at_node(dp_remote_about_t *about);

/* Numeric addresses of this machine that another one may reach, at most DP_REMOTE_ADDRESSES; IPv4
 * first, neither loopback nor link-local. interface: of this one alone; "": of all. */
int dp_look_for_addresses(const char *interface,
                          char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX]);

/* A TCP port that nobody listens on now and that the kernel gives to no connection, where it leaves
 * any such port; 0: none was found. */
uint16_t dp_look_for_port(void);

/* The version of UCX; 0 and "": it cannot be loaded. Forks. */
int dp_look_for_ucx(char *version, size_t room);

#endif
