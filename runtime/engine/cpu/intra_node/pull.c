/*
 * pull.c - reads of memory that the ranks of a node do not share.
 *
 * Called by the files that run operations, on the thread that runs them, and by direct/ on any
 * thread. It must not know what is read.
 */
#include "runtime/engine/cpu/intra_node/pull.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define CHUNK_BYTES ((size_t)256 * DP_KIB) /* of all others together */
#define CHUNK_LEAST ((size_t)64 * DP_KIB)  /* of one of them */
#define READ_BYTES ((size_t)4 * DP_MIB)    /* between two looks whether to stop */

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

int dp_pull_read(const dp_cpu_engine_t *engine, int local, uint64_t address, void *to, size_t bytes)
{
    return read_from(engine->pids[local], address, to, bytes);
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

dp_status_t dp_pull_fetch(dp_cpu_group_t *group, int local, uint64_t address, void *to,
                          size_t bytes)
{
    const dp_cpu_engine_t *engine = group->engine;

    for (size_t done = 0; done < bytes; done += READ_BYTES) {
        const size_t part = dp_min(bytes - done, READ_BYTES);

        if (atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) return DP_ERR_ABORTED;
        if (!dp_pull_read(engine, group->locals[local], address + done, (char *)to + done, part))
            return fail_to_read(group, local, errno);
    }
    return DP_OK;
}

/* What is read from all others is still in the cache when it is used. */
static size_t chunk_bytes(int count)
{
    const size_t others = (size_t)dp_max(count - 1, 1);

    return dp_max(CHUNK_BYTES / others / CHUNK_LEAST * CHUNK_LEAST, CHUNK_LEAST);
}

size_t dp_pull_chunk_bytes(const dp_cpu_group_t *group)
{
    return chunk_bytes(group->local_size);
}

/* A group of two needs most of a small node's, one of all ranks of a large node's. */
size_t dp_pull_buffer_bytes(int count)
{
    return dp_max(2 * CHUNK_BYTES, (size_t)count * CHUNK_LEAST);
}

dp_status_t dp_pull_input(dp_cpu_group_t *group, int local, size_t piece, size_t element,
                          size_t count, size_t elem_bytes, const void **in)
{
    const dp_control_piece_t *published;
    char *chunk;

    if (!dp_cpu_is_private(group, local)) {
        *in = dp_cpu_input_at(group, local, piece, element, count, elem_bytes);
        return *in != NULL ? DP_OK : dp_cpu_bad_offset(group, local);
    }
    published = dp_cpu_published_piece(group, local, piece);
    if (published == NULL) return dp_cpu_bad_offset(group, local);
    chunk = group->lane->pulled + (size_t)local * dp_pull_chunk_bytes(group);
    *in = chunk;
    return dp_pull_fetch(group, local, published->in + element * elem_bytes, chunk,
                         count * elem_bytes);
}
