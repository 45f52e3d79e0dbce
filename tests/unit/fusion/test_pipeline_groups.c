/*
 * test_pipeline_groups.c - groups, ranks that have joined, reduces and exchanges through the data
 * plane.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/pipeline_world.h"
#include "tests/unit/sanitizer.h"

static const dp_collective_t exchanges[] = {
    DP_COLLECTIVE_GATHER,     DP_COLLECTIVE_SCATTER, DP_COLLECTIVE_ALLTOALL,
    DP_COLLECTIVE_ALLGATHERV, DP_COLLECTIVE_GATHERV, DP_COLLECTIVE_SCATTERV,
    DP_COLLECTIVE_ALLTOALLV,  DP_COLLECTIVE_SEND,
};

static void run_and_check(world_t *world, world_op_t *ops, size_t count, size_t per_launch,
                          double tolerance)
{
    uint64_t before = world->sequence;

    for (size_t i = 0; i < count; i++)
        op_make(world, &ops[i], before * 1000 + i);
    for (size_t i = 0; i < count; i += per_launch)
        world_launch(world, ops + i, dp_min(per_launch, count - i));
    world_wait(world);
    for (size_t i = 0; i < count; i++) {
        op_check(world, &ops[i], tolerance);
        op_free(world, &ops[i]);
    }
}

/* ---- Reduce --------------------------------------------------------------------------------- */

static void reduce_gives_its_root_alone(void **unused)
{
    enum { count = DP_DTYPE_COUNT * DP_REDUCE_COUNT };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (int variant = 0; variant < 8; variant++) {
        int is_vector = variant / 4;

        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, 3, variant % 2, 200000, 2);
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){
                .collective = is_vector ? DP_COLLECTIVE_REDUCE_SCATTERV : DP_COLLECTIVE_REDUCE,
                .dtype = (dp_dtype_t)(i % DP_DTYPE_COUNT),
                .reduce = (dp_reduce_t)(i / DP_DTYPE_COUNT),
                .count = i % (under_sanitizer ? 35 : 7) == 0 ? 50001 : (size_t)i * 13 + 1,
                .root = i % 3,
                .in_place = variant / 2 % 2,
                .is_same = i % 2};
        }
        run_and_check(&world, ops, count, 20, 0.0);
        world_fini(&world);
    }
    free(ops);
}

static void reduces_with_different_roots_share_a_bucket(void **unused)
{
    world_op_t ops[3] = {
        {.collective = DP_COLLECTIVE_REDUCE, .dtype = DP_F32, .root = 0, .count = 10},
        {.collective = DP_COLLECTIVE_REDUCE_SCATTERV, .dtype = DP_F32, .count = 50},
        {.collective = DP_COLLECTIVE_REDUCE, .dtype = DP_F32, .root = 2, .count = 70}};
    world_t world;

    (void)unused;
    world_init(&world, 3, 1, 100000, 2);
    run_and_check(&world, ops, 3, 3, 0.0);
    assert_int_equal(fake_engine_count(world.rank[1].engine, NULL), 1);
    world_fini(&world);
}

static void reduce_compresses(void **unused)
{
    world_op_t ops[4];
    world_t world;

    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        memset(ops, 0, sizeof(ops));
        world_init(&world, 3, compresses, 100000, 2);
        for (int i = 0; i < 4; i++) {
            ops[i] = (world_op_t){.collective =
                                      i % 2 ? DP_COLLECTIVE_REDUCE : DP_COLLECTIVE_REDUCE_SCATTERV,
                                  .dtype = DP_F32,
                                  .reduce = i / 2 ? DP_AVERAGE : DP_SUM,
                                  .wire = DP_WIRE_FP16,
                                  .last_absmax = 4.0f,
                                  .root = i % 3,
                                  .count = (size_t)i * 20000 + 10};
        }
        run_and_check(&world, ops, 4, 3, 0.01); /* three terms, each rounded in steps of 2^-8 */
        world_fini(&world);
    }
}

/* ---- Exchanges ------------------------------------------------------------------------------ */

static void exchanges_move_every_block(void **unused)
{
    enum { count = 64 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (int ranks = 1; ranks <= 4; ranks++) {
        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, ranks, 1, 100000, 2);
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.collective = exchanges[i % 8],
                                  .dtype = (dp_dtype_t)(i % DP_DTYPE_COUNT),
                                  .root = i % ranks,
                                  .peer = (i + 1) % ranks,
                                  .count = i % 9 == 0 ? 0 : (i % 5 == 0 ? 60000 : 200)};
            if (ops[i].collective == DP_COLLECTIVE_SEND && ranks == 1) {
                ops[i].collective = DP_COLLECTIVE_ALLTOALL;
            }
        }
        run_and_check(&world, ops, count, 1, 0.0);
        world_fini(&world);
    }
    free(ops);
}

