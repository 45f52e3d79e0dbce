/*
 * test_negotiator_priority.c - in which order the root launches tensors that it could launch at one
 * moment: by the largest priority that a rank gave, then as they became complete.
 */
#include "tests/sim/world.h"
#include "tests/unit/cases.h"

enum { TENSORS = 6 };

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static void settle(world_t *world)
{
    for (int r = 0; r < world->options.size; r++)
        world_drain(world, r);
    while (world->under_way > 0) {
        for (int e = 0; e < world->edge_count; e++) {
            while (world->edges[e].first != NULL) {
                world_deliver(world, e, 0);
                world_drain(world, world->edges[e].to);
            }
        }
    }
}

/* Three ranks in a chain; what is complete is held back while the first launch is under way. */
static void begin(world_t *world, const world_tensor_t *kinds, const world_group_t *groups)
{
    world_options_t options = {0};

    options.size = 3;
    options.tensors = TENSORS;
    options.occurrences = 2;
    options.arity = 1;
    options.nodes = 1;
    options.fusion_bytes = 1 << 20;
    options.hold_ns = UINT64_MAX;
    options.checks_priorities = 1;
    options.kinds = kinds;
    options.groups = groups;
    options.group_count = groups != NULL ? 2 : 0;
    options.violated = violated;
    world_init(world, &options);
}

static void submit(world_t *world, int rank, int tensor, int32_t priority)
{
    world->ranks[rank].priority = priority;
    world_submit(world, rank, tensor, 768, 0, 1.0f, 0);
    world_drain(world, rank);
}

static void submit_all(world_t *world, int tensor, int32_t priority)
{
    for (int r = 0; r < world->options.size; r++) {
        if (world_takes_part(world, tensor, r)) submit(world, r, tensor, priority);
    }
    settle(world);
}

/* The root's data plane has done all so far. */
static void launched(world_t *world)
{
    dp_negotiator_launch_done(world->ranks[0].negotiator, world->ranks[0].launches, 0);
    settle(world);
}

/* The number of the launch a tensor came in, and its place there. */
static uint64_t launch_of(const world_t *world, int tensor)
{
    return world->outcomes[tensor * world->options.occurrences].sequence >> 20;
}

static uint64_t place_of(const world_t *world, int tensor)
{
    return world->outcomes[tensor * world->options.occurrences].sequence & 0xfffff;
}

static void higher_priority_overtakes_what_is_held_back(void **state)
{
    static const int32_t priorities[TENSORS] = {0, 0, -3, 7, 0, 7};
    static const uint64_t launches[TENSORS] = {1, 3, 4, 2, 3, 2};
    static const uint64_t places[TENSORS] = {0, 0, 0, 0, 1, 1};
    world_t world;

    (void)state;
    begin(&world, NULL, NULL);
    for (int t = 0; t < TENSORS; t++)
        submit_all(&world, t, priorities[t]);
    assert_int_equal(world.ranks[0].pending, TENSORS - 1);
    launched(&world);
    for (int r = 0; r < 3; r++)
        assert_int_equal(world.ranks[r].pending, 0);
    for (int t = 0; t < TENSORS; t++) {
        assert_int_equal(launch_of(&world, t), launches[t]);
        assert_int_equal(place_of(&world, t), places[t]);
    }
    world_fini(&world);
}

/* The root's own does not, nor that of the rank that came first. */
static void largest_priority_of_any_rank_counts(void **state)
{
    world_t world;

    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        begin(&world, NULL, NULL);
        submit_all(&world, 0, 0);
        submit_all(&world, 1, 1);
        for (int r = 2; r >= 0; r--)
            submit(&world, r, 2, r == rank ? 2 : -5);
        settle(&world);
        launched(&world);
        assert_int_equal(launch_of(&world, 2), 2);
        assert_int_equal(launch_of(&world, 1), 3);
        world_fini(&world);
    }
}

/* Tensors of a group without the root are launched at once; where both are due, one order holds. */
static void priority_counts_across_groups(void **state)
{
    static const world_group_t groups[] = {{0, {0}}, {2, {1, 2}}};
    static const world_tensor_t kinds[TENSORS] = {
        {0, DP_COLLECTIVE_ALLREDUCE, -1, -1, 0},    {0, DP_COLLECTIVE_ALLREDUCE, -1, -1, 1},
        {1, DP_COLLECTIVE_ALLGATHER, -1, -1, 0},    {1, DP_COLLECTIVE_ALLREDUCE, -1, -1, 1},
        {1, DP_COLLECTIVE_GROUP_CREATE, -1, -1, 5}, {1, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, 6}};
    world_t world;

    (void)state;
    begin(&world, kinds, groups);
    submit_all(&world, 4, 0);
    for (int r = 1; r < 3; r++) { /* nothing leaves rank 1 before all of it is there */
        world.ranks[r].priority = -1;
        world_submit(&world, r, 3, 768, 0, 1.0f, 0);
        world.ranks[r].priority = 9;
        world_submit(&world, r, 2, 768, 0, 1.0f, 0);
    }
    for (int r = 0; r < 3; r++) {
        world.ranks[r].priority = 3;
        world_submit(&world, r, 0, 768, 0, 1.0f, 0);
    }
    world_drain(&world, 2);
    world_deliver(&world, 2, 0); /* 2 to 1 */
    settle(&world);
    assert_true(launch_of(&world, 2) < launch_of(&world, 0));
    assert_true(launch_of(&world, 0) < launch_of(&world, 3));
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(higher_priority_overtakes_what_is_held_back),
        cmocka_unit_test(largest_priority_of_any_rank_counts),
        cmocka_unit_test(priority_counts_across_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
