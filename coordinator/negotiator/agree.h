/*
 * agree.h - the rules of one tensor, in agree.c, contest.c and own.c. Part of
 * negotiator_internal.h. Each function that fails calls dp_fatal() by itself.
 */
#ifndef DP_COORDINATOR_AGREE_H
#define DP_COORDINATOR_AGREE_H

#include "coordinator/negotiator/table.h"

/* The contribution of one branch to the pending occurrence. */
typedef struct dp_arrival {
    int branch;
    int rank;                  /* vouches for the signature */
    dp_signature_t *signature; /* NULL: the adopted one; taken */
    int in_place, is_urgent;
    float absmax;
    int32_t priority;
    uint32_t absent;
    int absent_rank;
} dp_arrival_t;

/* A LAUNCH while it is being applied. */
typedef struct dp_ordered_launch {
    uint64_t sequence;
    dp_entry_t *entry; /* the first */
    dp_collective_t collective;
    size_t entry_begin;
    uint32_t born, group_index; /* of a group_create */
} dp_ordered_launch_t;

/* agree.c */
void dp_agree_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival);
/* A child found two signatures, or, the second being NULL, that a rank has left. */
void dp_agree_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                       const dp_signature_t *const signature[2]);
/* Two signatures have met: no more is waited for. */
void dp_agree_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2]);
void dp_agree_urgent(dp_negotiator_t *n, dp_entry_t *entry);
void dp_agree_pending(dp_negotiator_t *n, dp_entry_t *entry, uint64_t first_ns);
/* A send, or a group to be made, that needs a rank that has left is a conflict. */
void dp_agree_check_left(dp_negotiator_t *n, dp_entry_t *entry);
void dp_agree_absent(dp_negotiator_t *n, dp_entry_t *entry); /* ranks may have joined */
/* Ordered items, on every rank in the same order. n->targets holds the branches that one is for. */
void dp_agree_targets(dp_negotiator_t *n, const dp_entry_t *entry, const int32_t *list,
                      uint32_t count);
/* begin, launch for each tensor, end. */
void dp_agree_launch_begin(dp_negotiator_t *n, dp_ordered_launch_t *launch, dp_entry_t *entry);
void dp_agree_launch(dp_negotiator_t *n, dp_entry_t *entry, const dp_launch_entry_t *launch_entry);
void dp_agree_launch_end(dp_negotiator_t *n, const dp_ordered_launch_t *launch);
void dp_agree_fail(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text);
void dp_agree_bye(dp_negotiator_t *n);
void dp_agree_end(dp_negotiator_t *n, dp_entry_t *entry, uint64_t position, int in_failure);
int dp_launches_alone(dp_collective_t collective);
/* This rank's part of the occurrence fails. */
void dp_agree_refuse_own(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                         const char *text);

/* contest.c */
void dp_contest_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival);
void dp_contest_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                         const dp_signature_t *const signature[2]);
void dp_contest_partial(dp_negotiator_t *n, dp_entry_t *entry, int branch, const dp_item_t *item,
                        uint64_t first_ns);
void dp_contest_heard(dp_entry_t *entry, int branch); /* its READY came */
/* The occurrence is over for n->targets: what other branches announced is of the next. */
void dp_contest_over(dp_negotiator_t *n, dp_entry_t *entry);

/* own.c: this rank's own submissions */
typedef struct dp_own {
    size_t pending;         /* requests of this rank not handed back */
    dp_entry_array_t queue; /* entries whose next occurrence is to be looked at */
} dp_own_t;
/* Takes a submission that nothing speaks against. DP_ERR_NO_MEMORY: it was not taken. */
dp_status_t dp_own_submit(dp_negotiator_t *n, dp_entry_t *entry, const dp_submission_t *submission);
void dp_own_arrive(dp_negotiator_t *n, dp_entry_t *entry); /* this rank's part, if there is one */
void dp_own_flush(dp_negotiator_t *n);
/* own_end.c */
void dp_own_queue(dp_negotiator_t *n, dp_entry_t *entry); /* looks at it with dp_own_flush() */
void dp_own_end(dp_negotiator_t *n, dp_entry_t *entry);   /* what this rank has submitted is over */

#endif
