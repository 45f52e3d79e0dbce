/*
 * test_nccl_engine.c - the NCCL engine over doubles of NCCL and of the CUDA runtime: what the
 * collectives give, and how each kind of failure ends.
 */
#include <fnmatch.h>
#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "runtime/engine/nccl/nccl_internal.h"
#include "tests/unit/cases.h"
#include "tests/unit/engine_cases.h"
#include "tests/unit/nccl_world.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/gpu/double/nccl.h"

#define MS ((uint64_t)1000000)

static int ranks_max = 5;
static sem_t keeper_is_held;

/* Holds a stream up until it is opened. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int is_open;
    uint64_t opens_ns; /* by gate_open_in_time() */
} gate_t;

static void gate_init(gate_t *gate)
{
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->change, NULL);
    gate->is_open = 0;
}

static void CUDART_CB gate_pass(void *argument)
{
    gate_t *gate = argument;

    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->change, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_open(gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->change);
    pthread_mutex_unlock(&gate->lock);
}

static void *gate_open_in_time(void *argument)
{
    gate_t *gate = argument;

    while (dp_now_ns() < gate->opens_ns)
        usleep(1000);
    gate_open(gate);
    return NULL;
}

static int begin(void **state)
{
    (void)state;
    cuda_double_reset();
    cuda_double_set_devices(NCCL_WORLD_RANKS); /* a process would have one, and share it at most */
    nccl_double_reset();
    return 0;
}

/* Checks that no object is left, whatever happened. */
static int end(void **state)
{
    (void)state;
    nccl_double_reset();
    if (nccl_double_live() != 0) fprintf(stderr, "%zu left of NCCL\n", nccl_double_live());
    if (cuda_double_live() != 0) fprintf(stderr, "%zu left of CUDA\n", cuda_double_live());
    return nccl_double_live() != 0 || cuda_double_live() != 0;
}

static void everywhere(engine_body_t body)
{
    for (int size = 1; size <= ranks_max; size++) {
        nccl_world_t world = NCCL_WORLD(size);

        world.world.nodes = size > 2 ? 2 : 1;
        assert_int_equal(nccl_world_run(&world, body, &world), 0);
    }
}

/* ---- Collectives ---------------------------------------------------------------------------- */

/* The reference adds up nodes first, which NCCL knows nothing of. */
static void nccl_reductions_equal_the_reference(void **state)
{
    (void)state;
    for (int size = 1; size <= ranks_max; size++) {
        nccl_world_t world = NCCL_WORLD(size);

        assert_int_equal(nccl_world_run(&world, case_reductions, &world), 0);
    }
}

static void nccl_moves_arrive(void **state)
{
    (void)state;
    everywhere(case_moves);
}

static void nccl_rows_are_scattered(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    assert_int_equal(nccl_world_run(&world, case_scatter, &world), 0);
}

static void nccl_reduce_has_a_root_per_piece(void **state)
{
    nccl_world_t world = NCCL_WORLD(4);

    (void)state;
    assert_int_equal(nccl_world_run(&world, case_reduce, &world), 0);
}

static void nccl_outputs_may_be_unwanted(void **state)
{
    (void)state;
    everywhere(case_dropped);
}

static void nccl_blocks_go_from_rank_to_rank(void **state)
{
    (void)state;
    everywhere(case_exchanges);
}

static void nccl_large_blocks_arrive(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    assert_int_equal(nccl_world_run(&world, case_large_blocks, &world), 0);
}

static void nccl_groups_come_and_go(void **state)
{
    (void)state;
    everywhere(case_groups);
}

/* More than one batch of inputs for the kernel, and a type that NCCL has none for. */
static void sum_shorts(engine_rank_t *rank, void *user)
{
    enum { COUNT = 1000 };
    uint16_t *data = engine_memory(rank, COUNT * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = COUNT, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_U16,
                         .reduce = DP_AVERAGE,
                         .pieces = &piece,
                         .piece_count = 1};

    (void)user;
    for (int i = 0; i < COUNT; i++)
        data[i] = (uint16_t)(i + rank->rank);
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s", op.text);
    for (int i = 0; i < COUNT; i++) {
        const int sum = i * rank->size + rank->size * (rank->size - 1) / 2;

        engine_check(rank, data[i] == sum / rank->size, "element %d is %d", i, data[i]);
    }
    rank->engine->ops->free(rank->engine, data);
}

static void nccl_types_it_lacks_are_reduced_among_many(void **state)
{
    nccl_world_t world = NCCL_WORLD(19);

    (void)state;
    assert_int_equal(nccl_world_run(&world, sum_shorts, &world), 0);
}

