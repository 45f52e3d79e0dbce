/*
 * topology.h - who sits where: hosts, local ranks, and the negotiation tree over them.
 *
 * Pure arithmetic on a list of hosts, one per rank. It must not know about sockets.
 */
#ifndef DP_GROUP_TOPOLOGY_H
#define DP_GROUP_TOPOLOGY_H

#include "runtime/base/error.h"

typedef struct dp_topology {
    int size;
    int host_count;
    int *host;        /* [size] host of a rank, numbered by first appearance */
    int *local_rank;  /* [size] ascending rank order inside a host */
    int *host_size;   /* [host_count] */
    int *host_begin;  /* [host_count + 1] into host_ranks */
    int *host_ranks;  /* [size] ranks of host h: host_ranks[host_begin[h] .. host_begin[h+1]) */
    char **host_name; /* [host_count] */
} dp_topology_t;

/* host_names[size] are copied. Ranks with equal names are on one host. */
dp_status_t dp_topology_init(dp_topology_t *topology, const char *const *host_names, int size);
/* Ranks with equal keys[size] are on one host, which has the name of its lowest rank; several hosts
 * may have one name. */
dp_status_t dp_topology_init_keys(dp_topology_t *topology, const char *const *keys,
                                  const char *const *host_names, int size);
/* Some ranks[size] of a world, numbered anew in this order. */
dp_status_t dp_topology_init_part(dp_topology_t *topology, const dp_topology_t *world,
                                  const int *ranks, int size);
void dp_topology_fini(dp_topology_t *topology);

/* One rank's place in the k-ary tree. A host's ranks hang below their leader (its lowest rank),
 * leaders form the upper tree, rank 0 is the root. */
typedef struct dp_tree_node {
    int arity;
    int parent; /* -1 at the root */
    int child_count;
    int *children; /* [child_count] ascending */
} dp_tree_node_t;

dp_status_t dp_tree_node_init(dp_tree_node_t *node, const dp_topology_t *topology, int arity,
                              int rank);
void dp_tree_node_fini(dp_tree_node_t *node);

/* The parent of any rank, always a lower one; -1 at the root. */
int dp_tree_parent(const dp_topology_t *topology, int arity, int rank);

#endif
