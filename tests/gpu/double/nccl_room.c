/*
 * nccl_room.c - memory where the ranks of a communicator meet, whether they are threads of one
 * process or processes of one machine.
 *
 * A room is a memfd; its id names the process that made it and the descriptor, under which others
 * open it: nothing has a name that could be left behind. Inputs are copied into its heap, a sparse
 * file that is used anew whenever nothing lies in it. Ranks may be killed at any moment: the lock
 * is robust, and nobody waits for a wake-up alone.
 */
#include "tests/gpu/double/nccl_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/common.h"

#define HEAP_BYTES ((size_t)4 << 30)  /* of addresses */
#define KEPT_BYTES ((size_t)32 << 20) /* of memory, when nothing lies in it */
#define ROOM_BYTES (dp_align_up(sizeof(room_t), 4096) + HEAP_BYTES)
#define WINDOW 256 /* cells from a meeting's first choice */

/* ---- Life ----------------------------------------------------------------------------------- */

static int map_memory(map_t *map, int fd)
{
    void *memory =
        mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (memory == MAP_FAILED) return 0;
    map->room = memory;
    map->heap = (unsigned char *)memory + dp_align_up(sizeof(room_t), 4096);
    return 1;
}

/* nccl_double.lock is held. */
static map_t *enlist(int fd, const ncclUniqueId *id)
{
    map_t *map = calloc(1, sizeof(*map));

    if (map == NULL || !map_memory(map, fd)) nccl_double_wrong("no memory for a room");
    map->fd = -1;
    map->id = *id;
    map->next = nccl_double.maps;
    nccl_double.maps = map;
    return map;
}

static map_t *make_locked(void)
{
    const int fd = memfd_create("nccl double", MFD_CLOEXEC);
    pthread_mutexattr_t attributes;
    ncclUniqueId id;
    map_t *map;

    if (fd < 0 || ftruncate(fd, (off_t)ROOM_BYTES) != 0) nccl_double_wrong("no memory for a room");
    memset(&id, 0, sizeof(id));
    snprintf(id.internal, sizeof(id.internal), "double %d %d %u", (int)getpid(), fd,
             ++nccl_double.ids);
    map = enlist(fd, &id);
    map->fd = fd;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&map->room->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return map;
}

map_t *nccl_room_make(void)
{
    map_t *map;

    pthread_mutex_lock(&nccl_double.lock);
    map = make_locked();
    pthread_mutex_unlock(&nccl_double.lock);
    return map;
}

/* A room whose maker has left is one where nobody else will come. */
static map_t *open_locked(const ncclUniqueId *id)
{
    int pid, number, fd;
    unsigned serial;
    char path[64];
    map_t *map;

    if (sscanf(id->internal, "double %d %d %u", &pid, &number, &serial) != 3) {
        nccl_double_wrong("an id that was never made");
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
    fd = pid == (int)getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return make_locked();
    map = enlist(fd, id);
    close(fd);
    return map;
}

map_t *nccl_room_find(const ncclUniqueId *id)
{
    map_t *map;

    pthread_mutex_lock(&nccl_double.lock);
    map = nccl_double.maps;
    while (map != NULL && memcmp(&map->id, id, sizeof(*id)) != 0)
        map = map->next;
    if (map == NULL) map = open_locked(id);
    map->comms++;
    map->was_joined = 1;
    pthread_mutex_unlock(&nccl_double.lock);
    return map;
}

static void drop_locked(map_t *map)
{
    map_t **at = &nccl_double.maps;

    while (*at != map)
        at = &(*at)->next;
    *at = map->next;
    if (map->fd >= 0) close(map->fd);
    munmap(map->room, ROOM_BYTES);
    free(map);
}

void nccl_room_leave(map_t *map, int is_over)
{
    pthread_mutex_lock(&nccl_double.lock);
    if (--map->comms == 0 && is_over) drop_locked(map);
    pthread_mutex_unlock(&nccl_double.lock);
}

void nccl_room_drop_unused(void)
{
    map_t *next;

    for (map_t *map = nccl_double.maps; map != NULL; map = next) {
        next = map->next;
        if (!map->was_joined) drop_locked(map);
    }
}

/* ---- Waiting -------------------------------------------------------------------------------- */

void nccl_room_lock(room_t *room)
{
    if (pthread_mutex_lock(&room->lock) == EOWNERDEAD) pthread_mutex_consistent(&room->lock);
}

void nccl_room_unlock(room_t *room)
{
    pthread_mutex_unlock(&room->lock);
}

void nccl_room_wake(room_t *room)
{
    __atomic_add_fetch(&room->changes, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &room->changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void nccl_room_wait(room_t *room)
{
    const struct timespec moment = {0, 20000000};
    const uint32_t seen = __atomic_load_n(&room->changes, __ATOMIC_SEQ_CST);

    nccl_room_unlock(room);
    syscall(SYS_futex, &room->changes, FUTEX_WAIT, seen, &moment, NULL, 0);
    nccl_room_lock(room);
}

/* ---- Meetings ------------------------------------------------------------------------------- */

/* Operations follow each other in neighbouring cells, so a match is nearly always the first. */
meeting_t *nccl_room_meeting(room_t *room, int is_pair, int from, int to, uint64_t index)
{
    const size_t cells = DP_ARRAY_LEN(room->meetings);
    const uint64_t first = (uint64_t)(is_pair * 400 + from * 20 + to) * 521 + index;
    meeting_t *unused = NULL;

    for (uint64_t i = 0; i < WINDOW; i++) {
        meeting_t *at = &room->meetings[(first + i) % cells];

        if (!at->is_used) {
            if (unused == NULL) unused = at;
        } else if (at->is_pair == is_pair && at->from == from && at->to == to &&
                   at->index == index) {
            return at;
        }
    }
    if (unused == NULL) nccl_double_wrong("too many operations at a time");
    memset(unused, 0, sizeof(*unused));
    unused->is_used = 1;
    unused->is_pair = is_pair;
    unused->from = from;
    unused->to = to;
    unused->index = index;
    unused->need = is_pair ? 2 : room->size;
    return unused;
}

uint64_t nccl_room_take_bytes(room_t *room, size_t bytes)
{
    const uint64_t at = room->heap_used;

    if (bytes > HEAP_BYTES - at) nccl_double_wrong("too much data at a time");
    room->heap_used += dp_align_up(bytes, 64);
    room->posts_live++;
    return at;
}

void nccl_room_end_meeting(map_t *map, meeting_t *meeting)
{
    room_t *room = map->room;

    meeting->is_used = 0;
    room->posts_live -= (size_t)meeting->need;
    if (room->posts_live > 0) return;
    if (room->heap_used > KEPT_BYTES) {
        (void)madvise(map->heap, dp_align_up(room->heap_used, 4096), MADV_REMOVE);
    }
    room->heap_used = 0;
}
