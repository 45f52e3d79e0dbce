/*
 * test_direct_slots.c - the ring between two ranks, and which message is the one that is received.
 */
#include <string.h>

#include "runtime/engine/cpu/direct/slots.h"
#include "tests/unit/cases.h"

static dp_slots_t ring;

static void slots_come_in_order_and_wait_for_the_receiver(void **state)
{
    (void)state;
    memset(&ring, 0, sizeof(ring));
    assert_null(dp_slots_next(&ring, 0));
    for (uint64_t i = 0; i < DP_SLOT_COUNT; i++) {
        dp_slot_t *slot = dp_slots_free(&ring, i);

        assert_non_null(slot);
        slot->head.bytes = i;
        dp_slots_write(&ring, i + 1);
    }
    assert_null(dp_slots_free(&ring, DP_SLOT_COUNT));
    assert_int_equal(dp_slots_next(&ring, 0)->head.bytes, 0);
    assert_false(dp_slots_is_taken(&ring, 0));
    dp_slots_take(&ring, 1);
    assert_true(dp_slots_is_taken(&ring, 0));
    assert_false(dp_slots_is_taken(&ring, 1));
    assert_ptr_equal(dp_slots_free(&ring, DP_SLOT_COUNT), &ring.slots[0]);
    assert_int_equal(dp_slots_next(&ring, 1)->head.bytes, 1);
}

typedef struct row {
    const char *name;
    dp_slot_head_t head;
    dp_slot_want_t want;
    dp_status_t status;
    const char *text;
} row_t;

static void judge_says_both_values(void **state)
{
    static const row_t rows[] = {
        {"a", {.bytes = 8, .dtype = DP_F32}, {1, 2, "a", DP_F32, 0, 2}, DP_OK, ""},
        {"", {.bytes = 8, .dtype = DP_F32}, {1, 2, "a", DP_F32, 0, 2}, DP_OK, ""},
        {"a", {.bytes = 8, .dtype = DP_F32}, {1, 2, "", DP_F32, 0, 2}, DP_OK, ""},
        {"a", {.bytes = 0, .dtype = DP_F32}, {1, 2, "a", DP_F32, 0, 0}, DP_OK, ""},
        {"a",
         {.bytes = 8, .dtype = DP_F32},
         {1, 2, "b", DP_F32, 0, 2},
         DP_ERR_MISMATCH,
         "rank 1 sends a where rank 2 receives b"},
        {"a",
         {.bytes = 8, .dtype = DP_F32},
         {1, 2, "a", DP_I32, 0, 2},
         DP_ERR_MISMATCH,
         "rank 1 sends f32, rank 2 receives i32"},
        {"a",
         {.bytes = 8, .dtype = DP_F32, .tag = 16},
         {1, 2, "a", DP_F32, 3, 2},
         DP_ERR_MISMATCH,
         "rank 1 sends with tag 10, rank 2 receives with 3"},
        {"a",
         {.bytes = 12, .dtype = DP_F32},
         {1, 2, "a", DP_F32, 0, 2},
         DP_ERR_TRUNCATED,
         "rank 1 sends 3 elements, rank 2 has room for 2"},
        {"a",
         {.bytes = 9, .dtype = DP_F32},
         {1, 2, "a", DP_F32, 0, 9},
         DP_ERR_SYSTEM,
         "rank 1 sent rank 2 a message that makes no sense: 9 bytes, type 10, way 0"},
        {"a",
         {.bytes = 8, .dtype = DP_F32, .way = 7},
         {1, 2, "a", DP_F32, 0, 9},
         DP_ERR_SYSTEM,
         "rank 1 sent rank 2 a message that makes no sense: 8 bytes, type 10, way 7"},
    };

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(rows); i++) {
        char text[DP_SLOT_TEXT] = "";

        assert_int_equal(dp_slot_judge(&rows[i].head, rows[i].name, &rows[i].want, text),
                         rows[i].status);
        assert_string_equal(text, rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_come_in_order_and_wait_for_the_receiver),
        cmocka_unit_test(judge_says_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
