/*
 * scenarios.c - worlds in which one thing happens that neither chance nor all orders of a few steps
 * come to: wide nodes, names that are contested, schedules that end in the middle.
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

#include "random.h"
#include "tests/unit/fail_allocation.h"
#include "world.h"

#define SECOND UINT64_C(1000000000)
#define LIMIT (100 * SECOND)

#define SUM(group, name)                                                                           \
    {                                                                                              \
        group, DP_COLLECTIVE_ALLREDUCE, -1, -1, name                                               \
    }
#define MAKE(group, name)                                                                          \
    {                                                                                              \
        group, DP_COLLECTIVE_GROUP_CREATE, -1, -1, name                                            \
    }
#define END(group, name)                                                                           \
    {                                                                                              \
        group, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, name                                           \
    }

/* ---- Worlds ----------------------------------------------------------------------------- */

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

typedef struct cast {
    int size, arity, tensors;
    const world_group_t *groups;
    int group_count;
    const world_tensor_t *kinds;
    int may_schedule;
    uint64_t resume_rounds;
} cast_t;

static void begin(world_t *world, const cast_t *cast)
{
    world_options_t options = {0};

    options.size = cast->size;
    options.arity = cast->arity;
    options.tensors = cast->tensors;
    options.groups = cast->groups;
    options.group_count = cast->group_count;
    options.kinds = cast->kinds;
    options.may_schedule = cast->may_schedule;
    options.resume_rounds = cast->resume_rounds;
    options.occurrences = 200;
    options.hosts = 1;
    options.fusion_bytes = 1 << 20;
    options.stall_warn_ns = LIMIT / 10;
    options.stall_limit_ns = LIMIT;
    options.violated = violated;
    world_init(world, &options);
}

/* Delivers until nothing is under way. */
static void settle_at(world_t *world, uint64_t now_ns)
{
    for (int r = 0; r < world->options.size; r++)
        world_drain(world, r);
    while (world->under_way > 0) {
        for (int e = 0; e < world->edge_count; e++) {
            while (world->edges[e].first != NULL) {
                world_deliver(world, e, now_ns);
                world_drain(world, world->edges[e].to);
            }
        }
    }
}

static void settle(world_t *world)
{
    settle_at(world, 0);
}

static void submit(world_t *world, int rank, int tensor)
{
    world_submit(world, rank, tensor, 768, 0, 1.0f, 0);
    world_drain(world, rank);
}

static void submit_all(world_t *world, int tensor)
{
    for (int r = 0; r < world->options.size; r++) {
        if (world_takes_part(world, tensor, r)) submit(world, r, tensor);
    }
    settle(world);
}

static void play(world_t *world, int rounds, int tensors)
{
    for (int i = 0; i < rounds * tensors; i++)
        submit_all(world, i % tensors);
}

static void expect_nothing_pending(const world_t *world)
{
    for (int r = 0; r < world->options.size; r++) {
        if (world->ranks[r].is_fatal) fail_msg("rank %d: %s", r, world->ranks[r].fatal_text);
        assert_int_equal(world->ranks[r].pending, 0);
    }
}

/* Everybody goes in peace. */
static void part(world_t *world)
{
    expect_nothing_pending(world);
    for (int r = 0; r < world->options.size; r++)
        dp_negotiator_finalize(world->ranks[r].negotiator, 0);
    settle(world);
    for (int r = 0; r < world->options.size; r++)
        assert_true(world->ranks[r].is_finished);
    world_check_identities(world);
    world_check_flights(world);
    world_check_order(world);
    world_fini(world);
}

/* ---- Wide nodes ------------------------------------------------------------------------- */

/* A set of children takes a second word from 64 on, and the node itself has the bit behind them. */
static void nodes_may_have_more_than_64_children(void **state)
{
    (void)state;
    for (int size = 63; size < 140; size++) {
        const cast_t cast = {size, 138, 1, NULL, 0, NULL, 0, 0};
        world_t world;

        begin(&world, &cast);
        assert_int_equal(world.ranks[0].node.child_count, size - 1);
        play(&world, 2, 1);
        for (int r = 0; r < size; r++)
            assert_int_equal(world.ranks[r].launches, 2);
        part(&world);
    }
}

