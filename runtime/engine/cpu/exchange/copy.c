/*
 * copy.c - an exchange inside a node: each receiver copies from its senders.
 *
 * A sender chooses one of four methods. Input in engine memory is read where it lies (direct). A
 * few bytes are copied to its publication (eager). Other memory is read out of the sender's address
 * space (pulled), so each byte is copied once. Where some rank of the node may not do that, it
 * passes through a staging area of two halves (staged): while the receivers copy one, the sender
 * fills the other. Between slices the traffic between nodes is moved on, so it does not wait for
 * the copying. Called by exchange.c, on the thread that runs the operation.
 */
#include "runtime/engine/cpu/direct/direct.h"
#include "runtime/engine/cpu/exchange/exchange.h"

#include <string.h>

#define SLICE_BYTES DP_MIB /* copied between two looks at the traffic between nodes */

/* ---- Streams -------------------------------------------------------------------------------- */

/* The i-th receiver in the stream of local rank `from`, as a rank of the group. */
static int receiver_of(const dp_exchange_run_t *run, int from, int i)
{
    return run->group->local_ranks[(from + 1 + i) % run->group->local_size];
}

/* Receivers in a stream: a block for everybody is in it once. */
static int receivers(const dp_exchange_run_t *run)
{
    const int others = run->group->local_size - 1;

    return dp_exchange_is_shared(run) ? dp_min(others, 1) : others;
}

static size_t stream_bytes(const dp_exchange_run_t *run, int from)
{
    const int rank = run->group->local_ranks[from];
    size_t elems = 0;

    for (int i = 0; i < receivers(run); i++)
        elems += dp_exchange_count(run, rank, receiver_of(run, from, i));
    return elems * run->elem_bytes;
}

/* Where this rank's block begins in the stream of another. */
static size_t stream_place(const dp_exchange_run_t *run, int from)
{
    const int rank = run->group->local_ranks[from];
    size_t elems = 0;

    for (int i = 0; i < receivers(run) && receiver_of(run, from, i) != run->group->rank; i++)
        elems += dp_exchange_count(run, rank, receiver_of(run, from, i));
    return dp_exchange_is_shared(run) ? 0 : elems * run->elem_bytes;
}

/* Copies bytes begin .. end - 1 of the own stream. */
static void fill(const dp_exchange_run_t *run, size_t begin, size_t end, char *to)
{
    const dp_cpu_group_t *group = run->group;
    const char *in = run->exchange->in;
    size_t before = 0;

    for (int i = 0; i < receivers(run) && before < end; i++) {
        const int rank = receiver_of(run, group->local_rank, i);
        const size_t bytes = dp_exchange_count(run, group->rank, rank) * run->elem_bytes;
        const size_t first = dp_max(begin, before);
        const size_t last = dp_min(end, before + bytes);

        if (first < last) {
            const size_t start = dp_exchange_start(run, group->rank, rank) * run->elem_bytes;

            memcpy(to + (first - begin), in + start + (first - before), last - first);
        }
        before += bytes;
    }
}

/* ---- Showing -------------------------------------------------------------------------------- */

static dp_status_t make_stage(dp_exchange_run_t *run)
{
    void *memory;
    dp_status_t status;

    if (run->pool->staging != NULL) return DP_OK;
    status = dp_arena_alloc(run->group->engine->arena, 2 * DP_STAGING_BYTES, &memory);
    if (status != DP_OK) {
        return dp_cpu_fail(run->group, status, "%s %llu%s: no shared memory for a staging area",
                           dp_collective_name(run->op->collective),
                           (unsigned long long)run->op->sequence, run->group->title);
    }
    run->pool->staging = memory;
    return DP_OK;
}

/* A rank that has not said yet whether it can read the others' memory gets a staged stream. */
static int can_be_pulled(const dp_cpu_group_t *group)
{
    const dp_cpu_engine_t *engine = group->engine;

    for (int k = 0; k < group->local_size; k++) {
        if (!dp_direct_can_read(engine->direct, group->locals[k])) return 0;
    }
    return 1;
}

