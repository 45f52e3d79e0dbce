/*
 * test_engine_processes.c - the CPU engine with ranks as processes, and the death of one.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../unit/engine_cases.h"
#include "tests/unit/cases.h"

static void everywhere(engine_body_t body)
{
    for (int size = 2; size <= 3; size++) {
        for (int nodes = 1; nodes <= size; nodes++) {
            engine_world_t world = ENGINE_WORLD(size, nodes);

            assert_int_equal(engine_world_processes(&world, body, &world), 0);
        }
    }
}

static void processes_reduce_like_the_reference(void **state)
{
    (void)state;
    everywhere(case_reductions);
}

static void processes_move_and_scatter(void **state)
{
    (void)state;
    everywhere(case_moves);
    everywhere(case_scatter);
}

static void processes_agree_on_bits(void **state)
{
    (void)state;
    everywhere(case_wires);
    everywhere(case_grouping);
}

static void processes_run_many_operations(void **state)
{
    (void)state;
    everywhere(case_repeat);
}

static void processes_form_groups(void **state)
{
    (void)state;
    everywhere(case_groups);
}

static void processes_gather_beside_reductions(void **state)
{
    (void)state;
    everywhere(case_lane_gathers_pass);
    everywhere(case_lane_reduces_pass);
    everywhere(case_lanes_at_once);
}

static void processes_exchange_blocks(void **state)
{
    (void)state;
    everywhere(case_reduce);
    everywhere(case_exchanges);
    everywhere(case_large_blocks);
}

/* The last rank is killed; its partner on the other node hears it from UCX. */
static void lose_a_rank(engine_rank_t *rank, void *user)
{
    float *data = engine_memory(rank, 100000 * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 100000, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "before: %s", op.text);
    if (rank->rank == 1) {
        usleep(20000);
        _exit(0); /* as if killed: nothing is closed by us */
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "rank 1 (host1)") != NULL, "text is '%s'", op.text);
}

static void processes_hear_of_a_death_between_nodes(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 2);

    (void)state;
    assert_int_equal(engine_world_processes(&world, lose_a_rank, &world), 0);
}

/* The same while blocks are awaited: the receiver has never sent anything to the rank that dies. */
static void lose_a_sender(engine_rank_t *rank, void *user)
{
    static const dp_collective_t kinds[] = {DP_COLLECTIVE_SEND, DP_COLLECTIVE_GATHERV,
                                            DP_COLLECTIVE_ALLGATHERV, DP_COLLECTIVE_ALLTOALLV};
    const size_t which = *(const size_t *)user;
    const size_t send_counts[] = {100000, 100000};
    char *in = calloc(200000, 1);
    char *out = calloc(200000, 1);
    dp_engine_exchange_t exchange = {
        .in = in, .send_counts = send_counts, .out = out, .capacity = 200000};
    dp_engine_op_t op = {.collective = kinds[which],
                         .dtype = DP_U8,
                         .root = kinds[which] == DP_COLLECTIVE_SEND ? 1 : 0,
                         .peer = 0,
                         .exchange = &exchange};

    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "before: %s", op.text);
    if (rank->rank == 1) {
        usleep(20000);
        _exit(0); /* as if killed: nothing is closed by us */
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "rank 1 (host1)") != NULL, "text is '%s'", op.text);
    free(in);
    free(out);
}

static void processes_hear_of_a_death_in_an_exchange(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 2);

    (void)state;
    for (size_t which = 0; which < 4; which++) {
        assert_int_equal(engine_world_processes(&world, lose_a_sender, &which), 0);
    }
}

/* Rank 1 dies before it gathers for the first time, when nothing connects the two in that lane yet,
 * or after it has. */
static void lose_a_gatherer(engine_rank_t *rank, void *user)
{
    const int which = *(const int *)user;
    int32_t *data = engine_memory(rank, 200000 * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data + rank->rank * 100000, .out = data, .count = 100000, .stride = 100000};
    dp_engine_op_t op = {.lane = DP_LANE_GATHER,
                         .collective =
                             which / 2 ? DP_COLLECTIVE_BROADCAST : DP_COLLECTIVE_ALLGATHER,
                         .dtype = DP_I32,
                         .pieces = &piece,
                         .piece_count = 1};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};

    engine_run(rank, &barrier, DP_WORK_SMALL);
    if (which % 2) engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "before: %s", op.text);
    if (rank->rank == 1) _exit(0); /* as if killed: nothing is closed by us */
    do { /* a root is done once it has sent all, and may do so before the other one is dead */
        engine_run(rank, &op, DP_WORK_SMALL);
    } while (which == 3 && op.status == DP_OK);
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "rank 1 (host1)") != NULL, "text is '%s'", op.text);
}

static void processes_hear_of_a_death_in_a_gather(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 2);

    (void)state;
    for (int which = 0; which < 4; which++)
        assert_int_equal(engine_world_processes(&world, lose_a_gatherer, &which), 0);
}

/* A rank that has nothing to do uses no CPU, also while another makes it wait. */
static void wait_idly(engine_rank_t *rank, void *user)
{
    const engine_world_t *world = user;
    int32_t *data = engine_memory(rank, 2000 * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data + rank->rank * 1000, .out = data, .count = 1000, .stride = 1000};
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_BARRIER};
    struct timespec before;
    struct timespec after;
    uint64_t used_ns;

    engine_run(rank, &op, DP_WORK_SMALL);
    if (world->interleave) { /* the first gather, while nothing connects the nodes in its lane */
        op = (dp_engine_op_t){.lane = DP_LANE_GATHER,
                              .collective = DP_COLLECTIVE_ALLGATHER,
                              .dtype = DP_I32,
                              .pieces = &piece,
                              .piece_count = 1};
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (rank->rank == 0) usleep(300000);
    engine_run(rank, &op, DP_WORK_SMALL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    used_ns = (uint64_t)(after.tv_sec - before.tv_sec) * 1000000000u + (uint64_t)after.tv_nsec -
              (uint64_t)before.tv_nsec;
    engine_check(rank, used_ns < 150000000, "used %llu us of CPU in 300 ms of waiting",
                 (unsigned long long)used_ns / 1000);
}

static void processes_wait_without_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        engine_world_t world = ENGINE_WORLD(2, 1 + i / 2);

        world.spin_ns = 20000;
        world.interleave = i % 2;
        assert_int_equal(engine_world_processes(&world, wait_idly, &world), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_reduce_like_the_reference),
        cmocka_unit_test(processes_move_and_scatter),
        cmocka_unit_test(processes_agree_on_bits),
        cmocka_unit_test(processes_run_many_operations),
        cmocka_unit_test(processes_form_groups),
        cmocka_unit_test(processes_exchange_blocks),
        cmocka_unit_test(processes_gather_beside_reductions),
        cmocka_unit_test(processes_hear_of_a_death_between_nodes),
        cmocka_unit_test(processes_hear_of_a_death_in_an_exchange),
        cmocka_unit_test(processes_hear_of_a_death_in_a_gather),
        cmocka_unit_test(processes_wait_without_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
