/*
 * arena.c - one sparse memfd per rank, mapped by all ranks of a node, and the list of what is in
 * use. arena.h has the picture.
 *
 * Called by the context at start and end, by any thread for allocations. The list of extents lies
 * outside the memory itself, so a stray write cannot break it. Pages are made when memory is
 * allocated, by a call that can fail: a first access that found no memory would be a SIGBUS.
 * Freeing punches a hole, so pages return to the system and come back zeroed. It must not know
 * about sockets (arena_share.c) or the program's own pages (arena_adopt.c).
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
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/shm/arena_share.h"

#define PAGE DP_ARENA_PAGE
#define HUGE_PAGE DP_ARENA_HUGE_PAGE
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define ARENA_MIN DP_GIB /* no smaller by halving; a smaller wish is taken as it is */

size_t dp_arena_control_room(int local_size)
{
    return dp_align_up(16 * DP_KIB + (size_t)local_size * 4 * DP_KIB, PAGE);
}

/* ---- Mapping -------------------------------------------------------------------------------- */

/* Maps a descriptor at a multiple of the huge page size, without which the kernel makes no huge
 * pages: reserves a little more address space than needed and maps inside it. */
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

/* Makes this rank's memory, halving the size until the system accepts it. Then its size is sealed:
 * were it made shorter, an access past its end would end the processes that have mapped it. */
static dp_status_t make_own(dp_arena_t *arena, size_t wished, dp_error_t *error)
{
    size_t bytes = dp_align_up(wished, PAGE);

    arena->fd = memfd_create("dp-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "shared memory: memfd_create failed: %s",
                            strerror(errno));
    }
    for (;;) {
        if (ftruncate(arena->fd, (off_t)bytes) == 0 &&
            map_view(arena->fd, bytes, &arena->views[arena->local_rank]) == 0) {
            if (fcntl(arena->fd, F_ADD_SEALS, SEALS) == 0) return DP_OK;
            return dp_error_set(error, DP_ERR_SYSTEM, "shared memory: cannot seal its size: %s",
                                strerror(errno));
        }
        if (bytes / 2 < ARENA_MIN) {
            return dp_error_set(error, DP_ERR_NO_MEMORY,
                                "shared memory: cannot map %zu bytes (ARENA_BYTES is %zu): %s",
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
        size_t bytes;

        if (i == arena->local_rank) continue;
        bytes = size_of_arena(fds[i], arena->local_size);
        if (bytes == 0) {
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "shared memory: what local rank %d sent is not its arena", i);
        }
        if (map_view(fds[i], bytes, &arena->views[i]) != 0) {
            return dp_error_set(error, DP_ERR_NO_MEMORY,
                                "shared memory: cannot map the %zu bytes of local rank %d: %s "
                                "(try a smaller ARENA_BYTES)",
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

/* MADV_POPULATE_WRITE came with Linux 5.14. Before, fallocate() makes the pages in the file at
 * least, though not yet in this process' page table. */
dp_status_t dp_arena_populate(dp_arena_t *arena, uint64_t offset, size_t bytes)
{
    char *memory = arena->views[arena->local_rank].base + offset;
    int code;

    do {
        code = madvise(memory, bytes, MADV_POPULATE_WRITE);
    } while (code != 0 && errno == EINTR);
    if (code != 0 && errno == EINVAL) {
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

/* The extent that begins at or before an offset; SIZE_MAX: none. */
static size_t find_extent(const dp_arena_t *arena, uint64_t offset)
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
    place = find_extent(arena, offset);
    if (place != SIZE_MAX && arena->extents[place].offset == offset) {
        arena->extent_count--;
        memmove(arena->extents + place, arena->extents + place + 1,
                (arena->extent_count - place) * sizeof(*arena->extents));
    }
    pthread_mutex_unlock(&arena->lock);
}

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
    place = find_extent(arena, offset);
    if (place != SIZE_MAX && arena->extents[place].offset == offset) {
        bytes = arena->extents[place].bytes;
    }
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
    place = find_extent(arena, at);
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
