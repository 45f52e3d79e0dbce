/*
 * ring.c - a ring buffer in memory that two processes share: one writes messages, one reads them.
 * ring.h has the picture, shm.c calls it on the thread that owns the transport.
 *
 * A message is a header of 8 bytes and its data, padded to a multiple of 8, so that a header never
 * lies across the end. The header holds the length, and the length once more mixed with its place.
 * So the remains of an earlier lap, or bytes that a stray pointer wrote, are not taken for a
 * header.
 *
 * Two pairs of accesses are Dekker's algorithm: each side stores, then loads what the other stores.
 * All of them are sequentially consistent, so at least one of the two sees the other.
 *
 *     waiting for a message (see mailbox.c):  writer: head, then is_asleep
 *                                             reader: is_asleep, then head
 *     waiting for room:                       writer: is_awaited, then tail  (dp_ring_await)
 *                                             reader: tail, then is_awaited  (publish_tail)
 */
#include "runtime/transport/ring.h"

#include <stdlib.h>
#include <string.h>

#define HEADER ((size_t)8)
#define UNIT ((size_t)8)
#define KEPT ((size_t)4 * DP_KIB) /* a larger buffer is given back after its message */
#define MIX 0x64707267u           /* "dprg" */

_Static_assert((DP_RING_BYTES & (DP_RING_BYTES - 1)) == 0, "places wrap by a mask");

static uint32_t mixed_length(uint32_t bytes, uint64_t place)
{
    return (bytes + (uint32_t)place) ^ MIX;
}

static void copy_in(dp_ring_t *ring, uint64_t place, const uint8_t *data, size_t bytes)
{
    const size_t at = (size_t)place & (DP_RING_BYTES - 1);
    const size_t first = dp_min(bytes, DP_RING_BYTES - at);

    memcpy(ring->data + at, data, first);
    if (bytes > first) memcpy(ring->data, data + first, bytes - first);
}

static void copy_out(const dp_ring_t *ring, uint64_t place, uint8_t *data, size_t bytes)
{
    const size_t at = (size_t)place & (DP_RING_BYTES - 1);
    const size_t first = dp_min(bytes, DP_RING_BYTES - at);

    memcpy(data, ring->data + at, first);
    if (bytes > first) memcpy(data + first, ring->data, bytes - first);
}

/* ---- Writing -------------------------------------------------------------------------------- */

void dp_ring_writer_init(dp_ring_writer_t *writer, dp_ring_t *ring)
{
    *writer = (dp_ring_writer_t){.ring = ring};
}

static int is_sane(const dp_ring_writer_t *writer)
{
    return writer->head - writer->tail <= DP_RING_BYTES && writer->tail % UNIT == 0;
}

/* How many bytes can be written. The private copy of tail answers as long as it says enough:
 * loading the reader's would move its cache line here for every message. 0 where the reader's tail
 * is impossible; the next write reports that. */
static size_t room(dp_ring_writer_t *writer, size_t wished)
{
    size_t left = DP_RING_BYTES - (size_t)(writer->head - writer->tail);

    if (left >= wished) return left;
    writer->tail = atomic_load(&writer->ring->tail); /* pairs with the reader's publish_tail() */
    return is_sane(writer) ? DP_RING_BYTES - (size_t)(writer->head - writer->tail) : 0;
}

int dp_ring_fits(dp_ring_writer_t *writer, size_t bytes)
{
    const size_t whole = HEADER + dp_align_up(bytes, UNIT);

    return is_sane(writer) && whole <= DP_RING_BYTES && room(writer, whole) >= whole;
}

dp_status_t dp_ring_write(dp_ring_writer_t *writer, const void *data, size_t bytes, size_t *done)
{
    const size_t whole = HEADER + dp_align_up(bytes, UNIT);
    size_t from = *done - HEADER; /* in the data; its beginning if this is the first piece */
    size_t part, payload;

    if (!is_sane(writer)) return DP_ERR_SYSTEM;
    part = room(writer, whole - *done);
    if (!is_sane(writer)) return DP_ERR_SYSTEM;
    part = dp_min(part, whole - *done);
    if (part == 0) return DP_ERR_PENDING;
    if (*done == 0) {
        const uint32_t header[2] = {(uint32_t)bytes, mixed_length((uint32_t)bytes, writer->head)};

        copy_in(writer->ring, writer->head, (const uint8_t *)header, HEADER);
        writer->head += HEADER;
        part -= HEADER;
        *done = HEADER;
        from = 0;
    }
    payload = dp_min(part, bytes - from); /* the padding is whatever lies there */
    if (payload > 0) copy_in(writer->ring, writer->head, (const uint8_t *)data + from, payload);
    writer->head += part;
    *done += part;
    /* Pairs with dp_ring_read() (the data is there) and with dp_ring_has(): the caller's next step
     * is dp_mailbox_wake(), which loads is_asleep. Hence sequentially consistent, not release. */
    atomic_store(&writer->ring->head, writer->head);
    return *done == whole ? DP_OK : DP_ERR_PENDING;
}

