/*
 * test_pipeline.c - what goes through the data plane comes out right, once, whatever happens.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/kernel_data.h"
#include "tests/unit/pipeline_world.h"
#include "tests/unit/sanitizer.h"

static void run_and_check(world_t *world, world_op_t *ops, size_t count, size_t per_launch,
                          double tolerance)
{
    uint64_t before = world->sequence;
    size_t launched = 0;

    for (size_t i = 0; i < count; i++)
        op_make(world, &ops[i], before * 1000 + i);
    while (launched < count) {
        size_t n = dp_min(per_launch, count - launched);

        world_launch(world, ops + launched, n);
        launched += n;
    }
    world_wait(world);
    for (size_t i = 0; i < count; i++) {
        op_check(world, &ops[i], tolerance);
        op_free(world, &ops[i]);
    }
}

static void pipeline_reduces_every_type_and_operation(void **unused)
{
    enum { count = DP_DTYPE_COUNT * DP_REDUCE_COUNT };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            memset(ops, 0, count * sizeof(*ops));
            world_init(&world, 3, compresses, 200000, 2);
            for (int i = 0; i < count; i++) {
                ops[i] = (world_op_t){.dtype = (dp_dtype_t)(i % DP_DTYPE_COUNT),
                                      .reduce = (dp_reduce_t)(i / DP_DTYPE_COUNT),
                                      .count = i % 7 == 0 ? 50001 : (size_t)i * 13 + 1,
                                      .in_place = in_place,
                                      .is_same = i % 2};
            }
            run_and_check(&world, ops, count, 20, 0.0);
            world_fini(&world);
        }
    }
    free(ops);
}

/* A launch thread leaves them to the thread that is expected to wait, and carries them out itself
 * when none comes: one by one, so that it sleeps before the first, and rests before the next. */
static void pipeline_carries_out_launches_whose_waiter_does_not_come(void **unused)
{
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    world.is_awaited_soon = 1;
    for (int i = 0; i < 6; i++) {
        world_op_t op = {.dtype = DP_I32, .reduce = DP_SUM, .count = 50};

        if (i == 4) world.is_awaited_soon = 0; /* wakes it out of its rest */
        run_and_check(&world, &op, 1, 1, 0.0);
    }
    world_fini(&world);
}

static void pipeline_moves_every_collective(void **unused)
{
    enum { count = 48 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (int ranks = 1; ranks <= 4; ranks++) {
        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, ranks, 1, 150000, 3);
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.collective = (dp_collective_t)(i % 4),
                                  .dtype = i % 3 == 0 ? DP_F32 : (i % 3 == 1 ? DP_F16 : DP_U8),
                                  .reduce = DP_SUM,
                                  .root = i % ranks,
                                  .count = i % 5 == 0 ? 60000 : (size_t)i * 5 + 1,
                                  .tensor_count = 1 + (size_t)i % 3,
                                  .in_place = i / 16 % 2};
            if (i % 4 < 2) ops[i].is_same = i / 8 % 2;
        }
        run_and_check(&world, ops, count, 17, 0.0);
        world_fini(&world);
    }
    free(ops);
}

static void pipeline_scales_and_averages(void **unused)
{
    world_op_t ops[12];
    world_t world;

    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        memset(ops, 0, sizeof(ops));
        world_init(&world, 3, compresses, 100000, 3);
        for (int i = 0; i < 12; i++) {
            ops[i] = (world_op_t){.collective = i % 2 ? DP_COLLECTIVE_ALLREDUCE
                                                      : DP_COLLECTIVE_REDUCE_SCATTER,
                                  .dtype = (dp_dtype_t)(DP_F16 + i % 4),
                                  .reduce = i % 3 ? DP_AVERAGE : DP_SUM,
                                  .count = (size_t)i * 4000 + 3,
                                  .prescale = i == 5 ? 3.0 : 1.0,
                                  .postscale = i % 4 == 3 ? 0.1 : 2.0};
            /* Without compression in the engine only the rank's own row is in its figures. */
            if (!compresses) ops[i].collective = DP_COLLECTIVE_ALLREDUCE;
        }
        run_and_check(&world, ops, 12, 5, 0.0);
        world_fini(&world);
    }
}

