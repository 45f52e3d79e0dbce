/*
 * arena.c - one sparse memfd per rank, mapped by all ranks of a node, and what is allocated in it.
 * arena.h has the picture.
 *
 * Called by the context at start and end, by any thread for allocations. An allocation is a range
 * of arena_ranges.c. It must not know about sockets (arena_share.c) or the program's own pages
 * (arena_adopt.c).
 */
#include "runtime/shm/arena_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/limits.h"

#define PAGE DP_ARENA_PAGE
#define HUGE_PAGE DP_ARENA_HUGE_PAGE
#define NEEDS " (it takes Linux 3.17 or newer, and a sandbox that permits the call)"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define ARENA_MIN DP_GIB /* no smaller by halving; a smaller wish is taken as it is */
#define FIT_MIN                                                                                    \
    (16 * DP_MIB) /* no smaller to fit into a limit: what DP_ARENA_BYTES takes at least */

size_t dp_arena_control_room(int local_size)
{
    return dp_align_up(16 * DP_KIB + (size_t)local_size * 9 * DP_KIB, PAGE);
}

/* ---- Mapping -------------------------------------------------------------------------------- */

/*
 * Maps a descriptor at a multiple of the huge page size, without which the kernel makes no huge
 * pages: reserves a little more address space than needed and maps inside it. That little also
 * keeps equal places of two views from being a multiple of 256 MiB apart: on AMD's Zen they would
 * throw each other out of the first-level cache, and a sum of both would take three times as long.
 */
static int map_view(int fd, size_t bytes, dp_arena_view_t *view)
{
    const size_t reserved_bytes = bytes + HUGE_PAGE;
    char *reserved =
        mmap(NULL, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *base;

    if (reserved == MAP_FAILED) return -1;
    base = reserved + (dp_align_up((uintptr_t)reserved, HUGE_PAGE) - (uintptr_t)reserved);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) ==
        MAP_FAILED) {
        munmap(reserved, reserved_bytes);
        return -1;
    }
    /* Advice: a core file must not try to hold terabytes; huge pages halve the cost of a pass over
     * cold memory. */
    madvise(base, bytes, MADV_DONTDUMP);
    madvise(base, bytes, MADV_HUGEPAGE);
    *view = (dp_arena_view_t){base, bytes, reserved, reserved_bytes};
    return 0;
}

/* Half of the address space that a limit leaves is for arenas, as every rank maps those of all
 * local ranks; the program, its threads and libraries need the other half. A wish that leaves a
 * quarter is taken as it is. 0: there is too little. */
static size_t fit_into_limits(size_t wished, int local_size)
{
    const size_t file_bytes = dp_limits_file_bytes();
    size_t bytes = dp_align_up(wished, PAGE);
    size_t left;

    (void)dp_limits_address_space(&left);
    if (bytes > left / 4 * 3 / (size_t)local_size) bytes = left / 2 / (size_t)local_size;
    bytes = dp_min(bytes, file_bytes) / PAGE * PAGE;
    return bytes < dp_min(wished, FIT_MIN) ? 0 : bytes;
}

/* Names the limit that the arenas of the local ranks ran into, and what works. */
static dp_status_t too_little(const dp_arena_t *arena, size_t bytes, dp_error_t *error)
{
    const size_t file_bytes = dp_limits_file_bytes();
    const size_t ranks = (size_t)arena->local_size;
    char way[96] = "";
    size_t left, used, fitting;
    const size_t limit = dp_limits_address_space(&left);

    if (file_bytes < FIT_MIN) {
        return dp_error_set(error, DP_ERR_NO_MEMORY,
                            "shared memory: the limit on the size of files (ulimit -f, "
                            "RLIMIT_FSIZE) is %zu bytes, and each rank needs a memory file of at "
                            "least %zu: ulimit -f %zu, or unlimited",
                            file_bytes, (size_t)FIT_MIN, 2 * (size_t)FIT_MIN / 1024);
    }
    for (size_t i = 0; i < ranks; i++)
        left += arena->views[i].reserved_bytes;
    used = limit - dp_min(left, limit);
    fitting = left / 2 / ranks;
    if (fitting >= FIT_MIN) {
        snprintf(way, sizeof(way), ", or --arena-bytes %zuM (DP_ARENA_BYTES)", fitting / DP_MIB);
    }
    return dp_error_set(error, DP_ERR_NO_MEMORY,
                        "shared memory: the limit on address space (ulimit -v, RLIMIT_AS) is %zu "
                        "bytes, of which %zu are used: no room for %zu bytes of each of %zu local "
                        "ranks. ulimit -v %zu works%s",
                        limit, used, bytes, ranks,
                        dp_max(limit, used + 2 * ranks * (bytes + HUGE_PAGE)) / 1024 + 1, way);
}

/* Makes this rank's memory, halving the size until the system accepts it. Then its size is sealed:
 * were it made shorter, an access past its end would end the processes that have mapped it. */
