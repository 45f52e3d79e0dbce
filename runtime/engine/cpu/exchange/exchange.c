/*
 * exchange.c - gather, scatter, alltoall, allgatherv and send: blocks from rank to rank whose
 * sizes only the senders know.
 *
 * 1. Every rank publishes a manifest: how much it sends to which rank, and how much it can take.
 * 2. The first ranks of the nodes exchange their nodes' manifests, so every rank has all of them.
 * 3. All ranks compute the same from the same manifests: whether everything fits, before a byte is
 *    written, and where each block goes. Rows lie in shared memory, so a rank copies them before it
 *    checks them: another process may write there meanwhile, but what was checked is what is used.
 * 4. Blocks for other nodes are started (flow.c), those inside the node are copied (copy.c).
 *
 * A block that is for everybody crosses to each other node once. Runs on the thread that runs
 * operations.
 */
#include "runtime/engine/cpu/exchange/exchange.h"

#include <stdlib.h>
#include <string.h>

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_exchange_pool_create(int size, dp_exchange_pool_t **out, dp_error_t *error)
{
    dp_exchange_pool_t *pool = calloc(1, sizeof(*pool));

    if (pool != NULL) {
        pool->manifests = calloc((size_t)size, sizeof(dp_exchange_manifest_t *));
        pool->places = calloc((size_t)size + 1, sizeof(*pool->places));
    }
    if (pool == NULL || pool->manifests == NULL || pool->places == NULL) {
        dp_exchange_pool_destroy(pool);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    }
    *out = pool;
    return DP_OK;
}

void dp_exchange_pool_destroy(dp_exchange_pool_t *pool)
{
    if (pool == NULL) return;
    dp_flows_fini(&pool->flows);
    free(pool->copies);
    free(pool->manifests);
    free(pool->places);
    free(pool);
}

/* ---- Senders, receivers and counts ---------------------------------------------------------- */

/* 1: this rank's send_counts are read, and *count of them. */
static int gives_counts(const dp_exchange_run_t *run, size_t *count)
{
    const dp_cpu_group_t *group = run->group;

    *count = 1;
    switch (run->op->collective) {
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        *count = (size_t)group->size;
        return group->rank == run->root;
    case DP_COLLECTIVE_ALLTOALL:
    case DP_COLLECTIVE_ALLTOALLV:
        *count = (size_t)group->size;
        return 1;
    case DP_COLLECTIVE_SEND:
        return group->rank == run->root;
    default:
        return 1;
    }
}

/* Elements that memory can hold; less than a sum that overflowed. */
static size_t elems_max(const dp_exchange_run_t *run)
{
    return (SIZE_MAX - 1) / run->elem_bytes;
}

/* ---- This rank's manifest ------------------------------------------------------------------- */

static dp_status_t fail_exchange(dp_exchange_run_t *run, dp_status_t status, const char *what)
{
    return dp_cpu_fail(
        run->group, status, "%s %llu%s: rank %d: %s", dp_collective_name(run->op->collective),
        (unsigned long long)run->op->sequence, run->group->title, run->group->engine->rank, what);
}

static dp_status_t grow_manifest(dp_exchange_run_t *run, dp_cpu_publication_t *publication)
{
    dp_arena_t *arena = run->group->engine->arena;
    void *memory;

    if (run->manifest_bytes <= publication->manifest_words * sizeof(uint64_t)) return DP_OK;
    if (dp_arena_alloc(arena, run->manifest_bytes, &memory) != DP_OK) {
        return fail_exchange(run, DP_ERR_NO_MEMORY, "no shared memory to publish its counts");
    }
    dp_arena_free(arena, publication->grown_manifest);
    publication->manifest = publication->grown_manifest = memory;
    publication->manifest_words = run->manifest_bytes / sizeof(uint64_t);
    return DP_OK;
}

