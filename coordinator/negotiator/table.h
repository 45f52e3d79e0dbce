/*
 * table.h - the table of tensor entries: one for each name in a group, with all that is known of
 * its pending occurrence.
 *
 * table.c makes and clears entries. Between that each part of an entry is written by the file named
 * beside it, and by no other: tests/style/doors.py.
 */
#ifndef DP_COORDINATOR_TABLE_H
#define DP_COORDINATOR_TABLE_H

#include "coordinator/negotiator/group_view.h"
#include "coordinator/negotiator/messages.h"

/* Two signatures of one occurrence, on their way to the root; or, the second being NULL, one and
 * the rank that has left without submitting it. */
typedef struct dp_conflict {
    int rank[2];
    dp_signature_t *signature[2];
} dp_conflict_t;

/* A child's announcement of a group to be made. It is kept until the pending occurrence ends: it
 * may be of another list of ranks, and then the child is not told of that end. */
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

/* This rank's submission of a tensor, until it is handed back. */
typedef struct dp_submitted {
    int is_there;
    void *request;
    dp_signature_t *signature; /* NULL: the adopted one; owned */
    int in_place, is_urgent;
    float absmax;
    int32_t priority;
    uint64_t since_ns;
    uint64_t expires_ns; /* 0: never */
    size_t timed_at;     /* else where it stands in the list of those with a limit */
} dp_submitted_t;

/* The arrivals of all branches in the pending occurrence, merged. agree.c */
typedef struct dp_arrived {
    uint32_t ready;   /* branches that are ready */
    uint32_t absent;  /* ranks of these that have joined */
    int absent_rank;  /* one of them, the collective's root if that is one; -1 */
    int is_complete;  /* all branches that take part are ready */
    int in_place;     /* AND of what arrived */
    float absmax;     /* merged from what arrived */
    int32_t priority; /* maximum of what arrived */
    int is_urgent;
    int first_rank;           /* brought the signature below */
    dp_signature_t *proposed; /* NULL: the adopted one; owned */
    int is_mismatched;        /* or lacks a rank: it waits for its FAILURE */
    dp_conflict_t *conflict;  /* until it is sent; owned */
} dp_arrived_t;

/* The news of the pending occurrence that the parent has. outbox.c */
typedef struct dp_sent {
    int has_news;     /* is in the list of entries to look at when a frame goes up */
    int is_announced; /* READY or MISMATCH went up */
    int is_ready;     /* READY did: what is found later is a CONTEST */
    int is_conflict;
    int is_urgent;
    int wants_partial, is_partial;
    int wants_expired, is_expired;
} dp_sent_t;

/* How earlier occurrences ended. agree.c */
typedef struct dp_ended {
    uint64_t position; /* where in the order the last one ended */
    int in_failure;
    dp_refusal_t *refusals, **refusals_end; /* oldest first */
} dp_ended_t;

/* Of a group that is to be made. contest.c */
typedef struct dp_making {
    int32_t *list; /* its members, while an occurrence is pending; owned */
    uint32_t list_count;
    dp_contest_t *contests; /* oldest first */
    uint64_t *ended_for;    /* [child_count] where in the order a child was last told of an end */
} dp_making_t;

/* Once a rank has left. leave.c */
typedef struct dp_entry_leave {
    int is_kept; /* the pending occurrence can still be launched: leavers had submitted */
    uint64_t keep_position; /* of the CLOSED that keeps it */
    int closed_by;          /* left without submitting it; -1: the first to leave did */
} dp_entry_leave_t;

/* stall.c */
typedef enum dp_entry_list { DP_ENTRY_UNLISTED, DP_ENTRY_FRESH, DP_ENTRY_STALLED } dp_entry_list_t;
typedef struct dp_entry_stall {
    uint64_t first_ns; /* when it became pending */
    int was_warned;    /* root: a stall report was about it */
    int is_expired;    /* root: a rank's time limit for it is over */
    dp_entry_list_t list;
    struct dp_entry *older, *newer;
} dp_entry_stall_t;

/* This rank's part of the pending occurrence. agree.c */
typedef struct dp_part {
    int is_submitted; /* it counts as submitted here */
    void *request;
} dp_part_t;

/*
 * An entry of the table: one name in a group; of a send, for one pair of ranks. At any time one
 * occurrence of it is pending at most: a rank may submit k+1 only after LAUNCH or FAILURE of k
 * reached it, hence after it passed every rank above.
 */
typedef struct dp_entry {
    struct dp_entry *next_by_hash, *next_of_id;
    uint32_t hash;
    size_t index;              /* in the table's entries */
    dp_group_view_t *view;     /* NULL: a group to be made */
    int root, peer;            /* ranks of the group whose send this is; else -1 */
    const uint64_t *expect;    /* branches that take part: the view's, or own_expect */
    uint32_t expected;         /* how many */
    uint32_t id;               /* DP_ID_NONE until the root has named it */
    size_t passing;            /* place among the table's names that have come once, from 1 */
    uint16_t version;          /* of the signature below; 0: none was agreed yet */
    dp_signature_t *signature; /* adopted with the last LAUNCH that changed it; owned */
    int is_pending;            /* something is known here of an occurrence */
    int is_queued;             /* agree.c: this rank's submission is to arrive once more */

    dp_part_t part;
    dp_arrived_t arrived;
    dp_sent_t sent;
    dp_entry_stall_t stall;
    dp_ended_t ended;
    dp_entry_leave_t leave;
    dp_making_t making;
    dp_submitted_t own; /* the pending submission */

    char *name;           /* behind heard[], likewise the next one and ended_for */
    uint64_t *own_expect; /* NULL: an ordinary tensor */
    uint64_t heard[];     /* branches that are ready */
} dp_entry_t;

