/*
 * host_between.h - what the files for traffic between hosts share: buffers, partners, numbers.
 *
 * Ranks of different hosts talk in pairs of partners: local rank l of a host is served on a host of
 * n ranks by local rank l modulo n.
 */
#ifndef DP_ENGINE_HOST_BETWEEN_H
#define DP_ENGINE_HOST_BETWEEN_H

#include "runtime/engine/host_internal.h"

#define DP_CHUNK_BYTES ((size_t)256 * DP_KIB) /* of a message, at most; found by measuring */
#define DP_CHUNK_WINDOW 4                     /* chunks in flight per direction and partner */
#define DP_CHUNK_HEAD ((size_t)64)            /* before the elements of a partial sum */

/* Kinds of messages, for the tag. */
enum {
    DP_KIND_PARTIAL = 0, /* a chunk of a host's sum */
    DP_KIND_RESULT = 1,  /* a chunk of the whole result */
    DP_KIND_MOVE = 2,    /* a chunk of somebody's input */
    DP_KIND_TALLY = 3,
    DP_KIND_TOKEN = 4
};

/* Goes before each partial sum. */
typedef struct dp_chunk_head {
    uint64_t op;        /* for checking */
    uint32_t last_rank; /* who arrived last on the sender's host */
    uint32_t pad;
} dp_chunk_head_t;
_Static_assert(sizeof(dp_chunk_head_t) <= DP_CHUNK_HEAD, "fits before the elements");

/* A partner, and what this rank sends it partial sums of. */
typedef struct dp_between_target {
    int rank;
    int peer;
    dp_range_t range;
    size_t row;
    size_t chunks;
} dp_between_target_t;

/* A partner that sends chunks to this rank. */
typedef struct dp_between_source {
    int rank;
    int peer;
    int host;
    dp_range_t range;
    size_t chunks;
    size_t posted;    /* receives started */
    size_t delivered; /* taken and done with */
    char *to;         /* moves: where they go, packed */
} dp_between_source_t;

struct dp_between {
    int hosts;     /* other hosts */
    int peers;     /* partners, at least one per other host */
    int *peer_of;  /* [host_count] the link's number of this rank's partner there; own host: -1 */
    int owners;    /* ranks of each host that own a shard: as many as the smallest host has */
    char *buffers; /* one mapping */
    size_t buffers_bytes;
    char *send[DP_CHUNK_WINDOW]; /* each buffer: DP_CHUNK_HEAD + DP_CHUNK_BYTES */
    char *result[DP_CHUNK_WINDOW];
    char *own;                    /* this host's partial sum of one chunk */
    char **partial;               /* [hosts * window] received */
    char **gather;                /* [hosts * window] received */
    dp_link_message_t *sent;      /* [window] */
    dp_link_message_t *answered;  /* [window * hosts] */
    dp_link_message_t *received;  /* [peers * window] */
    dp_link_message_t *gathered;  /* [hosts * window] */
    dp_between_target_t *targets; /* [peers] */
    dp_between_source_t *sources; /* [peers] */
    const char **partials;        /* [host_count] */
    char *swapped;                /* what came from other hosts' first ranks; grows */
    size_t swapped_bytes;
    uint64_t token; /* what a barrier sends */
    void *scratch;  /* engine memory that the host's ranks read moved rows from */
    size_t scratch_bytes;
    float **temps; /* [max(local size, host count)] of DP_TALLY_BLOCK elements */
    float *temps_memory;
};

/* How numbers travel in one operation. */
typedef struct dp_numeric {
    enum { DP_NUMERIC_PLAIN, DP_NUMERIC_WIDE, DP_NUMERIC_WIRE } mode;
    dp_dtype_t partial; /* of partial sums */
    dp_dtype_t result;  /* of results between hosts */
    int wants_tally;
} dp_numeric_t;

dp_numeric_t dp_numeric_choose(const dp_host_engine_t *engine, const dp_engine_op_t *op);

/* The sum over this host's ranks of a range, packed. row: of the inputs; 0 where there is one. */
dp_status_t dp_partial_make(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                            size_t row, char *packed);
/* The result of a range from the hosts' partial sums [host_count], packed. */
void dp_partial_combine(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                        const char *const *partials, char *packed);
/* The same into this rank's own output, with its figures. */
void dp_partial_finish(dp_host_engine_t *engine, const dp_numeric_t *numeric, dp_range_t range,
                       const char *const *partials);
/* Writes a packed result into the outputs of all ranks of this host, with its figures. */
dp_status_t dp_partial_deliver(dp_host_engine_t *engine, const dp_numeric_t *numeric,
                               dp_range_t range, const char *packed);

/* allreduce and reduce_scatter, after the arrival (host_reduce.c). */
dp_status_t dp_between_reduce(dp_host_engine_t *engine, dp_engine_op_t *op);
/* broadcast, allgather and barrier (host_move.c). */
dp_status_t dp_between_move(dp_host_engine_t *engine, dp_engine_op_t *op);
/* Sends bytes to the first rank of every other host and receives theirs, in host order: *received
 * is [hosts * bytes] and valid until the next swap. First ranks only. */
dp_status_t dp_between_swap(dp_host_engine_t *engine, unsigned kind, const void *data, size_t bytes,
                            const char **received);

/* 1: no message of the array is pending; *failed: the first that failed, or -1. */
int dp_between_are_at_rest(const dp_link_message_t *messages, int count, int *failed);

/* Notes that this rank waited since begin_ns, for `last` longest. */
void dp_between_note_wait(dp_host_engine_t *engine, uint64_t begin_ns, int last);

/* DP_ERR_ABORTED, or DP_ERR_PEER_LOST with a text. */
dp_status_t dp_between_lost(dp_host_engine_t *engine, int peer);
/* DP_OK while nobody aborted. */
dp_status_t dp_between_check(const dp_host_engine_t *engine);

#endif
