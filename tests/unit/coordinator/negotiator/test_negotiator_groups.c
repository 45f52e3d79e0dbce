/*
 * test_negotiator_groups.c - groups, sends and joins: the rules one by one, in worlds of a few
 * ranks.
 *
 * Seven ranks on two nodes: 0 <- 1, 2, 4;  1 <- 3;  4 <- 5, 6.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator/messages.h"
#include "tests/sim/world.h"
#include "tests/unit/cases.h"

#define RANKS 7
#define SECOND UINT64_C(1000000000)

enum { WORLD, HIGH, ACROSS, LOW, LOW_TOO, ALL_GROUPS };

static const world_group_t groups[ALL_GROUPS] = {
    {0, {0}}, {2, {5, 6}}, {3, {3, 5, 6}}, {3, {0, 1, 2}}, {2, {0, 1}},
};

enum {
    IN_WORLD,
    IN_HIGH,
    IN_ACROSS,
    IN_LOW,
    SEND_5_TO_6,
    SEND_6_TO_5,
    FROM_2,
    MAKE_HIGH,
    MAKE_ACROSS,
    MAKE_LOW,
    MAKE_LOW_TOO, /* under the name of the one before */
    END_HIGH,
    END_ACROSS,
    END_LOW,
    TENSORS
};

static const world_tensor_t kinds[TENSORS] = {
    {WORLD, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0},
    {HIGH, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0},
    {ACROSS, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0},
    {LOW, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0},
    {WORLD, DP_COLLECTIVE_SEND, 5, 6, 1},
    {WORLD, DP_COLLECTIVE_SEND, 6, 5, 1},
    {WORLD, DP_COLLECTIVE_BROADCAST, 2, -1, 2},
    {HIGH, DP_COLLECTIVE_GROUP_CREATE, -1, -1, 20},
    {ACROSS, DP_COLLECTIVE_GROUP_CREATE, -1, -1, 21},
    {LOW, DP_COLLECTIVE_GROUP_CREATE, -1, -1, 22},
    {LOW_TOO, DP_COLLECTIVE_GROUP_CREATE, -1, -1, 22},
    {HIGH, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, 9},
    {ACROSS, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, 9},
    {LOW, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, 9},
};

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static void begin(world_t *world)
{
    world_options_t options = {0};

    options.size = RANKS;
    options.tensors = TENSORS;
    options.occurrences = 8;
    options.arity = options.nodes = 2;
    options.groups = groups;
    options.group_count = ALL_GROUPS;
    options.kinds = kinds;
    options.fusion_bytes = 1 << 20;
    options.stall_warn_ns = 10 * SECOND;
    options.violated = violated;
    world_init(world, &options);
}

static void submit(world_t *world, int rank, int tensor)
{
    world_submit(world, rank, tensor, 768, 0, 1.0f, 0);
}

static void submit_all(world_t *world, int tensor)
{
    for (int r = 0; r < RANKS; r++) {
        if (world_takes_part(world, tensor, r)) submit(world, r, tensor);
    }
    world_settle(world, 0);
}

static const world_outcome_t *outcome(const world_t *world, int tensor, int occurrence)
{
    return &world->outcomes[tensor * world->options.occurrences + occurrence];
}

static int pending(const world_t *world)
{
    int count = 0;

    for (int r = 0; r < RANKS; r++)
        count += world->ranks[r].pending;
    return count;
}

static void expect_failure(const world_t *world, int rank, int failures, dp_status_t status,
                           const char *text)
{
    const world_rank_t *self = &world->ranks[rank];

    assert_int_equal(self->failures, failures);
    assert_int_equal(self->last_failure_status, status);
    if (text != NULL) assert_string_equal(self->last_failure, text);
}

static void finalize(world_t *world, int rank)
{
    dp_negotiator_finalize(world->ranks[rank].negotiator, 0);
    world_settle(world, 0);
}

static void end(world_t *world)
{
    for (int r = 0; r < RANKS; r++)
        finalize(world, r);
    for (int r = 0; r < RANKS; r++)
        assert_true(world->ranks[r].is_finished);
    world_fini(world);
}

