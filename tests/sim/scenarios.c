/*
 * scenarios.c - worlds in which one thing happens that neither chance nor all orders of a few steps
 * come to: wide nodes, names that are contested, ranks that leave, stalls.
 *
 * Each case passes where the protocol is right, and fails for an error of tests/mutation that no
 * other program found.
 */
#include <stdio.h>
#include <string.h>

#include "random.h"
#include "scenario_world.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

/* ---- Wide nodes ----------------------------------------------------------------------------- */

/* A set of children takes a second word from 64 on, and the node itself has the bit behind them. */
static void nodes_may_have_more_than_64_children(void **state)
{
    (void)state;
    for (int size = 63; size < 140; size++) {
        const scenario_t cast = {size, 138, 1, NULL, 0, NULL, 0};
        world_t world;

        scenario_begin(&world, &cast);
        assert_int_equal(world.ranks[0].links.child_count, size - 1);
        scenario_play(&world, 2, 1);
        for (int r = 0; r < size; r++)
            assert_int_equal(world.ranks[r].launches, 2);
        scenario_part(&world);
    }
}

/* Groups, a join and a stall of children whose bits lie in the second word. */
static void high_children_take_part_in_everything(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {3, {2, 66, 80}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const scenario_t cast = {90, 89, 4, groups, 2, kinds, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 2);
    scenario_play(&world, 2, 2);
    world_join(&world, 80, 0, 3, 0); /* the others go on without it */
    scenario_settle(&world);
    for (int r = 0; r < 90; r++) {
        if (r != 80) scenario_submit(&world, r, 0);
    }
    scenario_settle(&world);
    for (int r = 0; r < 90; r++) {
        if (r != 80) world_join(&world, r, 0, 3, 0);
    }
    scenario_settle(&world);
    for (int r = 0; r < 90; r++) { /* all but one: who is named? */
        if (r != 77) scenario_submit(&world, r, 0);
    }
    scenario_settle(&world);
    for (uint64_t now = LIMIT / 10; now < LIMIT / 5; now += SECOND) {
        dp_negotiator_tick(world.ranks[0].negotiator, now);
        world_settle(&world, now);
    }
    assert_int_equal(world.ranks[80].warnings, 1);
    assert_non_null(
        strstr(world.ranks[80].last_warning, "ready on 89 of 90 ranks; missing rank 77"));
    scenario_submit(&world, 77, 0);
    scenario_settle(&world);
    scenario_submit_all(&world, 3);
    scenario_part(&world);
}

/* A send and a sum are ready at the same moment: the world checks that each launch has one kind. */
static void send_is_launched_alone(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {
        {1, DP_COLLECTIVE_SEND, 0, 1, 0}, SUM(1, 1), MAKE(1, 22)};
    const scenario_t cast = {3, 2, 3, groups, 2, kinds, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 2);
    for (int r = 1; r < 3; r++) {
        world_submit(&world, r, 0, 768, 0, 1.0f, 0);
        world_submit(&world, r, 1, 768, 0, 1.0f, 0);
        world_drain(&world, r);
    }
    world_deliver(&world, 0, 0); /* both to the root, which takes no outputs between */
    world_deliver(&world, 2, 0);
    scenario_settle(&world);
    scenario_part(&world);
}

/* One rank sends to two others under one name, to both at the same time. */
static void sends_to_two_ranks_are_two(void **state)
{
    static const world_tensor_t kinds[] = {{0, DP_COLLECTIVE_SEND, 0, 1, 0},
                                           {0, DP_COLLECTIVE_SEND, 0, 2, 0}};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 2, NULL, 0, kinds, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit(&world, 0, 0);
        scenario_submit(&world, 0, 1);
        scenario_submit(&world, 2, 1);
        scenario_settle(&world);
        assert_int_equal(world.ranks[2].pending, 0);
        assert_int_equal(world.ranks[0].pending, 1);
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

/* A node below the root finds it. */
static void mismatch_gives_each_rank_its_own_shape(void **state)
{
    const scenario_t cast = {3, 1, 1, NULL, 0, NULL, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    for (int r = 2; r >= 0; r--) {
        world_submit(&world, r, 0, r == 2 ? 1024 : 768, 0, 1.0f, 0);
        scenario_settle(&world);
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
        assert_non_null(strstr(world.ranks[r].last_failure, "768 on rank 1 ("));
        assert_non_null(strstr(world.ranks[r].last_failure, "1024 on rank 2 ("));
    }
    scenario_part(&world);
}

/* Three groups that overlap, again and again: numbers ascend, places are used again. */
static void groups_come_and_go(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}, {3, {0, 1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0),   SUM(2, 0),   SUM(3, 0),
                                           MAKE(1, 22), MAKE(2, 23), MAKE(3, 24),
                                           END(1, 9),   END(2, 9),   END(3, 9)};
    const scenario_t cast = {3, 1, 9, groups, 4, kinds, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 3; i++)
            scenario_submit_all(&world, 3 + (i + round) % 3);
        scenario_play(&world, 2, 3);
        for (int i = 0; i < 3; i++)
            scenario_submit_all(&world, 6 + i);
    }
    scenario_part(&world);
}

/* A leaver's word about the end of a group meets that end on its way. */
static void group_ends_below_a_leaver(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {3, {0, 1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const scenario_t cast = {3, 1, 3, groups, 2, kinds, 0}; /* 0 <- 1 <- 2 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 1);
    scenario_play(&world, 1, 1);
    scenario_submit(&world, 2, 2);
    scenario_submit(&world, 1, 2);
    world_deliver(&world, 2, 0);
    world_drain(&world, 1);
    scenario_submit(&world, 0, 2);
    world_deliver(&world, 0, 0);
    world_drain(&world, 0); /* the launch is on its way to 1 */
    dp_negotiator_finalize(world.ranks[2].negotiator, 0);
    world_drain(&world, 2);
    world_deliver(&world, 2, 0); /* what 2 keeps comes to 1 before it */
    world_deliver(&world, 1, 0);
    scenario_settle(&world);
    assert_int_equal(world.ranks[1].alive[1], 0);
    scenario_part(&world);
}

/* ---- Names that are contested --------------------------------------------------------------- */

static void name_that_failed_is_free_for_ranks_that_were_not_told(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {1, {1}}, {2, {0, 2}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22), MAKE(3, 22)};
    const scenario_t cast = {3, 2, 3, groups, 4, kinds, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 0, 0);
    scenario_submit(&world, 1, 1);
    scenario_settle(&world);
    assert_int_equal(world.ranks[0].failures, 1);
    assert_int_equal(world.ranks[1].failures, 1);
    scenario_submit_all(&world, 2);
    assert_int_equal(world.ranks[2].alive[3], 1);
    scenario_part(&world);
}

static void third_list_fails_with_the_others(void **state)
{
    static const world_group_t groups[] = {
        {0, {0}}, {3, {0, 1, 4}}, {3, {0, 1, 5}}, {3, {0, 1, 6}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22), MAKE(3, 22)};
    const scenario_t cast = {7, 3, 3, groups, 4, kinds, 0}; /* 0 <- 1 2 3; 1 <- 4 5 6 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    assert_int_equal(world.ranks[6].links.parent, 1);
    for (int i = 0; i < 3; i++)
        scenario_submit(&world, 4 + i, i);
    scenario_settle(&world);
    for (int r = 4; r < 7; r++) {
        assert_int_equal(world.ranks[r].failures, 1);
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
    }
    scenario_part(&world);
}

/* The first list is complete and waits in the root's queue when the second one comes. */
static void list_that_is_queued_fails_with_another(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 3}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const scenario_t cast = {4, 2, 2, groups, 3, kinds, 0}; /* 0 <- 1 2; 1 <- 3 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 1, 0);
    scenario_submit(&world, 3, 0);
    world_deliver(&world, 4, 0); /* 3 to 1 */
    world_drain(&world, 1);
    scenario_submit(&world, 2, 1);
    world_deliver(&world, 0, 0); /* both to the root, which takes no outputs between */
    world_deliver(&world, 2, 0);
    scenario_settle(&world);
    for (int r = 1; r < 4; r++) {
        assert_int_equal(world.ranks[r].failures, 1);
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
        assert_string_equal(
            world.ranks[r].last_failure,
            "group h.22.weight: member 1 rank 3 on rank 1 (host0), rank 2 on rank 2 (host0)");
    }
    scenario_part(&world);
}

/* A node has announced a list, and hears of another one below it. */
static void list_that_was_announced_fails_with_another(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 3}}, {2, {0, 4}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const scenario_t cast = {5, 2, 2, groups, 3, kinds, 0}; /* 0 <- 1 2; 1 <- 3 4 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 3, 0);
    scenario_settle(&world);
    scenario_submit(&world, 4, 1);
    scenario_settle(&world);
    scenario_submit(&world, 0, 0); /* it failed without this rank */
    scenario_settle(&world);
    for (int r = 0; r < 5; r++) {
        assert_int_equal(world.ranks[r].failures, r == 0 || r > 2);
        if (r == 0 || r > 2) assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
    }
    scenario_part(&world);
}

/* Likewise, but the root has launched the first list before it hears of the second, which then
 * waits for its own ranks: the rank's own among them. */
static void list_behind_a_launch_is_the_next_occurrence(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 3}}, {3, {0, 1, 4}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const scenario_t cast = {5, 2, 2, groups, 3, kinds, 0}; /* 0 <- 1 2; 1 <- 3 4 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 0, 0);
    scenario_submit(&world, 3, 0);
    world_deliver(&world, 4, 0); /* 3 to 1, which announces it */
    world_drain(&world, 1);
    scenario_submit(&world, 4, 1);
    world_deliver(&world, 6, 0); /* 4 to 1 */
    scenario_submit(&world, 1, 1);
    world_deliver(&world, 0, 0); /* READY alone to the root, which launches */
    scenario_settle(&world);
    assert_int_equal(world.ranks[3].alive[1], 1);
    assert_int_equal(world.ranks[0].alive[1], 1);
    assert_int_equal(world.ranks[4].pending, 1);
    assert_int_equal(world.ranks[1].pending, 1);
    scenario_submit(&world, 0, 1);
    scenario_settle(&world);
    assert_int_equal(world.ranks[4].alive[2], 1);
    scenario_part(&world);
}

