/*
 * device.h - memory, streams and events as one ops table, so that the pipeline is written once.
 *
 * A stream runs what it is given in order; an event marks a point in a stream. On the host a stream
 * is a FIFO with a worker thread that starts when first needed: an idle stream runs a small piece
 * of work inline in the calling thread (handing over costs up to 20 us on a virtual machine). On a
 * CUDA device a stream is the device's own, and what a stage does to memory is enqueued there.
 *
 * Created by dp_init(), called by fusion/ (the data plane's threads), the engines and, where an
 * entry says so, the program's threads. It must not know what is reduced, nor with whom.
 */
#ifndef DP_DEVICE_H
#define DP_DEVICE_H

#include "kernels/kernels.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

typedef struct dp_device dp_device_t;
typedef struct dp_stream dp_stream_t;
typedef struct dp_event dp_event_t;

typedef void (*dp_work_fn)(void *argument);

/* How much a piece of work is worth handing to another thread. */
typedef enum dp_work_size {
    DP_WORK_SMALL, /* runs inline where the stream is idle and the caller owns the data plane */
    DP_WORK_LARGE  /* runs on the stream's own thread */
} dp_work_size_t;

/* Which memory a pointer points to, as a device sees it. */
typedef enum dp_memory_kind {
    DP_MEMORY_HOST,        /* ordinary memory, which only the CPU can use */
    DP_MEMORY_DEVICE,      /* this device's, or pinned or managed, which it can use as well */
    DP_MEMORY_OTHER_DEVICE /* another device's: no work of this one may touch it */
} dp_memory_kind_t;

