/*
 * test_engine.c - the CPU engine with ranks as threads, inside a node and between pretended ones.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_cases.h"

static int hosts_max = 3;
static int ranks_max = 8;

/* Every number of ranks on every number of nodes. */
static void everywhere(engine_body_t body, int size_max)
{
    for (int size = 1; size <= dp_min(size_max, ranks_max); size++) {
        for (int nodes = 1; nodes <= dp_min(size, hosts_max); nodes++) {
            engine_world_t world = ENGINE_WORLD(size, nodes);

            world.interleave = size % 2;
            assert_int_equal(engine_world_threads(&world, body, &world), 0);
        }
    }
}

static void engine_reductions_equal_the_reference(void **state)
{
    (void)state;
    everywhere(case_reductions, 5);
}

static void engine_reductions_of_many_ranks_equal_the_reference(void **state)
{
    engine_world_t world = ENGINE_WORLD(ranks_max, 1);

    (void)state;
    for (world.nodes = 1; world.nodes <= hosts_max; world.nodes++) {
        assert_int_equal(engine_world_threads(&world, case_reductions, &world), 0);
    }
}

static void engine_wires_round_as_promised(void **state)
{
    (void)state;
    everywhere(case_wires, 6);
}

static void engine_moves_arrive(void **state)
{
    (void)state;
    everywhere(case_moves, 5);
}

static void engine_rows_are_scattered(void **state)
{
    (void)state;
    everywhere(case_scatter, 5);
}

static void engine_bits_do_not_depend_on_grouping(void **state)
{
    (void)state;
    everywhere(case_grouping, 4);
}

static void engine_large_tensors_travel_in_chunks(void **state)
{
    (void)state;
    everywhere(case_large, 4);
}

static void engine_many_operations_in_a_row(void **state)
{
    (void)state;
    everywhere(case_repeat, 7);
}

static void engine_polling_ranks_work_too(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    world.spin_ns = 20000;
    for (world.nodes = 1; world.nodes <= dp_min(2, hosts_max); world.nodes++) {
        assert_int_equal(engine_world_threads(&world, case_repeat, &world), 0);
    }
}

/* ---- Abort and errors ----------------------------------------------------------------------- */

static void *abort_soon(void *argument)
{
    engine_rank_t *rank = argument;

    usleep(50000);
    rank->engine->ops->abort(rank->engine, DP_ERR_PEER_LOST, "rank 1 was lost, says the test");
    return NULL;
}

static void wait_for_ever(engine_rank_t *rank, void *user)
{
    float *data = engine_memory(rank, 100000 * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 100000, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};
    _Atomic int *ended = user;
    pthread_t thread;

    if (data == NULL) return;
    if (rank->rank == rank->size - 1) { /* comes to no operation, and goes last */
        while (atomic_load(ended) < rank->size - 1)
            usleep(1000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    if (pthread_create(&thread, NULL, abort_soon, rank) != 0) abort();
    engine_run(rank, &op, DP_WORK_LARGE);
    pthread_join(thread, NULL);
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    engine_check(rank, strcmp(op.text, "rank 1 was lost, says the test") == 0, "text is '%s'",
                 op.text);
    engine_run(rank, &op, DP_WORK_SMALL); /* and so does everything after it */
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    atomic_fetch_add(ended, 1);
}

static void engine_abort_ends_a_wait(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= hosts_max; nodes++) {
        engine_world_t world = ENGINE_WORLD(3, nodes);
        _Atomic int ended = 0;

        assert_int_equal(engine_world_threads(&world, wait_for_ever, &ended), 0);
    }
}

/* Only an allreduce reads memory where it lies. */
static void use_foreign_memory(engine_rank_t *rank, void *user)
{
    float *data = calloc(100000, sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 100000, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_REDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_INVALID, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "not engine memory") != NULL, "text is '%s'", op.text);
    free(data);
}

static void engine_refuses_foreign_memory(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, use_foreign_memory, &world), 0);
}

static void disagree(engine_rank_t *rank, void *user)
{
    float *data = engine_memory(rank, 100000 * sizeof(*data));
    dp_engine_piece_t piece = {.in = data,
                               .out = data,
                               .count = 90000 + (size_t)rank->rank,
                               .prescale = 1.0,
                               .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_MISMATCH, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "90000") != NULL && strstr(op.text, "90001") != NULL,
                 "text is '%s'", op.text);
}

static void engine_notices_different_operations(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, disagree, &world), 0);
}

/* ---- Who came last, and for how long the others waited -------------------------------------- */

#define LATE_NS 20000000
#define LATE_RANKS 3

typedef struct late_case {
    dp_collective_t collective;
    size_t count;
    int size, nodes;
    int late;
    dp_engine_t *_Atomic engines[LATE_RANKS]; /* until the late rank has looked at them */
} late_case_t;

/* The late rank comes when each of the others has been waiting for LATE_NS at least: how long they
 * take to get there is not ours to say. */
