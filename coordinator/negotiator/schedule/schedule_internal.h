/*
 * schedule_internal.h - the state of the cached schedule, shared by the files of this folder.
 *
 * Only they and the simulator's digest include it. Buckets are counted over all rounds: bucket b of
 * round r has the number r x bucket_count + b.
 */
#ifndef DP_COORDINATOR_SCHEDULE_INTERNAL_H
#define DP_COORDINATOR_SCHEDULE_INTERNAL_H

#include "coordinator/negotiator/negotiator_internal.h"

#define DP_REASON_TEXT_MAX 256
#define DP_SCHEDULE_NOBODY UINT64_MAX /* rounds of a subtree that takes part in nothing */

/* ---- State ---------------------------------------------------------------------------------- */

/* One tensor of a bucket. */
typedef struct dp_planned {
    dp_entry_t *entry; /* NULL: no rank at or below this one takes part */
    int in_place;
    float absmax;
} dp_planned_t;

typedef struct dp_schedule_bucket {
    size_t begin, count; /* into planned[] */
    uint64_t rounds;     /* in which some rank at or below this one has launched it */
} dp_schedule_bucket_t;

/*
 * One occurrence that some ranks had launched by the schedule and others not, of a tensor that this
 * rank takes part in. Where this rank had launched it, it counts as submitted, and what is agreed
 * on is told with SETTLED; where not, this rank launches it late, when all of its bucket is
 * settled.
 */
typedef struct dp_occurrence {
    struct dp_occurrence *next_of_entry; /* a later one of the same tensor */
    dp_entry_t *entry;
    uint32_t group; /* its number, for when the group is gone */
    uint64_t bucket;
    int is_own; /* the root keeps those of others too */
    int is_launched, is_settled, is_void;
    int in_place; /* as in the schedule, likewise absmax */
    float absmax;
    void *request;
    uint32_t absent;
    dp_signature_t *signature; /* what was agreed; owned */
} dp_occurrence_t;

/* A launch in the root's history of what it has ordered. */
typedef struct dp_ordered {
    dp_entry_t *entry;
    size_t before; /* one more than where the entry came last; 0: never */
    int is_first;  /* of its LAUNCH */
    int in_place;
    float absmax;
} dp_ordered_t;

/* launch.c: where this rank and those below it stand */
typedef struct dp_schedule_run {
    uint64_t step;           /* own buckets launched */
    uint64_t launched;       /* one more than the number of the last bucket launched here */
    uint64_t unconfirmed_ns; /* since when there are launches that others may lack; 0: none */
    uint64_t confirmed;      /* rounds that all ranks have launched */
    uint64_t *child_rounds;  /* [child_count] likewise of each child's subtree */
    uint64_t counts_sent;    /* to the parent */
    int slowest;             /* the last rank to launch another round */
    int wants_exact_counts;
    int has_misfit; /* this rank has submitted what does not fit: it launches nothing more, as that
                     * could be behind it in the program's order */
} dp_schedule_run_t;

/* schedule_messages.c: why it must end, and how far ranks have come */
typedef struct dp_schedule_stop {
    int has_reason, is_reason_sent;
    dp_schedule_end_reason_t reason;
    int rank;
    char text[DP_REASON_TEXT_MAX];
    int children_awaited; /* paused: children that have not sent REACHED */
    uint64_t low, high;
    uint64_t *rounds; /* [rounds_room] scratch: of each bucket, for REACHED */
    size_t rounds_room;
    int is_reached_sent;
} dp_schedule_stop_t;

/* catch_up.c: after it */
typedef struct dp_catch_up {
    dp_occurrence_t *occurrences; /* [count], those before `done` are over */
    size_t count, room, done;
    size_t settled;      /* root: occurrences before this one are settled */
    uint64_t end;        /* behind the last bucket that anybody launched */
    size_t early_count;  /* of these: launched and not settled */
    size_t late_count;   /* of these: not launched yet */
    uint64_t unsettled;  /* occurrences, over all ranks, that are not settled */
    uint64_t ahead;      /* one more than the last bucket launched early; 0: none was */
    uint64_t *floors;    /* root: [size] what a rank's next launch has to be behind */
    uint64_t waited_ns;  /* a thread waits while there are late launches; 0: none */
    uint64_t gave_up_ns; /* when the root was told */
    uint64_t ended_ns;   /* others wait for the late launches since then */
    int has_warned;      /* of what this rank has to launch next, while a thread waits */
    /* launches that come behind late ones */
    dp_own_output_t *deferred; /* [deferred_count] */
    size_t deferred_count, deferred_room;
    dp_launch_entry_t *deferred_entries; /* theirs */
    size_t deferred_entry_count, deferred_entry_room;
} dp_catch_up_t;

