/*
 * test_engine_groups.c - groups, reduce and exchanges of the CPU engine, with ranks as threads.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_cases.h"
#include "tests/unit/fail_allocation.h"

static int hosts_max = 4;
static int ranks_max = 6;

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

static void engine_reduces_to_its_roots(void **state)
{
    (void)state;
    everywhere(case_reduce, 4);
}

static void engine_drops_what_is_not_wanted(void **state)
{
    (void)state;
    everywhere(case_dropped, 5);
}

static void engine_blocks_arrive_or_are_refused_alike(void **state)
{
    (void)state;
    everywhere(case_exchanges, 6);
}

static void engine_large_blocks_take_rounds(void **state)
{
    (void)state;
    everywhere(case_large_blocks, 4);
}

static void engine_groups_overlap_and_end(void **state)
{
    (void)state;
    everywhere(case_groups, 6);
}

/* ---- Abort ---------------------------------------------------------------------------------- */

typedef struct abort_case {
    dp_collective_t collective;
    int uses_group;
    int comes; /* 1: the last rank comes too, and all are aborted under way */
    int after_us;
} abort_case_t;

typedef struct aborter {
    engine_rank_t *rank;
    int after_us;
} aborter_t;

static void *abort_soon(void *argument)
{
    const aborter_t *aborter = argument;
    dp_engine_t *engine = aborter->rank->engine;

    usleep((useconds_t)aborter->after_us);
    engine->ops->abort(engine, DP_ERR_PEER_LOST, "rank 1 was lost, says the test");
    return NULL;
}

static void make_everybodys_group(engine_rank_t *rank, dp_engine_group_t **group)
{
    static const int all[] = {0, 1, 2};
    const dp_engine_members_t members = {
        .uid = 1, .group_index = 7, .ranks = all, .count = rank->size, .name = "everybody"};
    dp_error_t error = {DP_OK, ""};

    engine_check(rank,
                 rank->engine->ops->group_create(rank->engine, &members, group, &error) == DP_OK,
                 "group_create: %s", error.text);
}

/* The first rank to fail must not do so while another one is still starting. */
static void wait_for_all(engine_rank_t *rank)
{
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};

    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "before: %s", barrier.text);
}

/* Memory is given back right after the operation: nothing may still use it. */
static void be_aborted(engine_rank_t *rank, void *user)
{
    const abort_case_t *about = user;
    const size_t count = about->comes ? 3000000 : 100000;
    const int is_reduce = about->collective == DP_COLLECTIVE_REDUCE;
    const size_t rows = (size_t)rank->size;
    size_t send_counts[] = {count, count, count};
    float *in =
        is_reduce ? engine_memory(rank, count * sizeof(*in)) : calloc(rows * count, sizeof(*in));
    float *out = is_reduce ? in : calloc(rows * count, sizeof(*out));
    dp_engine_exchange_t exchange = {
        .in = in, .send_counts = send_counts, .out = out, .capacity = rows * count};
    dp_engine_piece_t piece = {
        .in = in, .out = out, .count = count, .prescale = 1.0, .postscale = 1.0, .root = 1};
    dp_engine_op_t op = {.collective = about->collective,
                         .dtype = DP_F32,
                         .root = 0,
                         .peer = rank->size - 1,
                         .exchange = is_reduce ? NULL : &exchange,
                         .pieces = is_reduce ? &piece : NULL,
                         .piece_count = (size_t)is_reduce};
    dp_engine_op_t late = {.collective = DP_COLLECTIVE_BARRIER};
    aborter_t aborter = {rank, about->after_us};
    const int is_last = rank->rank == rank->size - 1;
    pthread_t thread;

    if (in == NULL || out == NULL) abort();
    wait_for_all(rank);
    if (about->uses_group) make_everybodys_group(rank, &op.group);
    if (pthread_create(&thread, NULL, abort_soon, &aborter) != 0) abort();
    if ((!is_last || about->comes) &&
        (about->collective != DP_COLLECTIVE_SEND || rank->rank == 0 || is_last)) {
        engine_run(rank, &op, DP_WORK_LARGE);
        engine_check(rank, op.status == DP_ERR_PEER_LOST || (about->comes && op.status == DP_OK),
                     "%s: %s", dp_collective_name(op.collective), dp_status_string(op.status));
        engine_check(rank,
                     op.status == DP_OK || strcmp(op.text, "rank 1 was lost, says the test") == 0,
                     "text is '%s'", op.text);
    }
    pthread_join(thread, NULL);
    engine_run(rank, &late, DP_WORK_SMALL); /* whoever comes when all is over learns the same */
    engine_check(rank, late.status == DP_ERR_PEER_LOST, "late: %s", dp_status_string(late.status));
    if (is_reduce) {
        rank->engine->ops->free(rank->engine, in);
    } else {
        free(in);
        free(out);
    }
    rank->engine->ops->group_destroy(rank->engine, op.group);
}