/* ---- Made and ended ------------------------------------------------------------------------- */

static void group_is_made_used_ended_and_made_again(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    for (int turn = 0; turn < 3; turn++) {
        submit(&world, 3, MAKE_ACROSS);
        submit(&world, 6, MAKE_ACROSS);
        world_settle(&world, 0);
        assert_int_equal(world.ranks[3].alive[ACROSS], 0);
        submit(&world, 5, MAKE_ACROSS);
        world_settle(&world, 0);
        assert_int_equal(outcome(&world, MAKE_ACROSS, turn)->group, turn + 1);
        assert_int_equal(outcome(&world, MAKE_ACROSS, turn)->group_index, 1); /* free again */
        submit_all(&world, IN_ACROSS);
        submit_all(&world, IN_ACROSS);
        submit_all(&world, END_ACROSS);
        assert_int_equal(pending(&world), 0);
        assert_int_equal(world.ranks[3].alive[ACROSS], 0);
    }
    end(&world);
}

static void group_is_unheard_of_by_those_outside(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    for (int i = 0; i < 5; i++)
        submit_all(&world, IN_HIGH);
    submit_all(&world, END_HIGH);
    submit_all(&world, SEND_5_TO_6);
    assert_int_equal(pending(&world), 0);
    for (int e = 0; e < world.edge_count; e++) {
        const world_edge_t *edge = &world.edges[e];
        int is_on_the_way = edge->from >= 4 || edge->to >= 4;

        if (is_on_the_way) assert_true(edge->sent <= 8);
        if (!is_on_the_way) assert_int_equal(edge->sent, 0);
    }
    end(&world);
}

static void group_names_are_its_own(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    submit_all(&world, MAKE_ACROSS);
    submit(&world, 5, IN_HIGH); /* one name in three groups, in flight together */
    submit(&world, 5, IN_ACROSS);
    submit(&world, 5, IN_WORLD);
    submit(&world, 3, IN_ACROSS);
    submit(&world, 6, IN_ACROSS);
    world_settle(&world, 0);
    assert_true(outcome(&world, IN_ACROSS, 0)->is_known);
    assert_false(outcome(&world, IN_HIGH, 0)->is_known);
    submit(&world, 6, IN_HIGH);
    world_settle(&world, 0);
    assert_true(outcome(&world, IN_HIGH, 0)->is_known);
    for (int r = 0; r < RANKS; r++) {
        if (r != 5) submit(&world, r, IN_WORLD);
    }
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    end(&world);
}

static void group_mismatch_names_the_group(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    world_submit(&world, 5, IN_HIGH, 1, 0, 1.0f, 0);
    world_submit(&world, 6, IN_HIGH, 2, 0, 1.0f, 0);
    world_settle(&world, 0);
    expect_failure(&world, 5, 1, DP_ERR_MISMATCH,
                   "tensor h.0.weight of group h.20.weight: count 1 on rank 5 (host1), 2 on rank 6 "
                   "(host1)");
    submit_all(&world, IN_HIGH);
    assert_int_equal(pending(&world), 0);
    end(&world);
}

static void group_with_another_list_is_a_mismatch(void **state)
{
    static const char text[] =
        "group h.22.weight: member 2 rank 2 on rank 0 (host0), none on rank 1 (host0)";
    world_t world;

    (void)state;
    begin(&world);
    submit(&world, 0, MAKE_LOW);
    world_settle(&world, 0);
    submit(&world, 1, MAKE_LOW_TOO);
    world_settle(&world, 0);
    expect_failure(&world, 0, 1, DP_ERR_MISMATCH, text);
    expect_failure(&world, 1, 1, DP_ERR_MISMATCH, text);
    assert_int_equal(world.ranks[2].failures, 0);
    submit(&world, 2, MAKE_LOW); /* it is in one of the lists */
    world_settle(&world, 0);
    expect_failure(&world, 2, 1, DP_ERR_MISMATCH, text);
    world.ranks[1].submitted[MAKE_LOW]++;
    submit_all(&world, MAKE_LOW); /* the name can be used again */
    submit_all(&world, IN_LOW);
    assert_int_equal(pending(&world), 0);
    end(&world);
}

