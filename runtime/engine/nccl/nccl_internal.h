/*
 * nccl_internal.h - what the files of the NCCL engine share.
 *
 * Threads:
 *   launch      one for the main and the gather lane, one for each ordered lane: issues
 *               operations; holds the group's issue_lock until NCCL has taken one, which may
 *               need other ranks to come to it
 *   keeper      makes and ends communicators, one after the other; aborts them
 *   watcher     looks for errors, for deadlines, and for an abort that does not come to an end
 *   completion  the device's; ends operations
 *   any         allocates, registers and frees memory, aborts
 *
 * Locks, in the order in which they are taken: memory.lock, issue_lock, call_lock; `lock` inside of
 * the first two, and never while call_lock is held, as the watcher tries call_lock while it holds
 * `lock`. Communicators are non-blocking, so no call into NCCL lasts, and call_lock is free soon
 * whatever the other ranks do.
 */
#ifndef DP_ENGINE_NCCL_INTERNAL_H
#define DP_ENGINE_NCCL_INTERNAL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "runtime/engine/nccl/nccl.h"

#define DP_NCCL_EXIT_CODE 70 /* of a process whose communicators cannot be aborted */

typedef struct dp_nccl_engine dp_nccl_engine_t;
typedef struct dp_nccl_group dp_nccl_group_t;

/* A communicator is made once, used, and ended once; all by the keeper but its use. */
typedef enum dp_nccl_state {
    DP_NCCL_MAKING,
    DP_NCCL_READY,
    DP_NCCL_ENDING /* asked for */
} dp_nccl_state_t;

/* A dp_engine_group_t of this engine. */
struct dp_nccl_group {
    dp_nccl_engine_t *engine;
    uint32_t uid;
    int rank, size;             /* in the group */
    int *ranks;                 /* [size] of the world */
    char name[64];              /* what NCCL calls it */
    char title[80];             /* " of group 'x'", "" for the world */
    uint64_t settle_ns;         /* longest a call may be in progress; 0: no limit */
    pthread_mutex_t issue_lock; /* held while a thread issues something on the communicator and
                                    waits until NCCL has taken it */
    ncclComm_t comm;            /* guarded by call_lock */
    /* guarded by the engine's lock */
    dp_nccl_state_t state;
    int in_flight; /* operations */
    dp_nccl_group_t *next, *next_job;
    dp_nccl_group_t *next_joined; /* guarded by memory.lock */
    dp_nccl_group_t *gathers; /* its ranks in the gather lane; launch thread only; NULL: none yet */
    cudaEvent_t id_came;      /* NULL: the id is known */
    /* keeper only */
    pthread_t breaker; /* aborts it */
    int has_breaker;
};

/* An operation under way. Pooled with its flag `begun`. */
typedef struct dp_nccl_task {
    struct dp_nccl_task *next, **link; /* guarded by the engine's lock; next: an earlier one */
    dp_nccl_engine_t *engine;
    dp_nccl_group_t *group;
    dp_engine_op_t *op;
    uint64_t sequence;
    dp_collective_t collective;
    uint32_t *begun;      /* pinned: the GPU writes 1 when it comes to the operation */
    int is_issued;        /* guarded by the engine's lock */
    uint64_t begun_ns;    /* when the watcher saw both; 0: not yet */
    dp_error_t truncated; /* DP_OK, or how all its ranks know that it does not fit */
} dp_nccl_task_t;

/* Memory that NCCL knows, and what each communicator calls it. */
typedef struct dp_nccl_handle {
    dp_nccl_group_t *group;
    void *handle;
} dp_nccl_handle_t;

/* The flags of as many tasks, in pinned memory: more operations than are ever in flight. */
#define DP_NCCL_PAGE 1024
typedef struct dp_nccl_page {
    struct dp_nccl_page *next;
    uint32_t *flags; /* [DP_NCCL_PAGE] */
    size_t used;
} dp_nccl_page_t;

typedef struct dp_nccl_range {
    struct dp_nccl_range *next;
    char *base;
    size_t bytes;
    int is_own; /* from ncclMemAlloc */
    dp_nccl_handle_t *handles;
    size_t handle_count;
} dp_nccl_range_t;

/* How long things may take; ns. */
typedef struct dp_nccl_limits {
    uint64_t operation_ns; /* 0: no limit */
    uint64_t start_ns;     /* of meeting, and of making and of ending a communicator */
    uint64_t break_ns;     /* of aborting all of them: then the process ends */
} dp_nccl_limits_t;

/* Why the engine stops. Guarded by its lock, but for is_set, which is written under it: the other
 * fields do not change once it is 1. */
typedef struct dp_nccl_abort {
    _Atomic int is_set;
    dp_status_t status;
    char text[DP_ERROR_TEXT_MAX];
    uint64_t ns;
} dp_nccl_abort_t;

/* Work of the keeper: communicators to be made or ended, in their order. Guarded by lock. */
typedef struct dp_nccl_jobs {
    dp_nccl_group_t *first, **tail;
    int left; /* those, and the one that the keeper is at */
} dp_nccl_jobs_t;

