/*
 * schedule.h - a cached schedule: its plan, where this rank stands in it, and what is still to be
 * agreed on when it ends. Part of negotiator_internal.h.
 *
 * schedule/launch.c       a rank under a schedule: what it submits, launches, and says when it must
 * deviate schedule/schedule_messages.c what nodes say to each other meanwhile schedule/detect.c the
 * root: rounds that repeat themselves, and the plan made of one schedule/resume.c  the root: a plan
 * that comes back schedule/catch_up.c  after a schedule: launches that not every rank could follow
 * are negotiated late
 *
 * Buckets are counted over all rounds: bucket b of round r has the number r x bucket_count + b.
 */
#ifndef DP_COORDINATOR_SCHEDULE_H
#define DP_COORDINATOR_SCHEDULE_H

#include "coordinator/negotiator/messages.h"

struct dp_entry;
struct dp_group_view;

#define DP_REASON_TEXT_MAX 256

/* What this rank has submitted of a tensor and was not handed back. */
typedef struct dp_submitted {
    int is_there;
    int fits; /* the scheduled plan: it may be launched without asking */
    void *request;
    dp_signature_t *signature; /* NULL: the adopted one; owned */
    int in_place, is_urgent;
    float absmax;
    uint64_t since_ns;
} dp_submitted_t;

typedef struct dp_planned {
    struct dp_entry *entry; /* NULL: nobody at or below this node takes part */
    int in_place;
    float absmax;
} dp_planned_t;

typedef struct dp_schedule_bucket {
    size_t begin, count; /* into the entries */
    uint64_t rounds;     /* in which some rank at or below this node has launched it */
} dp_schedule_bucket_t;

/*
 * One occurrence that some ranks had launched under the schedule and others not, of a tensor that
 * this rank takes part in. Where this rank had launched it, it counts as submitted, and what is
 * agreed on is told with SETTLED; where not, its launch is made up for when all of its bucket is
 * settled.
 */
typedef struct dp_occurrence {
    struct dp_occurrence *next_of_entry; /* a later one of the same tensor */
    struct dp_entry *entry;
    uint32_t group; /* its number, for when the group is gone */
    uint64_t bucket;
    int is_own; /* the root keeps those of others too */
    int is_launched, is_settled, is_void;
    int in_place; /* as in the plan, likewise absmax */
    float absmax;
    void *request;
    uint32_t absent;
    dp_signature_t *signature; /* what was agreed; owned */
} dp_occurrence_t;

/* A launch in the root's memory of what it has ordered. */
typedef struct dp_ordered {
    struct dp_entry *entry;
    size_t before; /* one more than where the entry came last; 0: never */
    int is_first;  /* of its LAUNCH */
    int in_place;
    float absmax;
} dp_ordered_t;

typedef struct dp_schedule {
    int is_active, is_paused;
    /* the plan, while scheduled */
    dp_planned_t *planned;         /* [planned_count] */
    dp_schedule_bucket_t *buckets; /* [bucket_count] */
    size_t planned_count, planned_room, bucket_count, bucket_room;
    size_t *own_buckets; /* [own_bucket_count] buckets that this rank takes part in */
    size_t own_bucket_count, own_bucket_room;
    uint64_t base;           /* the sequence before the first bucket */
    uint32_t stride;         /* rounds between two COUNTs, and how far a rank may be ahead */
    uint64_t step;           /* own buckets launched */
    uint64_t launched;       /* one more than the number of the last bucket launched here */
    uint64_t unconfirmed_ns; /* since when there are launches that others may lack; 0: none */
    uint64_t confirmed;      /* rounds that all ranks have launched */
    uint64_t *child_rounds;  /* [child_count] likewise of each child's subtree */
    uint64_t counts_sent;    /* to the parent */
    int slowest, wants_exact_counts;

    /* why it must end */
    int has_reason, is_reason_sent;
    dp_schedule_end_reason_t reason;
    int reason_rank;
    char reason_text[DP_REASON_TEXT_MAX];
    int children_awaited; /* held: children that have not said where they stand */
    uint64_t low, high;
    uint64_t *rounds; /* [rounds_room] scratch: of each bucket, for REACHED */
    size_t rounds_room;
    int is_reached_sent;

    /* after it */
    dp_occurrence_t *occurrences; /* [occurrence_count], those before occurrences_done are over */
    size_t occurrence_count, occurrence_room, occurrences_done;
    uint64_t catch_up_end; /* behind the last bucket that anybody launched */
    size_t early_count;    /* of these: launched and not settled */
    size_t late_count;     /* not launched, not made up for */
    uint64_t unsettled;    /* occurrences, over all ranks, that are not settled */
    uint64_t ahead; /* one more than the last bucket launched here, if others may not be that far */
    uint64_t *floors;   /* root: [size] what a rank's next launch has to be behind */
    uint64_t waited_ns; /* a thread waits while there are debts; 0: none */
    uint64_t voided_ns; /* when the root was told */
    uint64_t ended_ns;  /* others wait for what is owed since then */
    int has_warned;     /* of what this rank owes next, while a thread waits */

    /* root */
    int may_schedule, is_declared;
    dp_ordered_t *history; /* [history_count] */
    size_t history_count, history_room;
    size_t round_begin;     /* where the declared round began */
    size_t period, repeat;  /* so many launches match those a period before */
    uint32_t rounds_needed; /* rounds to see before the next schedule */
    uint32_t declared;      /* declared rounds like the last one */
    uint64_t digest;        /* of the last declared round */
    int is_whole;           /* the declared round was seen from its beginning */
    int rounds_cut;         /* declared rounds in an entry at whose end operations were pending */
    int is_due;             /* a declared round that may be scheduled is over */
    uint64_t resume_rounds; /* a schedule that lived so long may come back; 0: none does */
    int is_resumable;       /* the plan above may */
} dp_schedule_t;

#endif
