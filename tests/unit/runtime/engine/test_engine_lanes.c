/*
 * test_engine_lanes.c - reductions and gathers of the CPU engine do not wait for each other, and an
 * abort ends both.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_cases.h"

static int hosts_max = 3;

static void everywhere(engine_body_t body)
{
    for (int size = 2; size <= 4; size++) {
        for (int nodes = 1; nodes <= dp_min(size, hosts_max); nodes++) {
            engine_world_t world = ENGINE_WORLD(size, nodes);

            world.interleave = size % 2;
            assert_int_equal(engine_world_threads(&world, body, &world), 0);
        }
    }
}

static void engine_gathers_pass_a_reduction_that_waits(void **state)
{
    (void)state;
    everywhere(case_lane_gathers_pass);
}

static void engine_reductions_pass_a_gather_that_waits(void **state)
{
    (void)state;
    everywhere(case_lane_reduces_pass);
}

static void engine_lanes_run_at_once(void **state)
{
    (void)state;
    everywhere(case_lanes_at_once);
}

/* ---- Abort and standing still --------------------------------------------------------------- */

/* Both wait for the last rank, which comes to neither. */
typedef struct stuck {
    dp_engine_piece_t pieces[2];
    dp_engine_op_t ops[2];
    dp_event_t *events[2];
    dp_stream_t *gather;
} stuck_t;

static void get_stuck(engine_rank_t *rank, stuck_t *stuck)
{
    const dp_device_ops_t *device = rank->device->ops;
    const size_t count = 50000;
    float *data = engine_memory(rank, (size_t)(rank->size + 1) * count * sizeof(*data));

    if (device->stream_create(rank->device, "gather", &stuck->gather) != DP_OK) abort();
    for (int i = 0; i < 2; i++) {
        dp_stream_t *stream = i == 0 ? rank->stream : stuck->gather;
        float *out = data + (i == 0 ? 0 : count);
        float *in = out + (i == 0 ? 0 : (size_t)rank->rank * count);

        stuck->pieces[i] = (dp_engine_piece_t){.in = in,
                                               .out = out,
                                               .count = count,
                                               .stride = count,
                                               .prescale = 1.0,
                                               .postscale = 1.0};
        stuck->ops[i] = (dp_engine_op_t){.lane = i == 0 ? DP_LANE_MAIN : DP_LANE_GATHER,
                                         .collective = i == 0 ? DP_COLLECTIVE_ALLREDUCE
                                                              : DP_COLLECTIVE_ALLGATHER,
                                         .dtype = DP_F32,
                                         .pieces = &stuck->pieces[i],
                                         .piece_count = 1};
        if (device->event_create(rank->device, &stuck->events[i]) != DP_OK) abort();
        if (rank->engine->ops->enqueue(rank->engine, stream, DP_WORK_LARGE, &stuck->ops[i]) !=
            DP_OK)
            abort();
        if (device->event_record(stuck->events[i], stream) != DP_OK) abort();
    }
}