static dp_status_t submit_group(dp_negotiator_t *negotiator, dp_collective_t collective,
                                uint32_t group, const char *name, const int32_t *members,
                                uint32_t count)
{
    dp_signature_t signature = {.collective = collective,
                                .wire = DP_WIRE_NONE,
                                .root = -1,
                                .peer = -1,
                                .member_count = count,
                                .members = members,
                                .group_name = "tp"};
    dp_submission_t submission = {
        .group = group, .name = name, .signature = &signature, .request = negotiator};

    return dp_negotiator_submit(negotiator, &submission, 0);
}

static void group_places_run_out(void **state)
{
    static const int32_t self[] = {0};
    world_options_t options = {.size = 1, .tensors = 1, .occurrences = 1, .arity = 2, .nodes = 1};
    world_t world;
    dp_negotiator_t *negotiator;
    dp_output_t out;

    (void)state;
    options.violated = violated;
    world_init(&world, &options);
    negotiator = world.ranks[0].negotiator;
    for (uint32_t i = 1; i <= DP_GROUPS_MAX + 3; i++) {
        assert_int_equal(
            submit_group(negotiator, DP_COLLECTIVE_GROUP_CREATE, DP_GROUP_UNBORN, "same", self, 1),
            DP_OK);
        assert_true(dp_negotiator_output(negotiator, &out));
        if (i == DP_GROUPS_MAX + 1 || i == DP_GROUPS_MAX + 2) {
            assert_int_equal(out.kind, DP_OUTPUT_FAIL);
            assert_int_equal(out.status, DP_ERR_FULL);
            assert_string_equal(
                out.text,
                "group tp: a rank can be in 1023 groups, and its ranks have none left in common");
        } else {
            assert_int_equal(out.kind, DP_OUTPUT_LAUNCH);
            assert_int_equal(out.group_index, i <= DP_GROUPS_MAX ? i : 17);
            assert_int_equal(out.group, i <= DP_GROUPS_MAX ? i : DP_GROUPS_MAX + 1);
            assert_int_equal(out.entries[0].signature->member_count, 1);
        }
        assert_false(dp_negotiator_output(negotiator, &out));
        if (i != DP_GROUPS_MAX + 2) continue;
        assert_int_equal(submit_group(negotiator, DP_COLLECTIVE_GROUP_DESTROY, 17, "end", NULL, 0),
                         DP_OK);
        assert_true(dp_negotiator_output(negotiator, &out));
        assert_int_equal(out.group, 17);
        assert_int_equal(out.group_index, 0);
    }
    world_fini(&world);
}

static void group_submissions_that_cannot_be(void **state)
{
    static const int32_t without[] = {1, 2}, twice[] = {0, 0}, beyond[] = {0, RANKS};
    world_t world;
    dp_negotiator_t *zero;
    uint32_t high;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    submit_all(&world, MAKE_LOW);
    zero = world.ranks[0].negotiator;
    high = world.ranks[5].uids[HIGH];
    assert_int_equal(
        submit_group(zero, DP_COLLECTIVE_GROUP_CREATE, DP_GROUP_UNBORN, "a", without, 2),
        DP_ERR_INVALID);
    assert_int_equal(submit_group(zero, DP_COLLECTIVE_GROUP_CREATE, DP_GROUP_UNBORN, "a", twice, 2),
                     DP_ERR_INVALID);
    assert_int_equal(
        submit_group(zero, DP_COLLECTIVE_GROUP_CREATE, DP_GROUP_UNBORN, "a", beyond, 2),
        DP_ERR_INVALID);
    assert_int_equal(submit_group(zero, DP_COLLECTIVE_GROUP_CREATE, 0, "a", twice, 1),
                     DP_ERR_INVALID);
    assert_int_equal(submit_group(zero, DP_COLLECTIVE_BARRIER, high, "a", NULL, 0), DP_ERR_INVALID);
    assert_int_equal(submit_group(zero, DP_COLLECTIVE_BARRIER, 99, "a", NULL, 0), DP_ERR_INVALID);
    assert_int_equal(submit_group(zero, DP_COLLECTIVE_GROUP_DESTROY, 0, "a", NULL, 0),
                     DP_ERR_INVALID);
    submit(&world, 5, IN_HIGH); /* the end of a group is the last that is submitted there */
    assert_int_equal(
        submit_group(world.ranks[5].negotiator, DP_COLLECTIVE_GROUP_DESTROY, high, "a", NULL, 0),
        DP_ERR_ORDER);
    submit(&world, 6, IN_HIGH);
    world_settle(&world, 0);
    submit(&world, 5, END_HIGH);
    assert_int_equal(
        submit_group(world.ranks[5].negotiator, DP_COLLECTIVE_BARRIER, high, "a", NULL, 0),
        DP_ERR_ORDER);
    submit(&world, 6, END_HIGH);
    world_settle(&world, 0);
    assert_int_equal(
        submit_group(world.ranks[5].negotiator, DP_COLLECTIVE_BARRIER, high, "a", NULL, 0),
        DP_ERR_INVALID);
    end(&world);
}

