/*
 * test_pipeline_lanes.c - gathers travel in a lane of their own: neither they nor reductions wait
 * for the other, and everything still comes out right and once.
 *
 * Where an operation must not wait, the last rank gives its part of the other lane's operation only
 * after it has seen the first one end: a pipeline that made it wait would never come to the end.
 */
#include <string.h>
#include <time.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/pipeline_world.h"
#include "tests/unit/sanitizer.h"

enum { ranks = 3, last = ranks - 1 };

/* Over the fake engine, or the CPU engine on so many nodes. */
/* Traffic between nodes is the work of a library that the thread sanitizer cannot follow. */
enum { nodes_max = under_thread_sanitizer ? 1 : 2 };

static void open_world(world_t *world, int nodes)
{
    if (nodes == 0) {
        world_init(world, ranks, 1, 70000, 2);
    } else {
        world_init_cpu(world, ranks, nodes, 70000, 2);
    }
}

static void wait_for(world_t *world, const world_op_t *op)
{
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        const int place = op_place(world, op, r);

        while (place >= 0 && op->done_count[place] == 0)
            pthread_cond_wait(&world->change, &world->lock);
    }
    pthread_mutex_unlock(&world->lock);
}

static void run(world_t *world, world_op_t *op, uint64_t seed)
{
    op_make(world, op, seed);
    world_launch(world, op, 1);
    world_wait(world);
    op_check(world, op, 0.0);
    op_free(world, op);
}

/* The first one opens the gather lane. */
static void warm_up(world_t *world, world_group_t *group)
{
    world_op_t op = {
        .collective = DP_COLLECTIVE_ALLGATHER, .dtype = DP_I32, .count = 5, .group = group};

    run(world, &op, 1);
}

static void only_gathers_behind_the_first_allgather_travel_apart(void **unused)
{
    static const struct {
        dp_collective_t collective;
        uint64_t gathers; /* of a rank so far, in their lane */
    } steps[] = {
        {DP_COLLECTIVE_BROADCAST, 0},      {DP_COLLECTIVE_ALLREDUCE, 0},
        {DP_COLLECTIVE_ALLGATHERV, 0},     {DP_COLLECTIVE_ALLGATHER, 0}, /* opens the lane */
        {DP_COLLECTIVE_ALLGATHER, 1},      {DP_COLLECTIVE_BROADCAST, 2},
        {DP_COLLECTIVE_REDUCE_SCATTER, 2}, {DP_COLLECTIVE_ALLREDUCE, 2},
        {DP_COLLECTIVE_ALLGATHERV, 2},     {DP_COLLECTIVE_ALLTOALL, 2},
        {DP_COLLECTIVE_ALLGATHER, 3},
    };
    world_t world;

    (void)unused;
    open_world(&world, 0);
    for (size_t i = 0; i < DP_ARRAY_LEN(steps); i++) {
        world_op_t op = {.collective = steps[i].collective, .dtype = DP_I32, .count = 300};

        run(&world, &op, i);
        for (int r = 0; r < ranks; r++)
            assert_int_equal(fake_engine_gathers(world.rank[r].engine), steps[i].gathers);
    }
    world_fini(&world);
}

/* The withheld operation and those that pass it. sizes: alone in place, one fused buffer, more
 * buffers than there are. */
static void pass(world_t *world, dp_collective_t withheld, dp_collective_t passing, size_t count,
                 int in_place, world_group_t *group)
{
    enum { passes = 6 };
    world_op_t slow = {.collective = withheld,
                       .dtype = DP_I32,
                       .count = count,
                       .in_place = in_place,
                       .is_same = in_place,
                       .group = group};
    const uint64_t sequence = ++world->sequence;
    world_op_t quick[passes];

    op_make(world, &slow, count);
    for (int r = 0; r < last; r++)
        world_launch_rank(world, r, &slow, 1, sequence);
    for (int i = 0; i < passes; i++) {
        quick[i] = (world_op_t){.collective = passing,
                                .dtype = DP_F32,
                                .count = i % 2 ? 40000 : 1000,
                                .in_place = i % 3 == 0,
                                .group = group};
        op_make(world, &quick[i], (uint64_t)i);
        world_launch(world, &quick[i], 1);
        wait_for(world, &quick[i]);
    }
    world_launch_rank(world, last, &slow, 1, sequence);
    world_wait(world);
    op_check(world, &slow, 0.0);
    op_free(world, &slow);
    for (int i = 0; i < passes; i++) {
        /* two nodes do not add floats in the order of the ranks */
        op_check(world, &quick[i], 1e-5);
        op_free(world, &quick[i]);
    }
}