/* In one launch with others, in a bucket each. */
static void exchanges_travel_alone_among_others(void **unused)
{
    enum { count = 14 };
    world_op_t ops[count];
    world_t world;

    (void)unused;
    memset(ops, 0, sizeof(ops));
    world_init(&world, 3, 1, 100000, 2);
    for (int i = 0; i < count; i++) {
        ops[i] = (world_op_t){.collective = i % 2 ? exchanges[i / 2 % 7] : DP_COLLECTIVE_ALLREDUCE,
                              .dtype = DP_F32,
                              .count = (size_t)i * 10};
    }
    run_and_check(&world, ops, count, count, 0.0);
    assert_int_equal(fake_engine_count(world.rank[0].engine, NULL), 7 + 1);
    world_fini(&world);
}

static void truncated_exchange_fails_alone(void **unused)
{
    enum { count = 8 };
    world_op_t ops[3 * count];
    world_t world;

    (void)unused;
    memset(ops, 0, sizeof(ops));
    world_init(&world, 3, 1, 100000, 2);
    for (int i = 0; i < 3 * count; i++) {
        ops[i] = (world_op_t){.collective = i % 3 == 1 ? exchanges[i / 3] : DP_COLLECTIVE_ALLREDUCE,
                              .dtype = DP_F32,
                              .root = 2,
                              .peer = 1,
                              .count = 1000};
        if (i % 3 == 1) ops[i].is_short = 1 + (ops[i].collective == DP_COLLECTIVE_SEND ? 1 : 2);
        op_make(&world, &ops[i], (uint64_t)i);
        world_launch(&world, &ops[i], 1);
    }
    world_wait(&world);
    for (int i = 0; i < 3 * count; i++) {
        if (i % 3 == 1) {
            op_check_failed(&world, &ops[i], DP_ERR_TRUNCATED, "elements");
        } else {
            op_check(&world, &ops[i], 0.0);
        }
        op_free(&world, &ops[i]);
    }
    world_fini(&world);
}

/* An operation that was truncated keeps its own status when the world ends. */
static void truncation_keeps_its_status_under_abort(void **unused)
{
    world_op_t op = {.collective = DP_COLLECTIVE_ALLTOALL,
                     .dtype = DP_F32,
                     .count = 10,
                     .is_short = 1},
               hangs = {.dtype = DP_F32, .count = 10};
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    op_make(&world, &op, 1);
    op_make(&world, &hangs, 2);
    world_launch(&world, &op, 1);
    world_wait(&world);
    world_launch_rank(&world, 0, &hangs, 1, 2);
    dp_pipeline_abort(world.rank[0].pipeline, DP_ERR_ABORTED, "enough");
    world_wait(&world);
    op_check_failed(&world, &op, DP_ERR_TRUNCATED, "rank 0 can take 19 elements, 20 come");
    assert_int_equal(hangs.status[0], DP_ERR_ABORTED);
    op_free(&world, &op);
    op_free(&world, &hangs);
    world_fini(&world);
}

/* ---- Ranks that have joined ----------------------------------------------------------------- */

static void absent_ranks_change_nothing(void **unused)
{
    static const dp_collective_t reductions[] = {DP_COLLECTIVE_ALLREDUCE,
                                                 DP_COLLECTIVE_REDUCE_SCATTER, DP_COLLECTIVE_REDUCE,
                                                 DP_COLLECTIVE_REDUCE_SCATTERV};
    enum { count = DP_DTYPE_COUNT * DP_REDUCE_COUNT };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (unsigned variant = 0; variant < 16; variant++) {
        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, 4, (int)(variant % 2), 200000, 2);
        for (unsigned i = 0; i < count; i++) {
            unsigned absent = 1 + (variant + i) % 14; /* all but none and all */

            ops[i] = (world_op_t){.collective = reductions[variant / 4],
                                  .dtype = (dp_dtype_t)(i % DP_DTYPE_COUNT),
                                  .reduce = (dp_reduce_t)(i / DP_DTYPE_COUNT),
                                  .absent = absent,
                                  .root = __builtin_ctz(~absent),
                                  .count = i % (under_sanitizer ? 36 : 9) == 0 ? 30000
                                                                               : (size_t)i * 7 + 1,
                                  .tensor_count = 1 + i % 2,
                                  .count_joined = (int)(variant / 2 % 2),
                                  .is_same = (int)(i % 2)};
            if (ops[i].dtype >= DP_F16 && ops[i].dtype <= DP_F64 && ops[i].reduce != DP_PRODUCT) {
                ops[i].prescale = (double)(i % 3) * 1.5 - 1.5;
                if (ops[i].prescale == 0.0) ops[i].prescale = 1.0;
            }
        }
        run_and_check(&world, ops, count, 13, 0.0);
        world_fini(&world);
    }
    free(ops);
}