static void find_largest(engine_rank_t *rank, void *user)
{
    float *data = engine_memory(rank, 3 * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = 3, .prescale = 2.0, .postscale = 3.0};
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_F32,
                         .reduce = DP_MAX,
                         .pieces = &piece,
                         .piece_count = 1};

    (void)user;
    data[0] = rank->rank == 1 ? NAN : 1.0f;
    data[1] = (float)rank->rank;
    data[2] = -INFINITY;
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, isnan(data[0]), "a NaN became %g", (double)data[0]);
    engine_check(rank, data[1] == 6.0f * (float)(rank->size - 1), "%g", (double)data[1]);
    engine_check(rank, data[2] == -INFINITY, "%g", (double)data[2]);
    rank->engine->ops->free(rank->engine, data);
}

static void nccl_a_nan_wins(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    assert_int_equal(nccl_world_run(&world, find_largest, &world), 0);
}

/* One after the other on one stream, none waited for. */
static void run_many(engine_rank_t *rank, void *user)
{
    enum { COUNT = 4000, OPS = 40 };
    float *data = engine_memory(rank, OPS * COUNT * sizeof(*data));
    dp_engine_piece_t pieces[OPS];
    dp_engine_op_t ops[OPS];

    (void)user;
    for (int i = 0; i < OPS; i++) {
        float *at = data + i * COUNT;

        for (int k = 0; k < COUNT; k++)
            at[k] = (float)(i + k % 10 + rank->rank);
        pieces[i] = (dp_engine_piece_t){
            .in = at, .out = at, .count = COUNT, .prescale = 1.0, .postscale = 0.5};
        ops[i] = (dp_engine_op_t){.collective = DP_COLLECTIVE_ALLREDUCE,
                                  .dtype = DP_F32,
                                  .pieces = &pieces[i],
                                  .piece_count = 1};
    }
    nccl_run_all(rank, ops, OPS, DP_WORK_LARGE);
    for (int i = 0; i < OPS; i++) {
        const float more = 0.5f * (float)(rank->size * (rank->size - 1) / 2);

        engine_check(rank, ops[i].status == DP_OK, "operation %d: %s", i, ops[i].text);
        engine_check(rank,
                     ops[i].begin_ns <= ops[i].end_ns &&
                         (i == 0 || ops[i - 1].end_ns <= ops[i].begin_ns),
                     "operation %d ran before its turn", i);
        for (int k = 0; k < COUNT; k += 1 + COUNT / 7) {
            const float expected = 0.5f * (float)((i + k % 10) * rank->size) + more;

            engine_check(rank, data[i * COUNT + k] == expected, "operation %d: %g, not %g", i,
                         (double)data[i * COUNT + k], (double)expected);
        }
    }
    rank->engine->ops->free(rank->engine, data);
}

static void nccl_operations_follow_one_another(void **state)
{
    (void)state;
    cuda_double_set_jitter(7);
    everywhere(run_many);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void use_memory(engine_rank_t *rank, void *user)
{
    const dp_engine_ops_t *engine = rank->engine->ops;
    const int fails = *(const int *)user;
    dp_error_t error = {DP_OK, ""};
    char *data = engine_memory(rank, 10000);
    void *other = NULL;
    char own[64];

    for (int i = 0; i < 10000; i++)
        engine_check(rank, data[i] == 0, "byte %d is not zero", i);
    engine_check(rank, (uintptr_t)data % 256 == 0, "not aligned");
    engine_check(rank, engine->owns(rank->engine, data + 100, 9900), "it does not own its memory");
    engine_check(rank, !engine->owns(rank->engine, data + 100, 20000), "it owns what is behind");
    engine_check(rank, !engine->owns(rank->engine, own, 1), "it owns the stack");
    engine_check(rank, engine->free(rank->engine, own) == DP_ERR_INVALID, "it frees the stack");
    engine_check(rank, engine->adopt(rank->engine, own, 64, &error) == DP_ERR_INVALID,
                 "it adopts the stack");
    engine_check(rank, strstr(error.text, "not memory of this GPU") != NULL, "'%s'", error.text);
    if (rank->device->ops->alloc(rank->device, 5000, &other) != DP_OK) abort();
    if (fails) {
        engine_check(rank, engine->adopt(rank->engine, other, 5000, &error) == DP_ERR_SYSTEM,
                     "adopted");
        engine_check(rank, strstr(error.text, "registering 5000 bytes: ncclCommRegister") != NULL,
                     "'%s'", error.text);
    } else {
        engine_check(rank, engine->adopt(rank->engine, other, 5000, &error) == DP_OK, "%s",
                     error.text);
        engine_check(rank, engine->owns(rank->engine, other, 5000), "not owned");
        engine_check(rank, engine->adopt(rank->engine, other, 10, &error) == DP_ERR_INVALID,
                     "adopted twice");
        engine_check(rank, engine->free(rank->engine, other) == DP_ERR_INVALID, "freed");
        engine_check(rank, engine->disown(rank->engine, other) == DP_OK, "not disowned");
    }
    engine_check(rank, engine->disown(rank->engine, other) == DP_ERR_INVALID, "disowned twice");
    rank->device->ops->free(rank->device, other);
    engine_check(rank, engine->free(rank->engine, data) == DP_OK, "not freed");
    engine_memory(rank, 100); /* goes with the engine */
}

static void nccl_memory_is_registered(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);
    int fails = 0;

    (void)state;
    assert_int_equal(nccl_world_run(&world, use_memory, &fails), 0);
}