/* Groups, a join and a stall of children whose bits lie in the second word. */
static void high_children_take_part_in_everything(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {3, {2, 66, 80}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const cast_t cast = {90, 89, 4, groups, 2, kinds, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 2);
    play(&world, 2, 2);
    world_join(&world, 80, 0, 3, 0); /* the others go on without it */
    settle(&world);
    for (int r = 0; r < 90; r++) {
        if (r != 80) submit(&world, r, 0);
    }
    settle(&world);
    for (int r = 0; r < 90; r++) {
        if (r != 80) world_join(&world, r, 0, 3, 0);
    }
    settle(&world);
    for (int r = 0; r < 90; r++) { /* all but one: who is named? */
        if (r != 77) submit(&world, r, 0);
    }
    settle(&world);
    for (uint64_t now = LIMIT / 10; now < LIMIT / 5; now += SECOND) {
        dp_negotiator_tick(world.ranks[0].negotiator, now);
        settle_at(&world, now);
    }
    assert_int_equal(world.ranks[80].warnings, 1);
    assert_non_null(
        strstr(world.ranks[80].last_warning, "ready on 89 of 90 ranks; missing rank 77"));
    submit(&world, 77, 0);
    settle(&world);
    submit_all(&world, 3);
    part(&world);
}

/* A send and a sum are ready at the same moment: the world checks that each launch has one kind. */
static void send_is_launched_alone(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {
        {1, DP_COLLECTIVE_SEND, 0, 1, 0}, SUM(1, 1), MAKE(1, 22)};
    const cast_t cast = {3, 2, 3, groups, 2, kinds, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 2);
    for (int r = 1; r < 3; r++) {
        world_submit(&world, r, 0, 768, 0, 1.0f, 0);
        world_submit(&world, r, 1, 768, 0, 1.0f, 0);
        world_drain(&world, r);
    }
    world_deliver(&world, 0, 0); /* both to the root, which takes no outputs between */
    world_deliver(&world, 2, 0);
    settle(&world);
    part(&world);
}

/* One rank sends to two others under one name, to both at the same time. */
static void sends_to_two_ranks_are_two(void **state)
{
    static const world_tensor_t kinds[] = {{0, DP_COLLECTIVE_SEND, 0, 1, 0},
                                           {0, DP_COLLECTIVE_SEND, 0, 2, 0}};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 2, NULL, 0, kinds, 0, 0};
        world_t world;

        begin(&world, &cast);
        submit(&world, 0, 0);
        submit(&world, 0, 1);
        submit(&world, 2, 1);
        settle(&world);
        assert_int_equal(world.ranks[2].pending, 0);
        assert_int_equal(world.ranks[0].pending, 1);
        submit(&world, 1, 0);
        settle(&world);
        part(&world);
    }
}

/* A node below the root finds it. */
static void mismatch_gives_each_rank_its_own_shape(void **state)
{
    const cast_t cast = {3, 1, 1, NULL, 0, NULL, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    for (int r = 2; r >= 0; r--) {
        world_submit(&world, r, 0, r == 2 ? 1024 : 768, 0, 1.0f, 0);
        settle(&world);
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
        assert_non_null(strstr(world.ranks[r].last_failure, "768 on rank 1 ("));
        assert_non_null(strstr(world.ranks[r].last_failure, "1024 on rank 2 ("));
    }
    part(&world);
}

/* Three groups that overlap, again and again: numbers ascend, places are used again. */
static void groups_come_and_go(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}, {3, {0, 1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0),   SUM(2, 0),   SUM(3, 0),
                                           MAKE(1, 22), MAKE(2, 23), MAKE(3, 24),
                                           END(1, 9),   END(2, 9),   END(3, 9)};
    const cast_t cast = {3, 1, 9, groups, 4, kinds, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 3; i++)
            submit_all(&world, 3 + (i + round) % 3);
        play(&world, 2, 3);
        for (int i = 0; i < 3; i++)
            submit_all(&world, 6 + i);
    }
    part(&world);
}

