/*
 * order.h - the one order: where this rank stands in it, and, on the root, what is appended and
 * when. order.c alone writes n->order, n->position and n->sequence.
 */
#ifndef DP_COORDINATOR_ORDER_H
#define DP_COORDINATOR_ORDER_H

#include "coordinator/negotiator/table.h"

#define DP_GROUP_INDEX_WORDS ((DP_GROUPS_MAX + 64) / 64)

typedef struct dp_ordering {
    uint64_t hold_ns;    /* longest a complete tensor is held back */
    size_t fusion_bytes; /* enough is gathered to launch at once */
    uint64_t launching;  /* sequence of the last launch that this rank takes part in */
    uint64_t done;       /* the last one that the data plane has finished */
    uint64_t (*indices)[DP_GROUP_INDEX_WORDS]; /* [size] a bit for each index of the groups that a
                                                  rank is in; NULL: no group was made */
    /* by priority, then in the order they became complete */
    dp_entry_array_t foreign;  /* complete, and this rank takes no part */
    dp_entry_array_t complete; /* complete and held back */
    size_t bytes;              /* of these */
    uint64_t since_ns;         /* since when there are any of these */
    int is_urgent;             /* one of them is */
} dp_ordering_t;

void dp_order_complete(dp_negotiator_t *n, dp_entry_t *entry);
/* It is not launched after all. */
void dp_order_withdraw(dp_negotiator_t *n, const dp_entry_t *entry);
void dp_order_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2]);
/* Ranks are missing, and the time limit of one that came is over. */
void dp_order_expired(dp_negotiator_t *n, dp_entry_t *entry, const char *text);
void dp_order_launch_held(dp_negotiator_t *n); /* launches all that is complete */
void dp_order_flush(dp_negotiator_t *n);       /* what is due before frames go out */
void dp_order_hurry(dp_negotiator_t *n);       /* a thread waits for one that is held back */
/* The data plane has finished this launch (dp_negotiator_launch_done()). */
void dp_order_finished(dp_negotiator_t *n, uint64_t sequence);
/* Every rank: an ordered item was made or applied; a launch; all up to here was not for it. */
void dp_order_advance(dp_negotiator_t *n);
void dp_order_launched(dp_negotiator_t *n, uint64_t sequence, int takes_part);
void dp_order_seek(dp_negotiator_t *n, uint64_t position);
void dp_order_init(dp_negotiator_t *n, uint64_t hold_ns, size_t fusion_bytes);
void dp_order_fini(dp_negotiator_t *n);
uint64_t dp_order_deadline(const dp_negotiator_t *n);

#endif
