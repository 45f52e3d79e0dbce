/*
 * contest.h - two lists of ranks for one group to be made. contest.c alone writes entry->making but
 * the list, which comes with the first announcement (dp_entry_set_list()).
 */
#ifndef DP_COORDINATOR_CONTEST_H
#define DP_COORDINATOR_CONTEST_H

#include "coordinator/negotiator/agree.h"

void dp_contest_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival);
void dp_contest_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                         const dp_signature_t *const signature[2]);
void dp_contest_partial(dp_negotiator_t *n, dp_entry_t *entry, int branch, const dp_item_t *item,
                        uint64_t first_ns);
int dp_contest_is_partial(const dp_entry_t *entry,
                          int branch);                /* its PARTIAL came, not its READY */
void dp_contest_heard(dp_entry_t *entry, int branch); /* its READY came */
/* The occurrence is over for n->targets: what other branches announced is of the next. */
void dp_contest_over(dp_negotiator_t *n, dp_entry_t *entry);
/* The occurrence is over at this position: the branches of n->targets are told. */
void dp_contest_ended(dp_negotiator_t *n, dp_entry_t *entry, uint64_t position);

#endif
