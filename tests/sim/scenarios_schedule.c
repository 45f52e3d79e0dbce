/*
 * scenarios_schedule.c - worlds in which a cached schedule begins, ends in the middle of a round,
 * or comes back, as neither chance nor all orders of a few steps come to.
 *
 * Each case passes where the protocol is right, and fails for an error of tests/mutation that no
 * other program found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "scenario_world.h"

static void waiter_behind_a_missing_tensor_ends_the_schedule(void **state)
{
    const scenario_t cast = {2, 2, 4, NULL, 0, NULL, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 3, 2);
    assert_int_equal(world.ranks[1].schedules, 1);
    scenario_submit_all(&world, 0); /* this step goes without tensor 1 */
    scenario_submit_all(&world, 0);
    assert_int_equal(world.ranks[0].pending, 1);
    for (int r = 0; r < 2; r++)
        dp_negotiator_waits(world.ranks[r].negotiator, 0);
    scenario_settle(&world);
    assert_int_equal(world.ranks[0].schedule_end_reason, DP_SCHEDULE_END_WAIT);
    scenario_part(&world);
}

static void schedule_may_leave_a_subtree_out(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22)};
    const scenario_t cast = {3, 2, 2, groups, 2, kinds, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 1);
    for (int i = 0; i < 60; i++) {
        scenario_submit_all(&world, 0);
        assert_int_equal(world.ranks[0].pending, 0);
    }
    assert_int_equal(world.ranks[0].schedules, 1);
    assert_int_equal(world.ranks[0].schedule_ends, 0);
    scenario_part(&world);
}

static void together_once_is_not_together(void **state)
{
    const scenario_t cast = {2, 2, 4, NULL, 0, NULL, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 2, 2);
    scenario_submit(&world, 0, 0);
    scenario_submit(&world, 0, 1);
    for (int t = 0; t < 2; t++)
        world_submit(&world, 1, t, 768, 0, 1.0f, 0);
    scenario_settle(&world); /* the third round: in one launch */
    assert_int_equal(world.ranks[0].schedules, 1);
    scenario_submit_all(&world, 0); /* waited for before the other is submitted */
    scenario_part(&world);
}

/* Operations of two groups while a launch of the world is unsettled keep one order on all ranks. */
static void overlapping_groups_keep_one_order_behind_late_launches(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), SUM(2, 0), MAKE(1, 22),
                                           MAKE(2, 23)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 5, groups, 3, kinds, 1, 0, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 3);
        scenario_submit_all(&world, 4);
        scenario_play(&world, 3, 1);
        assert_int_equal(world.ranks[0].schedules, 1);
        scenario_submit(&world, 0, 0); /* launched by the schedule; the others are late */
        scenario_submit(&world, 0, 1); /* ends the schedule */
        scenario_settle(&world);
        scenario_submit(&world, 1, 1);
        scenario_settle(&world);
        scenario_submit(&world, 1, 2);
        scenario_submit(&world, 2, 2);
        scenario_settle(&world);
        scenario_submit(&world, 1, 0);
        scenario_submit(&world, 2, 0);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

/* A plan reduces in place what lay there in all its rounds. */
static void memory_that_moves_ends_the_schedule(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 2, groups, 2, kinds, 1, 0, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 1);
        scenario_play(&world, 5, 1);
        assert_int_equal(world.ranks[0].schedule_ends, 0);
        assert_true(world.ranks[2].scheduled_launches > 0);
        world.ranks[2].has_moved = 1;
        scenario_submit_all(&world, 0);
        assert_int_equal(world.ranks[0].schedule_ends, 1);
        assert_int_equal(world.ranks[0].schedule_end_reason, DP_SCHEDULE_END_MEMORY);
        scenario_part(&world);
    }
}

/* Ranks 1 and 2 owe the world's tensor, and 1 another one before it. They submit the former, which
 * is not settled before the other one: so 1 and 2 can do something else meanwhile. */
