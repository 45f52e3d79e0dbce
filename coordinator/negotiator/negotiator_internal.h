/*
 * negotiator_internal.h - the state of one negotiator, shared by the files that make it up.
 *
 * table.c      names, ids, and what is known of each tensor's pending occurrence
 * group_view.c      groups, and which subtrees take part in what
 * agree.c      the rules of one tensor: arrives, is complete, launched, failed
 * contest.c    two lists of ranks for one group to be made, after one of them was announced
 * order.c      the root: what is ordered, and when
 * join.c       ranks that have no more data
 * leave.c      ranks that submit nothing more, and the tensors that fail for it
 * schedule/launch.c       a schedule that needs no negotiation; schedule/schedule_messages.c: what
 * is said meanwhile schedule/detect.c, schedule/resume.c  how it begins, and begins again
 * schedule/catch_up.c  what is left of it when it ends
 * stall.c      who is missing for a tensor that waits too long
 * outbox.c     frames and outputs on their way out, the end of the world
 * receive.c    frames from neighbours, and what children say
 * follow.c     what the parent says
 * negotiator.c the public inputs and outputs
 *
 * Nothing outside coordinator/negotiator's files and its tests may include this.
 */
#ifndef DP_COORDINATOR_NEGOTIATOR_INTERNAL_H
#define DP_COORDINATOR_NEGOTIATOR_INTERNAL_H

#include "coordinator/negotiator/schedule/schedule.h"
#include "runtime/transport/transport.h"

/* ---- Who takes part --------------------------------------------------------------------- */

/*
 * A group as this node sees it. A *branch* is a place from which arrivals come: branch i is child i
 * with all ranks below it, branch child_count is this rank. Only nodes with a member below them, or
 * being one, know of a group.
 */
typedef struct dp_group_view {
    uint32_t uid, slot;
    char name[DP_GROUP_NAME_MAX + 1]; /* for texts; empty: the world */
    const int32_t *members;           /* [member_count] ascending; NULL: every rank */
    uint32_t member_count;
    int own;                       /* this rank's number in the group, -1: not a member */
    uint64_t *expect;              /* branches with members */
    uint32_t expected;             /* how many */
    uint32_t *below;               /* [branches] members there */
    size_t own_pending;            /* submissions of this rank not handed back */
    const struct dp_entry *ending; /* this rank's group_destroy that is pending */

    /* leaving */
    int is_closed, closed_rank; /* CLOSED was ordered; the first member to leave */
    uint64_t closed_position;   /* of the last CLOSED */

    /* joining; since the last JOINED */
    uint64_t *joined; /* a bit per member */
    uint32_t joined_count;
    uint32_t *joined_below; /* [branches] */
    int *joined_rank;       /* [branches] one of them, -1 */
    int last_joined;        /* rank of the world */
    int has_join;           /* this rank's request is pending */
    int is_join_said;       /* and counted, here and above */
    int is_join_due;        /* it was refused, but others must not wait for this rank */
    void *join_request;
} dp_group_view_t;

/* ---- One tensor ------------------------------------------------------------------------- */

/* Two signatures of one occurrence, on their way to the root; or, the second being NULL, one and
 * the rank that has left without submitting it. */
typedef struct dp_conflict {
    int rank[2];
    dp_signature_t *signature[2];
} dp_conflict_t;

/* What a child said of a group to be made and may still need when the pending occurrence ends: it
 * may be of another list of ranks, and then that end is not told to the child. */
typedef struct dp_contest {
    struct dp_contest *next;
    dp_item_kind_t kind; /* READY; MISMATCH, LACKS; PARTIAL */
    int branch;
    int rank[2];                  /* of the signatures */
    dp_signature_t *signature[2]; /* the second of MISMATCH alone; owned */
    int32_t *list;                /* PARTIAL: [list_count] members; owned */
    uint32_t list_count;
    uint64_t first_ns; /* PARTIAL */
} dp_contest_t;

/* An occurrence that failed before this rank submitted it: its next submission gets this. */
typedef struct dp_refusal {
    struct dp_refusal *next;
    dp_status_t status;
    char text[];
} dp_refusal_t;

typedef enum dp_entry_list { DP_ENTRY_UNLISTED, DP_ENTRY_FRESH, DP_ENTRY_STALLED } dp_entry_list_t;

