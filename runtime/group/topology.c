/*
 * topology.c - the place of each rank: nodes, local ranks, and the negotiation tree over them.
 *
 * Pure arithmetic. Ranks of a node are listed in ascending order, nodes by their lowest rank, so
 * both levels of the tree are the same k-ary heap over a list: entry i has the entries k*i + 1 to
 * k*i + k as children.
 */
#include "runtime/group/topology.h"

#include <stdlib.h>
#include <string.h>

/* ---- Nodes ---------------------------------------------------------------------------------- */

typedef struct keyed_rank {
    const char *key;
    int rank;
} keyed_rank_t;

static int compare_entries(const void *left, const void *right)
{
    const keyed_rank_t *a = left;
    const keyed_rank_t *b = right;
    const int order = strcmp(a->key, b->key);

    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Writes to node[] the lowest rank of each rank's node: sorting finds equal keys in
 * O(n log n), where comparing all pairs would take a large world's start seconds. */
static dp_status_t find_leaders(int *node, const char *const *keys, int size)
{
    keyed_rank_t *entries = malloc((size_t)size * sizeof(*entries));
    int leader = 0;

    if (entries == NULL) return DP_ERR_NO_MEMORY;
    for (int rank = 0; rank < size; rank++)
        entries[rank] = (keyed_rank_t){keys[rank], rank};
    qsort(entries, (size_t)size, sizeof(*entries), compare_entries);
    for (int i = 0; i < size; i++) {
        if (i == 0 || strcmp(entries[i].key, entries[i - 1].key) != 0) leader = entries[i].rank;
        node[entries[i].rank] = leader;
    }
    free(entries);
    return DP_OK;
}

static dp_status_t allocate(dp_topology_t *topology, int size)
{
    const size_t count = size > 0 ? (size_t)size : 0;

    memset(topology, 0, sizeof(*topology));
    if (size < 1) return DP_ERR_INVALID;
    topology->size = size;
    topology->node = calloc(count, sizeof(int));
    topology->local_rank = calloc(count, sizeof(int));
    topology->node_size = calloc(count, sizeof(int));
    topology->node_begin = calloc(count + 1, sizeof(int));
    topology->node_ranks = calloc(count, sizeof(int));
    topology->host_name = calloc(count, sizeof(char *));
    if (topology->node == NULL || topology->local_rank == NULL || topology->node_size == NULL ||
        topology->node_begin == NULL || topology->node_ranks == NULL ||
        topology->host_name == NULL) {
        return DP_ERR_NO_MEMORY;
    }
    return DP_OK;
}

/* Numbers the nodes. node[] holds the lowest rank of each rank's node. */
static dp_status_t number_hosts(dp_topology_t *topology, const char *const *host_names)
{
    const int size = topology->size;

    for (int rank = 0; rank < size; rank++) { /* a leader's entry is renumbered before its ranks' */
        const int leader = topology->node[rank];
        const int node = leader == rank ? topology->node_count : topology->node[leader];

        if (leader == rank) {
            topology->host_name[node] = strdup(host_names[rank]);
            if (topology->host_name[node] == NULL) return DP_ERR_NO_MEMORY;
            topology->node_count++;
        }
        topology->node[rank] = node;
        topology->local_rank[rank] = topology->node_size[node]++;
    }
    for (int node = 0; node < topology->node_count; node++) {
        topology->node_begin[node + 1] = topology->node_begin[node] + topology->node_size[node];
    }
    for (int rank = 0; rank < size; rank++) {
        const int begin = topology->node_begin[topology->node[rank]];

        topology->node_ranks[begin + topology->local_rank[rank]] = rank;
    }
    return DP_OK;
}

dp_status_t dp_topology_init_keys(dp_topology_t *topology, const char *const *keys,
                                  const char *const *host_names, int size)
{
    dp_status_t status = allocate(topology, size);

    if (status == DP_OK) status = find_leaders(topology->node, keys, size);
    if (status == DP_OK) status = number_hosts(topology, host_names);
    if (status != DP_OK) dp_topology_fini(topology);
    return status;
}

dp_status_t dp_topology_init(dp_topology_t *topology, const char *const *host_names, int size)
{
    return dp_topology_init_keys(topology, host_names, host_names, size);
}

dp_status_t dp_topology_init_part(dp_topology_t *topology, const dp_topology_t *world,
                                  const int *ranks, int size)
{
    const char **names = calloc((size_t)dp_max(size, 1), sizeof(*names));
    int *leaders = malloc((size_t)world->node_count * sizeof(*leaders));
    dp_status_t status = allocate(topology, size);

    if (status == DP_OK && (names == NULL || leaders == NULL)) status = DP_ERR_NO_MEMORY;
    for (int node = 0; status == DP_OK && node < world->node_count; node++)
        leaders[node] = -1;
    for (int i = 0; status == DP_OK && i < size; i++) {
        const int node = world->node[ranks[i]];

        names[i] = world->host_name[node];
        if (leaders[node] < 0) leaders[node] = i;
        topology->node[i] = leaders[node];
    }
    if (status == DP_OK) status = number_hosts(topology, names);
    free(leaders);
    free(names);
    if (status != DP_OK) dp_topology_fini(topology);
    return status;
}

void dp_topology_fini(dp_topology_t *topology)
{
    for (int node = 0; topology->host_name != NULL && node < topology->node_count; node++) {
        free(topology->host_name[node]);
    }
    free(topology->node);
    free(topology->local_rank);
    free(topology->node_size);
    free(topology->node_begin);
    free(topology->node_ranks);
    free(topology->host_name);
    memset(topology, 0, sizeof(*topology));
}

int dp_topology_leader(const dp_topology_t *topology, int node)
{
    return topology->node_ranks[topology->node_begin[node]];
}

/* ---- Tree ----------------------------------------------------------------------------------- */

/* Children of entry i in a heap of count entries: *first and how many. */
static int heap_children(int i, int arity, int count, int *first)
{
    const int64_t begin = (int64_t)arity * i + 1;

    *first = (int)dp_min(begin, (int64_t)count);
    return (int)dp_min((int64_t)arity, (int64_t)count - *first);
}

static int compare_ranks(const void *left, const void *right)
{
    const int a = *(const int *)left;
    const int b = *(const int *)right;

    return (a > b) - (a < b);
}

int dp_tree_parent(const dp_topology_t *topology, int arity, int rank)
{
    const int node = topology->node[rank];
    const int local = topology->local_rank[rank];

    if (local > 0) return topology->node_ranks[topology->node_begin[node] + (local - 1) / arity];
    return node > 0 ? dp_topology_leader(topology, (node - 1) / arity) : -1;
}

dp_status_t dp_tree_links_init(dp_tree_links_t *tree, const dp_topology_t *topology, int arity,
                               int rank)
{
    int node;
    int local;
    int first_local;
    int first_node = 0;
    int local_count;
    int leader_count = 0;

    memset(tree, 0, sizeof(*tree));
    tree->parent = -1;
    if (arity < 1 || rank < 0 || rank >= topology->size) return DP_ERR_INVALID;
    node = topology->node[rank];
    local = topology->local_rank[rank];
    local_count = heap_children(local, arity, topology->node_size[node], &first_local);
    if (local == 0) leader_count = heap_children(node, arity, topology->node_count, &first_node);
    tree->arity = arity;
    tree->parent = dp_tree_parent(topology, arity, rank);
    if (local_count + leader_count == 0) return DP_OK;
    tree->children = malloc((size_t)(local_count + leader_count) * sizeof(int));
    if (tree->children == NULL) return DP_ERR_NO_MEMORY;
    for (int i = 0; i < local_count; i++) {
        tree->children[tree->child_count++] =
            topology->node_ranks[topology->node_begin[node] + first_local + i];
    }
    for (int i = 0; i < leader_count; i++) {
        tree->children[tree->child_count++] = dp_topology_leader(topology, first_node + i);
    }
    qsort(tree->children, (size_t)tree->child_count, sizeof(int), compare_ranks);
    return DP_OK;
}

void dp_tree_links_fini(dp_tree_links_t *tree)
{
    free(tree->children);
    memset(tree, 0, sizeof(*tree));
    tree->parent = -1;
}