static void be_aborted_in_both(engine_rank_t *rank, void *user)
{
    _Atomic int *ended = user;
    stuck_t stuck;
    int awaits;

    if (rank->rank == rank->size - 1) { /* comes to no operation, and goes last */
        while (atomic_load(ended) < rank->size - 1)
            usleep(1000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    get_stuck(rank, &stuck);
    for (int i = 0; i < 2; i++) {
        for (awaits = DP_ENGINE_RESTS; awaits < 0; usleep(1000))
            (void)rank->engine->ops->moves(rank->engine, (dp_lane_t)i, &awaits);
        engine_check(rank, awaits != rank->rank, "lane %d awaits rank %d", i, awaits);
    }
    rank->engine->ops->abort(rank->engine, DP_ERR_PEER_LOST, "rank 1 was lost, says the test");
    for (int i = 0; i < 2; i++) {
        rank->device->ops->event_wait(stuck.events[i]);
        rank->device->ops->event_destroy(stuck.events[i]);
        engine_check(rank, stuck.ops[i].status == DP_ERR_PEER_LOST, "lane %d: status is %s", i,
                     dp_status_string(stuck.ops[i].status));
        engine_check(rank, strcmp(stuck.ops[i].text, "rank 1 was lost, says the test") == 0,
                     "lane %d: text is '%s'", i, stuck.ops[i].text);
    }
    (void)rank->engine->ops->moves(rank->engine, DP_LANE_GATHER, &awaits);
    engine_check(rank, awaits == DP_ENGINE_RESTS, "it awaits rank %d at the end", awaits);
    rank->device->ops->stream_destroy(stuck.gather);
    atomic_fetch_add(ended, 1);
}

static void engine_abort_ends_both_lanes(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= hosts_max; nodes++) {
        engine_world_t world = ENGINE_WORLD(3, nodes);

        _Atomic int ended = 0;

        assert_int_equal(engine_world_threads(&world, be_aborted_in_both, &ended), 0);
    }
}

/* A gather of different sizes ends a reduction that only waits. */
static void fail_in_one(engine_rank_t *rank, void *user)
{
    stuck_t stuck;

    (void)user;
    if (rank->rank == rank->size - 1) {
        dp_engine_piece_t piece = {.count = 7};
        dp_engine_op_t op = {.lane = DP_LANE_GATHER,
                             .collective = DP_COLLECTIVE_ALLGATHER,
                             .dtype = DP_F32,
                             .pieces = &piece,
                             .piece_count = 1};
        char *data = engine_memory(rank, 4096);

        piece.in = piece.out = data;
        engine_run(rank, &op, DP_WORK_SMALL);
        engine_check(rank, op.status == DP_ERR_MISMATCH, "status is %s",
                     dp_status_string(op.status));
        return;
    }
    get_stuck(rank, &stuck);
    for (int i = 0; i < 2; i++) {
        rank->device->ops->event_wait(stuck.events[i]);
        rank->device->ops->event_destroy(stuck.events[i]);
        engine_check(rank, stuck.ops[i].status == DP_ERR_MISMATCH, "lane %d: status is %s", i,
                     dp_status_string(stuck.ops[i].status));
    }
    rank->device->ops->stream_destroy(stuck.gather);
}

static void engine_failure_in_one_lane_ends_the_other(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, fail_in_one, &world), 0);
}

/* In program order an operation carries a digest of what is in it. */
static void bring_different_tensors(engine_rank_t *rank, void *user)
{
    enum { count = 20000 };
    int32_t *data = engine_memory(rank, (size_t)rank->size * count * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data + rank->rank * count, .out = data, .count = count, .stride = count};
    dp_engine_op_t op = {.lane = DP_LANE_GATHER,
                         .collective = DP_COLLECTIVE_ALLGATHER,
                         .dtype = DP_I32,
                         .digest = rank->rank == 1 ? 11 : 12,
                         .pieces = &piece,
                         .piece_count = 1};

    (void)user;
    for (int i = 0; i < count; i++)
        data[rank->rank * count + i] = 1;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_MISMATCH, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "different tensors") != NULL, "text is '%s'", op.text);
    for (int i = 0; i < rank->size * count; i++)
        engine_check(rank, data[i] == (i / count == rank->rank), "element %d was written", i);
}

static void engine_gathers_of_different_tensors_write_nothing(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, bring_different_tensors, &world), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_gathers_pass_a_reduction_that_waits),
        cmocka_unit_test(engine_reductions_pass_a_gather_that_waits),
        cmocka_unit_test(engine_lanes_run_at_once),
        cmocka_unit_test(engine_abort_ends_both_lanes),
        cmocka_unit_test(engine_failure_in_one_lane_ends_the_other),
        cmocka_unit_test(engine_gathers_of_different_tensors_write_nothing),
    };

    if (argc > 1) hosts_max = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
