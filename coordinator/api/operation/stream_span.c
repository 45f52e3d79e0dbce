/*
 * stream_span.c - spans of the program on a device's stream, for the timeline:
 * dp_stream_span_begin() and dp_stream_span_end().
 *
 * The host queues work long before a device does it, so a span of the thread that queues tells
 * nothing of the work. These spans begin and end when the stream comes to two marks:
 *
 *     thread   begin  kernels  end            (queued within microseconds)
 *     stream     . . . . . .  |stamp| kernels |stamp|
 *     a thread of the device                         writes the record
 *
 * A span's memory belongs to the device from its first stamp to its record, so it returns to the
 * pool only behind that. Called on the program's threads; it must not know which device it has.
 */
#include "coordinator/api/operation/stream_span.h"

#include <stdlib.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/operation/stream.h"

#define SPANS_TRIED 4 /* the oldest may be of a stream that is held up */

struct dp_stream_span {
    dp_stream_span_t *next; /* guarded by the context's lock */
    dp_stream_t *stream;
    dp_trace_track_t *track;
    uint32_t name;
    int is_wait;
    uint64_t step;             /* 1 + its number; 0: queued outside of steps */
    uint64_t start_ns, end_ns; /* written by the device */
    _Atomic int is_recorded;   /* nobody has it any more */
};