typedef struct contest {
    uint64_t random;
    world_group_t groups[3];
    world_t world;
    int choice[WORLD_MEMBERS_MAX]; /* tensor that this rank submits, -1: none */
    int is_done[WORLD_MEMBERS_MAX], is_leaving[WORLD_MEMBERS_MAX];
} contest_t;

static int is_in(const world_group_t *group, int rank)
{
    for (int i = 0; i < group->count; i++) {
        if (group->ranks[i] == rank) return 1;
    }
    return 0;
}

/* Two lists with the same lowest rank, and what each rank believes in. */
static void choose_lists(contest_t *contest, int size)
{
    int lowest = (int)below(&contest->random, (uint64_t)size - 2);

    memset(contest->groups, 0, sizeof(contest->groups));
    for (int g = 1; g < 3; g++) {
        world_group_t *group = &contest->groups[g];

        group->ranks[group->count++] = lowest;
        for (int r = lowest + 1; r < size; r++) {
            if (below(&contest->random, 2) == 0) group->ranks[group->count++] = r;
        }
        if (group->count == 1) group->ranks[group->count++] = lowest + g;
    }
    if (memcmp(&contest->groups[1], &contest->groups[2], sizeof(world_group_t)) == 0) {
        int other = contest->groups[1].ranks[1] == lowest + 1 ? lowest + 2 : lowest + 1;

        contest->groups[2] = (world_group_t){2, {lowest, other}};
        contest->groups[1] = (world_group_t){3, {lowest, lowest + 1, lowest + 2}};
    }
    for (int r = 0; r < size; r++) {
        int first = is_in(&contest->groups[1], r), second = is_in(&contest->groups[2], r);

        contest->choice[r] = first ? 0 : second ? 1 : -1;
        if (first && second) contest->choice[r] = (int)below(&contest->random, 2);
        contest->is_done[r] = contest->choice[r] < 0;
        contest->is_leaving[r] = 0;
    }
}

