/*
 * test_cuda_pipeline.c - whole pipelines over a fake engine on the CUDA device, and what an
 * optimizer queued behind a gradient sees when the job is aborted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runtime/device/cuda.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"
#include "tests/unit/pipeline_world.h"

static void make_device(int rank, dp_device_t **device)
{
    const dp_device_options_t options = {.local_rank = rank, .local_size = world_ranks_max};
    dp_error_t error = {DP_OK, ""};

    assert_int_equal(cudaSetDevice(rank), cudaSuccess); /* one GPU each, as processes have it */
    if (dp_device_cuda_create(&options, NULL, device, &error) != DP_OK) fail_msg("%s", error.text);
}

static dp_device_t *device_of_launches; /* for its ops; one table for all devices */

static dp_status_t launch(dp_stream_t *stream, dp_work_fn fn, void *argument)
{
    cudaStream_t native = device_of_launches->ops->stream_native(stream);

    return cudaLaunchHostFunc(native, fn, argument) == cudaSuccess ? DP_OK : DP_ERR_SYSTEM;
}

static const world_maker_t maker = {make_device, launch};

static void open_world(world_t *world, int ranks, size_t fusion_bytes, int buffers, unsigned jitter)
{
    cuda_double_reset();
    cuda_double_set_devices(world_ranks_max);
    cuda_double_set_jitter(jitter);
    world_init_device(world, ranks, fusion_bytes, buffers, &maker);
    device_of_launches = world->rank[0].device;
}

static void close_world(world_t *world)
{
    world_fini(world);
    cuda_double_set_jitter(0);
    assert_int_equal(cuda_double_live(), 0);
}

static void any_operations_give_the_right_results(void **unused)
{
    (void)unused;
    for (int round = 0; round < 3; round++) {
        world_t world;

        open_world(&world, 1 + round, round == 2 ? 4096 : 65536, 1 + round, (unsigned)round);
        world_run_random(&world, 60, (uint64_t)round + 41, 1);
        close_world(&world);
    }
}

/* ---- Lanes ---------------------------------------------------------------------------------- */

static void CUDART_CB gate_pass(void *argument)
{
    while (sem_wait(argument) != 0) {
    }
}

static void wait_for(world_t *world, const world_op_t *op)
{
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->ranks; r++) {
        while (op->done_count[r] == 0)
            pthread_cond_wait(&world->change, &world->lock);
    }
    pthread_mutex_unlock(&world->lock);
}

/* Rank 1's gradient is not there yet. Gathers that were launched behind its reduction are reported
 * as done all the same: neither streams nor the completion thread make them wait. */
static void gathers_pass_a_reduction_that_waits(void **unused)
{
    enum { gathers = 6 };
    world_op_t warm = {.collective = DP_COLLECTIVE_ALLGATHER, .dtype = DP_I32, .count = 10};

    (void)unused;
    for (int in_place = 0; in_place < 2; in_place++) {
        world_op_t sum = {.dtype = DP_F32, .count = 5000, .in_place = in_place};
        world_op_t ops[gathers];
        cudaStream_t native[2];
        dp_stream_t *stream[2];
        world_t world;
        sem_t gate;

        sem_init(&gate, 0, 0);
        open_world(&world, 2, 65536, 3, 0);
        op_make(&world, &warm, 1);
        world_launch(&world, &warm, 1);
        op_make(&world, &sum, 2);
        for (int r = 0; r < 2; r++) {
            dp_device_t *device = world.rank[r].device;

            assert_int_equal(cudaSetDevice(r), cudaSuccess);
            assert_int_equal(cudaStreamCreate(&native[r]), cudaSuccess);
            assert_int_equal(device->ops->stream_adopt(device, (void *)native[r], &stream[r]),
                             DP_OK);
            assert_int_equal(device->ops->event_create(device, &sum.ready[r]), DP_OK);
            if (r == 1)
                assert_int_equal(cudaLaunchHostFunc(native[r], gate_pass, &gate), cudaSuccess);
            assert_int_equal(device->ops->event_record(sum.ready[r], stream[r]), DP_OK);
        }
        world_launch(&world, &sum, 1);
        for (int i = 0; i < gathers; i++) {
            ops[i] = (world_op_t){.collective =
                                      i % 2 ? DP_COLLECTIVE_BROADCAST : DP_COLLECTIVE_ALLGATHER,
                                  .dtype = DP_I32,
                                  .count = 700,
                                  .in_place = i % 3 == 0};
            op_make(&world, &ops[i], (uint64_t)i);
            world_launch(&world, &ops[i], 1);
            wait_for(&world, &ops[i]);
        }
        assert_int_equal(sum.done_count[0], 0);
        sem_post(&gate);
        world_wait(&world);
        op_check(&world, &warm, 0.0);
        op_check(&world, &sum, 1e-6);
        for (int i = 0; i < gathers; i++) {
            op_check(&world, &ops[i], 0.0);
            op_free(&world, &ops[i]);
        }
        for (int r = 0; r < 2; r++) {
            world.rank[r].device->ops->event_destroy(sum.ready[r]);
            world.rank[r].device->ops->stream_destroy(stream[r]);
            assert_int_equal(cudaStreamDestroy(native[r]), cudaSuccess);
        }
        op_free(&world, &warm);
        op_free(&world, &sum);
        warm = (world_op_t){.collective = DP_COLLECTIVE_ALLGATHER, .dtype = DP_I32, .count = 10};
        close_world(&world);
        sem_destroy(&gate);
    }
}