/* A leaver's word about the end of a group meets that end on its way. */
static void group_ends_below_a_leaver(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {3, {0, 1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const cast_t cast = {3, 1, 3, groups, 2, kinds, 0, 0}; /* 0 <- 1 <- 2 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 1);
    play(&world, 1, 1);
    submit(&world, 2, 2);
    submit(&world, 1, 2);
    world_deliver(&world, 2, 0);
    world_drain(&world, 1);
    submit(&world, 0, 2);
    world_deliver(&world, 0, 0);
    world_drain(&world, 0); /* the launch is on its way to 1 */
    dp_negotiator_finalize(world.ranks[2].negotiator, 0);
    world_drain(&world, 2);
    world_deliver(&world, 2, 0); /* what 2 keeps comes to 1 before it */
    world_deliver(&world, 1, 0);
    settle(&world);
    assert_int_equal(world.ranks[1].alive[1], 0);
    part(&world);
}

/* ---- Names that are contested ----------------------------------------------------------- */

static void name_that_failed_is_free_for_ranks_that_were_not_told(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {1, {1}}, {2, {0, 2}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22), MAKE(3, 22)};
    const cast_t cast = {3, 2, 3, groups, 4, kinds, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 0, 0);
    submit(&world, 1, 1);
    settle(&world);
    assert_int_equal(world.ranks[0].failures, 1);
    assert_int_equal(world.ranks[1].failures, 1);
    submit_all(&world, 2);
    assert_int_equal(world.ranks[2].alive[3], 1);
    part(&world);
}

static void third_list_fails_with_the_others(void **state)
{
    static const world_group_t groups[] = {
        {0, {0}}, {3, {0, 1, 4}}, {3, {0, 1, 5}}, {3, {0, 1, 6}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22), MAKE(3, 22)};
    const cast_t cast = {7, 3, 3, groups, 4, kinds, 0, 0}; /* 0 <- 1 2 3; 1 <- 4 5 6 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    assert_int_equal(world.ranks[6].node.parent, 1);
    for (int i = 0; i < 3; i++)
        submit(&world, 4 + i, i);
    settle(&world);
    for (int r = 4; r < 7; r++) {
        assert_int_equal(world.ranks[r].failures, 1);
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
    }
    part(&world);
}

/* The first list is complete and waits in the root's queue when the second one comes. */
static void list_that_is_queued_fails_with_another(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 3}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const cast_t cast = {4, 2, 2, groups, 3, kinds, 0, 0}; /* 0 <- 1 2; 1 <- 3 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 1, 0);
    submit(&world, 3, 0);
    world_deliver(&world, 4, 0); /* 3 to 1 */
    world_drain(&world, 1);
    submit(&world, 2, 1);
    world_deliver(&world, 0, 0); /* both to the root, which takes no outputs between */
    world_deliver(&world, 2, 0);
    settle(&world);
    for (int r = 1; r < 4; r++) {
        assert_int_equal(world.ranks[r].failures, 1);
        assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
        assert_string_equal(
            world.ranks[r].last_failure,
            "group h.22.weight: member 1 rank 3 on rank 1 (host0), rank 2 on rank 2 (host0)");
    }
    part(&world);
}

/* A node has announced a list, and hears of another one below it. */
static void list_that_was_announced_fails_with_another(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 3}}, {2, {0, 4}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const cast_t cast = {5, 2, 2, groups, 3, kinds, 0, 0}; /* 0 <- 1 2; 1 <- 3 4 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 3, 0);
    settle(&world);
    submit(&world, 4, 1);
    settle(&world);
    submit(&world, 0, 0); /* it failed without this rank */
    settle(&world);
    for (int r = 0; r < 5; r++) {
        assert_int_equal(world.ranks[r].failures, r == 0 || r > 2);
        if (r == 0 || r > 2) assert_int_equal(world.ranks[r].last_failure_status, DP_ERR_MISMATCH);
    }
    part(&world);
}

/* Likewise, but the root has launched the first list before it hears of the second, which then
 * waits for its own ranks: the node's own among them. */
static void list_behind_a_launch_is_the_next_occurrence(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 3}}, {3, {0, 1, 4}}};
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    const cast_t cast = {5, 2, 2, groups, 3, kinds, 0, 0}; /* 0 <- 1 2; 1 <- 3 4 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 0, 0);
    submit(&world, 3, 0);
    world_deliver(&world, 4, 0); /* 3 to 1, which announces it */
    world_drain(&world, 1);
    submit(&world, 4, 1);
    world_deliver(&world, 6, 0); /* 4 to 1 */
    submit(&world, 1, 1);
    world_deliver(&world, 0, 0); /* READY alone to the root, which launches */
    settle(&world);
    assert_int_equal(world.ranks[3].alive[1], 1);
    assert_int_equal(world.ranks[0].alive[1], 1);
    assert_int_equal(world.ranks[4].pending, 1);
    assert_int_equal(world.ranks[1].pending, 1);
    submit(&world, 0, 1);
    settle(&world);
    assert_int_equal(world.ranks[4].alive[2], 1);
    part(&world);
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

