/*
 * exchange.h - what the files for gather, scatter, alltoall, allgatherv and send share: one
 * running exchange, and the manifests in which ranks tell each other how much they send.
 */
#ifndef DP_ENGINE_CPU_EXCHANGE_H
#define DP_ENGINE_CPU_EXCHANGE_H

#include "runtime/engine/cpu/inter_node/flow.h"

/* Where the ranks of a node find the input of one of them. */
typedef enum dp_exchange_method {
    DP_EXCHANGE_NONE = 0,   /* it has nothing for this node */
    DP_EXCHANGE_EAGER = 1,  /* a copy in its publication */
    DP_EXCHANGE_SHARED = 2, /* in its engine memory, or a copy there */
    DP_EXCHANGE_PULLED = 3  /* in its process: each receiver reads it there */
} dp_exchange_method_t;

/* A rank's description of an exchange for all others: in its publication, or in the table of its
 * node. */
typedef struct dp_exchange_manifest {
    uint64_t capacity; /* elements that it can take */
    uint32_t drops;
    uint32_t method;
    uint64_t source;   /* shared: offset in its arena; pulled: address */
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
    void *copy; /* engine memory, of an input that the others cannot read */
    size_t copy_bytes;
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
/* Copies what comes from this node. *is_read: 1 when the ranks need another barrier before one of
 * them may change what it published. */
dp_status_t dp_exchange_copy(dp_exchange_run_t *run, int *is_read);
/* Gives a large copy back, after that barrier. */
void dp_exchange_forget_copy(dp_exchange_run_t *run);

#endif
