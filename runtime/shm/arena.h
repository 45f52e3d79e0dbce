/*
 * arena.h - memory that all ranks of a node map: one memfd per rank, shared once at start.
 *
 *     arena of local rank 1 (one memfd, ARENA_BYTES of address space, pages only where used)
 *     +---------+-------------+----------------+------------+---------------------------- - -
 *     | control | fused buf 0 | dp_alloc()     | (free:     | adopted: pages of the program
 *     | block   |             |                |  no pages) | that it still sees where they were
 *     +---------+-------------+----------------+------------+---------------------------- - -
 *     ^ offset 0: used of local rank 0 only
 *
 *     view in each process of the node:  local rank 0's arena at base 0, rank 1's at base 1, ...
 *     so (local rank, offset) names a byte for all of them: dp_arena_at()
 *
 * The descriptor is passed to the local peers over UNIX sockets in the abstract namespace, so no
 * name is left in a file system whatever happens. As every process maps whole arenas, allocation is
 * local and needs no announcement. Allocations begin at multiples of pages.
 *
 * Created and destroyed by the context; memory is used by the program's threads, fusion/ and the
 * engines. It must not know what lies in the memory.
 */
#ifndef DP_SHM_ARENA_H
#define DP_SHM_ARENA_H

#include "runtime/group/bootstrap.h"
#include "runtime/group/topology.h"

typedef struct dp_arena dp_arena_t;

/* Collective over the ranks of the world (bootstrap); maps the arenas of this rank's node. Peers
 * prove themselves by the job's tag and their uid. */
dp_status_t dp_arena_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                            size_t arena_bytes, uint64_t deadline_ns, const dp_log_t *log,
                            dp_arena_t **out, dp_error_t *error);
void dp_arena_destroy(dp_arena_t *arena); /* NULL is fine */

/* Zeroed, 4096-aligned, from this rank's arena. Freed memory returns to the system. Any thread. */
dp_status_t dp_arena_alloc(dp_arena_t *arena, size_t bytes, void **memory);
dp_status_t dp_arena_free(dp_arena_t *arena, void *memory);

/*
 * Makes whole pages of private anonymous memory pages of this rank's arena, where they are: address
 * and contents stay, and the other ranks see them. DP_ERR_INVALID for what overlaps an adoption or
 * the arena, DP_ERR_UNSUPPORTED for other kinds of memory, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM; the
 * memory is then as before. No other thread may touch the memory meanwhile. Any thread.
 */
dp_status_t dp_arena_adopt(dp_arena_t *arena, void *memory, size_t bytes, dp_error_t *error);
/* Makes adopted memory private again, address and contents kept; destroy does so too.
 * DP_ERR_INVALID when no adoption begins there, or the program has unmapped it: then it is left
 * alone. After another failure it is adopted as before. */
dp_status_t dp_arena_disown(dp_arena_t *arena, void *memory);

/* 1 when [memory, memory + bytes) lies in one allocation of this rank, or in one adoption; *offset
 * in its arena. */
int dp_arena_find(const dp_arena_t *arena, const void *memory, size_t bytes, uint64_t *offset);

/* The offset of an address inside this rank's arena, without asking whether it is allocated, or
 * inside adopted memory. UINT64_MAX: [memory, memory + bytes) is in neither. Any thread, no lock.
 */
uint64_t dp_arena_offset(const dp_arena_t *arena, const void *memory, size_t bytes);

/* Where this process sees byte `offset` of local rank `local`. NULL past its end. */
void *dp_arena_at(const dp_arena_t *arena, int local, uint64_t offset, size_t bytes);

/* Whole pages of a local rank's arena. */
typedef struct dp_arena_part {
    int local;
    uint64_t offset;
    size_t bytes;
} dp_arena_part_t;

/* Maps parts [count] a second time, one behind the other, to be read only. They must stay allocated
 * until the view is destroyed. Any thread. DP_ERR_INVALID: not pages of an arena of this node.
 * DP_ERR_UNSUPPORTED: the system does not do it. DP_ERR_NO_MEMORY: no address space. */
dp_status_t dp_arena_view_create(const dp_arena_t *arena, const dp_arena_part_t *parts, int count,
                                 const void **view, dp_error_t *error);
/* bytes: of all parts together. NULL is fine. */
void dp_arena_view_destroy(const void *view, size_t bytes);

/* The first `bytes` of local rank 0's arena, zeroed at the start: the engine's control block. NULL
 * when that is more than dp_arena_control_room(local size). */
void *dp_arena_control(const dp_arena_t *arena, size_t bytes);

size_t dp_arena_control_room(int local_size);

#endif