static void pipeline_compresses_by_engine_or_by_cast(void **unused)
{
    world_op_t ops[8];
    world_t world;

    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        uint64_t compressed;

        memset(ops, 0, sizeof(ops));
        world_init(&world, 2, compresses, 100000, 3);
        for (int i = 0; i < 8; i++) {
            ops[i] = (world_op_t){.collective = i % 4 == 3 ? DP_COLLECTIVE_REDUCE_SCATTER
                                                           : DP_COLLECTIVE_ALLREDUCE,
                                  .dtype = DP_F32,
                                  .reduce = i % 2 ? DP_AVERAGE : DP_SUM,
                                  .wire = DP_WIRE_FP16,
                                  .last_absmax = 4.0f,
                                  .count = (size_t)i * 9000 + 10,
                                  .prescale = i == 2 ? 0.5 : 1.0,
                                  .is_same = i == 4};
            if (!compresses && i % 4 == 3) ops[i].collective = DP_COLLECTIVE_ALLREDUCE;
        }
        run_and_check(&world, ops, 8, 3, 0.004); /* sums below 4 in steps of 2^-9 */
        fake_engine_count(world.rank[0].engine, &compressed);
        assert_int_equal(compressed > 0, compresses);
        world_fini(&world);
    }
}

/* A tensor in the engine's memory is reduced there, unless only a fused buffer makes it smaller.
 */
static void pipeline_compresses_what_could_stay_in_place(void **unused)
{
    (void)unused;
    for (int compresses = 0; compresses < 2; compresses++) {
        world_op_t op = {.dtype = DP_F32,
                         .wire = DP_WIRE_FP16,
                         .last_absmax = 4.0f,
                         .count = 5000,
                         .in_place = 1,
                         .is_same = 1};
        dp_pipeline_stats_t stats;
        world_t world;

        world_init(&world, 2, compresses, 100000, 2);
        run_and_check(&world, &op, 1, 7, 0.004);
        dp_pipeline_stats(world.rank[0].pipeline, &stats);
        assert_int_equal(stats.bytes_packed, compresses ? 0 : 5000 * sizeof(float));
        world_fini(&world);
    }
}

static void pipeline_cast_reduce_scatter_gives_its_row(void **unused)
{
    world_op_t op = {.collective = DP_COLLECTIVE_REDUCE_SCATTER,
                     .dtype = DP_F32,
                     .wire = DP_WIRE_BF16,
                     .count = 20000};
    world_t world;

    (void)unused;
    world_init(&world, 2, 0, 100000, 2);
    op_make(&world, &op, 5);
    world_launch(&world, &op, 1);
    world_wait(&world);
    for (int r = 0; r < 2; r++) {
        for (size_t i = 0; i < op.count; i++) {
            double sum = (double)((float *)op.saved[0][0])[(size_t)r * op.count + i] +
                         (double)((float *)op.saved[1][0])[(size_t)r * op.count + i];

            assert_true(fabs(((float *)op.tensors[r][0].out)[i] - sum) <= 0.05);
        }
    }
    op_free(&world, &op);
    world_fini(&world);
}

static void pipeline_unknown_magnitude_travels_uncompressed(void **unused)
{
    world_op_t op = {.dtype = DP_F32, .wire = DP_WIRE_FP16, .last_absmax = -1.0f, .count = 100};
    uint64_t compressed;
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 1);
    run_and_check(&world, &op, 1, 1, 0.0);
    fake_engine_count(world.rank[1].engine, &compressed);
    assert_int_equal(compressed, 0);
    world_fini(&world);
}

