/*
 * left.c - what is known of ranks that have left: which of them a tensor lacks, and what is
 * forgotten for an entry that goes.
 *
 * Called by agree.c, on the thread that drives the negotiator. The rules of leaving are
 * leave.c's; this file calls nothing that decides.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <string.h>

/* A leaver may have submitted its half of a send: then its branch is ready, as READY comes first. A
 * group is not made for members that have left. */
static int is_lacking(const dp_negotiator_t *n, const dp_entry_t *entry, int rank)
{
    if (!dp_bit_get(n->leave.left, rank)) return 0;
    return entry->view == NULL || !dp_bit_get(entry->heard, dp_branch_of(n, rank));
}

int dp_leave_lacking(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    const int pair[2] = {entry->root, entry->peer};
    uint32_t count = entry->view != NULL ? 2 : entry->making.list_count;

    if (n->leave.left_count == 0 || !entry->is_pending || entry->arrived.first_rank < 0) return -1;
    for (uint32_t i = 0; i < count; i++) {
        int rank =
            entry->view != NULL ? dp_group_view_rank(entry->view, pair[i]) : entry->making.list[i];

        if (is_lacking(n, entry, rank)) return rank;
    }
    return -1;
}

/* The entry is going. */
int dp_leave_refers(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    for (size_t i = 0; i < n->leave.kept_count; i++) {
        if (n->leave.kept[i].entry == entry) return 1;
    }
    for (size_t i = 0; i < n->out.notice_count; i++) {
        if (n->out.notices[i].entry == entry) return 1;
    }
    return 0;
}

void dp_leave_forget_entry(dp_negotiator_t *n, const dp_entry_t *entry)
{
    size_t left = 0;

    for (size_t i = 0; i < n->leave.kept_count; i++) {
        if (n->leave.kept[i].entry != entry) n->leave.kept[left++] = n->leave.kept[i];
    }
    n->leave.kept_count = left;
    left = 0;
    for (size_t i = 0; i < n->out.notice_count; i++) {
        if (n->out.notices[i].entry != entry) n->out.notices[left++] = n->out.notices[i];
    }
    n->out.notice_count = left;
}