/*
 * An entry of the table: one name in a group; of a send, for one pair of ranks. At any time one
 * occurrence of it is pending at most: a rank may submit k+1 only after LAUNCH or FAILURE of k
 * reached it, hence after it passed every node above.
 */
typedef struct dp_entry {
    struct dp_entry *next_in_bucket, *next_of_id;
    uint32_t hash;
    size_t index;              /* in the table's entries */
    dp_group_view_t *view;     /* NULL: a group to be made */
    int root, peer;            /* ranks of the group whose send this is; else -1 */
    const uint64_t *expect;    /* branches that take part: the view's, or own_expect */
    uint32_t expected;         /* how many */
    uint32_t id;               /* DP_ID_NONE until the root has named it */
    uint16_t version;          /* of the signature below; 0: none was agreed yet */
    dp_signature_t *signature; /* adopted with the last LAUNCH that changed it; owned */
    uint64_t done_position;    /* where in the order the last occurrence ended */
    int ended_in_failure;
    dp_refusal_t *refusals, **refusals_end; /* oldest first */
    /* Once a rank has left: */
    int is_kept; /* its pending occurrence can still be launched: leavers had submitted */
    uint64_t keep_position; /* of the CLOSED that keeps it */
    int closed_by;          /* who left without submitting it; -1: the first to leave */

    /* The pending occurrence; dp_entry_clear() resets all of it. */
    int is_pending;  /* something of it is known here */
    int is_own;      /* this rank has submitted it */
    int is_early;    /* and launched it under a schedule: is_own, without a request */
    void *request;   /* of this rank */
    uint32_t ready;  /* branches that are ready */
    uint32_t absent; /* ranks of these that have joined */
    int absent_rank; /* one of them, the collective's root if that is one; -1 */
    int is_complete; /* all are */
    int in_place;    /* AND of what arrived */
    uint64_t ahead;  /* maximum of what arrived */
    float absmax;    /* merged from what arrived */
    int is_urgent;
    int first_rank;           /* who brought the signature below */
    dp_signature_t *proposed; /* NULL: the adopted one; owned */
    int is_mismatched;        /* or lacks a rank: it waits for its FAILURE */
    dp_conflict_t *conflict;  /* until it is sent; owned */
    int32_t *list;            /* of a group to be made: its members; owned */
    uint32_t list_count;
    int is_announced; /* READY or MISMATCH went up */
    int said_ready;   /* READY did: what is found later is a CONTEST */
    int conflict_sent;
    int urgent_sent;
    int wants_partial, partial_sent;
    uint64_t first_ns; /* when it became pending */
    int was_warned;    /* root: a stall report was about it */
    dp_entry_list_t stall_list;
    struct dp_entry *older, *newer;

    dp_contest_t *contests; /* of a group to be made, oldest first */

    dp_submitted_t own; /* this rank's submission: the pending one, or one to come after a shadow */
    /* The scheduled plan has it so many times; what is there for all of them. */
    uint32_t plan_uses;
    int plan_in_place;
    float plan_absmax;
    /* root, of a plan that is kept: the same, and launches since that plan was scheduled */
    uint64_t resume_uses, resume_launches;
    uint32_t unsettled;           /* occurrences that are not settled */
    dp_occurrence_t *occurrences; /* those of this rank, oldest first */
    size_t last_launch;   /* root: one more than where it came last in the memory of launches */
    int is_restarting;    /* is in the list of entries whose next occurrence is to be looked at */
    int has_news;         /* is in the list of entries to look at when a frame goes up */
    char *name;           /* behind heard[], likewise the next two */
    uint64_t *own_expect; /* NULL: an ordinary tensor */
    uint64_t *ended;      /* [child_count] of a group to be made: where in the order a child last
                             heard of an end */
    uint64_t heard[];     /* branches that are ready */
} dp_entry_t;

typedef struct dp_table {
    dp_entry_t **buckets; /* [bucket_count], a power of two */
    size_t bucket_count;
    dp_entry_t **entries; /* [entry_count] in order of first sight */
    size_t entry_count, entry_room;
    dp_entry_t **by_id; /* [id_bucket_count], a power of two */
    size_t id_count, id_bucket_count;
    uint32_t next_id; /* one more than the last id seen */
    size_t bit_words; /* of heard[] */
    int branches;
    void **retired; /* [retired_count] memory that outputs not yet taken may point to; owned */
    size_t retired_count, retired_room;
} dp_table_t;

