/*
 * test_negotiator_schedule.c - the rules of the cached schedule one by one: when it begins, what it
 * costs, what ends it, and what happens to launches that not every rank could follow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/sim/world.h"

#define SECOND UINT64_C(1000000000)

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static void begin_kinds(world_t *world, int size, uint64_t resume_rounds,
                        const world_tensor_t *kinds)
{
    world_options_t options = {0};

    options.size = size;
    options.tensors = 4;
    options.occurrences = 200;
    options.arity = 2;
    options.nodes = 1;
    options.fusion_bytes = 1 << 20;
    options.stall_warn_ns = 10 * SECOND;
    options.stall_limit_ns = 100 * SECOND;
    options.may_schedule = 1;
    options.resume_rounds = resume_rounds;
    options.kinds = kinds;
    options.violated = violated;
    world_init(world, &options);
}

static void begin_with(world_t *world, int size, uint64_t resume_rounds)
{
    begin_kinds(world, size, resume_rounds, NULL);
}

static void begin(world_t *world, int size)
{
    begin_with(world, size, 0);
}

static void tick(world_t *world, uint64_t now_ns)
{
    for (int r = 0; r < world->options.size; r++)
        dp_negotiator_tick(world->ranks[r].negotiator, now_ns);
    world_settle(world, now_ns);
}

static void submit_one(world_t *world, int rank, int tensor, float absmax)
{
    world_submit(world, rank, tensor, 768, 0, absmax, 0);
    world_drain(world, rank);
}

/* Rounds of two tensors, each waited for. */
static void play(world_t *world, int count)
{
    for (int i = 0; i < count; i++) {
        for (int t = 0; t < 2; t++) {
            for (int r = 0; r < world->options.size; r++)
                submit_one(world, r, t, 1.0f);
            world_settle(world, 0);
        }
    }
}

/* All ranks launch by the schedule, in the same epoch. */
static void begin_scheduled(world_t *world, int size)
{
    begin(world, size);
    play(world, 3);
    for (int r = 0; r < size; r++)
        assert_int_equal(world->ranks[r].schedules, 1);
}

static void expect_ended(const world_t *world, dp_schedule_end_reason_t reason)
{
    for (int r = 0; r < world->options.size; r++) {
        assert_int_equal(world->ranks[r].schedule_ends, 1);
        assert_string_equal(dp_schedule_end_reason_name(world->ranks[r].schedule_end_reason),
                            dp_schedule_end_reason_name(reason));
    }
}

static void schedule_begins_when_a_sequence_came_three_times(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    play(&world, 2);
    assert_int_equal(world.ranks[2].schedules, 0);
    play(&world, 1);
    assert_int_equal(world.ranks[2].schedules, 1);
    world_fini(&world);
}

/* Kinds of four tensors, of which rounds have the first two. */
#define REDUCTION_AND(collective, root)                                                            \
    {                                                                                              \
        {0, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0}, {0, collective, root, -1, 1},                     \
            {0, DP_COLLECTIVE_ALLREDUCE, -1, -1, 2},                                               \
        {                                                                                          \
            0, DP_COLLECTIVE_ALLREDUCE, -1, -1, 3                                                  \
        }                                                                                          \
    }

static void schedule_holds_gathers_and_scatters_beside_reductions(void **state)
{
    static const world_tensor_t gather[] = REDUCTION_AND(DP_COLLECTIVE_ALLGATHER, -1);
    static const world_tensor_t scatter[] = REDUCTION_AND(DP_COLLECTIVE_REDUCE_SCATTER, -1);
    const world_tensor_t *const kinds[] = {gather, scatter};
    world_t world;

    (void)state;
    for (int i = 0; i < 2; i++) {
        begin_kinds(&world, 3, 0, kinds[i]);
        play(&world, 3);
        assert_int_equal(world.ranks[2].schedules, 1);
        play(&world, 4);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(world.ranks[r].scheduled_launches, 8);
            assert_int_equal(world.ranks[r].scheduled_gathers, i == 0 ? 4 : 0);
            assert_int_equal(world.ranks[r].schedule_ends, 0);
        }
        world_check_flights(&world);
        world_fini(&world);
    }
}