static void nccl_memory_works_unregistered(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);
    int fails = 1;

    (void)state;
    nccl_double_fault(NCCL_FAULT_REGISTER, 1);
    assert_int_equal(nccl_world_run(&world, use_memory, &fails), 0);
}

/* ---- Failures at the start ------------------------------------------------------------------ */

static void never_runs(engine_rank_t *rank, void *user)
{
    (void)user;
    engine_check(rank, 0, "it was made");
}

static void is_too_old(engine_rank_t *rank, dp_status_t status, const dp_error_t *error)
{
    engine_check(rank, status == DP_ERR_UNSUPPORTED, "%s", dp_status_string(status));
    engine_check(rank, strstr(error->text, "version 2.25.1 is there (") != NULL, "'%s'",
                 error->text);
    engine_check(rank, strstr(error->text, "test_nccl_engine), but") != NULL, "'%s'", error->text);
    engine_check(rank, strstr(error->text, "at least 2.26.2 of NCCL 2 is needed") != NULL, "'%s'",
                 error->text);
}

static void nccl_an_older_library_is_refused(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);

    (void)state;
    world.opened = is_too_old;
    nccl_double_fault(NCCL_FAULT_VERSION, 22501);
    assert_int_equal(nccl_world_run(&world, never_runs, NULL), 0);
    nccl_double_fault(NCCL_FAULT_VERSION, 2703); /* of the days of 2.7 */
    world.opened = NULL;
    assert_int_not_equal(nccl_world_run(&world, never_runs, NULL), 0);
}

/* As a program may have loaded it, older than what this was built with. */
static void nccl_a_library_that_is_old_enough_will_do(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);

    (void)state;
    nccl_double_fault(NCCL_FAULT_VERSION, 22602);
    assert_int_equal(nccl_world_run(&world, run_many, &world), 0);
}

static void never_came(engine_rank_t *rank, dp_status_t status, const dp_error_t *error)
{
    engine_check(rank, status == DP_ERR_TIMEOUT, "%s", dp_status_string(status));
    engine_check(rank, strstr(error->text, "still being made after 1500 ms") != NULL, "'%s'",
                 error->text);
    engine_check(rank,
                 (strstr(error->text, "NCCL_SOCKET_IFNAME==eth3") != NULL) ==
                     (rank->topology.node_count > 1),
                 "'%s'", error->text);
}

static void nccl_a_start_in_progress_for_ever_ends(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);

    (void)state;
    world.start_ns = 150 * MS; /* the ranks have to find each other in ten times as much */
    world.opened = never_came;
    for (world.world.nodes = 1; world.world.nodes <= 2; world.world.nodes++) {
        nccl_double_fault(NCCL_FAULT_INIT, 1);
        assert_int_equal(nccl_world_run(&world, never_runs, NULL), 0);
        assert_int_equal(nccl_double_aborted(), 2 * world.world.nodes);
    }
}

/* DP_START_TIMEOUT does not hold for a rank whose libraries load slowly. */
static void nccl_a_rank_may_load_for_longer_than_ranks_take_to_meet(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    world.start_ns = 200 * MS;
    world.late_ns = 500 * MS;
    assert_int_equal(nccl_world_run(&world, run_many, &world), 0);
}

static void without_order(engine_rank_t *rank, dp_status_t status, const dp_error_t *error)
{
    engine_check(rank, status == (rank->size == 1 ? DP_OK : DP_ERR_CONFIG), "%s: %s",
                 dp_status_string(status), error->text);
    if (status != DP_OK)
        engine_check(rank, strstr(error->text, "NCCL_LAUNCH_ORDER_IMPLICIT=1 is not") != NULL,
                     "'%s'", error->text);
}

static void nothing(engine_rank_t *rank, void *user)
{
    (void)rank;
    (void)user;
}

