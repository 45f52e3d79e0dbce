/*
 * test_transport_ring.c - the ring of control messages: laps, long messages, a full ring, and what
 * a broken process may leave in it.
 */
#include "runtime/transport/ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

typedef struct pair {
    dp_ring_t *ring;
    dp_ring_writer_t writer;
    dp_ring_reader_t reader;
} pair_t;

static void pair_open(pair_t *pair)
{
    pair->ring = aligned_alloc(64, sizeof(*pair->ring));
    assert_non_null(pair->ring);
    memset(pair->ring, 0, sizeof(*pair->ring));
    dp_ring_writer_init(&pair->writer, pair->ring);
    assert_int_equal(dp_ring_reader_init(&pair->reader, pair->ring), DP_OK);
}

static void pair_close(pair_t *pair)
{
    dp_ring_reader_fini(&pair->reader);
    free(pair->ring);
}

static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 131 + seed + (i >> 8));
}

static dp_status_t write_whole(pair_t *pair, const void *data, size_t bytes)
{
    size_t done = 0;

    return dp_ring_write(&pair->writer, data, bytes, &done);
}

static void expect_message(pair_t *pair, const uint8_t *data, size_t bytes)
{
    int frees = 0;

    assert_int_equal(dp_ring_read(&pair->reader, &frees), DP_OK);
    assert_int_equal(frees, 0);
    assert_int_equal(pair->reader.bytes, bytes);
    if (bytes > 0) assert_memory_equal(pair->reader.data, data, bytes);
}

static void messages_come_out_as_they_went_in(void **state)
{
    uint8_t *data = malloc(5000);
    unsigned seed = 7;
    pair_t pair;
    int frees = 0;

    (void)state;
    pair_open(&pair);
    assert_int_equal(dp_ring_has(&pair.reader), 0);
    assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_ERR_PENDING);
    for (unsigned lap = 0; lap < 2000; lap++) { /* many times round */
        const size_t sizes[] = {(size_t)rand_r(&seed) % 5000, 0, (size_t)rand_r(&seed) % 20};

        for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
            fill(data, sizes[i], lap + (unsigned)i);
            assert_true(dp_ring_fits(&pair.writer, sizes[i]));
            assert_int_equal(write_whole(&pair, data, sizes[i]), DP_OK);
        }
        assert_int_equal(dp_ring_has(&pair.reader), 1);
        for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
            fill(data, sizes[i], lap + (unsigned)i);
            expect_message(&pair, data, sizes[i]);
        }
        assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_ERR_PENDING);
        assert_int_equal(dp_ring_has(&pair.reader), 0);
    }
    pair_close(&pair);
    free(data);
}

static void message_longer_than_the_ring_goes_through_in_pieces(void **state)
{
    static const size_t sizes[] = {DP_RING_BYTES - 8,     DP_RING_BYTES - 7, DP_RING_BYTES,
                                   3 * DP_RING_BYTES + 5, DP_MESSAGE_MAX,    DP_FRAME_TOTAL_MAX};
    uint8_t *data = malloc(DP_FRAME_TOTAL_MAX);
    pair_t pair;

    (void)state;
    pair_open(&pair);
    assert_int_equal(write_whole(&pair, "abc", 3), DP_OK); /* not at the beginning */
    expect_message(&pair, (const uint8_t *)"abc", 3);
    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        const int fits = sizes[i] <= DP_RING_BYTES - 8;
        size_t done = 0, pieces = 1;
        dp_status_t status;

        fill(data, sizes[i], (unsigned)i);
        assert_int_equal(dp_ring_fits(&pair.writer, sizes[i]), fits);
        while ((status = dp_ring_write(&pair.writer, data, sizes[i], &done)) == DP_ERR_PENDING) {
            int frees = 0;

            assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_ERR_PENDING);
            pieces++;
        }
        assert_int_equal(status, DP_OK);
        assert_int_equal(pieces > 1, !fits);
        expect_message(&pair, data, sizes[i]);
    }
    pair_close(&pair);
    free(data);
}

