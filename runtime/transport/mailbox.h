/*
 * mailbox.h - memory of one rank into which its neighbours on the same node write messages, and the
 * doorbell that wakes the rank.
 *
 *                    mailbox of rank 3 (a sealed memfd)              doorbell (an eventfd)
 *     +----------+----------------+----------------+---------+      +------------------+
 *     | header   | ring of rank 1 | ring of rank 5 |   ...   |      | rank 3 sleeps    |
 *     | ranks[]  | head ......... |                |         |      | on it            |
 *     | is_asleep| tail           |                |         |      +--------^---------+
 *     |          | data[32 KiB]   |                |         |               |
 *     +----------+----------------+----------------+---------+               |
 *                    ^ rank 1 writes    ^ rank 5 writes                      |
 *                    rank 3 reads all of them     rung only if is_asleep was 1
 *
 * Each neighbour has a ring of its own (ring.h), so a ring has one writer and one reader and needs
 * no lock. An edge of the tree is two rings: each of its ranks writes into the other's mailbox.
 *
 * A mailbox is two descriptors, the file and the doorbell, which neighbours get over UNIX sockets
 * (near.h).
 *
 * Called by shm.c, in the thread that owns the transport; dp_mailbox_wake() and the rings are the
 * parts that several processes use at the same time. It must not know what messages are.
 */
#ifndef DP_TRANSPORT_MAILBOX_H
#define DP_TRANSPORT_MAILBOX_H

#include "runtime/base/error.h"
#include "runtime/transport/ring.h"

#define DP_MAILBOX_FILES 2 /* the file, the doorbell */

typedef struct dp_mailbox dp_mailbox_t;

/**
 * Makes this rank's mailbox.
 *
 * @param tag   of the job; a neighbour that opens it must have the same
 * @param ranks [count] neighbours, a ring for each; copied
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM
 */
dp_status_t dp_mailbox_create(int rank, uint64_t tag, const int *ranks, int count,
                              dp_mailbox_t **out, dp_error_t *error);

/* Its descriptors, for neighbours; borrowed until it is destroyed. */
void dp_mailbox_files(const dp_mailbox_t *mailbox, int files[DP_MAILBOX_FILES]);

/**
 * Opens the mailbox of a neighbour.
 *
 * @param files   copies of dp_mailbox_files() of the other rank; taken, also on an error
 * @param rank    of the neighbour
 * @param from    this rank: the one whose ring is used
 * @return DP_OK, DP_ERR_NO_MEMORY, DP_ERR_SYSTEM; error says what was in the way
 */
dp_status_t dp_mailbox_open(const int files[DP_MAILBOX_FILES], int rank, int from, uint64_t tag,
                            dp_mailbox_t **out, dp_error_t *error);

void dp_mailbox_destroy(dp_mailbox_t *mailbox); /* own or opened; NULL is fine */

/* The ring that a rank writes; valid until the mailbox is destroyed. NULL: there is none. */
dp_ring_t *dp_mailbox_ring(const dp_mailbox_t *mailbox, int from);

/* ---- For the owner -------------------------------------------------------------------------- */

int dp_mailbox_fd(const dp_mailbox_t *mailbox); /* readable once the doorbell has rung */

/* Empties the doorbell: fd() is readable again only after another ring. */
void dp_mailbox_clear_doorbell(dp_mailbox_t *mailbox);

/* Declares that the owner is about to sleep, so neighbours ring from now on. The owner must look
 * at all its rings after this call, before it sleeps. */
void dp_mailbox_arm(dp_mailbox_t *mailbox);
/* Declares that it is awake: neighbours save the system call. */
void dp_mailbox_disarm(dp_mailbox_t *mailbox);

void dp_mailbox_close(dp_mailbox_t *mailbox); /* nothing is read any more */

/* ---- For a neighbour ------------------------------------------------------------------------ */

/* Rings the doorbell if the owner is asleep. Call it after writing to the ring, and after making
 * room in a ring that the owner waits to write. */
void dp_mailbox_wake(dp_mailbox_t *mailbox);

int dp_mailbox_is_closed(const dp_mailbox_t *mailbox);

#endif
