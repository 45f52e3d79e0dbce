/*
 * pull.c - an allreduce inside a node of memory that its ranks do not share: each reads what it
 * needs out of the others' address spaces (process_vm_readv(), cross-memory attach in other
 * libraries). Called after the arrival, on the thread that runs operations.
 *
 * It is used only where every rank may read every other's memory, which they try at the start. Each
 * rank reduces its shard into its own output; it reads the others' parts of the shard chunk by
 * chunk into a buffer that stays in its cache. After a barrier it reads the other shards' results
 * out of their owners' outputs. No rank writes to another's memory: if an operation ends early, the
 * worst that is left is a read of memory that the program uses for something else by now, and that
 * reader fails anyway. From a few dozen pages on this is cheaper than packing, reducing and
 * unpacking through shared memory.
 */
#include "runtime/engine/cpu/cpu_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define CHUNK_BYTES ((size_t)256 * DP_KIB) /* read before it is reduced; of all others together */
#define CHUNK_LEAST ((size_t)64 * DP_KIB)  /* of one of them */
#define READ_BYTES ((size_t)4 * DP_MIB)    /* between two looks whether to stop */

struct dp_pull {
    pid_t *pids; /* [count] of the node's ranks */
    int count;
    size_t chunk_bytes;
    char *chunks; /* [count] of chunk_bytes; this rank's is not used */
};

/* ---- Whether it is permitted ---------------------------------------------------------------- */

/* 1: all of it was read. */
static int read_from(pid_t pid, uint64_t address, void *to, size_t bytes)
{
    while (bytes > 0) {
        struct iovec local = {to, bytes};
        struct iovec remote = {(void *)(uintptr_t)address, bytes};
        const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);

        if (got <= 0) {
            if (got == 0) errno = EFAULT;
            return 0;
        }
        to = (char *)to + got;
        address += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return 1;
}

int dp_pull_try(const dp_pull_probe_t *probe)
{
    uint64_t seen = 0;

    return probe->pid > 0 && read_from(probe->pid, probe->address, &seen, sizeof(seen)) &&
           seen == probe->value;
}

int dp_pull_read(const dp_pull_t *pull, int local, uint64_t address, void *to, size_t bytes)
{
    return read_from(pull->pids[local], address, to, bytes);
}

dp_status_t dp_pull_create(int count, dp_pull_t **out)
{
    const size_t others = (size_t)dp_max(count - 1, 1);
    dp_pull_t *pull = calloc(1, sizeof(*pull));

    if (pull == NULL) return DP_ERR_NO_MEMORY;
    pull->count = count;
    pull->chunk_bytes = dp_max(CHUNK_BYTES / others / CHUNK_LEAST * CHUNK_LEAST, CHUNK_LEAST);
    pull->pids = calloc((size_t)count, sizeof(*pull->pids));
    pull->chunks = aligned_alloc(4096, (size_t)count * pull->chunk_bytes);
    if (pull->pids == NULL || pull->chunks == NULL) {
        dp_pull_destroy(pull);
        return DP_ERR_NO_MEMORY;
    }
    *out = pull;
    return DP_OK;
}

void dp_pull_know(dp_pull_t *pull, int local, const dp_pull_probe_t *probe)
{
    pull->pids[local] = probe->pid;
}

dp_status_t dp_pull_copy(const dp_pull_t *pull, dp_pull_t **out)
{
    const dp_status_t status = dp_pull_create(pull->count, out);

    if (status == DP_OK)
        memcpy((*out)->pids, pull->pids, (size_t)pull->count * sizeof(*pull->pids));
    return status;
}

void dp_pull_destroy(dp_pull_t *pull)
{
    if (pull == NULL) return;
    free(pull->pids);
    free(pull->chunks);
    free(pull);
}

/* ---- Reading -------------------------------------------------------------------------------- */

static int is_engine_aborted(const dp_cpu_group_t *group)
{
    return atomic_load_explicit(&group->engine->is_aborted, memory_order_acquire);
}

static dp_status_t fail_to_read(dp_cpu_group_t *group, int local, int code)
{
    if (dp_cpu_await_cause(group) != DP_OK) return DP_ERR_ABORTED;
    return dp_cpu_fail(group, code == ESRCH ? DP_ERR_PEER_LOST : DP_ERR_SYSTEM,
                       "%s %llu%s: rank %d cannot read the memory of rank %d: %s",
                       dp_collective_name(group->op->collective),
                       (unsigned long long)group->op->sequence, group->title, group->engine->rank,
                       dp_cpu_world_rank(group, local), strerror(code));
}

dp_status_t dp_pull_fetch(dp_cpu_group_t *group, int local, uint64_t where, size_t bytes, void *to)
{
    const dp_pull_t *pull = group->engine->lanes[DP_LANE_MAIN].pull;

    for (size_t done = 0; done < bytes; done += READ_BYTES) {
        const size_t part = dp_min(bytes - done, READ_BYTES);

        if (is_engine_aborted(group)) return DP_ERR_ABORTED;
        if (!read_from(pull->pids[group->locals[local]], where + done, (char *)to + done, part)) {
            return fail_to_read(group, local, errno);
        }
    }
    return DP_OK;
}

