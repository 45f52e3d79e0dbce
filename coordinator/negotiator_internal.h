/*
 * negotiator_internal.h - the state of one negotiator, shared by the files that make it up.
 *
 * table.c      names, ids, and what is known of each tensor's pending occurrence
 * agree.c      the rules of one tensor: arrives, is complete, launched, failed
 * leave.c      ranks that submit nothing more, and the tensors that fail for it
 * stall.c      who is missing for a tensor that waits too long
 * outbox.c     frames and outputs on their way out, the end of the world
 * negotiator.c the public inputs, and frames from neighbours
 *
 * Nothing outside coordinator/negotiator's files and its tests may include this.
 */
#ifndef DP_COORDINATOR_NEGOTIATOR_INTERNAL_H
#define DP_COORDINATOR_NEGOTIATOR_INTERNAL_H

#include "coordinator/messages.h"
#include "coordinator/negotiator.h"
#include "runtime/transport/transport.h"

/* ---- One tensor ------------------------------------------------------------------------- */

/* Two signatures of one occurrence, on their way to the root. */
typedef struct dp_conflict {
    int rank[2];
    dp_signature_t *signature[2];
} dp_conflict_t;

/* An occurrence that failed before this rank submitted it: its next submission gets this. */
typedef struct dp_refusal {
    struct dp_refusal *next;
    dp_status_t status;
    char text[];
} dp_refusal_t;

typedef enum dp_row_list { DP_ROW_UNLISTED, DP_ROW_FRESH, DP_ROW_STALLED } dp_row_list_t;

/*
 * A row of the table: one name. At any time one occurrence of it is pending at most: a rank may
 * submit k+1 only after LAUNCH or FAILURE of k reached it, hence after it passed every node above.
 */
typedef struct dp_row {
    struct dp_row *next_in_bucket;
    uint32_t hash;
    uint32_t id;               /* DP_ID_NONE until the root has named it */
    uint16_t version;          /* of the signature below; 0: none was agreed yet */
    dp_signature_t *signature; /* adopted with the last LAUNCH that changed it; owned */
    uint64_t done_position;    /* where in the order the last occurrence ended */
    int ended_in_failure;
    dp_refusal_t *refusals, **refusals_end; /* oldest first */
    /* Once a rank has left: */
    int is_kept; /* its pending occurrence can still be launched: leavers had submitted */
    uint64_t keep_position; /* of the CLOSED that keeps it */
    int is_offered;         /* all leavers this node knows of keep it */
    int is_marked;          /* scratch of dp_agree_left() */
    int closed_by;          /* who left without submitting it; -1: the first to leave */

    /* The pending occurrence; dp_row_clear() resets all of it. */
    int is_pending;  /* something of it is known here */
    int is_own;      /* this rank has submitted it */
    void *request;   /* of this rank */
    uint32_t ready;  /* subtrees that are ready, this rank being one */
    int is_complete; /* all are */
    int in_place;    /* AND of what arrived */
    float absmax;    /* merged from what arrived */
    int is_urgent;
    int first_rank;           /* who brought the signature below */
    dp_signature_t *proposed; /* NULL: the adopted one; owned */
    int is_mismatched;
    dp_conflict_t *conflict; /* until it is sent; owned */
    int is_announced;        /* READY or MISMATCH went up */
    int urgent_sent;
    int wants_partial, partial_sent;
    uint64_t first_ns; /* when it became pending */
    int was_warned;    /* root: a stall report was about it */
    dp_row_list_t list;
    struct dp_row *older, *newer;

    int has_news;     /* is in the list of rows to look at when a frame goes up */
    char *name;       /* behind heard[] */
    uint64_t heard[]; /* a bit per child, and the last one for this rank */
} dp_row_t;

typedef struct dp_table {
    dp_row_t **buckets; /* [bucket_count], a power of two */
    size_t bucket_count;
    dp_row_t **rows; /* [row_count] in order of first sight */
    size_t row_count, row_room;
    dp_row_t **by_id; /* [id_count] */
    size_t id_count, id_room;
    size_t bit_words; /* of heard[] */
} dp_table_t;