/* Integer averages with different divisors cannot share an operation. */
static void absent_ranks_divide_as_asked(void **unused)
{
    world_op_t ops[4];
    world_t world;

    (void)unused;
    memset(ops, 0, sizeof(ops));
    world_init(&world, 3, 1, 100000, 2);
    for (int i = 0; i < 4; i++) {
        ops[i] = (world_op_t){.dtype = i < 2 ? DP_I32 : DP_F32,
                              .reduce = DP_AVERAGE,
                              .absent = 2,
                              .count = 100,
                              .count_joined = i % 2};
    }
    run_and_check(&world, ops, 4, 4, 0.0);
    assert_int_equal(fake_engine_count(world.rank[0].engine, NULL), 3);
    world_fini(&world);
}

/* No element times any prescale is 1. */
static void absent_ranks_keep_out_of_scaled_products(void **unused)
{
    world_op_t op = {.dtype = DP_F32,
                     .reduce = DP_PRODUCT,
                     .absent = 5,
                     .count = 5000,
                     .prescale = 3.0,
                     .postscale = 0.5};
    world_t world;

    (void)unused;
    world_init(&world, 4, 1, 100000, 2);
    run_and_check(&world, &op, 1, 1, 1e-4);
    world_fini(&world);
}

static void absent_ranks_give_zero_rows_and_empty_parts(void **unused)
{
    static const dp_collective_t moves[] = {DP_COLLECTIVE_ALLGATHER, DP_COLLECTIVE_BROADCAST,
                                            DP_COLLECTIVE_ALLGATHERV};
    enum { count = 60 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    world_init(&world, 4, 1, 100000, 2);
    for (unsigned i = 0; i < count; i++) {
        unsigned absent = 1 + i % 14;

        ops[i] = (world_op_t){.collective = moves[i % 3],
                              .dtype = (dp_dtype_t)(i % DP_DTYPE_COUNT),
                              .absent = absent,
                              .root = __builtin_ctz(~absent),
                              .count = (size_t)i * 700};
    }
    run_and_check(&world, ops, count, 9, 0.0);
    world_fini(&world);
    free(ops);
}

static void absent_ranks_compress_like_the_others(void **unused)
{
    world_op_t ops[4];
    world_t world;

    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        memset(ops, 0, sizeof(ops));
        world_init(&world, 3, compresses, 100000, 2);
        for (int i = 0; i < 4; i++) {
            ops[i] = (world_op_t){.collective = i % 2 ? DP_COLLECTIVE_REDUCE_SCATTER
                                                      : DP_COLLECTIVE_ALLREDUCE,
                                  .dtype = DP_F32,
                                  .reduce = DP_AVERAGE,
                                  .wire = DP_WIRE_FP16,
                                  .last_absmax = 4.0f,
                                  .absent = 1u << i % 3,
                                  .count = (size_t)i * 9000 + 10};
        }
        run_and_check(&world, ops, 4, 3, 0.01);
        world_fini(&world);
    }
}

/* ---- Groups --------------------------------------------------------------------------------- */

static void groups_come_and_go(void **unused)
{
    world_t world;

    (void)unused;
    world_init(&world, 4, 1, 100000, 2);
    for (uint32_t uid = 1; uid < 40; uid++) {
        world_group_t group;
        world_op_t op = {.group = &group, .dtype = DP_F32, .count = 100 * (size_t)uid};

        world_group_make(&world, &group, uid, 1 + uid % 15);
        run_and_check(&world, &op, 1, 1, 0.0);
        world_group_end(&world, &group);
    }
    world_fini(&world);
}

static void groups_overlap_at_random(void **unused)
{
    world_t world;

    (void)unused;
    for (int round = 0; round < 3; round++) {
        world_init(&world, 4, 1, 50000 + 20000 * (size_t)round, 1 + round);
        world_run_random(&world, 250, (uint64_t)round + 5, 1);
        world_fini(&world);
    }
}

