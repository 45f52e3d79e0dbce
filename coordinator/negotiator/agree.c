/*
 * agree.c - the rules of one tensor: it arrives, is complete, is launched or fails.
 *
 * What goes up is not ordered. What comes down is: LAUNCH, FAILURE, JOINED, CLOSED and BYE form one
 * list that the root writes; every rank applies, in the same order and through the same functions,
 * those that concern it or ranks below it.
 *
 * Why no message needs an occurrence number. A rank submits occurrence k+1 of a name after k ended
 * here, and it ended because a LAUNCH or FAILURE came down through every node above. So when news
 * of k+1 goes up, each of those nodes has already ended k. The other direction needs care: LAUNCH
 * cannot cross a READY of its own tensor, as it exists only because all of them arrived; FAILURE
 * and CLOSED can. Each frame going up therefore says which ordered item its sender saw last; what
 * was sent before the failure of its tensor was seen speaks of the occurrence that failed.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

const dp_signature_t *dp_row_signature(const dp_row_t *row)
{
    return row->proposed != NULL ? row->proposed : row->signature;
}

int dp_launches_alone(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_SEND || collective == DP_COLLECTIVE_GROUP_CREATE ||
           collective == DP_COLLECTIVE_GROUP_DESTROY;
}

/* ---- Ordered items ---------------------------------------------------------------------- */

/* Of a failure. Of a group to be made: the ranks in the list, and whoever announced it with
 * another.
 */
void dp_agree_targets(dp_negotiator_t *n, const dp_row_t *row, const int32_t *list, uint32_t count)
{
    size_t words = n->table.bit_words;

    if (row->scope != NULL) {
        memcpy(n->targets, row->expect, words * sizeof(*n->targets));
        return;
    }
    dp_slots_of_list(n, list, count, n->targets);
    for (size_t i = 0; i < words; i++)
        n->targets[i] |= row->heard[i];
}

/* What this rank has submitted of the tensor was handed back, or will be with what is owed. */
void dp_own_end(dp_negotiator_t *n, dp_row_t *row)
{
    row->own.is_there = 0;
    free(row->own.signature);
    row->own.signature = NULL;
    n->own_pending--;
    if (row->scope == NULL) return;
    row->scope->own_pending--;
    if (row->scope->ending == row) row->scope->ending = NULL;
}

/* The pending occurrence is over. */
void dp_agree_end(dp_negotiator_t *n, dp_row_t *row, uint64_t position, int in_failure)
{
    /* What this rank has submitted with another list is not over with the launch of this one. */
    if (row->is_own && !row->is_shadow && (in_failure || dp_row_takes_part(n, row)))
        dp_own_end(n, row);
    dp_stall_unwatch(n, row, 0);
    dp_row_clear(row, n->table.bit_words);
    row->done_position = position;
    if (in_failure) row->ended_in_failure = 1;
    if (!in_failure && row->scope != NULL) row->ended_in_failure = 0;
    row->is_kept = 0; /* the next occurrence needs those who left */
    for (int i = 0; row->scope == NULL && i < n->child_count; i++) {
        if (dp_bit_get(n->targets, i)) row->ended[i] = position;
    }
    dp_debt_restart(n, row);
}

void dp_agree_launch_begin(dp_negotiator_t *n, dp_launch_t *launch, dp_row_t *row)
{
    dp_debt_pay(n); /* what was settled before has its place before, also within one frame */
    launch->row = row;
    launch->collective = dp_row_signature(row)->collective;
    launch->entry_begin = n->entry_count;
    /* Not whoever has announced another list. */
    memcpy(n->targets, row->expect, n->table.bit_words * sizeof(*n->targets));
}

