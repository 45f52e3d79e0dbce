/*
 * arena_adopt.c - makes pages of the program's memory pages of the arena, and private again.
 *
 * Called by dp_register(), dp_deregister() and the context's end, one at a time (adopt_lock). It
 * must not know why memory is adopted.
 *
 *     adopt:   copy a chunk into the arena, give its private pages back, next chunk; then map the
 *              arena's pages over the whole range (one mmap: until then all can be copied back)
 *     disown:  map private pages over the whole range (one mmap), copy the contents out of the
 *              arena's own view, punch the arena's pages chunk by chunk
 *
 * So no more than one chunk exists twice. mlock() would be lost, so locked memory is refused; other
 * advice that the program gave about the range (madvise, mbind) is forgotten.
 */
#include "runtime/shm/arena_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "runtime/shm/maps.h"

#define CHUNK ((size_t)32 * DP_MIB) /* of which two copies exist for a moment */

static size_t chunk_at(size_t done, size_t bytes)
{
    return dp_min(CHUNK, bytes - done);
}

static char *view_at(const dp_arena_t *arena, uint64_t offset)
{
    return arena->views[arena->local_rank].base + offset;
}

static int map_arena(const dp_arena_t *arena, void *memory, size_t bytes, uint64_t offset)
{
    const int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;

    return mmap(memory, bytes, PROT_READ | PROT_WRITE, flags, arena->fd, (off_t)offset) ==
                   MAP_FAILED
               ? -1
               : 0;
}

static int map_private(void *memory, size_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

    return mmap(memory, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED ? -1 : 0;
}

/* mmap(MAP_FIXED) unmaps the range before it maps, and can fail in between: then there is a hole.
 */
static int is_hole(void *memory)
{
    unsigned char is_resident;

    return mincore(memory, DP_ARENA_PAGE, &is_resident) != 0 && errno == ENOMEM;
}

/* ---- Adopting ------------------------------------------------------------------------------- */

/* Copies the contents into the arena and gives the private pages back. *done: bytes that only the
 * arena has, which the caller copies back after an error. */
static dp_status_t move_in(dp_arena_t *arena, char *memory, size_t bytes, uint64_t offset,
                           size_t *done, dp_error_t *error)
{
    *done = 0;
    while (*done < bytes) {
        const size_t chunk = chunk_at(*done, bytes);

        if (dp_arena_populate(arena, offset + *done, chunk) != DP_OK) {
            return dp_error_set(error, DP_ERR_NO_MEMORY,
                                "no shared pages for %zu of its %zu bytes: %s", chunk, bytes,
                                strerror(errno));
        }
        memcpy(view_at(arena, offset + *done), memory + *done, chunk);
        if (madvise(memory + *done, chunk, MADV_DONTNEED) != 0) {
            return dp_error_set(error, errno == EINVAL ? DP_ERR_UNSUPPORTED : DP_ERR_SYSTEM,
                                "its pages cannot be exchanged (memory locked by mlock?): %s",
                                strerror(errno));
        }
        *done += chunk;
    }
    return DP_OK;
}

static dp_status_t map_in(dp_arena_t *arena, char *memory, size_t bytes, uint64_t offset,
                          dp_error_t *error)
{
    int cause;

    if (map_arena(arena, memory, bytes, offset) == 0) {
        /* Advice: fewer faults, and in the peers' views they are huge pages already. */
        madvise(memory, bytes, MADV_HUGEPAGE);
        madvise(memory, bytes, MADV_POPULATE_WRITE);
        return DP_OK;
    }
    cause = errno;
    if (is_hole(memory) && map_private(memory, bytes) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "cannot map shared pages over it: %s; and its memory is lost: %s",
                            strerror(cause), strerror(errno));
    }
    return dp_error_set(error, cause == ENOMEM ? DP_ERR_NO_MEMORY : DP_ERR_SYSTEM,
                        "cannot map shared pages over it: %s", strerror(cause));
}

static dp_status_t check_adoptable(const dp_arena_t *arena, const void *memory, size_t bytes,
                                   dp_error_t *error)
{
    const dp_arena_view_t *view = &arena->views[arena->local_rank];
    const uintptr_t begin = (uintptr_t)memory;
    const uintptr_t base = (uintptr_t)view->base;
    dp_registration_t other;

    if (begin < base + view->bytes && base < begin + bytes) {
        return dp_error_set(error, DP_ERR_INVALID, "it is shared memory of this rank already");
    }
    if (dp_registry_overlap(&arena->registry, begin, bytes, &other)) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "it overlaps the %zu bytes at 0x%" PRIxPTR
                            ", which are registered already",
                            other.bytes, other.begin);
    }
    return dp_maps_check(memory, bytes, error);
}

