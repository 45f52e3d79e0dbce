/*
 * test_silence.c - what counts as a sign of life on a line, on a clock and counters that the
 * test sets.
 */
#include "runtime/network/silence.h"
#include "tests/unit/cases.h"

#define MS 1000000ull
#define START (5000 * MS)
#define BEAT (100 * MS)
#define TIMEOUT (3000 * MS)

static dp_silence_t silence;
static dp_silence_counters_t counters;

static int setup(void **state)
{
    (void)state;
    counters = (dp_silence_counters_t){.received_bytes = 1600, .data_packets = 100};
    dp_silence_init(&silence, TIMEOUT);
    (void)dp_silence_look(&silence, &counters, START - BEAT);
    dp_silence_beat(&silence, START);
    return 0;
}

/* Looks at each beat from START on, for so long; every nth look `change` has happened. The last
 * answer, after START. */
static int64_t sign_after(uint64_t for_ns, uint64_t packet_every_ns, uint32_t *change)
{
    uint64_t sign_ns = 0;

    for (uint64_t at_ns = START + BEAT; at_ns <= START + for_ns; at_ns += BEAT) {
        counters.packet_age_ns =
            packet_every_ns == 0 ? at_ns - START : (at_ns - START) % packet_every_ns;
        if (change != NULL) (*change)++;
        sign_ns = dp_silence_look(&silence, &counters, at_ns);
        assert_true(sign_ns <= at_ns);
    }
    return (int64_t)(sign_ns - START);
}

static void silence_without_packets_counts_from_the_last_one(void **state)
{
    (void)state;
    /* This side repeats its own beats: the cable is cut. */
    assert_int_equal(sign_after(2 * TIMEOUT, 0, &counters.resent), 0);
}

static void silence_of_a_process_whose_kernel_answers_counts_from_its_beat(void **state)
{
    (void)state;
    assert_int_equal(sign_after(2 * TIMEOUT, BEAT, NULL), 0);
}

static void silence_on_a_lossy_link_counts_from_the_last_packet(void **state)
{
    uint32_t *const signs[] = {&counters.resent, &counters.out_of_order, &counters.data_packets};

    for (size_t i = 0; i < DP_ARRAY_LEN(signs); i++) {
        setup(state);
        assert_true(sign_after(2 * TIMEOUT, 3 * BEAT, signs[i]) >=
                    (int64_t)(2 * TIMEOUT - 3 * BEAT));
    }
}

/* It repeats what has come, as each confirmation is lost: the kernel throws that away, and calls
 * its last packet an old one. */
static void silence_on_a_lossy_link_counts_from_a_packet_that_came_again(void **state)
{
    (void)state;
    for (uint64_t at_ns = START + BEAT; at_ns <= START + 2 * TIMEOUT; at_ns += BEAT) {
        counters.packet_age_ns = at_ns - START;
        counters.packets++;
        counters.data_packets++;
        assert_true(dp_silence_look(&silence, &counters, at_ns) >= at_ns - BEAT);
    }
}

static void silence_on_a_lossy_link_is_not_forgiven_for_ever(void **state)
{
    (void)state;
    assert_int_equal(sign_after(DP_SILENCE_PATIENCE * TIMEOUT, 3 * BEAT, &counters.resent), 0);
}

static void silence_ends_with_a_beat(void **state)
{
    (void)state;
    (void)sign_after(2 * TIMEOUT, BEAT, NULL);
    dp_silence_beat(&silence, START + 2 * TIMEOUT);
    assert_int_equal(dp_silence_look(&silence, &counters, START + 2 * TIMEOUT + BEAT),
                     START + 2 * TIMEOUT);
}

static void silence_forgets_a_loss_of_long_ago(void **state)
{
    (void)state;
    counters.resent++;
    (void)dp_silence_look(&silence, &counters, START + BEAT);
    assert_int_equal(sign_after(TIMEOUT + 2 * BEAT, BEAT, NULL), 0);
}

/* On a machine with too few cores both sides go without one now and then. */
static void silence_does_not_count_while_this_side_stood_still(void **state)
{
    (void)state;
    dp_silence_stood_still(&silence, 4 * BEAT);
    dp_silence_stood_still(&silence, 3 * BEAT);
    assert_int_equal(sign_after(TIMEOUT, BEAT, NULL), 7 * BEAT);
    dp_silence_stood_still(&silence, 10 * TIMEOUT); /* but it never lies ahead */
    assert_int_equal(sign_after(TIMEOUT, BEAT, NULL), TIMEOUT);
    dp_silence_beat(&silence, START + TIMEOUT);
    assert_int_equal(sign_after(2 * TIMEOUT, BEAT, NULL), TIMEOUT);
}