static void neither_lane_waits_for_the_other(void **unused)
{
    static const struct {
        size_t count;
        int in_place;
    } sizes[] = {{100, 0}, {100000, 1}, {10000, 0}, {200000, 0}};

    (void)unused;
    for (int nodes = 0; nodes <= nodes_max; nodes++) {
        world_group_t group;
        world_t world;

        open_world(&world, nodes);
        world_group_make(&world, &group, 1, 7);
        warm_up(&world, NULL);
        warm_up(&world, &group);
        for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
            world_group_t *of = i % 2 ? &group : NULL;

            pass(&world, DP_COLLECTIVE_ALLREDUCE, DP_COLLECTIVE_ALLGATHER, sizes[i].count,
                 sizes[i].in_place, of);
            pass(&world, DP_COLLECTIVE_REDUCE_SCATTER, DP_COLLECTIVE_BROADCAST, sizes[i].count,
                 sizes[i].in_place, NULL);
            pass(&world, DP_COLLECTIVE_ALLGATHER, DP_COLLECTIVE_ALLREDUCE, sizes[i].count,
                 sizes[i].in_place, of);
        }
        world_group_end(&world, &group);
        world_fini(&world);
    }
}

/* One launch for both lanes is one launch for the coordinator. */
static void a_launch_for_both_lanes_ends_once(void **unused)
{
    static const dp_collective_t kinds[] = {DP_COLLECTIVE_ALLREDUCE, DP_COLLECTIVE_ALLGATHER,
                                            DP_COLLECTIVE_REDUCE_SCATTER, DP_COLLECTIVE_BROADCAST};
    enum { launches = under_sanitizer ? 10 : 40, per_launch = 9, count = launches * per_launch };
    static world_op_t ops[count];

    (void)unused;
    for (int nodes = 0; nodes <= nodes_max; nodes++) {
        world_t world;

        memset(ops, 0, sizeof(ops));
        open_world(&world, nodes);
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.collective = kinds[i * 7 % 11 % 4],
                                  .dtype = i % 2 ? DP_I32 : DP_U8,
                                  .count = i % 5 ? (size_t)i * 10 : 50000,
                                  .in_place = i % 3 == 0};
            op_make(&world, &ops[i], (uint64_t)i);
        }
        for (int i = 0; i < count; i += per_launch)
            world_launch(&world, ops + i, per_launch);
        world_wait(&world);
        for (int i = 0; i < count; i++) {
            op_check(&world, &ops[i], 0.0);
            op_free(&world, &ops[i]);
        }
        for (int r = 0; r < ranks; r++)
            assert_int_equal(world.rank[r].launches_done, launches);
        world_fini(&world);
    }
}

/* A group's end is ordered behind its gathers, although these travel in another lane. */
static void a_group_ends_behind_its_gathers(void **unused)
{
    (void)unused;
    for (int nodes = 0; nodes <= nodes_max; nodes++) {
        world_op_t gather = {
            .collective = DP_COLLECTIVE_ALLGATHER, .dtype = DP_F64, .count = 30000};
        world_op_t end = {.collective = DP_COLLECTIVE_GROUP_DESTROY};
        world_group_t group;
        world_t world;

        open_world(&world, nodes);
        world_group_make(&world, &group, 1, 7);
        warm_up(&world, &group);
        gather.group = end.group = &group;
        op_make(&world, &gather, 3);
        for (int r = 0; r < last; r++)
            world_launch_rank(&world, r, &gather, 1, 100);
        for (int r = 0; r < last; r++)
            world_launch_rank(&world, r, &end, 1, 101);
        nanosleep(&(const struct timespec){0, 20000000}, NULL);
        for (int r = 0; r < last; r++)
            assert_non_null(group.own[r].engine);
        world_launch_rank(&world, last, &gather, 1, 100);
        world_launch_rank(&world, last, &end, 1, 101);
        world_wait(&world);
        op_check(&world, &gather, 0.0);
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(end.status[r], DP_OK);
            assert_null(group.own[r].engine);
        }
        op_free(&world, &gather);
        world_fini(&world);
    }
}

