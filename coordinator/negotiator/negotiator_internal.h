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
 * A group as this node sees it. A *slot* is a place from which arrivals come: slot i is child i
 * with all ranks below it, slot child_count is this rank. Only nodes with a member below them, or
 * being one, know of a group.
 */
typedef struct dp_scope {
    uint32_t uid, slot_number;
    char name[DP_GROUP_NAME_MAX + 1]; /* for texts; empty: the world */
    const int32_t *members;           /* [member_count] ascending; NULL: every rank */
    uint32_t member_count;
    int own;                     /* this rank's number in the group, -1: not a member */
    uint64_t *expect;            /* slots with members */
    uint32_t expected;           /* how many */
    uint32_t *below;             /* [slots] members there */
    size_t own_pending;          /* submissions of this rank not handed back */
    const struct dp_row *ending; /* this rank's group_destroy that is pending */

    /* leaving */
    int is_closed, closed_rank; /* CLOSED was ordered; the first member to leave */
    uint64_t closed_position;   /* of the last CLOSED */

    /* joining; since the last JOINED */
    uint64_t *joined; /* a bit per member */
    uint32_t joined_count;
    uint32_t *joined_below; /* [slots] */
    int *joined_rank;       /* [slots] one of them, -1 */
    int last_joined;        /* rank of the world */
    int has_join;           /* this rank's request is pending */
    int is_join_said;       /* and counted, here and above */
    int is_join_due;        /* it was refused, but others must not wait for this rank */
    void *join_request;
} dp_scope_t;

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
    int slot;
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

typedef enum dp_row_list { DP_ROW_UNLISTED, DP_ROW_FRESH, DP_ROW_STALLED } dp_row_list_t;

/*
 * A row of the table: one name in a group; of a send, for one pair of ranks. At any time one
 * occurrence of it is pending at most: a rank may submit k+1 only after LAUNCH or FAILURE of k
 * reached it, hence after it passed every node above.
 */
typedef struct dp_row {
    struct dp_row *next_in_bucket, *next_of_id;
    uint32_t hash;
    size_t index;              /* in the table's rows */
    dp_scope_t *scope;         /* NULL: a group to be made */
    int root, peer;            /* ranks of the group whose send this is; else -1 */
    const uint64_t *expect;    /* slots that take part: the scope's, or own_expect */
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

    /* The pending occurrence; dp_row_clear() resets all of it. */
    int is_pending;  /* something of it is known here */
    int is_own;      /* this rank has submitted it */
    int is_shadow;   /* and launched it under a lock: is_own, without a request */
    void *request;   /* of this rank */
    uint32_t ready;  /* slots that are ready */
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
    dp_row_list_t stall_list;
    struct dp_row *older, *newer;

    dp_contest_t *contests; /* of a group to be made, oldest first */

    dp_own_t own; /* this rank's submission: the pending one, or one to come after a shadow */
    /* The locked plan has it so many times; what is there for all of them. */
    uint32_t plan_uses;
    int plan_in_place;
    float plan_absmax;
    /* root, of a plan that is kept: the same, and launches since that plan was locked */
    uint64_t kept_uses, kept_launches;
    uint32_t owed_left;   /* occurrences that are not settled */
    dp_owed_t *owed;      /* those of this rank, oldest first */
    size_t past;          /* root: one more than where it came last in the memory of launches */
    int is_restarting;    /* is in the list of rows whose next occurrence is to be looked at */
    int has_news;         /* is in the list of rows to look at when a frame goes up */
    char *name;           /* behind heard[], likewise the next two */
    uint64_t *own_expect; /* NULL: an ordinary tensor */
    uint64_t *ended;      /* [child_count] of a group to be made: where in the order a child last
                             heard of an end */
    uint64_t heard[];     /* slots that are ready */
} dp_row_t;

