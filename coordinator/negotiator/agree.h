/*
 * agree.h - the rules of one tensor: this rank submits it, it arrives from below, is complete, is
 * launched or fails. agree.c alone writes entry->arrived, entry->heard and entry->ended, and what
 * ranks have agreed on: the entry's signature and version; and of this rank's submissions n->own,
 * entry->own, entry->part, entry->is_queued, and a view's count of them. A function that fails
 * calls dp_fatal() by itself.
 */
#ifndef DP_COORDINATOR_AGREE_H
#define DP_COORDINATOR_AGREE_H

#include "coordinator/negotiator/table.h"

/* What this rank has submitted. */
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
/* A child's part of the occurrence is known here. */
void dp_agree_hear(dp_entry_t *entry, int branch);
/* A rank that has joined learns the signature with the LAUNCH; taken. */
void dp_agree_learn(dp_entry_t *entry, dp_signature_t *signature);

/* ---- This rank's submissions ---------------------------------------------------------------- */

/* Takes a submission that nothing speaks against. DP_ERR_NO_MEMORY: it was not taken. */
dp_status_t dp_own_submit(dp_negotiator_t *n, dp_entry_t *entry, const dp_submission_t *submission);
void dp_own_flush(dp_negotiator_t *n);
void dp_own_urgent(dp_negotiator_t *n, dp_entry_t *entry); /* a thread waits for it */
void dp_own_count(dp_negotiator_t *n, int change);         /* a join begins (1), or ends (-1) */
void dp_own_tick(dp_negotiator_t *n);                      /* time limits that are over */
uint64_t dp_own_deadline(const dp_negotiator_t *n);
void dp_own_fini(dp_negotiator_t *n);

/* ---- The entry that an item of a neighbour speaks of ---------------------------------------- */

/* Made where it is new; NULL: a fatal error that names the neighbour was raised. */
dp_entry_t *dp_item_entry(dp_negotiator_t *n, int from, const dp_item_t *item);
/* The same for FAILURE and for what a LAUNCH holds: they may give it its id. */
dp_entry_t *dp_item_named_entry(dp_negotiator_t *n, int from, const dp_item_t *item);

#endif