static void nccl_several_ranks_want_an_order_of_kernels(void **state)
{
    nccl_world_t alone = NCCL_WORLD(1), world = NCCL_WORLD(2);

    (void)state;
    alone.is_bare = world.is_bare = 1;
    alone.opened = world.opened = without_order;
    assert_int_equal(nccl_world_run(&alone, nothing, NULL), 0);
    assert_int_equal(nccl_world_run(&world, never_runs, NULL), 0);
}

static void was_refused(engine_rank_t *rank, dp_status_t status, const dp_error_t *error)
{
    engine_check(rank, status == DP_ERR_SYSTEM, "%s", dp_status_string(status));
    engine_check(rank, strstr(error->text, "making the communicator of 1 ranks") != NULL, "'%s'",
                 error->text);
}

static void nccl_a_communicator_that_fails_is_told(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);

    (void)state;
    world.opened = was_refused;
    nccl_double_fault(NCCL_FAULT_INIT_ERROR, 1);
    assert_int_equal(nccl_world_run(&world, never_runs, NULL), 0);
}

static void any_way(engine_rank_t *rank, dp_status_t status, const dp_error_t *error)
{
    engine_check(rank, status == DP_OK || error->text[0] != '\0', "%s without words",
                 dp_status_string(status));
}

static void count_engine(engine_rank_t *rank, void *user)
{
    (void)rank;
    ++*(int *)user;
}

/* Every call into CUDA on the way fails once. */
static void nccl_starts_whole_or_not_at_all(void **state)
{
    int made = 0;

    for (int nth = 1; made == 0; nth++) {
        nccl_world_t world = NCCL_WORLD(1);

        assert_int_equal(begin(state), 0);
        world.opened = any_way;
        cuda_double_fail(NULL, nth, 2);
        assert_int_equal(nccl_world_run(&world, count_engine, &made), 0);
        cuda_double_fail(NULL, 0, 0);
        assert_int_equal(end(state), 0);
        assert_true(nth < 500);
    }
}

/* ---- Failures under way --------------------------------------------------------------------- */

typedef struct expectation {
    dp_status_t status; /* of who comes */
    const char *text;   /* in it; a pattern for fnmatch() */
    int from;           /* ranks below never come, and abort in the end */
} expectation_t;

static void allreduce(engine_rank_t *rank, dp_engine_group_t *group, dp_engine_op_t *op,
                      dp_engine_piece_t *piece)
{
    float *data = engine_memory(rank, 1000 * sizeof(*data));

    *piece = (dp_engine_piece_t){
        .in = data, .out = data, .count = 1000, .prescale = 1.0, .postscale = 1.0};
    *op = (dp_engine_op_t){.group = group,
                           .collective = DP_COLLECTIVE_ALLREDUCE,
                           .dtype = DP_F32,
                           .pieces = piece,
                           .piece_count = 1};
}

static void expect(engine_rank_t *rank, const dp_engine_op_t *op, const expectation_t *expected)
{
    char pattern[200];

    engine_check(rank, op->status == expected->status, "status is %s, text '%s'",
                 dp_status_string(op->status), op->text);
    snprintf(pattern, sizeof(pattern), "*%s*", expected->text);
    engine_check(rank, fnmatch(pattern, op->text, 0) == 0, "text is '%s', not '%s'", op->text,
                 expected->text);
    engine_check(rank,
                 __atomic_load_n(rank->device->ops->skip_flag(rank->device), __ATOMIC_SEQ_CST) == 1,
                 "what was reduced by halves may be used");
}

/* The world's communicator connects its ranks with the first operation, which all have to begin. */
static void connect(engine_rank_t *rank)
{
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};

    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
}

/* For what runs from here on. Not for the whole world: on a busy machine making it, and connecting
 * its ranks, may take longer than what an operation that hangs is given here. */
static void limit_operations(engine_rank_t *rank, uint64_t limit_ns)
{
    dp_nccl_engine_t *engine = (dp_nccl_engine_t *)(void *)rank->engine;

    pthread_mutex_lock(&engine->lock);
    engine->limits.operation_ns = limit_ns;
    pthread_mutex_unlock(&engine->lock);
}