dp_status_t dp_exchange_show(dp_exchange_run_t *run, dp_exchange_manifest_t *manifest)
{
    dp_cpu_group_t *group = run->group;
    const dp_arena_t *arena = group->engine->arena;
    const size_t bytes = stream_bytes(run, group->local_rank);
    dp_status_t status;

    manifest->method = DP_EXCHANGE_NONE;
    manifest->source = 0;
    if (bytes == 0) return DP_OK;
    if (bytes <= DP_EAGER_BYTES) {
        manifest->method = DP_EXCHANGE_EAGER;
        fill(run, 0, bytes, dp_cpu_publication(group)->eager);
        return DP_OK;
    }
    manifest->source = dp_arena_offset(arena, run->exchange->in, bytes);
    if (manifest->source != UINT64_MAX) {
        manifest->method = DP_EXCHANGE_DIRECT;
        return DP_OK;
    }
    if (can_be_pulled(group)) {
        manifest->method = DP_EXCHANGE_PULLED;
        manifest->source = (uintptr_t)run->exchange->in;
        return DP_OK;
    }
    status = make_stage(run);
    if (status != DP_OK) return status;
    manifest->method = DP_EXCHANGE_STAGED;
    manifest->source = dp_arena_offset(arena, run->pool->staging, 0);
    fill(run, 0, dp_min(bytes, DP_STAGING_BYTES), run->pool->staging);
    return DP_OK;
}

/* ---- Copying -------------------------------------------------------------------------------- */

/* Copies in slices, and moves the traffic between nodes on after each. */
static dp_status_t copy(dp_exchange_run_t *run, char *to, const char *from, size_t bytes)
{
    dp_status_t status = DP_OK;
    int busy;

    while (status == DP_OK && bytes > SLICE_BYTES && run->pool->flows.unfinished > 0) {
        memcpy(to, from, SLICE_BYTES);
        to += SLICE_BYTES;
        from += SLICE_BYTES;
        bytes -= SLICE_BYTES;
        status = dp_flows_pump(&run->pool->flows, &busy);
    }
    memcpy(to, from, bytes);
    return status;
}

/* The same out of the address space of a local rank of the group. */
static dp_status_t pull(dp_exchange_run_t *run, int local, char *to, uint64_t from, size_t bytes)
{
    dp_status_t status = DP_OK;
    int busy;

    while (status == DP_OK && bytes > SLICE_BYTES && run->pool->flows.unfinished > 0) {
        status = dp_pull_fetch(run->group, local, from, SLICE_BYTES, to);
        to += SLICE_BYTES;
        from += SLICE_BYTES;
        bytes -= SLICE_BYTES;
        if (status == DP_OK) status = dp_flows_pump(&run->pool->flows, &busy);
    }
    return status == DP_OK ? dp_pull_fetch(run->group, local, from, bytes, to) : status;
}

static size_t bytes_from(const dp_exchange_run_t *run, int local)
{
    const int rank = run->group->local_ranks[local];

    return run->exchange->drops ? 0
                                : dp_exchange_count(run, rank, run->group->rank) * run->elem_bytes;
}

static char *target_of(const dp_exchange_run_t *run, int local)
{
    const int rank = run->group->local_ranks[local];

    return (char *)run->exchange->out + run->pool->places[rank] * run->elem_bytes;
}

/* Its own block: it may lie there already. */
static void copy_own(dp_exchange_run_t *run)
{
    const dp_cpu_group_t *group = run->group;
    const size_t bytes = bytes_from(run, group->local_rank);
    const size_t start = dp_exchange_start(run, group->rank, group->rank) * run->elem_bytes;

    if (bytes == 0) return;
    memmove(target_of(run, group->local_rank), (const char *)run->exchange->in + start, bytes);
}

/* Copies a block that its sender has published as a whole: not staged. */
static dp_status_t copy_whole(dp_exchange_run_t *run, int local)
{
    dp_cpu_group_t *group = run->group;
    const int rank = group->local_ranks[local];
    const dp_exchange_manifest_t *manifest = run->pool->manifests[rank];
    const size_t bytes = bytes_from(run, local);
    const size_t start = dp_exchange_start(run, rank, group->rank) * run->elem_bytes;
    const char *from;

    if (bytes == 0) return DP_OK;
    if (manifest->method == DP_EXCHANGE_PULLED)
        return pull(run, local, target_of(run, local), manifest->source + start, bytes);
    if (manifest->method == DP_EXCHANGE_EAGER) {
        from = dp_cpu_memory_at(
            group, local, dp_cpu_descriptor(group, local)->eager + stream_place(run, local), bytes);
    } else {
        from = dp_cpu_memory_at(group, local, manifest->source + start, bytes);
    }
    if (from == NULL) return dp_cpu_bad_offset(group, local);
    return copy(run, target_of(run, local), from, bytes);
}