/* One thing that may happen now. */
static void contest_step(contest_t *contest)
{
    world_t *world = &contest->world;
    int rank = (int)below(&contest->random, (uint64_t)world->options.size);
    int edge = (int)below(&contest->random, (uint64_t)world->edge_count);

    switch (below(&contest->random, 8)) {
    case 0:
        if (!contest->is_done[rank])
            world_submit(world, rank, contest->choice[rank], 1, 0, 1.0f, 0);
        contest->is_done[rank] = 1;
        break;
    case 1:
    case 2:
    case 3:
        world_drain(world, rank);
        break;
    case 4:
        if (!contest->is_done[rank] || world->ranks[rank].pending > 0) break;
        if (!contest->is_leaving[rank]) dp_negotiator_finalize(world->ranks[rank].negotiator, 0);
        contest->is_leaving[rank] = 1;
        break;
    default:
        if (world->edges[edge].first != NULL) world_deliver(world, edge, 0);
        break;
    }
}

static int count_finished(const world_t *world)
{
    int finished = 0;

    for (int r = 0; r < world->options.size; r++) {
        if (world->ranks[r].is_fatal) fail_msg("rank %d: %s", r, world->ranks[r].fatal_text);
        finished += world->ranks[r].is_finished;
    }
    return finished;
}