static void late_launches_are_settled_in_their_order(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), SUM(0, 0), SUM(2, 0), MAKE(1, 22),
                                           MAKE(2, 23)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 5, groups, 3, kinds, 1, 0, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 3);
        scenario_submit_all(&world, 4);
        scenario_play(&world, 3, 2);
        assert_int_equal(world.ranks[0].schedules, 1);
        scenario_submit(&world, 0, 0);
        scenario_submit(&world, 0, 1);
        dp_negotiator_end_schedule(world.ranks[0].negotiator, "a setting", 0);
        scenario_settle(&world);
        for (int t = 1; t < 3; t++) {
            scenario_submit(&world, 1, t);
            scenario_submit(&world, 2, t);
            scenario_settle(&world);
        }
        for (int r = 1; r < 3; r++) {
            assert_true(world.ranks[r].requests[1].is_pending);
            assert_false(world.ranks[r].requests[2].is_pending);
        }
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

static void schedule_that_is_kept_ends_with_its_group(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const scenario_t cast = {2, 2, 4, groups, 2, kinds, 1, 2, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 2);
    scenario_play(&world, 8, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    scenario_submit_all(&world, 3); /* the end of the group ends the schedule */
    assert_int_equal(world.ranks[0].schedule_ends, 1);
    scenario_play(&world, 6, 1);
    scenario_submit_all(&world, 2);
    for (int i = 0; i < 6; i++) {
        scenario_submit_all(&world, 1);
        scenario_submit_all(&world, 0);
    }
    scenario_part(&world);
}

/* Rank 1 has launched two rounds that rank 0 has not, and is the first to end the group. */
static void end_of_a_group_comes_after_unsettled_launches(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const scenario_t cast = {2, 2, 4, groups, 2, kinds, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 2);
    scenario_play(&world, 3, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int r = 1; r >= 0; r--) {
        for (int i = 0; i < 4; i++) {
            scenario_submit(&world, r, i % 2);
            if (r == 0) scenario_settle(&world);
        }
        scenario_submit(&world, r, 3);
        scenario_settle(&world);
    }
    scenario_part(&world);
}

static void nobody_runs_ahead_of_the_others_by_much(void **state)
{
    const scenario_t cast = {2, 1, 1, NULL, 0, NULL, 1, 0, 0};
    uint64_t ahead;
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 3, 1);
    assert_int_equal(world.ranks[1].schedules, 1);
    for (int i = 0; i < 100 && world.ranks[0].pending == 0; i++) {
        scenario_submit(&world, 0, 0);
        scenario_settle(&world);
    }
    ahead = world.ranks[0].scheduled_launches - world.ranks[1].scheduled_launches;
    assert_int_equal(world.ranks[0].pending, 1);
    assert_in_range(ahead, 16, 32);
    for (uint64_t i = 0; i < ahead + 1; i++) {
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
    }
    scenario_part(&world);
}

static void tensor_of_an_earlier_schedule_ends_the_next(void **state)
{
    const scenario_t cast = {2, 1, 2, NULL, 0, NULL, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 8, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int i = 0; i < 12; i++) {
        scenario_submit_all(&world, 0);
        for (int r = 0; r < 2; r++)
            dp_negotiator_waits(world.ranks[r].negotiator, 0);
        scenario_settle(&world);
    }
    assert_int_equal(world.ranks[0].schedules, 2);
    scenario_submit_all(&world, 1);
    scenario_expect_nothing_pending(&world);
    assert_int_equal(world.ranks[0].schedule_end_reason, DP_SCHEDULE_END_TENSOR);
    scenario_part(&world);
}

/* Rank 0 has launched what 1 and 2 owe. They may do something among themselves first: in this
 * schedule as in the one before it. */
static void ranks_that_are_behind_may_meet_before_they_catch_up(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(0, 1), SUM(1, 0), MAKE(1, 22)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 4, groups, 2, kinds, 1, 0, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 3);
        for (int schedules = 1; schedules < 4; schedules++) {
            while (world.ranks[0].schedules < schedules)
                scenario_submit_all(&world, 0);
            for (int i = 0; i < 4; i++)
                scenario_submit_all(&world, 0);
            scenario_submit(&world, 0, 0); /* launched by the schedule */
            scenario_submit(&world, 0, 1); /* ends it */
            scenario_settle(&world);
            scenario_submit_all(&world, 2);
            assert_int_equal(world.ranks[1].pending, 0);
            assert_int_equal(world.ranks[2].pending, 0);
            for (int t = 0; t < 2; t++) {
                scenario_submit(&world, 1, t);
                scenario_submit(&world, 2, t);
                scenario_settle(&world);
            }
            scenario_expect_nothing_pending(&world);
        }
        scenario_part(&world);
    }
}

