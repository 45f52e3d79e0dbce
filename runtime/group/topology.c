/*
 * topology.c - who sits where: hosts, local ranks, and the negotiation tree over them.
 *
 * Pure arithmetic. Ranks of a host are listed in ascending order, hosts by their lowest rank, so
 * both levels of the tree are the same k-ary heap over a list: entry i has the entries k*i + 1 to
 * k*i + k as children.
 */
#include "runtime/group/topology.h"

#include <stdlib.h>
#include <string.h>

/* ---- Hosts ------------------------------------------------------------------------------- */

typedef struct entry {
    const char *key;
    int rank;
} entry_t;

static int compare_entries(const void *left, const void *right)
{
    const entry_t *a = left;
    const entry_t *b = right;
    const int order = strcmp(a->key, b->key);

    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Writes to host[] the lowest rank of each rank's host: sorting finds equal keys in
 * O(n log n), where comparing all pairs would take a large world's start seconds. */
static dp_status_t find_leaders(int *host, const char *const *keys, int size)
{
    entry_t *entries = malloc((size_t)size * sizeof(*entries));
    int leader = 0;

    if (entries == NULL) return DP_ERR_NO_MEMORY;
    for (int rank = 0; rank < size; rank++)
        entries[rank] = (entry_t){keys[rank], rank};
    qsort(entries, (size_t)size, sizeof(*entries), compare_entries);
    for (int i = 0; i < size; i++) {
        if (i == 0 || strcmp(entries[i].key, entries[i - 1].key) != 0) leader = entries[i].rank;
        host[entries[i].rank] = leader;
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
    topology->host = calloc(count, sizeof(int));
    topology->local_rank = calloc(count, sizeof(int));
    topology->host_size = calloc(count, sizeof(int));
    topology->host_begin = calloc(count + 1, sizeof(int));
    topology->host_ranks = calloc(count, sizeof(int));
    topology->host_name = calloc(count, sizeof(char *));
    if (topology->host == NULL || topology->local_rank == NULL || topology->host_size == NULL ||
        topology->host_begin == NULL || topology->host_ranks == NULL ||
        topology->host_name == NULL) {
        return DP_ERR_NO_MEMORY;
    }
    return DP_OK;
}

/* Numbers the hosts. host[] holds the lowest rank of each rank's host. */
static dp_status_t number_hosts(dp_topology_t *topology, const char *const *host_names)
{
    const int size = topology->size;

    for (int rank = 0; rank < size; rank++) { /* a leader's entry is renumbered before its ranks' */
        const int leader = topology->host[rank];
        const int host = leader == rank ? topology->host_count : topology->host[leader];

        if (leader == rank) {
            topology->host_name[host] = strdup(host_names[rank]);
            if (topology->host_name[host] == NULL) return DP_ERR_NO_MEMORY;
            topology->host_count++;
        }
        topology->host[rank] = host;
        topology->local_rank[rank] = topology->host_size[host]++;
    }
    for (int host = 0; host < topology->host_count; host++) {
        topology->host_begin[host + 1] = topology->host_begin[host] + topology->host_size[host];
    }
    for (int rank = 0; rank < size; rank++) {
        const int begin = topology->host_begin[topology->host[rank]];

        topology->host_ranks[begin + topology->local_rank[rank]] = rank;
    }
    return DP_OK;
}

dp_status_t dp_topology_init_keys(dp_topology_t *topology, const char *const *keys,
                                  const char *const *host_names, int size)
{
    dp_status_t status = allocate(topology, size);

    if (status == DP_OK) status = find_leaders(topology->host, keys, size);
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
    const char **names = calloc((size_t)DP_MAX(size, 1), sizeof(*names));
    int *leaders = malloc((size_t)world->host_count * sizeof(*leaders));
    dp_status_t status = allocate(topology, size);

    if (status == DP_OK && (names == NULL || leaders == NULL)) status = DP_ERR_NO_MEMORY;
    for (int host = 0; status == DP_OK && host < world->host_count; host++)
        leaders[host] = -1;
    for (int i = 0; status == DP_OK && i < size; i++) {
        const int host = world->host[ranks[i]];

        names[i] = world->host_name[host];
        if (leaders[host] < 0) leaders[host] = i;
        topology->host[i] = leaders[host];
    }
    if (status == DP_OK) status = number_hosts(topology, names);
    free(leaders);
    free(names);
    if (status != DP_OK) dp_topology_fini(topology);
    return status;
}

void dp_topology_fini(dp_topology_t *topology)
{
    for (int host = 0; topology->host_name != NULL && host < topology->host_count; host++) {
        free(topology->host_name[host]);
    }
    free(topology->host);
    free(topology->local_rank);
    free(topology->host_size);
    free(topology->host_begin);
    free(topology->host_ranks);
    free(topology->host_name);
    memset(topology, 0, sizeof(*topology));
}

/* ---- Tree --------------------------------------------------------------------------------- */

/* Children of entry i in a heap of count entries: *first and how many. */
static int heap_children(int i, int arity, int count, int *first)
{
    const int64_t begin = (int64_t)arity * i + 1;

    *first = (int)DP_MIN(begin, (int64_t)count);
    return (int)DP_MIN((int64_t)arity, (int64_t)count - *first);
}

static int leader_of(const dp_topology_t *topology, int host)
{
    return topology->host_ranks[topology->host_begin[host]];
}

static int compare_ranks(const void *left, const void *right)
{
    const int a = *(const int *)left;
    const int b = *(const int *)right;

    return (a > b) - (a < b);
}

int dp_tree_parent(const dp_topology_t *topology, int arity, int rank)
{
    const int host = topology->host[rank];
    const int local = topology->local_rank[rank];

    if (local > 0) return topology->host_ranks[topology->host_begin[host] + (local - 1) / arity];
    return host > 0 ? leader_of(topology, (host - 1) / arity) : -1;
}

dp_status_t dp_tree_node_init(dp_tree_node_t *node, const dp_topology_t *topology, int arity,
                              int rank)
{
    int host;
    int local;
    int first_local;
    int first_host = 0;
    int local_count;
    int host_count = 0;

    memset(node, 0, sizeof(*node));
    node->parent = -1;
    if (arity < 1 || rank < 0 || rank >= topology->size) return DP_ERR_INVALID;
    host = topology->host[rank];
    local = topology->local_rank[rank];
    local_count = heap_children(local, arity, topology->host_size[host], &first_local);
    if (local == 0) host_count = heap_children(host, arity, topology->host_count, &first_host);
    node->arity = arity;
    node->parent = dp_tree_parent(topology, arity, rank);
    if (local_count + host_count == 0) return DP_OK;
    node->children = malloc((size_t)(local_count + host_count) * sizeof(int));
    if (node->children == NULL) return DP_ERR_NO_MEMORY;
    for (int i = 0; i < local_count; i++) {
        node->children[node->child_count++] =
            topology->host_ranks[topology->host_begin[host] + first_local + i];
    }
    for (int i = 0; i < host_count; i++) {
        node->children[node->child_count++] = leader_of(topology, first_host + i);
    }
    qsort(node->children, (size_t)node->child_count, sizeof(int), compare_ranks);
    return DP_OK;
}

void dp_tree_node_fini(dp_tree_node_t *node)
{
    free(node->children);
    memset(node, 0, sizeof(*node));
    node->parent = -1;
}