/* Who has another list than the rank that all have in common fails with it, in trees of any shape:
 * or the first list is made, and the second fails as that rank leaves. */
static void contested_names_end_well_in_any_order(void **state)
{
    static const world_tensor_t kinds[] = {MAKE(1, 22), MAKE(2, 22)};
    static contest_t contest;
    int made = 0, mismatched = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 800; seed++) {
        cast_t cast = {0, 0, 2, contest.groups, 3, kinds, 0, 0};
        world_t *world = &contest.world;
        int steps = 0;

        contest.random = seed;
        cast.size = 3 + (int)below(&contest.random, 7);
        cast.arity = 1 + (int)below(&contest.random, 4);
        choose_lists(&contest, cast.size);
        begin(world, &cast);
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

/* ---- Leaving, and who has no more data -------------------------------------------------- */

/* Rank 2 leaves and keeps a tensor; who joins then is refused, and the tensor goes without it. */
static void kept_tensor_does_not_wait_for_who_wants_to_join(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        for (int joiner = 0; joiner < 2; joiner++) {
            const cast_t cast = {3, arity, 1, NULL, 0, NULL, 0, 0};
            world_t world;

            begin(&world, &cast);
            submit(&world, 2, 0);
            dp_negotiator_finalize(world.ranks[2].negotiator, 0);
            settle(&world);
            submit(&world, 1 - joiner, 0);
            settle(&world);
            world_join(&world, joiner, 0, 1, 0);
            settle(&world);
            assert_int_equal(world.ranks[joiner].failures, 1);
            assert_int_equal(world.ranks[joiner].last_failure_status, DP_ERR_LEFT);
            assert_int_equal(world.ranks[2].launches, 1);
            assert_int_equal(world.ranks[1 - joiner].failures, 0);
            part(&world);
        }
    }
}

/* After all have joined each is there again, until it joins once more. */
static void ranks_that_joined_take_part_in_what_follows(void **state)
{
    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 1, NULL, 0, NULL, 0, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 0);
        for (int r = 0; r < 3; r++)
            world_join(&world, r, 0, 1, 0);
        settle(&world);
        expect_nothing_pending(&world);
        world_join(&world, 0, 0, 2, 0);
        submit(&world, 1, 0);
        settle(&world);
        assert_int_equal(world.ranks[1].pending, 1); /* rank 2 is missing */
        submit(&world, 2, 0);
        settle(&world);
        assert_int_equal(world.ranks[1].pending, 0);
        world_join(&world, 1, 0, 2, 0);
        world_join(&world, 2, 0, 2, 0);
        settle(&world);
        part(&world);
    }
}

/* ---- Schedules -------------------------------------------------------------------------- */

static void waiter_behind_a_missing_tensor_ends_the_schedule(void **state)
{
    const cast_t cast = {2, 2, 4, NULL, 0, NULL, 1, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    play(&world, 3, 2);
    assert_int_equal(world.ranks[1].schedules, 1);
    submit_all(&world, 0); /* this step goes without tensor 1 */
    submit_all(&world, 0);
    assert_int_equal(world.ranks[0].pending, 1);
    for (int r = 0; r < 2; r++)
        dp_negotiator_waits(world.ranks[r].negotiator, 0);
    settle(&world);
    assert_int_equal(world.ranks[0].unlock_reason, DP_SCHEDULE_END_WAIT);
    part(&world);
}

static void schedule_may_leave_a_subtree_out(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22)};
    const cast_t cast = {3, 2, 2, groups, 2, kinds, 1, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 1);
    for (int i = 0; i < 60; i++) {
        submit_all(&world, 0);
        assert_int_equal(world.ranks[0].pending, 0);
    }
    assert_int_equal(world.ranks[0].schedules, 1);
    assert_int_equal(world.ranks[0].schedule_ends, 0);
    part(&world);
}

