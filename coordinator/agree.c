/*
 * agree.c - the rules of one tensor: it arrives, is complete, is launched or fails.
 *
 * What goes up is not ordered. What comes down is: LAUNCH, FAILURE, CLOSED and BYE form one list
 * that the root writes and every rank applies in the same order, through the same functions.
 *
 * Why no message needs an occurrence number. A rank submits occurrence k+1 of a name after k ended
 * here, and it ended because a LAUNCH or FAILURE came down through every node above. So when news
 * of k+1 goes up, each of those nodes has already ended k. The other direction needs care: LAUNCH
 * cannot cross a READY of its own tensor, as it exists only because all of them arrived; FAILURE
 * and CLOSED can. Each frame going up therefore says how many ordered items its sender had seen;
 * what was sent before the failure of its tensor was seen speaks of the occurrence that failed.
 */
#include "coordinator/negotiator_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Half a message, so that a LAUNCH always fits in a frame beside other items. */
#define LAUNCH_BYTES_MAX (DP_MESSAGE_MAX / 2)
#define VALUE_TEXT_MAX 64

static const dp_signature_t *signature_of(const dp_row_t *row)
{
    return row->proposed != NULL ? row->proposed : row->signature;
}

static uint64_t payload_bytes(const dp_signature_t *signature)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < signature->part_count; i++) {
        uint64_t part = signature->parts[i].count;
        uint64_t size = dp_dtype_bytes(signature->parts[i].dtype);

        /* Saturates: a count may be anything, and huge is all the root needs to know. */
        if (size > 0 && part > (UINT64_MAX - bytes) / size) return UINT64_MAX;
        bytes += part * size;
    }
    return bytes;
}

/* ---- Ordered items ---------------------------------------------------------------------- */

/* The pending occurrence is over. */
void dp_agree_end(dp_negotiator_t *n, dp_row_t *row, uint64_t position, int in_failure)
{
    if (row->is_own) n->own_pending--;
    dp_stall_unwatch(n, row, 0);
    dp_row_clear(row, n->table.bit_words);
    row->done_position = position;
    row->ended_in_failure = in_failure;
    row->is_kept = row->is_offered = 0; /* the next occurrence needs those who left */
}

