/*
 * channel.c - this rank's end of the messages between two ranks: finds their rings in shared
 * memory, writes what is sent, copies what is received, and ends what waits for a rank that has
 * left.
 *
 * Called by direct.c under its lock. It must not know about threads and sleep.
 */
#include "runtime/engine/cpu/direct/channel.h"
#include "runtime/engine/cpu/intra_node/pull.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"

#define SLICE_BYTES ((size_t)1024 * DP_KIB) /* copied between two looks at the other channels */

/* ---- Shared memory -------------------------------------------------------------------------- */

dp_bell_t *dp_direct_bell(const dp_direct_node_t *node, int local)
{
    return (dp_bell_t *)(void *)(node->bells + (size_t)local * sizeof(dp_bell_t));
}

/* A rank that sleeps counts itself, then looks once more; here the news is stored, then the count
 * loaded. All are ordered by the fence or sequentially consistent, so one sees the other. */
void dp_direct_ring(const dp_direct_node_t *node, int local)
{
    dp_bell_t *bell = dp_direct_bell(node, local);

    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&bell->count, 1, memory_order_seq_cst);
    dp_futex_wake_shared(&bell->count);
}

static dp_slots_t *ring_at(const dp_direct_node_t *node, int local, uint64_t offset)
{
    return offset == 0 ? NULL : dp_arena_at(node->engine->arena, local, offset, sizeof(dp_slots_t));
}

/* Rings stay in their list until the engine ends, so the receiver may walk it at any time; one
 * whose group has ended is used again. */
static dp_slots_t *find_ring(const dp_direct_node_t *node, int owner, _Atomic uint64_t *table,
                             int to, uint64_t key)
{
    uint64_t offset = atomic_load_explicit(&table[to], memory_order_acquire);
    dp_slots_t *ring;

    while ((ring = ring_at(node, owner, offset)) != NULL) {
        /* Pairs with the store in dp_channel_make_out(): its counters are those of this group. */
        if (atomic_load_explicit(&ring->key, memory_order_acquire) == key) return ring;
        offset = ring->next;
    }
    return NULL;
}

static dp_status_t make_table(dp_direct_node_t *node)
{
    const size_t bytes = (size_t)node->count * sizeof(uint64_t);
    void *memory;
    dp_status_t status;

    if (node->table != NULL) return DP_OK;
    status = dp_arena_alloc(node->engine->arena, bytes, &memory);
    if (status != DP_OK) return status;
    node->table = memory;
    atomic_store_explicit(&dp_direct_bell(node, node->self)->table,
                          dp_arena_offset(node->engine->arena, memory, bytes),
                          memory_order_release);
    return DP_OK;
}

dp_status_t dp_channel_make_out(dp_direct_node_t *node, dp_channel_t *channel)
{
    dp_status_t status = make_table(node);
    dp_slots_t *ring;
    void *memory;

    if (channel->out != NULL || status != DP_OK) return status;
    ring = find_ring(node, node->self, node->table, channel->local, 0);
    if (ring == NULL) {
        status = dp_arena_alloc(node->engine->arena, sizeof(*ring), &memory);
        if (status != DP_OK) return status;
        ring = memory;
        ring->next = atomic_load_explicit(&node->table[channel->local], memory_order_relaxed);
        atomic_store_explicit(&node->table[channel->local],
                              dp_arena_offset(node->engine->arena, ring, sizeof(*ring)),
                              memory_order_release);
    }
    dp_slots_write(ring, 0);
    dp_slots_take(ring, 0);
    atomic_store_explicit(&ring->key, channel->key, memory_order_release);
    channel->out = ring;
    return DP_OK;
}

static dp_slots_t *find_in(const dp_direct_node_t *node, dp_channel_t *channel)
{
    const uint64_t offset =
        atomic_load_explicit(&dp_direct_bell(node, channel->local)->table, memory_order_acquire);
    _Atomic uint64_t *table;

    if (channel->in != NULL || offset == 0) return channel->in;
    table = dp_arena_at(node->engine->arena, channel->local, offset,
                        (size_t)node->count * sizeof(uint64_t));
    if (table != NULL)
        channel->in = find_ring(node, channel->local, table, node->self, channel->key);
    return channel->in;
}

/* ---- Queues --------------------------------------------------------------------------------- */

void dp_channel_push(dp_channel_queue_t *queue, dp_engine_message_t *message)
{
    message->next = NULL;
    if (queue->last != NULL) {
        queue->last->next = message;
    } else {
        queue->first = message;
    }
    queue->last = message;
}