static void together_once_is_not_together(void **state)
{
    const cast_t cast = {2, 2, 4, NULL, 0, NULL, 1, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    play(&world, 2, 2);
    submit(&world, 0, 0);
    submit(&world, 0, 1);
    for (int t = 0; t < 2; t++)
        world_submit(&world, 1, t, 768, 0, 1.0f, 0);
    settle(&world); /* the third round: in one launch */
    assert_int_equal(world.ranks[0].schedules, 1);
    submit_all(&world, 0); /* waited for before the other is submitted */
    part(&world);
}

/* What two groups do while a debt to the world is open has one place on all their ranks. */
static void overlapping_groups_keep_one_order_behind_debts(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), SUM(2, 0), MAKE(1, 22),
                                           MAKE(2, 23)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 5, groups, 3, kinds, 1, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 3);
        submit_all(&world, 4);
        play(&world, 3, 1);
        assert_int_equal(world.ranks[0].schedules, 1);
        submit(&world, 0, 0); /* launched by the plan; the others owe it */
        submit(&world, 0, 1); /* ends the schedule */
        settle(&world);
        submit(&world, 1, 1);
        settle(&world);
        submit(&world, 1, 2);
        submit(&world, 2, 2);
        settle(&world);
        submit(&world, 1, 0);
        submit(&world, 2, 0);
        settle(&world);
        part(&world);
    }
}

/* A plan reduces in place what lay there in all its rounds. */
static void memory_that_moves_ends_the_schedule(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), MAKE(1, 22)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 2, groups, 2, kinds, 1, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 1);
        play(&world, 5, 1);
        assert_int_equal(world.ranks[0].schedule_ends, 0);
        assert_true(world.ranks[2].locked_launches > 0);
        world.ranks[2].has_moved = 1;
        submit_all(&world, 0);
        assert_int_equal(world.ranks[0].schedule_ends, 1);
        assert_int_equal(world.ranks[0].unlock_reason, DP_SCHEDULE_END_MEMORY);
        part(&world);
    }
}

/* Ranks 1 and 2 owe the world's tensor, and 1 another one before it. What 1 and 2 do after they
 * have submitted the former comes behind it on both, though only 1 has to wait. */
static void launch_behind_a_settled_debt_waits_for_it(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(1, 0), SUM(0, 0), SUM(2, 0), MAKE(1, 22),
                                           MAKE(2, 23)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 5, groups, 3, kinds, 1, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 3);
        submit_all(&world, 4);
        play(&world, 3, 2);
        assert_int_equal(world.ranks[0].schedules, 1);
        submit(&world, 0, 0);
        submit(&world, 0, 1);
        dp_negotiator_end_schedule(world.ranks[0].negotiator, "a setting", 0);
        settle(&world);
        for (int t = 1; t < 3; t++) {
            submit(&world, 1, t);
            submit(&world, 2, t);
            settle(&world);
        }
        assert_int_equal(world.ranks[2].pending, 0);
        assert_int_equal(world.ranks[1].pending, 2);
        submit(&world, 1, 0);
        settle(&world);
        part(&world);
    }
}

static void plan_that_is_kept_ends_with_its_group(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const cast_t cast = {2, 2, 4, groups, 2, kinds, 1, 2};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 2);
    play(&world, 8, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    submit_all(&world, 3); /* the end of the group ends the schedule */
    assert_int_equal(world.ranks[0].schedule_ends, 1);
    play(&world, 6, 1);
    submit_all(&world, 2);
    for (int i = 0; i < 6; i++) {
        submit_all(&world, 1);
        submit_all(&world, 0);
    }
    part(&world);
}

/* Rank 1 has launched two rounds that rank 0 owes, and is the first to end the group. */
static void end_of_a_group_comes_after_what_is_owed(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(1, 0), MAKE(1, 22), END(1, 9)};
    const cast_t cast = {2, 2, 4, groups, 2, kinds, 1, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 2);
    play(&world, 3, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int r = 1; r >= 0; r--) {
        for (int i = 0; i < 4; i++) {
            submit(&world, r, i % 2);
            if (r == 0) settle(&world);
        }
        submit(&world, r, 3);
        settle(&world);
    }
    part(&world);
}

static void nobody_runs_ahead_of_the_others_by_much(void **state)
{
    const cast_t cast = {2, 1, 1, NULL, 0, NULL, 1, 0};
    uint64_t ahead;
    world_t world;

    (void)state;
    begin(&world, &cast);
    play(&world, 3, 1);
    assert_int_equal(world.ranks[1].schedules, 1);
    for (int i = 0; i < 100 && world.ranks[0].pending == 0; i++) {
        submit(&world, 0, 0);
        settle(&world);
    }
    ahead = world.ranks[0].locked_launches - world.ranks[1].locked_launches;
    assert_int_equal(world.ranks[0].pending, 1);
    assert_in_range(ahead, 16, 32);
    for (uint64_t i = 0; i < ahead + 1; i++) {
        submit(&world, 1, 0);
        settle(&world);
    }
    part(&world);
}