typedef struct dp_table {
    dp_row_t **buckets; /* [bucket_count], a power of two */
    size_t bucket_count;
    dp_row_t **rows; /* [row_count] in order of first sight */
    size_t row_count, row_room;
    dp_row_t **by_id; /* [id_bucket_count], a power of two */
    size_t id_count, id_bucket_count;
    uint32_t next_id; /* one more than the last id seen */
    size_t bit_words; /* of heard[] */
    int slots;
    void **retired; /* [retired_count] memory that outputs not yet taken may point to; owned */
    size_t retired_count, retired_room;
} dp_table_t;

/* A growable list of rows; its memory is kept. */
typedef struct dp_row_array {
    dp_row_t **rows;
    size_t count, room;
} dp_row_array_t;

/* JOIN, KEEP, VOID or LEFT for the parent. Each follows the READYs of what its rank submitted
 * before. */
typedef struct dp_word {
    dp_item_kind_t kind;
    int rank;
    uint32_t group;      /* JOIN */
    const dp_row_t *row; /* KEEP, VOID */
    uint64_t position;   /* KEEP, VOID */
} dp_word_t;

/* A leaver has submitted this and waits for it. */
typedef struct dp_keep {
    int rank;
    uint64_t position; /* ordered items the leaver had seen */
    dp_row_t *row;
} dp_keep_t;

/* ---- On the way out --------------------------------------------------------------------- */

#define DP_TO_PARENT (-1)
#define DP_TO_CHILDREN (-2)
#define DP_TO_NEIGHBOURS (-3)

/* A message and where it still has to go; recycled. */
typedef struct dp_frame {
    struct dp_frame *next;
    int target; /* a rank, or DP_TO_... */
    int except; /* this rank is left out; -1: none */
    int cursor; /* recipients done */
    uint8_t *data;
    size_t bytes, room;
    uint64_t children[]; /* a bit per child, for DP_TO_CHILDREN */
} dp_frame_t;

/* A launch, failure or warning for this rank. */
typedef struct dp_event {
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
} dp_event_t;

/* ---- Stalls ----------------------------------------------------------------------------- */