/* A growable list of entries; its memory is kept. */
typedef struct dp_entry_array {
    dp_entry_t **entries;
    size_t count, room;
} dp_entry_array_t;

/* JOIN, KEEP, GIVE_UP or LEFT for the parent. Each follows the READYs of what its rank submitted
 * before. */
typedef struct dp_notice {
    dp_item_kind_t kind;
    int rank;
    uint32_t group;          /* JOIN */
    const dp_entry_t *entry; /* KEEP, GIVE_UP */
    uint64_t position;       /* KEEP, GIVE_UP */
} dp_notice_t;

/* A leaver has submitted this and waits for it. */
typedef struct dp_keep {
    int rank;
    uint64_t position; /* ordered items the leaver had seen */
    dp_entry_t *entry;
} dp_keep_t;

/* ---- On the way out --------------------------------------------------------------------- */

#define DP_TO_PARENT (-1)
#define DP_TO_CHILDREN (-2)
#define DP_TO_NEIGHBOURS (-3)

/* A message and where it still has to go; recycled. */
typedef struct dp_out_frame {
    struct dp_out_frame *next;
    int target; /* a rank, or DP_TO_... */
    int except; /* this rank is left out; -1: none */
    int cursor; /* recipients done */
    uint8_t *data;
    size_t bytes, room;
    uint64_t children[]; /* a bit per child, for DP_TO_CHILDREN */
} dp_out_frame_t;

/* A launch, failure or warning for this rank. */
typedef struct dp_own_output {
    dp_output_kind_t kind;
    int is_scheduled; /* LAUNCH */
    uint64_t behind;  /* LAUNCH that was deferred */
    uint64_t sequence;
    uint32_t group, slot;
    int last_rank;
    size_t entry_begin, entry_count;
    void *request;
    uint64_t until;
    uint32_t id, absent;
    dp_schedule_end_reason_t reason;
    int culprit;
    dp_status_t status;
    char *text; /* owned */
} dp_own_output_t;

/* ---- Stalls ----------------------------------------------------------------------------- */

typedef struct dp_stall {
    /* Pending entries, oldest first: not yet overdue, and overdue. */
    dp_entry_t *fresh_oldest, *fresh_newest;
    dp_entry_t *stalled_oldest, *stalled_newest;
    size_t stalled_count;
    /* The question WHO that is being answered. */
    int is_asking, is_unsent; /* is_unsent: WHO has still to go to the children */
    int is_final;             /* root: the answer ends the world */
    uint32_t round;
    uint32_t patience_ms;
    dp_entry_t *subject;
    uint64_t patience_until_ns;
    uint32_t waiting; /* children asked that have not answered */
    uint64_t *asked;  /* [bit_words] */
    dp_missing_t found;
    /* root */
    uint64_t next_report_ns, interval_ns;
} dp_stall_t;

/* ---- The machine ------------------------------------------------------------------------ */

struct dp_negotiator {
    int rank, size;
    const dp_topology_t *topology; /* borrowed */
    int parent;                    /* -1: this is the root */
    int child_count;
    int *children;     /* [child_count] ascending */
    int16_t *child_of; /* [size] branch of a rank, -1: not below; NULL: no children */
    uint64_t hold_ns;
    size_t fusion_bytes;
    uint64_t stall_warn_ns, stall_limit_ns;

    uint64_t now_ns;
    uint32_t epoch; /* odd: scheduled */
    dp_schedule_t schedule;
    dp_entry_array_t restarts;
    dp_table_t table;
    dp_entry_array_t news; /* entries that may have something to tell the parent */
    uint64_t position;     /* of the last ordered item made (root) or seen */
    uint64_t sequence;     /* of the last launch made or seen */
    uint64_t launching;    /* of the last one this rank takes part in */
    uint64_t launched;     /* the data plane has finished up to here */
    size_t own_pending;    /* requests of this rank not handed back */

    dp_group_view_t *world;
    dp_group_view_t **groups; /* [group_count] by ascending uid */
    size_t group_count, group_room;
    uint32_t last_uid; /* of the last group made */

    /* root */
    uint8_t is_slot_taken[DP_GROUPS_MAX + 1];
    dp_entry_array_t foreign; /* complete, and this rank takes no part */
    /* complete and held back, in the order they became so */
    dp_entry_array_t complete;
    size_t complete_bytes;
    uint64_t complete_since_ns;
    int complete_urgent;

