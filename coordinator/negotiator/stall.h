/*
 * stall.h - tensors that wait too long, and the question which ranks are missing. stall.c alone
 * writes n->stall and entry->stall.
 */
#ifndef DP_COORDINATOR_STALL_H
#define DP_COORDINATOR_STALL_H

#include "coordinator/negotiator/table.h"

typedef struct dp_stall {
    uint64_t warn_ns, limit_ns; /* 0: never */
    /* Pending entries, oldest first: not yet overdue, and overdue. */
    dp_entry_t *fresh_oldest, *fresh_newest;
    dp_entry_t *stalled_oldest, *stalled_newest;
    size_t stalled_count;
    /* The question WHO that is being answered. */
    int is_asking, is_unsent; /* is_unsent: WHO has still to go to the children */
    int is_final;             /* root: the answer is a fatal error */
    uint32_t round;
    uint32_t patience_ms;
    dp_entry_t *subject;
    uint64_t patience_until_ns;
    uint32_t waiting; /* children asked that have not answered */
    uint64_t *asked;  /* [bit_words] */
    dp_missing_t found;
    /* root */
    uint64_t next_report_ns, interval_ns;
    dp_entry_array_t expired; /* some have ended since */
    int is_expiry;            /* the answer fails the subject */
} dp_stall_t;

dp_status_t dp_stall_init(dp_negotiator_t *n, uint64_t warn_ns, uint64_t limit_ns);
void dp_stall_fini(dp_negotiator_t *n);
/* It is pending, since then. */
void dp_stall_watch(dp_negotiator_t *n, dp_entry_t *entry, uint64_t first_ns);
/* It is no longer waited for here: complete, announced, failed. */
void dp_stall_unwatch(dp_negotiator_t *n, dp_entry_t *entry, int is_complete);
void dp_stall_who(dp_negotiator_t *n, const dp_item_t *item, dp_entry_t *entry);
void dp_stall_missing(dp_negotiator_t *n, int child, const dp_item_t *item);
/* The time limit is over that a rank gave to the pending occurrence: the root fails it, with the
 * ranks that are missing in the text. */
void dp_stall_expire(dp_negotiator_t *n, dp_entry_t *entry);
void dp_stall_forget(dp_negotiator_t *n, const dp_entry_t *entry); /* it is going */
void dp_stall_tick(dp_negotiator_t *n);
void dp_stall_flush(dp_negotiator_t *n); /* questions down, the answer up */
uint64_t dp_stall_deadline(const dp_negotiator_t *n);

#endif