static dp_status_t read_counts(dp_exchange_run_t *run, dp_exchange_manifest_t *manifest)
{
    const size_t *counts = run->exchange->send_counts;
    size_t count;
    size_t total = 0;

    if (!gives_counts(run, &count)) {
        memset(manifest->counts, 0, run->manifest_bytes - sizeof(*manifest));
        return DP_OK;
    }
    for (size_t i = 0; i < count; i++) {
        if (run->is_alike && counts[i] != counts[0]) {
            return fail_exchange(run, DP_ERR_INVALID, "its blocks differ in size");
        }
        manifest->counts[run->is_alike ? 0 : i] = counts[i];
        total = dp_add_saturating(total, counts[i]);
    }
    if (total <= elems_max(run)) return DP_OK;
    return fail_exchange(run, DP_ERR_INVALID, "its counts add up to more than memory can hold");
}

/* A rank's manifest in private memory. */
static dp_exchange_manifest_t *copy_of(const dp_exchange_run_t *run, int rank)
{
    char *at = (char *)run->pool->copies + (size_t)rank * run->manifest_bytes;

    return (dp_exchange_manifest_t *)(void *)at;
}

static dp_status_t grow_copies(dp_exchange_run_t *run)
{
    const size_t bytes = (size_t)run->group->size * run->manifest_bytes;
    void *copies;

    if (bytes <= run->pool->copies_bytes) return DP_OK;
    copies = realloc(run->pool->copies, bytes);
    if (copies == NULL)
        return fail_exchange(run, DP_ERR_NO_MEMORY, "no memory for the counts of all ranks");
    run->pool->copies = copies;
    run->pool->copies_bytes = bytes;
    return DP_OK;
}

/* Fills in this rank's manifest in private memory and publishes a copy of it, so no other process
 * can change the manifest that this rank computes with. */
static dp_status_t make_manifest(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    dp_cpu_publication_t *publication = dp_cpu_publication(group);
    dp_exchange_manifest_t *manifest;
    dp_status_t status = grow_manifest(run, publication);

    if (status == DP_OK) status = grow_copies(run);
    if (status != DP_OK) return status;
    manifest = copy_of(run, group->rank);
    manifest->drops = run->exchange->drops != 0;
    manifest->capacity =
        manifest->drops ? elems_max(run) : dp_min(run->exchange->capacity, elems_max(run));
    run->pool->manifests[group->rank] = manifest;
    status = read_counts(run, manifest);
    if (status == DP_OK) status = dp_exchange_show(run, manifest);
    if (status == DP_OK) memcpy(publication->manifest, manifest, run->manifest_bytes);
    return status;
}

/* ---- Everybody's manifests ------------------------------------------------------------------ */

static dp_status_t find_local_manifests(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;

    for (int k = 0; k < group->local_size; k++) {
        const dp_exchange_manifest_t *manifest =
            dp_cpu_memory_at(group, k, dp_cpu_descriptor(group, k)->manifest, run->manifest_bytes);

        if (manifest == NULL) return dp_cpu_bad_offset(group, k);
        if (group->local_ranks[k] != group->rank)
            run->pool->manifests[group->local_ranks[k]] = manifest;
    }
    return DP_OK;
}

/* Rows lie in the table by node, then local rank. */
static size_t table_place(const dp_exchange_run_t *run, int node)
{
    return (size_t)run->group->topology->node_begin[node] * run->manifest_bytes;
}

static dp_status_t make_table(dp_exchange_run_t *run)
{
    dp_exchange_pool_t *pool = run->pool;
    dp_cpu_group_t *group = run->group;
    const size_t bytes = (size_t)group->size * run->manifest_bytes;

    if (bytes > pool->table_bytes) {
        void *memory;

        if (dp_arena_alloc(group->engine->arena, bytes, &memory) != DP_OK) {
            return fail_exchange(run, DP_ERR_NO_MEMORY,
                                 "no shared memory for the counts of all ranks");
        }
        dp_arena_free(group->engine->arena, pool->table);
        pool->table = memory;
        pool->table_bytes = bytes;
    }
    dp_cpu_descriptor(group, 0)->table = dp_arena_offset(group->engine->arena, pool->table, 0);
    return DP_OK;
}

