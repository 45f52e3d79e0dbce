/*
 * test_negotiator_mesh.c - the groups of a mesh of 4,096 ranks, 8 x 8 x 64: the root knows more
 * groups than a rank can be in, and each rank sees three.
 */
#include <stdlib.h>

#include "tests/sim/world.h"
#include "tests/unit/cases.h"

enum { AXES = 3, RANKS = 8 * 8 * 64, GROUPS = RANKS / 8 + RANKS / 8 + RANKS / 64 };

static const int dims[AXES] = {8, 8, 64};

static void violated(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

/* Group 0 is the world. kinds[g - 1] makes group g. */
static void list_groups(world_group_t *groups, world_tensor_t *kinds)
{
    int g = 1, stride = RANKS;

    for (int axis = 0; axis < AXES; axis++) {
        stride /= dims[axis];
        for (int first = 0; first < RANKS; first++) {
            if (first / stride % dims[axis] != 0) continue;
            groups[g].count = dims[axis];
            for (int k = 0; k < dims[axis]; k++)
                groups[g].ranks[k] = first + k * stride;
            kinds[g - 1] = (world_tensor_t){g, DP_COLLECTIVE_GROUP_CREATE, -1, -1, g};
            g++;
        }
    }
    assert_int_equal(g, GROUPS + 1);
}

static void root_makes_more_groups_than_a_rank_may_be_in(void **state)
{
    world_group_t *groups = calloc(GROUPS + 1, sizeof(*groups));
    world_tensor_t *kinds = calloc(GROUPS, sizeof(*kinds));
    world_options_t options = {.size = RANKS,
                               .tensors = GROUPS,
                               .occurrences = 1,
                               .arity = 8,
                               .nodes = RANKS / 8,
                               .group_count = GROUPS + 1,
                               .groups = groups,
                               .kinds = kinds,
                               .violated = violated};
    world_t world;

    (void)state;
    assert_true(GROUPS > DP_GROUPS_MAX);
    assert_true(groups != NULL && kinds != NULL);
    list_groups(groups, kinds);
    world_init(&world, &options);
    for (int t = 0; t < GROUPS; t++) {
        const world_group_t *group = &groups[t + 1];

        for (int i = 0; i < group->count; i++)
            world_submit(&world, group->ranks[i], t, 768, 0, 1.0f, 0);
        if (t % 64 == 63) world_settle(&world, 0);
    }
    world_settle(&world, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(world.ranks[r].failures, 0);
        assert_int_equal(world.ranks[r].pending, 0);
    }
    for (int g = 1; g <= GROUPS; g++) {
        for (int i = 0; i < groups[g].count; i++) {
            const world_rank_t *rank = &world.ranks[groups[g].ranks[i]];

            assert_int_equal(rank->alive[g], 1);
            /* the lowest that is free on the ranks of the group, and these are in three */
            assert_in_range(rank->group_indices[g], 1, AXES);
        }
    }
    world_fini(&world);
    free(groups);
    free(kinds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_makes_more_groups_than_a_rank_may_be_in),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
