/*
 * host_between.c - what operations between hosts work with: buffers, partners, and their failures.
 */
#include "runtime/engine/host_between.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRACE_NS 250000000u /* before a lost connection is taken for the cause */

/* ---- Life ---------------------------------------------------------------------------------------
 */

static int smallest_host(const dp_topology_t *topology)
{
    int least = topology->host_size[0];

    for (int i = 1; i < topology->host_count; i++)
        least = DP_MIN(least, topology->host_size[i]);
    return least;
}

/* Ranks elsewhere whose partner this rank is: each sends what is meant for this host here. */
static int count_served(const dp_host_engine_t *engine)
{
    const dp_topology_t *topology = engine->topology;
    int count = 0;

    for (int i = 0; i < engine->size; i++) {
        count += topology->host[i] != engine->host &&
                 topology->local_rank[i] % engine->local_size == engine->local_rank;
    }
    return count;
}

/* One sparse mapping for all buffers: pages are made by use. */
static dp_status_t make_buffers(dp_between_t *between)
{
    const size_t each = DP_CHUNK_HEAD + DP_CHUNK_BYTES;
    const size_t slots = (size_t)between->hosts * DP_CHUNK_WINDOW;
    const size_t count = 2 * DP_CHUNK_WINDOW + 1 + 2 * slots;
    char *at;

    between->buffers_bytes = count * each;
    at = mmap(NULL, between->buffers_bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return DP_ERR_NO_MEMORY;
    between->buffers = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        between->send[i] = at;
    for (int i = 0; i < DP_CHUNK_WINDOW; i++, at += each)
        between->result[i] = at;
    for (size_t i = 0; i < slots; i++, at += each)
        between->partial[i] = at;
    for (size_t i = 0; i < slots; i++, at += each)
        between->gather[i] = at;
    between->own = at;
    return DP_OK;
}

static dp_status_t make_arrays(const dp_host_engine_t *engine, dp_between_t *between)
{
    const size_t hosts = (size_t)DP_MAX(between->hosts, 1);
    const size_t peers = (size_t)DP_MAX(between->peers, 1);
    const size_t width = (size_t)DP_MAX(engine->local_size, engine->host_count);

    between->peer_of = calloc((size_t)engine->host_count, sizeof(*between->peer_of));
    between->partial = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->partial));
    between->gather = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->gather));
    between->sent = calloc(DP_CHUNK_WINDOW, sizeof(*between->sent));
    between->answered = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->answered));
    between->received = calloc(peers * DP_CHUNK_WINDOW, sizeof(*between->received));
    between->gathered = calloc(hosts * DP_CHUNK_WINDOW, sizeof(*between->gathered));
    between->targets = calloc(peers, sizeof(*between->targets));
    between->sources = calloc(peers, sizeof(*between->sources));
    between->partials = calloc(hosts + 1, sizeof(*between->partials));
    between->temps = calloc(width, sizeof(*between->temps));
    between->temps_memory = calloc(width * DP_TALLY_BLOCK, sizeof(*between->temps_memory));
    if (between->peer_of == NULL || between->partial == NULL || between->gather == NULL ||
        between->sent == NULL || between->answered == NULL || between->received == NULL ||
        between->gathered == NULL || between->targets == NULL || between->sources == NULL ||
        between->partials == NULL || between->temps == NULL || between->temps_memory == NULL) {
        return DP_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < width; i++) {
        between->temps[i] = between->temps_memory + i * DP_TALLY_BLOCK;
    }
    return DP_OK;
}

dp_status_t dp_between_create(dp_host_engine_t *engine, dp_between_t **out, dp_error_t *error)
{
    dp_between_t *between = calloc(1, sizeof(*between));
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (between != NULL) {
        between->hosts = engine->host_count - 1;
        between->peers = DP_MAX(between->hosts, count_served(engine));
        between->owners = smallest_host(engine->topology);
        status = make_arrays(engine, between);
    }
    if (status == DP_OK) status = make_buffers(between);
    if (status != DP_OK) {
        dp_between_destroy(between);
        return dp_error_set(error, status, "engine: no memory for buffers between hosts");
    }
    *out = between;
    return DP_OK;
}

void dp_between_find_partners(dp_host_engine_t *engine)
{
    const dp_topology_t *topology = engine->topology;

    for (int host = 0; host < engine->host_count; host++) {
        const int local = engine->local_rank % topology->host_size[host];

        engine->between->peer_of[host] =
            host == engine->host
                ? -1
                : dp_link_find(engine->link,
                               topology->host_ranks[topology->host_begin[host] + local]);
    }
}

void dp_between_destroy(dp_between_t *between)
{
    if (between == NULL) return;
    if (between->buffers != NULL) munmap(between->buffers, between->buffers_bytes);
    free(between->peer_of);
    free(between->partial);
    free(between->gather);
    free(between->sent);
    free(between->answered);
    free(between->received);
    free(between->gathered);
    free(between->targets);
    free(between->sources);
    free(between->partials);
    free(between->swapped);
    free(between->temps);
    free(between->temps_memory);
    free(between);
}

/* ---- What can happen
 * ------------------------------------------------------------------------------ */

int dp_between_are_at_rest(const dp_link_message_t *messages, int count, int *failed)
{
    *failed = -1;
    for (int i = 0; i < count; i++) {
        if (messages[i].is_pending) return 0;
        if (messages[i].is_failed && *failed < 0) *failed = i;
    }
    return 1;
}

dp_status_t dp_between_check(const dp_host_engine_t *engine)
{
    return atomic_load_explicit(&engine->is_aborted, memory_order_acquire) ? DP_ERR_ABORTED : DP_OK;
}

dp_status_t dp_between_lost(dp_host_engine_t *engine, int peer)
{
    const uint64_t until_ns = dp_now_ns() + GRACE_NS;
    const int rank = dp_link_rank(engine->link, peer);
    const char *why = "a message failed";

    /* Who left may only be a victim that heard of the cause earlier than we did: give that news a
     * moment to come. */
    while (dp_now_ns() < until_ns) {
        if (dp_between_check(engine) != DP_OK) return DP_ERR_ABORTED;
        nanosleep(&(const struct timespec){0, 1000000}, NULL);
    }
    dp_link_is_lost(engine->link, peer, &why);
    return dp_host_fail(
        engine, DP_ERR_PEER_LOST, "%s %llu: rank %d lost the connection to rank %d on host %s: %s",
        dp_collective_name(engine->op->collective), (unsigned long long)engine->op->sequence,
        engine->rank, rank, engine->topology->host_name[engine->topology->host[rank]], why);
}

void dp_between_note_wait(dp_host_engine_t *engine, uint64_t begin_ns, int last)
{
    const uint64_t wait_ns = dp_now_ns() - begin_ns;

    engine->op->wait_ns += wait_ns;
    engine->op->last_rank = last;
    dp_trace_record(engine->lane, (dp_trace_record_t){.kind = DP_TRACE_WAIT_RANK,
                                                      .start_ns = begin_ns,
                                                      .duration_ns = wait_ns,
                                                      .bucket = engine->op->sequence,
                                                      .aux = (uint32_t)last});
}

/* ---- The operations
 * ------------------------------------------------------------------------------- */

dp_status_t dp_host_between_run(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const dp_status_t status = dp_host_arrive(engine, op, 0);

    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return dp_between_reduce(engine, op);
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_BARRIER:
        return dp_between_move(engine, op);
    default:
        break;
    }
    return dp_host_fail(engine, DP_ERR_INVALID, "engine: collective %d is unknown",
                        (int)op->collective);
}