/* Every rank that takes part has proposed this signature, or was told it as it has joined. */
static void adopt(dp_negotiator_t *n, dp_row_t *row)
{
    if (dp_table_retire(&n->table, row->signature) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    row->signature = row->proposed;
    row->proposed = NULL;
    row->version++;
    if (row->version == 0) row->version = 1; /* 0 means: none agreed */
}

void dp_agree_launch(dp_negotiator_t *n, dp_row_t *row, const dp_launch_entry_t *agreed)
{
    dp_launch_entry_t entry = *agreed;

    if (row->proposed != NULL) adopt(n, row);
    entry.request = row->request;
    entry.signature = row->signature;
    entry.name = row->name;
    entry.id = row->id;
    if (row->owed_left > 0 && !n->is_fatal) {
        dp_debt_launched(n, row, agreed->absent); /* it has its place in the order already */
    } else if (dp_row_takes_part(n, row) && !n->is_fatal && dp_outbox_entry(n, &entry) != DP_OK) {
        dp_fatal_memory(n);
    }
    if (!n->is_fatal) dp_agree_end(n, row, n->position + 1, 0);
}

/* The row of a group that was made: another list may come under its name. It stays where a failure
 * was told once, to know what is older than that. */
static void end_create(dp_negotiator_t *n, dp_row_t *row)
{
    dp_status_t status = dp_table_retire(&n->table, row->signature);

    row->version = 0;
    if (status == DP_OK) row->signature = NULL;
    dp_contest_over(n, row);
    if (status == DP_OK && !row->ended_in_failure && row->refusals == NULL && !row->is_pending &&
        !row->own.is_there) {
        dp_stall_forget(n, row);
        dp_row_array_remove(&n->news, row);
        dp_row_array_remove(&n->restarts, row);
        status = dp_table_remove(&n->table, row);
    }
    if (status != DP_OK) dp_fatal_memory(n);
}

void dp_agree_launch_end(dp_negotiator_t *n, const dp_launch_t *launch)
{
    dp_row_t *row = launch->row;
    dp_event_t *event = NULL;

    if (n->is_fatal) return;
    n->position++;
    n->sequence = launch->sequence;
    if (n->entry_count > launch->entry_begin) {
        n->launching = launch->sequence;
        event = dp_outbox_event(n, DP_OUTPUT_LAUNCH);
        if (event == NULL) return;
        event->sequence = launch->sequence;
        event->group = row->scope != NULL ? row->scope->uid : launch->born;
        event->slot = launch->slot;
        event->entry_begin = launch->entry_begin;
        event->entry_count = n->entry_count - launch->entry_begin;
        dp_debt_defer(n, launch->behind);
    }
    if (launch->collective == DP_COLLECTIVE_GROUP_CREATE) end_create(n, row);
    if (launch->collective == DP_COLLECTIVE_GROUP_DESTROY) dp_scope_drop(n, row->scope);
}

void dp_agree_refuse_own(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text)
{
    if (row->is_own && !row->is_shadow) dp_outbox_fail(n, row->request, status, text);
    if (row->owed_left > 0 && !n->is_fatal) dp_debt_failed(n, row, status, text);
}

void dp_agree_fail(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text)
{
    int takes_part = dp_bit_get(n->targets, dp_own_slot(n));

    n->position++;
    dp_agree_refuse_own(n, row, status, text);
    if (!row->is_own && takes_part && (row->scope == NULL || !dp_join_has_own(n, row->scope))) {
        if (dp_row_refuse(row, status, text) != DP_OK) dp_fatal_memory(n);
    }
    dp_agree_end(n, row, n->position, 1);
    dp_contest_over(n, row);
}

void dp_agree_bye(dp_negotiator_t *n)
{
    n->position++;
    n->is_finished = 1;
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

/* The whole subtree is ready, as far as it takes part. */
static void check_complete(dp_negotiator_t *n, dp_row_t *row)
{
    if (!row->is_pending || row->is_mismatched || row->is_complete || n->is_fatal) return;
    if (row->ready != row->expected) return;
    row->is_complete = 1;
    dp_stall_unwatch(n, row, 1);
    if (dp_is_root(n)) {
        dp_order_complete(n, row);
    } else {
        dp_outbox_news(n, row);
    }
}

/* What is said up now comes back as a FAILURE. */
void dp_agree_conflict(dp_negotiator_t *n, dp_row_t *row, const int rank[2],
                       const dp_signature_t *const signature[2])
{
    dp_conflict_t *told;

    row->is_mismatched = 1;
    dp_stall_unwatch(n, row, 0);
    if (dp_is_root(n)) {
        if (row->is_complete) dp_order_withdraw(n, row);
        dp_order_conflict(n, row, rank, signature);
        return;
    }
    told = calloc(1, sizeof(*told));
    row->conflict = told;
    for (int i = 0; i < 2 && told != NULL; i++) {
        told->rank[i] = rank[i];
        if (signature[i] == NULL) continue;
        told->signature[i] = dp_signature_copy(signature[i]);
        if (told->signature[i] == NULL) dp_fatal_memory(n);
    }
    if (told == NULL) dp_fatal_memory(n);
    dp_outbox_news(n, row);
}

void dp_agree_lacks(dp_negotiator_t *n, dp_row_t *row, int leaver)
{
    const int ranks[2] = {leaver, -1};
    const dp_signature_t *signatures[2] = {dp_row_signature(row), NULL};

    if (!row->is_mismatched && !row->is_announced) dp_agree_conflict(n, row, ranks, signatures);
}

static void note_absent(dp_row_t *row, uint32_t count, int rank)
{
    const dp_signature_t *signature = dp_row_signature(row);
    int root = row->scope != NULL ? dp_scope_rank(row->scope, signature->root) : -1;

    row->absent += count;
    row->in_place = 0;
    if (row->absent_rank < 0 || rank == root) row->absent_rank = rank;
}

/* Slots whose ranks have joined count as ready, once somebody has really submitted. */
void dp_agree_absent(dp_negotiator_t *n, dp_row_t *row)
{
    if (!row->is_pending || row->first_rank < 0 || row->is_complete || row->is_mismatched) return;
    for (int slot = 0; row->scope->joined_count > 0 && slot <= dp_own_slot(n); slot++) {
        if (!dp_bit_get(row->expect, slot) || dp_bit_get(row->heard, slot)) continue;
        if (!dp_join_covers(n, row, slot)) continue;
        dp_bit_set(row->heard, slot);
        row->ready++;
        note_absent(row, dp_row_below(n, row, slot), dp_join_names(n, row, slot));
    }
    check_complete(n, row);
}

/* Merges what all arrivals carry; a signature is kept with the first. 0: another one came before,
 * which is said at once. */
static int merge(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival,
                 dp_signature_t *signature)
{
    const dp_signature_t *said = signature != NULL ? signature : row->signature;
    const int ranks[2] = {row->first_rank, arrival->rank};
    const dp_signature_t *signatures[2] = {dp_row_signature(row), said};

    dp_bit_set(row->heard, arrival->slot);
    row->ready++;
    row->in_place = row->in_place && arrival->in_place;
    row->ahead = dp_max(row->ahead, arrival->ahead);
    row->absmax = dp_absmax_merge(row->absmax, arrival->absmax);
    if (arrival->is_urgent) row->is_urgent = 1;
    if (row->first_rank < 0) {
        row->first_rank = arrival->rank;
        row->proposed = signature;
    } else if (!row->is_mismatched && !dp_signature_equal(signatures[0], said)) {
        dp_agree_conflict(n, row, ranks, signatures);
        return 0;
    }
    if (arrival->absent > 0) note_absent(row, arrival->absent, arrival->absent_rank);
    return 1;
}

void dp_agree_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival)
{
    dp_signature_t *signature = arrival->signature;
    int is_first = row->first_rank < 0;

    DP_ASSERT(!dp_bit_get(row->heard, arrival->slot));
    if (row->said_ready) { /* so far everybody in the list was ready: this is another one */
        dp_contest_arrive(n, row, arrival);
        return;
    }
    dp_contest_heard(row, arrival->slot);
    if (row->scope == NULL && is_first &&
        dp_row_set_list(n, row, signature->members, signature->member_count) != DP_OK) {
        free(signature);
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, row, n->now_ns);
    if (signature != NULL && row->signature != NULL &&
        dp_signature_equal(signature, row->signature)) {
        free(signature);
        signature = NULL;
    }
    if (!merge(n, row, arrival, signature) || !is_first) free(signature);
    if (n->is_fatal) return;
    if (row->own_expect != NULL) dp_leave_check(n, row);
    if (row->scope != NULL && row->scope->joined_count > 0) dp_agree_absent(n, row);
    check_complete(n, row);
}

void dp_agree_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, const int rank[2],
                       const dp_signature_t *const signature[2])
{
    if (row->said_ready) {
        dp_contest_mismatch(n, row, slot, rank, signature);
        return;
    }
    dp_contest_heard(row, slot);
    if (row->scope == NULL && row->first_rank < 0 && row->list == NULL &&
        dp_row_set_list(n, row, signature[0]->members, signature[0]->member_count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_agree_pending(n, row, n->now_ns);
    dp_bit_set(row->heard, slot);
    row->ready++;
    if (row->is_mismatched) return; /* two subtrees have found one each: the first will do */
    dp_agree_conflict(n, row, rank, signature);
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
