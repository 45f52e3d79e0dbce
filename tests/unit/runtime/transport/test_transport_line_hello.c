/*
 * test_transport_line_hello.c - what the proofs, keys and beats of a line are bound to: the edge,
 * the side, the connection, the direction, the number. Pure.
 */
#include "runtime/transport/line_hello.h"

#include <string.h>

#include "tests/unit/cases.h"

static const dp_secret_t world = {{1, 2, 3}};
static const uint8_t nonces[2][DP_LINE_NONCE_BYTES] = {{4}, {5}};
static const uint8_t challenges[2][DP_CHALLENGE_BYTES] = {{6}, {7}}; /* listener's, connector's */

static dp_secret_t edge_of(uint32_t lower, uint32_t higher, const uint8_t *of_lower,
                           const uint8_t *of_higher)
{
    dp_secret_t edge;

    dp_line_edge_secret(&world, lower, higher, of_lower, of_higher, &edge);
    return edge;
}

static void line_an_edge_is_of_two_ranks_in_one_world(void **state)
{
    const dp_secret_t edge = edge_of(2, 3, nonces[0], nonces[1]);
    const dp_secret_t others[] = {
        edge_of(1, 3, nonces[0], nonces[1]), edge_of(2, 4, nonces[0], nonces[1]),
        edge_of(2, 3, nonces[1], nonces[1]), edge_of(2, 3, nonces[0], nonces[0]),
        edge_of(2, 3, nonces[1], nonces[0]), edge_of(3, 2, nonces[0], nonces[1])};
    const dp_secret_t same = edge_of(2, 3, nonces[0], nonces[1]);

    (void)state;
    assert_memory_equal(&edge, &same, sizeof(edge));
    for (size_t i = 0; i < DP_ARRAY_LEN(others); i++)
        assert_memory_not_equal(&edge, &others[i], sizeof(edge));
}

static void line_a_proof_is_of_one_side_and_connection(void **state)
{
    const dp_secret_t edge = edge_of(0, 1, nonces[0], nonces[1]);
    const dp_secret_t other_edge = edge_of(0, 2, nonces[0], nonces[1]);
    uint8_t bytes[DP_LINE_HELLO_BYTES];
    uint8_t welcome[DP_LINE_WELCOME_BYTES];
    dp_line_hello_t hello;

    (void)state;
    dp_line_hello_write(&edge, 9, 1, challenges[0], challenges[1], bytes);
    assert_null(dp_line_hello_read(bytes, &hello));
    assert_true(dp_line_hello_is_proven(&edge, challenges[0], &hello));
    assert_false(dp_line_hello_is_proven(&edge, challenges[1], &hello));
    assert_false(dp_line_hello_is_proven(&other_edge, challenges[0], &hello));
    /* Sent back, it is no listener's proof. */
    assert_int_equal(dp_line_welcome_read(&edge, challenges[0], challenges[1], hello.proof),
                     DP_LINE_WRONG_PROOF);
    dp_line_welcome_write(&edge, challenges[0], challenges[1], welcome);
    assert_int_equal(dp_line_welcome_read(&edge, challenges[0], challenges[1], welcome),
                     DP_LINE_ACCEPTED);
    assert_int_equal(dp_line_welcome_read(&edge, challenges[0], challenges[0], welcome),
                     DP_LINE_WRONG_PROOF);
    hello.proof = welcome;
    assert_false(dp_line_hello_is_proven(&edge, challenges[0], &hello));
    /* Nor is the connector's own challenge another one's. */
    assert_null(dp_line_hello_read(bytes, &hello));
    hello.challenge = challenges[0];
    assert_false(dp_line_hello_is_proven(&edge, challenges[0], &hello));
}

static void line_a_code_is_of_one_direction_use_and_connection(void **state)
{
    const dp_secret_t edge = edge_of(0, 1, nonces[0], nonces[1]);
    dp_code_key_t key;
    dp_code_key_t other;

    (void)state;
    dp_line_code_key(&edge, "beat", 0, challenges, sizeof(challenges), &key);
    dp_line_code_key(&edge, "beat", 1, challenges, sizeof(challenges), &other);
    assert_memory_not_equal(&key, &other, sizeof(key));
    dp_line_code_key(&edge, "message", 0, challenges, sizeof(challenges), &other);
    assert_memory_not_equal(&key, &other, sizeof(key));
    dp_line_code_key(&edge, "beat", 0, challenges[0], sizeof(challenges[0]), &other);
    assert_memory_not_equal(&key, &other, sizeof(key));
}

static void line_a_beat_counts_once_and_unchanged(void **state)
{
    const dp_code_key_t key = {{1}};
    const dp_code_key_t other = {{2}};
    uint8_t beat[DP_LINE_BEAT_BYTES];
    dp_line_beat_kind_t kind = DP_LINE_FAREWELL;

    (void)state;
    dp_line_beat_write(&key, DP_LINE_BEAT, 5, beat);
    assert_true(dp_line_beat_read(&key, 5, beat, &kind));
    assert_int_equal(kind, DP_LINE_BEAT);
    assert_false(dp_line_beat_read(&key, 6, beat, &kind)); /* played again */
    assert_false(dp_line_beat_read(&key, 4, beat, &kind));
    assert_false(dp_line_beat_read(&other, 5, beat, &kind));
    for (size_t bit = 0; bit < 8 * sizeof(beat); bit++) {
        beat[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(dp_line_beat_read(&key, 5, beat, &kind));
        beat[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_an_edge_is_of_two_ranks_in_one_world),
        cmocka_unit_test(line_a_proof_is_of_one_side_and_connection),
        cmocka_unit_test(line_a_code_is_of_one_direction_use_and_connection),
        cmocka_unit_test(line_a_beat_counts_once_and_unchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
