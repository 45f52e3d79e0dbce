/*
 * order.h - the root's order of everything, in order.c. Part of negotiator_internal.h.
 */
#ifndef DP_COORDINATOR_ORDER_H
#define DP_COORDINATOR_ORDER_H

#include "coordinator/negotiator/table.h"

typedef struct dp_ordering {
    uint64_t hold_ns;    /* longest a complete tensor is held back */
    size_t fusion_bytes; /* enough is gathered to launch at once */
    uint64_t launching;  /* sequence of the last launch that this rank takes part in */
    uint64_t launched;   /* the data plane has finished up to here */
    uint8_t is_index_taken[DP_GROUPS_MAX + 1];
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
void dp_order_launch_held(dp_negotiator_t *n); /* launches all that is complete */
void dp_order_flush(dp_negotiator_t *n);       /* what is due before frames go out */
uint64_t dp_order_deadline(const dp_negotiator_t *n);

#endif
