/*
 * test_nccl_memory.c - memory that NCCL knows: where it is told of any, and while a group ends; and
 * fused buffers, of which it is told in as few calls as it can be. On simulated devices.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>
#include <semaphore.h>

#include "runtime/engine/nccl/nccl_internal.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/gpu/double/nccl.h"
#include "tests/unit/cases.h"
#include "tests/unit/nccl_world.h"

/* The keeper is held where a group has left but is still there; it goes on, and frees the group, as
 * soon as the allocating thread gives the engine's lock back. */
static struct {
    dp_nccl_engine_t *_Atomic engine;
    sem_t has_left, may_end;
    _Atomic int is_holding; /* the keeper is to be held */
} scene;
static _Thread_local int is_allocating;

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
    }
}

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
__attribute__((visibility("default"))) int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    const int code = __real_pthread_mutex_unlock(mutex);
    dp_nccl_engine_t *engine = scene.engine;

    if (engine == NULL) return code;
    if (!is_allocating && mutex == &engine->memory.lock && atomic_exchange(&scene.is_holding, 0)) {
        sem_post(&scene.has_left);
        await(&scene.may_end);
    } else if (is_allocating && mutex == &engine->lock) {
        is_allocating = 0;
        sem_post(&scene.may_end);
        pthread_mutex_lock(&engine->lock);
        while (engine->groups != NULL || engine->jobs.left > 0)
            pthread_cond_wait(&engine->change, &engine->lock);
        __real_pthread_mutex_unlock(&engine->lock);
    }
    return code;
}

static void allocate_while_a_group_ends(engine_rank_t *rank, void *user)
{
    static const int self[] = {0};
    const dp_engine_members_t members = {
        .group_index = 1, .uid = 1, .ranks = self, .count = 1, .name = "short"};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
    const dp_engine_ops_t *ops = rank->engine->ops;
    dp_error_t error = {DP_OK, ""};
    void *memory;

    (void)user;
    if (ops->group_create(rank->engine, &members, &barrier.group, &error) != DP_OK) {
        engine_check(rank, 0, "group: %s", error.text);
        return;
    }
    engine_run(rank, &barrier, DP_WORK_SMALL);
    engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
    sem_init(&scene.has_left, 0, 0);
    sem_init(&scene.may_end, 0, 0);
    atomic_store(&scene.is_holding, 1);
    scene.engine = dp_nccl_of(rank->engine);
    ops->group_destroy(rank->engine, barrier.group);
    await(&scene.has_left);
    is_allocating = 1;
    memory = engine_memory(rank, 4096);
    if (is_allocating) sem_post(&scene.may_end);
    is_allocating = 0;
    engine_run(rank, &(dp_engine_op_t){.collective = DP_COLLECTIVE_BARRIER}, DP_WORK_SMALL);
    scene.engine = NULL;
    ops->free(rank->engine, memory);
}

static void begin(void)
{
    cuda_double_reset();
    cuda_double_set_devices(NCCL_WORLD_RANKS);
    nccl_double_reset();
}

static void nccl_memory_passes_by_a_group_that_ends(void **state)
{
    nccl_world_t world = NCCL_WORLD(1);

    (void)state;
    begin();
    assert_int_equal(nccl_world_run(&world, allocate_while_a_group_ends, NULL), 0);
    assert_int_equal(nccl_double_live() + cuda_double_live(), 0);
}

/* NCCL refuses every registration, so a program's own fails where NCCL is asked for it. */
static void register_memory(engine_rank_t *rank, void *user)
{
    const int *is_told = user;
    dp_error_t error = {DP_OK, ""};
    void *memory = NULL;
    dp_status_t status;

    if (cudaSetDevice(rank->rank) != cudaSuccess || cudaMalloc(&memory, 4096) != cudaSuccess)
        abort();
    status = rank->engine->ops->adopt(rank->engine, memory, 4096, &error);
    engine_check(rank, (status != DP_OK) == *is_told, "register: %s", error.text);
    if (status == DP_OK) status = rank->engine->ops->disown(rank->engine, memory);
    cudaFree(memory);
}

