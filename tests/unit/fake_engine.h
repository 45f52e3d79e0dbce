/*
 * fake_engine.h - an engine for the pipeline's tests: ranks in one process that meet in a room,
 * where the last to arrive computes an operation for all with the naive loops. Groups meet each at
 * a table of their own; all collectives an engine knows are there, memory is any.
 */
#ifndef DP_TESTS_FAKE_ENGINE_H
#define DP_TESTS_FAKE_ENGINE_H

#include "runtime/engine/engine.h"

typedef struct fake_room fake_room_t;

fake_room_t *fake_room_create(int ranks);
void fake_room_destroy(fake_room_t *room); /* after its engines */

/* compresses: as dp_engine_ops_t says; then elements on the wire are rounded by a cast and back. */
dp_engine_t *fake_engine_create(fake_room_t *room, dp_device_t *device, int rank, int compresses);

/* How a task gets into the order of a stream, where that is not the device's call(). */
typedef dp_status_t (*fake_launch_fn)(dp_stream_t *stream, dp_work_fn fn, void *argument);
void fake_engine_set_launch(dp_engine_t *engine, fake_launch_fn launch);

/* Operation number `index` (1, 2, ...) of the world fails with this on every rank. */
void fake_room_fail(fake_room_t *room, uint64_t index, dp_status_t status, const char *text);

/* enqueue() refuses from now on. */
void fake_engine_refuse(dp_engine_t *engine);

/* Counts this rank's operations, and those with a compressed wire. */
uint64_t fake_engine_count(const dp_engine_t *engine, uint64_t *compressed);
/* How many of them came in the gather lane. */
uint64_t fake_engine_gathers(const dp_engine_t *engine);

#endif