int dp_ring_await(dp_ring_writer_t *writer)
{
    atomic_store(&writer->ring->is_awaited,
                 1); /* pairs with publish_tail(), as does the load of tail */
    writer->tail = atomic_load(&writer->ring->tail);
    /* An impossible tail counts as room: the next write reports it. */
    return !is_sane(writer) || writer->head - writer->tail < DP_RING_BYTES;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static dp_status_t set_room(dp_ring_reader_t *reader, size_t bytes)
{
    free(reader->data);
    reader->data = malloc(bytes);
    reader->room = reader->data == NULL ? 0 : bytes;
    return reader->data == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

dp_status_t dp_ring_reader_init(dp_ring_reader_t *reader, dp_ring_t *ring)
{
    *reader = (dp_ring_reader_t){.ring = ring};
    return set_room(reader, KEPT);
}

void dp_ring_reader_fini(dp_ring_reader_t *reader)
{
    free(reader->data);
    *reader = (dp_ring_reader_t){0};
}

int dp_ring_has(const dp_ring_reader_t *reader)
{
    /* Pairs with dp_ring_write(). Sequentially consistent, as the caller has just armed its
     * mailbox. */
    return atomic_load(&reader->ring->head) != reader->tail;
}

/* Reads the header at tail, which may be anything, and makes room for its message. */
static dp_status_t open_message(dp_ring_reader_t *reader)
{
    uint32_t header[2];

    copy_out(reader->ring, reader->tail, (uint8_t *)header, HEADER);
    if (header[0] > DP_FRAME_TOTAL_MAX || header[1] != mixed_length(header[0], reader->tail))
        return DP_ERR_SYSTEM;
    reader->bytes = header[0];
    reader->have = 0;
    reader->is_open = 1;
    reader->tail += HEADER;
    if (reader->bytes <= KEPT && reader->room == KEPT) return DP_OK;
    return set_room(reader, dp_max(reader->bytes, KEPT));
}

/* Gives the room before tail back: its data was copied. *must_wake = 1 where the writer waits for
 * it. */
static void publish_tail(const dp_ring_reader_t *reader, int *must_wake)
{
    atomic_store(&reader->ring->tail, reader->tail); /* pairs with room() and dp_ring_await() */
    /* The load first: an exchange for every message would double the cost. */
    if (atomic_load(&reader->ring->is_awaited) != 0 &&
        atomic_exchange(&reader->ring->is_awaited, 0) != 0) {
        *must_wake = 1;
    }
}

dp_status_t dp_ring_read(dp_ring_reader_t *reader, int *must_wake)
{
    /* Pairs with the store in dp_ring_write(): what lies before head is written. */
    const uint64_t head = atomic_load_explicit(&reader->ring->head, memory_order_acquire);
    const uint64_t unread = head - reader->tail;
    size_t left, part, payload;
    dp_status_t status = DP_OK;

    if (unread == 0) return DP_ERR_PENDING;
    if (unread > DP_RING_BYTES || unread % UNIT != 0) return DP_ERR_SYSTEM;
    if (!reader->is_open) status = open_message(reader);
    if (status != DP_OK) return status;
    left = dp_align_up(reader->bytes, UNIT) - reader->have;
    part = dp_min((size_t)(head - reader->tail), left);
    payload = dp_min(part, reader->bytes - reader->have); /* the padding stays behind */
    if (payload > 0) copy_out(reader->ring, reader->tail, reader->data + reader->have, payload);
    reader->tail += part;
    reader->have += part;
    reader->is_open = part < left;
    publish_tail(reader, must_wake);
    return reader->is_open ? DP_ERR_PENDING : DP_OK;
}
