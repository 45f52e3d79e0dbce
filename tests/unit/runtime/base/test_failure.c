/*
 * test_failure.c - a failure's facts survive the wire, and hostile bytes are refused.
 */
#include "runtime/base/failure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static dp_failure_t sample(void)
{
    dp_failure_t failure;

    dp_failure_init(&failure, DP_FAILURE_SILENT, 3, "rank 3 (b): no sign of life for 3.0 s");
    failure.is_seen = 1;
    failure.age_ns = 3000000000;
    failure.has_step = 1;
    failure.step = UINT64_C(1) << 40;
    failure.operation_ns = 17;
    snprintf(failure.node, sizeof(failure.node), "b");
    snprintf(failure.operation, sizeof(failure.operation), "tp/h.0.weight");
    return failure;
}

static size_t write_sample(const dp_failure_t *failure, uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_failure_write(&writer, failure);
    return writer.failed ? 0 : writer.bytes;
}

static dp_status_t read_bytes(const uint8_t *data, size_t bytes, dp_failure_t *failure)
{
    dp_reader_t reader;

    dp_reader_init(&reader, data, bytes);
    return dp_failure_read(&reader, failure);
}

static void failure_facts_survive_the_wire(void **state)
{
    const dp_failure_t failure = sample();
    uint8_t data[DP_FAILURE_BYTES_MAX];
    dp_failure_t got;

    (void)state;
    assert_int_equal(read_bytes(data, write_sample(&failure, data, sizeof(data)), &got), DP_OK);
    assert_int_equal(got.kind, DP_FAILURE_SILENT);
    assert_int_equal(got.culprit, 3);
    assert_int_equal(got.is_seen, 1);
    assert_int_equal(got.age_ns, failure.age_ns);
    assert_int_equal(got.has_step, 1);
    assert_int_equal(got.step, failure.step);
    assert_int_equal(got.operation_ns, 17);
    assert_string_equal(got.node, failure.node);
    assert_string_equal(got.operation, failure.operation);
    assert_string_equal(got.text, failure.text);
}

static void failure_longest_fields_fit_and_longer_texts_are_cut(void **state)
{
    static char text[3000];
    uint8_t data[DP_FAILURE_BYTES_MAX];
    dp_failure_t failure;
    dp_failure_t got;

    (void)state;
    memset(text, 'z', sizeof(text) - 1);
    dp_failure_init(&failure, DP_FAILURE_OTHER, -1, text);
    snprintf(failure.node, sizeof(failure.node), "%s", text + sizeof(text) - 1 - 63);
    memset(failure.operation, 'o', sizeof(failure.operation) - 1);
    assert_int_equal(write_sample(&failure, data, sizeof(data)), sizeof(data));
    assert_int_equal(write_sample(&failure, data, sizeof(data) - 1), 0);
    assert_int_equal(write_sample(&failure, data, sizeof(data)), sizeof(data));
    assert_int_equal(read_bytes(data, sizeof(data), &got), DP_OK);
    assert_int_equal(got.culprit, -1);
    assert_int_equal(strlen(got.text), DP_FAILURE_TEXT_MAX);
}

static void failure_cut_anywhere_is_refused(void **state)
{
    const dp_failure_t failure = sample();
    uint8_t data[DP_FAILURE_BYTES_MAX];
    size_t bytes = write_sample(&failure, data, sizeof(data));
    dp_failure_t got = {.culprit = 77};

    (void)state;
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(read_bytes(data, cut, &got), DP_ERR_SYSTEM);
    data[bytes] = 0; /* one too many */
    assert_int_equal(read_bytes(data, bytes + 1, &got), DP_ERR_SYSTEM);
    assert_int_equal(got.culprit, 77); /* untouched */
}

static void failure_of_a_later_version_is_read_as_far_as_it_is_known(void **state)
{
    const dp_failure_t failure = sample();
    uint8_t data[DP_FAILURE_BYTES_MAX + 8] = {0};
    size_t bytes = write_sample(&failure, data, DP_FAILURE_BYTES_MAX);
    dp_failure_t got;

    (void)state;
    data[1] = DP_FAILURE_KINDS; /* a kind that version 1 does not have */
    assert_int_equal(read_bytes(data, bytes, &got), DP_ERR_SYSTEM);
    data[0] = DP_FAILURE_VERSION + 1;
    assert_int_equal(read_bytes(data, bytes + 8, &got), DP_OK);
    assert_int_equal(got.kind, DP_FAILURE_OTHER);
    assert_int_equal(got.culprit, 3);
    data[0] = 0;
    assert_int_equal(read_bytes(data, bytes, &got), DP_ERR_SYSTEM);
}

static void failure_values_out_of_range_are_refused(void **state)
{
    const dp_failure_t failure = sample();
    uint8_t data[DP_FAILURE_BYTES_MAX];
    size_t bytes = write_sample(&failure, data, sizeof(data));
    dp_failure_t got;

    (void)state;
    data[2] = 0x80; /* a flag that nobody knows */
    assert_int_equal(read_bytes(data, bytes, &got), DP_ERR_SYSTEM);
    data[2] = 0;
    memset(data + 3, 0x80, 4); /* a culprit beyond all ranks */
    assert_int_equal(read_bytes(data, bytes, &got), DP_ERR_SYSTEM);
    memset(data + 3, 0xff, 4);
    assert_int_equal(read_bytes(data, bytes, &got), DP_OK);
    assert_int_equal(got.culprit, -1);
}

static void failure_texts_reach_no_terminal_unfiltered(void **state)
{
    uint8_t data[DP_FAILURE_BYTES_MAX];
    dp_failure_t failure = sample();
    dp_failure_t got;

    (void)state;
    snprintf(failure.text, sizeof(failure.text), "a\x1b[31mb\nc\x7f");
    snprintf(failure.operation, sizeof(failure.operation), "w\rte");
    assert_int_equal(read_bytes(data, write_sample(&failure, data, sizeof(data)), &got), DP_OK);
    assert_string_equal(got.text, "a?[31mb?c?");
    assert_string_equal(got.operation, "w?te");
}

static void failure_kind_follows_from_a_status(void **state)
{
    (void)state;
    assert_int_equal(dp_failure_kind_of(DP_ERR_PEER_LOST), DP_FAILURE_LOST);
    assert_int_equal(dp_failure_kind_of(DP_ERR_STALLED), DP_FAILURE_STALLED);
    assert_int_equal(dp_failure_kind_of(DP_ERR_MISMATCH), DP_FAILURE_MISMATCH);
    assert_int_equal(dp_failure_kind_of(DP_ERR_ABORTED), DP_FAILURE_ABORTED);
    assert_int_equal(dp_failure_kind_of(DP_ERR_NO_MEMORY), DP_FAILURE_ABORTED);
    assert_true(dp_failure_is_wait(DP_FAILURE_STALLED));
    assert_true(dp_failure_is_wait(DP_FAILURE_LATE));
    assert_false(dp_failure_is_wait(DP_FAILURE_LOST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_facts_survive_the_wire),
        cmocka_unit_test(failure_longest_fields_fit_and_longer_texts_are_cut),
        cmocka_unit_test(failure_cut_anywhere_is_refused),
        cmocka_unit_test(failure_of_a_later_version_is_read_as_far_as_it_is_known),
        cmocka_unit_test(failure_values_out_of_range_are_refused),
        cmocka_unit_test(failure_texts_reach_no_terminal_unfiltered),
        cmocka_unit_test(failure_kind_follows_from_a_status),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