typedef struct dp_device_ops {
    const char *name; /* "host", "cuda" */
    /* 0: the stream itself runs the functions given to call(), and only the entries up to destroy
     * are there. 1: stream work runs on a device, see the entries behind it. */
    int is_async;
    dp_status_t (*alloc)(dp_device_t *self, size_t bytes, void **memory);
    void (*free)(dp_device_t *self, void *memory);
    dp_status_t (*stream_create)(dp_device_t *self, const char *name, dp_stream_t **out);
    void (*stream_destroy)(dp_stream_t *stream); /* after its work is done */
    dp_status_t (*event_create)(dp_device_t *self, dp_event_t **out);
    void (*event_destroy)(dp_event_t *event);
    /* Marks the end of what was given to the stream so far. An event may be recorded again once its
     * earlier point was reached. */
    dp_status_t (*event_record)(dp_event_t *event, dp_stream_t *stream);
    int (*event_done)(const dp_event_t *event);         /* never recorded: done */
    dp_status_t (*event_wait)(const dp_event_t *event); /* blocks the calling thread */
    /* Later work of the stream starts after the event's latest record. */
    dp_status_t (*stream_wait)(dp_stream_t *stream, dp_event_t *event);
    /* Runs fn(argument) in stream order. Both are borrowed until then. Asynchronous: on a thread of
     * the device's own, once the stream has come here; functions of all streams, but those that
     * have branched off, run one after the other in the order they were given, and the stream does
     * not wait for them. They run in any
     * case, after a failure of the device too: then health() says so. */
    dp_status_t (*call)(dp_stream_t *stream, dp_work_size_t size, dp_work_fn fn, void *argument);
    /* CPU time of the device's own threads so far, ns. */
    uint64_t (*cpu_ns)(const dp_device_t *self);
    void (*destroy)(dp_device_t *self);

    /* Of asynchronous devices only. */

    /* Functions given to call() on this stream, tallies and stamps get an order and a thread of
     * their own, with those of other such streams: they do not wait for the device to reach what
     * the rest were given for. Before the stream's first work, from a data-plane thread. An adopted
     * stream has functions and stamps only behind this: any thread, one at a time, any number of
     * times; drain() does not wait for them. */
    dp_status_t (*stream_branch)(dp_stream_t *stream);

    /* The next four enqueue on the stream and return; from a thread of the data plane. They wait at
     * most for what was enqueued before. */

    /* dp_kernel_cast() on the device. Arguments are copied. Tallies are in host memory, borrowed
     * and added to before any call() runs that is given later; in stream order all of them are
     * added to figures as well, in the device's memory, unless NULL. */
    dp_status_t (*cast)(dp_stream_t *stream, const dp_cast_args_t *args, dp_figures_t *figures);
    /* Fills in the identity of a reduction, count times. */
    dp_status_t (*fill)(dp_stream_t *stream, dp_dtype_t dtype, dp_reduce_t reduce, void *to,
                        size_t count);
    dp_status_t (*copy)(dp_stream_t *stream, void *to, const void *from, size_t bytes);
    /* *ns = when the stream came here, by the host's clock (dp_now_ns()); written before any call()
     * runs that is given later. Stays as it is where the device cannot tell. DP_ERR_UNSUPPORTED: an
     * adopted stream that captures a graph. */
    dp_status_t (*stamp)(dp_stream_t *stream, uint64_t *ns);
    dp_memory_kind_t (*kind)(dp_device_t *self, const void *pointer);
    /* Zeros, written when it returns. Any thread. */
    dp_status_t (*clear)(dp_device_t *self, void *memory, size_t bytes);
    /* Copies what is in the device's memory to the host's, any of it; it is there when this
     * returns. Nothing that writes `from` may be under way. Any thread. */
    dp_status_t (*fetch)(dp_device_t *self, void *to, const void *from, size_t bytes);
    /* Host memory that the device can use too. Any thread. */
    dp_status_t (*pinned_alloc)(dp_device_t *self, size_t bytes, void **memory);
    void (*pinned_free)(dp_device_t *self, void *memory);
    /* A stream of the program's, which lives longer: for event_record and stream_wait, and behind
     * stream_branch for stamp and call.
     * DP_ERR_UNSUPPORTED: it is another device's. */
    dp_status_t (*stream_adopt)(dp_device_t *self, void *native, dp_stream_t **out);
    void *(*stream_native)(const dp_stream_t *stream); /* cudaStream_t */
    /*
     * Sets the skip flag: results of reductions are not to be used. Any thread, any number of
     * times; every kernel that starts after the return sees it. The pipeline's abort, and an engine
     * that meets a failure, call this before they end an operation, because the streams behind it
     * move on then.
     */
    void (*abort)(dp_device_t *self);
    const uint32_t *(*skip_flag)(
        dp_device_t *self); /* the skip flag, 0 or 1, readable by host and device */
    /* Computes the results in figures (memory from alloc()) from the sums that earlier work added
     * to them, and clears the sums. skip is 1 if an element is not finite, or if abort() was called
     * before the stream came here. is_failed: only sets skip. Any thread; streams of the program's
     * too. */
    dp_status_t (*decide)(dp_stream_t *stream, dp_figures_t *figures, double clip_norm,
                          int is_failed);
    /* Adds the sums of one to those of another, and clears the former. Both in memory from alloc();
     * any thread; streams of the program's too. */
    dp_status_t (*add_figures)(dp_stream_t *stream, dp_figures_t *into, dp_figures_t *from);
    /* DP_OK, or the failure after which the device does nothing more. Any thread. */
    dp_status_t (*health)(dp_device_t *self, dp_error_t *error);
    /* Waits until all functions given to call() so far have run, and tallies and stamps are
     * written. */
    void (*drain)(dp_device_t *self);
    /* Waits until the device has done all work given to it so far, the program's included; returns
     * at once from a device that has failed. Any thread, without locks. */
    void (*synchronize)(dp_device_t *self);
    /* Makes the device current in the calling thread, for its allocations, events and collectives.
     * *back is for leave(), which restores the thread's own. NULL: a thread of the data plane,
     * which keeps this device. */
    dp_status_t (*enter)(dp_device_t *self, int *back);
    void (*leave)(dp_device_t *self, int back);
    /* For people: "NVIDIA H200, GPU 0, ..."; lives as long as the device. */
    const char *(*describe)(const dp_device_t *self);
} dp_device_ops_t;

struct dp_device {
    const dp_device_ops_t *ops;
};

/* spin_ns: longest an idle worker or a waiter polls before it sleeps; 0 where threads outnumber
 * cores. */
dp_status_t dp_device_host_create(uint64_t spin_ns, const dp_log_t *log, dp_device_t **out);
void dp_device_destroy(dp_device_t *device); /* NULL is fine */

#endif
