/*
 * test_layout.c - rows and pools of dp_shards_t: for 1 to 9 ranks the rows cover a group once, are
 * equal and begin at multiples of 4096.
 */
#include "coordinator/shards/layout.h"
#include "tests/unit/cases.h"

static void rows_cover_a_group_once(void **unused)
{
    static const size_t counts[] = {1, 7, 4095, 4096, 4097, 8192, 10000, 36864, 123457, 7087872};

    (void)unused;
    for (int ranks = 1; ranks <= 9; ranks++) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            dp_shard_layout_t layout;
            size_t next = 0, first, count;

            assert_true(dp_shard_layout_make(counts[i], ranks, &layout));
            assert_int_equal(layout.row % DP_SHARD_ALIGN, 0);
            assert_int_equal(layout.padded, layout.row * (size_t)ranks);
            assert_true(layout.padded >= counts[i]);
            assert_true(layout.padded - counts[i] < (size_t)ranks * DP_SHARD_ALIGN);
            for (int rank = 0; rank < ranks; rank++) {
                dp_shard_layout_row(&layout, rank, &first, &count);
                assert_int_equal(first, next);
                assert_true(count <= layout.row);
                /* only what is behind the last element is padding */
                assert_true(count == layout.row || first + count == counts[i]);
                next += count;
            }
            assert_int_equal(next, counts[i]);
        }
    }
}

static void a_row_begins_at_its_rank_times_the_row(void **unused)
{
    dp_shard_layout_t layout;
    size_t first, count;

    (void)unused;
    assert_true(dp_shard_layout_make(10000, 2, &layout));
    assert_int_equal(layout.row, 8192);
    dp_shard_layout_row(&layout, 1, &first, &count);
    assert_int_equal(first, 8192);
    assert_int_equal(count, 1808);
    assert_true(dp_shard_layout_make(100, 4, &layout));
    dp_shard_layout_row(&layout, 3, &first, &count);
    assert_int_equal(first, 100);
    assert_int_equal(count, 0);
}

static void sizes_beyond_memory_are_refused(void **unused)
{
    dp_shard_layout_t layout;

    (void)unused;
    assert_false(dp_shard_layout_make(SIZE_MAX, 2, &layout));
    assert_false(dp_shard_layout_make(SIZE_MAX / 16 + 1, 1, &layout));
    assert_true(dp_shard_layout_make(SIZE_MAX / 16 - 4096, 1, &layout));
}

static void three_groups_of_one_size_share_a_pool(void **unused)
{
    static const size_t counts[8] = {5, 9, 9, 0, 5, 7, 9, 9};
    static const int wanted[8] = {0, 1, 1, -1, 2, 3, 1, 1};
    int pools[8];
    size_t members[8];

    (void)unused;
    assert_int_equal(dp_shard_layout_pools(counts, 8, pools, members), 4);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pools[i], wanted[i]);
    assert_int_equal(members[0], 1);
    assert_int_equal(members[1], 4);
    assert_int_equal(members[2], 1);
    assert_int_equal(members[3], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_cover_a_group_once),
        cmocka_unit_test(a_row_begins_at_its_rank_times_the_row),
        cmocka_unit_test(sizes_beyond_memory_are_refused),
        cmocka_unit_test(three_groups_of_one_size_share_a_pool),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
