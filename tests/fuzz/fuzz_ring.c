/*
 * fuzz_ring.c - any bytes and places in a ring that another process writes, and honest messages in
 * between.
 *
 * An input is a row of steps, a byte each and what it needs: bytes put anywhere, a place moved, an
 * honest message, a read. What is read is copied out of exactly so much memory as it says.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "runtime/transport/ring.h"

static volatile unsigned sum;

/* 0: nothing more can be read. */
static int read_all(dp_ring_reader_t *reader)
{
    /* what one who is not broken can have left at most, and one piece */
    for (size_t i = 0; i <= DP_RING_BYTES / 8 + 1; i++) {
        int frees = 0;
        const dp_status_t status = dp_ring_read(reader, &frees);

        if (status == DP_ERR_PENDING) {
            if (dp_ring_has(reader)) abort(); /* it takes all there is */
            return 1;
        }
        if (status != DP_OK) return 0;
        if (reader->bytes > DP_FRAME_TOTAL_MAX || reader->bytes > reader->room) abort();
        for (size_t k = 0; k < reader->bytes; k++)
            sum += reader->data[k];
    }
    abort(); /* more than the ring holds */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    dp_ring_t *ring = aligned_alloc(64, sizeof(*ring));
    dp_ring_reader_t reader;
    dp_ring_writer_t writer;
    int goes_on = 1;

    if (ring == NULL) return 0;
    memset(ring, 0, sizeof(*ring));
    dp_ring_writer_init(&writer, ring);
    goes_on = dp_ring_reader_init(&reader, ring) == DP_OK;
    while (goes_on && input.bytes > 0) {
        const uint8_t step = (uint8_t)fuzz_number(&input, 1);
        size_t at, got, done = 0;
        const uint8_t *part;

        switch (step % 6) {
        case 0: /* bytes anywhere */
            at = (size_t)fuzz_number(&input, 2) % DP_RING_BYTES;
            part = fuzz_take(&input, fuzz_number(&input, 1), &got);
            memcpy(ring->data + at, part, dp_min(got, DP_RING_BYTES - at));
            break;
        case 1: /* a place, near where the reader stands or not */
            at = (size_t)fuzz_number(&input, step & 0x40 ? 8 : 2);
            atomic_store(&ring->head, step & 0x80 ? at : reader.tail + at);
            break;
        case 2:
            atomic_store(&ring->tail, fuzz_number(&input, step & 0x40 ? 8 : 2));
            break;
        case 3: /* an honest message, if the writer is still believed */
            part = fuzz_take(&input, fuzz_number(&input, 2), &got);
            (void)dp_ring_write(&writer, part, got, &done);
            break;
        case 4: /* the beginning of one that claims to be longer */
            at = (size_t)fuzz_number(&input, 3);
            part = calloc(1, at + 1);
            if (part != NULL) (void)dp_ring_write(&writer, part, at, &done);
            free((void *)(uintptr_t)part);
            break;
        default:
            goes_on = read_all(&reader);
            break;
        }
    }
    if (goes_on) (void)read_all(&reader);
    dp_ring_reader_fini(&reader);
    free(ring);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t messages[] = {3, 5, 0, 'h', 'e', 'l', 'l', 'o', 5,
                                       3, 0, 0, 3,   1,   0,   'x', 5};
    static const uint8_t long_one[] = {4, 0, 0, 1, 5, 3, 2, 0, 'a', 'b', 5};
    static const uint8_t stray[] = {3, 2, 0, 'a', 'b', 0, 0, 0, 4, 9, 9, 9, 9, 5};
    static const uint8_t place[] = {1, 16, 0, 5, 0x81, 8, 0, 2, 8, 0, 3, 1, 0, 'x'};
    static const struct {
        const uint8_t *data;
        size_t bytes;
    } seeds[] = {{messages, sizeof(messages)},
                 {long_one, sizeof(long_one)},
                 {stray, sizeof(stray)},
                 {place, sizeof(place)}};

    if (which >= DP_ARRAY_LEN(seeds) || seeds[which].bytes > room) return 0;
    memcpy(data, seeds[which].data, seeds[which].bytes);
    return seeds[which].bytes;
}
