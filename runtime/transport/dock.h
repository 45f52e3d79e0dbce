/*
 * dock.h - memory of a rank in which neighbours on the same machine leave messages, and the bell
 * that wakes it.
 *
 * One ring for each neighbour, who writes, while the owner reads. A dock's address says where in
 * /proc its file and its bell are to be found, so that nobody has to hand anything out: who may
 * open them does, and who may not goes another way. It must not know what messages are.
 */
#ifndef DP_TRANSPORT_DOCK_H
#define DP_TRANSPORT_DOCK_H

#include "runtime/base/error.h"
#include "runtime/transport/ring.h"

#define DP_DOCK_ADDRESS ((size_t)16) /* bytes */

typedef struct dp_dock dp_dock_t;

/**
 * Makes this rank's dock.
 *
 * @param tag   of the job; who opens it must have the same
 * @param ranks [count] neighbours, a ring for each; copied
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM
 */
dp_status_t dp_dock_create(int rank, uint64_t tag, const int *ranks, int count, dp_dock_t **out,
                           dp_error_t *error);

void dp_dock_address(const dp_dock_t *dock, uint8_t address[DP_DOCK_ADDRESS]);

/**
 * Opens the dock of a neighbour: the very one of the address, or none.
 *
 * @param address DP_DOCK_ADDRESS bytes of dp_dock_address() on the other rank
 * @param rank    of the neighbour
 * @param from    this rank: the one whose ring is used
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM; error says what was in the way
 */
dp_status_t dp_dock_open(const uint8_t *address, int rank, int from, uint64_t tag, dp_dock_t **out,
                         dp_error_t *error);

void dp_dock_destroy(dp_dock_t *dock); /* of either kind; NULL is fine */

/* The ring that a rank writes. NULL: there is none. */
dp_ring_t *dp_dock_ring(const dp_dock_t *dock, int from);

/* ---- The owner ---------------------------------------------------------------------------- */

int dp_dock_fd(const dp_dock_t *dock); /* readable when somebody has rung */
void dp_dock_hush(dp_dock_t *dock);    /* until somebody rings again */

/* Says that the owner is about to sleep. Then it looks at its rings once more. */
void dp_dock_lie_down(dp_dock_t *dock);
void dp_dock_get_up(dp_dock_t *dock);

void dp_dock_close(dp_dock_t *dock); /* nothing is read any more */

/* ---- A neighbour -------------------------------------------------------------------------- */

/* After something was left, or room was made that the owner waits for: rings if it sleeps. */
void dp_dock_rouse(dp_dock_t *dock);

int dp_dock_is_closed(const dp_dock_t *dock);

#endif
