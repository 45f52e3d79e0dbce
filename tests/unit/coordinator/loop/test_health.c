/*
 * test_health.c - heartbeats and silence, on a clock that the test sets.
 */
#include "coordinator/loop/health.h"
#include "tests/unit/cases.h"

#define MS 1000000ull
#define START (5000 * MS)
#define HEARTBEAT (100 * MS)
#define TIMEOUT (3000 * MS)

static dp_health_t health;

static int setup(void **state)
{
    static const int ranks[] = {4, 9};

    (void)state;
    if (dp_health_init(&health, ranks, 2, HEARTBEAT, TIMEOUT, 30 * TIMEOUT, START) != DP_OK)
        return -1;
    dp_health_heard(&health, 4, START);
    dp_health_heard(&health, 9, START);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dp_health_fini(&health);
    return 0;
}

/* Does what the loop does at a time: gives heartbeats; returns the first other action's kind. */
static int at(uint64_t now_ns, int *rank)
{
    dp_health_action_t action;
    int kind = -1;

    dp_health_resume(&health, now_ns);
    while (dp_health_next(&health, now_ns, &action)) {
        if (action.kind == DP_HEALTH_SEND) {
            dp_health_gave_heartbeat(&health, action.rank, now_ns);
        } else if (kind < 0) {
            kind = (int)action.kind;
            *rank = action.rank;
        }
    }
    dp_health_sleep(&health, dp_health_deadline(&health));
    return kind;
}

static void all_have_spoken_once_the_last_one_has(void **state)
{
    static const int ranks[] = {1, 2};
    dp_health_t fresh;

    (void)state;
    assert_int_equal(dp_health_init(&fresh, ranks, 2, HEARTBEAT, TIMEOUT, START, START), DP_OK);
    assert_int_equal(dp_health_have_all_spoken(&fresh), 0);
    dp_health_heard(&fresh, 2, START);
    assert_int_equal(dp_health_have_all_spoken(&fresh), 0);
    dp_health_alive(&fresh, 1, START);
    assert_int_equal(dp_health_have_all_spoken(&fresh), 1);
    dp_health_fini(&fresh);
    assert_int_equal(dp_health_have_all_spoken(&fresh), 1); /* no neighbours */
}

static void heartbeat_is_due_for_each_rank_apart(void **state)
{
    dp_health_action_t action;

    (void)state;
    assert_int_equal(dp_health_next(&health, START + HEARTBEAT - 1, &action), 0);
    dp_health_gave_heartbeat(&health, 4, START + 50 * MS);
    assert_int_equal(dp_health_deadline(&health), START + HEARTBEAT);
    assert_int_equal(dp_health_next(&health, START + HEARTBEAT, &action), 1);
    assert_int_equal(action.kind, DP_HEALTH_SEND);
    assert_int_equal(action.rank, 9);
    dp_health_gave_heartbeat(&health, 9, START + HEARTBEAT);
    assert_int_equal(dp_health_next(&health, START + HEARTBEAT, &action), 0);
    assert_int_equal(dp_health_deadline(&health), START + 50 * MS + HEARTBEAT);
}

static void silence_is_suspect_then_death_and_each_is_reported_once(void **state)
{
    int suspects = 0;
    int losses = 0;
    uint64_t lost_ns = 0;

    (void)state;
    for (uint64_t now_ns = START; now_ns < START + 2 * TIMEOUT; now_ns += 50 * MS) {
        int rank = -1;
        int kind;

        dp_health_heard(&health, 4, now_ns);
        kind = at(now_ns, &rank);
        if (kind < 0) continue;
        assert_int_equal(rank, 9);
        suspects += kind == DP_HEALTH_SUSPECT;
        losses += kind == DP_HEALTH_LOST;
        if (kind == DP_HEALTH_LOST) lost_ns = now_ns;
    }
    assert_int_equal(suspects, 1);
    assert_int_equal(losses, 1);
    assert_int_equal(lost_ns, START + TIMEOUT);
}

