/*
 * copy.c - an exchange inside a node: each receiver copies from its senders.
 *
 * A few bytes are copied to the sender's publication (eager). Other input is read where it lies: in
 * the sender's engine memory (shared), or in its address space (pulled). Where ranks may not read
 * each other's memory the sender puts a copy into its engine memory first. Between slices the
 * traffic between nodes is moved on, so it does not wait for the copying. Called by exchange.c, on
 * the thread that runs the operation.
 */
#include "runtime/engine/cpu/exchange/exchange.h"
#include "runtime/engine/cpu/intra_node/pull.h"

#include <string.h>

#define SLICE_BYTES DP_MIB              /* copied between two looks at the traffic between nodes */
#define COPY_KEEP ((size_t)32 * DP_MIB) /* kept from one exchange to the next */

/* ---- Showing -------------------------------------------------------------------------------- */

/* How much of its input local rank `local` shows to the others of its node. */
static size_t shown_bytes(const dp_exchange_run_t *run, int local)
{
    const dp_cpu_group_t *group = run->group;
    const int from = group->local_ranks[local];
    size_t elems = 0;

    for (int k = 0; k < group->local_size; k++) {
        const int to = group->local_ranks[k];
        const size_t count = k == local ? 0 : dp_exchange_count(run, from, to);

        if (count != 0) elems = dp_max(elems, dp_exchange_start(run, from, to) + count);
    }
    return elems * run->elem_bytes;
}

/* Copies the input to engine memory. The others have read what was there: an exchange that shows
 * such memory ends with a barrier. */
static dp_status_t copy_input(dp_exchange_run_t *run, size_t bytes)
{
    dp_arena_t *arena = run->group->engine->arena;

    if (bytes > run->pool->copy_bytes) {
        void *memory;

        if (dp_arena_alloc(arena, bytes, &memory) != DP_OK) {
            return dp_cpu_fail(run->group, DP_ERR_NO_MEMORY,
                               "%s %llu%s: no shared memory for a copy of %zu bytes",
                               dp_collective_name(run->op->collective),
                               (unsigned long long)run->op->sequence, run->group->title, bytes);
        }
        dp_arena_free(arena, run->pool->copy);
        run->pool->copy = memory;
        run->pool->copy_bytes = bytes;
    }
    memcpy(run->pool->copy, run->exchange->in, bytes);
    return DP_OK;
}

void dp_exchange_forget_copy(dp_exchange_run_t *run)
{
    if (run->pool->copy_bytes <= COPY_KEEP) return;
    dp_arena_free(run->group->engine->arena, run->pool->copy);
    run->pool->copy = NULL;
    run->pool->copy_bytes = 0;
}

dp_status_t dp_exchange_show(dp_exchange_run_t *run, dp_exchange_manifest_t *manifest)
{
    dp_cpu_group_t *group = run->group;
    const dp_arena_t *arena = group->engine->arena;
    const size_t bytes = shown_bytes(run, group->local_rank);
    dp_status_t status = DP_OK;

    manifest->method = DP_EXCHANGE_NONE;
    manifest->source = 0;
    if (bytes == 0) return DP_OK;
    if (bytes <= DP_EAGER_BYTES) {
        manifest->method = DP_EXCHANGE_EAGER;
        memcpy(dp_cpu_publication(group)->eager, run->exchange->in, bytes);
        return DP_OK;
    }
    manifest->method = DP_EXCHANGE_SHARED;
    manifest->source = dp_arena_offset(arena, run->exchange->in, bytes);
    if (manifest->source != UINT64_MAX) return DP_OK;
    if (group->engine->pids != NULL) {
        manifest->method = DP_EXCHANGE_PULLED;
        manifest->source = (uintptr_t)run->exchange->in;
        return DP_OK;
    }
    status = copy_input(run, bytes);
    if (status == DP_OK) manifest->source = dp_arena_offset(arena, run->pool->copy, bytes);
    return status;
}

/* ---- Copying -------------------------------------------------------------------------------- */

/* A block on its way from another local rank. */
typedef struct block {
    int local;
    const char *shared; /* NULL: at `address` in that rank's process */
    uint64_t address;
} block_t;

static dp_status_t copy_slice(dp_exchange_run_t *run, const block_t *block, size_t at, char *to,
                              size_t bytes)
{
    if (block->shared == NULL)
        return dp_pull_fetch(run->group, block->local, block->address + at, to + at, bytes);
    memcpy(to + at, block->shared + at, bytes);
    return DP_OK;
}

/* Copies in slices while there is traffic between nodes, and moves that on after each. */
static dp_status_t copy_block(dp_exchange_run_t *run, const block_t *block, char *to, size_t bytes)
{
    dp_status_t status = DP_OK;
    size_t at = 0;
    int busy;

    while (status == DP_OK && bytes - at > SLICE_BYTES && run->pool->flows.unfinished > 0) {
        status = copy_slice(run, block, at, to, SLICE_BYTES);
        at += SLICE_BYTES;
        if (status == DP_OK) status = dp_flows_pump(&run->pool->flows, &busy);
    }
    return status == DP_OK ? copy_slice(run, block, at, to, bytes - at) : status;
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

static dp_status_t copy_from(dp_exchange_run_t *run, int local)
{
    dp_cpu_group_t *group = run->group;
    const int rank = group->local_ranks[local];
    const dp_exchange_manifest_t *manifest = run->pool->manifests[rank];
    const size_t bytes = bytes_from(run, local);
    const size_t start = dp_exchange_start(run, rank, group->rank) * run->elem_bytes;
    block_t block = {.local = local, .address = manifest->source + start};

    if (bytes == 0) return DP_OK;
    if (manifest->method == DP_EXCHANGE_EAGER)
        block.address = dp_cpu_descriptor(group, local)->eager + start;
    if (manifest->method != DP_EXCHANGE_PULLED) {
        block.shared = dp_cpu_memory_at(group, local, block.address, bytes);
        if (block.shared == NULL) return dp_cpu_bad_offset(group, local);
    }
    return copy_block(run, &block, target_of(run, local), bytes);
}

/* Ranks copy from the one before them first, then from the one before that: at one moment each from
 * another one. */
dp_status_t dp_exchange_copy(dp_exchange_run_t *run, int *is_read)
{
    dp_cpu_group_t *group = run->group;
    dp_status_t status = DP_OK;

    *is_read = 0;
    copy_own(run);
    for (int k = 0; k < group->local_size; k++) {
        const uint32_t method = run->pool->manifests[group->local_ranks[k]]->method;

        *is_read |= method == DP_EXCHANGE_SHARED || method == DP_EXCHANGE_PULLED;
    }
    for (int i = 1; status == DP_OK && i < group->local_size; i++)
        status = copy_from(run, (group->local_rank + group->local_size - i) % group->local_size);
    return status;
}
