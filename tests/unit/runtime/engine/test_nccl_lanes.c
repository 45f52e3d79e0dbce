/*
 * test_nccl_lanes.c - gathers have a communicator and a stream of their own, and do not wait for a
 * reduction; on simulated devices, ranks as threads.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>
#include <semaphore.h>

#include "tests/gpu/double/cuda_runtime.h"
#include "tests/gpu/double/nccl.h"
#include "tests/unit/cases.h"
#include "tests/unit/nccl_world.h"

/* Checks that no object is left from before, nor for later. */
static int begin(void **state)
{
    (void)state;
    cuda_double_reset();
    cuda_double_set_devices(NCCL_WORLD_RANKS);
    nccl_double_reset();
    return 0;
}

static int end(void **state)
{
    (void)state;
    nccl_double_reset();
    return nccl_double_live() != 0 || cuda_double_live() != 0;
}

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
    }
}

/* Holds a stream up until it is opened. */
static void CUDART_CB gate_pass(void *argument)
{
    await(argument);
}

static void note_over(void *argument)
{
    sem_post(argument);
}

static void await_stream(engine_rank_t *rank, dp_stream_t *stream)
{
    sem_t over;

    sem_init(&over, 0, 0);
    if (rank->device->ops->call(stream, DP_WORK_LARGE, note_over, &over) != DP_OK) abort();
    await(&over);
    sem_destroy(&over);
}

static void fill_gather(engine_rank_t *rank, dp_engine_op_t *op, dp_engine_piece_t *piece,
                        int32_t *data, size_t count)
{
    int32_t *own = data + (size_t)rank->rank * count;

    for (size_t i = 0; i < count; i++)
        own[i] = rank->rank + (int32_t)i;
    *piece = (dp_engine_piece_t){.in = own, .out = data, .count = count, .stride = count};
    *op = (dp_engine_op_t){.lane = DP_LANE_GATHER,
                           .collective = DP_COLLECTIVE_ALLGATHER,
                           .dtype = DP_I32,
                           .pieces = piece,
                           .piece_count = 1};
}

/* The last rank's stream of reductions stands still until its gathers are over: they are issued
 * behind the reduction, on all ranks, and would never end if they waited for it. */
static void gather_beside_a_reduction(engine_rank_t *rank, void *user)
{
    enum { COUNT = 3000, GATHERS = 5 };
    const dp_engine_ops_t *engine = rank->engine->ops;
    float *sums = engine_memory(rank, COUNT * sizeof(*sums));
    int32_t *rows = engine_memory(rank, (size_t)rank->size * GATHERS * COUNT * sizeof(*rows));
    dp_engine_piece_t pieces[GATHERS + 1] = {
        {.in = sums, .out = sums, .count = COUNT, .prescale = 1.0, .postscale = 1.0}};
    dp_engine_op_t ops[GATHERS + 1] = {{.collective = DP_COLLECTIVE_ALLREDUCE,
                                        .dtype = DP_F32,
                                        .pieces = pieces,
                                        .piece_count = 1}};
    dp_error_t error = {DP_OK, ""};
    dp_stream_t *gather;
    sem_t gate;

    (void)user;
    sem_init(&gate, 0, 0);
    for (int i = 0; i < COUNT; i++)
        sums[i] = 1.0f;
    if (rank->device->ops->stream_create(rank->device, "gather", &gather) != DP_OK) abort();
    if (rank->device->ops->stream_branch(gather) != DP_OK) abort();
    engine_check(rank, engine->open_gather_lane(rank->engine, NULL, &error) == DP_OK, "%s",
                 error.text);
    engine_check(rank, engine->open_gather_lane(rank->engine, NULL, &error) == DP_OK, "again: %s",
                 error.text);
    if (rank->rank == rank->size - 1 &&
        cudaLaunchHostFunc(rank->device->ops->stream_native(rank->stream), gate_pass, &gate) !=
            cudaSuccess)
        abort();
    for (int i = 1; i <= GATHERS; i++)
        fill_gather(rank, &ops[i], &pieces[i], rows + (size_t)((i - 1) * rank->size) * COUNT,
                    COUNT);
    for (int i = 0; i <= GATHERS; i++) {
        ops[i].sequence = ++rank->sequence;
        if (engine->enqueue(rank->engine, i == 0 ? rank->stream : gather, DP_WORK_LARGE, &ops[i]) !=
            DP_OK)
            abort();
    }
    await_stream(rank, gather);
    sem_post(&gate);
    await_stream(rank, rank->stream);
    for (int i = 0; i <= GATHERS; i++)
        engine_check(rank, ops[i].status == DP_OK, "operation %d: %s", i, ops[i].text);
    for (int i = 0; i < COUNT; i++)
        engine_check(rank, sums[i] == (float)rank->size, "sum %d is %g", i, (double)sums[i]);
    for (int i = 0; i < GATHERS * rank->size * COUNT; i++) {
        engine_check(rank, rows[i] == i / COUNT % rank->size + i % COUNT, "row element %d is %d", i,
                     rows[i]);
    }
    rank->device->ops->stream_destroy(gather);
    sem_destroy(&gate);
    engine->free(rank->engine, sums);
    engine->free(rank->engine, rows);
}

static void nccl_gathers_pass_a_reduction(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        nccl_world_t world = NCCL_WORLD(size);

        assert_int_equal(nccl_world_run(&world, gather_beside_a_reduction, NULL), 0);
    }
}

/* A group's second communicator ends with it, and with the engine where the group is left. */
static void gather_in_groups(engine_rank_t *rank, void *user)
{
    static const int all[] = {0, 1, 2};
    const dp_engine_ops_t *engine = rank->engine->ops;
    int32_t *rows = engine_memory(rank, (size_t)rank->size * 100 * sizeof(*rows));
    dp_error_t error = {DP_OK, ""};

    (void)user;
    for (uint32_t uid = 1; uid <= 3; uid++) {
        const dp_engine_members_t members = {
            .uid = uid, .group_index = uid, .ranks = all, .count = rank->size, .name = "some"};
        dp_engine_op_t gather, barrier = {.collective = DP_COLLECTIVE_BARRIER};
        dp_engine_piece_t piece;
        dp_engine_group_t *group;

        if (engine->group_create(rank->engine, &members, &group, &error) != DP_OK ||
            engine->open_gather_lane(rank->engine, group, &error) != DP_OK) {
            engine_check(rank, 0, "%s", error.text);
            return;
        }
        fill_gather(rank, &gather, &piece, rows, 100);
        gather.group = barrier.group = group;
        engine_run(rank, &gather, DP_WORK_SMALL);
        engine_run(rank, &barrier, DP_WORK_SMALL);
        engine_check(rank, gather.status == DP_OK && barrier.status == DP_OK, "%s%s", gather.text,
                     barrier.text);
        for (int i = 0; i < rank->size * 100; i++)
            engine_check(rank, rows[i] == i / 100 + i % 100, "element %d is %d", i, rows[i]);
        if (uid < 3) engine->group_destroy(rank->engine, group);
    }
    engine->free(rank->engine, rows);
}

static void nccl_groups_end_with_both_communicators(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    assert_int_equal(nccl_world_run(&world, gather_in_groups, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nccl_gathers_pass_a_reduction, begin, end),
        cmocka_unit_test_setup_teardown(nccl_groups_end_with_both_communicators, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