static void abort_ends_what_runs_and_waits_in_both_lanes(void **unused)
{
    enum { count = 24 };
    world_op_t ops[count];

    (void)unused;
    for (int nodes = 0; nodes <= nodes_max; nodes++) {
        world_t world;

        memset(ops, 0, sizeof(ops));
        open_world(&world, nodes);
        warm_up(&world, NULL);
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.collective =
                                      i % 2 ? DP_COLLECTIVE_ALLGATHER : DP_COLLECTIVE_ALLREDUCE,
                                  .dtype = DP_F32,
                                  .count = i % 4 < 2 ? 100 : 30000,
                                  .in_place = i % 3 == 0};
            op_make(&world, &ops[i], (uint64_t)i);
        }
        /* The last rank never comes. Some launches are for both lanes, some for one. */
        for (int r = 0; r < last; r++) {
            world_launch_rank(&world, r, ops, 10, 100);
            for (int i = 10; i < count; i++)
                world_launch_rank(&world, r, ops + i, 1, 100 + (uint64_t)i);
        }
        nanosleep(&(const struct timespec){0, 3000000}, NULL);
        for (int r = 0; r < ranks; r++)
            dp_pipeline_abort(world.rank[r].pipeline, DP_ERR_STALLED, "the first reason");
        world_wait(&world);
        for (int i = 0; i < count; i++) {
            for (int r = 0; r < last; r++) {
                assert_int_equal(ops[i].done_count[r], 1);
                assert_int_equal(ops[i].status[r], DP_ERR_STALLED);
                assert_non_null(strstr(ops[i].text[r], "the first reason"));
            }
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
}

/* A rank that cannot make the lane must end: the others would wait for it there. */
static void a_lane_that_cannot_be_made_ends_the_rank(void **unused)
{
    long n = 1;

    (void)unused;
    for (int reached = 1; reached; n++) {
        world_op_t ops[4];
        world_t world;

        memset(ops, 0, sizeof(ops));
        world_init(&world, 1, 1, 70000, 2);
        for (int i = 0; i < 4; i++) {
            ops[i] = (world_op_t){.collective =
                                      i % 2 ? DP_COLLECTIVE_ALLREDUCE : DP_COLLECTIVE_ALLGATHER,
                                  .dtype = DP_F32,
                                  .count = 100};
            op_make(&world, &ops[i], (uint64_t)i);
        }
        fail_allocation(n);
        world_launch(&world, &ops[0], 1);
        reached = fail_allocation_reached();
        for (int i = 1; i < 4; i++)
            world_launch(&world, &ops[i], 1);
        world_wait(&world);
        for (int i = 0; i < 4; i++) {
            if (reached) {
                assert_int_equal(ops[i].status[0], DP_ERR_NO_MEMORY);
            } else {
                op_check(&world, &ops[i], 0.0);
            }
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
    assert_true(n > 5); /* it does need memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_gathers_behind_the_first_allgather_travel_apart),
        cmocka_unit_test(neither_lane_waits_for_the_other),
        cmocka_unit_test(a_launch_for_both_lanes_ends_once),
        cmocka_unit_test(a_group_ends_behind_its_gathers),
        cmocka_unit_test(abort_ends_what_runs_and_waits_in_both_lanes),
        cmocka_unit_test(a_lane_that_cannot_be_made_ends_the_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
