/*
 * arena_internal.h - what arena.c (allocations) and arena_adopt.c (the program's own pages) share:
 * the object, and ranges of its address space (arena_ranges.c).
 */
#ifndef DP_SHM_ARENA_INTERNAL_H
#define DP_SHM_ARENA_INTERNAL_H

#include <pthread.h>

#include "runtime/shm/arena.h"
#include "runtime/shm/registry.h"

#define DP_ARENA_PAGE ((size_t)4096)
#define DP_ARENA_HUGE_PAGE ((size_t)2 * DP_MIB)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

typedef struct dp_arena_extent {
    uint64_t offset;
    uint64_t bytes; /* of whole pages */
} dp_arena_extent_t;

typedef struct dp_arena_view {
    char *base;
    size_t bytes;
    char *reserved; /* what to unmap: the view with room to align it */
    size_t reserved_bytes;
} dp_arena_view_t;

struct dp_arena {
    /* set at the start, then constant */
    int fd; /* of this rank's memory */
    int local_rank;
    int local_size;
    const dp_log_t *log;    /* borrowed */
    dp_arena_view_t *views; /* [local_size] */
    pthread_mutex_t lock;
    /* guarded by lock */
    dp_arena_extent_t *extents; /* [extent_count] ranges in use, ascending */
    size_t extent_count;
    size_t extent_room;
    pthread_mutex_t adopt_lock; /* held while adopting or disowning; taken before lock */
    dp_registry_t registry;     /* adopted ranges; written under adopt_lock, read without */
};

/* ---- arena_ranges.c ------------------------------------------------------------------------- */

/* Reserves `bytes` (whole pages) of the address space, without pages, at an offset that is `phase`
 * above a multiple of a huge page if it can, else anywhere. DP_ERR_NO_MEMORY: no room. */
dp_status_t dp_arena_reserve_range(dp_arena_t *arena, size_t bytes, size_t phase, uint64_t *offset);
/* Gives back the range reserved at this offset, whose pages were punched before. */
void dp_arena_release_range(dp_arena_t *arena, uint64_t offset);
/* The extent that begins at or before an offset; SIZE_MAX: none. The arena's lock is held. Inline:
 * every operation looks for its memory. */
static inline size_t dp_arena_find_extent(const dp_arena_t *arena, uint64_t offset)
{
    size_t low = 0;
    size_t high = arena->extent_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (arena->extents[middle].offset <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == 0 ? SIZE_MAX : low - 1;
}

/* Makes the pages of a range, in this process too, or fails with errno. */
dp_status_t dp_arena_populate(dp_arena_t *arena, uint64_t offset, size_t bytes);
/* Gives the pages of a range back to the system: from now on it is zero. */
void dp_arena_punch(dp_arena_t *arena, uint64_t offset, size_t bytes);

/* ---- arena_adopt.c -------------------------------------------------------------------------- */

/* Makes all adopted memory private again, as far as the system lets it. */
void dp_arena_disown_all(dp_arena_t *arena);

/* ---- arena_share.c -------------------------------------------------------------------------- */

/* Passes the descriptors of a node's ranks around, one each, at the start. Collective over the
 * world. own_fd is borrowed; fds[node size] are returned (close() them), in local rank order, this
 * rank's own place being -1. On error none is left open. */
dp_status_t dp_arena_share(dp_bootstrap_t *bootstrap, const dp_topology_t *topology, int own_fd,
                           uint64_t deadline_ns, const dp_log_t *log, int *fds, dp_error_t *error);

#endif
