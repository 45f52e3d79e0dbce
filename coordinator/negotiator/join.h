/*
 * join.h - ranks that have no more data for a group. join.c alone writes what a view knows of them:
 * its fields from `joined` on.
 */
#ifndef DP_COORDINATOR_JOIN_H
#define DP_COORDINATOR_JOIN_H

#include "coordinator/negotiator/table.h"

typedef struct dp_join {
    int is_due; /* 0: dp_join_flush() would find no JOIN of this rank that is not sent */
} dp_join_t;

void dp_join_own(dp_negotiator_t *n, dp_group_view_t *view, void *request);
void dp_join_refused(dp_negotiator_t *n, dp_group_view_t *view); /* a rank has left the group */
void dp_join_arrive(dp_negotiator_t *n, dp_group_view_t *view, int rank);
void dp_join_flush(dp_negotiator_t *n); /* JOIN, if this rank may send it by now */
void dp_join_all(dp_negotiator_t *n, dp_group_view_t *view, int last_rank); /* JOINED */

/* Questions. */
int dp_join_is_joined(const dp_group_view_t *view, int rank);
int dp_join_has_own(const dp_negotiator_t *n, const dp_group_view_t *view); /* this rank */
int dp_join_covers(const dp_negotiator_t *n, const dp_entry_t *entry, int branch);
int dp_join_names(const dp_negotiator_t *n, const dp_entry_t *entry, int branch);
int dp_join_allows(const dp_entry_t *entry);
/* This rank's request to join ends: 1, and *request; 0: there is none. */
int dp_join_take(dp_negotiator_t *n, dp_group_view_t *view, void **request);

#endif
