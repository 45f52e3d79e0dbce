/*
 * epoch.c - what is forgotten when a schedule begins or ends.
 *
 * An epoch starts from ordered items alone. Announcements that children made in the epoch before
 * are dropped, also those that arrive late, and are made again if they still hold. So a schedule
 * begins and ends without a question to anyone. Called by schedule/, on the thread that drives the
 * negotiator, for SCHEDULE and SCHEDULE_END.
 */
#include "coordinator/negotiator/negotiator_internal.h"

/* Nothing that was announced upwards holds any longer. */
static void forget_announcements(dp_negotiator_t *n)
{
    dp_join_forget(n);
    dp_leave_forget(n);
    n->out.notice_count = 0;
    n->stall.is_asking = 0;
}

static void forget_pending(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->table.entry_count; i++) {
        dp_entry_t *entry = n->table.entries[i];

        dp_contest_drop(entry);
        if (!entry->is_pending && !entry->part.is_submitted) continue;
        dp_stall_unwatch(n, entry, 0);
        dp_entry_clear(entry, n->table.bit_words);
    }
    dp_order_forget(&n->order);
}

void dp_epoch_next(dp_negotiator_t *n)
{
    dp_outbox_close_up(n); /* it speaks of the epoch that ends */
    forget_announcements(n);
    forget_pending(n);
    n->position++;
    n->epoch++;
}