/* A rank with another list than the one that all have in common fails, in trees of any shape:
 * or the first list is made, and the second fails as that rank leaves. */
static void contested_names_end_well_in_any_order(void **state)
{
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    static contest_t contest;
    int made = 0, mismatched = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 800; seed++) {
        scenario_t cast = {0, 0, 2, contest.groups, 3, kinds, 0};
        world_t *world = &contest.world;
        int steps = 0;

        contest.random = seed;
        cast.size = 3 + (int)below(&contest.random, 7);
        cast.arity = 1 + (int)below(&contest.random, 4);
        choose_lists(&contest, cast.size);
        scenario_begin(world, &cast);
        while (count_finished(world) < cast.size) {
            contest_step(&contest);
            if (steps++ > 100000) fail_msg("seed %d: somebody waits for ever", (int)seed);
        }
        for (int r = 0; r < cast.size; r++) {
            const world_rank_t *self = &world->ranks[r];

            if (self->failures > 0 && self->last_failure_status != DP_ERR_MISMATCH &&
                self->last_failure_status != DP_ERR_LEFT)
                fail_msg("seed %d, rank %d: %s", (int)seed, r, self->last_failure);
            made += self->alive[1] || self->alive[2];
            mismatched += self->failures > 0 && self->last_failure_status == DP_ERR_MISMATCH;
        }
        world_fini(world);
    }
    assert_true(made > 100);
    assert_true(mismatched > 300);
}

/* ---- Leaving, and who has no more data ------------------------------------------------------ */

/* Rank 2 leaves and keeps a tensor; who joins then is refused, and the tensor goes without it. */
static void kept_tensor_does_not_wait_for_a_rank_that_wants_to_join(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        for (int joiner = 0; joiner < 2; joiner++) {
            const scenario_t cast = {3, arity, 1, NULL, 0, NULL, 0};
            world_t world;

            scenario_begin(&world, &cast);
            scenario_submit(&world, 2, 0);
            dp_negotiator_finalize(world.ranks[2].negotiator, 0);
            scenario_settle(&world);
            scenario_submit(&world, 1 - joiner, 0);
            scenario_settle(&world);
            world_join(&world, joiner, 0, 1, 0);
            scenario_settle(&world);
            assert_int_equal(world.ranks[joiner].failures, 1);
            assert_int_equal(world.ranks[joiner].last_failure_status, DP_ERR_LEFT);
            assert_int_equal(world.ranks[2].launches, 1);
            assert_int_equal(world.ranks[1 - joiner].failures, 0);
            scenario_part(&world);
        }
    }
}

