/*
 * joined.c - which ranks have joined a group, and what that means for one of its tensors.
 *
 * Answers questions from the group views and changes nothing else, so that agree.c, order.c and
 * stall.c can ask without knowing how a rank joins (join.c). On the thread that drives the
 * negotiator.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <string.h>

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

void dp_join_clear(const dp_negotiator_t *n, dp_group_view_t *view)
{
    memset(view->joined, 0, dp_bit_words(view->member_count) * sizeof(*view->joined));
    memset(view->joined_below, 0, (size_t)n->table.branches * sizeof(*view->joined_below));
    view->joined_count = 0;
    view->last_joined = -1;
}