/* A rank could complete these before others have launched them. */
static void schedule_does_not_hold_what_a_rank_can_complete_alone(void **state)
{
    static const world_tensor_t kinds[][4] = {
        REDUCTION_AND(DP_COLLECTIVE_BROADCAST, 1), REDUCTION_AND(DP_COLLECTIVE_REDUCE, 1),
        REDUCTION_AND(DP_COLLECTIVE_BARRIER, -1), REDUCTION_AND(DP_COLLECTIVE_ALLGATHERV, -1)};
    world_t world;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(kinds); i++) {
        begin_kinds(&world, 2, 0, kinds[i]);
        play(&world, 8);
        assert_int_equal(world.ranks[1].schedules, 0);
        world_fini(&world);
    }
}

static void schedule_of_a_declared_round_begins_after_the_first(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    play(&world, 1);
    dp_negotiator_round(world.ranks[0].negotiator, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[2].schedules, 1);
    world_fini(&world);
}

/* The end of the round and the next one may come to the root together, which is the last to have
 * it: all of the next round is launched by the schedule. */
static void schedule_of_a_declared_round_begins_before_the_next(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    play(&world, 1);
    for (int t = 0; t < 2; t++) {
        for (int r = 1; r < 3; r++)
            submit_one(&world, r, t, 1.0f);
    }
    world_settle(&world, 0);
    dp_negotiator_round(world.ranks[0].negotiator, 0);
    for (int t = 0; t < 2; t++)
        world_submit(&world, 0, t, 768, 0, 1.0f, 0);
    world_settle(&world, 0);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(world.ranks[r].schedules, 1);
        assert_int_equal(world.ranks[r].scheduled_launches, 2);
        assert_int_equal(world.ranks[r].pending, 0);
    }
    world_fini(&world);
}

static void declare(world_t *world)
{
    play(world, 1);
    dp_negotiator_round(world->ranks[0].negotiator, 0);
    world_settle(world, 0);
}

/* After a schedule the rest of its last round is no round. */
static void schedule_of_declared_rounds_comes_back_after_whole_ones(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3);
    declare(&world);
    assert_int_equal(world.ranks[2].schedules, 1);
    for (int again = 1; again <= 2; again++) {
        for (int r = 0; r < 3; r++)
            submit_one(&world, r, 2, 1.0f);
        world_settle(&world, 0);
        assert_int_equal(world.ranks[2].schedule_ends, again);
        declare(&world); /* of which the beginning was not seen */
        declare(&world);
        assert_int_equal(world.ranks[2].schedules, again);
        declare(&world);
        assert_int_equal(world.ranks[2].schedules, again + 1);
        for (int i = 0; i < 4; i++) /* twice what it took: worth it */
            declare(&world);
    }
    world_fini(&world);
}

/* A bucket for each tensor, so a stride of eight rounds: two messages per edge in as many. */
static void schedule_launches_cost_no_message(void **state)
{
    world_t world;
    uint64_t messages;

    (void)state;
    begin_scheduled(&world, 3);
    messages = world.messages;
    play(&world, 7);
    assert_int_equal(world.messages, messages);
    play(&world, 1);
    assert_int_equal(world.messages, messages + 4);
    assert_int_equal(world.ranks[1].scheduled_launches, 16);
    world_fini(&world);
}

/* No rank is more than a stride ahead of the slowest. */
static void schedule_bounds_how_far_a_rank_runs_ahead(void **state)
{
    world_t world;
    int launched = 0;

    (void)state;
    begin_scheduled(&world, 2);
    for (int i = 0; i < 100; i++) {
        for (int t = 0; t < 2; t++) {
            if (world.ranks[0].requests[t].is_pending) continue;
            submit_one(&world, 0, t, 1.0f);
            launched += !world.ranks[0].requests[t].is_pending;
        }
    }
    assert_int_equal(launched, 2 * 9);
    assert_int_equal(world.ranks[0].schedule_ends, 0);
    world_fini(&world);
}

