/*
 * join.c - ranks that have no more data for a group, and how the others go on without them.
 *
 * JOIN goes up to the root, which orders JOINED once every member has said so. Until then a slot
 * all of whose ranks have joined counts as ready for every tensor of the group that somebody else
 * submits, unless it had announced that occurrence before: on an edge READY comes before the JOIN
 * that follows it. What a tensor went without is counted on its way up and told with its LAUNCH.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <string.h>

int dp_join_is_joined(const dp_scope_t *scope, int rank)
{
    int index = scope->joined_count > 0 ? dp_scope_index(scope, rank) : -1;

    return index >= 0 && dp_bit_get(scope->joined, index);
}

/* Have all ranks of this slot joined that take part in the tensor? */
int dp_join_covers(const dp_negotiator_t *n, const dp_row_t *row, int slot)
{
    const dp_scope_t *scope = row->scope;
    const int pair[2] = {row->root, row->peer};

    if (scope == NULL) return 0;
    if (row->root < 0) {
        return scope->below[slot] > 0 && scope->joined_below[slot] == scope->below[slot];
    }
    for (int i = 0; i < 2; i++) {
        int rank = dp_scope_rank(scope, pair[i]);

        if (dp_slot_of(n, rank) == slot && !dp_join_is_joined(scope, rank)) return 0;
    }
    return 1;
}

/* One of the ranks in a slot that have joined: the collective's root if it is among them. */
int dp_join_names(const dp_negotiator_t *n, const dp_row_t *row, int slot)
{
    const dp_scope_t *scope = row->scope;
    const dp_signature_t *signature = dp_row_signature(row);
    const int likely[2] = {dp_scope_rank(scope, signature->root),
                           dp_scope_rank(scope, signature->peer)};

    for (int i = 0; i < 2; i++) {
        if (dp_slot_of(n, likely[i]) == slot && dp_join_is_joined(scope, likely[i])) {
            return likely[i];
        }
    }
    return scope->joined_rank[slot];
}

/* May this tensor do without those who have joined? */
int dp_join_allows(const dp_row_t *row)
{
    const dp_signature_t *signature = dp_row_signature(row);

    switch (signature->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
    case DP_COLLECTIVE_REDUCE_SCATTERV:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_ALLGATHERV:
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_BARRIER:
        return signature->root < 0 ||
               dp_scope_rank(row->scope, signature->root) != row->absent_rank;
    default:
        return 0;
    }
}

void dp_join_arrive(dp_negotiator_t *n, dp_scope_t *scope, int rank)
{
    int slot = dp_slot_of(n, rank);

    dp_bit_set(scope->joined, dp_scope_index(scope, rank));
    scope->joined_count++;
    scope->joined_below[slot]++;
    scope->joined_rank[slot] = rank;
    scope->last_joined = rank;
    if (!dp_is_root(n)) {
        dp_word_t word = {.kind = DP_ITEM_JOIN, .rank = rank, .group = scope->uid};

        dp_outbox_say(n, &word);
    }
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++) {
        if (n->table.rows[i]->scope == scope) dp_agree_absent(n, n->table.rows[i]);
    }
    if (!dp_is_root(n) || n->is_fatal || scope->is_closed) return;
    if (scope->joined_count < scope->member_count) return;
    dp_order_release(n); /* they went without ranks that are counted again after this */
    if (n->is_fatal) return;
    n->made.kind = DP_ITEM_JOINED;
    n->made.group = scope->uid;
    n->made.rank = scope->last_joined;
    n->made.list_count = 0;
    dp_outbox_down(n, scope->expect, &n->made, 1);
    if (!n->is_fatal) dp_join_all(n, scope, scope->last_joined);
}

/* What failed without this rank does not concern it any more: it has joined instead. */
static void forgive(dp_negotiator_t *n, const dp_scope_t *scope)
{
    for (size_t i = 0; i < n->table.row_count; i++) {
        if (n->table.rows[i]->scope == scope) dp_row_forgive(n->table.rows[i]);
    }
}

/* This rank has no more data. What a leaver has kept can still be launched, and goes without it, as
 * it would have if CLOSED had come a moment later. */
void dp_join_refused(dp_negotiator_t *n, dp_scope_t *scope)
{
    forgive(n, scope);
    if (!dp_join_is_joined(scope, n->rank)) scope->is_join_due = 1;
    dp_join_flush(n);
}

void dp_join_own(dp_negotiator_t *n, dp_scope_t *scope, void *request)
{
    forgive(n, scope);
    scope->has_join = 1;
    scope->is_join_said = 0;
    scope->join_request = request;
    n->own_pending++;
    dp_lock_diverge(n, DP_SCHEDULE_END_JOIN, n->rank, "it has joined");
    dp_join_flush(n);
}

int dp_join_has_own(const dp_negotiator_t *n, const dp_scope_t *scope)
{
    return scope->has_join || dp_join_is_joined(scope, n->rank);
}

static dp_scope_t *unsaid(const dp_negotiator_t *n)
{
    for (size_t i = 0; i <= n->group_count; i++) {
        dp_scope_t *scope = i < n->group_count ? n->groups[i] : n->world;

        if (scope->is_join_due || (scope->has_join && !scope->is_join_said)) return scope;
    }
    return NULL;
}

/* What this rank launched under a lock comes before its JOIN, as what it announces does. */
void dp_join_flush(dp_negotiator_t *n)
{
    dp_scope_t *scope;

    while (!n->lock.is_scheduled && n->lock.shadows == 0 && !n->is_fatal) {
        scope = unsaid(n);
        if (scope == NULL) return;
        scope->is_join_said = 1;
        scope->is_join_due = 0;
        dp_join_arrive(n, scope, n->rank);
    }
}

/* JOINED, on every rank that it concerns. */
void dp_join_all(dp_negotiator_t *n, dp_scope_t *scope, int last_rank)
{
    dp_event_t *event;

    n->position++;
    memset(scope->joined, 0, dp_bit_words(scope->member_count) * sizeof(*scope->joined));
    memset(scope->joined_below, 0, (size_t)n->table.slots * sizeof(*scope->joined_below));
    scope->joined_count = 0;
    scope->last_joined = -1;
    if (!scope->has_join) return;
    scope->has_join = 0;
    n->own_pending--;
    event = dp_outbox_event(n, DP_OUTPUT_JOINED);
    if (event == NULL) return;
    event->group = scope->uid;
    event->request = scope->join_request;
    event->last_rank = dp_scope_index(scope, last_rank);
}