void dp_agree_launch(dp_negotiator_t *n, dp_row_t *row, int in_place, float absmax)
{
    dp_launch_entry_t entry = {.request = row->request,
                               .name = row->name,
                               .id = row->id,
                               .last_absmax = absmax,
                               .in_place = in_place};

    DP_ASSERT(row->is_own);
    if (dp_outbox_entry(n, &entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    if (row->proposed != NULL) {
        /* Every rank has proposed this one, or the tensor would not be complete. */
        free(row->signature);
        row->signature = row->proposed;
        row->proposed = NULL;
        row->version++;
        if (row->version == 0) row->version = 1; /* 0 means: none agreed */
    }
    dp_agree_end(n, row, n->position + 1, 0);
}

void dp_agree_launched(dp_negotiator_t *n, uint64_t sequence, size_t entry_begin)
{
    dp_event_t *event;

    if (n->is_fatal) return;
    n->position++;
    n->sequence = sequence;
    event = dp_outbox_event(n, DP_OUTPUT_LAUNCH);
    if (event == NULL) return;
    event->sequence = sequence;
    event->entry_begin = entry_begin;
    event->entry_count = n->entry_count - entry_begin;
}

void dp_agree_fail(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text)
{
    n->position++;
    if (row->is_own) {
        dp_outbox_fail(n, row->request, status, text);
    } else if (dp_row_refuse(row, status, text) != DP_OK) {
        dp_fatal_memory(n);
    }
    dp_agree_end(n, row, n->position, 1);
}

void dp_agree_bye(dp_negotiator_t *n)
{
    n->position++;
    n->is_finished = 1;
}

/* ---- The root makes the order ----------------------------------------------------------- */

static void order_failure(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text)
{
    dp_item_t *item = &n->made;

    dp_item_ref(item, DP_ITEM_FAILURE, row);
    item->flags = 0;
    item->status = status;
    item->text = text;
    if (row->id == DP_ID_NONE) {
        if (dp_table_assign(&n->table, row) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        item->id = row->id;
        item->name = row->name;
        item->flags = DP_FLAG_NAME;
    }
    dp_outbox_down(n, item);
    if (!n->is_fatal) dp_agree_fail(n, row, status, text);
}

static void order_mismatch(dp_negotiator_t *n, dp_row_t *row, const int rank[2],
                           const dp_signature_t *const signature[2])
{
    char field[VALUE_TEXT_MAX], a[VALUE_TEXT_MAX], b[VALUE_TEXT_MAX];
    char rank_a[DP_RANK_TEXT_MAX], rank_b[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];

    dp_signature_difference(signature[0], signature[1], field, a, b, VALUE_TEXT_MAX);
    snprintf(text, sizeof(text), "tensor %s: %s %s on %s, %s on %s", row->name, field, a,
             dp_rank_text(n, rank[0], rank_a), b, dp_rank_text(n, rank[1], rank_b));
    order_failure(n, row, DP_ERR_MISMATCH, text);
}

/* Sends one LAUNCH with as many of the complete tensors from `begin` on as fit; returns the end. */
static size_t order_launch(dp_negotiator_t *n, size_t begin)
{
    dp_row_t **rows = n->complete.rows;
    size_t bytes = 16, end = begin, entry_begin = n->entry_count;
    dp_item_t *item = &n->made;
    dp_writer_t writer;
    int has_children;

    while (end < n->complete.count && bytes < LAUNCH_BYTES_MAX) {
        bytes += dp_item_entry_bound(rows[end++]->name);
    }
    item->kind = DP_ITEM_LAUNCH;
    item->sequence = n->sequence + 1;
    item->count = (uint32_t)(end - begin);
    has_children = dp_outbox_down_begin(n, n->position, bytes, &writer);
    if (has_children) dp_item_write(&writer, item);
    for (size_t i = begin; i < end && !n->is_fatal; i++) {
        dp_row_t *row = rows[i];
        unsigned flags = row->in_place ? DP_FLAG_IN_PLACE : 0;

        if (row->id == DP_ID_NONE) {
            flags |= DP_FLAG_NAME;
            if (dp_table_assign(&n->table, row) != DP_OK) {
                dp_fatal_memory(n);
                return end;
            }
        }
        if (has_children)
            dp_item_write_entry(&writer, row->id, (uint8_t)flags, row->absmax, row->name);
        dp_agree_launch(n, row, row->in_place, row->absmax);
    }
    if (n->is_fatal) return end;
    if (has_children) dp_outbox_down_commit(n, &writer);
    dp_agree_launched(n, n->sequence + 1, entry_begin);
    return end;
}

void dp_agree_release(dp_negotiator_t *n)
{
    size_t begin = 0;

    while (begin < n->complete.count && !n->is_fatal)
        begin = order_launch(n, begin);
    n->complete.count = 0;
    n->complete_bytes = 0;
    n->complete_urgent = 0;
}

/* Holding back pays only while the data plane is busy: then what joins the launch costs no time. */
static int must_release(const dp_negotiator_t *n)
{
    if (n->complete.count == 0) return 0;
    return n->launched >= n->sequence || n->complete_urgent ||
           n->complete_bytes >= n->fusion_bytes || n->now_ns - n->complete_since_ns >= n->hold_ns;
}

void dp_agree_flush(dp_negotiator_t *n)
{
    dp_leave_flush(n);
    if (!dp_is_root(n) || n->is_fatal) return;
    if (must_release(n)) dp_agree_release(n);
    /* Nothing of this rank or below is pending and nobody will submit. */
    if (n->has_left && n->own_pending == 0 && n->fin_count == n->child_count && !n->is_finished &&
        !n->is_fatal) {
        n->made.kind = DP_ITEM_BYE;
        dp_outbox_down(n, &n->made);
        if (!n->is_fatal) dp_agree_bye(n);
    }
}

/* ---- What arrives ----------------------------------------------------------------------- */

void dp_agree_pending(dp_negotiator_t *n, dp_row_t *row, uint64_t first_ns)
{
    if (row->is_complete || row->is_mismatched) return;
    if (row->is_pending && first_ns >= row->first_ns) return;
    if (row->is_pending) dp_stall_unwatch(n, row, 0);
    row->is_pending = 1;
    row->first_ns = first_ns;
    dp_stall_watch(n, row);
}

/* The whole subtree is ready. */
static void complete(dp_negotiator_t *n, dp_row_t *row)
{
    const dp_signature_t *signature = signature_of(row);
    uint64_t bytes = payload_bytes(signature);

    row->is_complete = 1;
    dp_stall_unwatch(n, row, 1);
    if (!dp_is_root(n)) {
        dp_outbox_news(n, row);
        return;
    }
    if (n->complete.count == 0) n->complete_since_ns = n->now_ns;
    if (dp_row_array_push(&n->complete, row) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    n->complete_bytes = bytes > SIZE_MAX - n->complete_bytes ? SIZE_MAX : n->complete_bytes + bytes;
    /* Nobody submits a barrier to let it wait. */
    if (row->is_urgent || signature->collective == DP_COLLECTIVE_BARRIER) n->complete_urgent = 1;
}

/* This node is the first to see two signatures. */
static void mismatch(dp_negotiator_t *n, dp_row_t *row, int rank, dp_signature_t *signature)
{
    const dp_signature_t *other = signature != NULL ? signature : row->signature;
    int ranks[2] = {row->first_rank, rank};
    const dp_signature_t *signatures[2] = {signature_of(row), other};
    dp_conflict_t *conflict;

    row->is_mismatched = 1;
    dp_stall_unwatch(n, row, 0);
    if (dp_is_root(n)) {
        order_mismatch(n, row, ranks, signatures);
        return;
    }
    conflict = calloc(1, sizeof(*conflict));
    if (conflict == NULL) {
        dp_fatal_memory(n);
        return;
    }
    row->conflict = conflict;
    for (int i = 0; i < 2; i++) {
        conflict->rank[i] = ranks[i];
        conflict->signature[i] = dp_signature_copy(signatures[i]);
        if (conflict->signature[i] == NULL) dp_fatal_memory(n);
    }
    dp_outbox_news(n, row);
}

void dp_agree_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival)
{
    dp_signature_t *signature = arrival->signature;
    const dp_signature_t *said;

    DP_ASSERT(!dp_bit_get(row->heard, arrival->slot));
    dp_agree_pending(n, row, n->now_ns);
    dp_bit_set(row->heard, arrival->slot);
    row->ready++;
    row->in_place = row->in_place && arrival->in_place;
    row->absmax = dp_absmax_merge(row->absmax, arrival->absmax);
    if (arrival->is_urgent) row->is_urgent = 1;
    if (signature != NULL && row->signature != NULL &&
        dp_signature_equal(signature, row->signature)) {
        free(signature);
        signature = NULL;
    }
    said = signature != NULL ? signature : row->signature;
    if (row->first_rank < 0) {
        row->first_rank = arrival->rank;
        row->proposed = signature;
        signature = NULL;
    } else if (!row->is_mismatched && !dp_signature_equal(signature_of(row), said)) {
        mismatch(n, row, arrival->rank, signature);
    }
    free(signature);
    if (row->is_pending && !row->is_mismatched && !n->is_fatal &&
        row->ready == (uint32_t)n->child_count + 1) {
        complete(n, row);
    }
}

void dp_agree_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, dp_item_t *item)
{
    int ranks[2] = {item->rank, item->other_rank};
    const dp_signature_t *signatures[2] = {item->signature, item->other};

    dp_agree_pending(n, row, n->now_ns);
    dp_bit_set(row->heard, slot);
    row->ready++;
    if (row->is_mismatched) return; /* two subtrees have found one each: the first will do */
    row->is_mismatched = 1;
    dp_stall_unwatch(n, row, 0);
    if (dp_is_root(n)) {
        order_mismatch(n, row, ranks, signatures);
        return;
    }
    row->conflict = calloc(1, sizeof(*row->conflict));
    if (row->conflict == NULL) {
        dp_fatal_memory(n);
        return;
    }
    row->conflict->rank[0] = ranks[0];
    row->conflict->rank[1] = ranks[1];
    row->conflict->signature[0] = item->signature;
    row->conflict->signature[1] = item->other;
    item->signature = item->other = NULL;
    dp_outbox_news(n, row);
}

void dp_agree_urgent(dp_negotiator_t *n, dp_row_t *row)
{
    if (!row->is_pending || row->is_urgent) return;
    row->is_urgent = 1;
    if (dp_is_root(n)) {
        if (row->is_complete) n->complete_urgent = 1;
    } else if (row->is_announced) {
        dp_outbox_news(n, row);
    }
}