typedef struct dp_stall {
    /* Pending rows, oldest first: not yet overdue, and overdue. */
    dp_row_t *fresh_oldest, *fresh_newest;
    dp_row_t *stalled_oldest, *stalled_newest;
    size_t stalled_count;
    /* The question WHO that is being answered. */
    int is_asking, is_unsent; /* is_unsent: WHO has still to go to the children */
    int is_final;             /* root: the answer ends the world */
    uint32_t round;
    uint32_t patience_ms;
    dp_row_t *subject;
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
    int16_t *child_of; /* [size] slot of a rank, -1: not below; NULL: no children */
    uint64_t hold_ns;
    size_t fusion_bytes;
    uint64_t stall_warn_ns, stall_limit_ns;

    uint64_t now_ns;
    uint32_t epoch; /* odd: locked */
    dp_lock_t lock;
    dp_row_array_t restarts;
    dp_table_t table;
    dp_row_array_t news; /* rows that may have something to tell the parent */
    uint64_t position;   /* of the last ordered item made (root) or seen */
    uint64_t sequence;   /* of the last launch made or seen */
    uint64_t launching;  /* of the last one this rank takes part in */
    uint64_t launched;   /* the data plane has finished up to here */
    size_t own_pending;  /* requests of this rank not handed back */

    dp_scope_t *world;
    dp_scope_t **groups; /* [group_count] by ascending uid */
    size_t group_count, group_room;
    uint32_t last_uid; /* of the last group made */

    /* root */
    uint8_t is_slot_taken[DP_GROUPS_MAX + 1];
    dp_row_array_t foreign; /* complete, and this rank takes no part */
    /* complete and held back, in the order they became so */
    dp_row_array_t complete;
    size_t complete_bytes;
    uint64_t complete_since_ns;
    int complete_urgent;

    /* leaving */
    int is_finalizing, has_left; /* has_left: and has said so */
    uint64_t *left;              /* a bit per rank: those at or below this node that have left */
    /* root: since when some have left and others have not, when to say so, and again */
    uint64_t left_first_ns, left_report_ns, left_interval_ns;
    int left_count;
    uint32_t keeps;         /* KEEPs seen from the parent since the last ordered item */
    dp_scope_t *keep_scope; /* which they are about */
    dp_keep_t *kept;        /* [kept_count] root: what leavers keep, until their LEFT comes */
    size_t kept_count, kept_room;
    uint64_t *fins; /* [bit_words] children whose subtree has left */
    int fin_count, fin_sent;
    int is_finished, finished_told;

    /* the end of the world */
    int is_fatal, fatal_told;
    dp_status_t fatal_status;
    int fatal_culprit;
    char fatal_text[DP_ERROR_TEXT_MAX];
    dp_frame_t *fatal_frame; /* allocated in advance */

    dp_stall_t stall;
    char progress[DP_PROGRESS_MAX];

    dp_word_t *words; /* [word_count] in order, to be told behind the news */
    size_t word_count, word_room;

    uint64_t *child_position; /* [child_count] the last position in a frame of that child */
    dp_frame_t *down, *up;    /* open frames for some children and the parent; NULL or not empty */
    uint64_t down_position;   /* of the last ordered item in the open frame */
    uint64_t *targets;        /* [bit_words] scratch: who an item is for */
    uint64_t *mask;           /* [bit_words] scratch: its children among them */
    dp_frame_t *frames, **frames_end; /* closed, in the order they were made */
    dp_frame_t *spare;                /* to be reused */
    dp_event_t *events;               /* [event_count], from event_next on still to be taken */
    size_t event_next, event_count, event_room;
    int must_park;        /* HELD is among them: what the caller hears before any frame leaves */
    dp_event_t *deferred; /* [deferred_count] launches that wait for debts to be paid */
    size_t deferred_count, deferred_room;
    dp_launch_entry_t *deferred_entries; /* theirs */
    size_t deferred_entry_count, deferred_entry_room;
    char *event_text; /* in the caller's hands; owned */
    dp_launch_entry_t *entries;
    size_t entry_count, entry_room;
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

/* The slot of this rank itself. */
static inline int dp_own_slot(const dp_negotiator_t *n)
{
    return n->child_count;
}

/* table.c. Of a row that is not a send's root and peer are -1. */
dp_status_t dp_table_init(dp_table_t *table, int slots);
void dp_table_fini(dp_table_t *table);
typedef struct dp_key {
    uint32_t group;
    int root, peer;
    const char *name;
} dp_key_t;
dp_row_t *dp_table_find(const dp_table_t *table, const dp_key_t *key);
/* The next row of that name in the group, whatever ranks it is for; after: NULL, the first. */
dp_row_t *dp_table_next(const dp_table_t *table, uint32_t group, const char *name, dp_row_t *after);
/* Finds or makes; NULL: out of memory. A new row knows only its key. */
dp_row_t *dp_table_get(dp_table_t *table, const dp_key_t *key, dp_scope_t *scope);
dp_row_t *dp_table_by_id(const dp_table_t *table, uint32_t id); /* NULL: no such id */
/* Gives a row this id, which is not given to another. */
void dp_table_assign(dp_table_t *table, dp_row_t *row, uint32_t id);
/* Takes a row that is not pending out of the table; outputs may still point to it. */
dp_status_t dp_table_remove(dp_table_t *table, dp_row_t *row);
/* Was the row not taken out? One that was may be asked about until all outputs were taken. */
int dp_table_has(const dp_table_t *table, const dp_row_t *row);
/* memory: freed when all outputs were taken. */
dp_status_t dp_table_retire(dp_table_t *table, void *memory);
void dp_table_free_retired(dp_table_t *table);
void dp_row_clear(dp_row_t *row, size_t bit_words);
/* Remembers that an occurrence failed which this rank has not submitted yet. */
dp_status_t dp_row_refuse(dp_row_t *row, dp_status_t status, const char *text);
void dp_row_forgive(dp_row_t *row); /* forgets them */
dp_status_t dp_row_array_push(dp_row_array_t *array, dp_row_t *row);
void dp_row_array_remove(dp_row_array_t *array, const dp_row_t *row);
uint32_t dp_row_group(const dp_row_t *row);

/* group_view.c */
dp_status_t dp_scopes_init(dp_negotiator_t *n, int arity);
void dp_scopes_fini(dp_negotiator_t *n);
dp_scope_t *dp_scope_find(const dp_negotiator_t *n, uint32_t uid); /* NULL: none known here */
/* members: NULL: all. NULL: out of memory. */
dp_scope_t *dp_scope_make(dp_negotiator_t *n, uint32_t uid, uint32_t slot_number, const char *name,
                          const int32_t *members, uint32_t count);
void dp_scope_drop(dp_negotiator_t *n, dp_scope_t *scope); /* and its rows */
int dp_scope_index(const dp_scope_t *scope, int rank);     /* in the group; -1: none */
int dp_scope_rank(const dp_scope_t *scope, int index);     /* of the world; -1: none */
int dp_slot_of(const dp_negotiator_t *n, int rank);        /* -1: not below this node */
dp_row_t *dp_row_get(dp_negotiator_t *n, const dp_key_t *key, dp_scope_t *scope);
dp_status_t dp_row_set_list(dp_negotiator_t *n, dp_row_t *row, const int32_t *list, uint32_t count);
/* The slots of a list of ranks; returns how many. */
uint32_t dp_slots_of_list(const dp_negotiator_t *n, const int32_t *list, uint32_t count,
                          uint64_t *slots);
uint32_t dp_row_ranks(const dp_row_t *row); /* that take part */
uint32_t dp_row_below(const dp_negotiator_t *n, const dp_row_t *row,
                      int slot);                                      /* of these, there */
int dp_row_takes_part(const dp_negotiator_t *n, const dp_row_t *row); /* this rank */
/* A text for people: "tensor wte", "tensor act of group tp", "group tp". */
#define DP_ROW_TEXT_MAX (DP_ENTRY_NAME_MAX + DP_GROUP_NAME_MAX + 32)
const char *dp_row_text(const dp_row_t *row, char text[DP_ROW_TEXT_MAX]);
/* With this signature's name for a group to be made; it may be NULL. */
const char *dp_row_text_of(const dp_row_t *row, const dp_signature_t *signature,
                           char text[DP_ROW_TEXT_MAX]);

/* agree.c, join.c, leave.c: each ends the world by itself where it fails */
typedef struct dp_arrival {
    int slot;
    int rank;                  /* who vouches for the signature */
    dp_signature_t *signature; /* NULL: the adopted one; taken */
    int in_place, is_urgent;
    float absmax;
    uint32_t absent;
    int absent_rank;
    uint64_t ahead;
} dp_arrival_t;
const dp_signature_t *dp_row_signature(const dp_row_t *row); /* of the pending occurrence */
void dp_agree_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival);
/* A child found two signatures, or, the second being NULL, that a rank has left. */
void dp_agree_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, const int rank[2],
                       const dp_signature_t *const signature[2]);
