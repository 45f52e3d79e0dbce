/*
 * test_pipeline_cpu.c - the data plane over the CPU engine: whatever is launched comes out right,
 * inside a node and between two.
 */
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/pipeline_world.h"

static void everything_inside_a_node(void **unused)
{
    world_t world;

    (void)unused;
    for (int buffers = 1; buffers <= 3; buffers++) {
        world_init_cpu(&world, 4, 1, 70000, buffers);
        world_run_random(&world, 250, (uint64_t)buffers + 70, 1);
        world_fini(&world);
    }
}

/* The sum of a node's ranks comes first, so floats are not added in the order of the ranks. */
static void everything_between_nodes(void **unused)
{
    world_t world;

    (void)unused;
    for (int buffers = 1; buffers <= 2; buffers++) {
        world_init_cpu(&world, 4, 2, 70000, buffers);
        world_run_random(&world, 200, (uint64_t)buffers + 80, 0);
        world_fini(&world);
    }
}

static void groups_come_and_go(void **unused)
{
    world_t world;

    (void)unused;
    for (int nodes = 1; nodes <= 2; nodes++) {
        world_init_cpu(&world, 4, nodes, 70000, 2);
        for (uint32_t uid = 1; uid < 30; uid++) {
            world_group_t group;
            world_op_t op = {.group = &group, .dtype = DP_I32, .count = 100 * (size_t)uid};

            world_group_make(&world, &group, uid, 1 + uid % 15);
            op_make(&world, &op, uid);
            world_launch(&world, &op, 1);
            world_wait(&world);
            op_check(&world, &op, 0.0);
            op_free(&world, &op);
            world_group_end(&world, &group);
        }
        world_fini(&world);
    }
}

static void truncated_exchange_fails_alone(void **unused)
{
    static const dp_collective_t exchanges[] = {DP_COLLECTIVE_ALLTOALLV, DP_COLLECTIVE_ALLGATHERV,
                                                DP_COLLECTIVE_GATHERV, DP_COLLECTIVE_SCATTERV,
                                                DP_COLLECTIVE_SEND};
    world_t world;

    (void)unused;
    for (int nodes = 1; nodes <= 2; nodes++) {
        world_op_t ops[15];

        memset(ops, 0, sizeof(ops));
        world_init_cpu(&world, 3, nodes, 100000, 2);
        for (int i = 0; i < 15; i++) {
            ops[i] =
                (world_op_t){.collective = i % 3 == 1 ? exchanges[i / 3] : DP_COLLECTIVE_ALLREDUCE,
                             .dtype = DP_I64,
                             .root = 2,
                             .peer = 1,
                             .count = 1000};
            if (i % 3 == 1) {
                ops[i].is_short = 1 + (ops[i].collective == DP_COLLECTIVE_SEND ? 1 : 2);
            }
            op_make(&world, &ops[i], (uint64_t)i);
            world_launch(&world, &ops[i], 1);
        }
        world_wait(&world);
        for (int i = 0; i < 15; i++) {
            if (i % 3 == 1) {
                op_check_failed(&world, &ops[i], DP_ERR_TRUNCATED, "elements");
            } else {
                op_check(&world, &ops[i], 0.0);
            }
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_inside_a_node),
        cmocka_unit_test(everything_between_nodes),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(truncated_exchange_fails_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
