/*
 * program.h - order=program: every rank launches its operations in the order in which it submits
 * them, without asking the others.
 *
 * Buckets are cut by size and by the program's waits, so they depend on the program alone. Nothing
 * but the program makes the ranks' orders equal; program.c says how a difference is found, and what
 * it can do until then. It must not know how data moves.
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

/* What can be launched in program order, what is agreed on as ever, and what is refused. */
typedef enum dp_program_kind {
    DP_PROGRAM_ORDERED,
    DP_PROGRAM_AGREED, /* barriers, groups made and ended: they wait for all by their nature */
    DP_PROGRAM_REFUSED /* sends and joins: they have no place in an order all ranks share */
} dp_program_kind_t;
dp_program_kind_t dp_program_kind(dp_collective_t collective);

/* 1: what one rank needs of its memory is what all need of theirs, so that each can tell by itself
 * whether the others reduce it where it lies. */
int dp_program_is_even(dp_collective_t collective);

/* Payload of an operation as every rank counts it; UINT64_MAX where that is too much. */
uint64_t dp_program_bytes(const dp_signature_t *signature, int ranks);

dp_status_t dp_program_create(dp_context_t *context, dp_program_t **out); /* DP_ERR_NO_MEMORY */
void dp_program_destroy(dp_program_t *program);                           /* NULL is fine */
void dp_program_bucket_fini(dp_program_bucket_t *bucket);                 /* zeroed: fine */

/* A live request takes its place in the program. Any thread. */
void dp_program_submit(dp_program_t *program, dp_handle_t *request);

/* The program is about to wait for this request, or (NULL) for all of the group; NULL: of any. */
void dp_program_wait(dp_program_t *program, const dp_handle_t *request);
void dp_program_wait_all(dp_program_t *program, dp_group_t *group);

/* The coordinator launched or failed what was agreed on. */
void dp_program_agreed(dp_program_t *program);

/* This rank submits nothing more. */
void dp_program_leave(dp_program_t *program);

/* The engine found that ranks brought different things: the request fails when it is known what.
 * 0: the world is over already. */
int dp_program_suspend(dp_program_t *program, dp_handle_t *request, dp_status_t status,
                       const char *text);

/* The world is over: nothing is launched any more; what was suspended fails. */
void dp_program_stop(dp_program_t *program, dp_status_t status, const char *text);

/* For the loop: what travels with signs of life. */
dp_loop_peer_check_t dp_program_peer_check(dp_program_t *program);

#endif
