/*
 * program.h - ordered groups (DP_ORDER_PROGRAM): every rank launches a group's operations in the
 * order in which it submits them, without asking the others. The functions of dp.h call it
 * (coordinator/api) for groups that were made so; it knows nothing of other groups.
 *
 * Buckets are closed by size, by launch_now and by the program's waits, so they depend on the
 * program alone. Only the program makes the ranks' orders equal; program.c says how a difference is
 * found.
 */
#ifndef DP_COORDINATOR_PROGRAM_H
#define DP_COORDINATOR_PROGRAM_H

#include "coordinator/loop/loop.h"
#include "coordinator/program/chain.h"
#include "runtime/group/topology.h"

typedef struct dp_program dp_program_t;
typedef struct dp_program_op dp_program_op_t;

/* An ordered group: the operations that it will launch together, and its history. Zeroed at first;
 * guarded by the program's lock from dp_program_add_group() on. */
typedef struct dp_program_group {
    struct dp_program_group *next; /* the program's, by the order of creation */
    uint32_t uid;
    int size;              /* ranks */
    const char *name;      /* borrowed */
    dp_program_op_t **ops; /* the open bucket: [op_count] of [op_room] in order; owned */
    size_t op_count, op_room;
    uint64_t bytes; /* of these */
    uint64_t hash;
    uint64_t launches; /* so far */
    dp_chain_t chain;
} dp_program_group_t;

/* One operation, in the memory of its request: it is there until the operation is over. */
struct dp_program_op {
    const dp_submission_t *submission; /* submission->request is the request */
    dp_program_group_t *group;         /* NULL: the ranks agree on it */
    dp_program_op_t *next;             /* suspended ones; guarded by the program's lock */
};

/* The functions of dp.h, as program order sees them (coordinator/api/world/init.c). */
typedef struct dp_program_callbacks {
    void *user;
    /* Hands a launch to the data plane, and marks it in the track of the timeline. The program's
     * lock is held. digest: the engines of the ranks compare it. */
    void (*launch)(void *user, const dp_output_t *launch, uint64_t digest, dp_trace_track_t *track);
    /* A suspended operation fails. No lock is held. */
    void (*fail)(void *user, void *request, dp_status_t status, const char *text);
    /* 1: the request is neither launched nor over. Any thread. */
    int (*is_pending)(const void *request);
} dp_program_callbacks_t;

typedef struct dp_program_options {
    size_t fusion_bytes;           /* of a bucket, at most */
    int rank;                      /* of the world */
    const dp_topology_t *topology; /* borrowed */
    dp_trace_t *trace;             /* borrowed; may be NULL */
    dp_program_callbacks_t callbacks;
} dp_program_options_t;

/* Which operations of an ordered group are launched in its order, which are agreed on, which go
 * straight to the engine (coordinator/api/operation/direct.c), which are refused. */
typedef enum dp_program_kind {
    DP_PROGRAM_ORDERED,
    DP_PROGRAM_AGREED, /* barriers, groups made and ended: they wait for all ranks anyway */
    DP_PROGRAM_DIRECT, /* sends: their order is that of their two ranks, and no other rank's */
    DP_PROGRAM_REFUSED /* joins: no order that all ranks share can hold them */
} dp_program_kind_t;
dp_program_kind_t dp_program_kind(dp_collective_t collective);

/* 1: every rank's memory has to meet the same conditions, so each rank can tell by itself whether
 * the others reduce the tensor in place. */
int dp_program_is_even(dp_collective_t collective);

dp_status_t dp_program_create(const dp_program_options_t *options,
                              dp_program_t **out); /* DP_ERR_NO_MEMORY */
void dp_program_destroy(dp_program_t *program);    /* NULL is fine */

/* The loop (borrowed) that sends and hears the heartbeats of dp_program_peer_check(). Once, before
 * the first operation is submitted. */
void dp_program_set_loop(dp_program_t *program, dp_loop_t *loop);

/* A group is ordered from here on; uid, size and name are set. DP_ERR_NO_MEMORY. Any thread. */
dp_status_t dp_program_add_group(dp_program_t *program, dp_program_group_t *group);
/* It has ended: none of its operations is left. Nothing if it was not added. */
void dp_program_remove_group(dp_program_t *program, dp_program_group_t *group);
void dp_program_group_fini(dp_program_group_t *group); /* zeroed: fine */

/* An operation takes its place in its group's order; launches what that completes. Any thread. */
void dp_program_submit(dp_program_t *program, dp_program_op_t *op);

/* The program is about to wait for this operation, or for all of a group (NULL: of any group): what
 * is still gathering is launched. Any thread. */
void dp_program_wait(dp_program_t *program, const dp_program_op_t *op);
void dp_program_wait_all(dp_program_t *program, dp_program_group_t *group);

/* This rank submits nothing more. */
void dp_program_leave(dp_program_t *program);

/* The engine found that ranks brought different things: the operation fails as soon as it is known
 * what differs. 0: the world is over already. */
int dp_program_suspend(dp_program_t *program, dp_program_op_t *op, dp_status_t status,
                       const char *text);

/* The world is over: nothing is launched any more, and suspended operations fail. */
void dp_program_stop(dp_program_t *program, dp_status_t status, const char *text);

/* For the loop: what travels with heartbeats. */
dp_loop_peer_check_t dp_program_peer_check(dp_program_t *program);

#endif