/* No packet of this side reaches the other end, whose own packets come: none is confirmed. */
static void silence_knows_when_the_other_end_last_confirmed_something(void **state)
{
    (void)state;
    counters.acked_bytes = 100;
    (void)sign_after(BEAT, BEAT, NULL);
    assert_int_equal(silence.acked_ns, START + BEAT);
    (void)sign_after(TIMEOUT, BEAT, &counters.packets);
    assert_int_equal(silence.acked_ns, START + BEAT);
    assert_true(silence.packet_ns > START + TIMEOUT - 2 * BEAT);
    counters.acked_bytes = 101;
    (void)dp_silence_look(&silence, &counters, START + TIMEOUT + BEAT);
    assert_int_equal(silence.acked_ns, START + TIMEOUT + BEAT);
}

static void silence_before_the_first_beat_says_nothing(void **state)
{
    (void)state;
    dp_silence_init(&silence, TIMEOUT);
    assert_int_equal(dp_silence_look(&silence, &counters, START), 0);
}

/* A packet is lost, and `follows` later a beat comes. */
static void lose_one(uint64_t at_ns, uint64_t follows_ns)
{
    counters.resent++;
    (void)dp_silence_look(&silence, &counters, at_ns);
    if (follows_ns > 0) dp_silence_beat(&silence, at_ns + follows_ns);
}

static void silence_a_link_is_bad_that_survived_three_losses(void **state)
{
    const uint64_t last_ns = START + 6 * TIMEOUT + BEAT;

    (void)state;
    for (uint64_t i = 1; i <= 2; i++)
        lose_one(START + i * 2 * TIMEOUT, BEAT);
    assert_false(dp_silence_is_bad(&silence, last_ns));
    dp_silence_beat(&silence, START + 5 * TIMEOUT); /* after no loss */
    assert_false(dp_silence_is_bad(&silence, last_ns));
    lose_one(START + 6 * TIMEOUT, BEAT);
    assert_true(dp_silence_is_bad(&silence, last_ns));
    assert_true(dp_silence_is_bad(&silence, START + 2 * TIMEOUT + DP_SILENCE_BAD_NS));
    assert_false(dp_silence_is_bad(&silence, START + 2 * TIMEOUT + BEAT + DP_SILENCE_BAD_NS));
}

static void silence_a_link_is_not_bad_that_is_cut(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= 20; i++)
        lose_one(START + i * BEAT, 0);
    assert_false(dp_silence_is_bad(&silence, START + 20 * BEAT));
}

/* Losses that were survived, the last beat at START. */
static void become_bad(void)
{
    for (uint64_t i = DP_SILENCE_LOSSES; i > 0; i--)
        lose_one(START + BEAT - i * 3 * BEAT, 2 * BEAT);
    assert_true(dp_silence_is_bad(&silence, START));
}

/* No packet comes for longer than the timeout, as each of the repeated ones is lost by chance. */
static void silence_on_a_bad_link_counts_for_a_third(void **state)
{
    const uint64_t end_ns = DP_SILENCE_PATIENCE * TIMEOUT;

    (void)state;
    become_bad();
    for (uint64_t silent_ns = TIMEOUT; silent_ns < end_ns; silent_ns += 2 * BEAT) {
        setup(state);
        become_bad();
        assert_true(sign_after(silent_ns, 0, &counters.resent) > (int64_t)(silent_ns - TIMEOUT));
    }
    setup(state);
    become_bad();
    assert_true(sign_after(end_ns, 0, &counters.resent) <= (int64_t)(end_ns - TIMEOUT));
}

/* It is no longer forgiven than for lost packets. */
static void silence_of_a_frozen_process_behind_a_bad_link_ends_with_the_patience(void **state)
{
    const uint64_t end_ns = DP_SILENCE_PATIENCE * TIMEOUT;

    (void)state;
    become_bad();
    assert_true(sign_after(end_ns, BEAT, &counters.resent) <= (int64_t)(end_ns - TIMEOUT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(silence_without_packets_counts_from_the_last_one, setup),
        cmocka_unit_test_setup(silence_of_a_process_whose_kernel_answers_counts_from_its_beat,
                               setup),
        cmocka_unit_test_setup(silence_on_a_lossy_link_counts_from_the_last_packet, setup),
        cmocka_unit_test_setup(silence_on_a_lossy_link_counts_from_a_packet_that_came_again, setup),
        cmocka_unit_test_setup(silence_on_a_lossy_link_is_not_forgiven_for_ever, setup),
        cmocka_unit_test_setup(silence_ends_with_a_beat, setup),
        cmocka_unit_test_setup(silence_forgets_a_loss_of_long_ago, setup),
        cmocka_unit_test_setup(silence_does_not_count_while_this_side_stood_still, setup),
        cmocka_unit_test_setup(silence_knows_when_the_other_end_last_confirmed_something, setup),
        cmocka_unit_test_setup(silence_before_the_first_beat_says_nothing, setup),
        cmocka_unit_test_setup(silence_a_link_is_bad_that_survived_three_losses, setup),
        cmocka_unit_test_setup(silence_a_link_is_not_bad_that_is_cut, setup),
        cmocka_unit_test_setup(silence_on_a_bad_link_counts_for_a_third, setup),
        cmocka_unit_test_setup(silence_of_a_frozen_process_behind_a_bad_link_ends_with_the_patience,
                               setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