static void group_without_the_root_is_never_held_back(void **state)
{
    world_options_t options = {0};
    world_t world;

    (void)state;
    options.size = RANKS;
    options.tensors = TENSORS;
    options.occurrences = 8;
    options.arity = options.nodes = 2;
    options.groups = groups;
    options.group_count = ALL_GROUPS;
    options.kinds = kinds;
    options.hold_ns = SECOND;
    options.fusion_bytes = 1 << 20;
    options.violated = violated;
    world_init(&world, &options);
    submit_all(&world, MAKE_HIGH);
    submit_all(&world, MAKE_LOW);
    submit_all(&world, IN_LOW); /* the root's data plane is busy from here on */
    submit_all(&world, IN_WORLD);
    assert_false(outcome(&world, IN_WORLD, 0)->is_known);
    submit_all(&world, IN_HIGH);
    assert_true(outcome(&world, IN_HIGH, 0)->is_known);
    assert_false(outcome(&world, IN_WORLD, 0)->is_known);
    dp_negotiator_launch_done(world.ranks[0].negotiator, world.ranks[0].launches, 0);
    world_settle(&world, 0);
    assert_true(outcome(&world, IN_WORLD, 0)->is_known);
    end(&world);
}

/* ---- Sends ---------------------------------------------------------------------------------- */

static void send_is_for_two_ranks_under_a_name_of_their_own(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit(&world, 5, SEND_5_TO_6);
    submit(&world, 5, SEND_6_TO_5); /* the same name the other way */
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 2);
    submit(&world, 6, SEND_6_TO_5);
    world_settle(&world, 0);
    assert_true(outcome(&world, SEND_6_TO_5, 0)->is_known);
    assert_false(outcome(&world, SEND_5_TO_6, 0)->is_known);
    submit(&world, 6, SEND_5_TO_6);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    end(&world);
}

static void send_needs_its_own_two_ranks_only(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit(&world, 5, SEND_5_TO_6);
    finalize(&world, 2); /* the world is closed */
    submit(&world, 6, SEND_5_TO_6);
    world_settle(&world, 0);
    assert_true(outcome(&world, SEND_5_TO_6, 0)->is_known);
    assert_int_equal(world.ranks[6].failures, 0);
    submit(&world, 5, SEND_5_TO_6);
    finalize(&world, 5); /* it has submitted its half */
    submit(&world, 6, SEND_5_TO_6);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[6].failures, 0);
    submit(&world, 6, SEND_6_TO_5);
    world_settle(&world, 0);
    expect_failure(&world, 6, 1, DP_ERR_LEFT,
                   "rank 5 (host1) finalized before it submitted tensor h.1.weight");
    end(&world);
}

/* ---- Leaving -------------------------------------------------------------------------------- */

