/*
 * topology.h - the place of each rank: nodes, local ranks, and the negotiation tree over them.
 *
 * A node is what shares memory (node_identity.h); several may have one host name. Pure arithmetic
 * on a list of keys, one per rank. It must not know about sockets.
 */
#ifndef DP_GROUP_TOPOLOGY_H
#define DP_GROUP_TOPOLOGY_H

#include "runtime/base/error.h"

typedef struct dp_topology {
    int size;
    int node_count;
    int *node;        /* [size] node of a rank, numbered by first appearance */
    int *local_rank;  /* [size] ascending rank order inside a node */
    int *node_size;   /* [node_count] */
    int *node_begin;  /* [node_count + 1] into node_ranks */
    int *node_ranks;  /* [size] ranks of node n: node_ranks[node_begin[n] .. node_begin[n+1]) */
    char **host_name; /* [node_count] for people */
} dp_topology_t;

/* host_names[size] are copied. Ranks with equal names are on one node. */
dp_status_t dp_topology_init(dp_topology_t *topology, const char *const *host_names, int size);
/* Ranks with equal keys[size] are on one node, which has the host name of its lowest rank; several
 * nodes may have one name. */
dp_status_t dp_topology_init_keys(dp_topology_t *topology, const char *const *keys,
                                  const char *const *host_names, int size);
/* Some ranks[size] of a world, numbered anew in this order. */
dp_status_t dp_topology_init_part(dp_topology_t *topology, const dp_topology_t *world,
                                  const int *ranks, int size);
void dp_topology_fini(dp_topology_t *topology);
/* The first rank of a node. */
int dp_topology_leader(const dp_topology_t *topology, int node);

/* One rank's links in the k-ary tree. A node's ranks hang below their leader (its lowest rank),
 * leaders form the upper tree, rank 0 is the root. */
typedef struct dp_tree_links {
    int arity;
    int parent; /* -1 at the root */
    int child_count;
    int *children; /* [child_count] ascending */
} dp_tree_links_t;

dp_status_t dp_tree_links_init(dp_tree_links_t *tree, const dp_topology_t *topology, int arity,
                               int rank);
void dp_tree_links_fini(dp_tree_links_t *tree);

/* The parent of any rank, always a lower one; -1 at the root. */
int dp_tree_parent(const dp_topology_t *topology, int arity, int rank);

#endif
