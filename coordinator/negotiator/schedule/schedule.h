/*
 * schedule.h - a locked schedule: its plan, where this rank stands in it, and what is still to be
 * agreed on when it ends. Part of negotiator_internal.h.
 *
 * schedule/launch.c       a rank under a lock: what it submits, launches, and says when it must
 * deviate schedule/schedule_messages.c what nodes say to each other meanwhile schedule/detect.c the
 * root: rounds that repeat themselves, and the plan made of one schedule/resume.c  the root: a plan
 * that comes back schedule/catch_up.c  after a lock: launches that not every rank could follow are
 * negotiated late
 *
 * Buckets are counted over all rounds: bucket b of round r has the number r x bucket_count + b.
 */
#ifndef DP_COORDINATOR_LOCK_H
#define DP_COORDINATOR_LOCK_H

#include "coordinator/negotiator/messages.h"

struct dp_row;
struct dp_scope;

#define DP_REASON_TEXT_MAX 256

/* What this rank has submitted of a tensor and was not handed back. */
typedef struct dp_own {
    int is_there;
    int fits; /* the locked plan: it may be launched without asking */
    void *request;
    dp_signature_t *signature; /* NULL: the adopted one; owned */
    int in_place, is_urgent;
    float absmax;
    uint64_t since_ns;
} dp_own_t;

typedef struct dp_lock_entry {
    struct dp_row *row; /* NULL: nobody at or below this node takes part */
    int in_place;
    float absmax;
} dp_lock_entry_t;

typedef struct dp_lock_bucket {
    size_t begin, count; /* into the entries */
    uint64_t rounds;     /* in which some rank at or below this node has launched it */
} dp_lock_bucket_t;

/*
 * One occurrence that some ranks had launched under the lock and others not, of a tensor that this
 * rank takes part in. Where this rank had launched it, it counts as submitted, and what is agreed
 * on is told with SETTLED; where not, its launch is made up for when all of its bucket is settled.
 */
typedef struct dp_owed {
    struct dp_owed *next_of_row; /* a later one of the same tensor */
    struct dp_row *row;
    uint32_t group; /* its number, for when the group is gone */
    uint64_t bucket;
    int is_own; /* the root keeps those of others too */
    int is_launched, is_settled, is_void;
    int in_place; /* as in the plan, likewise absmax */
    float absmax;
    void *request;
    uint32_t absent;
    dp_signature_t *signature; /* what was agreed; owned */
} dp_owed_t;

/* A launch in the root's memory of what it has ordered. */
typedef struct dp_past {
    struct dp_row *row;
    size_t before; /* one more than where the row came last; 0: never */
    int is_first;  /* of its LAUNCH */
    int in_place;
    float absmax;
} dp_past_t;

typedef struct dp_lock {
    int is_scheduled, is_held;
    /* the plan, while locked */
    dp_lock_entry_t *entries;  /* [entry_count] */
    dp_lock_bucket_t *buckets; /* [bucket_count] */
    size_t entry_count, entry_room, bucket_count, bucket_room;
    size_t *own; /* [own_count] buckets that this rank takes part in */
    size_t own_count, own_room;
    uint64_t base;           /* the sequence before the first bucket */
    uint32_t stride;         /* rounds between two COUNTs, and how far a rank may be ahead */
    uint64_t step;           /* own buckets launched */
    uint64_t launched;       /* one more than the number of the last bucket launched here */
    uint64_t unconfirmed_ns; /* since when there are launches that others may lack; 0: none */
    uint64_t confirmed;      /* rounds that all ranks have launched */
    uint64_t *child_rounds;  /* [child_count] likewise of each child's subtree */
    uint64_t said;           /* to the parent */
    int laggard, flush_counts;

    /* why it must end */
    int has_reason, is_reason_said;
    dp_schedule_end_reason_t reason;
    int reason_rank;
    char reason_text[DP_REASON_TEXT_MAX];
    int waiting; /* held: children that have not said where they stand */
    uint64_t low, high;
    uint64_t *rounds; /* [rounds_room] scratch: of each bucket, for STAND */
    size_t rounds_room;
    int is_stand_said;

    /* after it */
    dp_owed_t *owed; /* [owed_count], those before owed_paid are over */
    size_t owed_count, owed_room, owed_paid;
    uint64_t owed_end; /* behind the last bucket that anybody launched */
    size_t shadows;    /* of these: launched and not settled */
    size_t debts;      /* not launched, not made up for */
    uint64_t open;     /* occurrences, over all ranks, that are not settled */
    uint64_t ahead; /* one more than the last bucket launched here, if others may not be that far */
    uint64_t *floor;    /* root: [size] what a rank's next launch has to be behind */
    uint64_t waited_ns; /* a thread waits while there are debts; 0: none */
    uint64_t voided_ns; /* when the root was told */
    uint64_t ended_ns;  /* others wait for what is owed since then */
    int has_warned;     /* of what this rank owes next, while a thread waits */
    int has_told;       /* LOCKED or UNLOCKED is due as an output */

    /* root */
    int may_schedule, is_declared;
    dp_past_t *past; /* [past_count] */
    size_t past_count, past_room;
    size_t mark;            /* where the declared round began */
    size_t period, repeat;  /* so many launches match those a period before */
    uint32_t need;          /* rounds to see before the next lock */
    uint32_t declared;      /* declared rounds like the last one */
    uint64_t digest;        /* of the last declared round */
    int is_whole;           /* the declared round was seen from its beginning */
    int torn;               /* declared rounds in a row at whose end operations were pending */
    int is_due;             /* a declared round that may be locked is over */
    uint64_t resume_rounds; /* a lock that lived so long may come back; 0: none does */
    int is_kept;            /* the plan above may */
} dp_lock_t;

#endif
