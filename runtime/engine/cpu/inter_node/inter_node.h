/*
 * inter_node.h - what the files for traffic between nodes share: buffers, partners, numbers.
 *
 * Ranks of different nodes talk in pairs of partners: local rank l of a node is served on a node of
 * n ranks by local rank l modulo n.
 */
#ifndef DP_ENGINE_CPU_INTER_NODE_H
#define DP_ENGINE_CPU_INTER_NODE_H

#include "runtime/engine/cpu/cpu_internal.h"

#define DP_CHUNK_BYTES ((size_t)256 * DP_KIB) /* of a message, at most; found by measuring */
#define DP_CHUNK_WINDOW 4                     /* chunks in flight per direction and partner */
#define DP_CHUNK_HEAD ((size_t)64)            /* before the elements of a partial sum */

/* Kinds of messages, for the tag. */
enum {
    DP_KIND_PARTIAL = 0, /* a chunk of a node's sum */
    DP_KIND_RESULT = 1,  /* a chunk of the whole result */
    DP_KIND_MOVE = 2,    /* a chunk of somebody's input */
    DP_KIND_TALLY = 3,
    DP_KIND_TOKEN = 4,
    DP_KIND_MANIFESTS = 5, /* of an exchange */
    DP_KIND_BLOCK = 6,     /* a chunk of a block of an exchange */
    DP_KIND_PAIR = 2       /* added to the two above in a send: pairs have no number of their own */
};

/* Goes before each partial sum. */
typedef struct dp_chunk_head {
    uint64_t op;        /* for checking */
    uint32_t last_rank; /* who arrived last on the sender's node */
    uint32_t digest;    /* of the operation, for checking */
} dp_chunk_head_t;
_Static_assert(sizeof(dp_chunk_head_t) <= DP_CHUNK_HEAD, "fits before the elements");

/* A partner, and what this rank sends it partial sums of. */
typedef struct dp_inter_node_target {
    int rank;
    int peer;
    dp_range_t range;
    size_t row;
    size_t chunks;
} dp_inter_node_target_t;

/* A partner that sends chunks to this rank. */
typedef struct dp_inter_node_source {
    int rank;
    int peer;
    int node;
    dp_range_t range;
    size_t chunks;
    size_t posted;    /* receives started */
    size_t delivered; /* taken and done with */
    char *to;         /* moves: where they go, packed */
} dp_inter_node_source_t;

/* Memory that all groups use, one after the other. */
struct dp_inter_node_pool {
    char *buffers; /* one mapping */
    size_t buffers_bytes;
    char *send[DP_CHUNK_WINDOW]; /* each buffer: DP_CHUNK_HEAD + DP_CHUNK_BYTES */
    char *result[DP_CHUNK_WINDOW];
    char *own;              /* this node's partial sum of one chunk */
    char **receive_buffers; /* [2 * nodes * window] received */
    char *leader_blocks;    /* what came from other nodes' first ranks; grows */
    size_t leader_blocks_bytes;
    uint64_t token; /* what a barrier sends */
    void *scratch;  /* engine memory that the node's ranks read moved rows from */
    size_t scratch_bytes;
    float **temps; /* [max(local size, node count)] of DP_TALLY_BLOCK elements */
    float *temps_memory;
};

/* The state of a group for traffic between its nodes. */
struct dp_inter_node {
    dp_inter_node_pool_t *pool; /* borrowed */
    int others;                 /* other nodes */
    int peers;                  /* partners, at least one per other node */
    int *peer_of;   /* [node_count] the link's number of this rank's partner there; own node: -1 */
    int owners;     /* ranks of each node that own a shard: as many as the smallest node has */
    char **partial; /* [nodes * window] received, of the pool */
    char **gather;  /* [nodes * window] received, likewise */
    dp_ucx_link_message_t *sent;     /* [window] */
    dp_ucx_link_message_t *answered; /* [window * nodes] */
    dp_ucx_link_message_t *received; /* [peers * window] */
    dp_ucx_link_message_t *gathered; /* [nodes * window] */
    dp_inter_node_target_t *targets; /* [peers] */
    dp_inter_node_source_t *sources; /* [peers] */
    const char **partials;           /* [node_count] */
};