/* Two signatures have met: no more is waited for. */
void dp_agree_conflict(dp_negotiator_t *n, dp_row_t *row, const int rank[2],
                       const dp_signature_t *const signature[2]);
void dp_agree_urgent(dp_negotiator_t *n, dp_row_t *row);
void dp_agree_pending(dp_negotiator_t *n, dp_row_t *row, uint64_t first_ns);
void dp_agree_lacks(dp_negotiator_t *n, dp_row_t *row, int leaver);
void dp_agree_absent(dp_negotiator_t *n, dp_row_t *row); /* ranks may have joined */
/* Ordered items, on every rank in the same order. n->targets says whom one is for, this node's
 * children and this rank: */
void dp_agree_targets(dp_negotiator_t *n, const dp_row_t *row, const int32_t *list, uint32_t count);
typedef struct dp_launch {
    uint64_t sequence;
    dp_row_t *row; /* the first */
    dp_collective_t collective;
    size_t entry_begin;
    uint32_t born, slot; /* of a group_create */
    uint64_t behind;     /* these numbers of the last lock, on every rank */
} dp_launch_t;
/* begin, launch for each tensor, end. */
void dp_agree_launch_begin(dp_negotiator_t *n, dp_launch_t *launch, dp_row_t *row);
void dp_agree_launch(dp_negotiator_t *n, dp_row_t *row, const dp_launch_entry_t *entry);
void dp_agree_launch_end(dp_negotiator_t *n, const dp_launch_t *launch);
void dp_agree_fail(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text);
void dp_agree_bye(dp_negotiator_t *n);
void dp_agree_end(dp_negotiator_t *n, dp_row_t *row, uint64_t position, int in_failure);
int dp_launches_alone(dp_collective_t collective);

