/*
 * slots.c - a ring of messages between two ranks, and whether a message is the one that is
 * received. Called by direct.c under its lock.
 */
#include "runtime/engine/cpu/direct/slots.h"

#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

dp_slot_t *dp_slots_free(dp_slots_t *ring, uint64_t written)
{
    /* Acquire pairs with dp_slots_take(): the receiver has read what the slot held before. */
    const uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);

    return written - taken >= DP_SLOT_COUNT ? NULL : dp_slots_at(ring, written);
}

void dp_slots_write(dp_slots_t *ring, uint64_t written)
{
    atomic_store_explicit(&ring->written, written, memory_order_release);
}

int dp_slots_is_taken(const dp_slots_t *ring, uint64_t number)
{
    /* Pairs with dp_slots_take(): the answer is there, and the message's memory was read. */
    return atomic_load_explicit(&ring->taken, memory_order_acquire) > number;
}

dp_slot_t *dp_slots_next(dp_slots_t *ring, uint64_t taken)
{
    /* Pairs with dp_slots_write(): the slot, and the memory that it names, are filled in. */
    const uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);

    return written <= taken ? NULL : dp_slots_at(ring, taken);
}

void dp_slots_take(dp_slots_t *ring, uint64_t taken)
{
    atomic_store_explicit(&ring->taken, taken, memory_order_release);
}

dp_status_t dp_slot_judge(const dp_slot_head_t *head, const char *name, const dp_slot_want_t *want,
                          char *text)
{
    const size_t elem_bytes = dp_dtype_bytes((dp_dtype_t)head->dtype);

    if (elem_bytes == 0 || head->bytes % elem_bytes != 0 || head->way > DP_SLOT_PRIVATE) {
        snprintf(text, DP_SLOT_TEXT,
                 "rank %d sent rank %d a message that makes no sense: %llu bytes, type %u, way %u",
                 want->from, want->to, (unsigned long long)head->bytes, head->dtype, head->way);
        return DP_ERR_SYSTEM;
    }
    if (want->name[0] != '\0' && name[0] != '\0' && strcmp(want->name, name) != 0) {
        snprintf(text, DP_SLOT_TEXT, "rank %d sends %.80s where rank %d receives %.80s", want->from,
                 name, want->to, want->name);
        return DP_ERR_MISMATCH;
    }
    if (head->dtype != (uint8_t)want->dtype) {
        snprintf(text, DP_SLOT_TEXT, "rank %d sends %s, rank %d receives %s", want->from,
                 dp_dtype_name((dp_dtype_t)head->dtype), want->to, dp_dtype_name(want->dtype));
        return DP_ERR_MISMATCH;
    }
    if (head->tag != want->tag) {
        snprintf(text, DP_SLOT_TEXT, "rank %d sends with tag %llx, rank %d receives with %llx",
                 want->from, (unsigned long long)head->tag, want->to,
                 (unsigned long long)want->tag);
        return DP_ERR_MISMATCH;
    }
    if (head->bytes / elem_bytes > want->capacity) {
        snprintf(text, DP_SLOT_TEXT, "rank %d sends %llu elements, rank %d has room for %zu",
                 want->from, (unsigned long long)(head->bytes / elem_bytes), want->to,
                 want->capacity);
        return DP_ERR_TRUNCATED;
    }
    return DP_OK;
}