static void pipeline_overflow_shows_in_the_figures(void **unused)
{
    world_op_t op = {.dtype = DP_F32, .count = 5000};
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 1);
    op_make(&world, &op, 1);
    ((float *)(uintptr_t)op.tensors[1][0].in)[4999] = INFINITY;
    world_launch(&world, &op, 1);
    world_wait(&world);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(op.done[r].tally.nonfinite, 1);
        assert_true(isinf(op.done[r].raw_absmax));
    }
    op_free(&world, &op);
    world_fini(&world);
}

static void pipeline_barriers_and_empty_tensors_complete(void **unused)
{
    world_op_t ops[4] = {{.collective = DP_COLLECTIVE_BARRIER},
                         {.dtype = DP_F32, .count = 0},
                         {.dtype = DP_F32, .count = 10},
                         {.dtype = DP_I8, .count = 0, .tensor_count = 3}};
    dp_pipeline_stats_t stats;
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 1);
    for (int i = 0; i < 4; i++)
        op_make(&world, &ops[i], (uint64_t)i);
    world_launch(&world, ops, 4);
    world_launch(&world, ops, 0);
    world_wait(&world);
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < 2; r++) {
            assert_int_equal(ops[i].status[r], DP_OK);
            assert_int_equal(ops[i].done_count[r], 1);
        }
        op_free(&world, &ops[i]);
    }
    assert_int_equal(fake_engine_count(world.rank[0].engine, NULL), 1);
    dp_pipeline_stats(world.rank[0].pipeline, &stats);
    assert_int_equal(stats.buckets, 1);
    assert_int_equal(stats.bytes_packed, 40);
    assert_int_equal(stats.bytes_wire, 10);
    assert_true(stats.transfer_ns > 0 && stats.cpu_ns > 0);
    world_fini(&world);
}

static void pipeline_check_names_what_was_written_in_flight(void **unused)
{
    world_op_t ops[3] = {{.dtype = DP_F32, .count = 100000, .is_checked = 1, .tensor_count = 2},
                         {.dtype = DP_F32, .count = 100, .is_checked = 2},
                         {.dtype = DP_F32, .count = 100, .is_checked = 1, .is_same = 1}};
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    for (int i = 0; i < 3; i++)
        op_make(&world, &ops[i], (uint64_t)i);
    world_launch(&world, ops, 3);
    world_wait(&world);
    op_check(&world, &ops[0], 0.0);
    op_check(&world, &ops[2], 0.0);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ops[1].status[r], DP_ERR_CHECK);
        assert_non_null(strstr(ops[1].text[r], "tensor wte was written while in flight"));
        assert_int_equal(ops[1].done_count[r], 1);
    }
    for (int i = 0; i < 3; i++)
        op_free(&world, &ops[i]);
    world_fini(&world);
}

static void pipeline_failed_bucket_fails_its_requests_only(void **unused)
{
    world_op_t ops[3] = {{.dtype = DP_F32, .count = 10},
                         {.dtype = DP_I32, .count = 10},
                         {.dtype = DP_F32, .count = 100000}};
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 100000, 2);
    fake_room_fail(world.room, 2, DP_ERR_PEER_LOST, "rank 1 is gone");
    for (int i = 0; i < 3; i++) {
        op_make(&world, &ops[i], (uint64_t)i);
        world_launch(&world, &ops[i], 1);
    }
    world_wait(&world);
    op_check(&world, &ops[0], 0.0);
    op_check(&world, &ops[2], 0.0);
    assert_int_equal(ops[1].status[0], DP_ERR_PEER_LOST);
    assert_string_equal(ops[1].text[0], "rank 1 is gone");
    assert_int_equal(ops[1].done_count[0], 1);
    for (int i = 0; i < 3; i++)
        op_free(&world, &ops[i]);
    world_fini(&world);
}