/* detect.c: the root */
typedef struct dp_detect {
    int is_declared;
    dp_ordered_t *history; /* [count] */
    size_t count, room;
    size_t round_begin;     /* where the declared round began */
    size_t period, repeat;  /* so many launches match those a period before */
    uint32_t rounds_needed; /* rounds to see before the next schedule */
    uint32_t declared;      /* declared rounds like the last one */
    uint64_t digest;        /* of the last declared round */
    int is_whole;           /* the declared round was seen from its beginning */
    int rounds_cut;         /* declared rounds in a row at whose end operations were pending */
    size_t due;             /* launches of a declared round that may become a schedule; 0: none */
} dp_detect_t;

/* resume.c: the root */
typedef struct dp_resume {
    uint64_t rounds_lived; /* a schedule that lived so long may come back; 0: none does */
    int is_kept;           /* the one below may */
} dp_resume_t;

struct dp_schedule {
    int is_paused; /* PAUSE has come: nothing is launched any more */
    /* the schedule itself */
    dp_planned_t *planned;         /* [planned_count] */
    dp_schedule_bucket_t *buckets; /* [bucket_count] */
    size_t planned_count, planned_room, bucket_count, bucket_room;
    size_t *own_buckets; /* [own_bucket_count] buckets that this rank takes part in */
    size_t own_bucket_count, own_bucket_room;
    uint64_t base;   /* the sequence before the first bucket */
    uint32_t stride; /* rounds between two COUNTs, and how far a rank may be ahead */

    dp_schedule_run_t run;
    dp_schedule_stop_t stop;
    dp_catch_up_t catch_up;
    dp_detect_t detect;
    dp_resume_t resume;
};

/* The schedule's part of a tensor entry. */
struct dp_schedule_entry {
    int fits;              /* this rank's submission may be launched by the schedule */
    uint32_t planned_uses; /* how often the schedule has it; below, what holds for all of these */
    int planned_in_place;
    float planned_absmax;
    uint32_t unsettled;           /* occurrences that are not settled */
    dp_occurrence_t *occurrences; /* those of this rank, oldest first */
    /* root */
    size_t last_launch;                    /* one more than where it came last in the history */
    uint64_t resume_uses, resume_launches; /* in the kept schedule, and launches since it ended */
};

/* Each file calls only those above it. */

/* ---- standing.c ----------------------------------------------------------------------------- */

uint64_t dp_schedule_next(const dp_schedule_t *schedule); /* number of this rank's next bucket */
uint64_t dp_schedule_own_rounds(const dp_schedule_t *schedule); /* that this rank has launched */
uint64_t dp_schedule_rounds(const dp_negotiator_t *n);          /* that the whole subtree has */
/* Numbers that a rank can have reached at all end here. */
uint64_t dp_schedule_horizon(const dp_negotiator_t *n);

/* ---- eligible.c ----------------------------------------------------------------------------- */

int dp_schedule_can_hold(const dp_entry_t *entry, const dp_signature_t *signature);
int dp_schedule_is_calm(const dp_negotiator_t *n); /* is all well enough for one to begin? */

/* ---- catch_up.c ----------------------------------------------------------------------------- */

void dp_catch_up_begin(dp_negotiator_t *n, uint64_t low, uint64_t high);
void dp_catch_up_fini(dp_catch_up_t *catch_up);

/* late_launch.c: one more than the last occurrence of the bucket that begins at `first` */
size_t dp_catch_up_bucket_end(const dp_catch_up_t *catch_up, size_t first);

/* ---- launch.c ------------------------------------------------------------------------------- */

/* The schedule in n->schedule, ordered after launch `sequence`, is in force from here on. */
void dp_schedule_begin(dp_negotiator_t *n, uint64_t sequence);
/* It ends after bucket `high`, and all have launched what is before `low`. */
void dp_schedule_end(dp_negotiator_t *n, uint64_t low, uint64_t high);

/* ---- schedule_item.c ------------------------------------------------------------------------ */

dp_status_t dp_schedule_reserve(dp_schedule_t *schedule, size_t buckets, size_t planned);
void dp_schedule_send_whole(dp_negotiator_t *n); /* SCHEDULE */
/* Reads SCHEDULE into n->schedule, where it does not begin yet. */
void dp_schedule_receive_whole(dp_negotiator_t *n, int from, const dp_item_t *item,
                               dp_reader_t *reader);

/* ---- detect.c, resume.c: the root. detect.c calls resume.c ---------------------------------- */

void dp_resume_keep(dp_negotiator_t *n, uint64_t rounds); /* the schedule, if it was worth it */
void dp_resume_drop(dp_negotiator_t *n);
void dp_resume_note(dp_negotiator_t *n, dp_entry_t *entry); /* launched, by negotiation */
void dp_detect_ended(dp_negotiator_t *n, uint64_t rounds);  /* the schedule lived so long */

#endif
