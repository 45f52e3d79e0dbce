/*
 * test_stall.c - what is said about ranks that do not come, when, and to whom.
 */
#include <string.h>

#include "tests/sim/world.h"
#include "tests/unit/cases.h"

#define SECOND UINT64_C(1000000000)

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static void begin_with(world_t *world, int size, uint64_t warn_ns, uint64_t limit_ns,
                       uint64_t finalize_ns)
{
    world_options_t options = {0};

    options.size = size;
    options.tensors = options.occurrences = 8;
    options.arity = 2;
    options.nodes = 2;
    options.stall_warn_ns = warn_ns;
    options.stall_limit_ns = limit_ns;
    options.finalize_limit_ns = finalize_ns;
    options.violated = violated;
    world_init(world, &options);
}

static void begin(world_t *world, int size, uint64_t warn_ns, uint64_t limit_ns)
{
    begin_with(world, size, warn_ns, limit_ns, 0);
}

/* Wakes every rank at each of its deadlines up to a moment. */
static void run_until(world_t *world, uint64_t until_ns)
{
    for (;;) {
        uint64_t next_ns = UINT64_MAX;

        for (int r = 0; r < world->options.size; r++) {
            uint64_t deadline_ns = dp_negotiator_deadline(world->ranks[r].negotiator);

            next_ns = deadline_ns < next_ns ? deadline_ns : next_ns;
        }
        if (next_ns > until_ns) return;
        for (int r = 0; r < world->options.size; r++)
            dp_negotiator_tick(world->ranks[r].negotiator, next_ns);
        world_settle(world, next_ns);
    }
}

static void submit(world_t *world, int rank, int tensor, uint64_t now_ns)
{
    world_submit(world, rank, tensor, 768, 0, 1.0f, now_ns);
}

static void stall_names_rank_host_tensor_and_progress(void **state)
{
    world_t world;
    uint64_t messages;

    (void)state;
    begin(&world, 5, 10 * SECOND, 0);
    dp_negotiator_progress(world.ranks[4].negotiator, "step 12, after h.3.attn");
    for (int r = 0; r < 4; r++) {
        submit(&world, r, 0, 0);
        submit(&world, r, 1, 0);
    }
    submit(&world, 4, 2, SECOND); /* not overdue yet when the others are */
    world_settle(&world, SECOND);
    messages = world.messages;
    run_until(&world, 10 * SECOND - 1);
    assert_int_equal(world.messages, messages); /* nothing is repeated for a straggler */
    run_until(&world, 10 * SECOND);
    for (int r = 0; r < 5; r++) {
        assert_int_equal(world.ranks[r].warnings, 1);
        assert_string_equal(
            world.ranks[r].last_warning,
            "stalled 10.0 s: tensor h.0.weight (also tensor h.1.weight): ready on 4 of 5 ranks; "
            "missing rank 4 (host1): step 12, after h.3.attn (1 operations pending)");
    }
    submit(&world, 4, 0, 12 * SECOND);
    world_settle(&world, 12 * SECOND);
    for (int r = 0; r < 5; r++) {
        assert_int_equal(world.ranks[r].warnings, 2);
        assert_string_equal(world.ranks[r].last_warning,
                            "tensor h.0.weight: no longer stalled after 12.0 s");
    }
    world_fini(&world);
}

/* Only a leaf has submitted: the root learns of it when it is overdue. */
static void stall_of_a_leaf_alone_is_seen(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 7, 10 * SECOND, 0);
    submit(&world, 6, 3, 0);
    world_settle(&world, 0);
    run_until(&world, 11 * SECOND);
    assert_int_equal(world.ranks[0].warnings, 1);
    assert_int_equal(world.ranks[6].warnings, 1);
    assert_non_null(strstr(world.ranks[6].last_warning,
                           "stalled 10.0 s: tensor h.3.weight: ready "
                           "on 1 of 7 ranks; missing rank 0 (host0); "));
    assert_non_null(strstr(world.ranks[6].last_warning, "; and 3 more"));
    world_fini(&world);
}

