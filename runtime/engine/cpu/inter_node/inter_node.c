/*
 * inter_node.c - what operations between hosts work with: buffers, partners, and their failures.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRACE_NS 250000000u                /* before a lost connection is taken for the cause */
#define SCRATCH_KEEP ((size_t)32 * DP_MIB) /* kept from one operation to the next */

/* ---- Life ---------------------------------------------------------------------------------------
 */

static int smallest_host(const dp_topology_t *topology)
{
    int least = topology->node_size[0];

    for (int i = 1; i < topology->node_count; i++)
        least = dp_min(least, topology->node_size[i]);
    return least;
}

/* Ranks elsewhere whose partner this rank is: each sends what is meant for this host here. */
static int count_served(const dp_cpu_group_t *group)
{
    const dp_topology_t *topology = group->topology;
    int count = 0;

    for (int i = 0; i < group->size; i++) {
        count += topology->node[i] != group->host &&
                 topology->local_rank[i] % group->local_size == group->local_rank;
    }
    return count;
}

/* One sparse mapping for all buffers: pages are made by use. */
static dp_status_t make_buffers(dp_inter_node_pool_t *pool, size_t hosts)
{
    const size_t each = DP_CHUNK_HEAD + DP_CHUNK_BYTES;
    const size_t slots = 2 * hosts * DP_CHUNK_WINDOW;
    char *at;

    pool->slots = calloc(slots, sizeof(*pool->slots));
    if (pool->slots == NULL) return DP_ERR_NO_MEMORY;
    pool->buffers_bytes = (2 * DP_CHUNK_WINDOW + 1 + slots) * each;
    at = mmap(NULL, pool->buffers_bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return DP_ERR_NO_MEMORY;
    pool->buffers = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        pool->send[i] = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        pool->result[i] = at;
    for (size_t i = 0; i < slots; i++, at += each)
        pool->slots[i] = at;
    pool->own = at;
    return DP_OK;
}

/* topology: the world's. No group has more hosts, or ranks on this one. */
dp_status_t dp_inter_node_pool_create(const dp_topology_t *topology, int local_size,
                                      dp_inter_node_pool_t **out, dp_error_t *error)
{
    const size_t width = (size_t)dp_max(local_size, topology->node_count);
    dp_inter_node_pool_t *pool = calloc(1, sizeof(*pool));
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (pool != NULL) {
        pool->temps = calloc(width, sizeof(*pool->temps));
        pool->temps_memory = calloc(width * DP_TALLY_BLOCK, sizeof(*pool->temps_memory));
        if (pool->temps != NULL && pool->temps_memory != NULL) {
            status = make_buffers(pool, (size_t)topology->node_count - 1);
        }
    }
    if (status != DP_OK) {
        dp_inter_node_pool_destroy(pool);
        return dp_error_set(error, status, "engine: no memory for buffers between hosts");
    }
    for (size_t i = 0; i < width; i++)
        pool->temps[i] = pool->temps_memory + i * DP_TALLY_BLOCK;
    *out = pool;
    return DP_OK;
}

void dp_inter_node_pool_destroy(dp_inter_node_pool_t *pool)
{
    if (pool == NULL) return;
    if (pool->buffers != NULL) munmap(pool->buffers, pool->buffers_bytes);
    free(pool->slots);
    free(pool->swapped);
    free(pool->temps);
    free(pool->temps_memory);
    free(pool);
}

dp_status_t dp_inter_node_create(dp_cpu_group_t *group, dp_inter_node_t **out)
{
    dp_inter_node_t *between = calloc(1, sizeof(*between));
    const size_t hosts = (size_t)dp_max(group->node_count - 1, 1);
    size_t peers;

    if (between == NULL) return DP_ERR_NO_MEMORY;
    between->pool = group->engine->pool;
    between->hosts = (int)hosts;
    between->peers = dp_max(between->hosts, count_served(group));
    between->owners = smallest_host(group->topology);
    between->partial = between->pool->slots;
    between->gather = between->pool->slots + hosts * DP_CHUNK_WINDOW;
    peers = (size_t)between->peers;
    between->peer_of = calloc(hosts + 1, sizeof(*between->peer_of));
    between->sent = calloc(DP_CHUNK_WINDOW, sizeof(*between->sent));
    between->answered = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->answered));
    between->received = calloc(peers * DP_CHUNK_WINDOW, sizeof(*between->received));
    between->gathered = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->gathered));
    between->targets = calloc(peers, sizeof(*between->targets));
    between->sources = calloc(peers, sizeof(*between->sources));
    between->partials = calloc(hosts + 1, sizeof(*between->partials));
    if (between->peer_of == NULL || between->sent == NULL || between->answered == NULL ||
        between->received == NULL || between->gathered == NULL || between->targets == NULL ||
        between->sources == NULL || between->partials == NULL) {
        dp_inter_node_destroy(between);
        return DP_ERR_NO_MEMORY;
    }
    *out = between;
    return DP_OK;
}