/* On the thread that the device runs functions of programs' streams on: the track's only writer. */
static void record_span(void *argument)
{
    dp_stream_span_t *span = argument;

    if (span->start_ns != 0 && span->end_ns >= span->start_ns) {
        dp_trace_record(span->track,
                        (dp_trace_record_t){.kind = DP_TRACE_COMPUTE,
                                            .start_ns = span->start_ns,
                                            .duration_ns = span->end_ns - span->start_ns,
                                            .id = span->step,
                                            .name = span->name,
                                            .aux = span->is_wait ? DP_TRACE_STREAM_WAITS : 0});
    }
    /* pairs with span_acquire(): the record is behind us */
    atomic_store_explicit(&span->is_recorded, 1, memory_order_release);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void span_release(dp_stream_spans_t *spans, dp_stream_span_t *span)
{
    span->next = NULL;
    if (spans->first == NULL) {
        spans->first = span;
    } else {
        spans->last->next = span;
    }
    spans->last = span;
}

/* One of the oldest that was recorded, else a new one; NULL: no memory. Lock held. */
static dp_stream_span_t *span_acquire(dp_stream_spans_t *spans)
{
    for (int i = 0; i < SPANS_TRIED && spans->first != NULL; i++) {
        dp_stream_span_t *span = spans->first;

        spans->first = span->next;
        if (atomic_load_explicit(&span->is_recorded, memory_order_acquire)) return span;
        span_release(spans, span);
    }
    return malloc(sizeof(dp_stream_span_t));
}

static void free_list(dp_stream_span_t *span)
{
    while (span != NULL) {
        dp_stream_span_t *next = span->next;

        free(span);
        span = next;
    }
}

void dp_stream_spans_free(dp_stream_spans_t *spans)
{
    free_list(spans->first);
    free_list(spans->open);
    free_list(spans->lost);
    *spans = (dp_stream_spans_t){NULL, NULL, NULL, NULL, NULL};
}

/* ---- Marks ---------------------------------------------------------------------------------- */

/* A span of the stream, in nobody's list; NULL where there is no memory or no such stream. Lock
 * held. */
static dp_stream_span_t *make_span(dp_context_t *context, dp_stream_t *stream, uint32_t name,
                                   int is_wait)
{
    dp_stream_spans_t *spans = &context->streams.spans;
    dp_stream_span_t *span;

    if (stream == NULL || context->device->ops->stream_branch(stream) != DP_OK) return NULL;
    if (spans->track == NULL)
        spans->track = dp_trace_track(context->trace, "device", DP_TRACE_TRACK_STREAM);
    if (spans->track == NULL) return NULL;
    span = span_acquire(spans);
    if (span == NULL) return NULL;
    *span = (dp_stream_span_t){
        .stream = stream, .track = spans->track, .name = name, .is_wait = is_wait};
    if (atomic_load_explicit(&context->steps.is_open, memory_order_relaxed))
        span->step = atomic_load_explicit(&context->steps.current, memory_order_relaxed) + 1;
    return span;
}

/* The calling thread may work with another device. */
static dp_status_t stamp(dp_context_t *context, dp_stream_t *stream, uint64_t *ns)
{
    dp_device_t *device = context->device;
    int back = -1;
    dp_status_t status = device->ops->enter(device, &back);

    if (status == DP_OK) status = device->ops->stamp(stream, ns);
    device->ops->leave(device, back);
    return status;
}

/* Marks the span's beginning; a span without one is given back. */
static int mark_begin(dp_context_t *context, dp_stream_span_t *span)
{
    const int is_marked = stamp(context, span->stream, &span->start_ns) == DP_OK;

    if (is_marked) return 1;
    atomic_store_explicit(&span->is_recorded, 1, memory_order_relaxed);
    pthread_mutex_lock(&context->lock);
    span_release(&context->streams.spans, span);
    pthread_mutex_unlock(&context->lock);
    return 0;
}

/* One whose end finds no place, say because its stream captures a graph, is never recorded: the
 * device may still write its start, so its memory stays until the context ends. */
static void mark_end(dp_context_t *context, dp_stream_span_t *span)
{
    dp_stream_spans_t *spans = &context->streams.spans;
    dp_stream_t *stream = span->stream;
    dp_status_t status = stamp(context, stream, &span->end_ns);

    if (status == DP_OK)
        status = context->device->ops->call(stream, DP_WORK_SMALL, record_span, span);
    pthread_mutex_lock(&context->lock);
    if (status == DP_OK) {
        span_release(spans, span);
    } else {
        span->next = spans->lost;
        spans->lost = span;
    }
    pthread_mutex_unlock(&context->lock);
}

/* ---- The program's calls -------------------------------------------------------------------- */

void dp_stream_span_begin(dp_context_t *context, const char *name, void *native)
{
    dp_stream_span_t *span;

    if (context == NULL || native == NULL || dp_context_is_forked(context)) return;
    if (context->trace == NULL || !context->device->ops->is_async) return;
    pthread_mutex_lock(&context->lock);
    span =
        make_span(context, dp_stream_find(context, native), dp_trace_name(context->trace, name), 0);
    pthread_mutex_unlock(&context->lock);
    if (span == NULL || !mark_begin(context, span)) return;
    pthread_mutex_lock(&context->lock);
    span->next = context->streams.spans.open;
    context->streams.spans.open = span;
    pthread_mutex_unlock(&context->lock);
}

/* The link to the innermost open span of a stream; it leads to NULL where there is none. */
static dp_stream_span_t **find_open(dp_context_t *context, const dp_stream_t *stream)
{
    dp_stream_span_t **link = &context->streams.spans.open;

    while (*link != NULL && (*link)->stream != stream)
        link = &(*link)->next;
    return link;
}

void dp_stream_span_end(dp_context_t *context, void *native)
{
    dp_stream_span_t **link, *span;

    if (context == NULL || native == NULL || dp_context_is_forked(context)) return;
    if (context->trace == NULL || !context->device->ops->is_async) return;
    pthread_mutex_lock(&context->lock);
    link = find_open(context, dp_stream_find(context, native));
    span = *link;
    if (span != NULL) *link = span->next;
    pthread_mutex_unlock(&context->lock);
    if (span != NULL) mark_end(context, span);
}

dp_stream_span_t *dp_stream_span_wait(dp_context_t *context, dp_stream_t *stream, uint32_t name)
{
    dp_stream_span_t *span = NULL;

    if (!context->device->ops->is_async) return NULL;
    pthread_mutex_lock(&context->lock);
    if (*find_open(context, stream) != NULL) span = make_span(context, stream, name, 1);
    pthread_mutex_unlock(&context->lock);
    return span != NULL && mark_begin(context, span) ? span : NULL;
}

void dp_stream_span_waited(dp_context_t *context, dp_stream_span_t *span)
{
    if (span != NULL) mark_end(context, span);
}