static void suspect_that_speaks_is_back(void **state)
{
    int rank = -1;

    (void)state;
    for (uint64_t now_ns = START; now_ns < START + 1500 * MS; now_ns += 100 * MS) {
        dp_health_heard(&health, 9, now_ns);
        (void)at(now_ns, &rank);
    }
    assert_int_equal(rank, 4);
    dp_health_heard(&health, 4, START + 1550 * MS);
    dp_health_heard(&health, 9, START + 1550 * MS);
    assert_int_equal(at(START + 1550 * MS, &rank), DP_HEALTH_BACK);
    assert_int_equal(rank, 4);
}

static void rank_that_was_away_blames_nobody(void **state)
{
    int rank = -1;

    (void)state;
    assert_int_equal(at(START + 100 * MS, &rank), -1);
    /* stopped for a minute */
    assert_int_equal(at(START + 60000 * MS, &rank), -1);
    assert_int_equal(at(START + 60100 * MS, &rank), -1);
    /* but a rank that stays silent from then on is dead after the full time */
    for (int i = 2; i < 30; i++) {
        assert_int_not_equal(at(START + 60000 * MS + (uint64_t)i * 100 * MS, &rank),
                             DP_HEALTH_LOST);
    }
    assert_int_equal(at(START + 63000 * MS, &rank), DP_HEALTH_LOST);
}

static void long_sleep_that_was_planned_is_no_absence(void **state)
{
    (void)state;
    dp_health_resume(&health, START);
    dp_health_sleep(&health, START + 2900 * MS);
    assert_int_equal(dp_health_resume(&health, START + 2901 * MS), 0);
    dp_health_sleep(&health, START + 2950 * MS);
    assert_int_equal(dp_health_resume(&health, START + 4000 * MS), 1);
}

static void sign_of_life_without_a_message_counts_from_when_it_was_seen(void **state)
{
    uint64_t lost_ns = 0;
    int rank = -1;

    (void)state;
    for (uint64_t now_ns = START; now_ns < START + 2 * TIMEOUT; now_ns += 50 * MS) {
        int kind;

        dp_health_heard(&health, 9, now_ns);
        if (now_ns == START + TIMEOUT - 50 * MS) {
            dp_health_alive(&health, 4, START + TIMEOUT - 100 * MS);
            dp_health_alive(&health, 4, START + 500 * MS); /* older news come later */
        }
        kind = at(now_ns, &rank);
        if (kind == DP_HEALTH_LOST) lost_ns = now_ns;
        if (kind >= 0) assert_int_equal(rank, 4);
    }
    assert_int_equal(lost_ns, START + 2 * TIMEOUT - 100 * MS);
}

static void rank_that_lives_and_sends_no_message_is_mute_in_the_end(void **state)
{
    const uint64_t limit_ns = 30 * TIMEOUT;
    int rank = -1;

    (void)state;
    for (uint64_t now_ns = START; now_ns < START + limit_ns; now_ns += 50 * MS) {
        dp_health_heard(&health, 9, now_ns);
        dp_health_alive(&health, 4, now_ns);
        assert_int_equal(at(now_ns, &rank), -1);
    }
    dp_health_heard(&health, 9, START + limit_ns);
    dp_health_alive(&health, 4, START + limit_ns);
    assert_true(dp_health_deadline(&health) <= START + limit_ns);
    assert_int_equal(at(START + limit_ns, &rank), DP_HEALTH_MUTE);
    assert_int_equal(rank, 4);
    assert_int_equal(at(START + limit_ns + 50 * MS, &rank), -1);
}

/* Rank 4 sends no message, and gives signs of life until last_ns; this rank looks every step_ns,
 * but not from START + 30 * TIMEOUT on for away_ns. It is lost for its silence, and the loop
 * sleeps. */
