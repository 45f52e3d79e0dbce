/*
 * inter_node.c - what operations between nodes share: buffers, partners, tags, and what happens
 * when a partner is lost. Used by reduce.c, move.c, flow.c and exchange.c on the thread that runs
 * operations; cpu.c and group.c make and end it. It must not know what the bytes mean.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SCRATCH_KEEP ((size_t)32 * DP_MIB) /* kept from one operation to the next */

/* ---- Life ----------------------------------------------------------------------------------- */

static int smallest_node(const dp_topology_t *topology)
{
    int least = topology->node_size[0];

    for (int i = 1; i < topology->node_count; i++)
        least = dp_min(least, topology->node_size[i]);
    return least;
}

/* How many ranks of other nodes have this rank as their partner here, and so send to it. */
static int count_served(const dp_cpu_group_t *group)
{
    const dp_topology_t *topology = group->topology;
    int count = 0;

    for (int i = 0; i < group->size; i++) {
        count += topology->node[i] != group->node &&
                 topology->local_rank[i] % group->local_size == group->local_rank;
    }
    return count;
}

/* One mapping for all buffers. It costs address space only: the kernel makes a page when it is
 * first written. */
static dp_status_t make_buffers(dp_inter_node_pool_t *pool, size_t nodes)
{
    const size_t each = DP_CHUNK_HEAD + DP_CHUNK_BYTES;
    const size_t receive_buffers = 2 * nodes * DP_CHUNK_WINDOW;
    char *at;

    pool->receive_buffers = calloc(receive_buffers, sizeof(*pool->receive_buffers));
    if (pool->receive_buffers == NULL) return DP_ERR_NO_MEMORY;
    pool->buffers_bytes = (2 * DP_CHUNK_WINDOW + 1 + receive_buffers) * each;
    at = mmap(NULL, pool->buffers_bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return DP_ERR_NO_MEMORY;
    pool->buffers = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        pool->send[i] = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        pool->result[i] = at;
    for (size_t i = 0; i < receive_buffers; i++, at += each)
        pool->receive_buffers[i] = at;
    pool->own = at;
    return DP_OK;
}

/* topology: the world's, as no group has more nodes, or more ranks on this one. */
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
        return dp_error_set(error, status, "engine: no memory for buffers between nodes");
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
    free(pool->receive_buffers);
    free(pool->leader_blocks);
    free(pool->temps);
    free(pool->temps_memory);
    free(pool);
}

dp_status_t dp_inter_node_create(dp_cpu_group_t *group, dp_inter_node_t **out)
{
    dp_inter_node_t *inter_node = calloc(1, sizeof(*inter_node));
    const size_t nodes = (size_t)dp_max(group->node_count - 1, 1);
    size_t peers;

    if (inter_node == NULL) return DP_ERR_NO_MEMORY;
    inter_node->pool = group->lane->pool;
    inter_node->others = (int)nodes;
    inter_node->peers = dp_max(inter_node->others, count_served(group));
    inter_node->owners = smallest_node(group->topology);
    inter_node->partial = inter_node->pool->receive_buffers;
    inter_node->gather = inter_node->pool->receive_buffers + nodes * DP_CHUNK_WINDOW;
    peers = (size_t)inter_node->peers;
    inter_node->peer_of = calloc(nodes + 1, sizeof(*inter_node->peer_of));
    inter_node->sent = calloc(DP_CHUNK_WINDOW, sizeof(*inter_node->sent));
    inter_node->answered = calloc(nodes * DP_CHUNK_WINDOW, sizeof(*inter_node->answered));
    inter_node->received = calloc(peers * DP_CHUNK_WINDOW, sizeof(*inter_node->received));
    inter_node->gathered = calloc(nodes * DP_CHUNK_WINDOW, sizeof(*inter_node->gathered));
    inter_node->targets = calloc(peers, sizeof(*inter_node->targets));
    inter_node->sources = calloc(peers, sizeof(*inter_node->sources));
    inter_node->partials = calloc(nodes + 1, sizeof(*inter_node->partials));
    if (inter_node->peer_of == NULL || inter_node->sent == NULL || inter_node->answered == NULL ||
        inter_node->received == NULL || inter_node->gathered == NULL ||
        inter_node->targets == NULL || inter_node->sources == NULL ||
        inter_node->partials == NULL) {
        dp_inter_node_destroy(inter_node);
        return DP_ERR_NO_MEMORY;
    }
    *out = inter_node;
    return DP_OK;
}