static void leaver_closes_its_groups_and_no_other(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    submit_all(&world, MAKE_ACROSS);
    submit_all(&world, MAKE_LOW);
    submit(&world, 5, IN_ACROSS);
    finalize(&world, 3);
    expect_failure(&world, 5, 1, DP_ERR_LEFT,
                   "rank 3 (host0) finalized before it submitted tensor h.0.weight of group "
                   "h.21.weight; rank 5 (host1) had submitted it");
    submit_all(&world, IN_HIGH);
    submit_all(&world, IN_LOW);
    submit(&world, 0, IN_WORLD);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[6].failures, 0);
    assert_int_equal(world.ranks[0].failures, 1);
    end(&world);
}

static void leaver_is_in_no_new_group(void **state)
{
    static const char text[] =
        "rank 2 (host0) finalized before group h.22.weight, of which it is a member, was made";
    world_t world;

    (void)state;
    begin(&world);
    submit(&world, 1, MAKE_LOW);
    finalize(&world, 2);
    expect_failure(&world, 1, 1, DP_ERR_LEFT, text);
    submit(&world, 0, MAKE_LOW); /* of the same attempt */
    world_settle(&world, 0);
    expect_failure(&world, 0, 1, DP_ERR_LEFT, text);
    submit(&world, 0, MAKE_LOW); /* and of another one */
    world_settle(&world, 0);
    expect_failure(&world, 0, 2, DP_ERR_LEFT, text);
    submit_all(&world, MAKE_HIGH); /* others are made as before */
    submit_all(&world, IN_HIGH);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[5].failures, 0);
    end(&world);
}

/* ---- Joining -------------------------------------------------------------------------------- */

static void join_lets_the_others_go_on(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_ACROSS);
    submit_all(&world, IN_ACROSS);
    world_join(&world, 3, ACROSS, 4, 0);
    world_settle(&world, 0);
    assert_int_equal(submit_group(world.ranks[3].negotiator, DP_COLLECTIVE_BARRIER,
                                  world.ranks[3].uids[ACROSS], "a", NULL, 0),
                     DP_ERR_ORDER);
    submit_all(&world, IN_WORLD); /* the world is not concerned */
    submit(&world, 5, IN_ACROSS);
    submit(&world, 6, IN_ACROSS);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[3].identity_count, 1);
    world_submit(&world, 5, IN_ACROSS, 99, 0, 1.0f, 0); /* a shape it has never seen */
    world_submit(&world, 6, IN_ACROSS, 99, 0, 1.0f, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[3].identity_count, 2);
    world_join(&world, 6, ACROSS, 4, 0);
    submit(&world, 5, IN_ACROSS);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[6].identity_count, 1);
    assert_int_equal(world.ranks[3].joins[ACROSS].is_pending, 1);
    world_join(&world, 5, ACROSS, 4, 0);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.joined[(size_t)ACROSS * (world.options.occurrences + 1u)].sequence,
                     1);          /* 5 */
    for (int i = 0; i < 2; i++) { /* all are counted again */
        for (int r = 3; r < RANKS; r++) {
            if (r != 4) world_submit(&world, r, IN_ACROSS, 99, 0, 1.0f, 0);
        }
        world_settle(&world, 0);
    }
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[3].identity_count, 3);
    world_check_identities(&world);
    submit_all(&world, END_ACROSS);
    end(&world);
}

static void join_of_all_waits_for_what_they_submitted(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_HIGH);
    submit(&world, 5, IN_HIGH); /* and joins right behind it */
    world_join(&world, 5, HIGH, 1, 0);
    world_join(&world, 6, HIGH, 1, 0);
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    assert_true(outcome(&world, IN_HIGH, 0)->is_known);
    assert_int_equal(world.ranks[6].identity_count, 1);
    world_check_identities(&world);
    end(&world);
}

static void join_forgives_what_failed_without_this_rank(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_ACROSS);
    world_submit(&world, 5, IN_ACROSS, 1, 0, 1.0f, 0);
    world_submit(&world, 6, IN_ACROSS, 2, 0, 1.0f, 0);
    world_settle(&world, 0);
    world_join(&world, 3, ACROSS, 1, 0);
    world_join(&world, 5, ACROSS, 1, 0);
    world_join(&world, 6, ACROSS, 1, 0);
    world_settle(&world, 0);
    submit_all(&world, IN_ACROSS);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[3].failures, 0);
    end(&world);
}