static void tensor_of_an_earlier_plan_ends_the_next(void **state)
{
    const cast_t cast = {2, 1, 2, NULL, 0, NULL, 1, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    play(&world, 8, 2);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int i = 0; i < 12; i++) {
        submit_all(&world, 0);
        for (int r = 0; r < 2; r++)
            dp_negotiator_waits(world.ranks[r].negotiator, 0);
        settle(&world);
    }
    assert_int_equal(world.ranks[0].schedules, 2);
    submit_all(&world, 1);
    expect_nothing_pending(&world);
    assert_int_equal(world.ranks[0].unlock_reason, DP_SCHEDULE_END_TENSOR);
    part(&world);
}

/* Rank 0 has launched what 1 and 2 owe. They may do something among themselves first: in this
 * schedule as in the one before it. */
static void ranks_that_are_behind_may_meet_before_they_pay(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(0, 1), SUM(1, 0), MAKE(1, 22)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 4, groups, 2, kinds, 1, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 3);
        for (int schedules = 1; schedules < 4; schedules++) {
            while (world.ranks[0].schedules < schedules)
                submit_all(&world, 0);
            for (int i = 0; i < 4; i++)
                submit_all(&world, 0);
            submit(&world, 0, 0); /* launched by the plan */
            submit(&world, 0, 1); /* ends it */
            settle(&world);
            submit_all(&world, 2);
            assert_int_equal(world.ranks[1].pending, 0);
            assert_int_equal(world.ranks[2].pending, 0);
            for (int t = 0; t < 2; t++) {
                submit(&world, 1, t);
                submit(&world, 2, t);
                settle(&world);
            }
            expect_nothing_pending(&world);
        }
        part(&world);
    }
}

/* Rank 2 has launched two buckets, rank 0 one, rank 1 none. What 0 and 1 do then has its place
 * between the two, and need not wait for the second. */
static void launch_waits_for_the_debts_before_it_alone(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {0, 1}}};
    static const world_tensor_t kinds[] = {SUM(0, 0), SUM(0, 1), SUM(1, 0), MAKE(1, 22)};

    (void)state;
    for (int arity = 1; arity < 3; arity++) {
        const cast_t cast = {3, arity, 4, groups, 2, kinds, 1, 0};
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 3);
        play(&world, 3, 2);
        assert_int_equal(world.ranks[0].schedules, 1);
        submit(&world, 2, 0);
        submit(&world, 2, 1);
        submit(&world, 0, 0);
        submit(&world, 0, 2); /* ends the schedule */
        settle(&world);
        submit(&world, 1, 2);
        settle(&world);
        assert_int_equal(world.ranks[1].pending, 1);
        submit(&world, 1, 0);
        settle(&world);
        assert_int_equal(world.ranks[1].pending, 0);
        assert_int_equal(world.ranks[0].pending, 0);
        submit(&world, 0, 1);
        submit(&world, 1, 1);
        settle(&world);
        part(&world);
    }
}

/* Rank 1 waits for a tensor behind four that it owes and does not submit: it gives up one after the
 * other, and all of that comes before the others have waited for too long. */
static void debts_are_given_up_before_the_limit(void **state)
{
    const cast_t cast = {2, 2, 5, NULL, 0, NULL, 1, 0};
    uint64_t now_ns = 1;
    world_t world;

    (void)state;
    begin(&world, &cast);
    play(&world, 3, 4);
    assert_int_equal(world.ranks[0].schedules, 1);
    for (int t = 0; t < 5; t++)
        submit(&world, 0, t); /* launched by the plan, and one that ends it */
    settle(&world);
    submit(&world, 1, 4);
    while (world.ranks[1].pending > 0 && now_ns < 2 * LIMIT) {
        now_ns = UINT64_MAX;
        for (int r = 0; r < 2; r++) {
            dp_negotiator_waits(world.ranks[r].negotiator, 0);
            now_ns = dp_min(now_ns, dp_negotiator_deadline(world.ranks[r].negotiator));
        }
        for (int r = 0; r < 2; r++)
            dp_negotiator_tick(world.ranks[r].negotiator, now_ns);
        settle_at(&world, now_ns);
        assert_false(world.ranks[0].is_fatal);
    }
    assert_true(now_ns > LIMIT / 2);
    assert_true(now_ns < LIMIT);
    assert_int_equal(world.ranks[0].voids, 4);
    part(&world);
}

