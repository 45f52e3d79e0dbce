/*
 * arena_view.c - parts of several arenas of a node, one behind the other in one range of addresses.
 *
 *     arena of local rank 0   [....aaaa......]
 *     arena of local rank 1   [..bbbb........]
 *     a view of both          [aaaabbbb]         the same pages, to be read only
 *
 * Called by the engine, on any thread. A part must stay allocated as long as a view shows it; the
 * caller sees to that. It must not know what lies in the parts.
 */
#include "runtime/shm/arena_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Where this process sees a part; NULL: no part of an arena, or not whole pages of it. */
static char *find_part(const dp_arena_t *arena, const dp_arena_part_t *part)
{
    if (part->offset % DP_ARENA_PAGE != 0 || part->bytes % DP_ARENA_PAGE != 0 || part->bytes == 0)
        return NULL;
    return dp_arena_at(arena, part->local, part->offset, part->bytes);
}

static dp_status_t total_of(const dp_arena_t *arena, const dp_arena_part_t *parts, int count,
                            size_t *total, dp_error_t *error)
{
    *total = 0;
    for (int i = 0; i < count; i++) {
        if (find_part(arena, &parts[i]) == NULL || *total > SIZE_MAX / 2 - parts[i].bytes) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "%zu bytes at %llu are not whole pages of the arena of local rank "
                                "%d",
                                parts[i].bytes, (unsigned long long)parts[i].offset,
                                parts[i].local);
        }
        *total += parts[i].bytes;
    }
    return *total == 0 ? dp_error_set(error, DP_ERR_INVALID, "a view of nothing") : DP_OK;
}

/* Arenas were mapped from descriptors that are closed by now, but mremap() of no bytes of a shared
 * mapping makes another mapping of its pages. By the system call: UCX puts a function of its own in
 * the place of the C library's, which does not pass the address on. */
static int show_part(char *at, char *from, size_t bytes)
{
    const long flags = MREMAP_MAYMOVE | MREMAP_FIXED;

    if (syscall(SYS_mremap, from, 0ul, bytes, flags, at) == -1) return -1;
    return mprotect(at, bytes, PROT_READ);
}

dp_status_t dp_arena_view_create(const dp_arena_t *arena, const dp_arena_part_t *parts, int count,
                                 const void **view, dp_error_t *error)
{
    size_t total, done = 0;
    char *base;
    dp_status_t status = total_of(arena, parts, count, &total, error);

    if (status != DP_OK) return status;
    base = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no %zu bytes of address space: %s", total,
                            strerror(errno));
    }
    for (int i = 0; i < count; i++) {
        const size_t bytes = parts[i].bytes;

        if (show_part(base + done, find_part(arena, &parts[i]), bytes) == 0) {
            done += bytes;
            continue;
        }
        dp_error_set(error, DP_ERR_UNSUPPORTED,
                     "%zu bytes of local rank %d cannot be mapped a second time: %s", bytes,
                     parts[i].local, strerror(errno));
        /* Where it failed there may be a hole, and in it somebody else's mapping by now. */
        if (done > 0) munmap(base, done);
        if (total - done > bytes) munmap(base + done + bytes, total - done - bytes);
        return DP_ERR_UNSUPPORTED;
    }
    /* Advice: not in core files; and faults now, not in the first pass over it. */
    madvise(base, total, MADV_DONTDUMP);
    madvise(base, total, MADV_POPULATE_READ);
    *view = base;
    return DP_OK;
}

void dp_arena_view_destroy(const void *view, size_t bytes)
{
    if (view != NULL) munmap((void *)(uintptr_t)view, bytes);
}