static void join_of_a_root_is_an_error(void **state)
{
    static const char text[] =
        "tensor h.2.weight: broadcast needs rank 2 (host0), which has joined";
    world_t world;

    (void)state;
    begin(&world);
    world_join(&world, 1, WORLD, 2, 0); /* not this one */
    world_join(&world, 2, WORLD, 2, 0);
    world_settle(&world, 0);
    for (int r = 0; r < RANKS; r++) {
        if (r != 1 && r != 2) submit(&world, r, FROM_2);
    }
    world_settle(&world, 0);
    expect_failure(&world, 0, 1, DP_ERR_ORDER, text);
    expect_failure(&world, 6, 1, DP_ERR_ORDER, text);
    assert_int_equal(world.ranks[2].failures, 0);
    submit(&world, 5, SEND_5_TO_6); /* those two have not joined */
    submit(&world, 6, SEND_5_TO_6);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[6].failures, 1);
    world_join(&world, 6, WORLD, 2, 0);
    world_settle(&world, 0);
    submit(&world, 5, SEND_6_TO_5);
    world_settle(&world, 0);
    expect_failure(&world, 5, 2, DP_ERR_ORDER,
                   "tensor h.1.weight: send needs rank 6 (host1), which has joined");
    for (int r = 0; r < RANKS; r++) {
        if (r != 1 && r != 2 && r != 6) world_join(&world, r, WORLD, 2, 0);
    }
    world_settle(&world, 0);
    assert_int_equal(pending(&world), 0);
    submit_all(&world, FROM_2);
    assert_int_equal(pending(&world), 0);
    assert_int_equal(world.ranks[0].failures, 1);
    end(&world);
}

static void join_fails_where_a_member_leaves(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_ACROSS);
    world_join(&world, 3, ACROSS, 1, 0);
    world_join(&world, 5, ACROSS, 1, 0);
    world_settle(&world, 0);
    finalize(&world, 5);
    expect_failure(&world, 5, 1, DP_ERR_LEFT, NULL);
    expect_failure(&world, 3, 1, DP_ERR_LEFT,
                   "rank 5 (host1) finalized before all of group h.21.weight had joined; rank 3 "
                   "(host0) had joined");
    world_join(&world, 6, ACROSS, 1, 0);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[6].failures, 1);
    end(&world);
}

/* ---- Stalls --------------------------------------------------------------------------------- */

static void stall_of_a_group_counts_its_members(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit_all(&world, MAKE_ACROSS);
    world_join(&world, 5, ACROSS, 1, 0);
    submit(&world, 3, IN_ACROSS);
    world_settle(&world, 0);
    for (int r = RANKS - 1; r >= 0; r--) {
        dp_negotiator_tick(world.ranks[r].negotiator, 10 * SECOND);
        world_settle(&world, 0);
    }
    assert_string_equal(world.ranks[3].last_warning,
                        "stalled 10.0 s: tensor h.0.weight of group h.21.weight: ready on 2 of 3 "
                        "ranks; missing rank 6 (host1)");
    assert_int_equal(world.ranks[0].warnings, 1); /* whoever looks at the root's log sees it */
    assert_int_equal(world.ranks[2].warnings + world.ranks[1].warnings, 0);
    submit(&world, 6, IN_ACROSS);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[3].warnings, 2);
    world_join(&world, 3, ACROSS, 1, 0);
    world_join(&world, 6, ACROSS, 1, 0);
    end(&world);
}

static void stall_of_a_group_to_be_made(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    submit(&world, 3, MAKE_ACROSS);
    submit(&world, 6, MAKE_ACROSS);
    world_settle(&world, 0);
    for (int r = RANKS - 1; r >= 0; r--) {
        dp_negotiator_tick(world.ranks[r].negotiator, 10 * SECOND);
        world_settle(&world, 0);
    }
    assert_string_equal(
        world.ranks[6].last_warning,
        "stalled 10.0 s: group h.21.weight: ready on 2 of 3 ranks; missing rank 5 (host1)");
    assert_int_equal(world.ranks[2].warnings, 0);
    submit(&world, 5, MAKE_ACROSS);
    world_settle(&world, 0);
    assert_int_equal(world.ranks[6].alive[ACROSS], 1);
    end(&world);
}

