/*
 * test_transport_frame.c - headers and assembly of control frames against honest and hostile bytes.
 */
#include "runtime/transport/frame.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

#define TAG 0x1122334455667788ull

static uint8_t bytes[DP_FRAME_HEADER + DP_FRAME_PAYLOAD + 64];

static const char *read_back(dp_control_frame_t frame, size_t payload)
{
    dp_control_frame_t out = {0};
    size_t out_payload = 0;
    const char *reason;

    dp_frame_write(&frame, bytes);
    reason = dp_frame_read(bytes, DP_FRAME_HEADER + payload, TAG, &out, &out_payload);
    if (reason == NULL) {
        assert_memory_equal(&out, &frame, sizeof(frame));
        assert_int_equal(out_payload, payload);
    }
    return reason;
}

static void frame_survives_the_wire(void **state)
{
    (void)state;
    assert_null(read_back((dp_control_frame_t){TAG, 3, DP_FRAME_DATA, 100, 0}, 100));
    assert_null(read_back((dp_control_frame_t){TAG, 3, DP_FRAME_DATA, 0, 0}, 0));
    assert_null(read_back((dp_control_frame_t){TAG, 3, DP_FRAME_DATA, 5000, 4096}, 904));
    assert_null(read_back((dp_control_frame_t){TAG, 3, DP_FRAME_BYE, 0, 0}, 0));
    assert_null(read_back((dp_control_frame_t){TAG, 3, DP_FRAME_ACK, 0, 0}, 0));
}

static void frame_of_another_job_is_refused(void **state)
{
    (void)state;
    assert_non_null(read_back((dp_control_frame_t){TAG + 1, 3, DP_FRAME_DATA, 100, 0}, 100));
}

static void frame_with_wrong_lengths_is_refused(void **state)
{
    (void)state;
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_DATA, 100, 0}, 99));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_DATA, 100, 0}, 101));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_DATA, 100, 101}, 0));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_DATA, UINT32_MAX, 0}, 4096));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_DATA, 5000, UINT32_MAX}, 4096));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_BYE, 0, 0}, 1));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, DP_FRAME_BYE, 1, 0}, 0));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, 0, 0, 0}, 0));
    assert_non_null(read_back((dp_control_frame_t){TAG, 0, 77, 0, 0}, 0));
}

static void frame_cut_anywhere_is_refused(void **state)
{
    const dp_control_frame_t frame = {TAG, 1, DP_FRAME_DATA, 10, 0};
    dp_control_frame_t out;
    size_t payload;

    (void)state;
    dp_frame_write(&frame, bytes);
    for (size_t length = 0; length < DP_FRAME_HEADER + 10; length++) {
        uint8_t *exact = malloc(length + 1); /* so that a sanitizer sees a step too far */

        memcpy(exact, bytes, length);
        assert_non_null(dp_frame_read(exact, length, TAG, &out, &payload));
        free(exact);
    }
}

static void garbage_never_leaves_the_bounds(void **state)
{
    unsigned seed = 1;

    (void)state;
    for (int round = 0; round < 200000; round++) {
        dp_assembly_t assembly = {0};
        dp_control_frame_t frame;
        size_t payload;
        size_t length = (size_t)rand_r(&seed) % 80;

        for (size_t i = 0; i < length; i++)
            bytes[i] = (uint8_t)rand_r(&seed);
        if (round % 2 == 0) { /* get past the tag, to the fields */
            const dp_control_frame_t near = {TAG, 1, DP_FRAME_DATA, (uint32_t)rand_r(&seed) % 100,
                                             (uint32_t)rand_r(&seed) % 100};

            dp_frame_write(&near, bytes);
            length = DP_FRAME_HEADER + (size_t)rand_r(&seed) % 40;
        }
        if (dp_frame_read(bytes, length, TAG, &frame, &payload) != NULL) continue;
        assert_true(payload == length - DP_FRAME_HEADER);
        assert_true(frame.offset + payload <= frame.total);
        if (dp_assembly_add(&assembly, &frame, payload) != NULL) continue;
        assert_true(assembly.have <= assembly.total);
    }
}

static void assembly_takes_fragments_in_order_only(void **state)
{
    dp_assembly_t assembly = {0};
    dp_control_frame_t frame = {TAG, 0, DP_FRAME_DATA, 10000, 0};

    (void)state;
    assert_null(dp_assembly_add(&assembly, &frame, 4096));
    assert_true(assembly.is_open);
    frame.offset = 4096;
    assert_null(dp_assembly_add(&assembly, &frame, 4096));
    frame.offset = 8192;
    assert_null(dp_assembly_add(&assembly, &frame, 1808));
    assert_false(assembly.is_open);

    frame.offset = 4096; /* never began */
    assert_non_null(dp_assembly_add(&assembly, &frame, 4096));
    frame.offset = 0;
    assert_null(dp_assembly_add(&assembly, &frame, 4096));
    frame.offset = 8192; /* one is missing */
    assert_non_null(dp_assembly_add(&assembly, &frame, 1808));
    assert_false(assembly.is_open);
    frame.offset = 0;
    assert_null(dp_assembly_add(&assembly, &frame, 4096));
    assert_non_null(dp_assembly_add(&assembly, &frame, 4096)); /* begins twice */
    assert_null(dp_assembly_add(&assembly, &frame, 4096));
    frame.offset = 4096;
    frame.total = 20000; /* grows on the way */
    assert_non_null(dp_assembly_add(&assembly, &frame, 4096));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frame_survives_the_wire),
        cmocka_unit_test(frame_of_another_job_is_refused),
        cmocka_unit_test(frame_with_wrong_lengths_is_refused),
        cmocka_unit_test(frame_cut_anywhere_is_refused),
        cmocka_unit_test(garbage_never_leaves_the_bounds),
        cmocka_unit_test(assembly_takes_fragments_in_order_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