int dp_inter_node_peer(const dp_cpu_group_t *group, int rank)
{
    return dp_ucx_link_find(group->lane->link, group->ranks[rank]);
}

int dp_inter_node_partner(const dp_cpu_group_t *group, int node)
{
    const dp_topology_t *topology = group->topology;

    return topology
        ->node_ranks[topology->node_begin[node] + group->local_rank % topology->node_size[node]];
}

void dp_inter_node_find_partners(dp_cpu_group_t *group)
{
    for (int node = 0; node < group->node_count; node++) {
        group->inter_node->peer_of[node] =
            node == group->node ? -1
                                : dp_inter_node_peer(group, dp_inter_node_partner(group, node));
    }
}

void dp_inter_node_destroy(dp_inter_node_t *inter_node)
{
    if (inter_node == NULL) return;
    free(inter_node->peer_of);
    free(inter_node->sent);
    free(inter_node->answered);
    free(inter_node->received);
    free(inter_node->gathered);
    free(inter_node->targets);
    free(inter_node->sources);
    free(inter_node->partials);
    free(inter_node);
}

/* ---- What operations use -------------------------------------------------------------------- */

/*
 * A tag need not be unique for ever. A group's number and the low bits of an operation's number are
 * used again, but two messages of one tag between two ranks cannot be mistaken: each is sent and
 * received by one operation, both ranks run their operations in the same order, and UCX matches
 * messages of one tag in the order in which they were sent.
 */
uint64_t dp_inter_node_tag(const dp_cpu_group_t *group, int from, unsigned kind, size_t chunk)
{
    const dp_ucx_link_tag_t tag = {.from_rank = group->ranks[from],
                                   .group = group->group_index,
                                   .op = group->op_index,
                                   .kind = kind + (group->is_pair ? DP_KIND_PAIR : 0u),
                                   .chunk = chunk};

    return dp_ucx_link_tag(&tag);
}