/* A creation is given up: on the ranks that wait, and for the one that comes later. The same name
 * can be made after that. */
static void limit_of_a_group_to_be_made(void **state)
{
    world_t world;

    (void)state;
    begin(&world);
    world.options.timeout_ns = SECOND;
    submit(&world, 3, MAKE_ACROSS);
    submit(&world, 6, MAKE_ACROSS);
    world_settle(&world, 0);
    for (int r = RANKS - 1; r >= 0; r--) {
        dp_negotiator_tick(world.ranks[r].negotiator, SECOND);
        world_settle(&world, SECOND);
    }
    submit(&world, 5, MAKE_ACROSS);
    world_settle(&world, SECOND);
    for (int r = 3; r <= 6; r++) {
        if (r == 4) continue;
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_TIMEOUT);
        assert_string_equal(world.ranks[r].last_failure,
                            "given up after 1.0 s: group h.21.weight: ready on 2 of 3 ranks; "
                            "missing rank 5 (host1)");
    }
    submit_all(&world, MAKE_ACROSS);
    assert_int_equal(world.ranks[6].alive[ACROSS], 1);
    submit_all(&world, IN_ACROSS);
    end(&world);
}

/* ---- Hostile neighbours --------------------------------------------------------------------- */

/* One item of rank 4 for rank 0, or of rank 0 for rank 4, in a world where HIGH has number 1. */
static void expect_refusal(int from, const dp_item_t *item, const dp_item_t *entry,
                           const char *text)
{
    uint8_t data[2048];
    dp_frame_header_t header = {0};
    int to = from == 4 ? 0 : 4;
    dp_writer_t writer;
    world_t world;

    begin(&world);
    submit_all(&world, MAKE_HIGH);
    submit_all(&world, MAKE_LOW);
    header.position = from == 4 ? 0 : 2;
    dp_writer_init(&writer, data, sizeof(data));
    dp_frame_write_header(&writer, &header);
    dp_item_write(&writer, item);
    if (entry != NULL) dp_item_write_entry(&writer, entry);
    dp_negotiator_message(world.ranks[to].negotiator, from, data, writer.bytes, 0);
    world_drain(&world, to);
    assert_true(world.ranks[to].is_fatal);
    if (strstr(world.ranks[to].fatal_text, text) == NULL)
        fail_msg("expected \"%s\" in \"%s\"", text, world.ranks[to].fatal_text);
    world_fini(&world);
}

static void refuses_from_a_child(void **state)
{
    static const int32_t low[] = {0, 1}, beyond[] = {5, RANKS};
    dp_signature_part_t part;
    dp_signature_t sum, create = {.collective = DP_COLLECTIVE_GROUP_CREATE,
                                  .wire = DP_WIRE_NONE,
                                  .root = -1,
                                  .peer = -1,
                                  .member_count = 2,
                                  .members = low};
    dp_item_t item = {.id = DP_ID_NONE, .root = -1, .peer = -1, .name = "x"};

    (void)state;
    world_signature(&sum, &part, 768);
    item.kind = DP_ITEM_READY;
    item.flags = DP_FLAG_SIGNATURE;
    item.signature = &sum;
    item.group = 7;
    expect_refusal(4, &item, NULL, "no group has number 7 here");
    item.group = 2; /* {0, 1, 2} */
    expect_refusal(4, &item, NULL, "nobody there takes part in it");
    item.group = 1;
    item.root = 0;
    item.peer = 2;
    expect_refusal(4, &item, NULL, "a send from rank 0 to 2 in a group of 2");
    item.peer = 1;
    expect_refusal(4, &item, NULL, "announced as allreduce");
    item.root = item.peer = -1;
    item.signature = &create;
    expect_refusal(4, &item, NULL, "announced as group_create");
    item.group = DP_GROUP_UNBORN;
    expect_refusal(4, &item, NULL, "nobody there is a member");
    create.members = beyond;
    expect_refusal(4, &item, NULL, "announced as group_create");
    item.signature = &sum;
    expect_refusal(4, &item, NULL, "announced as allreduce");
    item.group = 1;
    item.flags = DP_FLAG_SIGNATURE | DP_FLAG_ABSENT;
    item.absent = 2;
    item.rank = 5;
    expect_refusal(4, &item, NULL, "announced without 2 ranks, one of them rank 5");
    item.absent = 1;
    item.rank = 4;
    expect_refusal(4, &item, NULL, "announced without 1 ranks, one of them rank 4");
    item.kind = DP_ITEM_JOIN;
    expect_refusal(4, &item, NULL, "there is no rank 4 to join group 1");
    item.group = 2;
    item.rank = 1;
    expect_refusal(4, &item, NULL, "there is no rank 1 to join group 2");
    item.kind = DP_ITEM_LEFT;
    expect_refusal(4, &item, NULL, "there is no rank 1 to leave");
    item.kind = DP_ITEM_LACKS;
    item.group = 0;
    item.flags = 0;
    expect_refusal(4, &item, NULL, "a conflict about tensor x that is none");
}