/* A node's first rank gets the manifests of all others. */
static dp_status_t swap_manifests(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    dp_status_t status = make_table(run);
    char *own = (char *)run->pool->table + table_place(run, group->node);
    const char *others;

    if (status != DP_OK) return status;
    for (int k = 0; k < group->local_size; k++) {
        memcpy(own + (size_t)k * run->manifest_bytes, run->pool->manifests[group->local_ranks[k]],
               run->manifest_bytes);
    }
    status = dp_inter_node_leader_allgather(group, DP_KIND_MANIFESTS, own, 0, run->manifest_bytes,
                                            &others);
    for (int node = 0; status == DP_OK && node < group->node_count; node++) {
        const size_t bytes = (size_t)topology->node_size[node] * run->manifest_bytes;

        if (node == group->node) continue;
        memcpy((char *)run->pool->table + table_place(run, node), others, bytes);
        others += bytes;
    }
    return status;
}

/* Finds the manifests of other nodes' ranks: the first rank of the node fetches them into a table
 * in its arena, the barrier makes them visible, and all read them there. */
static dp_status_t find_far_manifests(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    const char *table;
    dp_status_t status = DP_OK;

    if (group->local_rank == 0) status = swap_manifests(run);
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    if (status != DP_OK) return status;
    table = dp_cpu_memory_at(group, 0, dp_cpu_descriptor(group, 0)->table,
                             (size_t)group->size * run->manifest_bytes);
    if (table == NULL) return dp_cpu_bad_offset(group, 0);
    for (int rank = 0; rank < group->size; rank++) {
        const char *manifest = table + table_place(run, topology->node[rank]) +
                               (size_t)topology->local_rank[rank] * run->manifest_bytes;

        if (topology->node[rank] == group->node) continue;
        run->pool->manifests[rank] = (const dp_exchange_manifest_t *)(const void *)manifest;
    }
    return DP_OK;
}

static dp_status_t find_manifests(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    dp_status_t status = find_local_manifests(run);

    if (status == DP_OK && group->node_count > 1) status = find_far_manifests(run);
    for (int rank = 0; status == DP_OK && rank < group->size; rank++) {
        dp_exchange_manifest_t *copy = copy_of(run, rank);

        if (rank != group->rank) memcpy(copy, run->pool->manifests[rank], run->manifest_bytes);
        run->pool->manifests[rank] = copy;
    }
    return status;
}

/* ---- Whether everything fits ---------------------------------------------------------------- */

static size_t total_for(const dp_exchange_run_t *run, int to)
{
    size_t total = 0;

    for (int from = 0; from < run->group->size; from++)
        total = dp_add_saturating(total, dp_exchange_count(run, from, to));
    return total;
}

/* Fails with the lowest rank whose capacity is too small. All ranks find the same one, as they
 * compute it from the same manifests, so all fail with one text before a byte is written. */
static dp_status_t check_capacities(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    /* Everybody gets the same: add up once. */
    const int is_even = dp_exchange_is_shared(run) || run->op->collective == DP_COLLECTIVE_ALLTOALL;
    size_t total = total_for(run, 0);

    for (int rank = 0; rank < group->size; rank++) {
        const dp_exchange_manifest_t *manifest = run->pool->manifests[rank];

        if (!is_even) total = total_for(run, rank);
        if (total <= manifest->capacity) continue;
        return dp_cpu_fail(group, DP_ERR_TRUNCATED,
                           "rank %d (%s) can take %llu elements, %zu come%s", group->ranks[rank],
                           topology->host_name[topology->node[rank]],
                           (unsigned long long)manifest->capacity, total, group->title);
    }
    return DP_OK;
}

/* Finds how many elements each rank sends here, and where they go in this rank's output. */
static void find_block_places(dp_exchange_run_t *run)
{
    dp_engine_exchange_t *exchange = run->exchange;
    const dp_cpu_group_t *group = run->group;
    const int is_send = run->op->collective == DP_COLLECTIVE_SEND;
    size_t *places = run->pool->places;

    places[0] = 0;
    for (int from = 0; from < group->size; from++) {
        const size_t count = dp_exchange_count(run, from, group->rank);

        places[from + 1] = dp_add_saturating(places[from], count);
        if (exchange->recv_counts != NULL && !is_send) exchange->recv_counts[from] = count;
    }
    exchange->received = places[group->size];
    if (exchange->recv_counts != NULL && is_send) {
        exchange->recv_counts[run->op->root] = exchange->received;
    }
}

