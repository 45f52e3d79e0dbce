/*
 * direct.h - messages between two ranks of an ordered group on one node: no agreement, no lane.
 *
 * It owns the rings in this rank's arena, the messages that are posted and not over, and the thread
 * that moves what no thread of the program waits for. The functions of dp.h call it through
 * dp_engine_direct_t, on any thread; cpu.c and group.c make, end and abort it.
 */
#ifndef DP_ENGINE_CPU_DIRECT_H
#define DP_ENGINE_CPU_DIRECT_H

#include "runtime/engine/cpu/cpu_internal.h"

/* In the node's control block, for so many ranks. */
size_t dp_direct_bytes(int count);

/* memory: dp_direct_bytes(), shared by the node's ranks; borrowed, as is the engine. */
dp_status_t dp_direct_create(dp_cpu_engine_t *engine, void *memory, dp_direct_t **out);
/* No message is posted any more. NULL is fine, here and below. */
void dp_direct_destroy(dp_direct_t *direct);

/* A group has ended: none of its ranks posts or looks for messages in it. */
void dp_direct_forget(dp_direct_t *direct, const dp_cpu_group_t *group);
/* The engine is aborted: all messages fail. */
void dp_direct_abort(dp_direct_t *direct);
/* As dp_engine_ops_t.moves(). */
uint64_t dp_direct_moves(dp_direct_t *direct, int *awaits);

extern const dp_engine_direct_t dp_cpu_direct;

#endif
