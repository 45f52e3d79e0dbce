/*
 * test_error.c - errors keep status and text; every status, type and reduction has a name.
 */
#include "runtime/base/error.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static void error_set_returns_status_and_text(void **state)
{
    dp_error_t error = {DP_OK, ""};

    (void)state;
    assert_int_equal(dp_error_set(&error, DP_ERR_MISMATCH, "rank %d: count %d", 3, 768),
                     DP_ERR_MISMATCH);
    assert_int_equal(error.status, DP_ERR_MISMATCH);
    assert_string_equal(error.text, "rank 3: count 768");
    assert_int_equal(dp_error_set(NULL, DP_ERR_BUSY, "%s", "nobody listens"), DP_ERR_BUSY);
}

static void error_text_may_quote_itself(void **state)
{
    dp_error_t error = {DP_OK, ""};

    (void)state;
    dp_error_set(&error, DP_ERR_SYSTEM, "refused");
    dp_error_set(&error, DP_ERR_SYSTEM, "connecting: %s", error.text);
    assert_string_equal(error.text, "connecting: refused");
}

static void error_text_does_not_control_a_terminal(void **state)
{
    dp_error_t error = {DP_OK, ""};
    char text[] = "esc \x1b[2J bel\a cr\r lf\n del\x7f csi \xc2\x9b"
                  "1m raw \x9b \xff end \xe2\x82";

    (void)state;
    dp_error_set(&error, DP_ERR_INVALID, "tensor %s", "a\x1b[31m\nb");
    assert_string_equal(error.text, "tensor a?[31m?b");
    dp_text_mask(text);
    assert_string_equal(text, "esc ?[2J bel? cr? lf? del? csi ??1m raw ? ? end ??");
    strcpy(text, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0");
    dp_text_mask(text);
    assert_string_equal(text, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0");
}

/* Shifts a text of multi-byte characters over the border and checks that none is cut in two. */
static void check_border(const char *character)
{
    const size_t width = strlen(character);
    char text[2 * DP_ERROR_TEXT_MAX];

    for (size_t shift = 0; shift <= width; shift++) {
        dp_error_t error = {DP_OK, ""};
        size_t bytes = 0;

        memset(text, 'x', shift);
        for (bytes = shift; bytes + width + 1 < sizeof(text); bytes += width) {
            memcpy(text + bytes, character, width);
        }
        text[bytes] = '\0';
        dp_error_set(&error, DP_ERR_SYSTEM, "%s", text);
        bytes = strlen(error.text);
        assert_in_range(bytes, DP_ERROR_TEXT_MAX - width, DP_ERROR_TEXT_MAX - 1);
        assert_int_equal((bytes - shift) % width, 0);
        assert_memory_equal(error.text, text, bytes);
    }
}

static void error_long_text_is_cut_at_a_character(void **state)
{
    (void)state;
    check_border("x");
    check_border("\xc3\xa9");         /* e acute */
    check_border("\xe2\x82\xac");     /* euro */
    check_border("\xf0\x9f\x9a\x80"); /* rocket */
}

static void error_text_of_broken_utf8_is_harmless(void **state)
{
    char text[2 * DP_ERROR_TEXT_MAX];
    dp_error_t error = {DP_OK, ""};

    (void)state;
    memset(text, 0x80, sizeof(text) - 1); /* continuation bytes alone */
    text[sizeof(text) - 1] = '\0';
    dp_error_set(&error, DP_ERR_SYSTEM, "%s", text);
    assert_in_range(strlen(error.text), DP_ERROR_TEXT_MAX - 8, DP_ERROR_TEXT_MAX - 1);
}

static void status_names_are_distinct(void **state)
{
    (void)state;
    assert_string_equal(dp_status_string(DP_OK), "DP_OK");
    assert_string_equal(dp_status_string(DP_ERR_CHECK), "DP_ERR_CHECK");
    for (int a = DP_OK; a <= DP_ERR_CHECK; a++) {
        assert_memory_equal(dp_status_string((dp_status_t)a), "DP_", 3);
        for (int b = DP_OK; b < a; b++) {
            assert_string_not_equal(dp_status_string((dp_status_t)a),
                                    dp_status_string((dp_status_t)b));
        }
    }
    assert_string_equal(dp_status_string((dp_status_t)1000), "unknown status");
}

static void dtype_sizes_and_names_fit(void **state)
{
    const size_t sizes[DP_DTYPE_COUNT] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

    (void)state;
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        assert_int_equal(dp_dtype_bytes((dp_dtype_t)dtype), sizes[dtype]);
        assert_string_not_equal(dp_dtype_name((dp_dtype_t)dtype), "unknown");
        assert_int_equal(dp_dtype_is_float((dp_dtype_t)dtype),
                         strchr(dp_dtype_name((dp_dtype_t)dtype), 'f') != NULL);
    }
    assert_false(dp_dtype_is_float(DP_DTYPE_COUNT));
    assert_string_equal(dp_dtype_name(DP_F32), "f32");
    assert_int_equal(dp_dtype_bytes(DP_DTYPE_COUNT), 0);
    assert_int_equal(dp_dtype_bytes((dp_dtype_t)77), 0);
    assert_string_equal(dp_dtype_name((dp_dtype_t)77), "unknown");
    for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
        assert_string_not_equal(dp_reduce_name((dp_reduce_t)reduce), "unknown");
    }
    assert_string_equal(dp_reduce_name((dp_reduce_t)77), "unknown");
    assert_string_equal(dp_wire_name(DP_WIRE_FP16), "fp16");
    assert_string_equal(dp_wire_name((dp_wire_t)77), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_set_returns_status_and_text),
        cmocka_unit_test(error_text_may_quote_itself),
        cmocka_unit_test(error_text_does_not_control_a_terminal),
        cmocka_unit_test(error_long_text_is_cut_at_a_character),
        cmocka_unit_test(error_text_of_broken_utf8_is_harmless),
        cmocka_unit_test(status_names_are_distinct),
        cmocka_unit_test(dtype_sizes_and_names_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
