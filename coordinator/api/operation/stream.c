/*
 * stream.c - operations and device streams: data that a stream still produces, and results that a
 * stream waits for.
 *
 * A submission with a stream records an event there (`ready`), and the data plane starts behind it.
 * Behind its last stage the data plane records another (`done`), for dp_stream_wait(). Called on
 * the program's threads with the context's lock held. It uses the device's ops alone: it must not
 * know which device that is.
 *
 * Run-ahead. The data plane takes launches in one order, so a launch whose ready event can only
 * fire after the done event of a later launch would never start. That cannot happen:
 *
 *     dp_stream_wait(h) returns only after h was launched here (it blocks the thread until then)
 *     work that waits for h is enqueued after dp_stream_wait(h) has returned
 *     a submission whose ready event is behind that work comes later still
 *
 * So h has its place in the order before that submission is announced at all. Operations that the
 * root may still put before h were submitted without waiting for h.
 */
#include "coordinator/api/operation/stream.h"

#include <stdlib.h>

#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/request.h"

#define EVENTS_TRIED 8 /* the oldest may be of a stream that is held up */

/* Adds a stream to those that a program may name. Lock held. */
static dp_status_t keep_stream(dp_context_t *context, dp_stream_t *stream)
{
    dp_stream_t **streams =
        realloc(context->streams.list, (context->streams.count + 1) * sizeof(dp_stream_t *));

    if (streams == NULL) return DP_ERR_NO_MEMORY;
    streams[context->streams.count++] = stream;
    context->streams.list = streams;
    return DP_OK;
}

dp_status_t dp_context_stream_create(dp_context_t *context, dp_stream_t **out)
{
    dp_stream_t *stream;
    dp_status_t status = context->device->ops->stream_create(context->device, "program", &stream);

    if (status != DP_OK) return status;
    pthread_mutex_lock(&context->lock);
    status = keep_stream(context, stream);
    pthread_mutex_unlock(&context->lock);
    if (status != DP_OK) {
        context->device->ops->stream_destroy(stream);
        return status;
    }
    *out = stream;
    return DP_OK;
}

dp_stream_t *dp_stream_find(dp_context_t *context, const void *stream)
{
    const dp_device_ops_t *device = context->device->ops;
    dp_stream_t *adopted;

    for (size_t i = 0; i < context->streams.count; i++) {
        if (context->streams.list[i] == stream) return context->streams.list[i];
        if (device->is_async && device->stream_native(context->streams.list[i]) == stream)
            return context->streams.list[i];
    }
    if (!device->is_async) return NULL;
    if (device->stream_adopt(context->device, (void *)(uintptr_t)stream, &adopted) != DP_OK)
        return NULL;
    if (keep_stream(context, adopted) == DP_OK) return adopted;
    device->stream_destroy(adopted);
    return NULL;
}

dp_status_t dp_stream_begin_sync(dp_context_t *context, const char *what, dp_figures_t *figures,
                                 int is_on_device, void *native, dp_device_result_t *result,
                                 dp_stream_t **out)
{
    *out = NULL;
    if (result != NULL) {
        dp_error_t error;
        const dp_device_result_t found = {
            .skip = &figures->skip, .clip_coef = &figures->clip, .norm = &figures->norm};
        const dp_status_t status = dp_sized_check("dp_device_result_t", result->size, &error);

        if (status != DP_OK) return dp_context_error(context, status, "%s: %s", what, error.text);
        dp_sized_write(result, &found, sizeof(found));
    }
    if (!is_on_device) return DP_OK;
    pthread_mutex_lock(&context->lock);
    *out = native == NULL ? NULL : dp_stream_find(context, native);
    pthread_mutex_unlock(&context->lock);
    if (*out != NULL) return DP_OK;
    return dp_context_error(context, DP_ERR_UNSUPPORTED, "%s: the stream %p is none of %s", what,
                            native, context->device->ops->describe(context->device));
}

/* ---- Events --------------------------------------------------------------------------------- */

static void event_release(dp_context_t *context, dp_pooled_event_t *mark)
{
    if (mark == NULL) return;
    mark->next = NULL;
    if (context->streams.events_first == NULL) {
        context->streams.events_first = mark;
    } else {
        context->streams.events_last->next = mark;
    }
    context->streams.events_last = mark;
}

/* One of the oldest events of the pool that its stream has reached, else a new one. */
static dp_pooled_event_t *event_acquire(dp_context_t *context)
{
    const dp_device_ops_t *device = context->device->ops;
    dp_pooled_event_t *mark;

    for (int i = 0; i < EVENTS_TRIED && context->streams.events_first != NULL; i++) {
        mark = context->streams.events_first;
        context->streams.events_first = mark->next;
        if (device->event_done(mark->event)) return mark;
        event_release(context, mark);
    }
    mark = calloc(1, sizeof(*mark));
    if (mark == NULL) return NULL;
    if (device->event_create(context->device, &mark->event) != DP_OK) {
        free(mark);
        return NULL;
    }
    return mark;
}

dp_status_t dp_stream_attach(dp_handle_t *request, dp_stream_t *stream)
{
    dp_context_t *context = request->context;

    request->stream.done = event_acquire(context);
    if (request->stream.done == NULL) return DP_ERR_NO_MEMORY;
    if (stream == NULL) return DP_OK;
    request->stream.ready = event_acquire(context);
    if (request->stream.ready == NULL) return DP_ERR_NO_MEMORY;
    return context->device->ops->event_record(request->stream.ready->event, stream);
}

void dp_stream_detach(dp_handle_t *request)
{
    event_release(request->context, request->stream.ready);
    event_release(request->context, request->stream.done);
    request->stream.ready = request->stream.done = NULL;
}

/* After the pipeline, whose events programs' streams may wait for. */
void dp_streams_free(dp_context_t *context)
{
    for (size_t i = 0; i < context->streams.count; i++)
        context->device->ops->stream_destroy(context->streams.list[i]);
    free(context->streams.list);
    context->streams.list = NULL;
    context->streams.count = 0;
    for (dp_handle_t *request = context->requests.made; request != NULL;
         request = request->links.next_made)
        dp_stream_detach(request); /* of handles that were never given back */
    while (context->streams.events_first != NULL) {
        dp_pooled_event_t *mark = context->streams.events_first;

        context->streams.events_first = mark->next;
        context->device->ops->event_destroy(mark->event);
        free(mark);
    }
}