static void pipeline_abort_ends_running_and_queued(void **unused)
{
    enum { count = 40 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    world_t world;

    (void)unused;
    for (int round = 0; round < 6; round++) {
        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, 2, 1, 100000, 2);
        /* Rank 1 never launches, so rank 0 hangs in its first operation. */
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.dtype = DP_F32,
                                  .count = round % 2 ? 100 : 30000,
                                  .in_place = round == 4,
                                  .collective =
                                      i % 7 == 6 ? DP_COLLECTIVE_BARRIER : DP_COLLECTIVE_ALLREDUCE};
            op_make(&world, &ops[i], (uint64_t)i);
        }
        for (int i = 0; i < count; i += 10) {
            world_launch_rank(&world, 0, ops + i, 10, (uint64_t)i / 10 + 1);
        }
        if (round >= 2) nanosleep(&(struct timespec){0, 3000000}, NULL);
        assert_true(dp_pipeline_pending(world.rank[0].pipeline) > 0);
        dp_pipeline_abort(world.rank[0].pipeline, DP_ERR_STALLED, "the first reason");
        dp_pipeline_abort(world.rank[0].pipeline, DP_ERR_ABORTED, "the second reason");
        dp_pipeline_destroy(world.rank[0].pipeline);
        world.rank[0].pipeline = NULL;
        assert_int_equal(world.rank[0].launches_done, count / 10);
        for (int i = 0; i < count; i++) {
            int may_pass = ops[i].collective == DP_COLLECTIVE_BARRIER;

            assert_int_equal(ops[i].done_count[0], 1);
            if (!may_pass || ops[i].status[0] != DP_OK) {
                assert_int_equal(ops[i].status[0], DP_ERR_STALLED);
                assert_string_equal(ops[i].text[0], "the first reason");
            }
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
    free(ops);
}

static void pipeline_refused_operation_breaks_it(void **unused)
{
    world_op_t ops[3] = {{.dtype = DP_F32, .count = 300000},
                         {.dtype = DP_F32, .count = 10},
                         {.dtype = DP_F32, .count = 20}};
    world_t world;

    (void)unused;
    world_init(&world, 1, 1, 100000, 2);
    fake_engine_refuse(world.rank[0].engine);
    for (int i = 0; i < 3; i++) {
        op_make(&world, &ops[i], (uint64_t)i);
        world_launch(&world, &ops[i], 1);
    }
    world_wait(&world);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ops[i].done_count[0], 1);
        assert_int_equal(ops[i].status[0], DP_ERR_SYSTEM);
        assert_non_null(strstr(ops[i].text[0], "the data plane failed"));
        op_free(&world, &ops[i]);
    }
    world_fini(&world);
}

static void never_done(void *user, const dp_pipeline_done_t *done)
{
    (void)user;
    (void)done;
}

static void never_launched(void *user, uint64_t sequence)
{
    (void)user;
    (void)sequence;
}

static void pipeline_creation_survives_every_failed_allocation(void **unused)
{
    dp_config_t config = {.fusion_bytes = 100000, .fusion_buffers = 3};
    dp_pipeline_callbacks_t callbacks = {NULL, never_done, never_launched, NULL};
    fake_room_t *room = fake_room_create(1);
    dp_device_t *device;
    dp_engine_t *engine;
    int reached = 1;

    (void)unused;
    assert_int_equal(dp_device_host_create(0, NULL, &device), DP_OK);
    engine = fake_engine_create(room, device, 0, 1);
    for (long n = 1; reached; n++) {
        dp_pipeline_t *pipeline = NULL;
        dp_status_t status;

        fail_allocation(n);
        status =
            dp_pipeline_create(&config, 0, 1, device, engine, NULL, NULL, &callbacks, &pipeline);
        reached = fail_allocation_reached();
        assert_int_equal(status, reached ? DP_ERR_NO_MEMORY : DP_OK);
        dp_pipeline_destroy(pipeline);
        assert_true(n < 100);
    }
    engine->ops->destroy(engine);
    dp_device_destroy(device);
    fake_room_destroy(room);
}

