/*
 * leave.h - ranks that give nothing more: they leave, and tensors without them can never be
 * launched; or they join, and tensors of the group are launched without them. leave.c alone writes
 * n->leave, n->join, entry->leave, and what a view knows of leavers and of joined ranks.
 */
#ifndef DP_COORDINATOR_LEAVE_H
#define DP_COORDINATOR_LEAVE_H

#include "coordinator/negotiator/table.h"

/* A leaver has submitted this and waits for it. */
typedef struct dp_keep {
    int rank;
    uint64_t position; /* ordered items the leaver had seen */
    dp_entry_t *entry;
} dp_keep_t;

typedef struct dp_leave {
    int is_finalizing, has_left; /* has_left: LEFT was sent */
    uint64_t *left;              /* a bit per rank: those at or below this rank that have left */
    int left_count;
    /* root: since when some have left and others have not, when to report it, and again */
    uint64_t first_ns, report_ns, interval_ns;
    uint64_t warn_ns, limit_ns; /* 0: never */
    uint32_t keeps;             /* KEEPs seen from the parent since the last ordered item */
    dp_group_view_t *keep_view; /* which they are about */
    dp_keep_t *kept;            /* [kept_count] root: what leavers keep, until their LEFT comes */
    size_t kept_count, kept_room;
    uint64_t *fins; /* a bit per branch: its subtree has left */
    int fin_count, fin_sent;
} dp_leave_t;

dp_status_t dp_leave_init(dp_negotiator_t *n, uint64_t warn_ns, uint64_t limit_ns);
void dp_leave_fini(dp_negotiator_t *n);
void dp_leave_begin(dp_negotiator_t *n);         /* this rank submits nothing more */
int dp_leave_fin(dp_negotiator_t *n, int child); /* FIN of a child; 0: it came before */
/* A KEEP from the parent; 0: it is in the wrong group. */
int dp_leave_told_kept(dp_negotiator_t *n, dp_entry_t *entry);
void dp_leave_occurrence_over(dp_entry_t *entry); /* the next one needs the ranks that left */
void dp_leave_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry);
void dp_leave_left(dp_negotiator_t *n, int rank);
void dp_leave_close(dp_negotiator_t *n, dp_group_view_t *view, int rank); /* CLOSED */
void dp_leave_refuse(dp_negotiator_t *n, const dp_entry_t *entry, void *request);
void dp_leave_end(dp_negotiator_t *n, dp_entry_t *entry); /* this rank's part of it fails */
void dp_leave_refuse_join(dp_negotiator_t *n, const dp_group_view_t *view, void *request);
void dp_leave_tick(dp_negotiator_t *n); /* root: names those that dp_finalize() waits for */
uint64_t dp_leave_deadline(const dp_negotiator_t *n);
void dp_leave_flush(dp_negotiator_t *n);
void dp_leave_finish(dp_negotiator_t *n); /* FIN or BYE, if it is due */

/* A rank that a pending send, or a group to be made, needs and that has left; -1: none. */
int dp_leave_lacking(const dp_negotiator_t *n, const dp_entry_t *entry);
int dp_leave_refers(const dp_negotiator_t *n, const dp_entry_t *entry);     /* a KEEP is about it */
void dp_leave_forget_entry(dp_negotiator_t *n, const dp_entry_t *entry);    /* it is going */
void dp_leave_forget_view(dp_negotiator_t *n, const dp_group_view_t *view); /* likewise */

/* ---- Join ----------------------------------------------------------------------------------- */

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