void dp_own_end(dp_negotiator_t *n, dp_row_t *row); /* what this rank has submitted is over */
/* This rank's part of the occurrence fails. */
void dp_agree_refuse_own(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text);

/* contest.c */
void dp_contest_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival);
void dp_contest_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, const int rank[2],
                         const dp_signature_t *const signature[2]);
void dp_contest_partial(dp_negotiator_t *n, dp_row_t *row, int slot, const dp_item_t *item,
                        uint64_t first_ns);
void dp_contest_heard(dp_row_t *row, int slot); /* its READY came */
/* The occurrence is over, as n->targets were told: what the others said is of the next. */
void dp_contest_over(dp_negotiator_t *n, dp_row_t *row);
void dp_contest_drop(dp_row_t *row);

/* schedule/launch.c */
#define DP_LOCK_NOBODY UINT64_MAX             /* rounds of a subtree that takes part in nothing */
uint64_t dp_lock_next(const dp_lock_t *lock); /* the number of this rank's next bucket */
uint64_t dp_lock_rounds(const dp_negotiator_t *n); /* that the whole subtree has launched */
void dp_lock_run(dp_negotiator_t *n);
dp_status_t dp_lock_init(dp_negotiator_t *n);
void dp_lock_fini(dp_negotiator_t *n);
void dp_lock_submitted(dp_negotiator_t *n, dp_row_t *row); /* while locked */
/* This rank must deviate, or heard of one that must. */
void dp_lock_diverge(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                     const char *text);
void dp_lock_waits(dp_negotiator_t *n); /* a thread waits for something that is not launched */
/* The schedule in n->lock's plan, ordered after launch `sequence`, is in force from here on. */
void dp_lock_begin(dp_negotiator_t *n, uint64_t sequence);
void dp_lock_end(dp_negotiator_t *n, uint64_t low, uint64_t high); /* RELEASE */
void dp_lock_tick(dp_negotiator_t *n);
uint64_t dp_lock_deadline(const dp_negotiator_t *n);
/* schedule/schedule_messages.c */
void dp_lock_flush(dp_negotiator_t *n);
dp_status_t dp_lock_plan_reserve(dp_lock_t *lock, size_t buckets, size_t entries);
void dp_lock_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item);
void dp_lock_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item);
/* LOCK, whose buckets follow in the reader. */
void dp_lock_receive(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader);
/* Numbers that a rank can have reached at all end here. */
uint64_t dp_lock_horizon(const dp_negotiator_t *n);

/* schedule/detect.c: the root */
int dp_lock_is_lockable(const dp_row_t *row, const dp_signature_t *signature);
void dp_plan_note(dp_negotiator_t *n, dp_row_t *row, const dp_launch_entry_t *entry, int is_first);
void dp_plan_forget(dp_negotiator_t *n); /* what was ordered so far will not come again like that */
void dp_plan_round(dp_negotiator_t *n);
void dp_plan_flush(dp_negotiator_t *n);                  /* LOCK, if it is time */
void dp_plan_ended(dp_negotiator_t *n, uint64_t rounds); /* the lock lived so long */
int dp_plan_is_calm(const dp_negotiator_t *n);           /* is all well enough for a lock? */
void dp_plan_send(dp_negotiator_t *n);                   /* LOCK */

/* schedule/resume.c; the root's */
void dp_resume_keep(dp_negotiator_t *n, uint64_t rounds); /* the plan, if it was worth it */
void dp_resume_drop(dp_negotiator_t *n);
void dp_resume_note(dp_negotiator_t *n, dp_row_t *row); /* launched, by negotiation */
void dp_resume_flush(dp_negotiator_t *n);               /* LOCK, if a round begins */