/* Copies a stretch of what another rank published, wherever it lies. */
static dp_status_t fetch(dp_cpu_group_t *group, int local, uint64_t where, size_t bytes, void *to)
{
    const void *shared;

    if (!dp_cpu_descriptor(group, local)->has_private_memory) {
        shared = dp_cpu_memory_at(group, local, where, bytes);
        if (shared == NULL) return dp_cpu_bad_offset(group, local);
        memcpy(to, shared, bytes);
        return DP_OK;
    }
    return dp_pull_fetch(group, local, where, bytes, to);
}

/* ---- Reducing ------------------------------------------------------------------------------- */

/* Points group->ins[local] at the input of a segment: in place where it is shared, else fetched. */
static dp_status_t find_input(dp_cpu_group_t *group, int local, dp_segment_t segment,
                              size_t elem_bytes)
{
    const dp_engine_piece_t *own = &group->op->pieces[segment.piece];
    const size_t at = segment.start * elem_bytes;
    const size_t bytes = segment.count * elem_bytes;
    const dp_control_piece_t *piece;
    char *chunk;

    if (local == group->local_rank) {
        group->ins[local] = (const char *)own->in + at;
        return DP_OK;
    }
    piece = dp_cpu_published_piece(group, local, segment.piece);
    if (piece == NULL) return dp_cpu_bad_offset(group, local);
    if (!dp_cpu_descriptor(group, local)->has_private_memory) {
        group->ins[local] = dp_cpu_memory_at(group, local, piece->in + at, bytes);
        return group->ins[local] != NULL ? DP_OK : dp_cpu_bad_offset(group, local);
    }
    chunk =
        group->lane->pull->chunks + (size_t)group->locals[local] * group->lane->pull->chunk_bytes;
    group->ins[local] = chunk;
    return fetch(group, local, piece->in + at, bytes, chunk);
}

static dp_status_t reduce_segment(dp_cpu_group_t *group, dp_segment_t segment, int wanted)
{
    const dp_engine_op_t *op = group->op;
    const dp_engine_piece_t *piece = &op->pieces[segment.piece];
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    void *out = (char *)piece->out + segment.start * elem_bytes;
    const dp_reduce_args_t args = {
        .dtype = op->dtype,
        .reduce = op->reduce,
        .in = group->ins,
        .in_count = group->local_size,
        .out = &out,
        .out_count = 1,
        .count = segment.count,
        .prescale = piece->prescale,
        .postscale = piece->postscale,
        .divisor = dp_cpu_divisor(group, op),
        .tally = dp_cpu_tally(group, segment.piece, wanted),
    };

    for (int k = 0; k < group->local_size; k++) {
        const dp_status_t status = find_input(group, k, segment, elem_bytes);

        if (status != DP_OK) return status;
    }
    dp_kernel_reduce(&args);
    return DP_OK;
}

static dp_status_t reduce_shard(dp_cpu_group_t *group, dp_range_t shard, int wanted)
{
    const size_t block_bytes = DP_TALLY_BLOCK * dp_dtype_bytes(group->op->dtype);
    const size_t blocks = dp_max(group->lane->pull->chunk_bytes / block_bytes, (size_t)1);
    dp_status_t status = DP_OK;

    for (size_t i = 0; status == DP_OK && i < dp_range_chunks(shard, blocks); i++) {
        dp_range_t left = dp_range_chunk(shard, i, blocks);
        dp_segment_t segment;

        while (status == DP_OK && dp_layout_next(&group->layout, &left, &segment)) {
            status = reduce_segment(group, segment, wanted);
        }
    }
    return status;
}

/* Reads the result of another rank's shard into this rank's output. */
static dp_status_t fetch_shard(dp_cpu_group_t *group, int local, dp_range_t shard)
{
    const size_t elem_bytes = dp_dtype_bytes(group->op->dtype);
    dp_segment_t segment;
    dp_status_t status = DP_OK;

    while (status == DP_OK && dp_layout_next(&group->layout, &shard, &segment)) {
        const dp_control_piece_t *piece = dp_cpu_published_piece(group, local, segment.piece);
        const size_t at = segment.start * elem_bytes;

        if (piece == NULL) return dp_cpu_bad_offset(group, local);
        status = fetch(group, local, piece->out + at, segment.count * elem_bytes,
                       (char *)group->op->pieces[segment.piece].out + at);
    }
    return status;
}

dp_status_t dp_pull_reduce(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&group->layout);
    const int size = group->local_size;
    const dp_range_t own = dp_range_part(all, group->local_rank, size);
    const int wanted = dp_cpu_wants_tally(group, op);
    dp_status_t status;

    if (wanted) dp_cpu_clear_tallies(group, own);
    status = reduce_shard(group, own, wanted);
    /* All shards are reduced: each lies in its owner's output, and may be read there. */
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    for (int i = 1; status == DP_OK && i < size; i++) {
        const int k = (group->local_rank + i) % size; /* not all from the same one */

        status = fetch_shard(group, k, dp_range_part(all, k, size));
    }
    for (int k = 0; status == DP_OK && wanted && k < size; k++)
        status = dp_cpu_add_tallies(group, op, k, dp_range_part(all, k, size));
    return status == DP_OK ? dp_cpu_node_barrier(group) : status;
}