static const dp_collective_t waiting[] = {DP_COLLECTIVE_REDUCE,     DP_COLLECTIVE_ALLTOALLV,
                                          DP_COLLECTIVE_ALLGATHERV, DP_COLLECTIVE_GATHERV,
                                          DP_COLLECTIVE_SCATTERV,   DP_COLLECTIVE_SEND};

static void engine_abort_ends_waits_in_groups(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= dp_min(3, hosts_max); nodes++) {
        engine_world_t world = ENGINE_WORLD(3, nodes);

        for (size_t i = 0; i < DP_ARRAY_LEN(waiting); i++) {
            abort_case_t about = {waiting[i], (int)i % 2, 0, 20000};

            assert_int_equal(engine_world_threads(&world, be_aborted, &about), 0);
        }
    }
}

static void engine_abort_under_way_leaves_memory_alone(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= dp_min(3, hosts_max); nodes++) {
        engine_world_t world = ENGINE_WORLD(3, nodes);

        for (size_t i = 0; i < 2 * DP_ARRAY_LEN(waiting); i++) {
            abort_case_t about = {waiting[i % DP_ARRAY_LEN(waiting)], (int)i % 2, 1, (int)i * 1500};

            assert_int_equal(engine_world_threads(&world, be_aborted, &about), 0);
        }
    }
}

/* ---- Errors --------------------------------------------------------------------------------- */

static void add_up_to_too_much(engine_rank_t *rank, void *user)
{
    const size_t send_counts[] = {SIZE_MAX / 4, SIZE_MAX / 4 * 3 + 4};
    char data[8] = {0};
    dp_engine_exchange_t exchange = {
        .in = data, .send_counts = send_counts, .out = data, .capacity = sizeof(data)};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLTOALLV, .dtype = DP_U8, .exchange = &exchange};

    (void)user;
    wait_for_all(rank);
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_INVALID, "status is %s", dp_status_string(op.status));
    engine_check(rank, strstr(op.text, "add up to more than memory can hold") != NULL,
                 "text is '%s'", op.text);
}

/* Each rank's send is possible, one rank's receive is not, whatever its capacity: all ranks learn
 * who it is, and all goes on. Between nodes: inside one the memory would have to be there. */
static void receive_too_much(engine_rank_t *rank, void *user)
{
    const size_t send_counts[] = {SIZE_MAX / 2 + 1};
    dp_engine_exchange_t exchange = {.send_counts = send_counts, .drops = 1};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_GATHERV, .dtype = DP_U8, .root = 1, .exchange = &exchange};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};

    (void)user;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_TRUNCATED, "status is %s", dp_status_string(op.status));
    engine_check(rank, strncmp(op.text, "rank 1 (host1) can take ", 24) == 0, "text is '%s'",
                 op.text);
    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "afterwards: %s", barrier.text);
}

static void engine_refuses_counts_that_overflow(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= dp_min(2, hosts_max); nodes++) {
        engine_world_t world = ENGINE_WORLD(2, nodes);

        assert_int_equal(engine_world_threads(&world, add_up_to_too_much, &world), 0);
        if (nodes > 1) assert_int_equal(engine_world_threads(&world, receive_too_much, &world), 0);
    }
}

static void make_wrong_groups(engine_rank_t *rank, void *user)
{
    static const int without[] = {1}, twice[] = {1, 1}, beyond[] = {0, 2}, right[] = {0, 1};
    const dp_engine_members_t wrong[] = {
        {.uid = 1, .group_index = 1, .ranks = without, .count = 1, .name = "without"},
        {.uid = 1, .group_index = 1, .ranks = twice, .count = 2, .name = "twice"},
        {.uid = 1, .group_index = 1, .ranks = beyond, .count = 2, .name = "beyond"},
        {.uid = 1, .group_index = DP_GROUPS_MAX + 1, .ranks = right, .count = 2, .name = "index"},
        {.uid = UINT32_MAX, .group_index = 1, .ranks = right, .count = 2, .name = "uid"},
        {.uid = 0, .group_index = 0, .ranks = right, .count = 2, .name = "world"},
    };
    dp_engine_group_t *group;

    (void)user;
    for (size_t i = rank->rank == 0 ? 0 : 1; i < DP_ARRAY_LEN(wrong); i++) {
        dp_error_t error = {DP_OK, ""};
        const dp_status_t status =
            rank->engine->ops->group_create(rank->engine, &wrong[i], &group, &error);

        engine_check(rank, status == DP_ERR_INVALID && strstr(error.text, wrong[i].name) != NULL,
                     "%s: %s: '%s'", wrong[i].name, dp_status_string(status), error.text);
    }
    rank->engine->ops->group_destroy(rank->engine, NULL);
}