/* Two sums of three ranks are scheduled, and a third tensor is one of ranks 0 and 1 alone. By the
 * schedule, rank 2 launches both sums, rank 0 the first, rank 1 none. */
static void begin_with_one_ahead(world_t *world, int arity)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(0, 1), SUM(1, 0), MAKE(1, 22)};
    const scenario_t cast = {3, arity, 4, groups, 2, kinds, 1, 0, 0};

    scenario_begin(world, &cast);
    scenario_submit_all(world, 3);
    scenario_play(world, 3, 2);
    assert_int_equal(world->ranks[0].schedules, 1);
    scenario_submit(world, 2, 0);
    scenario_submit(world, 2, 1);
    scenario_submit(world, 0, 0);
}

/* Rank 2 has launched two buckets, rank 0 one, rank 1 none. What 0 and 1 do then has its place
 * between the two, and need not wait for the second. */
static void launch_waits_for_the_late_launches_before_it_alone(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        world_t world;

        begin_with_one_ahead(&world, arity);
        scenario_submit(&world, 0, 2); /* ends the schedule */
        scenario_settle(&world);
        scenario_submit(&world, 1, 2);
        scenario_settle(&world);
        assert_int_equal(world.ranks[1].pending, 1);
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
        assert_int_equal(world.ranks[1].pending, 0);
        assert_int_equal(world.ranks[0].pending, 0);
        scenario_submit(&world, 0, 1);
        scenario_submit(&world, 1, 1);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

/* Rank 2 has launched two sums by the schedule, rank 0 the first, rank 1 none. Ranks 0 and 1 submit
 * the second with another number of elements: its failure settles it before its turn, and rank 0
 * launches it at once, without data. What 0 and 1 do next has its place behind it on rank 1, too.
 */
static void launch_comes_behind_a_late_one_that_has_failed(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        world_t world;

        begin_with_one_ahead(&world, arity);
        dp_negotiator_end_schedule(world.ranks[0].negotiator, "a setting", 0);
        scenario_settle(&world);
        for (int r = 0; r < 2; r++) {
            world_submit(&world, r, 1, 512, 0, 1.0f, 0);
            scenario_settle(&world);
        }
        for (int r = 0; r < 3; r++)
            assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
        for (int r = 0; r < 2; r++) {
            scenario_submit(&world, r, 2);
            scenario_settle(&world);
        }
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

/* A round counts once, however often its end is declared before the next flush. After a schedule
 * has ended it takes two of them. */
static void round_that_is_declared_twice_counts_once(void **state)
{
    const scenario_t cast = {2, 2, 2, NULL, 0, NULL, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 0);
    dp_negotiator_round(world.ranks[0].negotiator, 0);
    scenario_settle(&world);
    assert_int_equal(world.ranks[0].schedules, 1);
    scenario_submit_all(&world, 1); /* ends it */
    assert_int_equal(world.ranks[0].schedule_ends, 1);
    dp_negotiator_round(world.ranks[0].negotiator, 0);
    scenario_submit_all(&world, 0);
    for (int i = 0; i < 2; i++)
        dp_negotiator_round(world.ranks[0].negotiator, 0);
    scenario_settle(&world);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int i = 0; i < 2; i++) {
        scenario_submit_all(&world, 0);
        dp_negotiator_round(world.ranks[0].negotiator, 0);
        scenario_settle(&world);
    }
    assert_int_equal(world.ranks[0].schedules, 2);
    scenario_part(&world);
}

/* The root ends a round while ranks 1 and 2 are in the middle of the next one of theirs, so the
 * first round holds one of their tensors twice, and is not believed. Two rounds that are cut at one
 * place make a schedule. */
static void round_of_others_that_is_cut_is_not_believed(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), SUM(1, 1), SUM(0, 0), MAKE(1, 22)};
    const scenario_t cast = {3, 2, 4, groups, 2, kinds, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 3);
    scenario_submit_all(&world, 0);
    for (int round = 0; round < 6; round++) {
        scenario_submit_all(&world, 1);
        scenario_submit_all(&world, 0); /* of the next round */
        scenario_submit_all(&world, 2);
        dp_negotiator_round(world.ranks[0].negotiator, 0);
        scenario_settle(&world);
        assert_int_equal(world.ranks[0].schedules, round >= 2);
    }
    assert_int_equal(world.ranks[0].schedule_ends, 0);
    scenario_part(&world);
}