int dp_inter_node_peer(const dp_cpu_group_t *group, int rank)
{
    return dp_link_find(group->engine->link, group->ranks[rank]);
}

int dp_inter_node_partner(const dp_cpu_group_t *group, int host)
{
    const dp_topology_t *topology = group->topology;

    return topology
        ->node_ranks[topology->node_begin[host] + group->local_rank % topology->node_size[host]];
}

void dp_inter_node_find_partners(dp_cpu_group_t *group)
{
    for (int host = 0; host < group->node_count; host++) {
        group->between->peer_of[host] =
            host == group->host ? -1
                                : dp_inter_node_peer(group, dp_inter_node_partner(group, host));
    }
}

void dp_inter_node_destroy(dp_inter_node_t *between)
{
    if (between == NULL) return;
    free(between->peer_of);
    free(between->sent);
    free(between->answered);
    free(between->received);
    free(between->gathered);
    free(between->targets);
    free(between->sources);
    free(between->partials);
    free(between);
}

/* ---- What operations use ------------------------------------------------------------------------
 */

/* A number that a later group gets again never meets a message of an earlier one: every message
 * between two ranks is sent and received by one operation of a group, both run their operations in
 * one order, and messages of one tag between them are matched in the order they were sent. */
uint64_t dp_inter_node_tag(const dp_cpu_group_t *group, int from, unsigned kind, size_t chunk)
{
    const dp_link_tag_t tag = {.from_rank = group->ranks[from],
                               .group = group->slot,
                               .op = group->op_index,
                               .kind = kind + (group->is_pair ? DP_KIND_PAIR : 0u),
                               .chunk = chunk};

    return dp_link_tag(&tag);
}

dp_status_t dp_inter_node_scratch(dp_cpu_group_t *group, size_t bytes, char **scratch)
{
    dp_inter_node_pool_t *pool = group->between->pool;
    dp_arena_t *arena = group->engine->arena;
    dp_status_t status;

    if (bytes > pool->scratch_bytes) {
        dp_arena_free(arena, pool->scratch);
        pool->scratch = NULL;
        pool->scratch_bytes = 0;
        status = dp_arena_alloc(arena, bytes, &pool->scratch);
        if (status != DP_OK) {
            return dp_cpu_fail(group, status,
                               "%s %llu%s: no shared memory for %zu bytes from other hosts",
                               dp_collective_name(group->op->collective),
                               (unsigned long long)group->op->sequence, group->title, bytes);
        }
        pool->scratch_bytes = bytes;
    }
    *scratch = pool->scratch;
    dp_cpu_descriptor(group, group->local_rank)->scratch =
        pool->scratch == NULL ? 0 : dp_arena_offset(arena, pool->scratch, 0);
    return DP_OK;
}

void dp_inter_node_scratch_release(dp_cpu_group_t *group)
{
    dp_inter_node_pool_t *pool = group->between->pool;

    if (pool->scratch_bytes <= SCRATCH_KEEP) return;
    dp_arena_free(group->engine->arena, pool->scratch);
    pool->scratch = NULL;
    pool->scratch_bytes = 0;
}

/* ---- What can happen
 * ------------------------------------------------------------------------------ */

int dp_inter_node_all_done(const dp_link_message_t *messages, int count, int *failed)
{
    *failed = -1;
    for (int i = 0; i < count; i++) {
        if (messages[i].is_pending) return 0;
        if (messages[i].is_failed && *failed < 0) *failed = i;
    }
    return 1;
}

dp_status_t dp_inter_node_check_abort(const dp_cpu_group_t *group)
{
    return atomic_load_explicit(&group->engine->is_aborted, memory_order_acquire) ? DP_ERR_ABORTED
                                                                                  : DP_OK;
}

dp_status_t dp_inter_node_lost(dp_cpu_group_t *group, int peer)
{
    const uint64_t until_ns = dp_now_ns() + GRACE_NS;
    const dp_cpu_engine_t *engine = group->engine;
    const int rank = dp_link_rank(engine->link, peer);
    const char *why = "a message failed";

    /* Who left may only be a victim that heard of the cause earlier than we did: give that news a
     * moment to come. */
    while (dp_now_ns() < until_ns) {
        if (dp_inter_node_check_abort(group) != DP_OK) return DP_ERR_ABORTED;
        nanosleep(&(const struct timespec){0, 1000000}, NULL);
    }
    dp_link_is_lost(group->engine->link, peer, &why);
    return dp_cpu_fail(group, DP_ERR_PEER_LOST,
                       "%s %llu%s: rank %d lost the connection to rank %d on host %s: %s",
                       dp_collective_name(group->op->collective),
                       (unsigned long long)group->op->sequence, group->title, engine->rank, rank,
                       engine->topology->host_name[engine->topology->node[rank]], why);
}

