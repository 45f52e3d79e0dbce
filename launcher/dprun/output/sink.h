/*
 * sink.h - one of dprun's own outputs, written without ever blocking the event loop.
 *
 * The reader of dprun's output may be slow (a pager) or gone (head): the rest queues here. When
 * the queue is too long the sink says so, and output.c reads nothing from the ranks until it has
 * drained. Called by output.c, on dprun's only thread.
 */
#ifndef DP_LAUNCHER_SINK_H
#define DP_LAUNCHER_SINK_H

#include <event2/buffer.h>
#include <event2/event.h>

#include "runtime/base/error.h"

typedef struct dp_sink dp_sink_t;

typedef struct dp_sink_events {
    void (*drained)(void *context); /* below the low mark again after it was full */
    void (*broken)(void *context, int fd, int error); /* the reader is gone; once */
    void *context;
} dp_sink_events_t;

/* fd is borrowed and keeps its flags: it may be shared with a shell. */
dp_status_t dp_sink_create(struct event_base *base, int fd, const dp_sink_events_t *events,
                           dp_sink_t **out, dp_error_t *error);
void dp_sink_destroy(dp_sink_t *sink);

/* Queues bytes after what is there. Dropped when broken or out of memory. */
void dp_sink_write(dp_sink_t *sink, const void *data, size_t bytes);

/* Starts writing what is queued. Call once after a group of dp_sink_write(). */
void dp_sink_flush(dp_sink_t *sink);

int dp_sink_is_full(const dp_sink_t *sink);
size_t dp_sink_queued(const dp_sink_t *sink);

#endif
