/*
 * ring.h - a ring buffer in memory that two processes share: one writes messages, one reads them.
 *
 *      data[]:   ...free... | unread messages ........... | ...free...
 *                           ^ tail: the reader stores it  ^ head: the writer stores it
 *
 *      a message:  | u32 bytes | u32 check | data, padded to 8 |     check mixes bytes and place
 *
 * head and tail count bytes since the beginning and only grow; the low bits are the place in
 * data[]. Each side keeps its own counter in private memory and publishes a copy; the copy of the
 * other side is checked before it is used, because that process may be broken. A message may be
 * longer than the ring: it goes through piece by piece.
 *
 * Used by shm.c on both sides. It must not know which ranks these are, nor how either is woken.
 */
#ifndef DP_TRANSPORT_RING_H
#define DP_TRANSPORT_RING_H

#include <stdatomic.h>

#include "runtime/transport/frame.h"

#define DP_RING_BYTES ((size_t)32 * DP_KIB) /* a power of two */

/* In shared memory; all zero at first. The two counters have cache lines of their own, so that the
 * sides do not slow each other down while both are busy. Both are multiples of 8. */
typedef struct dp_ring {
    _Alignas(64) _Atomic uint64_t head; /* stored by the writer: the data before it can be read */
    _Alignas(64) _Atomic uint64_t tail; /* stored by the reader: the room before it is free */
    _Atomic uint32_t is_awaited;        /* set by a writer that sleeps until there is room; cleared
                                           by the reader that then wakes it */
    _Alignas(64) uint8_t data[DP_RING_BYTES];
} dp_ring_t;
_Static_assert(sizeof(dp_ring_t) == 128 + DP_RING_BYTES, "two processes agree on it");

/* The one thread that writes. */
typedef struct dp_ring_writer {
    dp_ring_t *ring; /* borrowed */
    uint64_t head;
    uint64_t tail; /* the reader's, as last loaded: there is at least this much room */
} dp_ring_writer_t;

/* The one thread that reads. */
typedef struct dp_ring_reader {
    dp_ring_t *ring; /* borrowed */
    uint64_t tail;
    uint8_t *data; /* [room] the message that arrives, or arrived last; owned */
    size_t room;
    size_t bytes; /* of it */
    size_t have;  /* of these, padded, so far */
    int is_open;  /* more of it is to come */
} dp_ring_reader_t;

/* The ring is borrowed, and empty. */
void dp_ring_writer_init(dp_ring_writer_t *writer, dp_ring_t *ring);

/* 1: a message of so many bytes fits as a whole now. */
int dp_ring_fits(dp_ring_writer_t *writer, size_t bytes);

/**
 * Writes as much of a message as there is room for.
 *
 * @param bytes at most DP_FRAME_TOTAL_MAX
 * @param done  where to go on; 0 at first, then what the last call left there
 * @return DP_OK         all of it was written
 *         DP_ERR_PENDING  the rest waits for room
 *         DP_ERR_SYSTEM the reader's place makes no sense
 */
dp_status_t dp_ring_write(dp_ring_writer_t *writer, const void *data, size_t bytes, size_t *done);

/* Says that the writer is about to sleep until there is room. 1: there is room by now. */
int dp_ring_await(dp_ring_writer_t *writer);

/* The ring is borrowed, and empty. DP_ERR_NO_MEMORY. */
dp_status_t dp_ring_reader_init(dp_ring_reader_t *reader, dp_ring_t *ring);
void dp_ring_reader_fini(dp_ring_reader_t *reader); /* zeroed: fine */

/* 1: something lies there that was not read. */
int dp_ring_has(const dp_ring_reader_t *reader);

/**
 * Takes what lies there, up to the end of one message.
 *
 * @param must_wake 1: the writer sleeps until there is room, and there is now; else untouched
 * @return DP_OK            a message: reader->data, reader->bytes, valid until the next call
 *         DP_ERR_PENDING     no whole message yet
 *         DP_ERR_NO_MEMORY a message has no place; nothing after it can be read
 *         DP_ERR_SYSTEM    the ring is damaged; likewise
 */
dp_status_t dp_ring_read(dp_ring_reader_t *reader, int *must_wake);

#endif
