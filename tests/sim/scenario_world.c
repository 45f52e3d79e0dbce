/*
 * scenario_world.c - makes the worlds of the scenarios, and takes the steps that they share.
 */
#include <stdio.h>
#include <string.h>

#include "scenario_world.h"
#include "tests/unit/cases.h"

static void scenario_violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

void scenario_begin(world_t *world, const scenario_t *cast)
{
    world_options_t options = {0};

    options.size = cast->size;
    options.arity = cast->arity;
    options.tensors = cast->tensors;
    options.groups = cast->groups;
    options.group_count = cast->group_count;
    options.kinds = cast->kinds;
    options.hold_ns = cast->hold_ns;
    options.occurrences = 200;
    options.nodes = 1;
    options.fusion_bytes = 1 << 20;
    options.stall_warn_ns = LIMIT / 10;
    options.stall_limit_ns = LIMIT;
    options.violated = scenario_violated;
    world_init(world, &options);
}

void scenario_settle(world_t *world)
{
    world_settle(world, 0);
}

void scenario_submit(world_t *world, int rank, int tensor)
{
    world_submit(world, rank, tensor, 768, 0, 1.0f, 0);
    world_drain(world, rank);
}

void scenario_submit_all(world_t *world, int tensor)
{
    for (int r = 0; r < world->options.size; r++) {
        if (world_takes_part(world, tensor, r)) scenario_submit(world, r, tensor);
    }
    scenario_settle(world);
}

void scenario_play(world_t *world, int rounds, int tensors)
{
    for (int i = 0; i < rounds * tensors; i++)
        scenario_submit_all(world, i % tensors);
}

void scenario_expect_nothing_pending(const world_t *world)
{
    for (int r = 0; r < world->options.size; r++) {
        if (world->ranks[r].is_fatal) fail_msg("rank %d: %s", r, world->ranks[r].fatal_text);
        assert_int_equal(world->ranks[r].pending, 0);
    }
}

/* Everybody goes in peace. */
void scenario_part(world_t *world)
{
    scenario_expect_nothing_pending(world);
    for (int r = 0; r < world->options.size; r++)
        dp_negotiator_finalize(world->ranks[r].negotiator, 0);
    scenario_settle(world);
    for (int r = 0; r < world->options.size; r++)
        assert_true(world->ranks[r].is_finished);
    world_check_identities(world);
    world_check_order(world);
    world_fini(world);
}