    /* leaving */
    int is_finalizing, has_left; /* has_left: and has said so */
    uint64_t *left;              /* a bit per rank: those at or below this node that have left */
    /* root: since when some have left and others have not, when to say so, and again */
    uint64_t left_first_ns, left_report_ns, left_interval_ns;
    int left_count;
    uint32_t keeps;             /* KEEPs seen from the parent since the last ordered item */
    dp_group_view_t *keep_view; /* which they are about */
    dp_keep_t *kept;            /* [kept_count] root: what leavers keep, until their LEFT comes */
    size_t kept_count, kept_room;
    uint64_t *fins; /* [bit_words] children whose subtree has left */
    int fin_count, fin_sent;
    int is_finished, finished_told;

    /* the end of the world */
    int is_fatal, fatal_told;
    dp_status_t fatal_status;
    int fatal_culprit;
    char fatal_text[DP_ERROR_TEXT_MAX];
    dp_out_frame_t *fatal_frame; /* allocated in advance */

    dp_stall_t stall;
    char progress[DP_PROGRESS_MAX];

    dp_notice_t *notices; /* [notice_count] in order, to be told behind the news */
    size_t notice_count, notice_room;

    uint64_t *child_position;  /* [child_count] the last position in a frame of that child */
    dp_out_frame_t *down, *up; /* open frames for some children and the parent; NULL or not empty */
    uint64_t down_position;    /* of the last ordered item in the open frame */
    uint64_t *targets;         /* [bit_words] scratch: who an item is for */
    uint64_t *mask;            /* [bit_words] scratch: its children among them */
    dp_out_frame_t *frames, **frames_end; /* closed, in the order they were made */
    dp_out_frame_t *spare;                /* to be reused */
    dp_own_output_t *outputs; /* [output_count], from output_next on still to be taken */
    size_t output_next, output_count, output_room;
    int must_pause_first; /* HELD is among them: what the caller hears before any frame leaves */
    dp_own_output_t *deferred; /* [deferred_count] launches that wait for debts to be paid */
    size_t deferred_count, deferred_room;
    dp_launch_entry_t *deferred_entries; /* theirs */
    size_t deferred_entry_count, deferred_entry_room;
    char *output_text; /* in the caller's hands; owned */
    dp_launch_entry_t *launch_entries;
    size_t launch_entry_count, launch_entry_room;
    dp_item_t item; /* scratch of the one message being read */
    dp_item_t made; /* scratch of the one item being written */
};

static inline int dp_is_root(const dp_negotiator_t *n)
{
    return n->parent < 0;
}

static inline int dp_bit_get(const uint64_t *bits, int bit)
{
    return (int)(bits[bit / 64] >> (bit % 64) & 1u);
}

