/*
 * own.h - this rank's own submissions. own.c alone writes entry->own, entry->part,
 * entry->is_queued, the count of what this rank has pending, and a view's count of it.
 */
#ifndef DP_COORDINATOR_OWN_H
#define DP_COORDINATOR_OWN_H

#include "coordinator/negotiator/table.h"

typedef struct dp_own {
    size_t pending;         /* requests of this rank not handed back */
    dp_entry_array_t queue; /* entries whose submission has to arrive once more */
    dp_entry_array_t timed; /* entries whose submission has a time limit that is not over */
    /* With some: no limit is over before this. Not always the earliest of them: the one that gave
     * it may have ended. Then a tick finds nothing and looks for the earliest. So a submission
     * costs the same however many there are, and the list is walked about once in the length of a
     * limit. */
    uint64_t tick_ns;
} dp_own_t;

/* Takes a submission that nothing speaks against. DP_ERR_NO_MEMORY: it was not taken. */
dp_status_t dp_own_submit(dp_negotiator_t *n, dp_entry_t *entry, const dp_submission_t *submission);
void dp_own_flush(dp_negotiator_t *n);
void dp_own_queue(dp_negotiator_t *n, dp_entry_t *entry); /* looks at it with dp_own_flush() */
void dp_own_end(dp_negotiator_t *n, dp_entry_t *entry);   /* what this rank has submitted is over */
void dp_own_urgent(dp_negotiator_t *n, dp_entry_t *entry); /* a thread waits for it */
void dp_own_count(dp_negotiator_t *n, int change);         /* a join begins (1), or ends (-1) */
void dp_own_forget(dp_negotiator_t *n, dp_entry_t *entry); /* it is going */
void dp_own_tick(dp_negotiator_t *n);                      /* time limits that are over */
uint64_t dp_own_deadline(const dp_negotiator_t *n);
void dp_own_fini(dp_negotiator_t *n);

#endif
