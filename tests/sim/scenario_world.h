/*
 * scenario_world.h - worlds with a list of tensors and groups for scenarios.c, and steps that
 * every scenario makes.
 */
#ifndef DP_TESTS_SIM_SCENARIO_WORLD_H
#define DP_TESTS_SIM_SCENARIO_WORLD_H

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

typedef struct scenario {
    int size, arity, tensors;
    const world_group_t *groups;
    int group_count;
    const world_tensor_t *kinds;
    uint64_t hold_ns;
} scenario_t;

void scenario_begin(world_t *world, const scenario_t *cast);
void scenario_settle(world_t *world); /* at time 0 */
void scenario_submit(world_t *world, int rank, int tensor);
void scenario_submit_all(world_t *world, int tensor);
void scenario_play(world_t *world, int rounds, int tensors);
void scenario_expect_nothing_pending(const world_t *world);
/* Everybody goes in peace. */
void scenario_part(world_t *world);

#endif
