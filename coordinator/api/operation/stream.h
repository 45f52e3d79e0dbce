/*
 * stream.h - operations that begin behind a device's stream, or that a stream waits for.
 *
 * Called by submit.c, wait.c, stream_span.c and the two syncs on a stream (gradients_stream.c,
 * coordinator/shards), on the program's threads; most with the context's lock held.
 */
#ifndef DP_COORDINATOR_STREAM_H
#define DP_COORDINATOR_STREAM_H

#include "coordinator/api/context/context.h"

/*
 * A stream of this context's device that dp_options_t may name, for tests of that path
 * where a program has none of its own; given back with the context.
 */
dp_status_t dp_context_stream_create(dp_context_t *context, dp_stream_t **out);
/* The device's stream behind a program's; NULL: there is none. Lock held. */
dp_stream_t *dp_stream_find(dp_context_t *context, const void *stream);
/* The common beginning of dp_gradients_sync_on() and dp_shards_sync_on(): writes where the result
 * will lie (result NULL: not wanted), and finds the stream. Figures on the host need none: *out is
 * NULL then. what: goes before the text of an error. Any thread. */
dp_status_t dp_stream_begin_sync(dp_context_t *context, const char *what, dp_figures_t *figures,
                                 int is_on_device, void *native, dp_device_result_t *result,
                                 dp_stream_t **out);
/* Gives a request the events it needs, and records its ready event on the stream; NULL: it has no
 * stream of its own, but others may wait for it. Lock held. */
dp_status_t dp_stream_attach(dp_handle_t *request, dp_stream_t *stream);
void dp_stream_detach(dp_handle_t *request); /* lock held; the events return to the pool */
void dp_streams_free(dp_context_t *context);

#endif
