/* clang-format off */
/*
 * messages.h - the frames negotiators exchange: the one place that knows their bytes.
 *
 * Pure encoding, both ways, called by the negotiator's other files on its thread. It knows nothing
 * of trees, tables or rules; docs/protocol.md tells what each item means. All integers are
 * little-endian.
 *
 *   frame  := header item*                     at most DP_MESSAGE_MAX bytes
 *   header := u8 version (DP_FRAME_VERSION), u8 zero, u16 zero, u32 zero, u64 position
 *   item   := u8 kind, fields by kind
 *   ref    := u32 id                           a tensor that the root has named
 *           | u32 DP_ID_NONE, key              one it has not
 *   key    := u32 group, u32 root, u32 peer, text name      root and peer: all ones but of a send
 *   list   := u32 n, n x u32 rank              ascending; there where the group is unborn, else not
 *   text   := u16 bytes, the bytes             no terminator, no NUL inside
 *
 *   up, from child to parent (position: of the last ordered item the sender had seen)
 *     READY         ref, u16 version, u8 flags, f32 absmax [, u32 absent, u32 joined rank]
 *                   [, i32 priority] [, signature]
 *     MISMATCH      ref, u32 rank a, u32 rank b, signature a, signature b
 *     LACKS         ref, u32 rank that has left, signature
 *     CONTEST       as MISMATCH, after READY was sent
 *     URGENT        ref
 *     EXPIRED       ref                        behind its READY or PARTIAL
 *     PARTIAL       ref [, list], u64 age in ns
 *     JOIN          u32 group, u32 rank
 *     KEEP          u32 rank, u64 position of that rank, ref
 *     LEFT          u32 rank
 *     FIN
 *     MISSING       u32 round, u32 count, u8 n, n x (u32 rank, u32 pending, text progress)
 *   down, from parent to child (position: one less than that of the first ordered item)
 *     SEEK          u64 position                    one less than that of the next ordered item
 *     LAUNCH        u64 sequence, u32 n, n x entry                                   ordered
 *     FAILURE       u32 id, u8 flags [, key] [, list], u8 status, text               ordered
 *     JOINED        u32 group, u32 rank                                              ordered
 *     KEEP          u32 rank, u64 zero, ref                               only before CLOSED
 *     CLOSED        u32 group, u32 rank, u32 n, the KEEPs before it                  ordered
 *     BYE                                                                            ordered
 *     WHO           u32 round, u32 patience in ms, ref [, list]
 *     WARN          u32 group [, list], text
 *     entry      := u32 id, u8 flags, f32 absmax [, key] [, u32 absent] [, signature]
 *                   [, u32 new group, u32 index]
 *   both, alone in a frame (position: DP_POSITION_NONE, as ordered items may have been dropped)
 *     FATAL         u8 status, u32 culprit (all ones: unknown), text
 */
/* clang-format on */
#ifndef DP_COORDINATOR_MESSAGES_H
#define DP_COORDINATOR_MESSAGES_H

#include "coordinator/negotiator/negotiator.h"

#define DP_FRAME_VERSION 5
#define DP_FRAME_HEADER_BYTES 16
#define DP_ID_NONE UINT32_MAX
#define DP_POSITION_NONE UINT64_MAX

#define DP_PROGRESS_MAX 128    /* bytes of a progress text with its terminator */
#define DP_MISSING_NAMED_MAX 8 /* missing ranks that one report names */

typedef enum dp_item_kind {
    DP_ITEM_READY = 1,
    DP_ITEM_MISMATCH = 2,
    DP_ITEM_URGENT = 3,
    DP_ITEM_PARTIAL = 4,
    DP_ITEM_LEFT = 5,
    DP_ITEM_FIN = 6,
    DP_ITEM_MISSING = 7,
    DP_ITEM_KEEP = 8,
    DP_ITEM_JOIN = 9,
    DP_ITEM_LACKS = 10,
    DP_ITEM_CONTEST = 11,
    DP_ITEM_EXPIRED = 12,
    DP_ITEM_LAUNCH = 16,
    DP_ITEM_FAILURE = 17,
    DP_ITEM_CLOSED = 18,
    DP_ITEM_BYE = 19,
    DP_ITEM_WHO = 20,
    DP_ITEM_WARN = 21,
    DP_ITEM_JOINED = 22,
    DP_ITEM_SEEK = 23,
    DP_ITEM_FATAL = 32
} dp_item_kind_t;