typedef struct dp_nccl_threads {
    pthread_t keeper, watcher;
    int has_keeper, has_watcher;
} dp_nccl_threads_t;

/* The id of the group that is being made. The launch thread writes it, the keeper reads it; the
 * next group waits for the keeper. */
typedef struct dp_nccl_making {
    ncclUniqueId *id;        /* pinned */
    ncclUniqueId *device_id; /* device memory */
} dp_nccl_making_t;

/* exchange.c: what every rank sends. Launch thread. */
typedef struct dp_nccl_manifests {
    uint64_t *host, *device; /* [words] pinned, device memory */
    size_t words;
    cudaEvent_t came;
} dp_nccl_manifests_t;

/* run.c: of the pieces of an operation. Launch thread. */
typedef struct dp_nccl_pieces {
    const void **sources; /* [room] where each is read */
    void **outputs;       /* [room] where NCCL writes it */
    size_t *strides;      /* [room] */
    size_t room;
    const void **inputs; /* [size of the world] of one piece */
} dp_nccl_pieces_t;

/* run.c: memory of one operation, freed behind it on the stream. Launch thread. */
typedef struct dp_nccl_scratch {
    cudaMemPool_t pool; /* NULL: the device's */
    void **list;        /* [count] of [room] */
    size_t count, room;
} dp_nccl_scratch_t;

/* State for issuing operations. Only the issuing thread uses it: the launch thread of the main and
 * the gather lane, or of an ordered lane; before and after that one the thread that makes it. */
typedef struct dp_nccl_issuing {
    cudaStream_t side;     /* ids of groups, and manifests of exchanges */
    dp_nccl_page_t *pages; /* the one with room first */
    char *barrier;         /* a byte of device memory */
    dp_nccl_manifests_t manifests;
    dp_nccl_pieces_t pieces;
    dp_nccl_scratch_t scratch;
} dp_nccl_issuing_t;

/* memory.c: the memory that communicators know, or will know. */
typedef struct dp_nccl_memory {
    pthread_mutex_t lock; /* taken before issue_lock */
    int registers;        /* 0: NCCL is told of no range; before the first one */
    dp_nccl_range_t *ranges;
    dp_nccl_group_t *joined; /* all communicators that know the ranges, but the world's */
    cudaStream_t zeroing;    /* of new memory; any thread */
} dp_nccl_memory_t;

struct dp_nccl_engine {
    dp_engine_t base;
    dp_nccl_engine_t *self; /* for callers that hold it const */
    const dp_topology_t *topology;
    dp_bootstrap_t *bootstrap;
    dp_device_t *device;
    const dp_log_t *log;
    struct dp_inject *injector;
    int rank, size, gpu, max_ctas;
    char interface[16]; /* on which nodes have met; "": there is one node */
    dp_nccl_limits_t limits;
    dp_nccl_group_t *world;
    dp_nccl_group_t *ordered; /* the same ranks, for the operations of an ordered world; or NULL */
    pthread_mutex_t
        call_lock; /* inside of a group's issue_lock, for the time of one call into NCCL */
    pthread_mutex_t lock;
    pthread_cond_t change; /* of what lock guards */
    /* guarded by lock */
    dp_nccl_group_t *groups; /* all but the world */
    dp_nccl_jobs_t jobs;
    dp_nccl_task_t *tasks, *spare_tasks; /* in flight, the latest first, and not */
    int is_stopping, is_torn;            /* destroy; the keeper has aborted the communicators */
    dp_nccl_abort_t abort;
    dp_nccl_threads_t threads; /* the thread that creates and destroys the engine */
    dp_nccl_memory_t memory;
    dp_nccl_issuing_t issuing[DP_LANE_COUNT]; /* the gather lane uses the main one's */
    dp_nccl_making_t making;                  /* says which thread writes what */
};

static inline dp_nccl_issuing_t *dp_nccl_issuing_of(dp_nccl_engine_t *engine, dp_lane_t lane)
{
    return &engine->issuing[lane < DP_LANE_ORDERED ? DP_LANE_MAIN : lane];
}

static inline dp_nccl_engine_t *dp_nccl_of(dp_engine_t *engine)
{
    return (dp_nccl_engine_t *)(void *)engine;
}

static inline int dp_nccl_is_aborted(const dp_nccl_engine_t *engine)
{
    return atomic_load_explicit(&engine->abort.is_set, memory_order_acquire);
}

/* ---- support.c ------------------------------------------------------------------------------ */

/* Lets the CPU go for a while that grows with the turns taken. */
void dp_nccl_back_off(unsigned *turns);

