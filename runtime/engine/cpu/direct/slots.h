/*
 * slots.h - the ring through which one rank sends messages to another one of its node, in one
 * ordered group. Pure: plain memory, one writer, one reader; it must not know which
 * thread sleeps, or when.
 *
 *     written 7   the sender's: slots that it has filled in
 *     taken   5   the receiver's: slots that it is done with
 *     slots       | 4 | 5 | 6 |   |        slot n lies at n % DP_SLOT_COUNT
 *                       ^ the receiver's next one
 *
 * The n-th message that is sent is the n-th that is received, so nothing is searched for. A message
 * takes one slot, or several where it travels in pieces. Memory of another process is not to be
 * trusted: the receiver copies a slot's head before it looks at it.
 */
#ifndef DP_ENGINE_CPU_SLOTS_H
#define DP_ENGINE_CPU_SLOTS_H

#include <stdalign.h>
#include <stdatomic.h>

#include "dp.h"
#include "runtime/base/common.h"

#define DP_SLOT_COUNT 32
#define DP_SLOT_BYTES ((size_t)8 * DP_KIB)
#define DP_SLOT_TEXT (DP_NAME_MAX + 1)

/* Where the bytes of a message lie. */
typedef enum dp_slot_way {
    DP_SLOT_HERE,   /* in this slot and, if it is a longer message, in those that follow */
    DP_SLOT_SHARED, /* in the sender's arena, at the offset `place` */
    DP_SLOT_PRIVATE /* in the sender's process, at the address `place` */
} dp_slot_way_t;

/* What the sender says of a message, in its first slot. */
typedef struct dp_slot_head {
    uint64_t bytes; /* of the whole message */
    uint64_t place;
    uint64_t tag;  /* dp_options_t.tag */
    uint32_t here; /* bytes in this slot; of the following slots of a message this alone counts */
    uint8_t way;   /* dp_slot_way_t */
    uint8_t dtype; /* dp_dtype_t */
    uint16_t name_bytes; /* 0: it has no name */
} dp_slot_head_t;

typedef struct dp_slot {
    dp_slot_head_t head;
    char text[DP_SLOT_TEXT]; /* its name; after a failure the receiver's text */
    char data[DP_SLOT_BYTES];
    int32_t status; /* the receiver's, in the last slot of a message of more than DP_SLOT_BYTES;
                       written before taken is */
} dp_slot_t;

typedef struct dp_slots {
    alignas(128) _Atomic uint64_t key; /* of the group, never 0; 0: free. Written by the sender */
    uint64_t next; /* offset of the next ring from this sender to this receiver; 0: none */
    alignas(128) _Atomic uint64_t written;
    alignas(128) _Atomic uint64_t taken;
    alignas(128) dp_slot_t slots[DP_SLOT_COUNT];
} dp_slots_t;

static inline dp_slot_t *dp_slots_at(dp_slots_t *ring, uint64_t number)
{
    return &ring->slots[number % DP_SLOT_COUNT];
}

/* The sender: the slot to fill in as number `written`; NULL: the receiver has not taken enough. */
dp_slot_t *dp_slots_free(dp_slots_t *ring, uint64_t written);
void dp_slots_write(dp_slots_t *ring, uint64_t written); /* that many are filled in */
int dp_slots_is_taken(const dp_slots_t *ring, uint64_t number);

/* The receiver: slot number `taken`; NULL: it is not there yet. */
dp_slot_t *dp_slots_next(dp_slots_t *ring, uint64_t taken);
void dp_slots_take(dp_slots_t *ring, uint64_t taken); /* it is done with that many */

/* What a receive expects. */
typedef struct dp_slot_want {
    int from, to;     /* ranks of the group, for the text */
    const char *name; /* "": any */
    dp_dtype_t dtype;
    uint64_t tag;
    size_t capacity; /* elements */
} dp_slot_want_t;

/* Whether a message is the one that is received: its name (where both have one), type, tag and
 * size. DP_OK, DP_ERR_MISMATCH, DP_ERR_TRUNCATED, DP_ERR_SYSTEM (a head that makes no sense); text
 * [DP_SLOT_TEXT] says why, with both values. name: as the sender gave it, terminated. */
dp_status_t dp_slot_judge(const dp_slot_head_t *head, const char *name, const dp_slot_want_t *want,
                          char *text);

#endif