/* Rank 1 has launched a bucket of two tensors, rank 0 needs the result of a new operation between
 * the two: which has its place before the bucket, as long as not all of it is settled. */
static void late_bucket_is_settled_whole(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {0, 2}}};
    static const world_tensor_t kinds[] = {SUM(2, 0), SUM(1, 0), SUM(1, 1), MAKE(1, 22),
                                           MAKE(2, 23)};
    const scenario_t cast = {3, 2, 5, groups, 3, kinds, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    for (int t = 3; t < 5; t++)
        scenario_submit_all(&world, t);
    for (int round = 0; round < 3; round++) {
        scenario_submit_all(&world, 0);
        for (int t = 1; t < 3; t++)
            world_submit(&world, 1, t, 768, 0, 1.0f, 0);
        for (int t = 1; t < 3; t++)
            world_submit(&world, 0, t, 768, 0, 1.0f, 0);
        scenario_settle(&world);
    }
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int t = 1; t < 3; t++)
        scenario_submit(&world, 1, t);
    dp_negotiator_end_schedule(world.ranks[0].negotiator, "a setting", 0);
    scenario_settle(&world);
    scenario_submit(&world, 0, 1);
    scenario_settle(&world);
    scenario_submit_all(&world, 0);
    assert_false(world.ranks[0].requests[0].is_pending);
    assert_false(world.ranks[2].requests[0].is_pending);
    scenario_submit(&world, 0, 2);
    scenario_settle(&world);
    scenario_part(&world);
}

/* Rank 1 submits a tensor outside of the schedule, then one of it. It does not launch the second by
 * the schedule: rank 0 may need the result of the first before it submits the second. */
