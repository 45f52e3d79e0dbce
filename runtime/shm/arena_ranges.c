/*
 * arena_ranges.c - ranges of an arena's address space: the list of what is in use, and their pages.
 *
 * Called by arena.c and arena_adopt.c, on any thread. The list of extents lies outside the memory
 * itself, so a stray write cannot break it. Pages are made when a range is reserved, by a call that
 * can fail: a first access that found no memory would be a SIGBUS. Punching a hole returns pages to
 * the system, and they come back zeroed. It must not know what a range is for.
 *
 * Life of a range: reserve (its place in the list) -> populate (its pages) -> used -> punch ->
 * release. Pages go before the place does, so nobody is given a range that is still being cleared.
 */
#include "runtime/shm/arena_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE DP_ARENA_PAGE
#define HUGE_PAGE DP_ARENA_HUGE_PAGE

/* ---- Pages ---------------------------------------------------------------------------------- */

/* MADV_POPULATE_WRITE came with Linux 5.14, and a sandbox may refuse it. There fallocate() makes
 * the pages in the file at least, though not yet in this process' page table. */
dp_status_t dp_arena_populate(dp_arena_t *arena, uint64_t offset, size_t bytes)
{
    char *memory = arena->views[arena->local_rank].base + offset;
    int code;

    do {
        code = madvise(memory, bytes, MADV_POPULATE_WRITE);
    } while (code != 0 && errno == EINTR);
    if (code != 0 && (errno == EINVAL || errno == ENOSYS || errno == EPERM)) {
        do {
            code = fallocate(arena->fd, 0, (off_t)offset, (off_t)bytes);
        } while (code != 0 && errno == EINTR);
    }
    return code == 0 ? DP_OK : DP_ERR_NO_MEMORY;
}

/* Failure is rare (a seccomp filter, no memory in the kernel) and costs memory, not correctness. */
void dp_arena_punch(dp_arena_t *arena, uint64_t offset, size_t bytes)
{
    if (fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)bytes) != 0) {
        dp_log_warn(arena->log, "shared memory: %zu freed bytes stay in use: %s", bytes,
                    strerror(errno));
        memset(arena->views[arena->local_rank].base + offset, 0,
               bytes); /* dp_arena_alloc() promises zeros */
    }
}

/* ---- Places --------------------------------------------------------------------------------- */

/* First fit: the lowest gap of `bytes` that begins `phase` above a multiple of alignment. Returns
 * where in the list it belongs, and *offset; SIZE_MAX: no room. */
static size_t find_room(const dp_arena_t *arena, size_t bytes, size_t alignment, size_t phase,
                        uint64_t *offset)
{
    const size_t end = arena->views[arena->local_rank].bytes;
    uint64_t at = 0;

    for (size_t i = 0; i <= arena->extent_count; i++) {
        const uint64_t limit = i < arena->extent_count ? arena->extents[i].offset : end;

        at = at <= phase ? phase : phase + dp_align_up(at - phase, alignment);
        if (at <= limit && limit - at >= bytes) {
            *offset = at;
            return i;
        }
        if (i < arena->extent_count) at = limit + arena->extents[i].bytes;
    }
    return SIZE_MAX;
}

/* Makes room in the list for one more, before anything is changed. */
static dp_status_t grow_list(dp_arena_t *arena)
{
    const size_t room = arena->extent_room == 0 ? 64 : 2 * arena->extent_room;
    dp_arena_extent_t *extents;

    if (arena->extent_count < arena->extent_room) return DP_OK;
    extents = realloc(arena->extents, room * sizeof(*extents));
    if (extents == NULL) return DP_ERR_NO_MEMORY;
    arena->extents = extents;
    arena->extent_room = room;
    return DP_OK;
}

/* Large ranges begin at a huge page if such a gap is left, any others where there is room. */
dp_status_t dp_arena_reserve_range(dp_arena_t *arena, size_t bytes, size_t phase, uint64_t *offset)
{
    size_t place = SIZE_MAX;
    dp_status_t status;

    pthread_mutex_lock(&arena->lock);
    status = grow_list(arena);
    if (status == DP_OK && bytes >= HUGE_PAGE) {
        place = find_room(arena, bytes, HUGE_PAGE, phase, offset);
    }
    if (status == DP_OK && place == SIZE_MAX) place = find_room(arena, bytes, PAGE, 0, offset);
    if (place != SIZE_MAX) {
        memmove(arena->extents + place + 1, arena->extents + place,
                (arena->extent_count - place) * sizeof(*arena->extents));
        arena->extents[place] = (dp_arena_extent_t){*offset, bytes};
        arena->extent_count++;
    } else {
        status = DP_ERR_NO_MEMORY;
    }
    pthread_mutex_unlock(&arena->lock);
    return status;
}

void dp_arena_release_range(dp_arena_t *arena, uint64_t offset)
{
    size_t place;

    pthread_mutex_lock(&arena->lock);
    place = dp_arena_find_extent(arena, offset);
    if (place != SIZE_MAX && arena->extents[place].offset == offset) {
        arena->extent_count--;
        memmove(arena->extents + place, arena->extents + place + 1,
                (arena->extent_count - place) * sizeof(*arena->extents));
    }
    pthread_mutex_unlock(&arena->lock);
}