/* Flags of READY and of the entries of LAUNCH and FAILURE. */
#define DP_FLAG_IN_PLACE 1u
#define DP_FLAG_URGENT 2u
#define DP_FLAG_SIGNATURE 4u /* READY, LAUNCH: a full signature follows */
#define DP_FLAG_NAME 8u      /* LAUNCH, FAILURE: the id is new, or there is none: its key follows */
#define DP_FLAG_ABSENT 16u   /* READY, LAUNCH: ranks have joined: how many follows */
#define DP_FLAG_BORN 32u     /* LAUNCH: a group is made: its uid and index follow */
#define DP_FLAG_PRIORITY 64u /* READY: it is not 0: it follows */

typedef struct dp_frame_header {
    uint64_t position;
} dp_frame_header_t;

/* A rank that a stalled tensor waits for. */
typedef struct dp_missing_rank {
    int rank;
    uint32_t pending; /* operations it has submitted and not launched */
    char progress[DP_PROGRESS_MAX];
} dp_missing_rank_t;

typedef struct dp_missing {
    uint32_t count; /* ranks missing, named or not */
    uint32_t named;
    dp_missing_rank_t ranks[DP_MISSING_NAMED_MAX];
} dp_missing_t;

/* Fields of every kind; each item uses those the table above gives it. */
typedef struct dp_item {
    dp_item_kind_t kind;
    uint32_t id;
    uint32_t group;   /* of a key; likewise what an item is about */
    int root, peer;   /* of a key: the two ranks of a send, else -1 */
    const char *name; /* of a key; after a read it lies in name_room */
    uint16_t version;
    uint8_t flags;
    float absmax; /* after a read: negative, or not NaN */
    int32_t priority;
    dp_signature_t *signature, *other; /* after a read: owned, dp_item_fini() */
    int rank, other_rank;
    uint64_t age_ns;
    uint64_t sequence;
    uint32_t count; /* LAUNCH: entries that follow the item's head; CLOSED: KEEPs before it */
    uint64_t position;
    uint32_t absent;
    uint32_t born, group_index; /* the uid and index of a new group */
    const int32_t *list;        /* [list_count]; after a read: in list_room */
    int32_t *list_room;         /* after a read: owned, dp_item_fini() */
    uint32_t list_count;
    dp_status_t status;
    const char *text; /* after a read it lies in text_room */
    uint32_t round;
    uint32_t patience_ms;
    dp_missing_t missing;
    char name_room[DP_ENTRY_NAME_MAX + 1];
    char text_room[DP_ERROR_TEXT_MAX];
} dp_item_t;

void dp_frame_write_header(dp_writer_t *writer, const dp_frame_header_t *header);
/* DP_ERR_UNSUPPORTED: another version (in *version); DP_ERR_INVALID: malformed. */
dp_status_t dp_frame_read_header(dp_reader_t *reader, dp_frame_header_t *header, int *version);

/* Writes all of an item, of LAUNCH only the head. */
void dp_item_write(dp_writer_t *writer, const dp_item_t *item);
void dp_item_write_entry(dp_writer_t *writer, const dp_item_t *entry);
size_t dp_item_bound(const dp_item_t *item); /* no item takes more bytes than this */
/* Nor does an entry with this name and signature (NULL: it carries none). */
size_t dp_item_entry_bound(const char *name, const dp_signature_t *signature);

/* DP_ERR_INVALID: malformed; DP_ERR_NO_MEMORY. On failure nothing is owned. */
dp_status_t dp_item_read(dp_reader_t *reader, dp_item_t *item);
/* The next entry of a LAUNCH, likewise. */
dp_status_t dp_item_read_entry(dp_reader_t *reader, dp_item_t *item);
void dp_item_fini(dp_item_t *item);

float dp_absmax_clean(float absmax);     /* NaN counts as infinite, unknown is -1 */
float dp_absmax_merge(float a, float b); /* unknown on either side: unknown */

#endif