/* ---- Failure -------------------------------------------------------------------------------- */

static void check_names_what_was_written_in_flight(void **unused)
{
    static const dp_collective_t checked[] = {
        DP_COLLECTIVE_REDUCE,     DP_COLLECTIVE_REDUCE_SCATTERV,
        DP_COLLECTIVE_ALLTOALL,   DP_COLLECTIVE_GATHERV,
        DP_COLLECTIVE_ALLGATHERV, DP_COLLECTIVE_ALLTOALLV,
        DP_COLLECTIVE_SCATTERV,   DP_COLLECTIVE_SEND,
    };
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    for (int i = 0; i < 8; i++) {
        world_op_t op = {
            .collective = checked[i], .dtype = DP_F32, .count = 100, .peer = 1, .is_checked = 2};

        op_make(&world, &op, 77);
        world_launch(&world, &op, 1);
        world_wait(&world);
        assert_int_equal(op.status[0], DP_ERR_CHECK);
        assert_non_null(strstr(op.text[0], "tensor wte was written while in flight"));
        assert_int_equal(op.done_count[0], 1);
        op_free(&world, &op);
    }
    world_fini(&world);
}

static void free_group(world_t *world, world_group_t *group)
{
    for (int r = 0; r < world->ranks; r++) {
        if (group->own[r].engine == NULL) continue;
        world->rank[r].engine->ops->group_destroy(world->rank[r].engine, group->own[r].engine);
    }
}

/* Rank 1 never comes. */
static void abort_ends_every_kind(void **unused)
{
    world_t world;

    (void)unused;
    for (int kind = 0; kind < 11; kind++) {
        world_group_t group, unborn = {.size = 2, .ranks = {0, 1}};
        world_op_t op = {.dtype = DP_F32, .count = 20000, .peer = 1, .group = &group};

        world_init(&world, 2, 1, 100000, 2);
        world_group_make(&world, &group, 1, 3);
        for (int r = 0; r < 2; r++)
            unborn.own[r] = (dp_pipeline_group_t){.rank = r, .size = 2};
        unborn.members = (dp_engine_members_t){
            .uid = 2, .group_index = 2, .ranks = unborn.ranks, .count = 2, .name = "unborn"};
        if (kind < 8) {
            op.collective = exchanges[kind];
        } else if (kind == 8) {
            op.absent = 1;
        } else {
            op.tensor_count = op.count = 0;
            op.collective = kind == 9 ? DP_COLLECTIVE_GROUP_CREATE : DP_COLLECTIVE_GROUP_DESTROY;
            if (kind == 9) op.group = &unborn;
        }
        if (kind < 9) op_make(&world, &op, 3);
        world_launch_rank(&world, 0, &op, 1, 9);
        if (kind % 2) nanosleep(&(struct timespec){0, 3000000}, NULL);
        dp_pipeline_abort(world.rank[0].pipeline, DP_ERR_STALLED, "the reason");
        world_wait(&world);
        assert_int_equal(op.done_count[0], 1);
        assert_int_equal(op.status[0], DP_ERR_STALLED);
        assert_string_equal(op.text[0], "the reason");
        if (kind < 9) op_free(&world, &op);
        free_group(&world, &unborn);
        free_group(&world, &group);
        world_fini(&world);
    }
}

static void ending_a_group_that_is_not_there_breaks_it(void **unused)
{
    world_group_t group = {.size = 1, .own[0] = {.size = 1}};
    world_op_t op = {.collective = DP_COLLECTIVE_GROUP_DESTROY, .group = &group};
    world_t world;

    (void)unused;
    world_init(&world, 1, 1, 100000, 2);
    world_launch(&world, &op, 1);
    world_wait(&world);
    assert_int_equal(op.status[0], DP_ERR_INVALID);
    assert_non_null(strstr(op.text[0], "the data plane failed: DP_ERR_INVALID"));
    assert_int_equal(fake_engine_count(world.rank[0].engine, NULL), 0);
    world_fini(&world);
}

/* Runs in the launch thread, where a barrier completes: what follows there fails to allocate. */
static void arm(void *user, const dp_pipeline_done_t *done)
{
    const world_op_t *op = done->request;

    if (op->collective == DP_COLLECTIVE_BARRIER) fail_allocation(*(long *)user);
}