/* Runs in the launch thread, where a barrier completes: what follows there fails to allocate. */
static void arm(void *user, const dp_pipeline_done_t *done)
{
    const world_op_t *op = done->request;

    if (op->collective == DP_COLLECTIVE_BARRIER) fail_allocation(*(long *)user);
}

static void pipeline_launch_survives_every_failed_allocation(void **unused)
{
    int failures = 0;

    (void)unused;
    for (long n = 1; n < 30; n++) {
        world_op_t ops[3] = {
            {.collective = DP_COLLECTIVE_BARRIER},
            {.dtype = DP_F32, .count = under_sanitizer ? 60000 : 300000, .tensor_count = 3},
            {.dtype = DP_I32, .count = 40000}};
        world_t world;
        int failed = 0;

        world_init(&world, 1, 1, 100000, 2);
        world.on_done = arm;
        world.user = &n;
        for (int i = 0; i < 3; i++)
            op_make(&world, &ops[i], (uint64_t)i);
        world_launch(&world, &ops[0], 1);
        world_launch(&world, &ops[1], 2);
        world_wait(&world);
        for (int i = 1; i < 3; i++) {
            assert_int_equal(ops[i].done_count[0], 1);
            if (ops[i].status[0] == DP_OK) {
                op_check(&world, &ops[i], 0.0);
                continue;
            }
            failed = 1;
            assert_int_equal(ops[i].status[0], DP_ERR_NO_MEMORY);
            assert_non_null(strstr(ops[i].text[0], "DP_ERR_NO_MEMORY"));
        }
        for (int i = 0; i < 3; i++)
            op_free(&world, &ops[i]);
        world_fini(&world);
        failures += failed;
    }
    assert_true(failures > 5);
}

static void pipeline_overlaps_many_launches(void **unused)
{
    enum { count = 300 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    uint64_t state = 11;
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, 70000, 3);
    for (int i = 0; i < count; i++) {
        ops[i] = (world_op_t){.dtype = DP_F32,
                              .reduce = DP_AVERAGE,
                              .count = kernel_random(&state) % (i % 4 ? 3000 : 60000),
                              .in_place = i % 11 == 0};
    }
    run_and_check(&world, ops, count, 7, 0.0);
    world_fini(&world);
    free(ops);
}

/* Creates a pipeline with a recorder, moves one tensor through a fused buffer and one in place. */
static void move_two_recorded(const char *dir)
{
    dp_config_t config = {.fusion_bytes = 100000, .fusion_buffers = 1};
    dp_pipeline_callbacks_t callbacks = {NULL, never_done, never_launched, NULL};
    fake_room_t *room = fake_room_create(1);
    static float values[300];
    const dp_pipeline_tensor_t tensor = {values, values, 300, DP_F32};
    dp_pipeline_t *pipeline;
    dp_device_t *device;
    dp_engine_t *engine;
    dp_trace_t *trace;
    dp_error_t error;

    assert_int_equal(dp_trace_create(dir, 0, 1, "here", 1 << 20, &trace, &error), DP_OK);
    assert_int_equal(dp_device_host_create(0, NULL, &device), DP_OK);
    engine = fake_engine_create(room, device, 0, 1);
    assert_int_equal(
        dp_pipeline_create(&config, 0, 1, device, engine, NULL, trace, &callbacks, &pipeline),
        DP_OK);
    for (int i = 0; i < 2; i++) {
        dp_pipeline_launch_t *launch;

        assert_int_equal(dp_pipeline_launch_take(pipeline, 1, &launch), DP_OK);
        launch->items[0] = (dp_pipeline_item_t){.name = i == 0 ? "wte" : "wpe",
                                                .prescale = 1.0,
                                                .postscale = 1.0,
                                                .in_place = i,
                                                .tensors = &tensor,
                                                .tensor_count = 1};
        launch->sequence = 7 + (uint64_t)i;
        dp_pipeline_submit(pipeline, launch, DP_PIPELINE_NO_PROGRESS);
    }
    dp_pipeline_destroy(pipeline);
    engine->ops->destroy(engine);
    dp_device_destroy(device);
    fake_room_destroy(room);
    dp_trace_destroy(trace, 1);
}