/* After all have joined each is there again, until it joins once more. */
static void ranks_that_joined_take_part_in_what_follows(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const scenario_t cast = {3, arity, 1, NULL, 0, NULL, 0};
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 0);
        for (int r = 0; r < 3; r++)
            world_join(&world, r, 0, 1, 0);
        scenario_settle(&world);
        scenario_expect_nothing_pending(&world);
        world_join(&world, 0, 0, 2, 0);
        scenario_submit(&world, 1, 0);
        scenario_settle(&world);
        assert_int_equal(world.ranks[1].pending, 1); /* rank 2 is missing */
        scenario_submit(&world, 2, 0);
        scenario_settle(&world);
        assert_int_equal(world.ranks[1].pending, 0);
        world_join(&world, 1, 0, 2, 0);
        world_join(&world, 2, 0, 2, 0);
        scenario_settle(&world);
        scenario_part(&world);
    }
}

/* ---- Who waits, and for whom ---------------------------------------------------------------- */

/* Lets seconds pass; what goes to rank `deaf` stays on its way (-1: nobody's). */
static void pass_time(world_t *world, uint64_t from_s, uint64_t until_s, int deaf)
{
    for (uint64_t now_ns = from_s * SECOND; now_ns < until_s * SECOND; now_ns += SECOND / 4) {
        for (int r = 0; r < world->options.size; r++) {
            if (r == deaf) continue;
            dp_negotiator_tick(world->ranks[r].negotiator, now_ns);
            world_drain(world, r);
        }
        for (int round = 0; round < 2 * world->options.size; round++) {
            for (int e = 0; e < world->edge_count; e++) {
                if (world->edges[e].first == NULL || world->edges[e].to == deaf) continue;
                world_deliver(world, e, now_ns);
                world_drain(world, world->edges[e].to);
            }
        }
    }
}

/* The root has no part in it, and hears of it only if a node three levels down says so. */
static void limit_names_who_is_missing_far_below(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {2, 3}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22)};
    const scenario_t cast = {4, 1, 2, groups, 2, kinds, 0};
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit_all(&world, 1);
    scenario_submit(&world, 3, 0);
    pass_time(&world, 0, 50, -1);
    assert_int_equal(world.ranks[3].warnings, 3); /* after 10, 20 and 40 s */
    assert_non_null(strstr(world.ranks[3].last_warning, "ready on 1 of 2 ranks; missing rank 2 ("));
    assert_false(world.ranks[0].is_fatal);
    pass_time(&world, 50, 105, -1);
    for (int r = 0; r < 4; r++) {
        assert_true(world.ranks[r].is_fatal);
        assert_int_equal(world.ranks[r].fatal_status, DP_ERR_STALLED);
        assert_int_equal(world.ranks[r].fatal_culprit, 2);
    }
    world_fini(&world);
}

/* 3 says once that 7 waits for it. That is of the other list than the one that 1 has announced, and
 * must not go with it. */
static void stall_behind_another_list_is_reported(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 4}}, {3, {0, 3, 7}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const scenario_t cast = {8, 2, 2, groups, 3, kinds, 0}; /* 0 <- 1 2; 1 <- 3 4; 3 <- 7 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 4, 0);
    scenario_submit(&world, 7, 1);
    pass_time(&world, 0, 15, -1);
    world_submit(&world, 0, 0, 1, 0, 1.0f, 15 * SECOND);
    pass_time(&world, 15, 60, -1);
    assert_int_equal(world.ranks[4].alive[1], 1);
    assert_int_equal(world.ranks[7].pending, 1);
    assert_non_null(strstr(world.ranks[0].last_warning, "ready on 1 of 3 ranks; missing rank 0 ("));
    pass_time(&world, 60, 120, -1);
    assert_int_equal(world.ranks[7].fatal_status, DP_ERR_STALLED);
    world_fini(&world);
}

static void subtree_that_does_not_answer_is_named(void **state)
{
    const scenario_t cast = {4, 1, 1, NULL, 0, NULL, 0}; /* 0 <- 1 <- 2 <- 3 */
    world_t world;

    (void)state;
    scenario_begin(&world, &cast);
    scenario_submit(&world, 0, 0);
    scenario_submit(&world, 1, 0);
    pass_time(&world, 0, 15, 2);
    assert_int_equal(world.ranks[1].warnings, 1);
    assert_non_null(
        strstr(world.ranks[1].last_warning, "rank 2 (host0): no answer about its subtree"));
    pass_time(&world, 15, 105, 2);
    assert_int_equal(world.ranks[0].fatal_status, DP_ERR_STALLED);
    assert_int_equal(world.ranks[0].fatal_culprit, 2);
    world_fini(&world);
}