static dp_status_t make_own(dp_arena_t *arena, size_t wished, dp_error_t *error)
{
    size_t bytes = fit_into_limits(wished, arena->local_size);

    if (bytes == 0) return too_little(arena, dp_min(wished, FIT_MIN), error);
    if (bytes < wished) {
        dp_log_debug(arena->log, "shared memory: %zu bytes instead of %zu, as ulimit allows", bytes,
                     wished);
    }
    arena->fd = memfd_create("dp-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "shared memory: memfd_create: %s" NEEDS,
                            strerror(errno));
    }
    for (;;) {
        if (ftruncate(arena->fd, (off_t)bytes) == 0 &&
            map_view(arena->fd, bytes, &arena->views[arena->local_rank]) == 0) {
            if (fcntl(arena->fd, F_ADD_SEALS, SEALS) == 0) return DP_OK;
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "shared memory: its size cannot be sealed, F_ADD_SEALS: %s" NEEDS,
                                strerror(errno));
        }
        if (bytes / 2 < ARENA_MIN) {
            return dp_error_set(
                error, DP_ERR_NO_MEMORY,
                "shared memory: cannot map %zu bytes (--arena-bytes, DP_ARENA_BYTES is "
                "%zu): %s",
                bytes, wished, strerror(errno));
        }
        bytes = dp_align_up(bytes / 2, PAGE);
    }
}

/* The size of the file that a local rank sent; 0: no arena, or one that could change its size. */
static size_t size_of_arena(int fd, int local_size)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat about;

    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &about) != 0) return 0;
    if (!S_ISREG(about.st_mode) || about.st_size % (off_t)PAGE != 0 ||
        about.st_size < (off_t)dp_arena_control_room(local_size))
        return 0;
    return (size_t)about.st_size;
}

/* Maps the arenas of the other ranks of the node, in local rank order. Their messages are checked:
 * they may be of another version, or broken. */
static dp_status_t map_peers(dp_arena_t *arena, const int *fds, dp_error_t *error)
{
    for (int i = 0; i < arena->local_size; i++) {
        size_t bytes, left;

        if (i == arena->local_rank) continue;
        bytes = size_of_arena(fds[i], arena->local_size);
        if (bytes == 0) {
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "shared memory: what local rank %d sent is not its arena", i);
        }
        if (map_view(fds[i], bytes, &arena->views[i]) != 0) {
            if (dp_limits_address_space(&left) != SIZE_MAX) return too_little(arena, bytes, error);
            return dp_error_set(error, DP_ERR_NO_MEMORY,
                                "shared memory: cannot map the %zu bytes of local rank %d: %s "
                                "(try a smaller --arena-bytes, DP_ARENA_BYTES)",
                                bytes, i, strerror(errno));
        }
    }
    return DP_OK;
}