void dp_inter_node_note_wait(dp_cpu_group_t *group, uint64_t begin_ns, int last)
{
    const uint64_t wait_ns = dp_now_ns() - begin_ns;

    group->op->wait_ns += wait_ns;
    group->op->last_rank = last;
    dp_trace_record(group->engine->lane, (dp_trace_record_t){.kind = DP_TRACE_WAIT_RANK,
                                                             .start_ns = begin_ns,
                                                             .duration_ns = wait_ns,
                                                             .bucket = group->op->sequence,
                                                             .aux = (uint32_t)last});
}

/* ---- Small things between first ranks
 * -------------------------------------------------------------- */

static dp_status_t start_swap(dp_cpu_group_t *group, unsigned kind, const void *data,
                              size_t host_bytes, size_t rank_bytes)
{
    const dp_topology_t *topology = group->topology;
    const size_t own_bytes = host_bytes + (size_t)group->local_size * rank_bytes;
    dp_inter_node_t *between = group->between;
    dp_link_t *link = group->engine->link;
    char *to = between->pool->swapped;
    size_t i = 0;

    for (int host = 0; host < group->node_count; host++) {
        const int first = topology->node_ranks[topology->node_begin[host]];
        const size_t bytes = host_bytes + (size_t)topology->node_size[host] * rank_bytes;
        const int peer = between->peer_of[host];

        if (host == group->host) continue;
        if (dp_link_receive(link, dp_inter_node_tag(group, first, kind, 0), to, bytes,
                            &between->received[i * DP_CHUNK_WINDOW]) != DP_OK ||
            dp_link_send(link, peer, dp_inter_node_tag(group, group->rank, kind, 0), data,
                         own_bytes, &between->answered[i]) != DP_OK) {
            return dp_inter_node_lost(group, peer);
        }
        group->op->wire_bytes += own_bytes;
        to += bytes;
        i++;
    }
    return DP_OK;
}

dp_status_t dp_inter_node_leader_allgather(dp_cpu_group_t *group, unsigned kind, const void *data,
                                           size_t host_bytes, size_t rank_bytes,
                                           const char **received)
{
    dp_inter_node_t *between = group->between;
    dp_inter_node_pool_t *pool = between->pool;
    dp_link_t *link = group->engine->link;
    const size_t all = (size_t)between->hosts * host_bytes +
                       (size_t)(group->size - group->local_size) * rank_bytes;
    uint64_t begin_ns = 0;
    int last = 0;
    size_t i = 0;
    dp_status_t status;

    if (all > pool->swapped_bytes) {
        char *grown = realloc(pool->swapped, all);

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        pool->swapped = grown;
        pool->swapped_bytes = all;
    }
    status = start_swap(group, kind, data, host_bytes, rank_bytes);
    for (int host = 0; status == DP_OK && host < group->node_count; host++) {
        const int peer = between->peer_of[host];
        const dp_link_message_t *in = &between->received[i * DP_CHUNK_WINDOW];
        const dp_link_message_t *out = &between->answered[i];

        if (host == group->host) continue;
        i++;
        while (in->is_pending || out->is_pending) {
            if (dp_inter_node_check_abort(group) != DP_OK) return DP_ERR_ABORTED;
            if (dp_link_is_lost(link, peer, NULL)) return dp_inter_node_lost(group, peer);
            if (in->is_pending) last = dp_link_rank(link, peer);
            if (begin_ns == 0) begin_ns = dp_now_ns();
            dp_link_idle_for(link, dp_link_rank(link, peer));
        }
        if (in->is_failed || out->is_failed) status = dp_inter_node_lost(group, peer);
    }
    if (status != DP_OK) return status;
    if (begin_ns != 0 && kind != DP_KIND_TALLY) dp_inter_node_note_wait(group, begin_ns, last);
    *received = pool->swapped;
    return DP_OK;
}

/* ---- The operations
 * ------------------------------------------------------------------------------- */

dp_status_t dp_cpu_run_inter_node(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_status_t status = dp_cpu_arrive(group, op, 0);

    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return dp_inter_node_reduce(group, op);
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_BARRIER:
        return dp_inter_node_move(group, op);
    default:
        break;
    }
    return dp_cpu_fail(group, DP_ERR_INVALID, "engine: collective %d is unknown",
                       (int)op->collective);
}
