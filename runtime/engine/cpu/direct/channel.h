/*
 * channel.h - this rank's end of all that it and one other rank of its node send each other in one
 * ordered group. It owns the rings in this rank's arena and the messages in its queues.
 *
 *     rank 0: dp_send                          rank 1: dp_recv
 *     queue `sends` of its channel             queue `receives` of its channel
 *        | a free slot                            | the next slot is written
 *        v                                        v
 *     a slot in rank 0's arena  -- written -->  judged, then copied to out: from the slot (up to
 *        |                                      DP_SLOT_BYTES, or piece by piece), or from where
 *        v                                      the slot says, in slices
 *     over, if it is small;     <-- taken ---   status in the slot
 *     else it is in `announced`
 *
 * direct.c calls it under its lock, on any thread. dp_channel_move() lets go of the lock while it
 * copies.
 */
#ifndef DP_ENGINE_CPU_CHANNEL_H
#define DP_ENGINE_CPU_CHANNEL_H

#include "runtime/engine/cpu/cpu_internal.h"
#include "runtime/engine/cpu/direct/slots.h"

/* One rank's part of the node's control block. */
typedef struct dp_bell {
    alignas(DP_CONTROL_LINE) _Atomic uint32_t count; /* a futex */
    _Atomic uint32_t sleepers;                       /* threads of this rank, on count */
    _Atomic uint32_t sends_over;                     /* it has left, and its sends are written */
    _Atomic uint32_t receives_over;                  /* it has left, and has no receive */
    /* Offset in its arena of uint64_t [ranks of the node]: offset of the first ring to each; 0:
     * none. */
    _Atomic uint64_t table;
} dp_bell_t;

/* All channels of a rank share this. */
typedef struct dp_direct_node {
    dp_cpu_engine_t *engine; /* borrowed */
    char *bells;             /* [count] in the control block */
    int self, count;         /* local ranks of the world */
    _Atomic uint64_t *table; /* this rank's; NULL: not made yet */
    pthread_mutex_t lock;    /* direct.c's: guards table and all channels */
} dp_direct_node_t;

typedef struct dp_channel_queue {
    dp_engine_message_t *first, *last;
} dp_channel_queue_t;

typedef struct dp_channel {
    struct dp_channel *next;
    const dp_cpu_group_t *group; /* compared */
    uint64_t key;                /* of the group, on all its ranks */
    int self, other;             /* ranks of the group */
    int world;                   /* rank of the world, the other one's */
    int local;                   /* local rank of the world, likewise */
    dp_slots_t *out, *in;        /* NULL: not made yet, or not found */
    uint64_t written, taken;
    dp_channel_queue_t sends;     /* to be written */
    dp_channel_queue_t announced; /* written, and not over until the receiver has them */
    dp_channel_queue_t receives;
    int is_copying; /* a thread without the lock, to the first of receives, which it alone ends */
} dp_channel_t;

dp_bell_t *dp_direct_bell(const dp_direct_node_t *node, int local);
/* Wakes the threads of a rank that sleep on its bell. The news is stored before. */
void dp_direct_ring(const dp_direct_node_t *node, int local);

void dp_channel_push(dp_channel_queue_t *queue, dp_engine_message_t *message);
dp_engine_message_t *dp_channel_pop(dp_channel_queue_t *queue); /* NULL: it is empty */
/* Moves the first message of a queue to those that are over. */
void dp_channel_end(dp_channel_queue_t *from, dp_channel_queue_t *over, dp_status_t status);

/* The ring to the other rank, before the first send. DP_ERR_NO_MEMORY. */
dp_status_t dp_channel_make_out(dp_direct_node_t *node, dp_channel_t *channel);

/* Does what can be done at once, but of a large message copies a slice at most, and without
 * may_copy none; 0: nothing. */
int dp_channel_move(dp_direct_node_t *node, dp_channel_t *channel, int may_copy,
                    dp_channel_queue_t *over);
/* The engine is aborted: ends all messages with its status and text. Receives of a channel that is
 * copying end with the copy of its slice. */
void dp_channel_abort(dp_direct_node_t *node, dp_channel_t *channel, dp_channel_queue_t *over);

#endif