static void nccl_before_2_32_registers_nothing_between_nodes(void **state)
{
    static const struct {
        int nodes, version, is_told;
    } cases[] = {{1, 22800, 1}, {2, 22800, 0}, {2, 23199, 0}, {2, 23200, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        nccl_world_t world = NCCL_WORLD(2);
        int is_told = cases[i].is_told;

        begin();
        world.world.nodes = cases[i].nodes;
        nccl_double_fault(NCCL_FAULT_VERSION, cases[i].version);
        nccl_double_fault(NCCL_FAULT_REGISTER, 1);
        assert_int_equal(nccl_world_run(&world, register_memory, &is_told), 0);
    }
}

/* Pieces of a fused buffer, one of them far away; each average is the divisor's. */
static void sum_packed(engine_rank_t *rank, void *user)
{
    enum { PIECES = 5 };
    static const size_t starts[PIECES] = {0, 16, 16, 64, 512};
    static const size_t counts[PIECES] = {10, 0, 33, 70, 7};
    int32_t *data = engine_memory(rank, 600 * sizeof(*data));
    dp_engine_piece_t pieces[PIECES];
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_I32,
                         .reduce = DP_AVERAGE,
                         .pieces = pieces,
                         .piece_count = PIECES,
                         .is_packed = *(const int *)user};

    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (dp_engine_piece_t){.in = data + starts[i],
                                        .out = data + starts[i],
                                        .count = counts[i],
                                        .prescale = 1.0,
                                        .postscale = 1.0};
        for (size_t k = 0; k < counts[i]; k++)
            data[starts[i] + k] = (int32_t)(starts[i] + k) + rank->rank;
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s", op.text);
    for (int i = 0; i < PIECES; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            const int32_t wanted = (int32_t)(starts[i] + k); /* 0.5 goes toward zero */

            engine_check(rank, data[starts[i] + k] == wanted, "piece %d, element %zu is %d", i, k,
                         data[starts[i] + k]);
        }
    }
    rank->engine->ops->free(rank->engine, data);
}

/* Two pieces of a fused buffer of two rows; each rank gets its row of the sum. */
static void scatter_packed(engine_rank_t *rank, void *user)
{
    enum { PIECES = 2, ROW = 64 };
    static const size_t starts[PIECES] = {0, 32}, counts[PIECES] = {10, 7};
    int32_t *data = engine_memory(rank, 2 * ROW * sizeof(*data));
    int32_t *own = data + rank->rank * ROW;
    dp_engine_piece_t pieces[PIECES];
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_REDUCE_SCATTER,
                         .dtype = DP_I32,
                         .reduce = DP_SUM,
                         .pieces = pieces,
                         .piece_count = PIECES,
                         .is_packed = *(const int *)user};

    for (int i = 0; i < 2 * ROW; i++)
        data[i] = i + rank->rank;
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (dp_engine_piece_t){.in = data + starts[i],
                                        .out = own + starts[i],
                                        .count = counts[i],
                                        .stride = ROW,
                                        .prescale = 1.0,
                                        .postscale = 1.0};
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s", op.text);
    for (int i = 0; i < PIECES; i++) {
        for (size_t k = starts[i]; k < starts[i] + counts[i]; k++) {
            const int32_t wanted = 2 * (rank->rank * ROW + (int32_t)k) + 1;

            engine_check(rank, own[k] == wanted, "piece %d, element %zu is %d", i, k, own[k]);
        }
    }
    rank->engine->ops->free(rank->engine, data);
}

static void nccl_neighbours_in_a_fused_buffer_are_one_call(void **state)
{
    static const struct {
        engine_body_t body;
        size_t calls[2]; /* of each rank: apart and packed */
    } cases[] = {{sum_packed, {4, 2}}, {scatter_packed, {4, 1}}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        nccl_world_t world = NCCL_WORLD(2);
        int is_packed = i % 2;
        size_t before;

        begin();
        before = nccl_double_operations();
        assert_int_equal(nccl_world_run(&world, cases[i / 2].body, &is_packed), 0);
        assert_int_equal(nccl_double_operations() - before, 2 * cases[i / 2].calls[is_packed]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_memory_passes_by_a_group_that_ends),
        cmocka_unit_test(nccl_before_2_32_registers_nothing_between_nodes),
        cmocka_unit_test(nccl_neighbours_in_a_fused_buffer_are_one_call)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