static void let_others_wait(late_case_t *late)
{
    for (int r = 0; r < late->size; r++) {
        int awaits = DP_ENGINE_RESTS;

        while (r != late->late && awaits < 0) {
            const dp_engine_t *other = atomic_load(&late->engines[r]);

            if (other != NULL) (void)other->ops->moves(other, DP_LANE_MAIN, &awaits);
            usleep(1000);
        }
    }
    usleep(LATE_NS / 1000);
    for (int r = 0; r < late->size; r++)
        atomic_store(&late->engines[r], NULL);
}

static void come_late(engine_rank_t *rank, void *user)
{
    late_case_t *late = user;
    const size_t rows = late->collective == DP_COLLECTIVE_ALLGATHER ? (size_t)rank->size : 1;
    float *in = engine_memory(rank, late->count * sizeof(*in));
    float *out = engine_memory(rank, rows * late->count * sizeof(*out));
    dp_engine_piece_t piece = {.in = in,
                               .out = out,
                               .count = late->count,
                               .stride = late->count,
                               .prescale = 1.0,
                               .postscale = 1.0};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    dp_engine_op_t op = {
        .collective = late->collective, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};
    uint64_t before, skew;

    if (in == NULL || out == NULL) return;
    if (late->collective == DP_COLLECTIVE_BARRIER) op = barrier;
    engine_run(rank, &barrier, DP_WORK_SMALL);
    before = rank->engine->ops->skew_ns(rank->engine, DP_LANE_MAIN, dp_now_ns());
    if (rank->rank == late->late) {
        let_others_wait(late);
    } else {
        atomic_store(&late->engines[rank->rank], rank->engine);
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s", op.text);
    skew = rank->engine->ops->skew_ns(rank->engine, DP_LANE_MAIN, dp_now_ns()) - before;
    engine_check(rank, skew == op.wait_ns, "skew %llu ns, waited %llu ns", (unsigned long long)skew,
                 (unsigned long long)op.wait_ns);
    engine_check(rank, op.end_ns - op.begin_ns >= op.wait_ns, "took less than it waited");
    if (rank->rank == late->late) return;
    engine_check(rank, atomic_load(&late->engines[rank->rank]) == NULL, "passed too early");
    engine_check(rank, op.wait_ns >= LATE_NS, "%s of %zu on %d nodes: waited %llu ns",
                 dp_collective_name(op.collective), late->count, late->nodes,
                 (unsigned long long)op.wait_ns);
    if (late->size == 2)
        engine_check(rank, op.last_rank == late->late, "last rank is %d", op.last_rank);
}

/* Every rank measures it: of a group on several nodes also those that own nothing of a small
 * operation, and those for which another rank of their node exchanges. */
static void engine_measures_the_wait_for_a_late_rank(void **state)
{
    static const struct {
        dp_collective_t collective;
        size_t count;
        int size_max; /* of a barrier between nodes only the leaders know */
    } cases[] = {{DP_COLLECTIVE_BARRIER, 1, 2},
                 {DP_COLLECTIVE_ALLREDUCE, 1, 3},
                 {DP_COLLECTIVE_ALLREDUCE, 300000, 3},
                 {DP_COLLECTIVE_ALLGATHER, 5000, 3}};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        for (int size = 2; size <= cases[i].size_max; size++) {
            for (int nodes = size - 1; nodes <= dp_min(2, hosts_max); nodes++) {
                engine_world_t world = ENGINE_WORLD(size, nodes);

                for (int rank = 0; rank < size; rank += size - 1) {
                    late_case_t late = {.collective = cases[i].collective,
                                        .count = cases[i].count,
                                        .size = size,
                                        .nodes = nodes,
                                        .late = rank};

                    assert_int_equal(engine_world_threads(&world, come_late, &late), 0);
                }
            }
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_reductions_equal_the_reference),
        cmocka_unit_test(engine_reductions_of_many_ranks_equal_the_reference),
        cmocka_unit_test(engine_wires_round_as_promised),
        cmocka_unit_test(engine_moves_arrive),
        cmocka_unit_test(engine_rows_are_scattered),
        cmocka_unit_test(engine_bits_do_not_depend_on_grouping),
        cmocka_unit_test(engine_large_tensors_travel_in_chunks),
        cmocka_unit_test(engine_many_operations_in_a_row),
        cmocka_unit_test(engine_polling_ranks_work_too),
        cmocka_unit_test(engine_abort_ends_a_wait),
        cmocka_unit_test(engine_refuses_foreign_memory),
        cmocka_unit_test(engine_notices_different_operations),
        cmocka_unit_test(engine_measures_the_wait_for_a_late_rank),
    };

    if (argc > 1) hosts_max = atoi(argv[1]); /* 1: without UCX, which tsan cannot see into */
    if (argc > 2) ranks_max = atoi(argv[2]);
    if (argc > 3) cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