/* How numbers travel in one operation. */
typedef struct dp_numeric {
    enum { DP_NUMERIC_PLAIN, DP_NUMERIC_WIDE, DP_NUMERIC_WIRE } mode;
    dp_dtype_t partial; /* of partial sums */
    dp_dtype_t result;  /* of results between nodes */
    int wants_tally;
} dp_numeric_t;

dp_numeric_t dp_numeric_choose(const dp_cpu_group_t *group, const dp_engine_op_t *op);

/* The sum over this node's ranks of a range, packed. row: of the inputs; 0 where there is one. */
dp_status_t dp_partial_make(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                            size_t row, char *packed);
/* The result of a range from the nodes' partial sums [node_count], packed. */
void dp_partial_combine(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                        const char *const *partials, char *packed);
/* The same into this rank's own output, with its figures. */
void dp_partial_finish(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                       const char *const *partials);
/* Writes a packed result into the outputs of this node's ranks, counts: with its figures. */
dp_status_t dp_partial_deliver(dp_cpu_group_t *group, const dp_numeric_t *numeric, dp_range_t range,
                               const char *packed, int counts);

/* allreduce, reduce and reduce_scatter, after the arrival (inter_node/reduce.c). */
dp_status_t dp_inter_node_reduce(dp_cpu_group_t *group, dp_engine_op_t *op);
/* broadcast, allgather and barrier (inter_node/move.c). */
dp_status_t dp_inter_node_move(dp_cpu_group_t *group, dp_engine_op_t *op);
/* Sends bytes to the first rank of every other node and receives theirs, in node order: *received
 * is valid until the next call. A node of n ranks gives node_bytes + n * rank_bytes. First ranks
 * only. */
dp_status_t dp_inter_node_leader_allgather(dp_cpu_group_t *group, unsigned kind, const void *data,
                                           size_t node_bytes, size_t rank_bytes,
                                           const char **received);

/* The tag of a message of the running operation from a rank of the group. */
uint64_t dp_inter_node_tag(const dp_cpu_group_t *group, int from, unsigned kind, size_t chunk);
/* This rank's partner on another node, a rank of the group. */
int dp_inter_node_partner(const dp_cpu_group_t *group, int node);
/* The link's number of a rank of the group connected before. */
int dp_inter_node_peer(const dp_cpu_group_t *group, int rank);

dp_status_t dp_inter_node_pool_create(const dp_topology_t *topology, int local_size,
                                      dp_inter_node_pool_t **out, dp_error_t *error);
void dp_inter_node_pool_destroy(dp_inter_node_pool_t *pool); /* after the link; NULL is fine */
dp_status_t dp_inter_node_create(dp_cpu_group_t *group, dp_inter_node_t **out);
void dp_inter_node_find_partners(dp_cpu_group_t *group); /* once they are connected */
void dp_inter_node_destroy(dp_inter_node_t *inter_node); /* NULL is fine */

/* Engine memory of the pool, at least so large, which the other ranks of the node find by this
 * rank's descriptor; for one operation at a time. The second call gives large memory back, after
 * the last barrier. */
dp_status_t dp_inter_node_scratch(dp_cpu_group_t *group, size_t bytes, char **scratch);
void dp_inter_node_scratch_release(dp_cpu_group_t *group);

/* 1: no message of the array is pending; *failed: the first that failed, or -1. */
int dp_inter_node_all_done(const dp_ucx_link_message_t *messages, int count, int *failed);

/* This rank begins to wait for the first messages of other nodes' ranks; *begin_ns: 0 before. */
void dp_inter_node_begin_wait(dp_cpu_group_t *group, uint64_t *begin_ns);
/* All are here: notes that this rank waited since begin_ns, for `last` longest. */
void dp_inter_node_note_wait(dp_cpu_group_t *group, uint64_t begin_ns, int last);

/* DP_ERR_ABORTED, or DP_ERR_PEER_LOST with a text. */
dp_status_t dp_inter_node_lost(dp_cpu_group_t *group, int peer);
/* DP_OK while nobody aborted. */
dp_status_t dp_inter_node_check_abort(const dp_cpu_group_t *group);

#endif