static dp_status_t adopt_range(dp_arena_t *arena, char *memory, size_t bytes, dp_error_t *error)
{
    uint64_t offset;
    size_t done;
    dp_status_t status = check_adoptable(arena, memory, bytes, error);

    if (status != DP_OK) return status;
    if (dp_registry_reserve(&arena->registry) != DP_OK) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory to note it");
    }
    status = dp_arena_reserve_range(arena, bytes, (uintptr_t)memory % DP_ARENA_HUGE_PAGE, &offset);
    if (status != DP_OK) {
        return dp_error_set(error, status,
                            "no room for %zu bytes among the %zu of shared address space", bytes,
                            arena->views[arena->local_rank].bytes);
    }
    status = move_in(arena, memory, bytes, offset, &done, error);
    if (status == DP_OK) status = map_in(arena, memory, bytes, offset, error);
    if (status == DP_OK) {
        dp_registry_add(&arena->registry, (dp_registration_t){(uintptr_t)memory, bytes, offset});
        dp_log_debug(arena->log, "shared memory: adopted %zu bytes at %p", bytes, (void *)memory);
        return DP_OK;
    }
    if (!is_hole(memory)) memcpy(memory, view_at(arena, offset), done);
    dp_arena_punch(arena, offset, bytes);
    dp_arena_release_range(arena, offset);
    return status;
}

dp_status_t dp_arena_adopt(dp_arena_t *arena, void *memory, size_t bytes, dp_error_t *error)
{
    dp_status_t status;

    if ((uintptr_t)memory % DP_ARENA_PAGE != 0 || bytes % DP_ARENA_PAGE != 0 || bytes == 0 ||
        memory == NULL || bytes > UINTPTR_MAX - (uintptr_t)memory) {
        return dp_error_set(error, DP_ERR_INVALID, "%zu bytes at %p are not whole pages of %zu",
                            bytes, memory, DP_ARENA_PAGE);
    }
    pthread_mutex_lock(&arena->adopt_lock);
    status = adopt_range(arena, memory, bytes, error);
    pthread_mutex_unlock(&arena->adopt_lock);
    return status;
}

/* ---- Disowning ------------------------------------------------------------------------------ */

/* 0: the program has unmapped its adopted memory, or mapped something else there. In doubt 1. */
static int is_still_ours(const dp_arena_t *arena, const void *memory,
                         const dp_registration_t *registration)
{
    struct stat about;
    dp_error_t error;

    if (fstat(arena->fd, &about) != 0 ||
        dp_maps_check_file(memory, registration->bytes, about.st_ino, registration->offset,
                           &error) != DP_ERR_UNSUPPORTED) {
        return 1;
    }
    dp_log_warn(arena->log,
                "shared memory: the %zu bytes at %p, registered, were unmapped or mapped anew: %s",
                registration->bytes, memory, error.text);
    return 0;
}

static void remove_registration(dp_arena_t *arena, const dp_registration_t *registration)
{
    dp_registry_remove(&arena->registry, registration->begin);
    dp_arena_release_range(arena, registration->offset);
}

static dp_status_t disown(dp_arena_t *arena, const dp_registration_t *registration)
{
    char *memory = (char *)registration->begin; /* NOLINT(performance-no-int-to-ptr) */
    const size_t bytes = registration->bytes;
    const uint64_t offset = registration->offset;

    if (!is_still_ours(arena, memory, registration)) { /* what lies there now is the program's */
        dp_arena_punch(arena, offset, bytes);
        remove_registration(arena, registration);
        return DP_ERR_INVALID;
    }
    if (map_private(memory, bytes) != 0) {
        dp_log_warn(arena->log, "shared memory: %zu bytes at %p stay shared: %s", bytes,
                    (void *)memory, strerror(errno));
        if (is_hole(memory) && map_arena(arena, memory, bytes, offset) != 0) {
            dp_log_error(arena->log, "shared memory: %zu bytes at %p are lost: %s", bytes,
                         (void *)memory, strerror(errno));
        }
        return DP_ERR_NO_MEMORY;
    }
    for (size_t done = 0; done < bytes; done += chunk_at(done, bytes)) {
        memcpy(memory + done, view_at(arena, offset + done), chunk_at(done, bytes));
        dp_arena_punch(arena, offset + done, chunk_at(done, bytes));
    }
    remove_registration(arena, registration);
    return DP_OK;
}

dp_status_t dp_arena_disown(dp_arena_t *arena, void *memory)
{
    dp_registration_t registration;
    dp_status_t status = DP_ERR_INVALID;

    pthread_mutex_lock(&arena->adopt_lock);
    if (dp_registry_find(&arena->registry, (uintptr_t)memory, &registration)) {
        status = disown(arena, &registration);
    }
    pthread_mutex_unlock(&arena->adopt_lock);
    return status;
}

void dp_arena_disown_all(dp_arena_t *arena)
{
    dp_registration_t registration;

    while (dp_registry_first(&arena->registry, &registration)) {
        /* A range that stays shared works on: its pages live as long as they are mapped somewhere.
         */
        if (disown(arena, &registration) == DP_ERR_NO_MEMORY)
            remove_registration(arena, &registration);
    }
}
