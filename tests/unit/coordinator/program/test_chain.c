/*
 * test_chain.c - chains of submissions: alike while programs are, and the first difference in
 * words, also between chains of different length and for bytes that make no sense.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/program/chain.h"
#include "tests/unit/cases.h"

static void add_so(dp_chain_t *chain, const char *name, uint64_t count,
                   const dp_chain_manner_t *manner)
{
    const dp_signature_part_t part = {count, DP_F32};
    const dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                      .wire = DP_WIRE_NONE,
                                      .root = -1,
                                      .peer = -1,
                                      .prescale = 1.0,
                                      .postscale = 1.0,
                                      .part_count = 1,
                                      .parts = &part};

    dp_chain_add(chain, dp_chain_hash(name, &signature, manner), name, &signature, manner);
}

static void add(dp_chain_t *chain, const char *name, uint64_t count, int in_place)
{
    add_so(chain, name, count, &(dp_chain_manner_t){.in_place = in_place});
}

static dp_chain_verdict_t check_heartbeat(const dp_chain_t *from, const dp_chain_t *to, char *what,
                                          uint64_t *position)
{
    uint8_t data[DP_CHAIN_HEARTBEAT_BYTES];
    dp_writer_t writer;
    dp_reader_t reader;

    dp_writer_init(&writer, data, sizeof(data));
    dp_chain_write_heartbeat(from, &writer);
    assert_false(writer.failed);
    dp_reader_init(&reader, data, writer.bytes);
    return dp_chain_check_heartbeat(to, &reader, what, position);
}

static dp_chain_verdict_t compare_history(const dp_chain_t *from, const dp_chain_t *to,
                                          uint64_t *position, char *own, char *other)
{
    uint8_t *data = malloc(DP_CHAIN_HISTORY_BYTES);
    dp_chain_verdict_t verdict;
    dp_writer_t writer;
    dp_reader_t reader;

    assert_non_null(data);
    dp_writer_init(&writer, data, DP_CHAIN_HISTORY_BYTES);
    dp_chain_write_history(from, &writer);
    assert_false(writer.failed);
    dp_reader_init(&reader, data, writer.bytes);
    verdict = dp_chain_compare_history(to, &reader, position, own, other);
    free(data);
    return verdict;
}

typedef struct pair {
    dp_chain_t a, b;
    char own[DP_CHAIN_WHAT_MAX], other[DP_CHAIN_WHAT_MAX];
    uint64_t position;
} pair_t;

static int setup(void **state)
{
    pair_t *pair = calloc(1, sizeof(*pair));

    if (pair == NULL || dp_chain_init(&pair->a) != DP_OK || dp_chain_init(&pair->b) != DP_OK)
        return -1;
    *state = pair;
    return 0;
}

static int teardown(void **state)
{
    pair_t *pair = *state;

    dp_chain_fini(&pair->a);
    dp_chain_fini(&pair->b);
    free(pair);
    return 0;
}

static void chain_alike_at_any_distance(void **state)
{
    pair_t *pair = *state;

    assert_int_equal(check_heartbeat(&pair->a, &pair->b, pair->own, &pair->position),
                     DP_CHAIN_ALIKE);
    for (int i = 0; i < 3 * DP_CHAIN_KEPT; i++) {
        add(&pair->a, "t", (uint64_t)i, 0);
        if (i % 7 == 0) dp_chain_add_wait(&pair->a);
        if (i < 100) continue; /* b is behind */
        add(&pair->b, "t", (uint64_t)i - 100, 0);
        if ((i - 100) % 7 == 0) dp_chain_add_wait(&pair->b);
        assert_int_equal(check_heartbeat(&pair->a, &pair->b, pair->own, &pair->position),
                         DP_CHAIN_ALIKE);
        assert_int_equal(check_heartbeat(&pair->b, &pair->a, pair->own, &pair->position),
                         DP_CHAIN_ALIKE);
    }
    assert_int_equal(compare_history(&pair->a, &pair->b, &pair->position, pair->own, pair->other),
                     DP_CHAIN_ALIKE);
    assert_int_equal(compare_history(&pair->b, &pair->a, &pair->position, pair->own, pair->other),
                     DP_CHAIN_ALIKE);
}