static inline void dp_bit_set(uint64_t *bits, int bit)
{
    bits[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static inline size_t dp_bit_words(size_t bits)
{
    return (bits + 63) / 64;
}

/* The branch of this rank itself. */
static inline int dp_own_branch(const dp_negotiator_t *n)
{
    return n->child_count;
}

/* table.c. Of an entry that is not a send's root and peer are -1. */
dp_status_t dp_table_init(dp_table_t *table, int branches);
void dp_table_fini(dp_table_t *table);
typedef struct dp_key {
    uint32_t group;
    int root, peer;
    const char *name;
} dp_key_t;
dp_entry_t *dp_table_find(const dp_table_t *table, const dp_key_t *key);
/* The next entry of that name in the group, whatever ranks it is for; after: NULL, the first. */
dp_entry_t *dp_table_next(const dp_table_t *table, uint32_t group, const char *name,
                          dp_entry_t *after);
/* Finds or makes; NULL: out of memory. A new entry knows only its key. */
dp_entry_t *dp_table_get(dp_table_t *table, const dp_key_t *key, dp_group_view_t *view);
dp_entry_t *dp_table_by_id(const dp_table_t *table, uint32_t id); /* NULL: no such id */
/* Gives an entry this id, which is not given to another. */
void dp_table_assign(dp_table_t *table, dp_entry_t *entry, uint32_t id);
/* Takes an entry that is not pending out of the table; outputs may still point to it. */
dp_status_t dp_table_remove(dp_table_t *table, dp_entry_t *entry);
/* Was the entry not taken out? One that was may be asked about until all outputs were taken. */
int dp_table_has(const dp_table_t *table, const dp_entry_t *entry);
/* memory: freed when all outputs were taken. */
dp_status_t dp_table_retire(dp_table_t *table, void *memory);
void dp_table_free_retired(dp_table_t *table);
void dp_entry_clear(dp_entry_t *entry, size_t bit_words);
/* Remembers that an occurrence failed which this rank has not submitted yet. */
dp_status_t dp_entry_refuse(dp_entry_t *entry, dp_status_t status, const char *text);
void dp_entry_forgive(dp_entry_t *entry); /* forgets them */
dp_status_t dp_entry_array_push(dp_entry_array_t *array, dp_entry_t *entry);
void dp_entry_array_remove(dp_entry_array_t *array, const dp_entry_t *entry);
uint32_t dp_entry_group(const dp_entry_t *entry);

/* group_view.c */
dp_status_t dp_group_views_init(dp_negotiator_t *n, int arity);
void dp_group_views_fini(dp_negotiator_t *n);
dp_group_view_t *dp_group_view_find(const dp_negotiator_t *n,
                                    uint32_t uid); /* NULL: none known here */
/* members: NULL: all. NULL: out of memory. */
dp_group_view_t *dp_group_view_make(dp_negotiator_t *n, uint32_t uid, uint32_t slot,
                                    const char *name, const int32_t *members, uint32_t count);
void dp_group_view_drop(dp_negotiator_t *n, dp_group_view_t *view); /* and its entries */
int dp_group_view_index(const dp_group_view_t *view, int rank);     /* in the group; -1: none */
int dp_group_view_rank(const dp_group_view_t *view, int index);     /* of the world; -1: none */
int dp_branch_of(const dp_negotiator_t *n, int rank);               /* -1: not below this node */
dp_entry_t *dp_entry_get(dp_negotiator_t *n, const dp_key_t *key, dp_group_view_t *view);
dp_status_t dp_entry_set_list(dp_negotiator_t *n, dp_entry_t *entry, const int32_t *list,
                              uint32_t count);
/* The branches of a list of ranks; returns how many. */
uint32_t dp_branches_of_list(const dp_negotiator_t *n, const int32_t *list, uint32_t count,
                             uint64_t *branches);
uint32_t dp_entry_ranks(const dp_entry_t *entry); /* that take part */
uint32_t dp_entry_below(const dp_negotiator_t *n, const dp_entry_t *entry,
                        int branch);                                        /* of these, there */
int dp_entry_takes_part(const dp_negotiator_t *n, const dp_entry_t *entry); /* this rank */
/* A text for people: "tensor wte", "tensor act of group tp", "group tp". */
#define DP_ENTRY_TEXT_MAX (DP_ENTRY_NAME_MAX + DP_GROUP_NAME_MAX + 32)
const char *dp_entry_text(const dp_entry_t *entry, char text[DP_ENTRY_TEXT_MAX]);
/* With this signature's name for a group to be made; it may be NULL. */
const char *dp_entry_text_of(const dp_entry_t *entry, const dp_signature_t *signature,
                             char text[DP_ENTRY_TEXT_MAX]);

/* agree.c, join.c, leave.c: each ends the world by itself where it fails */
typedef struct dp_arrival {
    int branch;
    int rank;                  /* who vouches for the signature */
    dp_signature_t *signature; /* NULL: the adopted one; taken */
    int in_place, is_urgent;
    float absmax;
    uint32_t absent;
    int absent_rank;
    uint64_t ahead;
} dp_arrival_t;
const dp_signature_t *dp_entry_signature(const dp_entry_t *entry); /* of the pending occurrence */
void dp_agree_arrive(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival);
/* A child found two signatures, or, the second being NULL, that a rank has left. */
void dp_agree_mismatch(dp_negotiator_t *n, dp_entry_t *entry, int branch, const int rank[2],
                       const dp_signature_t *const signature[2]);
/* Two signatures have met: no more is waited for. */
void dp_agree_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2]);
void dp_agree_urgent(dp_negotiator_t *n, dp_entry_t *entry);
void dp_agree_pending(dp_negotiator_t *n, dp_entry_t *entry, uint64_t first_ns);
void dp_agree_lacks(dp_negotiator_t *n, dp_entry_t *entry, int leaver);
void dp_agree_absent(dp_negotiator_t *n, dp_entry_t *entry); /* ranks may have joined */
/* Ordered items, on every rank in the same order. n->targets says whom one is for, this node's
 * children and this rank: */
void dp_agree_targets(dp_negotiator_t *n, const dp_entry_t *entry, const int32_t *list,
                      uint32_t count);