static void stall_reports_grow_rarer(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3, 10 * SECOND, 0);
    submit(&world, 0, 0, 0);
    world_settle(&world, 0);
    run_until(&world, 75 * SECOND); /* at 10, 20, 40 s; the next at 80 */
    assert_int_equal(world.ranks[2].warnings, 3);
    run_until(&world, 80 * SECOND);
    assert_int_equal(world.ranks[2].warnings, 4);
    assert_non_null(strstr(world.ranks[2].last_warning, "stalled 80.0 s"));
    world_fini(&world);
}

static void stall_limit_ends_the_world(void **state)
{
    world_t world;

    (void)state;
    for (int warns = 0; warns < 2; warns++) {
        begin(&world, 4, warns ? 10 * SECOND : 0, 60 * SECOND);
        for (int r = 0; r < 3; r++)
            submit(&world, r, 0, 0);
        world_settle(&world, 0);
        run_until(&world, 61 * SECOND);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(world.ranks[r].warnings, warns ? 3 : 0);
            assert_int_equal(world.ranks[r].fatal_status, DP_ERR_STALLED);
            assert_int_equal(world.ranks[r].fatal_culprit, 3);
            assert_string_equal(world.ranks[r].fatal_text,
                                "stalled 60.0 s: tensor h.0.weight: ready on 3 of 4 ranks; missing "
                                "rank 3 (host1)");
        }
        world_fini(&world);
    }
}

/* The text that ends the world names the first three tensors and counts the rest. */
static void stall_names_three_tensors(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 4, 10 * SECOND, 60 * SECOND);
    for (int tensor = 0; tensor < 6; tensor++)
        for (int r = 0; r < 3; r++)
            submit(&world, r, tensor, (uint64_t)tensor);
    world_settle(&world, 10);
    run_until(&world, 62 * SECOND);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(world.ranks[r].fatal_status, DP_ERR_STALLED);
        assert_string_equal(
            world.ranks[r].fatal_text,
            "stalled 60.0 s: tensor h.0.weight (also tensor h.1.weight, tensor "
            "h.2.weight and 3 more): ready on 3 of 4 ranks; missing rank 3 (host1)");
    }
    world_fini(&world);
}

/* A rank whose coordinator does not answer holds the report up for its patience only. */
static void stall_report_does_not_wait_for_the_silent(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3, 10 * SECOND, 0);
    submit(&world, 0, 0, 0);
    submit(&world, 1, 0, 0);
    world_settle(&world, 0);
    dp_negotiator_tick(world.ranks[0].negotiator, 10 * SECOND);
    world_drain(&world, 0);
    assert_int_equal(dp_negotiator_deadline(world.ranks[0].negotiator), 11 * SECOND);
    dp_negotiator_tick(world.ranks[0].negotiator, 11 * SECOND);
    world_drain(&world, 0);
    assert_string_equal(world.ranks[0].last_warning,
                        "stalled 11.0 s: tensor h.0.weight: ready on 2 of 3 ranks; missing rank 2 "
                        "(host1): no answer about its subtree");
    world_settle(&world, 11 * SECOND);
    assert_int_equal(world.ranks[2].warnings, 1);
    world_fini(&world);
}

static void expect_expired(world_t *world, int rank, int failures, const char *text)
{
    assert_int_equal(world->ranks[rank].failures, failures);
    if (failures == 0) return;
    assert_int_equal(world->ranks[rank].last_failure_status, DP_ERR_TIMEOUT);
    assert_string_equal(world->ranks[rank].last_failure, text);
}

/* The time limit of a rank ends the occurrence on all, those that come later too, whatever the
 * stall watch does; the next one is like any other. */