/* This rank's part of what another one staged in a round. */
static dp_status_t copy_staged(dp_exchange_run_t *run, int local, size_t round)
{
    dp_cpu_group_t *group = run->group;
    const dp_exchange_manifest_t *manifest = run->pool->manifests[group->local_ranks[local]];
    const size_t place = stream_place(run, local);
    const size_t end = place + bytes_from(run, local);
    const size_t begin = round * DP_STAGING_BYTES; /* of the round, in the stream */
    const size_t first = dp_max(begin, place);
    const size_t last = dp_min(begin + DP_STAGING_BYTES, end);
    const char *from;

    if (first >= last) return DP_OK;
    from = dp_cpu_memory_at(group, local,
                            manifest->source + round % 2 * DP_STAGING_BYTES + (first - begin),
                            last - first);
    if (from == NULL) return dp_cpu_bad_offset(group, local);
    return copy(run, target_of(run, local) + (first - place), from, last - first);
}

static size_t count_rounds(const dp_exchange_run_t *run, int local)
{
    const dp_exchange_manifest_t *manifest = run->pool->manifests[run->group->local_ranks[local]];

    if (manifest->method != DP_EXCHANGE_STAGED) return 0;
    return (stream_bytes(run, local) + DP_STAGING_BYTES - 1) / DP_STAGING_BYTES;
}

/* The first half of every staging area was filled before the arrival. In each round this rank fills
 * the other half of its own, for the next round, and copies its parts of the others' half of this
 * one. The barrier behind a round keeps a half from being filled while another rank copies it.
 * Ranks copy from the one before them first, then from the one before that: at one moment each from
 * another one. */
static dp_status_t copy_rounds(dp_exchange_run_t *run, size_t rounds)
{
    dp_cpu_group_t *group = run->group;
    const size_t own = count_rounds(run, group->local_rank);
    const size_t own_bytes = stream_bytes(run, group->local_rank);
    dp_status_t status = DP_OK;
    int busy;

    for (size_t round = 0; status == DP_OK && round < rounds; round++) {
        const size_t begin = (round + 1) * DP_STAGING_BYTES;

        if (round + 1 < own) {
            fill(run, begin, dp_min(begin + DP_STAGING_BYTES, own_bytes),
                 run->pool->staging + (round + 1) % 2 * DP_STAGING_BYTES);
        }
        for (int i = 1; status == DP_OK && i < group->local_size; i++) {
            const int local = (group->local_rank + group->local_size - i) % group->local_size;

            if (round < count_rounds(run, local)) status = copy_staged(run, local, round);
        }
        if (status == DP_OK) status = dp_flows_pump(&run->pool->flows, &busy);
        if (status == DP_OK) status = dp_cpu_node_barrier(group);
    }
    return status;
}

dp_status_t dp_exchange_copy(dp_exchange_run_t *run, int *is_read)
{
    dp_cpu_group_t *group = run->group;
    size_t rounds = 0;
    int is_read_there = 0;
    dp_status_t status = DP_OK;

    copy_own(run);
    for (int k = 0; k < group->local_size; k++) {
        const dp_exchange_manifest_t *manifest = run->pool->manifests[group->local_ranks[k]];

        rounds = dp_max(rounds, count_rounds(run, k));
        if (manifest->method == DP_EXCHANGE_DIRECT || manifest->method == DP_EXCHANGE_PULLED)
            is_read_there = 1;
    }
    for (int i = 1; status == DP_OK && i < group->local_size; i++) {
        const int local = (group->local_rank + group->local_size - i) % group->local_size;

        if (run->pool->manifests[group->local_ranks[local]]->method == DP_EXCHANGE_STAGED) continue;
        status = copy_whole(run, local);
    }
    if (status == DP_OK) status = copy_rounds(run, rounds);
    *is_read = is_read_there && rounds == 0;
    return status;
}