typedef struct dp_ordered_launch {
    uint64_t sequence;
    dp_entry_t *entry; /* the first */
    dp_collective_t collective;
    size_t entry_begin;
    uint32_t born, slot; /* of a group_create */
    uint64_t behind;     /* these numbers of the last schedule, on every rank */
} dp_ordered_launch_t;
/* begin, launch for each tensor, end. */
void dp_agree_launch_begin(dp_negotiator_t *n, dp_ordered_launch_t *launch, dp_entry_t *entry);
void dp_agree_launch(dp_negotiator_t *n, dp_entry_t *entry, const dp_launch_entry_t *launch_entry);
void dp_agree_launch_end(dp_negotiator_t *n, const dp_ordered_launch_t *launch);
void dp_agree_fail(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text);
void dp_agree_bye(dp_negotiator_t *n);
void dp_agree_end(dp_negotiator_t *n, dp_entry_t *entry, uint64_t position, int in_failure);
int dp_launches_alone(dp_collective_t collective);

void dp_own_end(dp_negotiator_t *n, dp_entry_t *entry); /* what this rank has submitted is over */
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
/* The occurrence is over, as n->targets were told: what the others said is of the next. */
void dp_contest_over(dp_negotiator_t *n, dp_entry_t *entry);
void dp_contest_drop(dp_entry_t *entry);

/* schedule/launch.c */
#define DP_SCHEDULE_NOBODY UINT64_MAX /* rounds of a subtree that takes part in nothing */
uint64_t
dp_schedule_next(const dp_schedule_t *schedule);       /* the number of this rank's next bucket */
uint64_t dp_schedule_rounds(const dp_negotiator_t *n); /* that the whole subtree has launched */
void dp_schedule_run(dp_negotiator_t *n);
dp_status_t dp_schedule_init(dp_negotiator_t *n);
void dp_schedule_fini(dp_negotiator_t *n);
void dp_schedule_submitted(dp_negotiator_t *n, dp_entry_t *entry); /* while scheduled */
/* This rank must deviate, or heard of one that must. */
void dp_schedule_diverge(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                         const char *text);
void dp_schedule_waits(dp_negotiator_t *n); /* a thread waits for something that is not launched */
/* The schedule in n->schedule's plan, ordered after launch `sequence`, is in force from here on. */
void dp_schedule_begin(dp_negotiator_t *n, uint64_t sequence);
void dp_schedule_end(dp_negotiator_t *n, uint64_t low, uint64_t high); /* SCHEDULE_END */
void dp_schedule_tick(dp_negotiator_t *n);
uint64_t dp_schedule_deadline(const dp_negotiator_t *n);
/* schedule/schedule_messages.c */
void dp_schedule_flush(dp_negotiator_t *n);
dp_status_t dp_schedule_reserve(dp_schedule_t *schedule, size_t buckets, size_t entries);
void dp_schedule_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item);
void dp_schedule_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item);
/* SCHEDULE, whose buckets follow in the reader. */
void dp_schedule_receive(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader);
/* Numbers that a rank can have reached at all end here. */
uint64_t dp_schedule_horizon(const dp_negotiator_t *n);

/* schedule/detect.c: the root */
int dp_schedule_can_hold(const dp_entry_t *entry, const dp_signature_t *signature);
void dp_detect_note(dp_negotiator_t *n, dp_entry_t *entry, const dp_launch_entry_t *launch_entry,
                    int is_first);
void dp_detect_forget(
    dp_negotiator_t *n); /* what was ordered so far will not come again like that */
void dp_detect_round(dp_negotiator_t *n);
void dp_detect_flush(dp_negotiator_t *n);                  /* SCHEDULE, if it is time */
void dp_detect_ended(dp_negotiator_t *n, uint64_t rounds); /* the schedule lived so long */
int dp_detect_is_calm(const dp_negotiator_t *n);           /* is all well enough for a schedule? */
void dp_schedule_send(dp_negotiator_t *n);                 /* SCHEDULE */

/* schedule/resume.c; the root's */
void dp_resume_keep(dp_negotiator_t *n, uint64_t rounds); /* the plan, if it was worth it */
void dp_resume_drop(dp_negotiator_t *n);
void dp_resume_note(dp_negotiator_t *n, dp_entry_t *entry); /* launched, by negotiation */
void dp_resume_flush(dp_negotiator_t *n);                   /* SCHEDULE, if a round begins */