/* One rank aborts its engine: the others find out by their own means, here a time limit. */
static void break_down(engine_rank_t *rank, void *user)
{
    const expectation_t *expected = user;
    dp_engine_piece_t piece;
    dp_engine_op_t op;

    connect(rank);
    if (expected->status == DP_ERR_TIMEOUT) limit_operations(rank, 1000 * MS);
    if (rank->rank < expected->from) {
        usleep(300000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    allreduce(rank, NULL, &op, &piece);
    engine_run(rank, &op, DP_WORK_LARGE);
    expect(rank, &op, expected);
    engine_run(rank, &op, DP_WORK_SMALL); /* and so does everything after it */
    expect(rank, &op, expected);
}

static void nccl_an_operation_that_lasts_too_long_ends(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);
    expectation_t expected = {DP_ERR_TIMEOUT, "nccl: allreduce 2 runs for longer than 1000 ms", 1};

    (void)state;
    assert_int_equal(nccl_world_run(&world, break_down, &expected), 0);
    assert_int_equal(nccl_double_aborted(), 3);
}

static void nccl_a_lost_peer_is_told(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);
    /* between the two a call may be named, if the launch thread found it before the watcher did */
    expectation_t expected = {DP_ERR_PEER_LOST, "rank 0: nccl: allreduce 2: *remote process exited",
                              0};

    (void)state;
    nccl_double_fault(NCCL_FAULT_ASYNC, 2);
    assert_int_equal(nccl_world_run(&world, break_down, &expected), 0);
}

static void nccl_a_refused_call_is_told(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);
    expectation_t expected = {DP_ERR_INVALID, "rank 0: nccl: allreduce 2: reduce_pieces", 0};

    (void)state;
    nccl_double_fault(NCCL_FAULT_CALL, 2);
    assert_int_equal(nccl_world_run(&world, break_down, &expected), 0);
}

static void *abort_soon(void *argument)
{
    engine_rank_t *rank = argument;

    usleep(50000);
    rank->engine->ops->abort(rank->engine, DP_ERR_PEER_LOST, "rank 0 was lost, says the test");
    return NULL;
}

/* On the device, or still in the launch thread: counts, ranks that are not connected yet, and a
 * group's communicator. */
typedef enum place { ON_DEVICE, AMONG_COUNTS, UNCONNECTED, BEFORE_A_GROUP } place_t;