/* A growable list of rows; its memory is kept. */
typedef struct dp_row_array {
    dp_row_t **rows;
    size_t count, room;
} dp_row_array_t;

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
} dp_frame_t;

/* A launch, failure or warning for this rank. */
typedef struct dp_event {
    dp_output_kind_t kind;
    uint64_t sequence;
    size_t entry_begin, entry_count;
    void *request;
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
    int *children; /* [child_count] ascending */
    uint64_t hold_ns;
    size_t fusion_bytes;
    uint64_t stall_warn_ns, stall_limit_ns;

    uint64_t now_ns;
    dp_table_t table;
    dp_row_array_t news; /* rows that may have something to tell the parent */
    uint64_t position;   /* ordered items made (root) or seen */
    uint64_t sequence;   /* of the last launch */
    uint64_t launched;   /* the data plane has finished up to here */
    size_t own_pending;  /* requests of this rank not handed back */

    /* root: complete and held back, in the order they will be launched */
    dp_row_array_t complete;
    size_t complete_bytes;
    uint64_t complete_since_ns;
    int complete_urgent;

    /* leaving */
    int is_finalizing, has_left; /* has_left: and has said so */
    int has_leaver;              /* this node knows of one; rows say what all of them keep */
    int is_closed, closed_rank;  /* CLOSED was ordered; the first rank to leave */
    uint64_t closed_position;    /* of the last CLOSED */
    uint32_t keeps;              /* KEEPs seen from the parent since the last ordered item */
    dp_keep_t *kept;             /* [kept_count] what leavers keep, until their LEFT comes */
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

    uint64_t *child_position; /* [child_count] the last position in a frame of that child */
    dp_frame_t *down, *up;    /* open frames for the children and the parent; NULL or not empty */
    dp_frame_t *frames, **frames_end; /* closed, in the order they were made */
    dp_frame_t *spare;                /* to be reused */
    dp_event_t *events;               /* [event_count], from event_next on still to be taken */
    size_t event_next, event_count, event_room;
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

/* table.c */
dp_status_t dp_table_init(dp_table_t *table, int bits);
void dp_table_fini(dp_table_t *table);
dp_row_t *dp_table_find(const dp_table_t *table, const char *name);
/* Finds or makes; NULL: out of memory. */
dp_row_t *dp_table_get(dp_table_t *table, const char *name);
dp_row_t *dp_table_by_id(const dp_table_t *table, uint32_t id); /* NULL: no such id */
/* Gives a row the next id. */
dp_status_t dp_table_assign(dp_table_t *table, dp_row_t *row);
void dp_row_clear(dp_row_t *row, size_t bit_words);
/* Remembers that an occurrence failed which this rank has not submitted yet. */
dp_status_t dp_row_refuse(dp_row_t *row, dp_status_t status, const char *text);
dp_status_t dp_row_array_push(dp_row_array_t *array, dp_row_t *row);

/* agree.c, leave.c: each ends the world by itself where it fails */
typedef struct dp_arrival {
    int slot;                  /* index of the child, child_count for this rank */
    int rank;                  /* who vouches for the signature */
    dp_signature_t *signature; /* NULL: the adopted one; taken */
    int in_place, is_urgent;
    float absmax;
} dp_arrival_t;
void dp_agree_arrive(dp_negotiator_t *n, dp_row_t *row, const dp_arrival_t *arrival);
void dp_agree_mismatch(dp_negotiator_t *n, dp_row_t *row, int slot, dp_item_t *item);
void dp_agree_urgent(dp_negotiator_t *n, dp_row_t *row);
void dp_agree_pending(dp_negotiator_t *n, dp_row_t *row, uint64_t first_ns);
/* Leavers, as told by a child. */
void dp_agree_keep(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row);
void dp_agree_left(dp_negotiator_t *n, int rank);
/* Ordered items, on every rank in the same order. */
void dp_agree_launch(dp_negotiator_t *n, dp_row_t *row, int in_place, float absmax);
void dp_agree_launched(dp_negotiator_t *n, uint64_t sequence, size_t entry_begin);
void dp_agree_fail(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text);
void dp_agree_close(dp_negotiator_t *n, int rank);
void dp_agree_bye(dp_negotiator_t *n);
void dp_agree_refuse_closed(dp_negotiator_t *n, const dp_row_t *row, void *request);
/* What is due before frames go out: the root's launches, leaving. */
void dp_agree_flush(dp_negotiator_t *n);
void dp_agree_release(dp_negotiator_t *n); /* root: launches what is held back */
void dp_agree_end(dp_negotiator_t *n, dp_row_t *row, uint64_t position, int in_failure);
void dp_leave_flush(dp_negotiator_t *n);

/* stall.c */
dp_status_t dp_stall_init(dp_negotiator_t *n);
void dp_stall_fini(dp_negotiator_t *n);
void dp_stall_watch(dp_negotiator_t *n, dp_row_t *row); /* it is pending */
/* It is no longer waited for here: complete, announced, failed. */
void dp_stall_unwatch(dp_negotiator_t *n, dp_row_t *row, int is_complete);
void dp_stall_who(dp_negotiator_t *n, const dp_item_t *item, dp_row_t *row);
void dp_stall_missing(dp_negotiator_t *n, int child, const dp_item_t *item);
void dp_stall_tick(dp_negotiator_t *n);
void dp_stall_flush(dp_negotiator_t *n); /* questions down, the answer up */
uint64_t dp_stall_deadline(const dp_negotiator_t *n);

/* outbox.c */
dp_status_t dp_outbox_init(dp_negotiator_t *n);
void dp_outbox_fini(dp_negotiator_t *n);
/*
 * Room for bytes at the end of the children's frame: write, then commit. position: ordered items
 * before this one. 0: there are no children, or no memory (then the world has ended).
 */
int dp_outbox_down_begin(dp_negotiator_t *n, uint64_t position, size_t bytes, dp_writer_t *writer);
void dp_outbox_down_commit(dp_negotiator_t *n, const dp_writer_t *writer);
void dp_outbox_down_bytes(dp_negotiator_t *n, uint64_t position, const void *data, size_t bytes);
void dp_outbox_down(dp_negotiator_t *n, const dp_item_t *item); /* at n->position */
void dp_outbox_close_down(dp_negotiator_t *n);                  /* the open frame goes on its way */
void dp_outbox_ask(dp_negotiator_t *n, int child, const dp_item_t *item); /* a frame of its own */
void dp_outbox_close_up(dp_negotiator_t *n);
void dp_outbox_up_item(dp_negotiator_t *n, const dp_item_t *item);
void dp_outbox_up(dp_negotiator_t *n); /* the news, in as few frames as possible */
void dp_outbox_news(dp_negotiator_t *n, dp_row_t *row);
void dp_outbox_fail(dp_negotiator_t *n, void *request, dp_status_t status, const char *text);
void dp_outbox_warn(dp_negotiator_t *n, const char *text);
int dp_outbox_take(dp_negotiator_t *n, dp_output_t *out);
dp_status_t dp_outbox_entry(dp_negotiator_t *n, const dp_launch_entry_t *entry);
dp_event_t *dp_outbox_event(dp_negotiator_t *n, dp_output_kind_t kind);
/* "rank 3 (hostB)" */
#define DP_RANK_TEXT_MAX 96
const char *dp_rank_text(const dp_negotiator_t *n, int rank, char text[DP_RANK_TEXT_MAX]);

/* The end of the world, told to all neighbours but one (-1: to all). The first cause stays. */
void dp_fatal(dp_negotiator_t *n, dp_status_t status, int culprit, int except, const char *text);
void dp_fatal_memory(dp_negotiator_t *n);
/* A neighbour broke the protocol. */
void dp_fatal_protocol(dp_negotiator_t *n, int from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refs an item's tensor. */
void dp_item_ref(dp_item_t *item, dp_item_kind_t kind, const dp_row_t *row);

#endif
