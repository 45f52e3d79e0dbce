/*
 * program.h - order=program: every rank launches its operations in the order in which it submits
 * them, without asking the others. The functions of dp.h call it (coordinator/api) where
 * DP_ORDER=program; else a context has no dp_program_t.
 *
 * Buckets are closed by size and by the program's waits, so they depend on the program alone. Only
 * the program makes the ranks' orders equal; program.c says how a difference is found.
 */
#ifndef DP_COORDINATOR_PROGRAM_H
#define DP_COORDINATOR_PROGRAM_H

#include "coordinator/loop/loop.h"
#include "coordinator/api/names.h"

typedef struct dp_program dp_program_t;

/* A group's operations that will be launched together; guarded by the program's lock. */
typedef struct dp_program_bucket {
    struct dp_program_bucket *next; /* open ones, oldest first */
    dp_handle_t **requests;         /* [count] of [room] in order; owned */
    size_t count, room;
    uint64_t bytes;
    uint64_t hash;
    uint64_t launches; /* of the group so far */
} dp_program_bucket_t;

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

dp_status_t dp_program_create(dp_context_t *context, dp_program_t **out); /* DP_ERR_NO_MEMORY */
void dp_program_destroy(dp_program_t *program);                           /* NULL is fine */
void dp_program_bucket_fini(dp_program_bucket_t *bucket);                 /* zeroed: fine */

/* A live request takes its place in the program's order; launches what that completes. Any
 * thread. */
void dp_program_submit(dp_program_t *program, dp_handle_t *request);

/* The program is about to wait for this request, or for all of a group (NULL: of any group): what
 * is still gathering is launched. Any thread. */
void dp_program_wait(dp_program_t *program, const dp_handle_t *request);
void dp_program_wait_all(dp_program_t *program, dp_group_t *group);

/* The operation that was being agreed on was launched or failed: the postponed ones follow. */
void dp_program_agreed(dp_program_t *program);

/* This rank submits nothing more. */
void dp_program_leave(dp_program_t *program);

/* The engine found that ranks brought different things: the request fails as soon as it is known
 * what differs. 0: the world is over already. */
int dp_program_suspend(dp_program_t *program, dp_handle_t *request, dp_status_t status,
                       const char *text);

/* The world is over: nothing is launched any more, and suspended requests fail. */
void dp_program_stop(dp_program_t *program, dp_status_t status, const char *text);

/* For the loop: what travels with heartbeats. */
dp_loop_peer_check_t dp_program_peer_check(dp_program_t *program);

#endif