static void be_aborted(engine_rank_t *rank, void *user)
{
    const place_t place = *(const place_t *)user;
    const expectation_t expected = {DP_ERR_PEER_LOST, "rank 0 was lost, says the test", 0};
    const int ranks[] = {1, 2};
    const dp_engine_members_t members = {
        .uid = 1, .group_index = 1, .ranks = ranks, .count = 2, .name = "pair"};
    const size_t count = 1;
    float number = 1.0f;
    float numbers[3];
    dp_engine_exchange_t exchange = {
        .in = &number, .send_counts = &count, .out = numbers, .capacity = 3};
    dp_engine_group_t *group = NULL;
    dp_engine_piece_t piece;
    dp_engine_op_t op;
    dp_error_t error = {DP_OK, ""};
    pthread_t thread;

    if (place != UNCONNECTED) connect(rank);
    if (rank->rank == 0) {
        usleep(300000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    if (place == BEFORE_A_GROUP) {
        nccl_double_fault(NCCL_FAULT_INIT, 1);
        engine_check(
            rank, rank->engine->ops->group_create(rank->engine, &members, &group, &error) == DP_OK,
            "group_create: %s", error.text);
    }
    allreduce(rank, group, &op, &piece);
    if (place == AMONG_COUNTS) {
        op = (dp_engine_op_t){
            .collective = DP_COLLECTIVE_ALLGATHERV, .dtype = DP_F32, .exchange = &exchange};
    }
    if (pthread_create(&thread, NULL, abort_soon, rank) != 0) abort();
    engine_run(rank, &op, DP_WORK_LARGE);
    pthread_join(thread, NULL);
    expect(rank, &op, &expected);
    engine_check(rank,
                 rank->engine->ops->group_create(rank->engine, &members, &group, &error) != DP_OK,
                 "a group was made after the end");
    rank->engine->ops->group_destroy(rank->engine, group);
}

static void nccl_an_abort_ends_every_wait(void **state)
{
    for (place_t place = ON_DEVICE; place <= BEFORE_A_GROUP; place++) {
        nccl_world_t world = NCCL_WORLD(3);

        assert_int_equal(begin(state), 0);
        assert_int_equal(nccl_world_run(&world, be_aborted, &place), 0);
        /* the group's may not even have been begun when the abort comes */
        assert_in_range(nccl_double_aborted(), 3, place == BEFORE_A_GROUP ? 5 : 3);
        assert_int_equal(end(state), 0);
    }
}

/* A group's operation hangs: its communicator and the world's are aborted. */
static void hang_in_group(engine_rank_t *rank, void *user)
{
    const expectation_t expected = {DP_ERR_TIMEOUT, "allreduce 2 of group 'both' runs for longer",
                                    0};
    const int ranks[] = {0, 1};
    const dp_engine_members_t members = {
        .uid = 7, .group_index = 3, .ranks = ranks, .count = 2, .name = "both"};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    dp_error_t error = {DP_OK, ""};
    dp_engine_piece_t piece;
    dp_engine_op_t op;

    (void)user;
    if (rank->engine->ops->group_create(rank->engine, &members, &barrier.group, &error) != DP_OK) {
        engine_check(rank, 0, "group_create: %s", error.text);
        return;
    }
    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
    limit_operations(rank, 1000 * MS);
    nccl_double_fault(NCCL_FAULT_HANG, 1);
    allreduce(rank, barrier.group, &op, &piece);
    engine_run(rank, &op, DP_WORK_SMALL);
    expect(rank, &op, &expected);
}

static void nccl_a_hang_in_a_group_names_it(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);

    (void)state;
    assert_int_equal(nccl_world_run(&world, hang_in_group, NULL), 0);
    assert_int_equal(nccl_double_aborted(), 4);
}

/* The world's operation spins on the device while NCCL still says that it is in progress. The group
 * cannot end before it: its memory waits for the whole device. */
static void hang_in_progress(engine_rank_t *rank, void *user)
{
    const expectation_t expected = {DP_ERR_PEER_LOST, "rank 0 was lost, says the test", 0};
    const int ranks[] = {0, 1};
    const dp_engine_members_t members = {
        .uid = 7, .group_index = 3, .ranks = ranks, .count = 2, .name = "both"};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    dp_error_t error = {DP_OK, ""};
    dp_engine_piece_t piece;
    dp_engine_op_t op;
    pthread_t thread;

    (void)user;
    connect(rank);
    if (rank->engine->ops->group_create(rank->engine, &members, &barrier.group, &error) != DP_OK) {
        engine_check(rank, 0, "group_create: %s", error.text);
        return;
    }
    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
    if (rank->rank == 0) {
        usleep(300000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    nccl_double_fault(NCCL_FAULT_LATE, 1);
    allreduce(rank, NULL, &op, &piece);
    if (pthread_create(&thread, NULL, abort_soon, rank) != 0) abort();
    engine_run(rank, &op, DP_WORK_SMALL);
    pthread_join(thread, NULL);
    expect(rank, &op, &expected);
}

static void nccl_communicators_are_aborted_at_a_time(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);

    (void)state;
    assert_int_equal(nccl_world_run(&world, hang_in_progress, NULL), 0);
    assert_int_equal(nccl_double_aborted(), 4);
}

/* Somebody frees memory while an operation hangs, and CUDA answers no question until that is over,
 * which it never is: the limit counts all the same. */
typedef struct freeing {
    gate_t gate;
    void *memory;
} freeing_t;

static void *free_memory(void *argument)
{
    cudaFree(((freeing_t *)argument)->memory);
    return NULL;
}

static void *open_after_abort(void *argument)
{
    while (nccl_double_aborted() == 0)
        usleep(1000);
    gate_open(argument);
    return NULL;
}

static void hang_while_freeing(engine_rank_t *rank, void *user)
{
    const expectation_t expected = {DP_ERR_TIMEOUT, "allreduce 2 runs for longer than 200 ms", 0};
    pthread_t freer, opener;
    freeing_t freeing;
    cudaStream_t stream;
    dp_engine_piece_t piece;
    dp_engine_op_t op;

    (void)user;
    connect(rank);
    limit_operations(rank, 200 * MS);
    allreduce(rank, NULL, &op, &piece);
    gate_init(&freeing.gate);
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&freeing.memory, 64) != cudaSuccess ||
        cudaLaunchHostFunc(stream, gate_pass, &freeing.gate) != cudaSuccess)
        abort();
    nccl_double_fault(NCCL_FAULT_HANG, 1);
    if (pthread_create(&freer, NULL, free_memory, &freeing) != 0) abort();
    if (pthread_create(&opener, NULL, open_after_abort, &freeing.gate) != 0) abort();
    while (!cuda_double_is_freeing(0))
        usleep(1000);
    engine_run(rank, &op, DP_WORK_SMALL);
    expect(rank, &op, &expected);
    pthread_join(freer, NULL);
    pthread_join(opener, NULL);
    cudaStreamDestroy(stream);
}

static void nccl_the_limit_needs_no_answer_of_cuda(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);

    (void)state;
    assert_int_equal(nccl_world_run(&world, hang_while_freeing, NULL), 0);
}