/* schedule/catch_up.c */
void dp_debt_begin(dp_negotiator_t *n, uint64_t low, uint64_t high);
void dp_debt_restart(dp_negotiator_t *n, dp_row_t *row);
void dp_debt_flush(dp_negotiator_t *n);
void dp_debt_pay(dp_negotiator_t *n);                      /* what is settled by now */
void dp_debt_submitted(dp_negotiator_t *n, dp_row_t *row); /* unlocked */
/* The row's pending occurrence was launched or has failed, and may be owed. */
void dp_debt_launched(dp_negotiator_t *n, dp_row_t *row, uint32_t absent);
void dp_debt_failed(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text);
void dp_debt_defer(dp_negotiator_t *n, uint64_t behind); /* the newest event, if owed is less */
/* The root: what a launch of this tensor has to be behind, on each of its ranks. */
uint64_t dp_debt_floor(dp_negotiator_t *n, const dp_row_t *row);
void dp_debt_raise(dp_negotiator_t *n, const dp_row_t *row, uint64_t floor);
void dp_debt_tick(dp_negotiator_t *n);
void dp_debt_void(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row); /* VOID */
uint64_t dp_debt_deadline(const dp_negotiator_t *n);

/* order.c: the root */
void dp_order_void(dp_negotiator_t *n, dp_row_t *row, int rank);
void dp_order_complete(dp_negotiator_t *n, dp_row_t *row);
void dp_order_withdraw(dp_negotiator_t *n, const dp_row_t *row); /* it is not launched after all */
void dp_order_failure(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text,
                      const int32_t *list, uint32_t list_count);
void dp_order_conflict(dp_negotiator_t *n, dp_row_t *row, const int rank[2],
                       const dp_signature_t *const signature[2]);
void dp_order_release(dp_negotiator_t *n); /* launches what is held back */
void dp_order_flush(dp_negotiator_t *n);   /* what is due before frames go out */

/* join.c */
void dp_join_own(dp_negotiator_t *n, dp_scope_t *scope, void *request);
void dp_join_refused(dp_negotiator_t *n, dp_scope_t *scope); /* a rank has left the group */
void dp_join_arrive(dp_negotiator_t *n, dp_scope_t *scope, int rank);
void dp_join_flush(dp_negotiator_t *n); /* what this rank may say by now */
int dp_join_has_own(const dp_negotiator_t *n, const dp_scope_t *scope); /* has this rank joined? */
void dp_join_all(dp_negotiator_t *n, dp_scope_t *scope, int last_rank); /* JOINED */
int dp_join_is_joined(const dp_scope_t *scope, int rank);
int dp_join_covers(const dp_negotiator_t *n, const dp_row_t *row, int slot);
int dp_join_names(const dp_negotiator_t *n, const dp_row_t *row, int slot);
int dp_join_allows(const dp_row_t *row);

/* leave.c */
void dp_leave_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row);
void dp_leave_left(dp_negotiator_t *n, int rank);
void dp_leave_close(dp_negotiator_t *n, dp_scope_t *scope, int rank); /* CLOSED */
void dp_leave_refuse(dp_negotiator_t *n, const dp_row_t *row, void *request);
void dp_leave_end(dp_negotiator_t *n, dp_row_t *row); /* this rank's part of it fails */
void dp_leave_refuse_join(dp_negotiator_t *n, const dp_scope_t *scope, void *request);
void dp_leave_tick(dp_negotiator_t *n); /* root: who is waited for in dp_finalize() */
uint64_t dp_leave_deadline(const dp_negotiator_t *n);
void dp_leave_check(dp_negotiator_t *n, dp_row_t *row); /* has a rank left that it needs? */
void dp_leave_forget(dp_negotiator_t *n, const dp_row_t *row);
void dp_leave_flush(dp_negotiator_t *n);
int dp_leave_is_over(const dp_negotiator_t *n); /* FIN is due */