/* schedule/catch_up.c */
void dp_catch_up_begin(dp_negotiator_t *n, uint64_t low, uint64_t high);
void dp_catch_up_restart(dp_negotiator_t *n, dp_entry_t *entry);
void dp_catch_up_flush(dp_negotiator_t *n);
void dp_catch_up_launch(dp_negotiator_t *n);                       /* what is settled by now */
void dp_catch_up_submitted(dp_negotiator_t *n, dp_entry_t *entry); /* negotiated */
/* The entry's pending occurrence was launched or has failed, and may be owed. */
void dp_catch_up_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent);
void dp_catch_up_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status,
                        const char *text);
void dp_catch_up_defer(dp_negotiator_t *n, uint64_t behind); /* the newest event, if owed is less */
/* The root: what a launch of this tensor has to be behind, on each of its ranks. */
uint64_t dp_catch_up_floor(dp_negotiator_t *n, const dp_entry_t *entry);
void dp_catch_up_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor);
void dp_catch_up_tick(dp_negotiator_t *n);
void dp_catch_up_give_up(dp_negotiator_t *n, int rank, uint64_t position,
                         dp_entry_t *entry); /* GIVE_UP */
uint64_t dp_catch_up_deadline(const dp_negotiator_t *n);

/* order.c: the root */
void dp_order_give_up(dp_negotiator_t *n, dp_entry_t *entry, int rank);
void dp_order_complete(dp_negotiator_t *n, dp_entry_t *entry);
void dp_order_withdraw(dp_negotiator_t *n,
                       const dp_entry_t *entry); /* it is not launched after all */
void dp_order_failure(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text,
                      const int32_t *list, uint32_t list_count);
void dp_order_conflict(dp_negotiator_t *n, dp_entry_t *entry, const int rank[2],
                       const dp_signature_t *const signature[2]);
void dp_order_launch_held(dp_negotiator_t *n); /* launches what is held back */
void dp_order_flush(dp_negotiator_t *n);       /* what is due before frames go out */

/* join.c */
void dp_join_own(dp_negotiator_t *n, dp_group_view_t *view, void *request);
void dp_join_refused(dp_negotiator_t *n, dp_group_view_t *view); /* a rank has left the group */
void dp_join_arrive(dp_negotiator_t *n, dp_group_view_t *view, int rank);
void dp_join_flush(dp_negotiator_t *n); /* what this rank may say by now */
int dp_join_has_own(const dp_negotiator_t *n,
                    const dp_group_view_t *view); /* has this rank joined? */
void dp_join_all(dp_negotiator_t *n, dp_group_view_t *view, int last_rank); /* JOINED */
int dp_join_is_joined(const dp_group_view_t *view, int rank);
int dp_join_covers(const dp_negotiator_t *n, const dp_entry_t *entry, int branch);
int dp_join_names(const dp_negotiator_t *n, const dp_entry_t *entry, int branch);
int dp_join_allows(const dp_entry_t *entry);

/* leave.c */
void dp_leave_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry);
void dp_leave_left(dp_negotiator_t *n, int rank);
void dp_leave_close(dp_negotiator_t *n, dp_group_view_t *view, int rank); /* CLOSED */
void dp_leave_refuse(dp_negotiator_t *n, const dp_entry_t *entry, void *request);
void dp_leave_end(dp_negotiator_t *n, dp_entry_t *entry); /* this rank's part of it fails */
void dp_leave_refuse_join(dp_negotiator_t *n, const dp_group_view_t *view, void *request);
void dp_leave_tick(dp_negotiator_t *n); /* root: who is waited for in dp_finalize() */
uint64_t dp_leave_deadline(const dp_negotiator_t *n);
void dp_leave_check(dp_negotiator_t *n, dp_entry_t *entry); /* has a rank left that it needs? */
void dp_leave_forget(dp_negotiator_t *n, const dp_entry_t *entry);
void dp_leave_flush(dp_negotiator_t *n);
int dp_leave_is_over(const dp_negotiator_t *n); /* FIN is due */

/* receive.c, follow.c */
#define DP_POSITION_MAX (UINT64_MAX / 2) /* so that counting on from any position cannot wrap */
/* The entry an item speaks of, or its key; NULL: the world has ended. */
dp_entry_t *dp_receive_entry(dp_negotiator_t *n, int from, const dp_item_t *item);
dp_entry_t *dp_receive_key(dp_negotiator_t *n, int from, const dp_item_t *item);
/* Can this signature be one of the entry's? */
int dp_receive_fits(const dp_negotiator_t *n, const dp_entry_t *entry,
                    const dp_signature_t *signature);