/* Notes why the engine stops, and has the communicators aborted; the first reason counts. */
void dp_nccl_stop(dp_nccl_engine_t *engine, dp_status_t status, const char *text);
/* "rank 3: nccl: allreduce 17 of group 'x': ..." as the reason. Returns status. */
dp_status_t dp_nccl_stop_in(const dp_nccl_task_t *task, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The status that a result of NCCL's becomes. */
dp_status_t dp_nccl_status(ncclResult_t result);
/* DP_OK, or DP_ERR_SYSTEM with the text of the CUDA error. */
dp_status_t dp_nccl_cuda(int result, const char *what, dp_error_t *error);
#define DP_NCCL_CUDA(expression, error) dp_nccl_cuda((int)(expression), #expression, error)

/* ---- comm.c --------------------------------------------------------------------------------- */

/*
 * A call into NCCL on a group's communicator, then until NCCL has taken it. issue_lock is held by
 * the caller. DP_ERR_ABORTED: the engine stops, and nothing was called.
 */
#define DP_NCCL_CALL(group, expression, error)                                                     \
    (dp_nccl_enter(group) ? dp_nccl_complete_call(group, expression, #expression, error)           \
                          : dp_nccl_refuse(group, error))
/* 1: call_lock is taken and the communicator is there. */
int dp_nccl_enter(dp_nccl_group_t *group);
/* Gives call_lock back. */
dp_status_t dp_nccl_complete_call(dp_nccl_group_t *group, ncclResult_t result, const char *what,
                                  dp_error_t *error);
dp_status_t dp_nccl_refuse(dp_nccl_group_t *group, dp_error_t *error);

/* Waits for an event without being stuck in CUDA. The limit of an operation, task, counts from when
 * no earlier one is under way; NULL: from now. */
dp_status_t dp_nccl_await_event(dp_nccl_engine_t *engine, cudaEvent_t event, uint64_t limit_ns,
                                const dp_nccl_task_t *task, dp_error_t *error);
/*
 * Waits until the keeper has made and ended all communicators that the launch thread has asked for;
 * group: which texts name. The launch thread calls this before it issues anything.
 *
 * Why not only the communicator that the operation needs: communicators are made, and ended, by all
 * their ranks together. If this rank issued a later operation meanwhile, the keeper could come
 * behind it (for issue_lock, or in cudaFree(), which waits for the whole device); the operation
 * would wait for a rank that waits for that communicator, and that one for this rank's keeper.
 */
dp_status_t dp_nccl_await_keeper(dp_nccl_group_t *group, dp_error_t *error);

/* The world's: collective, over the bootstrap. */
dp_status_t dp_nccl_connect_world(dp_nccl_engine_t *engine, dp_error_t *error);
dp_status_t dp_nccl_group_make(dp_nccl_engine_t *engine, const dp_engine_members_t *members,
                               dp_nccl_group_t **out, dp_error_t *error);
void dp_nccl_group_free(dp_nccl_group_t *group);
dp_status_t dp_nccl_group_create(dp_engine_t *self, const dp_engine_members_t *members,
                                 dp_engine_group_t **group, dp_error_t *error);
void dp_nccl_group_destroy(dp_engine_t *self, dp_engine_group_t *group);
/* A second communicator of the same ranks. */
dp_status_t dp_nccl_open_gather_lane(dp_engine_t *self, dp_engine_group_t *group,
                                     dp_error_t *error);

/* ---- watch.c -------------------------------------------------------------------------------- */

dp_status_t dp_nccl_threads_start(dp_nccl_engine_t *engine, dp_error_t *error);
void dp_nccl_threads_stop(dp_nccl_engine_t *engine); /* ends the communicators too */
/* The keeper's: makes what dp_nccl_group_create() began; ends one in peace; breaks all. */
void dp_nccl_keep_make(dp_nccl_group_t *group);
void dp_nccl_keep_end(dp_nccl_group_t *group);
void dp_nccl_keep_break(dp_nccl_engine_t *engine);

/* ---- run.c, exchange.c ---------------------------------------------------------------------- */

/* Issue an operation on a stream; issue_lock is held. */
dp_status_t dp_nccl_issue(dp_nccl_task_t *task, cudaStream_t stream, dp_error_t *error);
dp_status_t dp_nccl_issue_exchange(dp_nccl_task_t *task, cudaStream_t stream, dp_error_t *error);

/* ---- memory.c ------------------------------------------------------------------------------- */

dp_status_t dp_nccl_alloc(dp_engine_t *self, size_t bytes, void **memory);
dp_status_t dp_nccl_free(dp_engine_t *self, void *memory);
int dp_nccl_owns(const dp_engine_t *self, const void *memory, size_t bytes);
dp_status_t dp_nccl_adopt(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error);
dp_status_t dp_nccl_disown(dp_engine_t *self, void *memory);
/* Once NCCL's version is known. */
void dp_nccl_memory_init(dp_nccl_engine_t *engine, int version);
/* All memory becomes known to a new communicator, and unknown to one that ends. */
void dp_nccl_memory_join(dp_nccl_group_t *group);
void dp_nccl_memory_leave(dp_nccl_group_t *group);
/* Without communicators. */
void dp_nccl_memory_fini(dp_nccl_engine_t *engine);

#endif
