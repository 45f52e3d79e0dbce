/*
 * stream_span.h - times the program's work on a device's stream, for the timeline: here the waits
 * inside it; dp.h declares the spans of the program.
 *
 * Called by wait.c, on the program's threads, and by init.c at the end.
 */
#ifndef DP_COORDINATOR_STREAM_SPAN_H
#define DP_COORDINATOR_STREAM_SPAN_H

#include "coordinator/api/context/context.h"

/* Where the program marks its work on this stream: marks the beginning of a wait for an operation
 * there, behind which the device computes nothing. NULL: nothing to mark. Lock not held. */
dp_stream_span_t *dp_stream_span_wait(dp_context_t *context, dp_stream_t *stream, uint32_t name);
void dp_stream_span_waited(dp_context_t *context, dp_stream_span_t *span); /* NULL is fine */
/* Once the streams are gone, and with them all that wrote to spans. */
void dp_stream_spans_free(dp_stream_spans_t *spans);

#endif