/* The first of several differences, from either side, in words. */
static void chain_first_difference_is_told(void **state)
{
    pair_t *pair = *state;

    for (int i = 0; i < 5; i++) {
        add(&pair->a, "same", 8, 1);
        add(&pair->b, "same", 8, 1);
    }
    add(&pair->a, "act", 768, 0);
    add(&pair->b, "act", 1024, 1);
    add(&pair->a, "more", 1, 0);
    assert_int_equal(check_heartbeat(&pair->b, &pair->a, pair->own, &pair->position),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(compare_history(&pair->b, &pair->a, &pair->position, pair->own, pair->other),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(pair->position, 6);
    assert_string_equal(pair->own, "act (allreduce sum of 768 f32)");
    assert_string_equal(pair->other, "act (allreduce sum of 1024 f32, where it lies)");
    assert_int_equal(compare_history(&pair->a, &pair->b, &pair->position, pair->own, pair->other),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(pair->position, 6);
    assert_string_equal(pair->own, "act (allreduce sum of 1024 f32, where it lies)");
}

/* Where buckets end must be the same everywhere. */
static void chain_launch_now_is_part_of_an_entry(void **state)
{
    pair_t *pair = *state;

    add(&pair->a, "x", 1, 0);
    add_so(&pair->b, "x", 1, &(dp_chain_manner_t){.launches_now = 1});
    assert_int_equal(check_heartbeat(&pair->b, &pair->a, pair->own, &pair->position),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(compare_history(&pair->b, &pair->a, &pair->position, pair->own, pair->other),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(pair->position, 1);
    assert_string_equal(pair->own, "x (allreduce sum of 1 f32)");
    assert_string_equal(pair->other, "x (allreduce sum of 1 f32, launched at once)");
}

static void chain_wait_is_an_entry(void **state)
{
    pair_t *pair = *state;

    add(&pair->a, "x", 1, 0);
    add(&pair->b, "x", 1, 0);
    dp_chain_add_wait(&pair->a);
    add(&pair->b, "y", 1, 0);
    assert_int_equal(compare_history(&pair->a, &pair->b, &pair->position, pair->own, pair->other),
                     DP_CHAIN_DIFFERS);
    assert_int_equal(pair->position, 2);
    assert_string_equal(pair->other, "a wait");
}

static void chain_final_beat_tells_what_lacks(void **state)
{
    pair_t *pair = *state;

    add(&pair->a, "x", 1, 0);
    add(&pair->b, "x", 1, 0);
    pair->a.is_final = 1;
    assert_int_equal(check_heartbeat(&pair->a, &pair->b, pair->own, &pair->position),
                     DP_CHAIN_ALIKE);
    add(&pair->b, "y", 5, 0);
    assert_int_equal(check_heartbeat(&pair->a, &pair->b, pair->own, &pair->position),
                     DP_CHAIN_LACKS);
    assert_int_equal(pair->position, 2);
    assert_string_equal(pair->own, "y (allreduce sum of 5 f32)");
    assert_int_equal(check_heartbeat(&pair->b, &pair->a, pair->own, &pair->position),
                     DP_CHAIN_ALIKE);
}

/* Every truncation and many flips: a verdict, and no byte beyond the end is read. */
static void chain_hostile_bytes_are_refused(void **state)
{
    pair_t *pair = *state;
    uint8_t *data = malloc(DP_CHAIN_HISTORY_BYTES);
    dp_writer_t writer;
    dp_reader_t reader;

    assert_non_null(data);
    for (int i = 0; i < 4; i++)
        add(&pair->a, "tensor", (uint64_t)i, 0);
    dp_writer_init(&writer, data, DP_CHAIN_HISTORY_BYTES);
    dp_chain_write_history(&pair->a, &writer);
    for (size_t bytes = 0; bytes < writer.bytes; bytes++) {
        uint8_t *cut = malloc(bytes + 1);

        assert_non_null(cut);
        memcpy(cut, data, bytes);
        dp_reader_init(&reader, cut, bytes);
        assert_int_equal(
            dp_chain_compare_history(&pair->a, &reader, &pair->position, pair->own, pair->other),
            DP_CHAIN_BAD);
        free(cut);
    }
    for (size_t i = 0; i < writer.bytes * 8; i++) {
        data[i / 8] ^= (uint8_t)(1u << i % 8);
        dp_reader_init(&reader, data, writer.bytes);
        (void)dp_chain_compare_history(&pair->a, &reader, &pair->position, pair->own, pair->other);
        data[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t bytes = 0; bytes < DP_CHAIN_HEARTBEAT_BYTES; bytes++) {
        dp_reader_init(&reader, data, bytes);
        assert_int_equal(dp_chain_check_heartbeat(&pair->a, &reader, pair->own, &pair->position),
                         DP_CHAIN_BAD);
    }
    free(data);
}

/* Whatever the ranks must agree on changes the hash. */
static void chain_hash_covers_everything(void **state)
{
    dp_signature_part_t parts[2] = {{10, DP_F32}, {20, DP_F32}};
    dp_signature_t signature = {.collective = DP_COLLECTIVE_REDUCE,
                                .wire = DP_WIRE_NONE,
                                .root = 1,
                                .peer = -1,
                                .prescale = 1.0,
                                .postscale = 1.0,
                                .part_count = 2,
                                .parts = parts};
    const dp_chain_manner_t plain = {0}, placed = {.in_place = 1}, now = {.launches_now = 1},
                            scaled = {.absmax = 1.0f};
    const uint64_t hash = dp_chain_hash("t", &signature, &plain);

    (void)state;
#define DIFFERS(change, back)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        assert_true(dp_chain_hash("t", &signature, &plain) != hash);                               \
        back;                                                                                      \
    } while (0)
    assert_true(dp_chain_hash("t", &signature, &plain) == hash);
    assert_true(dp_chain_hash("u", &signature, &plain) != hash);
    assert_true(dp_chain_hash("t", &signature, &placed) != hash);
    assert_true(dp_chain_hash("t", &signature, &now) != hash);
    assert_true(dp_chain_hash("t", &signature, &now) != dp_chain_hash("t", &signature, &placed));
    assert_true(dp_chain_hash("t", &signature, &scaled) != hash);
    DIFFERS(signature.root = 0, signature.root = 1);
    DIFFERS(signature.reduce = DP_MAX, signature.reduce = DP_SUM);
    DIFFERS(signature.wire = DP_WIRE_BF16, signature.wire = DP_WIRE_NONE);
    DIFFERS(signature.prescale = 2.0, signature.prescale = 1.0);
    DIFFERS(signature.tag = 1, signature.tag = 0);
    DIFFERS(signature.postscale = 2.0, signature.postscale = 1.0);
    DIFFERS(signature.is_grouped = 1, signature.is_grouped = 0);
    DIFFERS(signature.part_count = 1, signature.part_count = 2);
    DIFFERS(parts[1].count = 21, parts[1].count = 20);
    DIFFERS(parts[1].dtype = DP_I32, parts[1].dtype = DP_F32);
#undef DIFFERS
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chain_alike_at_any_distance, setup, teardown),
        cmocka_unit_test_setup_teardown(chain_first_difference_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(chain_launch_now_is_part_of_an_entry, setup, teardown),
        cmocka_unit_test_setup_teardown(chain_wait_is_an_entry, setup, teardown),
        cmocka_unit_test_setup_teardown(chain_final_beat_tells_what_lacks, setup, teardown),
        cmocka_unit_test_setup_teardown(chain_hostile_bytes_are_refused, setup, teardown),
        cmocka_unit_test(chain_hash_covers_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