static void schedule_ends_for_another_tensor_and_goes_on(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 3);
    submit_one(&world, 0, 0, 1.0f); /* launched at once, by itself */
    assert_int_equal(world.ranks[0].requests[0].is_pending, 0);
    for (int r = 0; r < 3; r++)
        submit_one(&world, r, 2, 1.0f);
    world_settle(&world, 0);
    expect_ended(&world, DP_SCHEDULE_END_TENSOR);
    assert_int_equal(world.ranks[0].requests[2].is_pending, 0);
    submit_one(&world, 1, 0, 1.0f);
    submit_one(&world, 2, 0, 1.0f);
    world_settle(&world, 0);
    for (int r = 0; r < 3; r++)
        assert_int_equal(world.ranks[r].pending, 0);
    world_check_flights(&world);
    world_fini(&world);
}

/* A tensor that all ranks submit and wait for. */
static void interlude(world_t *world, int tensor)
{
    for (int r = 0; r < world->options.size; r++)
        submit_one(world, r, tensor, 1.0f);
    world_settle(world, 0);
}

static void expect_schedules(const world_t *world, int schedules)
{
    for (int r = 0; r < world->options.size; r++)
        assert_int_equal(world->ranks[r].schedules, schedules);
}

/* All of the round behind an interlude is launched by the schedule, the first tensor included. */
static void schedule_comes_back_when_what_ended_it_has_passed(void **state)
{
    world_t world;
    int launched;

    (void)state;
    begin_with(&world, 3, 2);
    play(&world, 3);
    for (int again = 1; again <= 3; again++) {
        play(&world, 2);
        expect_schedules(&world, again);
        interlude(&world, 2);
        interlude(&world, 3);
        expect_schedules(&world, again);
        launched = world.ranks[2].scheduled_launches;
        play(&world, 1);
        expect_schedules(&world, again + 1);
        assert_int_equal(world.ranks[2].scheduled_launches, launched + 2);
    }
    world_fini(&world);
}

static void schedule_that_ended_in_a_round_comes_back_behind_it(void **state)
{
    world_t world;

    (void)state;
    begin_with(&world, 3, 2);
    play(&world, 5);
    expect_schedules(&world, 1);
    interlude(&world, 0);
    interlude(&world, 2);
    interlude(&world, 1);
    expect_schedules(&world, 1);
    play(&world, 1);
    expect_schedules(&world, 2);
    world_fini(&world);
}

static void schedule_that_was_not_worth_it_does_not_come_back_at_once(void **state)
{
    world_t world;

    (void)state;
    begin_with(&world, 3, 2);
    play(&world, 4);
    interlude(&world, 2);
    play(&world, 2);
    expect_schedules(&world, 1);
    world_fini(&world);
}

static void schedule_ended_by_a_setting_does_not_come_back_at_once(void **state)
{
    world_t world;

    (void)state;
    begin_with(&world, 2, 2);
    play(&world, 6);
    dp_negotiator_end_schedule(world.ranks[1].negotiator, "a setting", 0);
    world_settle(&world, 0);
    play(&world, 2);
    expect_schedules(&world, 1);
    world_fini(&world);
}

/* Where an operation is always under way at the end of a round the sequence itself is looked at. */
static void declared_rounds_that_cut_operations_are_not_believed(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 2);
    for (int i = 0; i < 8; i++) {
        submit_one(&world, 0, 0, 1.0f);
        dp_negotiator_round(world.ranks[0].negotiator, 0);
        submit_one(&world, 1, 0, 1.0f);
        world_settle(&world, 0);
        interlude(&world, 1);
    }
    expect_schedules(&world, 1);
    world_fini(&world);
}

static void schedule_ends_for_a_setting(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 2);
    dp_negotiator_end_schedule(world.ranks[1].negotiator, "a setting", 0);
    world_settle(&world, 0);
    expect_ended(&world, DP_SCHEDULE_END_SETTING);
    world_fini(&world);
}

static void schedule_ends_when_a_thread_waits_for_part_of_a_bucket(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 2);
    submit_one(&world, 0, 1, 1.0f); /* the second: the first is not there */
    submit_one(&world, 1, 1, 1.0f);
    assert_int_equal(world.ranks[0].requests[1].is_pending, 1);
    dp_negotiator_waits(world.ranks[0].negotiator, 0);
    world_settle(&world, 0);
    expect_ended(&world, DP_SCHEDULE_END_WAIT);
    assert_int_equal(world.ranks[0].requests[1].is_pending, 0);
    world_fini(&world);
}

