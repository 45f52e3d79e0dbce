/*
 * program.h - order=program: every rank launches its operations in the order in which it submits
 * them, without asking the others. The functions of dp.h call it (coordinator/api) where
 * DP_ORDER=program; else a context has no dp_program_t.
 *
 * Buckets are closed by size, by launch_now and by the program's waits, so they depend on the
 * program alone. Only the program makes the ranks' orders equal; program.c says how a difference is
 * found.
 */
#ifndef DP_COORDINATOR_PROGRAM_H
#define DP_COORDINATOR_PROGRAM_H

#include "coordinator/loop/loop.h"
#include "runtime/group/topology.h"

typedef struct dp_program dp_program_t;

typedef struct dp_program_op dp_program_op_t;

/* A group's operations that will be launched together; guarded by the program's lock. */
typedef struct dp_program_bucket {
    struct dp_program_bucket *next; /* open ones, oldest first */
    dp_program_op_t **ops;          /* [count] of [room] in order; owned */
    size_t count, room;
    uint64_t bytes;
    uint64_t hash;
    uint64_t launches; /* of the group so far */
} dp_program_bucket_t;

/* One operation, in the memory of its request: it is there until the operation is over. */
struct dp_program_op {
    dp_loop_node_t *node;        /* what was submitted; submission.request is the request */
    dp_program_bucket_t *bucket; /* of its group */
    int ranks;                   /* of its group */
    uint64_t ticket;             /* no other operation ever has this number */
    dp_program_op_t *next;       /* suspended ones; guarded by the program's lock */
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

/* Which operations are launched in program order, which are agreed on, which are refused. */
typedef enum dp_program_kind {
    DP_PROGRAM_ORDERED,
    DP_PROGRAM_AGREED, /* barriers, groups made and ended: they wait for all ranks anyway */
    DP_PROGRAM_REFUSED /* sends and joins: no order that all ranks share can hold them */
} dp_program_kind_t;
dp_program_kind_t dp_program_kind(dp_collective_t collective);

/* 1: every rank's memory has to meet the same conditions, so each rank can tell by itself whether
 * the others reduce the tensor in place. */
int dp_program_is_even(dp_collective_t collective);

/* Payload of an operation as every rank counts it; UINT64_MAX where that is too much. */
uint64_t dp_program_bytes(const dp_signature_t *signature, int ranks);

dp_status_t dp_program_create(const dp_program_options_t *options,
                              dp_program_t **out);        /* DP_ERR_NO_MEMORY */
void dp_program_destroy(dp_program_t *program);           /* NULL is fine */
void dp_program_bucket_fini(dp_program_bucket_t *bucket); /* zeroed: fine */

/* The loop (borrowed) that sends and hears the heartbeats of dp_program_peer_check(), and agrees on
 * what is not launched in program order. Once, before the first operation is submitted. */
void dp_program_set_loop(dp_program_t *program, dp_loop_t *loop);

/* An operation takes its place in the program's order; launches what that completes. Any thread. */
void dp_program_submit(dp_program_t *program, dp_program_op_t *op);

/* The program is about to wait for this operation, or for all of a group (its bucket; NULL: of any
 * group): what is still gathering is launched. Any thread. */
void dp_program_wait(dp_program_t *program, const dp_program_op_t *op);
void dp_program_wait_all(dp_program_t *program, dp_program_bucket_t *bucket);

/* The operation that was being agreed on was launched or failed: the postponed ones follow. */
void dp_program_agreed(dp_program_t *program);

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
