/*
 * left.c - what is forgotten of ranks that leave: for a tensor entry that goes, and when an epoch
 * begins.
 *
 * Called by agree.c and epoch.c, on the thread that drives the negotiator. The rules of leaving are
 * leave.c's.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <string.h>

/* The entry is going. */
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

void dp_leave_forget(dp_negotiator_t *n)
{
    dp_leave_t *leave = &n->leave;

    memset(leave->left, 0, dp_bit_words((size_t)n->size) * sizeof(*leave->left));
    memset(leave->fins, 0, n->table.bit_words * sizeof(*leave->fins));
    leave->left_count = leave->fin_count = leave->fin_sent = leave->has_left = 0;
    leave->kept_count = 0;
}