/* Asks the program for room. Other ranks are about to send, so a program that has none ends the
 * world. */
static dp_status_t find_out(dp_exchange_run_t *run)
{
    dp_engine_exchange_t *exchange = run->exchange;

    if (exchange->output == NULL || exchange->drops) return DP_OK;
    exchange->out = exchange->output(exchange->user, exchange->received);
    if (exchange->out != NULL || exchange->received == 0) return DP_OK;
    return dp_cpu_fail(run->group, DP_ERR_NO_MEMORY,
                       "rank %d: the program gave no memory for %zu elements%s",
                       run->group->ranks[run->group->rank], exchange->received, run->group->title);
}

/* ---- To and from other nodes ---------------------------------------------------------------- */

/* 1: some rank of a node keeps a block that is for everybody. */
static int wants_shared(const dp_exchange_run_t *run, int node)
{
    const dp_topology_t *topology = run->group->topology;

    for (int i = topology->node_begin[node]; i < topology->node_begin[node + 1]; i++) {
        if (!run->pool->manifests[topology->node_ranks[i]]->drops) return 1;
    }
    return 0;
}

/* Which local rank of this node receives the block of a rank elsewhere that is for everybody; the
 * others copy it from that one's scratch. */
static int server_of(const dp_cpu_group_t *group, int from)
{
    return group->topology->local_rank[from] % group->local_size;
}

static size_t shared_bytes(const dp_exchange_run_t *run, int from)
{
    return (size_t)run->pool->manifests[from]->counts[0] * run->elem_bytes;
}

/* Where the block of a rank elsewhere lies in its server's scratch. from: size of the group: the
 * end. */
static size_t shared_place(const dp_exchange_run_t *run, int server, int from)
{
    const dp_cpu_group_t *group = run->group;
    size_t place = 0;

    for (int rank = 0; rank < from; rank++) {
        if (group->topology->node[rank] == group->node) continue;
        if (server_of(group, rank) != server) continue;
        place += dp_align_up(shared_bytes(run, rank), 64);
    }
    return place;
}

static dp_status_t start_shared(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    const size_t bytes = shared_bytes(run, group->rank);
    dp_flows_t *flows = &run->pool->flows;
    dp_status_t status = DP_OK;

    for (int i = 1; status == DP_OK && bytes != 0 && i < group->node_count; i++) {
        const int node = (group->node + i) % group->node_count;

        if (!wants_shared(run, node)) continue;
        status = dp_flows_send(flows, dp_inter_node_partner(group, node), run->exchange->in, bytes);
    }
    if (status != DP_OK || !wants_shared(run, group->node)) return status;
    status = dp_inter_node_scratch(group, shared_place(run, group->local_rank, group->size),
                                   &run->scratch);
    for (int from = 0; status == DP_OK && from < group->size; from++) {
        if (topology->node[from] == group->node || shared_bytes(run, from) == 0) continue;
        if (server_of(group, from) != group->local_rank) continue;
        status =
            dp_flows_receive(flows, from, run->scratch + shared_place(run, group->local_rank, from),
                             shared_bytes(run, from));
    }
    return status;
}

/* Copies blocks that are for everybody out of the scratch of those ranks of this node that received
 * them. */
static dp_status_t copy_shared(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;

    for (int from = 0; !run->exchange->drops && from < group->size; from++) {
        const size_t bytes = shared_bytes(run, from);
        const int server = server_of(group, from);
        const char *block;

        if (group->topology->node[from] == group->node || bytes == 0) continue;
        block = dp_cpu_memory_at(
            group, server,
            dp_cpu_descriptor(group, server)->scratch + shared_place(run, server, from), bytes);
        if (block == NULL) return dp_cpu_bad_offset(group, server);
        memcpy((char *)run->exchange->out + run->pool->places[from] * run->elem_bytes, block,
               bytes);
    }
    return DP_OK;
}