/* receive.c, follow.c */
#define DP_POSITION_MAX (UINT64_MAX / 2) /* so that counting on from any position cannot wrap */
/* The row an item speaks of, or its key; NULL: the world has ended. */
dp_row_t *dp_receive_row(dp_negotiator_t *n, int from, const dp_item_t *item);
dp_row_t *dp_receive_key(dp_negotiator_t *n, int from, const dp_item_t *item);
/* Can this signature be one of the row's? */
int dp_receive_fits(const dp_negotiator_t *n, const dp_row_t *row, const dp_signature_t *signature);
/* One item from the parent, read from bytes at `begin` of the reader on. */
void dp_follow(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader, size_t begin);
dp_status_t dp_receive(dp_negotiator_t *n, int from, const void *data, size_t bytes);

/* stall.c */
dp_status_t dp_stall_init(dp_negotiator_t *n);
void dp_stall_fini(dp_negotiator_t *n);
void dp_stall_watch(dp_negotiator_t *n, dp_row_t *row); /* it is pending */
/* It is no longer waited for here: complete, announced, failed. */
void dp_stall_unwatch(dp_negotiator_t *n, dp_row_t *row, int is_complete);
void dp_stall_who(dp_negotiator_t *n, const dp_item_t *item, dp_row_t *row);
void dp_stall_missing(dp_negotiator_t *n, int child, const dp_item_t *item);
void dp_stall_forget(dp_negotiator_t *n, const dp_row_t *row); /* it is going */
void dp_stall_tick(dp_negotiator_t *n);
void dp_stall_flush(dp_negotiator_t *n); /* questions down, the answer up */
uint64_t dp_stall_deadline(const dp_negotiator_t *n);

/* outbox.c */
dp_status_t dp_outbox_init(dp_negotiator_t *n);
void dp_outbox_fini(dp_negotiator_t *n);
/*
 * Room for bytes at the end of a frame for these slots' children: write, then commit. position:
 * that of the ordered item before this one. 0: there are no such children, or no memory (then the
 * world has ended).
 */
int dp_outbox_down_begin(dp_negotiator_t *n, const uint64_t *slots, uint64_t position, size_t bytes,
                         dp_writer_t *writer);
void dp_outbox_down_commit(dp_negotiator_t *n, const dp_writer_t *writer, int is_ordered);
void dp_outbox_down_bytes(dp_negotiator_t *n, const uint64_t *slots, uint64_t position,
                          const void *data, size_t bytes, int is_ordered);
/* At n->position. */
void dp_outbox_down(dp_negotiator_t *n, const uint64_t *slots, const dp_item_t *item,
                    int is_ordered);
void dp_outbox_close_down(dp_negotiator_t *n); /* the open frame goes on its way */
void dp_outbox_ask(dp_negotiator_t *n, int child, const dp_item_t *item); /* a frame of its own */
void dp_outbox_close_up(dp_negotiator_t *n);
void dp_outbox_up_item(dp_negotiator_t *n, const dp_item_t *item);
void dp_outbox_up(dp_negotiator_t *n); /* the news, in as few frames as possible */
void dp_outbox_news(dp_negotiator_t *n, dp_row_t *row);
void dp_outbox_say(dp_negotiator_t *n, const dp_word_t *word);
void dp_outbox_fail(dp_negotiator_t *n, void *request, dp_status_t status, const char *text);
void dp_outbox_warn(dp_negotiator_t *n, const char *text);
int dp_outbox_take(dp_negotiator_t *n, dp_output_t *out);
dp_status_t dp_outbox_entry(dp_negotiator_t *n, const dp_launch_entry_t *entry);
dp_event_t *dp_outbox_event(dp_negotiator_t *n, dp_output_kind_t kind);
dp_event_t *dp_outbox_text_event(dp_negotiator_t *n, dp_output_kind_t kind, const char *text);
dp_status_t dp_outbox_defer(dp_negotiator_t *n, const dp_event_t *event); /* keeps a launch */
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
void dp_item_ref(dp_item_t *item, dp_item_kind_t kind, const dp_row_t *row);

#endif