static void limit_of_a_rank_fails_its_tensor_alone(void **state)
{
    const char *text = "given up after 5.0 s: tensor h.3.weight: ready on 2 of 7 ranks; missing "
                       "rank 0 (host0); rank 4 (host1); rank 5 (host1); and 2 more";

    (void)state;
    for (int watches = 0; watches < 2; watches++) {
        world_t world;

        begin(&world, 7, watches ? 2 * SECOND : 0, watches ? 100 * SECOND : 0);
        world.options.timeout_ns = 5 * SECOND;
        submit(&world, 6, 3, 0);
        world_settle(&world, 0);
        submit(&world, 2, 3, SECOND);
        world_settle(&world, SECOND);
        run_until(&world, 5 * SECOND - 1);
        expect_expired(&world, 6, 0, NULL);
        run_until(&world, 7 * SECOND);
        expect_expired(&world, 6, 1, text);
        expect_expired(&world, 2, 1, text);
        for (int r = 0; r < 7; r++) {
            if (r != 2 && r != 6) submit(&world, r, 3, 8 * SECOND);
            world_settle(&world, 8 * SECOND);
            expect_expired(&world, r, 1, text);
        }
        for (int r = 0; r < 7; r++)
            submit(&world, r, 3, 9 * SECOND);
        world_settle(&world, 9 * SECOND);
        for (int r = 0; r < 7; r++) {
            assert_int_equal(world.ranks[r].failures, 1);
            assert_int_equal(world.ranks[r].launches, 1);
            assert_int_equal(world.ranks[r].pending, 0);
        }
        run_until(&world, 60 * SECOND);
        assert_true(dp_negotiator_deadline(world.ranks[0].negotiator) == UINT64_MAX);
        world_fini(&world);
    }
}

/* EXPIRED crosses the launch of its tensor, and comes when the next occurrence is pending. */
static void limit_after_the_launch_is_nothing(void **state)
{
    enum { UP_OF_1 = 0, UP_OF_2 = 2 };
    world_t world;

    (void)state;
    begin(&world, 3, 0, 0);
    world.options.timeout_ns = 5 * SECOND;
    submit(&world, 0, 0, 0);
    submit(&world, 2, 0, 0);
    world_settle(&world, 0);
    submit(&world, 1, 0, 4 * SECOND);
    world_drain(&world, 1);
    world_deliver(&world, UP_OF_1, 4 * SECOND);
    world_drain(&world, 0);
    assert_int_equal(world.ranks[0].launches, 1);
    submit(&world, 0, 0, 4 * SECOND);
    world_drain(&world, 0);
    dp_negotiator_tick(world.ranks[2].negotiator, 5 * SECOND);
    world_drain(&world, 2);
    world_deliver(&world, UP_OF_2, 5 * SECOND);
    world_settle(&world, 5 * SECOND);
    for (int r = 1; r < 3; r++)
        submit(&world, r, 0, 6 * SECOND);
    world_settle(&world, 6 * SECOND);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(world.ranks[r].launches, 2);
        assert_int_equal(world.ranks[r].failures, 0);
    }
    world_fini(&world);
}

/* Limits of one rank end in the order of their lengths, and one that is no longer needed disturbs
 * nobody. */
static void limits_end_each_at_its_time(void **state)
{
    static const uint64_t seconds[] = {4, 2, 6, 3}; /* the second is launched before */
    static const struct {
        uint64_t at_ns;
        int failures;
    } moments[] = {{3 * SECOND - 1, 0}, {3 * SECOND + SECOND / 100, 1},
                   {4 * SECOND - 1, 1}, {4 * SECOND + SECOND / 100, 2},
                   {6 * SECOND - 1, 2}, {6 * SECOND + SECOND / 100, 3}};
    world_t world;

    (void)state;
    begin(&world, 3, 0, 0);
    for (int t = 0; t < 4; t++) {
        world.options.timeout_ns = seconds[t] * SECOND;
        submit(&world, 2, t, 0);
    }
    world.options.timeout_ns = 0;
    submit(&world, 0, 1, SECOND);
    submit(&world, 1, 1, SECOND);
    world_settle(&world, SECOND);
    assert_int_equal(world.ranks[2].launches, 1);
    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
        run_until(&world, moments[i].at_ns);
        assert_int_equal(world.ranks[2].failures, moments[i].failures);
    }
    assert_true(dp_negotiator_deadline(world.ranks[2].negotiator) == UINT64_MAX);
    world_fini(&world);
}

static void stall_watch_can_be_turned_off(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3, 0, 0);
    submit(&world, 0, 0, 0);
    submit(&world, 2, 0, 0);
    world_settle(&world, 0);
    for (int r = 0; r < 3; r++)
        assert_true(dp_negotiator_deadline(world.ranks[r].negotiator) == UINT64_MAX);
    world_fini(&world);
}