/* The late rank is named as without a schedule; what was launched counts as submitted. */
static void schedule_ends_where_a_rank_is_late(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 3);
    submit_one(&world, 0, 0, 1.0f);
    submit_one(&world, 1, 0, 1.0f);
    tick(&world, 6 * SECOND);
    tick(&world, 12 * SECOND);
    expect_ended(&world, DP_SCHEDULE_END_STALL);
    tick(&world, 12 * SECOND); /* it has waited long enough already */
    assert_non_null(strstr(world.ranks[0].last_warning, "ready on 2 of 3 ranks; missing rank 2"));
    submit_one(&world, 2, 0, 1.0f);
    world_settle(&world, 13 * SECOND);
    world_check_flights(&world);
    world_fini(&world);
}

static void schedule_pause_of_all_is_no_stall(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 3);
    play(&world, 3);
    for (uint64_t now = 0; now < 60 * SECOND; now += SECOND)
        tick(&world, now);
    assert_int_equal(world.ranks[0].schedule_ends, 0);
    assert_int_equal(world.ranks[0].warnings, 0);
    world_fini(&world);
}

/* A rank waits for what lies behind a launch that it keeps others waiting for. */
static void late_launch_of_a_rank_that_waits_fails_everywhere(void **state)
{
    world_t world;

    (void)state;
    begin_scheduled(&world, 2);
    submit_one(&world, 0, 0, 1.0f);
    submit_one(&world, 0, 2, 1.0f);
    submit_one(&world, 1, 2, 1.0f);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[0].requests[2].is_pending, 0);
    assert_int_equal(world.ranks[1].requests[2].is_pending, 1); /* behind its late launch */
    dp_negotiator_waits(world.ranks[1].negotiator, SECOND);
    tick(&world, 9 * SECOND);
    assert_int_equal(world.ranks[1].warnings, 0);
    dp_negotiator_tick(world.ranks[1].negotiator, 12 * SECOND);
    world_settle(&world, 12 * SECOND);
    assert_non_null(strstr(world.ranks[1].last_warning, "waited 11.0 s behind tensor h.0.weight"));
    tick(&world, 50 * SECOND);
    assert_int_equal(world.ranks[0].voids, 0);
    tick(&world, 52 * SECOND); /* half of the limit */
    assert_int_equal(world.ranks[0].voids, 1);
    assert_int_equal(world.ranks[1].requests[2].is_pending, 0);
    submit_one(&world, 1, 0, 1.0f); /* fails with the same text, so that all stay in step */
    assert_int_equal(world.ranks[1].voids, 1);
    world_check_flights(&world);
    world_fini(&world);
}

/* The settling of a late launch and its successors may arrive before any output is taken. */
static void late_launch_comes_before_what_was_ordered_behind_it(void **state)
{
    enum { UP, DOWN }; /* edges */
    world_t world;

    (void)state;
    begin_scheduled(&world, 2);
    submit_one(&world, 0, 0, 1.0f); /* launched at once */
    submit_one(&world, 0, 2, 1.0f);
    world_settle(&world, 0);
    expect_ended(&world, DP_SCHEDULE_END_TENSOR);
    for (int tensor = 0; tensor <= 2; tensor += 2) {
        submit_one(&world, 1, tensor, 1.0f);
        world_deliver(&world, UP, 0);
        world_drain(&world, 0);
    }
    world_deliver(&world, DOWN, 0);
    world_deliver(&world, DOWN, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[1].pending, 0);
    world_check_order(&world);
    world_check_flights(&world);
    world_fini(&world);
}