static void expect_loss_for_silence(uint64_t last_ns, uint64_t step_ns, uint64_t away_ns)
{
    const uint64_t due_ns = START + 30 * TIMEOUT;
    uint64_t lost_ns = 0;
    int rank = -1;

    for (uint64_t now_ns = START; now_ns <= last_ns + TIMEOUT; now_ns += step_ns) {
        int kind;

        if (now_ns >= due_ns && now_ns < due_ns + away_ns) continue;
        dp_health_heard(&health, 9, now_ns);
        if (now_ns <= last_ns) dp_health_alive(&health, 4, now_ns);
        kind = at(now_ns, &rank);
        assert_int_not_equal(kind, DP_HEALTH_MUTE);
        if (kind == DP_HEALTH_LOST) lost_ns = now_ns;
        assert_true(dp_health_deadline(&health) > now_ns); /* nothing is left to do now */
    }
    assert_int_equal(rank, 4);
    assert_int_equal(lost_ns, last_ns + TIMEOUT);
}

/* Its neighbours that had messages of it report its silence; so does this one. */
static void rank_that_sends_no_message_and_falls_silent_is_lost_for_its_silence(void **state)
{
    (void)state;
    expect_loss_for_silence(START + 30 * TIMEOUT - 2000 * MS, 50 * MS, 0);
}

/* Its last sign of life comes in time for it to be mute, and this rank has no core until that sign
 * is too old. The deadline was the one that had passed, and the loop did not sleep for two seconds.
 */
static void rank_that_is_mute_and_silent_at_a_late_look_is_waited_for_asleep(void **state)
{
    (void)state;
    expect_loss_for_silence(START + 30 * TIMEOUT - DP_HEALTH_SUSPECT_NS + 20 * MS, 10 * MS,
                            30 * MS);
}

/* It was only away for a moment. */
static void rank_that_sends_no_message_is_mute_once_it_is_heard_again(void **state)
{
    const uint64_t limit_ns = 30 * TIMEOUT;
    int rank = -1;

    (void)state;
    for (uint64_t now_ns = START; now_ns <= START + limit_ns; now_ns += 50 * MS) {
        dp_health_heard(&health, 9, now_ns);
        if (now_ns < START + limit_ns - 2000 * MS) dp_health_alive(&health, 4, now_ns);
        assert_int_not_equal(at(now_ns, &rank), DP_HEALTH_MUTE);
    }
    dp_health_heard(&health, 9, START + limit_ns + 50 * MS);
    dp_health_alive(&health, 4, START + limit_ns + 50 * MS);
    assert_int_equal(at(START + limit_ns + 50 * MS, &rank), DP_HEALTH_MUTE);
    assert_int_equal(rank, 4);
}

static void rank_that_never_spoke_may_still_be_starting(void **state)
{
    static const int ranks[] = {1};
    dp_health_t starting;
    dp_health_action_t action;
    uint64_t lost_ns = 0;

    (void)state;
    assert_int_equal(dp_health_init(&starting, ranks, 1, HEARTBEAT, TIMEOUT, 4 * TIMEOUT, START),
                     DP_OK);
    for (uint64_t now_ns = START; now_ns < START + 5 * TIMEOUT; now_ns += 100 * MS) {
        while (dp_health_next(&starting, now_ns, &action)) {
            assert_int_not_equal(action.kind, DP_HEALTH_SUSPECT);
            if (action.kind == DP_HEALTH_LOST) lost_ns = now_ns;
            if (action.kind == DP_HEALTH_SEND) dp_health_gave_heartbeat(&starting, 1, now_ns);
        }
    }
    assert_int_equal(lost_ns, START + 4 * TIMEOUT);
    dp_health_fini(&starting);
}

static void lost_rank_is_left_alone(void **state)
{
    dp_health_action_t action;

    (void)state;
    dp_health_gone(&health, 4);
    dp_health_gone(&health, 9);
    dp_health_gone(&health, 77); /* no neighbour */
    assert_int_equal(dp_health_next(&health, START + 10 * TIMEOUT, &action), 0);
    assert_true(dp_health_deadline(&health) == UINT64_MAX);
}