static void pipeline_records_its_stages(void **unused)
{
    char dir[] = "/tmp/dp-test-XXXXXX", path[64], name[64];
    int seen[2][DP_TRACE_KIND_COUNT] = {{0}}, counters = 0;
    dp_trace_file_t file;
    dp_error_t error;

    (void)unused;
    assert_non_null(mkdtemp(dir));
    move_two_recorded(dir);
    snprintf(path, sizeof(path), "%s/trace.0.dpt", dir);
    assert_int_equal(dp_trace_file_open(path, &file, &error), DP_OK);
    for (size_t i = 0; i < file.event_count; i++) {
        const dp_trace_record_t *record = &file.events[i].record;

        if (record->kind == DP_TRACE_COUNTER) {
            counters++;
            continue;
        }
        assert_true(record->bucket == 7 || record->bucket == 8);
        assert_int_equal(record->bytes, 1200);
        assert_int_equal(record->aux, 1);
        assert_string_equal(dp_trace_collective_name(record->id), "allreduce");
        dp_trace_file_name(&file, record->name, name, sizeof(name));
        assert_string_equal(name, record->bucket == 7 ? "wte" : "wpe");
        seen[record->bucket - 7][record->kind]++;
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seen[i][DP_TRACE_PACK], i == 0);
        assert_int_equal(seen[i][DP_TRACE_WIRE], 1);
        assert_int_equal(seen[i][DP_TRACE_UNPACK], i == 0);
    }
    assert_int_equal(counters, 6); /* bytes at both ends of both, fused buffers of the packed one */
    dp_trace_file_close(&file);
    remove(path);
    remove(dir);
}

static void recorded_collectives_have_the_engines_names(void **unused)
{
    (void)unused;
    for (uint64_t id = 1; id < DP_TRACE_COLLECTIVES; id++) {
        assert_string_equal(dp_trace_collective_name(id),
                            dp_collective_name((dp_collective_t)(id - 1)));
    }
    assert_int_equal(DP_TRACE_COLLECTIVES - 1, DP_COLLECTIVE_JOIN); /* from it on nothing travels */
    assert_string_equal(dp_trace_collective_name(UINT64_MAX), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipeline_reduces_every_type_and_operation),
        cmocka_unit_test(pipeline_moves_every_collective),
        cmocka_unit_test(pipeline_scales_and_averages),
        cmocka_unit_test(pipeline_compresses_by_engine_or_by_cast),
        cmocka_unit_test(pipeline_compresses_what_could_stay_in_place),
        cmocka_unit_test(pipeline_cast_reduce_scatter_gives_its_row),
        cmocka_unit_test(pipeline_unknown_magnitude_travels_uncompressed),
        cmocka_unit_test(pipeline_overflow_shows_in_the_figures),
        cmocka_unit_test(pipeline_barriers_and_empty_tensors_complete),
        cmocka_unit_test(pipeline_check_names_what_was_written_in_flight),
        cmocka_unit_test(pipeline_failed_bucket_fails_its_requests_only),
        cmocka_unit_test(pipeline_abort_ends_running_and_queued),
        cmocka_unit_test(pipeline_refused_operation_breaks_it),
        cmocka_unit_test(pipeline_creation_survives_every_failed_allocation),
        cmocka_unit_test(pipeline_launch_survives_every_failed_allocation),
        cmocka_unit_test(pipeline_overlaps_many_launches),
        cmocka_unit_test(pipeline_carries_out_launches_whose_waiter_does_not_come),
        cmocka_unit_test(pipeline_records_its_stages),
        cmocka_unit_test(recorded_collectives_have_the_engines_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
