/*
 * arena_share.h - passes the descriptors of a node's ranks around, one each, at the start.
 */
#ifndef DP_SHM_ARENA_SHARE_H
#define DP_SHM_ARENA_SHARE_H

#include "runtime/group/bootstrap.h"
#include "runtime/group/topology.h"

/* Collective over the world. own_fd is borrowed; fds[node size] are returned (close() them), in
 * local rank order, this rank's own place being -1. On error none is left open. */
dp_status_t dp_arena_share(dp_bootstrap_t *bootstrap, const dp_topology_t *topology, int own_fd,
                           uint64_t deadline_ns, const dp_log_t *log, int *fds, dp_error_t *error);

#endif
