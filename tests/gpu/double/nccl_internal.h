/*
 * nccl_internal.h - what the files of NCCL's double share.
 *
 * nccl.c is what tests ask for and the calls that move data, nccl_comm.c communicators, nccl_work.c
 * what an operation does once its stream comes to it, nccl_room.c the memory where ranks meet.
 */
#ifndef DP_TESTS_NCCL_DOUBLE_INTERNAL_H
#define DP_TESTS_NCCL_DOUBLE_INTERNAL_H

#include <nccl.h>
#include <pthread.h>
#include <stdint.h>

#include "tests/gpu/double/nccl.h"

enum { ranks_max = 20, looks = 3, operations_max = 4096 };

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV } kind_t;

/* ---- Shared by the ranks of a communicator, threads or processes ---------------------------- */

/* One rank's part in a meeting. */
typedef struct post {
    int is_there;
    kind_t kind;
    ncclDataType_t type;
    ncclRedOp_t reduce;
    int root;
    size_t count;
    uint64_t data; /* in the room's heap: a copy of the input */
} post_t;

/* Where the operations of the ranks that belong together are. */
typedef struct meeting {
    int is_used;
    int is_pair, from, to; /* a send and its receive */
    uint64_t index;
    int need, arrived, read, left;
    post_t posts[ranks_max]; /* by rank; a pair: sender, receiver */
} meeting_t;

/* Of one communicator. All but `changes` is guarded by lock. */
typedef struct room {
    pthread_mutex_t lock; /* robust: a rank may die in it */
    uint32_t changes;     /* a futex */
    int size, joined, left, connected;
    struct {
        int pid, device;
        char host[64];
    } ranks[ranks_max];
    int is_broken; /* a communicator was aborted: nobody waits for it with success */
    uint64_t heap_used;
    size_t posts_live; /* that have data in the heap */
    meeting_t meetings[8192];
} room_t;

/* A room as this process sees it. */
typedef struct map {
    struct map *next;
    ncclUniqueId id;
    room_t *room;
    unsigned char *heap;
    int fd; /* of who made the id: others open it; else -1 */
    int comms, was_joined;
} map_t;

/* ---- This process's ------------------------------------------------------------------------- */

typedef struct operation {
    kind_t kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduce;
    int root; /* or the peer */
    cudaStream_t stream;
    meeting_t *meeting;
    char *result;
    size_t result_bytes;
} operation_t;

typedef struct work {
    ncclComm_t comm;
    operation_t *operations;
    size_t count;
    int never_ends;
} work_t;

/* Guarded by the lock of its room. */
struct ncclComm {
    ncclComm_t next; /* guarded by nccl_double.lock */
    map_t *map;
    room_t *room;
    int rank, size, looks_left;
    int is_ready, is_aborted, is_finalized, never_ready;
    int is_connected; /* has called a collective */
    int device;
    int is_late;         /* in progress for ever */
    void *memory;        /* of the device */
    cudaStream_t stream; /* of the latest operation */
    int running;         /* pieces of work on streams */
    int registered;
    uint64_t collectives, sent[ranks_max], received[ranks_max];
    work_t *pending; /* a group in progress */
    ncclResult_t error;
};

typedef struct nccl_double {
    pthread_mutex_t lock; /* taken inside of a room's */
    map_t *maps;
    ncclComm_t comms;
    int faults[NCCL_FAULT_COUNT];
    size_t memory, aborted, operations;
    unsigned ids;
} nccl_double_t;
extern nccl_double_t nccl_double;

_Noreturn void nccl_double_wrong(const char *what);
/* 1: the fault happens now. */
int nccl_double_strikes(nccl_fault_t fault);
int nccl_double_value(nccl_fault_t fault);
void nccl_double_count(size_t *counter);

/* ---- nccl_room.c ---------------------------------------------------------------------------- */

map_t *nccl_room_make(void);                     /* with an id of its own */
map_t *nccl_room_find(const ncclUniqueId *id);   /* counts a communicator in; never NULL */
void nccl_room_leave(map_t *map, int is_broken); /* and out; the map may be gone */
void nccl_room_drop_unused(void);                /* ids that nobody came to */
void nccl_room_lock(room_t *room);
void nccl_room_unlock(room_t *room);
void nccl_room_wake(room_t *room); /* something changed; locked */
void nccl_room_wait(room_t *room); /* for that, or a moment; locked before and after */
/* The meeting of this description; locked. */
meeting_t *nccl_room_meeting(room_t *room, int is_pair, int from, int to, uint64_t index);
void nccl_room_end_meeting(map_t *map, meeting_t *meeting);
uint64_t nccl_room_take_bytes(room_t *room, size_t bytes);

/* ---- nccl_comm.c ---------------------------------------------------------------------------- */

/* Puts a group that is in progress on its stream. The room is locked. */
ncclResult_t nccl_comm_launch(ncclComm_t comm);

/* ---- nccl_work.c ---------------------------------------------------------------------------- */

size_t nccl_operation_bytes(const operation_t *operation);
void nccl_work_run(void *work); /* on its stream; frees it */

#endif