static void nothing_is_launched_behind_what_does_not_fit(void **state)
{
    const scenario_t cast = {2, 2, 3, NULL, 0, NULL, 1, 0, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 3, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    scenario_submit(&world, 1, 2);
    scenario_submit(&world, 1, 0);
    scenario_settle(&world);
    scenario_submit(&world, 0, 2);
    scenario_settle(&world);
    for (int r = 0; r < 2; r++)
        assert_false(world.ranks[r].requests[2].is_pending);
    scenario_submit(&world, 0, 0);
    scenario_settle(&world);
    scenario_part(&world);
}

/* Ranks 0 to 3 make sums over the pairs {0, 1} and {2, 3}, and of these over {0, 2} and {1, 3}, as
 * nodes that each hold a whole copy of the weights do. A rank adds up a second sum only after it
 * has waited for the first. When the schedule ends, ranks 2 and 3 have launched all of the round,
 * ranks 0 and 1 only the first sum. Whichever of them then goes first, the sum of {0, 1} that
 * nobody has launched must not have to wait for late launches behind it. */
static void late_launch_that_needs_a_new_one_is_not_waited_for(void **state)
{
    enum { A2, B2, A1, B1, Y2, Y1, X2, X1, SUMS };
    static const world_group_t groups[] = {
        {0, {0}}, {2, {0, 1}}, {2, {2, 3}}, {2, {0, 2}}, {2, {1, 3}}};
    static const world_tensor_t kinds[] = {SUM(1, 0),   SUM(2, 0),   SUM(1, 1),   SUM(2, 1),
                                           SUM(4, 0),   SUM(4, 1),   SUM(3, 0),   SUM(3, 1),
                                           MAKE(1, 22), MAKE(2, 23), MAKE(3, 24), MAKE(4, 25)};
    static const int orders[][6][2] = {
        {{0, X2}, {0, A1}, {1, Y2}, {1, A1}, {1, Y1}, {0, X1}},
        {{0, A1}, {0, X2}, {1, A1}, {1, Y2}, {1, Y1}, {0, X1}},
        {{0, A1}, {0, X2}, {1, Y2}, {1, A1}, {0, X1}, {1, Y1}},
    };

    (void)state;
    for (size_t o = 0; o < DP_ARRAY_LEN(orders); o++) {
        const scenario_t cast = {4, 1 + (int)o, SUMS + 4, groups, 5, kinds, 1, 0, 0};
        world_t world;

        scenario_begin(&world, &cast);
        for (int t = SUMS; t < SUMS + 4; t++)
            scenario_submit_all(&world, t);
        scenario_play(&world, 3, SUMS);
        assert_int_equal(world.ranks[0].schedules, 1);
        scenario_submit_all(&world, A2);
        scenario_submit_all(&world, B2);
        scenario_submit_all(&world, B1);
        scenario_submit(&world, 3, Y2);
        scenario_submit(&world, 3, Y1);
        scenario_submit(&world, 2, X2);
        scenario_submit(&world, 2, X1);
        dp_negotiator_end_schedule(world.ranks[0].negotiator, "a setting", 0);
        scenario_settle(&world);
        for (size_t i = 0; i < DP_ARRAY_LEN(orders[o]); i++) {
            const int rank = orders[o][i][0], tensor = orders[o][i][1];

            scenario_submit(&world, rank, tensor);
            scenario_settle(&world);
            if (tensor != A1 || i < 2)
                continue; /* both ranks have submitted it; they wait for it */
            assert_false(world.ranks[0].requests[A1].is_pending);
            assert_false(world.ranks[1].requests[A1].is_pending);
        }
        scenario_part(&world);
    }
}

/* Rank 1 waits for a tensor behind four that it has to launch late and does not submit: it gives up
 * one after the other, and all of that comes before the others have waited for too long. */
static void late_launches_are_given_up_before_the_limit(void **state)
{
    const scenario_t cast = {2, 2, 5, NULL, 0, NULL, 1, 0, 0};
    uint64_t now_ns = 1;
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_play(&world, 3, 4);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int t = 0; t < 5; t++)
        scenario_submit(&world, 0, t); /* launched by the schedule, and one that ends it */
    scenario_settle(&world);
    scenario_submit(&world, 1, 4);
    while (world.ranks[1].pending > 0 && now_ns < 2 * LIMIT) {
        now_ns = UINT64_MAX;
        for (int r = 0; r < 2; r++) {
            dp_negotiator_waits(world.ranks[r].negotiator, 0);
            now_ns = dp_min(now_ns, dp_negotiator_deadline(world.ranks[r].negotiator));
        }
        for (int r = 0; r < 2; r++)
            dp_negotiator_tick(world.ranks[r].negotiator, now_ns);
        world_settle(&world, now_ns);
        assert_false(world.ranks[0].is_fatal);
    }
    assert_true(now_ns > LIMIT / 2);
    assert_true(now_ns < LIMIT);
    assert_int_equal(world.ranks[0].voids, 4);
    scenario_part(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiter_behind_a_missing_tensor_ends_the_schedule),
        cmocka_unit_test(schedule_may_leave_a_subtree_out),
        cmocka_unit_test(together_once_is_not_together),
        cmocka_unit_test(overlapping_groups_keep_one_order_behind_late_launches),
        cmocka_unit_test(memory_that_moves_ends_the_schedule),
        cmocka_unit_test(late_launches_are_settled_in_their_order),
        cmocka_unit_test(schedule_that_is_kept_ends_with_its_group),
        cmocka_unit_test(end_of_a_group_comes_after_unsettled_launches),
        cmocka_unit_test(nobody_runs_ahead_of_the_others_by_much),
        cmocka_unit_test(tensor_of_an_earlier_schedule_ends_the_next),
        cmocka_unit_test(ranks_that_are_behind_may_meet_before_they_catch_up),
        cmocka_unit_test(launch_waits_for_the_late_launches_before_it_alone),
        cmocka_unit_test(launch_comes_behind_a_late_one_that_has_failed),
        cmocka_unit_test(round_that_is_declared_twice_counts_once),
        cmocka_unit_test(round_of_others_that_is_cut_is_not_believed),
        cmocka_unit_test(late_bucket_is_settled_whole),
        cmocka_unit_test(nothing_is_launched_behind_what_does_not_fit),
        cmocka_unit_test(late_launch_that_needs_a_new_one_is_not_waited_for),
        cmocka_unit_test(late_launches_are_given_up_before_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