static void finalize(world_t *world, int rank, uint64_t now_ns)
{
    dp_negotiator_finalize(world->ranks[rank].negotiator, now_ns);
    world_drain(world, rank);
}

/* Waiting in dp_finalize() is no error, but said. */
static void finalize_limit_ends_the_world(void **state)
{
    world_t world;

    (void)state;
    for (int warns = 0; warns < 2; warns++) {
        begin_with(&world, 4, warns ? 10 * SECOND : 0, 0, 30 * SECOND);
        finalize(&world, 0, SECOND);
        finalize(&world, 3, 2 * SECOND);
        world_settle(&world, 2 * SECOND);
        run_until(&world, 31 * SECOND - 1);
        assert_int_equal(world.ranks[1].is_fatal, 0);
        run_until(&world, 32 * SECOND);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(world.ranks[r].fatal_status, DP_ERR_TIMEOUT);
            assert_int_equal(world.ranks[r].fatal_culprit, 1);
            assert_string_equal(world.ranks[r].fatal_text,
                                "2 of 4 ranks have waited in dp_finalize() for 30.0 s; not there "
                                "yet: rank 1 (host0), rank 2 (host1)");
        }
        world_fini(&world);
    }
}

static void stall_of_finalize_names_who_does_not_come(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 4, 10 * SECOND, 60 * SECOND);
    finalize(&world, 0, SECOND);
    finalize(&world, 3, 2 * SECOND);
    world_settle(&world, 2 * SECOND);
    run_until(&world, 12 * SECOND);
    assert_int_equal(world.ranks[0].warnings, 1);
    assert_string_equal(world.ranks[0].last_warning,
                        "2 of 4 ranks have waited in dp_finalize() for 10.0 s; not there yet: rank "
                        "1 (host0), rank 2 (host1)");
    finalize(&world, 1, 13 * SECOND);
    world_settle(&world, 13 * SECOND);
    run_until(&world, 100 * SECOND); /* again at 21, 41 and 81 s */
    assert_int_equal(world.ranks[0].warnings, 4);
    assert_non_null(strstr(world.ranks[0].last_warning, "3 of 4 ranks have waited"));
    assert_non_null(strstr(world.ranks[0].last_warning, "80.0 s; not there yet: rank 2 (host1)"));
    finalize(&world, 2, 101 * SECOND);
    world_settle(&world, 101 * SECOND);
    for (int r = 0; r < 4; r++) {
        assert_true(world.ranks[r].is_finished);
        assert_true(dp_negotiator_deadline(world.ranks[r].negotiator) == UINT64_MAX);
    }
    world_fini(&world);
}

static void stall_idle_world_wants_no_waking(void **state)
{
    world_t world;

    (void)state;
    begin(&world, 3, 10 * SECOND, 60 * SECOND);
    for (int r = 0; r < 3; r++)
        submit(&world, r, 0, 0);
    world_settle(&world, 0);
    for (int r = 0; r < 3; r++)
        assert_true(dp_negotiator_deadline(world.ranks[r].negotiator) == UINT64_MAX);
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stall_names_rank_host_tensor_and_progress),
        cmocka_unit_test(stall_of_a_leaf_alone_is_seen),
        cmocka_unit_test(stall_reports_grow_rarer),
        cmocka_unit_test(stall_limit_ends_the_world),
        cmocka_unit_test(stall_names_three_tensors),
        cmocka_unit_test(limit_of_a_rank_fails_its_tensor_alone),
        cmocka_unit_test(limit_after_the_launch_is_nothing),
        cmocka_unit_test(limits_end_each_at_its_time),
        cmocka_unit_test(finalize_limit_ends_the_world),
        cmocka_unit_test(stall_report_does_not_wait_for_the_silent),
        cmocka_unit_test(stall_watch_can_be_turned_off),
        cmocka_unit_test(stall_of_finalize_names_who_does_not_come),
        cmocka_unit_test(stall_idle_world_wants_no_waking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
