/*
 * turns.h - whose line goes into a sink, when several ranks write.
 *
 * A line comes in one piece, and longer ones in several. From the first piece of a long line to its
 * end the sink is its writer's: what others write meanwhile waits here, and follows. So that nobody
 * waits for ever, the turn ends early when its writer is silent for a second, or has written 64 MiB
 * while others wait, or 16 MiB wait.
 *
 * Called by output.c, on dprun's event loop. It must not know about prefixes or ranks.
 */
#ifndef DP_LAUNCHER_TURNS_H
#define DP_LAUNCHER_TURNS_H

#include "launcher/dprun/output/sink.h"

typedef struct dp_turns dp_turns_t;

/* The turn of a writer in the middle of its line was ended: others' lines follow in the sink. */
typedef void (*dp_turn_broken_fn)(void *context, int writer);

/* For writers 0 .. count - 1. sink is borrowed. */
dp_status_t dp_turns_create(struct event_base *base, dp_sink_t *sink, int count,
                            dp_turn_broken_fn broken, void *context, dp_turns_t **out,
                            dp_error_t *error);
void dp_turns_destroy(dp_turns_t *turns); /* NULL is fine */

/* Into the sink, or behind what waits. Flushes nothing. */
void dp_turns_write(dp_turns_t *turns, int writer, const void *data, size_t bytes);

/* A piece of the writer's is written; goes_on: its line is not over. */
void dp_turns_end_piece(dp_turns_t *turns, int writer, int goes_on);

/* Whether a line is under way. */
int dp_turns_are_taken(const dp_turns_t *turns);
size_t dp_turns_waiting(const dp_turns_t *turns); /* bytes */

#endif
