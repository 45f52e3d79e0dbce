/*
 * submit.h - an operation as the functions of dp.h describe it, on its way to the coordinator.
 *
 * Used on the program's threads only. collectives.c, group.c, gradients_sync.c and
 * coordinator/shards fill in a dp_submit_t; arguments.c checks it, stage.c may replace its tensors,
 * submit.c makes the request.
 */
#ifndef DP_COORDINATOR_SUBMIT_H
#define DP_COORDINATOR_SUBMIT_H

#include "coordinator/api/context/context.h"

typedef struct dp_submit {
    dp_collective_t collective;
    const char *name;
    const dp_tensor_t *tensors; /* [count]; a tensor's count is that of one row, as in dp.h; 0 where
                                   it is known on arrival only */
    size_t count;
    int is_grouped;
    int root, peer; /* ranks of the group; -1: none */
    /* alltoallv, reduce_scatterv, scatterv on its root: [size of the group] elements; else NULL */
    const size_t *counts;
    size_t capacity;             /* of an exchange whose counts vary: elements that fit into out */
    size_t *recv_counts;         /* likewise; may be NULL */
    const dp_options_t *options; /* NULL: the defaults; of any version */
    dp_figures_t *figures;       /* as in dp_pipeline_item_t */
    dp_group_t *new_group; /* group_create: the group that is made, submitted to context->forming */
} dp_submit_t;

/* 1: a tensor that travels so may be submitted again only when its last use is over. */
int dp_submit_needs_last(const dp_group_t *group, dp_wire_t wire);

/* Checks and queues an operation. Takes constant time but for the list of tensors; never waits for
 * another rank. group and what->options may be NULL. */
dp_status_t dp_submit(dp_group_t *group, const dp_submit_t *what, dp_handle_t **handle);

#endif
