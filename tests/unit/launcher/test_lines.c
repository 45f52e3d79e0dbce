/*
 * test_lines.c - streams cut into lines, however their bytes arrive; and the last lines kept.
 */
#include "launcher/dprun/output/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

/* Lines as text: each followed by | (newline), / (return and newline), < (return), + (cut) or .
 * (open). */
typedef struct record {
    char text[4096];
    size_t bytes;
    size_t total; /* bytes of all lines */
    int cuts;
} record_t;

static void note_line(void *context, const char *text, size_t bytes, dp_line_end_t end)
{
    record_t *record = context;

    record->total += bytes;
    if (end == DP_LINE_CUT) record->cuts++;
    assert_true(bytes <= DP_LINE_BYTES_MAX);
    if (record->bytes + bytes + 2 > sizeof(record->text)) return;
    memcpy(record->text + record->bytes, text, bytes);
    record->bytes += bytes;
    record->text[record->bytes++] = "|/<+."[end];
    record->text[record->bytes] = '\0';
}

static void expect(const char *input, size_t bytes, const char *expected)
{
    for (size_t piece = 1; piece <= bytes; piece++) {
        record_t record = {.bytes = 0};
        dp_lines_t lines;

        dp_lines_init(&lines);
        for (size_t at = 0; at < bytes; at += piece) {
            dp_lines_feed(&lines, input + at, bytes - at < piece ? bytes - at : piece, note_line,
                          &record);
        }
        dp_lines_end(&lines, note_line, &record);
        dp_lines_fini(&lines);
        assert_int_equal(record.bytes, strlen(expected));
        assert_memory_equal(record.text, expected, record.bytes);
    }
}

static void lines_end_where_they_should(void **state)
{
    (void)state;
    expect("one\ntwo\n", 8, "one|two|");
    expect("one\ntwo", 7, "one|two.");
    expect("\n\n", 2, "||");
    expect("one\r\ntwo\r\n", 10, "one/two/");
    expect("10%\r20%\r\n", 9, "10%<20%/");
    expect("10%\r", 4, "10%<");
    expect("\r\r", 2, "<<");
    expect("a\r\n\r\nb", 6, "a//b.");
}

static void lines_pass_any_byte(void **state)
{
    record_t record = {.bytes = 0};
    dp_lines_t lines;

    (void)state;
    dp_lines_init(&lines);
    dp_lines_feed(&lines, "a\0b\xff\n", 5, note_line, &record);
    dp_lines_fini(&lines);
    assert_int_equal(record.bytes, 5);
    assert_memory_equal(record.text, "a\0b\xff|", 5);
}

static void lines_too_long_are_cut_between_characters(void **state)
{
    size_t bytes = 3 * DP_LINE_BYTES_MAX + 10;
    char *text = malloc(bytes + 1);
    record_t record = {.bytes = 0};
    dp_lines_t lines;

    (void)state;
    for (size_t i = 0; i < bytes; i++) { /* two-byte characters, out of step with the limit */
        text[i] = (char)(i == 0 ? 'x' : i % 2 == 1 ? '\xc3' : '\xa9');
    }
    text[bytes - 1] = 'y';
    text[bytes] = '\n';
    dp_lines_init(&lines);
    dp_lines_feed(&lines, text, bytes + 1, note_line, &record);
    dp_lines_fini(&lines);
    assert_int_equal(record.total, bytes);
    assert_int_equal(record.cuts, 3);
    free(text);
    assert_int_equal(dp_lines_cut("ab\xc3\xa9", 4), 4);
    assert_int_equal(dp_lines_cut("ab\xc3\xa9", 3), 2);
    assert_int_equal(dp_lines_cut("ab\xe2\x82", 4), 2);
    assert_int_equal(dp_lines_cut("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(dp_lines_cut("", 0), 0);
}

static void lines_lose_no_byte_without_memory(void **state)
{
    (void)state;
    for (long nth = 1;; nth++) {
        char text[2000];
        record_t record = {.bytes = 0};
        dp_lines_t lines;
        int reached;

        assert_true(nth < 100);
        memset(text, 'x', sizeof(text));
        dp_lines_init(&lines);
        fail_allocation(nth);
        for (size_t at = 0; at < sizeof(text); at += 100) {
            dp_lines_feed(&lines, text + at, 100, note_line, &record);
        }
        dp_lines_end(&lines, note_line, &record);
        reached = fail_allocation_reached();
        fail_allocation(0);
        dp_lines_fini(&lines);
        assert_int_equal(record.total, sizeof(text));
        if (!reached) break;
    }
}

static void tail_keeps_the_last_lines(void **state)
{
    dp_tail_t tail = {.count = 0};
    char text[1000];

    (void)state;
    assert_null(dp_tail_get(&tail, 0));
    for (int i = 0; i < 50; i++) {
        snprintf(text, sizeof(text), "line %d", i);
        dp_tail_add(&tail, text, strlen(text));
        dp_tail_add(&tail, "", 0);
    }
    assert_string_equal(dp_tail_get(&tail, 0), "line 49");
    assert_string_equal(dp_tail_get(&tail, DP_TAIL_LINES - 1), "line 30");
    assert_null(dp_tail_get(&tail, DP_TAIL_LINES));
    dp_tail_add(&tail, "a\tb\x1b[31m\0c", 10);
    assert_string_equal(dp_tail_get(&tail, 0), "a b?[31m?c");
    memset(text, 'x', sizeof(text));
    dp_tail_add(&tail, text, sizeof(text));
    assert_int_equal(strlen(dp_tail_get(&tail, 0)), DP_TAIL_BYTES);
    dp_tail_fini(&tail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_where_they_should),
        cmocka_unit_test(lines_pass_any_byte),
        cmocka_unit_test(lines_too_long_are_cut_between_characters),
        cmocka_unit_test(lines_lose_no_byte_without_memory),
        cmocka_unit_test(tail_keeps_the_last_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