/* An exchange waits for its turn as long as an earlier operation may take. */
static void exchange_behind(engine_rank_t *rank, void *user)
{
    const size_t count = 1;
    float number = (float)rank->rank;
    float *memory = engine_memory(rank, 4 * sizeof(*memory));
    dp_engine_exchange_t exchange = {
        .in = memory, .send_counts = &count, .out = memory + 1, .capacity = 3};
    dp_engine_piece_t piece;
    dp_engine_op_t ops[2];
    pthread_t opener;
    gate_t gate;

    connect(rank);
    limit_operations(rank, 1000 * MS);
    memory[0] = number;
    allreduce(rank, NULL, &ops[0], &piece);
    ops[1] = (dp_engine_op_t){
        .collective = DP_COLLECTIVE_ALLGATHERV, .dtype = DP_F32, .exchange = &exchange};
    gate_init(&gate);
    gate.opens_ns = *(const uint64_t *)user; /* the same moment on all ranks */
    if (cudaLaunchHostFunc(rank->device->ops->stream_native(rank->stream), gate_pass, &gate) !=
        cudaSuccess)
        abort();
    if (pthread_create(&opener, NULL, gate_open_in_time, &gate) != 0) abort();
    nccl_run_all(rank, ops, 2, DP_WORK_SMALL);
    pthread_join(opener, NULL);
    engine_check(rank, ops[0].status == DP_OK, "%s", ops[0].text);
    engine_check(rank, ops[1].status == DP_OK, "%s", ops[1].text);
    engine_check(rank, exchange.received == (size_t)rank->size, "%zu came", exchange.received);
}

static void nccl_an_exchange_may_wait_for_its_turn(void **state)
{
    nccl_world_t world = NCCL_WORLD(2);
    uint64_t opens_ns = dp_now_ns() + 2500 * MS;

    (void)state;
    assert_int_equal(nccl_world_run(&world, exchange_behind, &opens_ns), 0);
}

/* ---- The keeper ----------------------------------------------------------------------------- */

/* Keeps the keeper from ending a communicator for a while: it forgets memory under this lock. */
static void *hold_memory_lock(void *argument)
{
    dp_nccl_engine_t *engine = argument;

    pthread_mutex_lock(&engine->memory.lock);
    sem_post(&keeper_is_held);
    usleep(300000);
    pthread_mutex_unlock(&engine->memory.lock);
    return NULL;
}

static dp_engine_group_t *make_group(engine_rank_t *rank, uint32_t uid, const int *ranks, int count)
{
    const dp_engine_members_t members = {
        .uid = uid, .group_index = uid, .ranks = ranks, .count = count, .name = "some"};
    dp_engine_group_t *group = NULL;
    dp_error_t error = {DP_OK, ""};

    engine_check(rank,
                 rank->engine->ops->group_create(rank->engine, &members, &group, &error) == DP_OK,
                 "group_create: %s", error.text);
    return group;
}

/*
 *     rank 0: end A   make C   send in C to 1   allreduce in B
 *     rank 1: end A   make C   receive in C
 *     rank 2: end A   make C                    allreduce in B     its keeper is late with "end A"
 *
 * Rank 0 waits until rank 2's keeper has made C. So rank 2 must not wait in B for rank 0, in the
 * keeper's way, before its keeper is through.
 */
static void operate_behind_the_keeper(engine_rank_t *rank, void *user)
{
    static const int all[] = {0, 1, 2}, pair[] = {0, 2};
    const dp_engine_ops_t *ops = rank->engine->ops;
    float *memory = engine_memory(rank, 2 * sizeof(*memory));
    const size_t count = 1;
    dp_engine_exchange_t exchange = {
        .in = memory, .send_counts = &count, .out = memory + 1, .capacity = 1};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    dp_engine_op_t send = {
        .collective = DP_COLLECTIVE_SEND, .dtype = DP_F32, .peer = 1, .exchange = &exchange};
    dp_engine_group_t *b = NULL;
    dp_engine_op_t sum;
    dp_engine_piece_t piece;
    pthread_t holder;

    (void)user;
    barrier.group = make_group(rank, 1, all, 3);
    if (rank->rank != 1) b = make_group(rank, 2, pair, 2);
    allreduce(rank, b, &sum, &piece);
    engine_run(rank, &barrier, DP_WORK_SMALL);
    if (rank->rank == 2) {
        if (pthread_create(&holder, NULL, hold_memory_lock, rank->engine) != 0) abort();
        sem_wait(&keeper_is_held);
    }
    ops->group_destroy(rank->engine, barrier.group);
    send.group = make_group(rank, 3, all, 3);
    if (rank->rank != 2) engine_run(rank, &send, DP_WORK_SMALL);
    if (rank->rank != 1) engine_run(rank, &sum, DP_WORK_SMALL);
    if (rank->rank == 2) pthread_join(holder, NULL);
    engine_check(rank, rank->rank == 2 || send.status == DP_OK, "send: %s", send.text);
    engine_check(rank, rank->rank == 1 || sum.status == DP_OK, "allreduce: %s", sum.text);
}

