/*
 * exchange.h - what the files for gather, scatter, alltoall, allgatherv and send share: one
 * running exchange, and the manifests in which ranks tell each other how much they send.
 */
#ifndef DP_ENGINE_CPU_EXCHANGE_H
#define DP_ENGINE_CPU_EXCHANGE_H

#include "runtime/engine/cpu/inter_node/flow.h"

#define DP_STAGING_BYTES DP_MIB /* of one of the two halves of a staging area */

/* Where the ranks of a node find what one of them sends. Its stream is its blocks for them, one
 * after the other, beginning with the rank behind it so that not all copy from the same one. */
typedef enum dp_exchange_method {
    DP_EXCHANGE_NONE = 0,   /* nothing for this node */
    DP_EXCHANGE_EAGER = 1,  /* the stream, in its publication */
    DP_EXCHANGE_DIRECT = 2, /* its input, in its engine memory */
    DP_EXCHANGE_STAGED = 3, /* the stream, in rounds, in its staging area */
    DP_EXCHANGE_PULLED = 4  /* its input, in its process: each receiver reads it there */
} dp_exchange_method_t;

/* A rank's description of an exchange for all others: in its publication, or in the table of its
 * node. */
typedef struct dp_exchange_manifest {
    uint64_t capacity; /* elements that it can take */
    uint32_t drops;
    uint32_t method;
    uint64_t source;   /* direct, staged: offset in its arena; pulled: address */
    uint64_t counts[]; /* [size of the group], or one where all its blocks are alike */
} dp_exchange_manifest_t;

/* Memory that all exchanges use, one after the other. */
struct dp_exchange_pool {
    /* [size of the world]: in shared memory at first, then the copies. */
    const dp_exchange_manifest_t **manifests;
    void *copies; /* of the manifests, which others might change: private, grows */
    size_t copies_bytes;
    size_t *places; /* [size of the world + 1] */
    void *table;    /* engine memory: a node's first rank's manifests of everybody */
    size_t table_bytes;
    char *staging; /* engine memory, two halves; NULL: not needed yet */
    dp_flows_t flows;
};

/* An exchange under way. */
typedef struct dp_exchange_run {
    dp_cpu_group_t *group;
    dp_engine_op_t *op;
    dp_engine_exchange_t *exchange;
    dp_exchange_pool_t *pool;
    int root, peer; /* ranks of the group */
    size_t elem_bytes;
    int is_alike; /* all blocks of a rank are: one count in a manifest */
    size_t manifest_bytes;
    char *scratch; /* blocks from other nodes for all ranks of this one */
} dp_exchange_run_t;

/* manifest.c: elements that rank `from` sends to rank `to`, and how many lie before them in its
 * input. */
size_t dp_exchange_count(const dp_exchange_run_t *run, int from, int to);
size_t dp_exchange_start(const dp_exchange_run_t *run, int from, int to);

static inline int dp_exchange_is_shared(const dp_exchange_run_t *run)
{
    return run->op->collective == DP_COLLECTIVE_ALLGATHERV; /* one block, for everybody */
}

/* ---- Inside the node (exchange/copy.c) ------------------------------------------------------ */

/* Chooses how this node's ranks get this rank's blocks, and publishes what must be there when they
 * arrive. */
dp_status_t dp_exchange_show(dp_exchange_run_t *run, dp_exchange_manifest_t *manifest);
/* Copies what comes from this node, in rounds that its ranks take together. *is_read: 1 when the
 * ranks need another barrier before one of them may change what it published. */
dp_status_t dp_exchange_copy(dp_exchange_run_t *run, int *is_read);

#endif