static void without_a_timeout_silence_is_no_death(void **state)
{
    static const int ranks[] = {1};
    dp_health_t patient;
    dp_health_action_t action;
    int lost = 0;

    (void)state;
    assert_int_equal(dp_health_init(&patient, ranks, 1, HEARTBEAT, 0, 0, START), DP_OK);
    for (uint64_t now_ns = START; now_ns < START + 100 * TIMEOUT; now_ns += 100 * MS) {
        while (dp_health_next(&patient, now_ns, &action)) {
            lost += action.kind == DP_HEALTH_LOST;
            if (action.kind == DP_HEALTH_SEND) dp_health_gave_heartbeat(&patient, 1, now_ns);
        }
    }
    assert_int_equal(lost, 0);
    dp_health_fini(&patient);
}

/* Each way counts for itself; a sign of life repeats the last number. */
static void lost_message_leaves_a_gap_in_the_numbers(void **state)
{
    uint32_t due;

    (void)state;
    assert_int_equal(dp_health_number(&health, 4, 0), 0);
    assert_int_equal(dp_health_number(&health, 4, 1), 1);
    assert_int_equal(dp_health_number(&health, 4, 1), 2);
    assert_int_equal(dp_health_number(&health, 4, 0), 2);
    assert_int_equal(dp_health_number(&health, 9, 1), 1);
    assert_int_equal(dp_health_in_order(&health, 4, 0, 0, &due), 1);
    assert_int_equal(dp_health_in_order(&health, 4, 1, 1, &due), 1);
    assert_int_equal(dp_health_in_order(&health, 4, 0, 1, &due), 1);
    assert_int_equal(dp_health_in_order(&health, 4, 1, 3, &due), 0); /* the second is missing */
    assert_int_equal(due, 2);
    assert_int_equal(dp_health_in_order(&health, 4, 0, 2, &due), 0); /* here too */
    assert_int_equal(due, 1);
    assert_int_equal(dp_health_in_order(&health, 4, 1, 1, &due), 0); /* the first once more */
    assert_int_equal(dp_health_in_order(&health, 77, 1, 1, &due), 0);
}

static void lonely_rank_has_nothing_to_do(void **state)
{
    dp_health_t lonely;
    dp_health_action_t action;

    (void)state;
    assert_int_equal(dp_health_init(&lonely, NULL, 0, HEARTBEAT, TIMEOUT, TIMEOUT, START), DP_OK);
    assert_int_equal(dp_health_next(&lonely, START + 10 * TIMEOUT, &action), 0);
    assert_true(dp_health_deadline(&lonely) == UINT64_MAX);
    dp_health_fini(&lonely);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(all_have_spoken_once_the_last_one_has),
        CASE(heartbeat_is_due_for_each_rank_apart),
        CASE(silence_is_suspect_then_death_and_each_is_reported_once),
        CASE(suspect_that_speaks_is_back),
        CASE(rank_that_was_away_blames_nobody),
        CASE(long_sleep_that_was_planned_is_no_absence),
        CASE(sign_of_life_without_a_message_counts_from_when_it_was_seen),
        CASE(rank_that_lives_and_sends_no_message_is_mute_in_the_end),
        CASE(rank_that_sends_no_message_and_falls_silent_is_lost_for_its_silence),
        CASE(rank_that_is_mute_and_silent_at_a_late_look_is_waited_for_asleep),
        CASE(rank_that_sends_no_message_is_mute_once_it_is_heard_again),
        CASE(rank_that_never_spoke_may_still_be_starting),
        CASE(lost_rank_is_left_alone),
        CASE(without_a_timeout_silence_is_no_death),
        CASE(lost_message_leaves_a_gap_in_the_numbers),
        CASE(lonely_rank_has_nothing_to_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