static void refuses_from_the_parent(void **state)
{
    dp_item_t item = {.id = DP_ID_NONE, .root = -1, .peer = -1, .name = "x"};
    dp_item_t entry = {.id = DP_ID_NONE, .root = -1, .peer = -1, .name = "x"};

    (void)state;
    item.kind = DP_ITEM_SEEK;
    item.position = 1;
    expect_refusal(0, &item, NULL, "position 1 after 2");
    item.kind = DP_ITEM_JOINED;
    item.group = 1;
    item.rank = 5;
    expect_refusal(0, &item, NULL, "all have joined, and some here have not");
    item.rank = 4;
    expect_refusal(0, &item, NULL, "group 1 has no rank 4");
    item.kind = DP_ITEM_CLOSED;
    expect_refusal(0, &item, NULL, "group 1 has no rank 4");
    item.rank = 5;
    item.count = 3;
    expect_refusal(0, &item, NULL, "keeping 3 tensors of 0");
    item.kind = DP_ITEM_WARN;
    item.group = 2;
    item.text = "because";
    expect_refusal(0, &item, NULL, "no group has number 2 here");
    item.kind = DP_ITEM_LAUNCH;
    item.sequence = 9;
    item.count = 1;
    entry.flags = DP_FLAG_NAME;
    entry.id = 0;
    entry.group = 1;
    expect_refusal(0, &item, &entry, "which was not announced");
    entry.id = DP_ID_NONE;
    expect_refusal(0, &item, &entry, "was not announced");
    entry.group = DP_GROUP_UNBORN;
    expect_refusal(0, &item, &entry, "which was not announced");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_is_made_used_ended_and_made_again),
        cmocka_unit_test(group_is_unheard_of_by_those_outside),
        cmocka_unit_test(group_names_are_its_own),
        cmocka_unit_test(group_mismatch_names_the_group),
        cmocka_unit_test(group_with_another_list_is_a_mismatch),
        cmocka_unit_test(group_places_run_out),
        cmocka_unit_test(group_submissions_that_cannot_be),
        cmocka_unit_test(group_without_the_root_is_never_held_back),
        cmocka_unit_test(send_is_for_two_ranks_under_a_name_of_their_own),
        cmocka_unit_test(send_needs_its_own_two_ranks_only),
        cmocka_unit_test(leaver_closes_its_groups_and_no_other),
        cmocka_unit_test(leaver_is_in_no_new_group),
        cmocka_unit_test(join_lets_the_others_go_on),
        cmocka_unit_test(join_of_all_waits_for_what_they_submitted),
        cmocka_unit_test(join_forgives_what_failed_without_this_rank),
        cmocka_unit_test(join_of_a_root_is_an_error),
        cmocka_unit_test(join_fails_where_a_member_leaves),
        cmocka_unit_test(stall_of_a_group_counts_its_members),
        cmocka_unit_test(stall_of_a_group_to_be_made),
        cmocka_unit_test(limit_of_a_group_to_be_made),
        cmocka_unit_test(refuses_from_a_child),
        cmocka_unit_test(refuses_from_the_parent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
