/*
 * cuda_internal.h - what the files of the CUDA device share. Each calls only those below it:
 *
 *     cuda.c             the device as an ops table, its memory, the skip flag, its life
 *     cuda_stream.c      streams and events
 *     cuda_work.c        casts, fills and copies that are enqueued on a stream
 *     cuda_completion.c  the threads that run functions once a stream has reached them
 *     cuda_call.c        errors, the device that is current in a thread, waiting for an event
 */
#ifndef DP_DEVICE_CUDA_INTERNAL_H
#define DP_DEVICE_CUDA_INTERNAL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cuda.h"
#include "runtime/device/cuda.h"

#define CUDA_BATCH 256u /* pieces of one launch */
/* Batches of a stream under way that need memory of their own. A thread queues a step while the
 * device is in the one before, so two steps of a model whose layers are launched one by one. */
#define CUDA_RING 64u

#define CUDA_COMPLETIONS                                                                           \
    3 /* of the main streams, of those of ours that have branched off, of the program's */

typedef struct cuda_device cuda_device_t;
typedef struct cuda_completion cuda_completion_t;

struct dp_event {
    cuda_device_t *device; /* borrowed */
    cudaEvent_t native;
};

/* Memory of one batch: its table and tallies, on the host (pinned) and on the device. */
typedef struct cuda_batch {
    unsigned char *host, *memory;
    int is_busy; /* guarded by the device's lock */
    size_t tally_count;
    dp_tally_t *targets[CUDA_BATCH]; /* [tally_count] of the caller */
} cuda_batch_t;

struct dp_stream {
    cuda_device_t *device; /* borrowed */
    cudaStream_t native;
    char name[16];                 /* as profilers show it */
    int is_adopted;                /* the program's: no work of ours but events and stamps */
    cuda_completion_t *completion; /* that runs its functions */
    size_t pending;                /* guarded by the device's lock: items not yet run */
    /* data-plane thread only */
    unsigned char *host, *memory; /* of all batches */
    unsigned next_batch;
    cuda_batch_t *batches; /* [CUDA_RING]; NULL: the program's stream */
};

typedef enum cuda_item_kind { ITEM_CALL, ITEM_TALLIES, ITEM_STAMP } cuda_item_kind_t;

/* Work of a completion thread once the stream has come to the event. */
typedef struct cuda_item {
    struct cuda_item *next;
    cuda_item_kind_t kind;
    cudaEvent_t reached; /* its own; with timing for stamps only */
    dp_stream_t *stream;
    dp_work_fn fn;
    void *argument;
    cuda_batch_t *batch;
    uint64_t *ns;
    unsigned base; /* which of the device's two bases the stamp counts from */
} cuda_item_t;

/* Functions that run one after the other, and the thread that runs them. */
struct cuda_completion {
    cuda_device_t *device;
    pthread_t worker;
    int is_started;                /* see dp_cuda_stream_branch(); and the device's end */
    _Atomic uint64_t final_cpu_ns; /* of the thread */
    cuda_item_t *head, **tail;     /* guarded by the device's lock */
};

/* A moment known by the device's clock and by the host's. */
typedef struct cuda_base {
    cudaEvent_t event;
    uint64_t ns;  /* 0: not known */
    size_t users; /* guarded by the device's lock: stamps that count from it */
} cuda_base_t;

/* Calls of the driver, which no library is linked with; NULL: it has none. */
typedef struct cuda_driver {
    CUresult (*get_current)(CUcontext *);
    CUresult (*get_state)(CUdevice, unsigned *, int *);
} cuda_driver_t;

struct cuda_device {
    dp_device_t base;
    const dp_log_t *log; /* borrowed */
    cuda_driver_t driver;
    int ordinal;
    int priority; /* of communication streams */
    uint64_t spin_ns;
    char about[160];
    uint32_t *skip;          /* a flag, pinned and mapped: one address for host and device */
    _Atomic int is_unloaded; /* CUDA, as the process ends */
    cuda_completion_t completions[CUDA_COMPLETIONS];
    pthread_mutex_t lock;
    pthread_cond_t change; /* something was queued, or is over */
    /* guarded by lock */
    cuda_item_t *spare, *spare_timed;
    size_t pending; /* items not yet run */
    int is_stopping;
    dp_error_t failure;        /* the first that ends the device; DP_OK: none */
    pthread_mutex_t base_lock; /* taken before lock */
    /* guarded by base_lock, but for users */
    cudaStream_t clock;
    cuda_base_t bases[2];
    unsigned base_now;
    uint64_t base_tried_ns;
};

/* ---- cuda_call.c ---------------------------------------------------------------------------- */