dp_status_t dp_arena_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                            size_t arena_bytes, uint64_t deadline_ns, const dp_log_t *log,
                            dp_arena_t **out, dp_error_t *error)
{
    const int rank = bootstrap->rank;
    const int local_size = topology->node_size[topology->node[rank]];
    dp_arena_t *arena = calloc(1, sizeof(*arena));
    int *fds = NULL;
    void *control;
    dp_status_t status;

    if (arena == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
    arena->fd = -1;
    arena->local_rank = topology->local_rank[rank];
    arena->local_size = local_size;
    arena->log = log;
    pthread_mutex_init(&arena->lock, NULL);
    pthread_mutex_init(&arena->adopt_lock, NULL);
    arena->views = calloc((size_t)local_size, sizeof(*arena->views));
    fds = calloc((size_t)local_size, sizeof(*fds));
    if (arena->views == NULL || fds == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
        goto done;
    }
    status = make_own(arena, arena_bytes, error);
    if (status != DP_OK) goto done;
    /* The first allocation, so it lies at offset 0; before peers map it, so they find zeros. */
    status = dp_arena_alloc(arena, dp_arena_control_room(local_size), &control);
    if (status != DP_OK) {
        dp_error_set(error, status, "shared memory: no memory for the control block");
        goto done;
    }
    status = dp_arena_share(bootstrap, topology, arena->fd, deadline_ns, log, fds, error);
    if (status != DP_OK) goto done;
    status = map_peers(arena, fds, error);
    for (int i = 0; i < local_size; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
done:
    free(fds);
    if (status == DP_OK) {
        *out = arena;
    } else {
        dp_arena_destroy(arena);
    }
    return status;
}

void dp_arena_destroy(dp_arena_t *arena)
{
    if (arena == NULL) return;
    /* First: the program goes on using its memory, which must not vanish with the descriptor. */
    dp_arena_disown_all(arena);
    for (int i = 0; arena->views != NULL && i < arena->local_size; i++) {
        if (arena->views[i].reserved != NULL) {
            munmap(arena->views[i].reserved, arena->views[i].reserved_bytes);
        }
    }
    if (arena->fd >= 0) close(arena->fd);
    pthread_mutex_destroy(&arena->adopt_lock);
    pthread_mutex_destroy(&arena->lock);
    dp_registry_fini(&arena->registry);
    free(arena->extents);
    free(arena->views);
    free(arena);
}

/* ---- Allocation ----------------------------------------------------------------------------- */

dp_status_t dp_arena_alloc(dp_arena_t *arena, size_t bytes, void **memory)
{
    const size_t limit = arena->views[arena->local_rank].bytes;
    uint64_t offset = 0;
    size_t whole;
    dp_status_t status;

    if (bytes > limit) return DP_ERR_NO_MEMORY;
    whole = dp_align_up(dp_max(bytes, (size_t)1), PAGE);
    status = dp_arena_reserve_range(arena, whole, 0, &offset);
    if (status != DP_OK) return status;
    status = dp_arena_populate(arena, offset, whole);
    if (status != DP_OK) {
        dp_log_debug(arena->log, "shared memory: no pages for %zu bytes: %s", whole,
                     strerror(errno));
        dp_arena_punch(arena, offset, whole);
        dp_arena_release_range(arena, offset);
        return status;
    }
    *memory = arena->views[arena->local_rank].base + offset;
    return DP_OK;
}

/* The offset of an address inside the view; UINT64_MAX: not all of it is. */
static uint64_t offset_in_view(const dp_arena_t *arena, const void *memory, size_t bytes)
{
    const dp_arena_view_t *view = &arena->views[arena->local_rank];
    const uintptr_t at = (uintptr_t)memory;
    const uintptr_t base = (uintptr_t)view->base;

    /* Differences, not sums: at + bytes could wrap. */
    if (at < base || at - base > view->bytes || view->bytes - (at - base) < bytes) {
        return UINT64_MAX;
    }
    return at - base;
}

dp_status_t dp_arena_free(dp_arena_t *arena, void *memory)
{
    const uint64_t offset = memory == NULL ? 0 : offset_in_view(arena, memory, 0);
    size_t place;
    size_t bytes = 0;

    if (memory == NULL) return DP_OK;
    if (offset == UINT64_MAX || offset == 0) return DP_ERR_INVALID; /* 0 is the control block */
    /* Only the begin of an allocation can be freed: anything else is the caller's error. */
    pthread_mutex_lock(&arena->lock);
    place = dp_arena_find_extent(arena, offset);
    if (place != SIZE_MAX && arena->extents[place].offset == offset)
        bytes = arena->extents[place].bytes;
    pthread_mutex_unlock(&arena->lock);
    if (bytes == 0) return DP_ERR_INVALID;
    dp_arena_punch(arena, offset, bytes); /* before the range can be reserved anew */
    dp_arena_release_range(arena, offset);
    return DP_OK;
}

/* ---- Addresses ------------------------------------------------------------------------------ */

uint64_t dp_arena_offset(const dp_arena_t *arena, const void *memory, size_t bytes)
{
    const uint64_t offset = offset_in_view(arena, memory, bytes);

    if (offset != UINT64_MAX) return offset;
    return dp_registry_offset(&arena->registry, (uintptr_t)memory, bytes);
}

int dp_arena_find(const dp_arena_t *arena, const void *memory, size_t bytes, uint64_t *offset)
{
    pthread_mutex_t *lock =
        &((dp_arena_t *)(uintptr_t)arena)->lock; /* const is about the contents, not the lock */
    uint64_t at = offset_in_view(arena, memory, bytes);
    int found = 0;
    size_t place;

    if (memory == NULL) return 0;
    if (at == UINT64_MAX) {
        at = dp_registry_offset(&arena->registry, (uintptr_t)memory, bytes);
        if (at != UINT64_MAX && offset != NULL) *offset = at;
        return at != UINT64_MAX;
    }
    pthread_mutex_lock(lock);
    place = dp_arena_find_extent(arena, at);
    if (place != SIZE_MAX) {
        const dp_arena_extent_t *extent = &arena->extents[place];
        const uint64_t into = at - extent->offset;

        found = into < extent->bytes && extent->bytes - into >= bytes;
    }
    pthread_mutex_unlock(lock);
    if (found && offset != NULL) *offset = at;
    return found;
}

void *dp_arena_at(const dp_arena_t *arena, int local, uint64_t offset, size_t bytes)
{
    const dp_arena_view_t *view;

    if (local < 0 || local >= arena->local_size) return NULL;
    view = &arena->views[local];
    if (offset > view->bytes || view->bytes - offset < bytes) return NULL;
    return view->base + offset;
}

void *dp_arena_control(const dp_arena_t *arena, size_t bytes)
{
    if (bytes > dp_arena_control_room(arena->local_size)) return NULL;
    return dp_arena_at(arena, 0, 0, bytes);
}