/* The root holds a tensor back while its data plane is busy, until somebody waits for it. */
static void waiter_far_below_is_heard(void **state)
{
    const scenario_t cast = {3, 1, 2, NULL, 0, NULL, UINT64_MAX};
    char name[32];

    (void)state;
    for (int waiter = 0; waiter < 3; waiter++) {
        for (int is_late = 0; is_late < 2; is_late++) {
            world_t world;

            scenario_begin(&world, &cast);
            scenario_submit_all(&world, 0); /* it is never over */
            for (int r = 0; r < 3; r++)
                world_submit(&world, r, 1, 768, r == waiter && !is_late, 1.0f, 0);
            scenario_settle(&world);
            if (is_late) {
                assert_int_equal(world.ranks[waiter].pending, 1);
                dp_negotiator_urgent(world.ranks[waiter].negotiator, DP_GROUP_WORLD,
                                     world_name(1, name), 0);
                scenario_settle(&world);
            }
            scenario_part(&world);
        }
    }
}

/* ---- The end of the world ------------------------------------------------------------------- */

/* A node without memory for the text of a mismatch below it, nor for what it does then: it says so
 * once. */
static void memory_that_is_gone_is_one_cause(void **state)
{
    const scenario_t cast = {3, 1, 1, NULL, 0, NULL, 0}; /* 0 <- 1 <- 2 */
    int is_reached = 1, ends = 0;

    (void)state;
    for (long nth = 1; is_reached; nth++) {
        world_t world;

        scenario_begin(&world, &cast);
        scenario_submit_all(&world, 0);
        world_submit(&world, 1, 0, 768, 0, 1.0f, 0);
        world_submit(&world, 2, 0, 1024, 0, 1.0f, 0);
        world_drain(&world, 1);
        world_drain(&world, 2);
        fail_allocations_from(nth);
        world_deliver(&world, 2, 0); /* 2 to 1 */
        is_reached = fail_allocation_reached();
        scenario_settle(&world);
        for (int r = 0; r < 3; r++) {
            const world_rank_t *self = &world.ranks[r];

            assert_int_equal(self->is_fatal, is_reached);
            if (!is_reached) continue;
            assert_int_equal(self->fatal_status, DP_ERR_NO_MEMORY);
            assert_int_equal(self->fatal_culprit, 1);
        }
        ends += is_reached;
        world_fini(&world);
    }
    assert_true(ends > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_may_have_more_than_64_children),
        cmocka_unit_test(high_children_take_part_in_everything),
        cmocka_unit_test(send_is_launched_alone),
        cmocka_unit_test(sends_to_two_ranks_are_two),
        cmocka_unit_test(mismatch_gives_each_rank_its_own_shape),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(group_ends_below_a_leaver),
        cmocka_unit_test(name_that_failed_is_free_for_ranks_that_were_not_told),
        cmocka_unit_test(third_list_fails_with_the_others),
        cmocka_unit_test(list_that_is_queued_fails_with_another),
        cmocka_unit_test(list_that_was_announced_fails_with_another),
        cmocka_unit_test(list_behind_a_launch_is_the_next_occurrence),
        cmocka_unit_test(stall_behind_another_list_is_reported),
        cmocka_unit_test(contested_names_end_well_in_any_order),
        cmocka_unit_test(kept_tensor_does_not_wait_for_a_rank_that_wants_to_join),
        cmocka_unit_test(ranks_that_joined_take_part_in_what_follows),
        cmocka_unit_test(limit_names_who_is_missing_far_below),
        cmocka_unit_test(subtree_that_does_not_answer_is_named),
        cmocka_unit_test(waiter_far_below_is_heard),
        cmocka_unit_test(memory_that_is_gone_is_one_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