/* The nth allocation of the launch thread fails while a group is made, used and ended. */
static void every_failed_allocation_is_survived(void **unused)
{
    int failures = 0, successes = 0;

    (void)unused;
    for (long n = 1; n < 40; n++) {
        world_group_t group = {.size = 1, .own[0] = {.size = 1}};
        world_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
        world_op_t ops[4] = {
            {.group = &group, .collective = DP_COLLECTIVE_GROUP_CREATE},
            {.group = &group, .collective = DP_COLLECTIVE_ALLTOALLV, .count = 100000},
            {.group = &group, .collective = DP_COLLECTIVE_REDUCE_SCATTERV, .count = 100000},
            {.group = &group, .collective = DP_COLLECTIVE_GROUP_DESTROY}};
        world_t world;
        int failed = 0;

        group.members = (dp_engine_members_t){
            .uid = 1, .group_index = 1, .ranks = group.ranks, .count = 1, .name = "mine"};
        world_init(&world, 1, 1, 100000, 2);
        world.on_done = arm;
        world.user = &n;
        op_make(&world, &barrier, 0);
        world_launch(&world, &barrier, 1);
        for (int i = 0; i < 4; i++) {
            if (i % 3 != 0) op_make(&world, &ops[i], (uint64_t)i);
            world_launch(&world, &ops[i], 1);
        }
        world_wait(&world);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(ops[i].done_count[0], 1);
            if (ops[i].status[0] != DP_OK) {
                failed = 1;
                assert_int_equal(ops[i].status[0], DP_ERR_NO_MEMORY);
                assert_true(strlen(ops[i].text[0]) > 0);
            } else if (i % 3 != 0) {
                op_check(&world, &ops[i], 0.0);
            }
            if (i % 3 != 0) op_free(&world, &ops[i]);
        }
        free_group(&world, &group);
        world_fini(&world);
        failures += failed;
        successes += !failed;
    }
    assert_true(failures > 5 && successes > 0);
}

static void steady_state_allocates_nothing(void **unused)
{
    enum { count = 12 };
    world_op_t ops[count], barrier = {.collective = DP_COLLECTIVE_BARRIER};
    world_group_t group;
    long next = 0;
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    world_group_make(&world, &group, 1, 3);
    op_make(&world, &barrier, 0);
    for (int round = 0; round < 6; round++) {
        if (round == 3) { /* the next allocation of each launch thread, if there is one, fails */
            next = 1;
            world.on_done = arm;
            world.user = &next;
            world_launch(&world, &barrier, 1);
            world_wait(&world);
        }
        memset(ops, 0, sizeof(ops));
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.group = i % 2 ? &group : NULL,
                                  .collective = i < 8    ? exchanges[i]
                                                : i < 10 ? DP_COLLECTIVE_REDUCE
                                                         : DP_COLLECTIVE_REDUCE_SCATTERV,
                                  .dtype = DP_F32,
                                  .peer = 1,
                                  .absent = i == 3 ? 2 : 0,
                                  .count = i % 4 ? 500 : 50000};
            op_make(&world, &ops[i], (uint64_t)i);
        }
        for (int i = 0; i < count; i++) {
            world_launch(&world, &ops[i], 1);
            if (round > 0) world_wait(&world); /* the first round is deeper than all others */
        }
        world_wait(&world);
        for (int i = 0; i < count; i++) {
            op_check(&world, &ops[i], 0.0);
            op_free(&world, &ops[i]);
        }
    }
    world_group_end(&world, &group);
    world_fini(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_gives_its_root_alone),
        cmocka_unit_test(reduces_with_different_roots_share_a_bucket),
        cmocka_unit_test(reduce_compresses),
        cmocka_unit_test(exchanges_move_every_block),
        cmocka_unit_test(exchanges_travel_alone_among_others),
        cmocka_unit_test(truncated_exchange_fails_alone),
        cmocka_unit_test(truncation_keeps_its_status_under_abort),
        cmocka_unit_test(absent_ranks_change_nothing),
        cmocka_unit_test(absent_ranks_divide_as_asked),
        cmocka_unit_test(absent_ranks_keep_out_of_scaled_products),
        cmocka_unit_test(absent_ranks_give_zero_rows_and_empty_parts),
        cmocka_unit_test(absent_ranks_compress_like_the_others),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(groups_overlap_at_random),
        cmocka_unit_test(check_names_what_was_written_in_flight),
        cmocka_unit_test(abort_ends_every_kind),
        cmocka_unit_test(ending_a_group_that_is_not_there_breaks_it),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(steady_state_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
