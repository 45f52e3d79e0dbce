/*
 * test_wire.c - what was written is read back; what was cut, at any byte, is noticed.
 */
#include "runtime/base/wire.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static size_t write_all(uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u8(&writer, 0xfe);
    dp_write_u16(&writer, 0x1234);
    dp_write_u32(&writer, 0xdeadbeefu);
    dp_write_u64(&writer, 0x0123456789abcdefu);
    dp_write_f64(&writer, -0.1);
    dp_write_text(&writer, "wte.weight");
    dp_write_bytes(&writer, "\0\1\2", 3);
    return writer.failed ? 0 : writer.bytes;
}

static void wire_values_come_back(void **state)
{
    uint8_t data[64];
    char text[16];
    const size_t bytes = write_all(data, sizeof(data));
    dp_reader_t reader;

    (void)state;
    assert_int_equal(bytes, 1 + 2 + 4 + 8 + 8 + 2 + 10 + 3);
    dp_reader_init(&reader, data, bytes);
    assert_int_equal(dp_read_u8(&reader), 0xfe);
    assert_int_equal(dp_read_u16(&reader), 0x1234);
    assert_int_equal(dp_read_u32(&reader), 0xdeadbeefu);
    assert_true(dp_read_u64(&reader) == 0x0123456789abcdefu);
    assert_true(dp_read_f64(&reader) == -0.1);
    dp_read_text(&reader, text, sizeof(text));
    assert_string_equal(text, "wte.weight");
    assert_int_equal(dp_reader_left(&reader), 3);
    assert_memory_equal(dp_read_bytes(&reader, 3), "\0\1\2", 3);
    assert_int_equal(dp_reader_left(&reader), 0);
    assert_false(reader.failed);
}

static void wire_bytes_are_little_endian(void **state)
{
    const uint8_t expected[] = {0xfe, 0x34, 0x12, 0xef, 0xbe, 0xad, 0xde, 0xef};
    uint8_t data[64];

    (void)state;
    assert_true(write_all(data, sizeof(data)) > sizeof(expected));
    assert_memory_equal(data, expected, sizeof(expected));
}

static void wire_writer_without_room_fails_and_stays_inside(void **state)
{
    uint8_t data[65];
    uint8_t whole[64];
    const size_t bytes = write_all(whole, sizeof(whole));

    (void)state;
    for (size_t room = 0; room < bytes; room++) {
        memset(data, 0xaa, sizeof(data));
        assert_int_equal(write_all(data, room), 0);
        assert_int_equal(data[room], 0xaa);
    }
    assert_int_equal(write_all(data, bytes), bytes);
}

static void wire_reader_cut_anywhere_fails(void **state)
{
    uint8_t data[64];
    const size_t bytes = write_all(data, sizeof(data));

    (void)state;
    for (size_t cut = 0; cut < bytes; cut++) {
        uint8_t *exact = malloc(cut + !cut); /* so that a sanitizer sees a read past it */
        char text[16] = "before";
        dp_reader_t reader;

        assert_non_null(exact);
        memcpy(exact, data, cut);
        dp_reader_init(&reader, exact, cut);
        (void)dp_read_u8(&reader);
        (void)dp_read_u16(&reader);
        (void)dp_read_u32(&reader);
        (void)dp_read_u64(&reader);
        (void)dp_read_f64(&reader);
        dp_read_text(&reader, text, sizeof(text));
        assert_null(dp_read_bytes(&reader, 3));
        assert_true(reader.failed);
        assert_int_equal(dp_reader_left(&reader), 0);
        assert_int_equal(dp_read_u64(&reader), 0);
        free(exact);
    }
}

static void wire_huge_lengths_do_not_wrap(void **state)
{
    uint8_t data[8] = {0};
    dp_reader_t reader;
    dp_writer_t writer;

    (void)state;
    dp_reader_init(&reader, data, sizeof(data));
    (void)dp_read_u32(&reader);
    assert_null(dp_read_bytes(&reader, SIZE_MAX - 2));
    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, 1);
    dp_write_bytes(&writer, data, SIZE_MAX - 2);
    assert_true(writer.failed);
}

static void wire_text_with_nul_or_too_long_fails(void **state)
{
    const uint8_t with_nul[] = {3, 0, 'a', 0, 'b'};
    const uint8_t full[] = {3, 0, 'a', 'b', 'c'};
    char text[4] = "xyz";
    dp_reader_t reader;

    (void)state;
    dp_reader_init(&reader, with_nul, sizeof(with_nul));
    dp_read_text(&reader, text, sizeof(text));
    assert_true(reader.failed);
    assert_string_equal(text, "");
    dp_reader_init(&reader, full, sizeof(full));
    dp_read_text(&reader, text, 3);
    assert_true(reader.failed);
    assert_string_equal(text, "");
    dp_reader_init(&reader, full, sizeof(full));
    dp_read_text(&reader, text, 4);
    assert_false(reader.failed);
    assert_string_equal(text, "abc");
}

static void wire_empty_message_reads_empty_bytes(void **state)
{
    dp_reader_t reader;

    (void)state;
    dp_reader_init(&reader, NULL, 0);
    assert_non_null(dp_read_bytes(&reader, 0));
    assert_false(reader.failed);
    assert_null(dp_read_bytes(&reader, 1));
}

static void wire_long_text_is_cut(void **state)
{
    const size_t bytes = 70000;
    char *text = malloc(bytes + 1);
    uint8_t *data = malloc(bytes);
    dp_writer_t writer;

    (void)state;
    assert_non_null(text);
    assert_non_null(data);
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    dp_writer_init(&writer, data, bytes);
    dp_write_text(&writer, text);
    assert_false(writer.failed);
    assert_int_equal(writer.bytes, 2 + 65535);
    free(data);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wire_values_come_back),
        cmocka_unit_test(wire_bytes_are_little_endian),
        cmocka_unit_test(wire_writer_without_room_fails_and_stays_inside),
        cmocka_unit_test(wire_reader_cut_anywhere_fails),
        cmocka_unit_test(wire_huge_lengths_do_not_wrap),
        cmocka_unit_test(wire_text_with_nul_or_too_long_fails),
        cmocka_unit_test(wire_empty_message_reads_empty_bytes),
        cmocka_unit_test(wire_long_text_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
