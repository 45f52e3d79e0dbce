/*
 * test_link_wire.c - frames take what they would on a wire, and arrive when they would.
 */
#include <linux/virtio_net.h>

#include "tests/bench/peers/link_wire.h"
#include "tests/unit/cases.h"

enum { TCP_AT = 34, HEADERS = TCP_AT + 32, MSS = 1448 }; /* with time stamps, MTU 1500 */

static const struct virtio_net_hdr plain = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                            .csum_start = TCP_AT};
static const struct virtio_net_hdr large = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                            .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                            .hdr_len = 128, /* a hint that is not to be trusted */
                                            .gso_size = MSS,
                                            .csum_start = TCP_AT};

static size_t of(const struct virtio_net_hdr *header, size_t bytes)
{
    static const unsigned char frame[65536] = {[TCP_AT + 12] = 8 << 4};

    return wire_bytes(header, frame, bytes);
}

static void frame_takes_preamble_checksum_and_gap(void **state)
{
    (void)state;
    assert_int_equal(of(&plain, 1514), 1538);
    assert_int_equal(of(&plain, 60), 84);
    assert_int_equal(of(&plain, 42), 84); /* filled up */
}

static void large_frame_takes_what_its_segments_would(void **state)
{
    struct virtio_net_hdr congested = large, sixth = large;

    (void)state;
    congested.gso_type |= VIRTIO_NET_HDR_GSO_ECN;
    sixth.gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
    assert_int_equal(of(&large, HEADERS + 10 * MSS), 10 * 1538);
    assert_int_equal(of(&congested, HEADERS + 10 * MSS), 10 * 1538);
    assert_int_equal(of(&sixth, HEADERS + 10 * MSS), 10 * 1538);
    assert_int_equal(of(&large, HEADERS + 10 * MSS + 1), 10 * 1538 + HEADERS + 1 + 24);
    assert_int_equal(of(&large, HEADERS + MSS), 1538);
    assert_int_equal(of(&large, HEADERS + 100), HEADERS + 100 + 24);
}

static void frame_that_does_not_hold_its_headers_counts_as_it_is(void **state)
{
    struct virtio_net_hdr odd = large;

    (void)state;
    assert_int_equal(of(&large, TCP_AT + 19), 84);
    odd.gso_size = 0;
    assert_int_equal(of(&odd, 3000), 3024);
    odd = large;
    odd.csum_start = 60000;
    assert_int_equal(of(&odd, 3000), 3024);
}

/* 8 ns a byte, 100 us, and 1000 bytes may wait. */
static wire_t gigabit(void)
{
    return (wire_t){.ns_per_byte = 8.0, .delay_ns = 100000, .queue_ns = 8000};
}

static void frame_arrives_after_its_last_byte_and_the_delay(void **state)
{
    wire_t wire = gigabit();

    (void)state;
    assert_int_equal(wire_take(&wire, 1000, 1538), 1000 + 12304 + 100000);
}

static void frames_follow_each_other_at_the_rate(void **state)
{
    wire_t wire = gigabit();

    (void)state;
    assert_int_equal(wire_take(&wire, 1000, 500), 1000 + 4000 + 100000);
    assert_int_equal(wire_take(&wire, 1000, 500), 1000 + 8000 + 100000);
    assert_int_equal(wire_take(&wire, 3000, 100), 1000 + 8800 + 100000);
}

static void idle_time_is_not_saved_up(void **state)
{
    wire_t wire = gigabit();

    (void)state;
    wire_take(&wire, 1000, 500);
    assert_int_equal(wire_take(&wire, 1000000, 500), 1000000 + 4000 + 100000);
    assert_int_equal(wire_take(&wire, 1000000, 500), 1000000 + 8000 + 100000);
}

static void frame_that_finds_the_queue_full_is_lost_and_takes_no_time(void **state)
{
    wire_t wire = gigabit();

    (void)state;
    assert_int_not_equal(wire_take(&wire, 1000, 1001), 0);
    assert_int_equal(wire_take(&wire, 1000, 100), 0);
    assert_int_equal(wire_take(&wire, 1008, 100), 1000 + 8008 + 800 + 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frame_takes_preamble_checksum_and_gap),
        cmocka_unit_test(large_frame_takes_what_its_segments_would),
        cmocka_unit_test(frame_that_does_not_hold_its_headers_counts_as_it_is),
        cmocka_unit_test(frame_arrives_after_its_last_byte_and_the_delay),
        cmocka_unit_test(frames_follow_each_other_at_the_rate),
        cmocka_unit_test(idle_time_is_not_saved_up),
        cmocka_unit_test(frame_that_finds_the_queue_full_is_lost_and_takes_no_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