/* ---- An optimizer --------------------------------------------------------------------------- */

enum { steps = 6, elements = 5000 };

/* A kernel of the program, as it would be queued behind dp_stream_wait(). */
typedef struct optimizer {
    const uint32_t *skip;
    const float *gradient; /* what all ranks give is 1, so a sum is the number of ranks */
    float expected;
    _Atomic int ran, skipped, half_reduced;
} optimizer_t;

static void CUDART_CB step(void *argument)
{
    optimizer_t *optimizer = argument;

    if (__atomic_load_n(optimizer->skip, __ATOMIC_SEQ_CST) != 0) {
        atomic_fetch_add(&optimizer->skipped, 1);
        return;
    }
    for (size_t i = 0; i < elements; i++) {
        if (optimizer->gradient[i] != optimizer->expected) {
            atomic_fetch_add(&optimizer->half_reduced, 1);
            return;
        }
    }
    atomic_fetch_add(&optimizer->ran, 1);
}

typedef struct rig {
    world_t world;
    world_op_t ops[steps];
    optimizer_t optimizers[2][steps];
    cudaStream_t native[2];
    dp_stream_t *stream[2];
} rig_t;

static void queue_step(rig_t *rig, int rank, int s)
{
    const dp_device_ops_t *device = rig->world.rank[rank].device->ops;
    optimizer_t *optimizer = &rig->optimizers[rank][s];

    world_wait_issued(&rig->world, rank, &rig->ops[s]);
    assert_int_equal(device->stream_wait(rig->stream[rank], rig->ops[s].done_event[rank]), DP_OK);
    *optimizer = (optimizer_t){.skip = device->skip_flag(rig->world.rank[rank].device),
                               .gradient = rig->ops[s].tensors[rank][0].out,
                               .expected = 2.0f};
    assert_int_equal(cudaLaunchHostFunc(rig->native[rank], step, optimizer), cudaSuccess);
}

static void make_op(rig_t *rig, int s, int in_place)
{
    world_op_t *op = &rig->ops[s];

    *op = (world_op_t){.collective = DP_COLLECTIVE_ALLREDUCE,
                       .dtype = DP_F32,
                       .reduce = DP_SUM,
                       .count = elements,
                       .in_place = in_place,
                       .is_same = in_place};
    op_make(&rig->world, op, (uint64_t)s + 1);
    for (int r = 0; r < 2; r++) {
        dp_device_t *device = rig->world.rank[r].device;
        float *in = (float *)(uintptr_t)op->tensors[r][0].in;

        assert_int_equal(device->ops->event_create(device, &op->done_event[r]), DP_OK);
        for (size_t i = 0; i < elements; i++)
            in[i] = 1.0f;
    }
}

/*
 * Rank 1 never launches the last steps, so rank 0 is held up in them with its optimizer queued
 * behind; then the job is aborted, which is what lets that stream go on. `reason` is given by the
 * pipeline's abort, or by an operation that the engine itself fails.
 */
