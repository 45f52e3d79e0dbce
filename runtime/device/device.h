/*
 * device.h - memory, streams and events as one ops table, so that the pipeline is written once.
 *
 * A stream runs what it is given in order; an event marks a point in a stream. On the host a stream
 * is a FIFO with a worker thread that starts when first needed: an idle stream runs a small piece
 * of work inline in the calling thread (handing over costs up to 20 us on a virtual machine).
 */
#ifndef DP_DEVICE_H
#define DP_DEVICE_H

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

typedef struct dp_device_ops {
    const char *name; /* "host" */
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
    /* Runs fn(argument) in stream order. Both are borrowed until then. */
    dp_status_t (*call)(dp_stream_t *stream, dp_work_size_t size, dp_work_fn fn, void *argument);
    /* CPU time of the device's own threads so far, ns. */
    uint64_t (*cpu_ns)(const dp_device_t *self);
    void (*destroy)(dp_device_t *self);
} dp_device_ops_t;

struct dp_device {
    const dp_device_ops_t *ops;
};

/* spin_ns: longest an idle worker or a waiter polls before it sleeps; 0 where threads outnumber
 * cores. */
dp_status_t dp_device_host_create(uint64_t spin_ns, const dp_log_t *log, dp_device_t **out);
void dp_device_destroy(dp_device_t *device); /* NULL is fine */

#endif