dp_status_t dp_inter_node_scratch(dp_cpu_group_t *group, size_t bytes, char **scratch)
{
    dp_inter_node_pool_t *pool = group->inter_node->pool;
    dp_arena_t *arena = group->engine->arena;
    dp_status_t status;

    if (bytes > pool->scratch_bytes) {
        /* No rank reads the old one any more: the operation that used it ended with a barrier. */
        dp_arena_free(arena, pool->scratch);
        pool->scratch = NULL;
        pool->scratch_bytes = 0;
        status = dp_arena_alloc(arena, bytes, &pool->scratch);
        if (status != DP_OK) {
            return dp_cpu_fail(group, status,
                               "%s %llu%s: no shared memory for %zu bytes from other nodes",
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
    dp_inter_node_pool_t *pool = group->inter_node->pool;

    if (pool->scratch_bytes <= SCRATCH_KEEP) return;
    dp_arena_free(group->engine->arena, pool->scratch);
    pool->scratch = NULL;
    pool->scratch_bytes = 0;
}

/* ---- Completion and failure ----------------------------------------------------------------- */

int dp_inter_node_all_done(const dp_ucx_link_message_t *messages, int count, int *failed)
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
    const dp_cpu_engine_t *engine = group->engine;
    const int rank = dp_ucx_link_rank(group->lane->link, peer);
    const char *why = "a message failed";

    if (dp_cpu_await_cause(group) != DP_OK) return DP_ERR_ABORTED;
    dp_ucx_link_is_lost(group->lane->link, peer, &why);
    return dp_cpu_fail(group, DP_ERR_PEER_LOST,
                       "%s %llu%s: rank %d lost the connection to rank %d (%s): %s",
                       dp_collective_name(group->op->collective),
                       (unsigned long long)group->op->sequence, group->title, engine->rank, rank,
                       engine->topology->host_name[engine->topology->node[rank]], why);
}

void dp_inter_node_begin_wait(dp_cpu_group_t *group, uint64_t *begin_ns)
{
    if (*begin_ns != 0) return;
    *begin_ns = dp_now_ns();
    dp_activity_wait_begin(&group->lane->activity, *begin_ns);
}

void dp_inter_node_note_wait(dp_cpu_group_t *group, uint64_t begin_ns, int last)
{
    dp_control_descriptor_t *own = dp_cpu_descriptor(group, group->local_rank);
    const uint64_t now_ns = dp_now_ns();

    dp_cpu_note_wait(group, begin_ns, now_ns, last);
    /* for ranks of the node that wait for this one at the next barrier */
    own->heard_ns = now_ns;
    own->heard_from = last;
}

/* ---- Between the nodes' first ranks --------------------------------------------------------- */

/* Posts all receives and starts all sends; leader_blocks takes the nodes' blocks in their order. */
static dp_status_t start_leader_allgather(dp_cpu_group_t *group, unsigned kind, const void *data,
                                          size_t node_bytes, size_t rank_bytes)
{
    const dp_topology_t *topology = group->topology;
    const size_t own_bytes = node_bytes + (size_t)group->local_size * rank_bytes;
    dp_inter_node_t *inter_node = group->inter_node;
    dp_ucx_link_t *link = group->lane->link;
    char *to = inter_node->pool->leader_blocks;
    size_t i = 0;

    for (int node = 0; node < group->node_count; node++) {
        const int first = dp_topology_leader(topology, node);
        const size_t bytes = node_bytes + (size_t)topology->node_size[node] * rank_bytes;
        const int peer = inter_node->peer_of[node];

        if (node == group->node) continue;
        if (dp_ucx_link_receive(link, dp_inter_node_tag(group, first, kind, 0), to, bytes,
                                &inter_node->received[i * DP_CHUNK_WINDOW]) != DP_OK ||
            dp_ucx_link_send(link, peer, dp_inter_node_tag(group, group->rank, kind, 0), data,
                             own_bytes, &inter_node->answered[i]) != DP_OK) {
            return dp_inter_node_lost(group, peer);
        }
        group->op->wire_bytes += own_bytes;
        to += bytes;
        i++;
    }
    return DP_OK;
}

dp_status_t dp_inter_node_leader_allgather(dp_cpu_group_t *group, unsigned kind, const void *data,
                                           size_t node_bytes, size_t rank_bytes,
                                           const char **received)
{
    dp_inter_node_t *inter_node = group->inter_node;
    dp_inter_node_pool_t *pool = inter_node->pool;
    dp_ucx_link_t *link = group->lane->link;
    const size_t all = (size_t)inter_node->others * node_bytes +
                       (size_t)(group->size - group->local_size) * rank_bytes;
    uint64_t begin_ns = 0;
    int last = 0;
    size_t i = 0;
    dp_status_t status;

    if (all > pool->leader_blocks_bytes) {
        char *grown = realloc(pool->leader_blocks, all);

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        pool->leader_blocks = grown;
        pool->leader_blocks_bytes = all;
    }
    status = start_leader_allgather(group, kind, data, node_bytes, rank_bytes);
    for (int node = 0; status == DP_OK && node < group->node_count; node++) {
        const int peer = inter_node->peer_of[node];
        const dp_ucx_link_message_t *in = &inter_node->received[i * DP_CHUNK_WINDOW];
        const dp_ucx_link_message_t *out = &inter_node->answered[i];

        if (node == group->node) continue;
        i++;
        while (in->is_pending || out->is_pending) {
            if (dp_inter_node_check_abort(group) != DP_OK) return DP_ERR_ABORTED;
            if (dp_ucx_link_is_lost(link, peer, NULL)) return dp_inter_node_lost(group, peer);
            if (in->is_pending) last = dp_ucx_link_rank(link, peer);
            if (kind != DP_KIND_TALLY) dp_inter_node_begin_wait(group, &begin_ns);
            dp_ucx_link_idle_for(link, dp_ucx_link_rank(link, peer));
        }
        /* A message that completed is valid even if its sender has left since. */
        if (in->is_failed || out->is_failed) status = dp_inter_node_lost(group, peer);
    }
    if (status != DP_OK) return status;
    if (begin_ns != 0) dp_inter_node_note_wait(group, begin_ns, last);
    *received = pool->leader_blocks;
    return DP_OK;
}