typedef struct dp_table {
    dp_entry_t **heads; /* [head_count], a power of two: first entries of the hash lists */
    size_t head_count;
    dp_entry_t **entries; /* [entry_count] in order of first sight */
    size_t entry_count, entry_room;
    dp_entry_t **by_id; /* [id_head_count], a power of two */
    size_t id_count, id_head_count;
    uint32_t next_id; /* one more than the last id seen */
    size_t bit_words; /* of heard[] */
    int branches;
    size_t names_kept;    /* ids that are given at the first launch, and the room of the ring */
    dp_entry_t **passing; /* [names_kept], a ring: launched once, and without an id */
    size_t passing_next;  /* where the next one goes */
    void **retired; /* [retired_count] memory that outputs not yet taken may point to; owned */
    size_t retired_count, retired_room;
} dp_table_t;

/* A growable list of entries; its memory is kept. */
typedef struct dp_entry_array {
    dp_entry_t **entries;
    size_t count, room;
} dp_entry_array_t;

/* Of an entry that is not a send's root and peer are -1. */
typedef struct dp_key {
    uint32_t group;
    int root, peer;
    const char *name;
} dp_key_t;

dp_status_t dp_table_init(dp_table_t *table, int branches, size_t names_kept);
void dp_table_fini(dp_table_t *table);
dp_entry_t *dp_table_find(const dp_table_t *table, const dp_key_t *key);
/* The next entry of that name in the group, whatever ranks it is for; after: NULL, the first. */
dp_entry_t *dp_table_next(const dp_table_t *table, uint32_t group, const char *name,
                          dp_entry_t *after);
/* Finds or makes; NULL: out of memory. A new entry knows only its key. */
dp_entry_t *dp_table_get(dp_table_t *table, const dp_key_t *key, dp_group_view_t *view);
dp_entry_t *dp_table_by_id(const dp_table_t *table, uint32_t id); /* NULL: no such id */
/* Gives an entry this id, which is not given to another. */
void dp_table_assign(dp_table_t *table, dp_entry_t *entry, uint32_t id);
/* Root: does the launch of this name give it an id? While there are few ids it does; then a name
 * gets its id when it comes for the second time. */
int dp_table_earns_id(const dp_table_t *table, const dp_entry_t *entry);
/* Notes that a name without an id was launched. *oldest: one that has not come again for as many
 * names as are kept; NULL: none. DP_ERR_NO_MEMORY. */
dp_status_t dp_table_pass(dp_table_t *table, dp_entry_t *entry, dp_entry_t **oldest);
/* Takes an entry that is not pending out of the table; outputs may still point to it. */
dp_status_t dp_table_remove(dp_table_t *table, dp_entry_t *entry);
/* 1: still in the table. May be asked of a removed entry until all outputs are taken. */
int dp_table_has(const dp_table_t *table, const dp_entry_t *entry);
/* memory: freed when all outputs were taken. */
dp_status_t dp_table_retire(dp_table_t *table, void *memory);
void dp_table_free_retired(dp_table_t *table);
void dp_contest_destroy(dp_contest_t *contest);
void dp_contest_drop(dp_entry_t *entry);                           /* all of them */
const dp_signature_t *dp_entry_signature(const dp_entry_t *entry); /* of the pending occurrence */
void dp_entry_clear(dp_entry_t *entry, size_t bit_words); /* what belongs to one occurrence */
/* Remembers that an occurrence failed which this rank has not submitted yet. */
dp_status_t dp_entry_refuse(dp_entry_t *entry, dp_status_t status, const char *text);
/* The oldest of them; returned: free() it. */
dp_refusal_t *dp_entry_take_refusal(dp_entry_t *entry);
void dp_entry_forgive(dp_entry_t *entry); /* forgets them */
dp_status_t dp_entry_array_push(dp_entry_array_t *array, dp_entry_t *entry);
void dp_entry_array_remove(dp_entry_array_t *array, const dp_entry_t *entry);
uint32_t dp_entry_group(const dp_entry_t *entry);

/* The entry's place among the ranks. */
dp_entry_t *dp_entry_get(dp_negotiator_t *n, const dp_key_t *key, dp_group_view_t *view);
dp_status_t dp_entry_set_list(dp_negotiator_t *n, dp_entry_t *entry, const int32_t *list,
                              uint32_t count);
uint32_t dp_entry_ranks(const dp_entry_t *entry); /* that take part */
/* Of these, in a branch. */
uint32_t dp_entry_below(const dp_negotiator_t *n, const dp_entry_t *entry, int branch);
int dp_entry_takes_part(const dp_negotiator_t *n, const dp_entry_t *entry); /* this rank */
/* Can this signature be one of the entry's? */
int dp_entry_fits(const dp_negotiator_t *n, const dp_entry_t *entry,
                  const dp_signature_t *signature);
/* Does the item speak of a group that has ended? It may, if its sender did not know yet. */
int dp_item_is_of_the_past(const dp_negotiator_t *n, const dp_item_t *item);
/* A text for people: "tensor wte", "tensor act of group tp", "group tp". */
#define DP_ENTRY_TEXT_MAX (DP_ENTRY_NAME_MAX + DP_GROUP_NAME_MAX + 32)
const char *dp_entry_text(const dp_entry_t *entry, char text[DP_ENTRY_TEXT_MAX]);
/* With this signature's name for a group to be made; it may be NULL. */
const char *dp_entry_text_of(const dp_entry_t *entry, const dp_signature_t *signature,
                             char text[DP_ENTRY_TEXT_MAX]);

#endif
