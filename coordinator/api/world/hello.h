/*
 * hello.h - what the ranks of a world tell each other first, and what a rank concludes from it.
 *
 * init.c calls these in the order below, in dp_init(), and exchanges the values between them.
 */
#ifndef DP_COORDINATOR_HELLO_H
#define DP_COORDINATOR_HELLO_H

#include "coordinator/api/context/context.h"

#define DP_HELLO_ROOM 4096

typedef struct dp_hello dp_hello_t;

/* Listens, until dp_hello_destroy(), for ranks that try whether they are on this rank's node. */
dp_status_t dp_hello_create(dp_context_t *context, dp_hello_t **out, dp_error_t *error);
void dp_hello_destroy(dp_hello_t *hello); /* NULL is fine */

/* Writes this rank's hello; 0: it does not fit into data. */
size_t dp_hello_write(const dp_hello_t *hello, uint8_t data[DP_HELLO_ROOM]);

/* Reads what all said, values[size]: compares versions and devices, adopts rank 0's plan, and finds
 * which ranks may be on one node. */
dp_status_t dp_hello_read(dp_hello_t *hello, void **values, const size_t *bytes, dp_error_t *error);

/* 1: some node has several ranks, so each of these tries to reach the first. */
int dp_hello_must_try(const dp_hello_t *hello);
/* 1: this rank reaches the first rank of its node. */
int dp_hello_try(const dp_hello_t *hello);

/* Concludes from what all found, values[size]; NULL: no rank tried. A rank that did not reach the
 * first of its node is a node of its own. Makes the topology, and finds how many cores each
 * rank of this machine has for itself and whether all ranks share one network. */
dp_status_t dp_hello_settle(dp_hello_t *hello, void **values, const size_t *bytes,
                            dp_error_t *error);

#endif
