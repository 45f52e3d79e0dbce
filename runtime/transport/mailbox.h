/*
 * dock.h - memory of a rank in which neighbours on the same machine leave messages, and the bell
 * that wakes it.
 *
 * One ring for each neighbour, who writes, while the owner reads. A dock's address says where in
 * /proc its file and its bell are to be found, so that nobody has to hand anything out: who may
 * open them does, and who may not goes another way. It must not know what messages are.
 */
#ifndef DP_TRANSPORT_MAILBOX_H
#define DP_TRANSPORT_MAILBOX_H

#include "runtime/base/error.h"
#include "runtime/transport/ring.h"

#define DP_MAILBOX_ADDRESS ((size_t)16) /* bytes */

typedef struct dp_mailbox dp_mailbox_t;

/**
 * Makes this rank's dock.
 *
 * @param tag   of the job; who opens it must have the same
 * @param ranks [count] neighbours, a ring for each; copied
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM
 */
dp_status_t dp_mailbox_create(int rank, uint64_t tag, const int *ranks, int count,
                              dp_mailbox_t **out, dp_error_t *error);

void dp_mailbox_address(const dp_mailbox_t *dock, uint8_t address[DP_MAILBOX_ADDRESS]);

/**
 * Opens the dock of a neighbour: the very one of the address, or none.
 *
 * @param address DP_MAILBOX_ADDRESS bytes of dp_mailbox_address() on the other rank
 * @param rank    of the neighbour
 * @param from    this rank: the one whose ring is used
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM; error says what was in the way
 */
dp_status_t dp_mailbox_open(const uint8_t *address, int rank, int from, uint64_t tag,
                            dp_mailbox_t **out, dp_error_t *error);

void dp_mailbox_destroy(dp_mailbox_t *dock); /* of either kind; NULL is fine */

/* The ring that a rank writes. NULL: there is none. */
dp_ring_t *dp_mailbox_ring(const dp_mailbox_t *dock, int from);

/* ---- The owner ---------------------------------------------------------------------------- */

int dp_mailbox_fd(const dp_mailbox_t *dock);        /* readable when somebody has rung */
void dp_mailbox_clear_doorbell(dp_mailbox_t *dock); /* until somebody rings again */

/* Says that the owner is about to sleep. Then it looks at its rings once more. */
void dp_mailbox_arm(dp_mailbox_t *dock);
void dp_mailbox_disarm(dp_mailbox_t *dock);

void dp_mailbox_close(dp_mailbox_t *dock); /* nothing is read any more */

/* ---- A neighbour -------------------------------------------------------------------------- */

/* After something was left, or room was made that the owner waits for: rings if it sleeps. */
void dp_mailbox_wake(dp_mailbox_t *dock);

int dp_mailbox_is_closed(const dp_mailbox_t *dock);

#endif
