/*
 * outbox.h - what leaves the negotiator: frames for neighbours, outputs for this rank, and the
 * fatal error that ends the world. outbox.c alone writes n->out, n->fatal, n->is_fatal and
 * entry->sent.
 */
#ifndef DP_COORDINATOR_OUTBOX_H
#define DP_COORDINATOR_OUTBOX_H

#include "coordinator/negotiator/table.h"

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
    uint64_t sequence;
    uint32_t group, group_index;
    int last_rank;
    size_t entry_begin, entry_count; /* into the launch entries */
    void *request;
    dp_status_t status;
    char *text; /* owned */
} dp_own_output_t;

/* JOIN, KEEP or LEFT for the parent. Each follows the READYs of what its rank submitted
 * before. */
typedef struct dp_notice {
    dp_item_kind_t kind;
    int rank;
    uint32_t group;          /* JOIN */
    const dp_entry_t *entry; /* KEEP */
    uint64_t position;       /* KEEP */
} dp_notice_t;

typedef struct dp_outbox {
    /* for the parent */
    dp_entry_array_t news; /* entries that may have something to tell the parent */
    dp_notice_t *notices;  /* [notice_count] in order, sent behind the news */
    size_t notice_count, notice_room;
    /* frames */
    dp_out_frame_t *down, *up; /* open frames for some children and the parent; NULL or not empty */
    uint64_t down_position;    /* of the last ordered item in the open frame */
    uint64_t *mask;            /* [bit_words] scratch: the children an item is for */
    dp_out_frame_t *frames, **frames_end; /* closed, in the order they were made */
    dp_out_frame_t *spare;                /* to be reused */
    /* for this rank */
    dp_own_output_t *outputs; /* [output_count], from output_next on still to be taken */
    size_t output_next, output_count, output_room;
    char *output_text; /* in the caller's hands; owned */
    dp_launch_entry_t *launch_entries;
    size_t launch_entry_count, launch_entry_room;
    int finished_told;
} dp_outbox_t;

/* The first fatal error; n->is_fatal says that there is one. */
typedef struct dp_fatal_error {
    int is_told; /* to the caller */
    dp_status_t status;
    int culprit;
    char text[DP_ERROR_TEXT_MAX];
    dp_out_frame_t *frame; /* allocated in advance */
} dp_fatal_error_t;

dp_status_t dp_outbox_init(dp_negotiator_t *n);
void dp_outbox_fini(dp_negotiator_t *n);

/* ---- Down ----------------------------------------------------------------------------------- */

/*
 * Room for bytes at the end of a frame for these branches' children: write, then commit. position:
 * that of the ordered item before this one. 0: there are no such children, or no memory (then a
 * fatal error was raised).
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

/* ---- Up ------------------------------------------------------------------------------------- */

void dp_outbox_close_up(dp_negotiator_t *n);
void dp_outbox_up_item(dp_negotiator_t *n, const dp_item_t *item);
void dp_outbox_up(dp_negotiator_t *n); /* the news and notices, into the open frame */
void dp_outbox_news(dp_negotiator_t *n, dp_entry_t *entry);
void dp_outbox_notice(dp_negotiator_t *n, const dp_notice_t *notice);
void dp_outbox_partial(dp_negotiator_t *n, dp_entry_t *entry); /* it waits too long: PARTIAL */
void dp_outbox_expired(dp_negotiator_t *n, dp_entry_t *entry); /* behind READY or PARTIAL */
int dp_outbox_refers(const dp_negotiator_t *n, const dp_entry_t *entry); /* a notice is about it */
/* It is going. */
void dp_outbox_forget_news(dp_negotiator_t *n, const dp_entry_t *entry);
void dp_outbox_forget_notices(dp_negotiator_t *n, const dp_entry_t *entry);
/* Refers an item to an entry's tensor; what only some items carry is reset. */
void dp_item_ref(dp_item_t *item, dp_item_kind_t kind, const dp_entry_t *entry);

/* ---- To this rank --------------------------------------------------------------------------- */

void dp_outbox_fail(dp_negotiator_t *n, void *request, dp_status_t status, const char *text);
void dp_outbox_warn(dp_negotiator_t *n, const char *text);
int dp_outbox_take(dp_negotiator_t *n, dp_output_t *out);
dp_status_t dp_outbox_entry(dp_negotiator_t *n, const dp_launch_entry_t *launch_entry);
dp_own_output_t *dp_outbox_output(dp_negotiator_t *n, dp_output_kind_t kind);
dp_own_output_t *dp_outbox_text_output(dp_negotiator_t *n, dp_output_kind_t kind, const char *text);
/* "rank 3 (hostB)" */
#define DP_RANK_TEXT_MAX 96
const char *dp_rank_text(const dp_negotiator_t *n, int rank, char text[DP_RANK_TEXT_MAX]);

/* ---- Fatal errors --------------------------------------------------------------------------- */

/* Told to all neighbours but one (-1: to all). The first cause stays. */
void dp_fatal(dp_negotiator_t *n, dp_status_t status, int culprit, int except, const char *text);
void dp_fatal_memory(dp_negotiator_t *n);
/* A neighbour broke the protocol. */
void dp_fatal_protocol(dp_negotiator_t *n, int from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