dp_engine_message_t *dp_channel_pop(dp_channel_queue_t *queue)
{
    dp_engine_message_t *message = queue->first;

    if (message == NULL) return NULL;
    queue->first = message->next;
    if (queue->first == NULL) queue->last = NULL;
    return message;
}

void dp_channel_end(dp_channel_queue_t *from, dp_channel_queue_t *over, dp_status_t status)
{
    dp_engine_message_t *message = dp_channel_pop(from);

    message->status = status;
    dp_channel_push(over, message);
}

static int is_aborted(const dp_direct_node_t *node)
{
    return atomic_load_explicit(&node->engine->is_aborted, memory_order_acquire);
}

static void abort_queue(const dp_cpu_engine_t *engine, dp_channel_queue_t *from,
                        dp_channel_queue_t *over)
{
    while (from->first != NULL) {
        from->first->text[0] = '\0';
        from->first->abort_text = engine->abort_text; /* written once, before is_aborted */
        dp_channel_end(from, over, engine->abort_status);
    }
}

void dp_channel_abort(dp_direct_node_t *node, dp_channel_t *channel, dp_channel_queue_t *over)
{
    abort_queue(node->engine, &channel->sends, over);
    abort_queue(node->engine, &channel->announced, over);
    if (!channel->is_copying) abort_queue(node->engine, &channel->receives, over);
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Fills in the first slot of a message. */
static void announce(const dp_cpu_engine_t *engine, const dp_engine_message_t *message,
                     dp_slot_t *slot)
{
    const size_t name_bytes = strnlen(message->name, DP_SLOT_TEXT - 1);
    dp_slot_head_t head = {.bytes = message->bytes,
                           .tag = message->tag,
                           .way = DP_SLOT_HERE,
                           .dtype = (uint8_t)message->dtype,
                           .name_bytes = (uint16_t)name_bytes};

    memcpy(slot->text, message->name, name_bytes);
    if (message->bytes > DP_SLOT_BYTES) {
        const uint64_t offset = dp_arena_offset(engine->arena, message->in, message->bytes);

        if (offset != UINT64_MAX) {
            head.way = DP_SLOT_SHARED;
            head.place = offset;
        } else if (engine->pids != NULL) {
            head.way = DP_SLOT_PRIVATE;
            head.place = (uintptr_t)message->in;
        }
    }
    slot->head = head;
}

/* A slot whose answer this rank has not read must not be filled in again, though it is taken. */
static dp_slot_t *free_slot(const dp_channel_t *channel)
{
    const dp_engine_message_t *oldest = channel->announced.first;

    if (oldest != NULL && channel->written - oldest->slot >= DP_SLOT_COUNT) return NULL;
    return dp_slots_free(channel->out, channel->written);
}

/* Fills in one slot. The message is over, or only waits for its answer, with its last one. */
static void write_slot(dp_direct_node_t *node, dp_channel_t *channel, dp_slot_t *slot,
                       dp_channel_queue_t *over)
{
    dp_engine_message_t *message = channel->sends.first;

    if (!message->is_begun) {
        announce(node->engine, message, slot);
        message->is_begun = 1;
    } else {
        slot->head.way = DP_SLOT_HERE; /* its next piece */
    }
    if (slot->head.way == DP_SLOT_HERE) {
        const size_t here = dp_min(message->bytes - message->moved, DP_SLOT_BYTES);

        memcpy(slot->data, (const char *)message->in + message->moved, here);
        slot->head.here = (uint32_t)here;
        message->moved += here;
    } else {
        message->moved = message->bytes;
    }
    message->slot = channel->written++;
    if (message->moved < message->bytes) return;
    if (message->bytes <= DP_SLOT_BYTES) {
        dp_channel_end(&channel->sends, over, DP_OK);
    } else {
        dp_channel_push(&channel->announced, dp_channel_pop(&channel->sends));
    }
}

static int write_sends(dp_direct_node_t *node, dp_channel_t *channel, dp_channel_queue_t *over)
{
    dp_slot_t *slot;
    int moved = 0;

    while (channel->sends.first != NULL && (slot = free_slot(channel)) != NULL) {
        write_slot(node, channel, slot, over);
        dp_slots_write(channel->out, channel->written);
        moved = 1;
    }
    return moved;
}

/* Announced messages that the receiver has, or has refused. */
static int end_sends(dp_channel_t *channel, dp_channel_queue_t *over)
{
    dp_engine_message_t *message;
    int moved = 0;

    while ((message = channel->announced.first) != NULL &&
           dp_slots_is_taken(channel->out, message->slot)) {
        const dp_slot_t *slot = dp_slots_at(channel->out, message->slot);
        const dp_status_t status = (dp_status_t)slot->status;

        if (status != DP_OK) {
            memcpy(message->text, slot->text, sizeof(message->text));
            message->text[sizeof(message->text) - 1] = '\0';
        }
        dp_channel_end(&channel->announced, over, status);
        moved = 1;
    }
    return moved;
}

/* ---- Receiving ------------------------------------------------------------------------------ */

/* The first slot of a message has come. A message that does not fit is dropped. */
static void begin_receive(const dp_channel_t *channel, dp_engine_message_t *message,
                          const dp_slot_head_t *head, const dp_slot_t *slot)
{
    const dp_slot_want_t want = {.from = channel->other,
                                 .to = channel->self,
                                 .name = message->name,
                                 .dtype = message->dtype,
                                 .tag = message->tag,
                                 .capacity = message->count};
    const size_t name_bytes = dp_min((size_t)head->name_bytes, (size_t)DP_SLOT_TEXT - 1);
    const size_t elem_bytes = dp_dtype_bytes(message->dtype);
    char name[DP_SLOT_TEXT];

    memcpy(name, slot->text, name_bytes);
    name[name_bytes] = '\0';
    message->is_begun = 1;
    message->moved = 0;
    message->bytes = head->bytes;
    message->status = dp_slot_judge(head, name, &want, message->text);
    if (message->status != DP_OK) return;
    message->received = message->bytes / elem_bytes;
    if (message->output == NULL) return;
    message->out = message->output(message->user, message->received);
    if (message->out != NULL || message->received == 0) return;
    message->status = DP_ERR_NO_MEMORY;
    snprintf(message->text, sizeof(message->text),
             "rank %d: the program gave no memory for %zu elements", channel->self,
             message->received);
}

/* The memory of a sender that has died cannot be read; the abort that names the cause comes soon,
 * and ends the message. */
static dp_status_t wait_for_cause(const dp_direct_node_t *node, const dp_channel_t *channel,
                                  dp_engine_message_t *message, int code)
{
    const uint64_t now = dp_now_ns();

    if (message->failed_ns == 0) message->failed_ns = now;
    if (now - message->failed_ns < node->engine->cause_wait_ns) return DP_ERR_PENDING;
    snprintf(message->text, sizeof(message->text), "rank %d cannot read the memory of rank %d: %s",
             channel->self, channel->other, strerror(code));
    return code == ESRCH ? DP_ERR_PEER_LOST : DP_ERR_SYSTEM;
}

/* Copies from the sender. 0: not, and errno; 0 there: its place makes no sense. */
static int copy_from(const dp_direct_node_t *node, const dp_channel_t *channel,
                     const dp_slot_head_t *head, size_t at, void *to, size_t bytes)
{
    const void *from;

    if (head->way == DP_SLOT_PRIVATE) {
        if (node->engine->pids != NULL)
            return dp_pull_read(node->engine, channel->local, head->place + at, to, bytes);
        errno = EPERM;
        return 0;
    }
    from = dp_arena_at(node->engine->arena, channel->local, head->place + at, bytes);
    errno = 0;
    if (from != NULL) memcpy(to, from, bytes);
    return from != NULL;
}

/* Copies the next slice of a message that lies with its sender, without the lock: threads with
 * other messages go on meanwhile. DP_ERR_PENDING: it has to wait. */
static dp_status_t copy_slice(dp_direct_node_t *node, dp_channel_t *channel,
                              dp_engine_message_t *message, const dp_slot_head_t *head)
{
    const size_t part = dp_min(message->bytes - message->moved, SLICE_BYTES);
    char *to = (char *)message->out + message->moved;
    int is_copied, code;

    channel->is_copying = 1;
    pthread_mutex_unlock(&node->lock);
    is_copied = copy_from(node, channel, head, message->moved, to, part);
    code = errno;
    pthread_mutex_lock(&node->lock);
    channel->is_copying = 0;
    if (is_copied) {
        message->moved += part;
        return DP_OK;
    }
    if (code != 0) return wait_for_cause(node, channel, message, code);
    snprintf(message->text, sizeof(message->text),
             "rank %d sends from a place outside of its arena", channel->other);
    return DP_ERR_SYSTEM;
}

/* Copies what is in a slot. Afterwards the slot is done with. */
static void copy_piece(const dp_channel_t *channel, dp_engine_message_t *message,
                       const dp_slot_head_t *head, const dp_slot_t *slot)
{
    if (head->here != dp_min(message->bytes - message->moved, DP_SLOT_BYTES)) {
        snprintf(message->text, sizeof(message->text),
                 "rank %d sends a piece of %u bytes at %zu of %zu", channel->other, head->here,
                 message->moved, message->bytes);
        message->status = DP_ERR_SYSTEM;
        message->moved = message->bytes;
        return;
    }
    if (message->status == DP_OK && head->here > 0)
        memcpy((char *)message->out + message->moved, slot->data, head->here);
    message->moved += head->here;
}

/* This rank is done with a slot; with a message, if it was its last one. */
static void take_slot(dp_channel_t *channel, dp_slot_t *slot, dp_channel_queue_t *over)
{
    dp_engine_message_t *message = channel->receives.first;
    const int is_over = message->moved >= message->bytes;

    if (is_over && message->bytes > DP_SLOT_BYTES) { /* its sender waits for the answer */
        slot->status = (int32_t)message->status;
        if (message->status != DP_OK) memcpy(slot->text, message->text, sizeof(slot->text));
    }
    channel->taken++;
    dp_slots_take(channel->in, channel->taken);
    if (!is_over) return;
    if (message->status != DP_OK) message->received = 0;
    dp_channel_end(&channel->receives, over, message->status);
}

/* Takes one slot, or copies one slice. 0: there is nothing to do. */
static int move_receive(dp_direct_node_t *node, dp_channel_t *channel, int may_copy,
                        dp_channel_queue_t *over)
{
    dp_engine_message_t *message = channel->receives.first;
    dp_slot_t *slot = dp_slots_next(channel->in, channel->taken);
    dp_slot_head_t head;
    dp_status_t status = DP_OK;

    if (slot == NULL) return 0;
    head = slot->head; /* another process's: from here on only the copy is looked at */
    if (!message->is_begun) begin_receive(channel, message, &head, slot);
    if (head.way == DP_SLOT_HERE) {
        copy_piece(channel, message, &head, slot);
    } else {
        if (message->status == DP_OK && !may_copy) return 0;
        if (message->status == DP_OK) status = copy_slice(node, channel, message, &head);
        if (is_aborted(node)) { /* while it copied: the rest was left to this thread */
            dp_channel_abort(node, channel, over);
            return 1;
        }
        if (status == DP_ERR_PENDING) return 0;
        if (status != DP_OK) message->status = status;
        if (message->status == DP_OK && message->moved < message->bytes) return 1;
        message->moved = message->bytes;
    }
    take_slot(channel, slot, over);
    return 1;
}

/* ---- Together ------------------------------------------------------------------------------- */

static int fail_left(dp_channel_queue_t *from, dp_channel_queue_t *over,
                     const dp_channel_t *channel, const char *what)
{
    int moved = 0;

    while (from->first != NULL) {
        snprintf(from->first->text, sizeof(from->first->text), "rank %d finalized before it %s it",
                 channel->other, what);
        dp_channel_end(from, over, DP_ERR_LEFT);
        moved = 1;
    }
    return moved;
}

/* Messages that wait for a rank which has finalized. The flag is read before the ring. */
static int fail_orphans(const dp_direct_node_t *node, dp_channel_t *channel,
                        dp_channel_queue_t *over)
{
    const dp_bell_t *bell = dp_direct_bell(node, channel->local);
    int moved = 0;

    if (channel->receives.first != NULL && !channel->receives.first->is_begun &&
        atomic_load_explicit(&bell->sends_over, memory_order_acquire) &&
        (find_in(node, channel) == NULL || dp_slots_next(channel->in, channel->taken) == NULL))
        moved = fail_left(&channel->receives, over, channel, "sent");
    if ((channel->sends.first != NULL || channel->announced.first != NULL) &&
        atomic_load_explicit(&bell->receives_over, memory_order_acquire)) {
        moved |= end_sends(channel, over);
        moved |= fail_left(&channel->announced, over, channel, "received");
        moved |= fail_left(&channel->sends, over, channel, "received");
    }
    return moved;
}

/* One round of a channel: at most a slice is copied. */
int dp_channel_move(dp_direct_node_t *node, dp_channel_t *channel, int may_copy,
                    dp_channel_queue_t *over)
{
    int moved = 0;

    if (channel->announced.first != NULL) moved |= end_sends(channel, over);
    if (channel->sends.first != NULL) moved |= write_sends(node, channel, over);
    for (int i = 0; i < DP_SLOT_COUNT && channel->receives.first != NULL; i++) {
        if (channel->is_copying) break; /* another thread does */
        if (find_in(node, channel) == NULL || !move_receive(node, channel, may_copy, over)) break;
        moved = 1;
        /* the rest of a large one: after a look at the others */
        if (channel->receives.first != NULL && channel->receives.first->moved >= SLICE_BYTES) break;
    }
    moved |= fail_orphans(node, channel, over);
    if (moved) dp_direct_ring(node, channel->local);
    return moved;
}