static void engine_refuses_groups_that_cannot_be(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, make_wrong_groups, &world), 0);
}

/* Every allocation of a group fails once: nothing stays, and the next attempt is a group. */
static void run_out_of_memory(engine_rank_t *rank, void *user)
{
    static const int all[] = {0, 1};
    const dp_engine_members_t members = {
        .uid = 3, .group_index = 9, .ranks = all, .count = rank->size, .name = "both"};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    dp_status_t status = DP_ERR_NO_MEMORY;
    long failures = 0;

    (void)user;
    for (long nth = 1; status != DP_OK && rank->failures == 0; nth++) {
        dp_error_t error = {DP_OK, ""};

        fail_allocation(nth);
        status = rank->engine->ops->group_create(rank->engine, &members, &barrier.group, &error);
        if (fail_allocation_reached()) {
            failures++;
            engine_check(rank, status == DP_ERR_NO_MEMORY && error.text[0] != '\0',
                         "allocation %ld fails: %s: '%s'", nth, dp_status_string(status),
                         error.text);
        }
    }
    engine_check(rank, failures >= 5, "only %ld allocations failed", failures);
    if (status != DP_OK) return;
    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
    rank->engine->ops->group_destroy(rank->engine, barrier.group);
}

static void engine_groups_survive_a_lack_of_memory(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= dp_min(2, hosts_max); nodes++) {
        engine_world_t world = ENGINE_WORLD(2, nodes);

        assert_int_equal(engine_world_threads(&world, run_out_of_memory, &world), 0);
    }
}

/* Texts of a group speak of ranks of the world and say its name. */
static void disagree_in_group(engine_rank_t *rank, void *user)
{
    static const int some[] = {1, 2};
    const dp_engine_members_t members = {
        .uid = 1, .group_index = 1, .ranks = some, .count = 2, .name = "upper"};
    dp_error_t error = {DP_OK, ""};
    float *data = engine_memory(rank, 100000 * sizeof(*data));
    dp_engine_piece_t piece = {.in = data,
                               .out = data,
                               .count = 90000 + (size_t)rank->rank,
                               .prescale = 1.0,
                               .postscale = 1.0};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)user;
    if (rank->rank == 0) return;
    engine_check(
        rank, rank->engine->ops->group_create(rank->engine, &members, &op.group, &error) == DP_OK,
        "group_create: %s", error.text);
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_ERR_MISMATCH, "status is %s", dp_status_string(op.status));
    engine_check(rank,
                 strstr(op.text, "group 'upper'") != NULL && strstr(op.text, "rank 2") != NULL,
                 "text is '%s'", op.text);
}

static void engine_says_which_group(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);

    (void)state;
    assert_int_equal(engine_world_threads(&world, disagree_in_group, &world), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_reduces_to_its_roots),
        cmocka_unit_test(engine_drops_what_is_not_wanted),
        cmocka_unit_test(engine_blocks_arrive_or_are_refused_alike),
        cmocka_unit_test(engine_large_blocks_take_rounds),
        cmocka_unit_test(engine_groups_overlap_and_end),
        cmocka_unit_test(engine_abort_ends_waits_in_groups),
        cmocka_unit_test(engine_abort_under_way_leaves_memory_alone),
        cmocka_unit_test(engine_refuses_counts_that_overflow),
        cmocka_unit_test(engine_refuses_groups_that_cannot_be),
        cmocka_unit_test(engine_groups_survive_a_lack_of_memory),
        cmocka_unit_test(engine_says_which_group),
    };

    if (argc > 1) hosts_max = atoi(argv[1]); /* 1: without UCX, which tsan cannot see into */
    if (argc > 2) ranks_max = atoi(argv[2]);
    if (argc > 3) cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