static void full_ring_says_when_there_is_room(void **state)
{
    const uint8_t data[1000] = {1, 2, 3};
    size_t count = 0, done = 0;
    pair_t pair;
    int frees = 0;

    (void)state;
    pair_open(&pair);
    while (dp_ring_fits(&pair.writer, sizeof(data))) {
        assert_int_equal(write_whole(&pair, data, sizeof(data)), DP_OK);
        count++;
    }
    assert_int_equal(count, DP_RING_BYTES / 1008);
    while (dp_ring_write(&pair.writer, data, 8, &done) == DP_OK)
        done = 0;
    assert_int_equal(dp_ring_await(&pair.writer), 0);
    assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_OK);
    assert_int_equal(frees, 1); /* once: nobody waits any more */
    frees = 0;
    assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_OK);
    assert_int_equal(frees, 0);
    assert_int_equal(dp_ring_await(&pair.writer), 1); /* no need to sleep */
    assert_true(dp_ring_fits(&pair.writer, sizeof(data)));
    pair_close(&pair);
}

/* Half a message is none, however long it is looked at. */
static void half_a_message_is_none(void **state)
{
    static uint8_t data[2 * DP_RING_BYTES];
    size_t done = 0;
    pair_t pair;
    int frees = 0;

    (void)state;
    pair_open(&pair);
    assert_int_equal(dp_ring_write(&pair.writer, data, sizeof(data), &done), DP_ERR_PENDING);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_ERR_PENDING);
    pair_close(&pair);
}

/* ---- Damage --------------------------------------------------------------------------------- */

static void expect_damage(pair_t *pair)
{
    int frees = 0;

    assert_int_equal(dp_ring_read(&pair->reader, &frees), DP_ERR_SYSTEM);
    pair_close(pair);
}

static void place_that_makes_no_sense_is_damage(void **state)
{
    static const uint64_t heads[] = {DP_RING_BYTES + 8, 4, 13, UINT64_MAX, UINT64_MAX - 7,
                                     (uint64_t)1 << 63};
    pair_t pair;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(heads); i++) {
        pair_open(&pair);
        atomic_store(&pair.ring->head, heads[i]);
        expect_damage(&pair);
    }
    /* it may not go back either */
    pair_open(&pair);
    assert_int_equal(write_whole(&pair, "abc", 3), DP_OK);
    expect_message(&pair, (const uint8_t *)"abc", 3);
    atomic_store(&pair.ring->head, 8);
    expect_damage(&pair);
}

static void header_that_makes_no_sense_is_damage(void **state)
{
    pair_t pair;

    (void)state;
    /* a length that is not confirmed */
    for (size_t byte = 0; byte < 8; byte++) {
        pair_open(&pair);
        assert_int_equal(write_whole(&pair, "abcdefgh", 8), DP_OK);
        pair.ring->data[byte] ^= 0x10;
        expect_damage(&pair);
    }
    /* nothing at all */
    pair_open(&pair);
    atomic_store(&pair.ring->head, 64);
    expect_damage(&pair);
    /* a good one of an earlier lap */
    pair_open(&pair);
    assert_int_equal(write_whole(&pair, "abcdefgh", 8), DP_OK);
    expect_message(&pair, (const uint8_t *)"abcdefgh", 8);
    memcpy(pair.ring->data + 16, pair.ring->data, 16);
    atomic_store(&pair.ring->head, 32);
    expect_damage(&pair);
}

static void length_over_the_limit_is_damage(void **state)
{
    static uint8_t data[DP_RING_BYTES]; /* as much as goes in */
    size_t done = 0;
    pair_t pair;

    (void)state;
    pair_open(&pair); /* the writer of a broken process confirms anything */
    assert_int_equal(dp_ring_write(&pair.writer, data, DP_FRAME_TOTAL_MAX + 1, &done),
                     DP_ERR_PENDING);
    expect_damage(&pair);
}