/* ---- Who waits, and for whom ------------------------------------------------------------ */

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
    const cast_t cast = {4, 1, 2, groups, 2, kinds, 0, 0};
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit_all(&world, 1);
    submit(&world, 3, 0);
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
    const cast_t cast = {8, 2, 2, groups, 3, kinds, 0, 0}; /* 0 <- 1 2; 1 <- 3 4; 3 <- 7 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 4, 0);
    submit(&world, 7, 1);
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
    const cast_t cast = {4, 1, 1, NULL, 0, NULL, 0, 0}; /* 0 <- 1 <- 2 <- 3 */
    world_t world;

    (void)state;
    begin(&world, &cast);
    submit(&world, 0, 0);
    submit(&world, 1, 0);
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
    const cast_t cast = {3, 1, 2, NULL, 0, NULL, 0, 0};
    char name[32];

    (void)state;
    for (int waiter = 0; waiter < 3; waiter++) {
        for (int is_late = 0; is_late < 2; is_late++) {
            world_t world;

            begin(&world, &cast);
            dp_negotiator_pace(world.ranks[0].negotiator, UINT64_MAX, 1 << 20);
            submit_all(&world, 0); /* it is never over */
            for (int r = 0; r < 3; r++)
                world_submit(&world, r, 1, 768, r == waiter && !is_late, 1.0f, 0);
            settle(&world);
            if (is_late) {
                assert_int_equal(world.ranks[waiter].pending, 1);
                dp_negotiator_urgent(world.ranks[waiter].negotiator, DP_GROUP_WORLD,
                                     world_name(1, name), 0);
                settle(&world);
            }
            part(&world);
        }
    }
}

/* ---- The end of the world --------------------------------------------------------------- */

/* A node without memory for the text of a mismatch below it, nor for what it does then: it says so
 * once. */
static void memory_that_is_gone_is_one_cause(void **state)
{
    const cast_t cast = {3, 1, 1, NULL, 0, NULL, 0, 0}; /* 0 <- 1 <- 2 */
    int is_reached = 1, ends = 0;

    (void)state;
    for (long nth = 1; is_reached; nth++) {
        world_t world;

        begin(&world, &cast);
        submit_all(&world, 0);
        world_submit(&world, 1, 0, 768, 0, 1.0f, 0);
        world_submit(&world, 2, 0, 1024, 0, 1.0f, 0);
        world_drain(&world, 1);
        world_drain(&world, 2);
        fail_allocations_from(nth);
        world_deliver(&world, 2, 0); /* 2 to 1 */
        is_reached = fail_allocation_reached();
        settle(&world);
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
        cmocka_unit_test(kept_tensor_does_not_wait_for_who_wants_to_join),
        cmocka_unit_test(ranks_that_joined_take_part_in_what_follows),
        cmocka_unit_test(waiter_behind_a_missing_tensor_ends_the_schedule),
        cmocka_unit_test(schedule_may_leave_a_subtree_out),
        cmocka_unit_test(together_once_is_not_together),
        cmocka_unit_test(overlapping_groups_keep_one_order_behind_debts),
        cmocka_unit_test(memory_that_moves_ends_the_schedule),
        cmocka_unit_test(launch_behind_a_settled_debt_waits_for_it),
        cmocka_unit_test(plan_that_is_kept_ends_with_its_group),
        cmocka_unit_test(end_of_a_group_comes_after_what_is_owed),
        cmocka_unit_test(nobody_runs_ahead_of_the_others_by_much),
        cmocka_unit_test(tensor_of_an_earlier_plan_ends_the_next),
        cmocka_unit_test(ranks_that_are_behind_may_meet_before_they_pay),
        cmocka_unit_test(launch_waits_for_the_debts_before_it_alone),
        cmocka_unit_test(debts_are_given_up_before_the_limit),
        cmocka_unit_test(limit_names_who_is_missing_far_below),
        cmocka_unit_test(subtree_that_does_not_answer_is_named),
        cmocka_unit_test(waiter_far_below_is_heard),
        cmocka_unit_test(memory_that_is_gone_is_one_cause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