static void nccl_operations_stay_behind_the_keeper(void **state)
{
    nccl_world_t world = NCCL_WORLD(3);

    (void)state;
    world.limit_ns = world.start_ns = 10000 * MS;
    assert_int_equal(sem_init(&keeper_is_held, 0, 0), 0);
    assert_int_equal(nccl_world_run(&world, operate_behind_the_keeper, NULL), 0);
    sem_destroy(&keeper_is_held);
}

/* ---- An abort that hangs -------------------------------------------------------------------- */

static void hang(engine_rank_t *rank, void *user)
{
    dp_engine_piece_t piece;
    dp_engine_op_t op;

    (void)user;
    allreduce(rank, NULL, &op, &piece);
    limit_operations(rank, 100 * MS);
    engine_run(rank, &op, DP_WORK_SMALL);
}

/* In a process of its own, which must not survive it. */
static int hang_process(int to)
{
    nccl_world_t world = NCCL_WORLD(1);

    dup2(to, STDERR_FILENO);
    cuda_double_reset();
    nccl_double_reset();
    nccl_double_fault(NCCL_FAULT_HANG, 1);
    nccl_double_fault(NCCL_FAULT_ABORT, 1);
    world.abort_ns = 200 * MS;
    nccl_world_run(&world, hang, NULL);
    return 0;
}

static void nccl_an_abort_that_hangs_ends_the_process(void **state)
{
    char text[2000] = "";
    size_t length = 0;
    ssize_t got;
    int status = 0;
    int pipes[2];
    pid_t child;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(hang_process(pipes[1]));
    close(pipes[1]);
    while (length < sizeof(text) - 1 &&
           (got = read(pipes[0], text + length, sizeof(text) - 1 - length)) > 0)
        length += (size_t)got;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 70);
    assert_non_null(strstr(text, "communicators still hang 200 ms after the abort"));
    assert_non_null(strstr(text, "aborted because: rank 0: nccl: allreduce 1 runs for longer"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        /* first: it forks, and no threads of the doubles are there yet */
        cmocka_unit_test(nccl_an_abort_that_hangs_ends_the_process),
        cmocka_unit_test_setup_teardown(nccl_reductions_equal_the_reference, begin, end),
        cmocka_unit_test_setup_teardown(nccl_moves_arrive, begin, end),
        cmocka_unit_test_setup_teardown(nccl_rows_are_scattered, begin, end),
        cmocka_unit_test_setup_teardown(nccl_reduce_has_a_root_per_piece, begin, end),
        cmocka_unit_test_setup_teardown(nccl_outputs_may_be_unwanted, begin, end),
        cmocka_unit_test_setup_teardown(nccl_blocks_go_from_rank_to_rank, begin, end),
        cmocka_unit_test_setup_teardown(nccl_large_blocks_arrive, begin, end),
        cmocka_unit_test_setup_teardown(nccl_groups_come_and_go, begin, end),
        cmocka_unit_test_setup_teardown(nccl_types_it_lacks_are_reduced_among_many, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_nan_wins, begin, end),
        cmocka_unit_test_setup_teardown(nccl_operations_follow_one_another, begin, end),
        cmocka_unit_test_setup_teardown(nccl_memory_is_registered, begin, end),
        cmocka_unit_test_setup_teardown(nccl_memory_works_unregistered, begin, end),
        cmocka_unit_test_setup_teardown(nccl_an_older_library_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_library_that_is_old_enough_will_do, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_start_in_progress_for_ever_ends, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_rank_may_load_for_longer_than_ranks_take_to_meet,
                                        begin, end),
        cmocka_unit_test_setup_teardown(nccl_several_ranks_want_an_order_of_kernels, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_communicator_that_fails_is_told, begin, end),
        cmocka_unit_test_setup_teardown(nccl_starts_whole_or_not_at_all, begin, end),
        cmocka_unit_test_setup_teardown(nccl_an_operation_that_lasts_too_long_ends, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_lost_peer_is_told, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_refused_call_is_told, begin, end),
        cmocka_unit_test_setup_teardown(nccl_an_abort_ends_every_wait, begin, end),
        cmocka_unit_test_setup_teardown(nccl_a_hang_in_a_group_names_it, begin, end),
        cmocka_unit_test_setup_teardown(nccl_communicators_are_aborted_at_a_time, begin, end),
        cmocka_unit_test_setup_teardown(nccl_the_limit_needs_no_answer_of_cuda, begin, end),
        cmocka_unit_test_setup_teardown(nccl_an_exchange_may_wait_for_its_turn, begin, end),
        cmocka_unit_test_setup_teardown(nccl_operations_stay_behind_the_keeper, begin, end),
    };

    if (argc > 1) ranks_max = atoi(argv[1]);
    if (argc > 2) cmocka_set_skip_filter(argv[2]); /* simulated kernels take long */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