/* One item from the parent, read from bytes at `begin` of the reader on. */
void dp_follow(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader, size_t begin);
dp_status_t dp_receive(dp_negotiator_t *n, int from, const void *data, size_t bytes);

/* stall.c */
dp_status_t dp_stall_init(dp_negotiator_t *n);
void dp_stall_fini(dp_negotiator_t *n);
void dp_stall_watch(dp_negotiator_t *n, dp_entry_t *entry); /* it is pending */
/* It is no longer waited for here: complete, announced, failed. */
void dp_stall_unwatch(dp_negotiator_t *n, dp_entry_t *entry, int is_complete);
void dp_stall_who(dp_negotiator_t *n, const dp_item_t *item, dp_entry_t *entry);
void dp_stall_missing(dp_negotiator_t *n, int child, const dp_item_t *item);
void dp_stall_forget(dp_negotiator_t *n, const dp_entry_t *entry); /* it is going */
void dp_stall_tick(dp_negotiator_t *n);
void dp_stall_flush(dp_negotiator_t *n); /* questions down, the answer up */
uint64_t dp_stall_deadline(const dp_negotiator_t *n);

/* outbox.c */
dp_status_t dp_outbox_init(dp_negotiator_t *n);
void dp_outbox_fini(dp_negotiator_t *n);
/*
 * Room for bytes at the end of a frame for these branches' children: write, then commit. position:
 * that of the ordered item before this one. 0: there are no such children, or no memory (then the
 * world has ended).
 */
int dp_outbox_down_begin(dp_negotiator_t *n, const uint64_t *branches, uint64_t position,
                         size_t bytes, dp_writer_t *writer);
void dp_outbox_down_commit(dp_negotiator_t *n, const dp_writer_t *writer, int is_ordered);
void dp_outbox_down_bytes(dp_negotiator_t *n, const uint64_t *branches, uint64_t position,
                          const void *data, size_t bytes, int is_ordered);
/* At n->position. */
void dp_outbox_down(dp_negotiator_t *n, const uint64_t *branches, const dp_item_t *item,
                    int is_ordered);
void dp_outbox_close_down(dp_negotiator_t *n); /* the open frame goes on its way */
void dp_outbox_ask(dp_negotiator_t *n, int child, const dp_item_t *item); /* a frame of its own */
void dp_outbox_close_up(dp_negotiator_t *n);
void dp_outbox_up_item(dp_negotiator_t *n, const dp_item_t *item);
void dp_outbox_up(dp_negotiator_t *n); /* the news, in as few frames as possible */
void dp_outbox_news(dp_negotiator_t *n, dp_entry_t *entry);
void dp_outbox_notice(dp_negotiator_t *n, const dp_notice_t *notice);
void dp_outbox_fail(dp_negotiator_t *n, void *request, dp_status_t status, const char *text);
void dp_outbox_warn(dp_negotiator_t *n, const char *text);
int dp_outbox_take(dp_negotiator_t *n, dp_output_t *out);
dp_status_t dp_outbox_entry(dp_negotiator_t *n, const dp_launch_entry_t *launch_entry);
dp_own_output_t *dp_outbox_output(dp_negotiator_t *n, dp_output_kind_t kind);
dp_own_output_t *dp_outbox_text_output(dp_negotiator_t *n, dp_output_kind_t kind, const char *text);
dp_status_t dp_outbox_defer(dp_negotiator_t *n, const dp_own_output_t *output); /* keeps a launch */
/* "rank 3 (hostB)" */
#define DP_RANK_TEXT_MAX 96
const char *dp_rank_text(const dp_negotiator_t *n, int rank, char text[DP_RANK_TEXT_MAX]);

/* The end of the world, told to all neighbours but one (-1: to all). The first cause stays. */
void dp_fatal(dp_negotiator_t *n, dp_status_t status, int culprit, int except, const char *text);
void dp_fatal_memory(dp_negotiator_t *n);
/* A neighbour broke the protocol. */
void dp_fatal_protocol(dp_negotiator_t *n, int from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refs an item's tensor; what only some items carry is reset. */
void dp_item_ref(dp_item_t *item, dp_item_kind_t kind, const dp_entry_t *entry);

#endif