/* Logs a failed call and translates it; the expression's value is a dp_status_t. */
#define DP_CUDA(device, call) dp_cuda_result((device), (int)(call), #call)
dp_status_t dp_cuda_result(cuda_device_t *device, int code, const char *call);

/* A thread that has worked with no device yet gets this one: else its next call, even one that only
 * asks, would make a context on device 0, and take half a gigabyte of it. */
dp_status_t dp_cuda_arrive(cuda_device_t *device);

/* Makes the device current in a thread of the data plane, which is ours: graphs that the program
 * captures on other threads are none of its business. */
dp_status_t dp_cuda_enter(cuda_device_t *device);

/* The same in a thread of the program, which goes on with the device it works with. */
dp_status_t dp_cuda_visit(cuda_device_t *device, int *back);
void dp_cuda_leave(cuda_device_t *device, int back);

/* 1: the stream captures a graph, so an event recorded there would become a part of it. */
int dp_cuda_is_capturing(cudaStream_t stream);

/* The driver's calls, once the runtime has found the driver. */
cuda_driver_t dp_cuda_find_driver(void);
/* 1: the calling thread works with a device already. */
int dp_cuda_has_context(const cuda_driver_t *driver);

/* cudaEventQuery() that leaves no error behind where the event was not reached yet. */
cudaError_t dp_cuda_query(cudaEvent_t event);
/* Polls, then blocks, until a native event was reached. */
cudaError_t dp_cuda_await(const cuda_device_t *device, cudaEvent_t event);

static inline cuda_device_t *dp_cuda_of(dp_device_t *device)
{
    return (cuda_device_t *)(void *)device;
}

/* ---- cuda_stream.c -------------------------------------------------------------------------- */

dp_status_t dp_cuda_stream_create(dp_device_t *self, const char *name, dp_stream_t **out);
dp_status_t dp_cuda_stream_adopt(dp_device_t *self, void *native, dp_stream_t **out);
void *dp_cuda_stream_native(const dp_stream_t *stream);
void dp_cuda_stream_destroy(dp_stream_t *stream);
dp_status_t dp_cuda_stream_wait(dp_stream_t *stream, dp_event_t *event);
dp_status_t dp_cuda_event_create(dp_device_t *self, dp_event_t **out);
void dp_cuda_event_destroy(dp_event_t *event);
dp_status_t dp_cuda_event_record(dp_event_t *event, dp_stream_t *stream);
int dp_cuda_event_done(const dp_event_t *event);
dp_status_t dp_cuda_event_wait(const dp_event_t *event);

/* ---- cuda_work.c ---------------------------------------------------------------------------- */

dp_status_t dp_cuda_work_cast(dp_stream_t *stream, const dp_cast_args_t *args,
                              dp_figures_t *figures);
dp_status_t dp_cuda_work_fill(dp_stream_t *stream, dp_dtype_t dtype, dp_reduce_t reduce, void *to,
                              size_t count);
dp_status_t dp_cuda_work_copy(dp_stream_t *stream, void *to, const void *from, size_t bytes);

/* A stream's memory for batches. */
dp_status_t dp_cuda_batches_init(dp_stream_t *stream);
void dp_cuda_batches_fini(dp_stream_t *stream);

/* ---- cuda_completion.c ---------------------------------------------------------------------- */

dp_status_t dp_cuda_call(dp_stream_t *stream, dp_work_size_t size, dp_work_fn fn, void *argument);
dp_status_t dp_cuda_stamp(dp_stream_t *stream, uint64_t *ns);

/* An item is allocated from a pool, filled in, and pushed behind all that the stream was given so
 * far. The completion thread frees it; one that was not pushed is freed by its caller. */
dp_status_t dp_cuda_item_alloc(cuda_device_t *device, int is_timed, cuda_item_t **out);
void dp_cuda_item_free(cuda_device_t *device, cuda_item_t *item);
dp_status_t dp_cuda_item_push(dp_stream_t *stream, cuda_item_t *item);

/* The stream's items go to the second completion thread, those of a stream of the program's to the
 * third. A thread starts when first needed. Callers for the same thread exclude each other. */
dp_status_t dp_cuda_stream_branch(dp_stream_t *stream);

/* Takes the first base, which may wait for a moment. */
dp_status_t dp_cuda_clock_start(cuda_device_t *device);

void dp_cuda_completion_init(cuda_device_t *device);
dp_status_t dp_cuda_completion_start(cuda_completion_t *completion);
void dp_cuda_completion_stop(cuda_device_t *device);
void dp_cuda_completion_drain(dp_device_t *self);
uint64_t dp_cuda_completion_cpu_ns(cuda_device_t *device);

#endif
