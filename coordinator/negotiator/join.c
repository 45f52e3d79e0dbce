/*
 * join.c - ranks that have no more data for a group, and how the others go on without them.
 *
 * JOIN goes up to the root, which orders JOINED once every member has joined. Until then a branch
 * all of whose ranks have joined counts as ready for every tensor of the group that another rank
 * submits, unless it had announced that occurrence before: on an edge READY comes before the JOIN
 * that follows it. The ranks that are absent are counted on the way up, and LAUNCH carries their
 * number.
 *
 * Called on the thread that drives the negotiator: by negotiator.c for this rank's dp_join(), by
 * receive.c for a JOIN from below, by follow.c for JOINED, and by negotiator.c to send what is due.
 * The questions at the end are asked by agree.c, order.c and stall.c.
 */
#include "coordinator/negotiator/join.h"

#include "coordinator/negotiator/state.h"

#include <string.h>

/* The rank counts as absent from here on, for occurrences that its branch has not announced before.
 * Tensors that waited for it alone become complete. */
void dp_join_arrive(dp_negotiator_t *n, dp_group_view_t *view, int rank)
{
    int branch = dp_branch_of(n, rank);

    dp_bit_set(view->joined, dp_group_view_index(view, rank));
    view->joined_count++;
    view->joined_below[branch]++;
    view->joined_rank[branch] = rank;
    view->last_joined = rank;
    if (!dp_is_root(n)) {
        dp_notice_t notice = {.kind = DP_ITEM_JOIN, .rank = rank, .group = view->uid};

        dp_outbox_notice(n, &notice);
    }
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++) {
        if (n->table.entries[i]->view == view) dp_agree_absent(n, n->table.entries[i]);
    }
    if (!dp_is_root(n) || n->is_fatal || view->is_closed) return;
    if (view->joined_count < view->member_count) return;
    dp_order_launch_held(n); /* they went without ranks that are counted again after this */
    if (n->is_fatal) return;
    n->made.kind = DP_ITEM_JOINED;
    n->made.group = view->uid;
    n->made.rank = view->last_joined;
    n->made.list_count = 0;
    dp_outbox_down(n, view->expect, &n->made, 1);
    if (!n->is_fatal) dp_join_all(n, view, view->last_joined);
}

/* Drops the failures with which this rank's next submissions would end: that it has joined counts
 * as its part in them. */
static void forgive_refusals(dp_negotiator_t *n, const dp_group_view_t *view)
{
    for (size_t i = 0; i < n->table.entry_count; i++) {
        if (n->table.entries[i]->view == view) dp_entry_forgive(n->table.entries[i]);
    }
}

/* This rank has no more data. Tensors that a leaver has kept can still be launched, and go without
 * this rank, as they would have if CLOSED had come a moment later. */
void dp_join_refused(dp_negotiator_t *n, dp_group_view_t *view)
{
    forgive_refusals(n, view);
    if (!dp_join_is_joined(view, n->rank)) view->is_join_due = 1;
    n->join.is_due = 1;
    dp_join_flush(n);
}

void dp_join_own(dp_negotiator_t *n, dp_group_view_t *view, void *request)
{
    forgive_refusals(n, view);
    view->has_join = 1;
    view->is_join_said = 0;
    n->join.is_due = 1;
    view->join_request = request;
    dp_own_count(n, 1);
    dp_join_flush(n);
}

static dp_group_view_t *next_unsaid_join(const dp_negotiator_t *n)
{
    for (size_t i = 0; i <= n->groups.count; i++) {
        dp_group_view_t *view = i < n->groups.count ? n->groups.views[i] : n->world;

        if (view->is_join_due || (view->has_join && !view->is_join_said)) return view;
    }
    return NULL;
}

void dp_join_flush(dp_negotiator_t *n)
{
    dp_group_view_t *view;

    while (!n->is_fatal) {
        view = next_unsaid_join(n);
        n->join.is_due = view != NULL;
        if (view == NULL) return;
        view->is_join_said = 1;
        view->is_join_due = 0;
        dp_join_arrive(n, view, n->rank);
    }
}

static void clear_joined(const dp_negotiator_t *n, dp_group_view_t *view)
{
    memset(view->joined, 0, dp_bit_words(view->member_count) * sizeof(*view->joined));
    memset(view->joined_below, 0, (size_t)n->table.branches * sizeof(*view->joined_below));
    view->joined_count = 0;
    view->last_joined = -1;
}

int dp_join_take(dp_negotiator_t *n, dp_group_view_t *view, void **request)
{
    if (!view->has_join) return 0;
    view->has_join = 0;
    *request = view->join_request;
    dp_own_count(n, -1);
    return 1;
}

/* JOINED, on every rank that it concerns. */
void dp_join_all(dp_negotiator_t *n, dp_group_view_t *view, int last_rank)
{
    dp_own_output_t *output;
    void *request;

    dp_order_advance(n);
    clear_joined(n, view);
    if (!dp_join_take(n, view, &request)) return;
    output = dp_outbox_output(n, DP_OUTPUT_JOINED);
    if (output == NULL) return;
    output->group = view->uid;
    output->request = request;
    output->last_rank = dp_group_view_index(view, last_rank);
}

/* ---- Questions ------------------------------------------------------------------------------ */

int dp_join_is_joined(const dp_group_view_t *view, int rank)
{
    int index = view->joined_count > 0 ? dp_group_view_index(view, rank) : -1;

    return index >= 0 && dp_bit_get(view->joined, index);
}

/* Have all ranks of this branch joined that take part in the tensor? */
int dp_join_covers(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    const dp_group_view_t *view = entry->view;
    const int pair[2] = {entry->root, entry->peer};

    if (view == NULL) return 0;
    if (entry->root < 0) {
        return view->below[branch] > 0 && view->joined_below[branch] == view->below[branch];
    }
    for (int i = 0; i < 2; i++) {
        int rank = dp_group_view_rank(view, pair[i]);

        if (dp_branch_of(n, rank) == branch && !dp_join_is_joined(view, rank)) return 0;
    }
    return 1;
}

/* One of the ranks in a branch that have joined: the collective's root if it is among them. */
int dp_join_names(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    const dp_group_view_t *view = entry->view;
    const dp_signature_t *signature = dp_entry_signature(entry);
    const int likely[2] = {dp_group_view_rank(view, signature->root),
                           dp_group_view_rank(view, signature->peer)};

    for (int i = 0; i < 2; i++) {
        if (dp_branch_of(n, likely[i]) == branch && dp_join_is_joined(view, likely[i])) {
            return likely[i];
        }
    }
    return view->joined_rank[branch];
}

/* May this tensor be launched without the ranks that have joined? */
int dp_join_allows(const dp_entry_t *entry)
{
    const dp_signature_t *signature = dp_entry_signature(entry);

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
               dp_group_view_rank(entry->view, signature->root) != entry->arrived.absent_rank;
    default:
        return 0;
    }
}

int dp_join_has_own(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    return view->has_join || dp_join_is_joined(view, n->rank);
}