static void run_rig(rig_t *rig, int in_place, int engine_fails, unsigned jitter)
{
    world_t *world = &rig->world;
    const int shared = engine_fails ? steps : steps / 2;

    memset(rig, 0, sizeof(*rig));
    open_world(world, 2, 8192, 3, jitter);
    if (engine_fails) fake_room_fail(world->room, steps, DP_ERR_SYSTEM, "the wire is cut");
    for (int r = 0; r < 2; r++) {
        assert_int_equal(cudaSetDevice(r), cudaSuccess);
        dp_device_t *device = world->rank[r].device;

        assert_int_equal(cudaStreamCreateWithFlags(&rig->native[r], cudaStreamNonBlocking),
                         cudaSuccess);
        assert_int_equal(device->ops->stream_adopt(device, rig->native[r], &rig->stream[r]), DP_OK);
    }
    for (int s = 0; s < steps; s++)
        make_op(rig, s, in_place);
    for (int s = 0; s < steps; s++) {
        for (int r = 0; r < 2; r++) {
            if (r == 1 && s >= shared) continue;
            world_launch_rank(world, r, &rig->ops[s], 1, (uint64_t)s + 1);
            queue_step(rig, r, s);
        }
    }
    if (!engine_fails) {
        usleep(jitter * 300); /* somewhere in between, any moment must do */
        dp_pipeline_abort(world->rank[0].pipeline, DP_ERR_ABORTED, "on purpose");
        dp_pipeline_abort(world->rank[1].pipeline, DP_ERR_ABORTED, "on purpose");
    }
    world_wait(world);
    for (int r = 0; r < 2; r++)
        assert_int_equal(cudaStreamSynchronize(rig->native[r]), cudaSuccess);
}

static void end_rig(rig_t *rig)
{
    for (int r = 0; r < 2; r++) {
        const dp_device_ops_t *device = rig->world.rank[r].device->ops;

        device->stream_destroy(rig->stream[r]);
        assert_int_equal(cudaStreamDestroy(rig->native[r]), cudaSuccess);
        for (int s = 0; s < steps; s++) {
            device->event_destroy(rig->ops[s].done_event[r]);
            rig->ops[s].done_event[r] = NULL;
        }
    }
    for (int s = 0; s < steps; s++)
        op_free(&rig->world, &rig->ops[s]);
    close_world(&rig->world);
}

static void no_optimizer_step_consumes_a_half_reduced_gradient(void **unused)
{
    rig_t *rig = malloc(sizeof(*rig));

    (void)unused;
    for (int round = 0; round < 8; round++) {
        const int engine_fails = round / 2 % 2;
        int skipped = 0;

        run_rig(rig, round % 2, engine_fails, (unsigned)round);
        for (int r = 0; r < 2; r++) {
            for (int s = 0; s < steps; s++) {
                assert_int_equal(atomic_load(&rig->optimizers[r][s].half_reduced), 0);
                skipped += atomic_load(&rig->optimizers[r][s].skipped);
            }
        }
        assert_true(skipped > 0); /* the last step at least was never reduced */
        end_rig(rig);
    }
    free(rig);
}

/* A device that fails by itself ends the pipeline, with its words, on the spot. */
static void a_broken_device_fails_what_is_under_way(void **unused)
{
    world_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .reduce = DP_SUM, .count = 100};
    world_t world;

    (void)unused;
    open_world(&world, 1, 65536, 2, 0);
    op_make(&world, &op, 3);
    cuda_double_fail("launch", 1, cudaErrorLaunchFailure);
    world_launch(&world, &op, 1);
    world_wait(&world);
    assert_int_not_equal(op.status[0], DP_OK);
    assert_int_equal(*world.rank[0].device->ops->skip_flag(world.rank[0].device), 1);
    op_free(&world, &op);
    close_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_operations_give_the_right_results),
        cmocka_unit_test(gathers_pass_a_reduction_that_waits),
        cmocka_unit_test(no_optimizer_step_consumes_a_half_reduced_gradient),
        cmocka_unit_test(a_broken_device_fails_what_is_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