static void reader_that_makes_no_sense_stops_the_writer(void **state)
{
    static const uint64_t tails[] = {8, 4, DP_RING_BYTES + 8, 12, UINT64_MAX - 7};
    static uint8_t data[2 * DP_RING_BYTES];

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(tails); i++) {
        size_t done = 0;
        pair_t pair;

        pair_open(&pair);
        if (i < 2) {
            /* it has read more than there is, as far as the writer knows */
            atomic_store(&pair.ring->tail, tails[i]);
            assert_int_equal(dp_ring_write(&pair.writer, data, sizeof(data), &done), DP_ERR_SYSTEM);
        } else {
            assert_int_equal(dp_ring_write(&pair.writer, data, sizeof(data), &done),
                             DP_ERR_PENDING);
            atomic_store(&pair.ring->tail, tails[i]);
            assert_int_equal(dp_ring_await(&pair.writer), 1); /* do not sleep over it */
            assert_int_equal(dp_ring_write(&pair.writer, data, sizeof(data), &done), DP_ERR_SYSTEM);
        }
        assert_int_equal(dp_ring_fits(&pair.writer, 1), 0);
        assert_int_equal(dp_ring_write(&pair.writer, data, sizeof(data), &done), DP_ERR_SYSTEM);
        pair_close(&pair);
    }
}

static void lack_of_memory_is_told(void **state)
{
    static uint8_t data[20000];
    dp_ring_reader_t reader;
    pair_t pair;
    int frees = 0;

    (void)state;
    pair_open(&pair);
    fail_allocation(1);
    assert_int_equal(dp_ring_reader_init(&reader, pair.ring), DP_ERR_NO_MEMORY);
    assert_int_equal(fail_allocation_reached(), 1);
    dp_ring_reader_fini(&reader);
    assert_int_equal(write_whole(&pair, data, sizeof(data)), DP_OK);
    fail_allocation(1);
    assert_int_equal(dp_ring_read(&pair.reader, &frees), DP_ERR_NO_MEMORY);
    assert_int_equal(fail_allocation_reached(), 1);
    pair_close(&pair);
}

/* ---- Two threads ---------------------------------------------------------------------------- */

enum { MESSAGES = 30000, LARGEST = 3000 };

/* Of message number i; now and then a long one. */
static size_t size_of(unsigned *seed, unsigned i)
{
    return (size_t)rand_r(seed) % (i % 500 == 0 ? 2 * DP_RING_BYTES : i % 10 == 0 ? LARGEST : 60);
}

static void *write_all(void *arg)
{
    pair_t *pair = arg;
    uint8_t *data = malloc(2 * DP_RING_BYTES);
    unsigned seed = 3;

    for (unsigned i = 0; i < MESSAGES; i++) {
        const size_t bytes = size_of(&seed, i);
        size_t done = 0;

        fill(data, bytes, i);
        while (dp_ring_write(&pair->writer, data, bytes, &done) == DP_ERR_PENDING)
            sched_yield();
    }
    free(data);
    return NULL;
}

static void two_threads_agree_on_every_byte(void **state)
{
    uint8_t *data = malloc(2 * DP_RING_BYTES);
    unsigned seed = 3;
    pthread_t thread;
    pair_t pair;

    (void)state;
    pair_open(&pair);
    pthread_create(&thread, NULL, write_all, &pair);
    for (unsigned i = 0; i < MESSAGES; i++) {
        const size_t bytes = size_of(&seed, i);
        dp_status_t status;
        int frees = 0;

        while ((status = dp_ring_read(&pair.reader, &frees)) == DP_ERR_PENDING)
            sched_yield();
        assert_int_equal(status, DP_OK);
        assert_int_equal(pair.reader.bytes, bytes);
        fill(data, bytes, i);
        if (bytes > 0) assert_memory_equal(pair.reader.data, data, bytes);
    }
    pthread_join(thread, NULL);
    pair_close(&pair);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_out_as_they_went_in),
        cmocka_unit_test(message_longer_than_the_ring_goes_through_in_pieces),
        cmocka_unit_test(full_ring_says_when_there_is_room),
        cmocka_unit_test(half_a_message_is_none),
        cmocka_unit_test(place_that_makes_no_sense_is_damage),
        cmocka_unit_test(header_that_makes_no_sense_is_damage),
        cmocka_unit_test(length_over_the_limit_is_damage),
        cmocka_unit_test(reader_that_makes_no_sense_stops_the_writer),
        cmocka_unit_test(lack_of_memory_is_told),
        cmocka_unit_test(two_threads_agree_on_every_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