/* Two ranks had launched the gather; the third has no data for it, or brings it later. */
static void gather_that_some_ranks_launched_is_settled_with_the_others(void **state)
{
    static const world_tensor_t kinds[] = REDUCTION_AND(DP_COLLECTIVE_ALLGATHER, -1);
    world_t world;

    (void)state;
    for (int joins = 0; joins < 2; joins++) {
        begin_kinds(&world, 3, 0, kinds);
        play(&world, 3);
        for (int t = 0; t < 2; t++) {
            for (int r = 0; r < 2; r++)
                submit_one(&world, r, t, 1.0f);
        }
        submit_one(&world, 2, 0, 1.0f);
        if (joins) {
            world_join(&world, 2, 0, 4, 0);
        } else {
            interlude(&world, 2);
            submit_one(&world, 2, 1, 1.0f);
        }
        world_settle(&world, 0);
        expect_ended(&world, joins ? DP_SCHEDULE_END_JOIN : DP_SCHEDULE_END_TENSOR);
        for (int r = 0; r < 2; r++)
            assert_int_equal(world.ranks[r].pending, 0);
        assert_int_equal(world.ranks[2].identity_count, joins);
        world_check_flights(&world);
        world_check_order(&world);
        world_fini(&world);
    }
}

static void schedule_ends_for_a_magnitude(void **state)
{
    world_t world;
    dp_signature_part_t part = {768, DP_F32};
    dp_signature_t signature;
    dp_submission_t submission = {.signature = &signature, .name = "h.0.weight"};

    (void)state;
    begin(&world, 2);
    world_signature(&signature, &part, 768);
    signature.wire = DP_WIRE_FP16;
    for (int i = 0; i < 8; i++) {
        submission.last_absmax = i < 3 ? -1.0f : i < 7 ? 1.0f : 64.0f;
        for (int r = 0; r < 2; r++) {
            submission.request = &world.ranks[r].requests[0];
            world.ranks[r].requests[0].is_pending = 1;
            world.ranks[r].requests[0].occurrence = i;
            world.ranks[r].pending++;
            world.ranks[r].pending_in[0]++;
            world.ranks[r].submitted[0]++;
            world.ranks[r].magnitudes[i] = submission.last_absmax;
            assert_int_equal(dp_negotiator_submit(world.ranks[r].negotiator, &submission, 0),
                             DP_OK);
        }
        world_settle(&world, 0);
        /* what has no figure yet is in no schedule: it would travel uncompressed for long */
        assert_int_equal(world.ranks[1].schedules, i >= 3);
    }
    expect_ended(&world, DP_SCHEDULE_END_SCALE);
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_begins_when_a_sequence_came_three_times),
        cmocka_unit_test(schedule_holds_gathers_and_scatters_beside_reductions),
        cmocka_unit_test(schedule_does_not_hold_what_a_rank_can_complete_alone),
        cmocka_unit_test(schedule_of_a_declared_round_begins_after_the_first),
        cmocka_unit_test(schedule_of_a_declared_round_begins_before_the_next),
        cmocka_unit_test(schedule_of_declared_rounds_comes_back_after_whole_ones),
        cmocka_unit_test(schedule_launches_cost_no_message),
        cmocka_unit_test(schedule_bounds_how_far_a_rank_runs_ahead),
        cmocka_unit_test(schedule_ends_for_another_tensor_and_goes_on),
        cmocka_unit_test(schedule_comes_back_when_what_ended_it_has_passed),
        cmocka_unit_test(schedule_that_ended_in_a_round_comes_back_behind_it),
        cmocka_unit_test(schedule_that_was_not_worth_it_does_not_come_back_at_once),
        cmocka_unit_test(schedule_ended_by_a_setting_does_not_come_back_at_once),
        cmocka_unit_test(declared_rounds_that_cut_operations_are_not_believed),
        cmocka_unit_test(schedule_ends_for_a_setting),
        cmocka_unit_test(schedule_ends_when_a_thread_waits_for_part_of_a_bucket),
        cmocka_unit_test(schedule_ends_where_a_rank_is_late),
        cmocka_unit_test(schedule_pause_of_all_is_no_stall),
        cmocka_unit_test(late_launch_of_a_rank_that_waits_fails_everywhere),
        cmocka_unit_test(late_launch_comes_before_what_was_ordered_behind_it),
        cmocka_unit_test(gather_that_some_ranks_launched_is_settled_with_the_others),
        cmocka_unit_test(schedule_ends_for_a_magnitude),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