/* Starts the transfer of blocks that are for a single rank of another node, straight to their
 * places. */
static dp_status_t start_single(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_exchange_pool_t *pool = run->pool;
    dp_flows_t *flows = &run->pool->flows;
    dp_status_t status = DP_OK;

    for (int i = 1; status == DP_OK && i < group->size; i++) { /* not all to the same one first */
        const int to = (group->rank + i) % group->size;
        const int from = (group->rank + group->size - i) % group->size;
        const size_t out_bytes = dp_exchange_count(run, group->rank, to) * run->elem_bytes;
        const size_t in_bytes = dp_exchange_count(run, from, group->rank) * run->elem_bytes;

        if (group->topology->node[to] != group->node && out_bytes != 0 &&
            !pool->manifests[to]->drops) {
            const size_t start = dp_exchange_start(run, group->rank, to) * run->elem_bytes;

            status = dp_flows_send(flows, to, (const char *)run->exchange->in + start, out_bytes);
        }
        if (status == DP_OK && group->topology->node[from] != group->node && in_bytes != 0 &&
            !run->exchange->drops) {
            char *target = (char *)run->exchange->out + pool->places[from] * run->elem_bytes;

            status = dp_flows_receive(flows, from, target, in_bytes);
        }
    }
    return status;
}

static dp_status_t start_flows(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    int busy;
    dp_status_t status;

    run->pool->flows.unfinished = 0;
    if (group->node_count == 1) return DP_OK;
    status = dp_flows_begin(&run->pool->flows, group,
                            2 * ((size_t)group->size - (size_t)group->local_size));
    if (status == DP_OK) {
        status = dp_exchange_is_shared(run) ? start_shared(run) : start_single(run);
    }
    return status == DP_OK ? dp_flows_pump(&run->pool->flows, &busy) : status;
}

/* ---- All of it ------------------------------------------------------------------------------ */

static dp_status_t move_blocks(dp_exchange_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    int is_read;
    dp_status_t status = start_flows(run);

    if (status == DP_OK) status = dp_exchange_copy(run, &is_read);
    if (status != DP_OK) return status;
    if (group->node_count > 1) {
        is_read = 1;
        status = dp_flows_finish(&run->pool->flows);
        if (status == DP_OK && dp_exchange_is_shared(run)) {
            status = dp_cpu_node_barrier(group);
            if (status == DP_OK) status = copy_shared(run);
        }
    }
    if (status == DP_OK && is_read) status = dp_cpu_node_barrier(group);
    if (status != DP_OK) return status;
    dp_exchange_forget_copy(run);
    if (group->node_count > 1) dp_inter_node_scratch_release(group);
    return DP_OK;
}

dp_status_t dp_cpu_run_exchange(dp_cpu_group_t *group, dp_engine_op_t *op, int root, int peer)
{
    dp_exchange_run_t run = {.group = group,
                             .op = op,
                             .exchange = op->exchange,
                             .pool = group->lane->exchange_pool,
                             .root = root,
                             .peer = peer,
                             .elem_bytes = dp_max(dp_dtype_bytes(op->dtype), (size_t)1)};
    dp_status_t status;

    run.is_alike =
        op->collective != DP_COLLECTIVE_ALLTOALLV && op->collective != DP_COLLECTIVE_SCATTERV;
    run.manifest_bytes = sizeof(dp_exchange_manifest_t) +
                         (run.is_alike ? 1 : (size_t)group->size) * sizeof(uint64_t);
    run.exchange->received = 0;
    status = make_manifest(&run);
    if (status == DP_OK) status = dp_cpu_arrive(group, op, 0);
    if (status == DP_OK) status = find_manifests(&run);
    if (status != DP_OK) return status;
    find_block_places(&run);
    status = check_capacities(&run);
    if (status == DP_OK) {
        status = find_out(&run);
        if (status == DP_OK) status = move_blocks(&run);
    } else if (group->node_count > 1 && dp_cpu_node_barrier(group) != DP_OK) {
        /* The barrier above: ranks that were late have read the manifests, which may change now. */
        status = DP_ERR_ABORTED;
    }
    return status;
}
