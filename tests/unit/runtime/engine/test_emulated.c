/*
 * test_emulated.c - the emulated engine on the host: data arrives as alone in a world, the wire
 * takes the time of a ring.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/engine/emulated/emulated.h"
#include "tests/threads/threads.h"

typedef struct fixture {
    dp_bootstrap_t *bootstrap;
    dp_config_t config;
    dp_log_t log;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_engine_t *engine;
} fixture_t;

static void open_engine(fixture_t *f, int ranks, size_t bandwidth, uint64_t latency_ns)
{
    dp_error_t error = {DP_OK, ""};

    memset(f, 0, sizeof(*f));
    dp_config_defaults(&f->config);
    f->config.emulate_ranks = ranks;
    f->config.emulate_bandwidth = bandwidth;
    f->config.emulate_latency_ns = latency_ns;
    dp_log_init(&f->log, DP_LOG_ERROR, 0);
    assert_int_equal(threads_bootstrap(1, &f->bootstrap), DP_OK);
    assert_int_equal(dp_device_host_create(0, &f->log, &f->device), DP_OK);
    assert_int_equal(f->device->ops->stream_create(f->device, "wire", &f->stream), DP_OK);
    assert_int_equal(dp_engine_emulated_create(f->bootstrap, f->device, &f->config, &f->log, NULL,
                                               NULL, &f->engine, &error),
                     DP_OK);
}

static void close_engine(fixture_t *f)
{
    f->device->ops->stream_destroy(f->stream);
    dp_engine_destroy(f->engine);
    dp_device_destroy(f->device);
    dp_bootstrap_destroy(f->bootstrap);
}

static void run(fixture_t *f, dp_engine_op_t *op)
{
    dp_event_t *event;

    assert_int_equal(f->device->ops->event_create(f->device, &event), DP_OK);
    assert_int_equal(f->engine->ops->enqueue(f->engine, f->stream, DP_WORK_SMALL, op), DP_OK);
    assert_int_equal(f->device->ops->event_record(event, f->stream), DP_OK);
    f->device->ops->event_wait(event);
    f->device->ops->event_destroy(event);
}

/* 8 ranks, 1 GB/s, 10 us: the textbook's numbers. */
static void emulated_times_are_those_of_a_ring(void **state)
{
    const uint64_t gb = 1000000000;
    const uint64_t mb = 1000000;

    (void)state;
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_ALLREDUCE, 8, 8 * mb, gb, 10000), 14140000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_ALLGATHER, 8, mb, gb, 10000), 7070000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_REDUCE_SCATTER, 8, mb, gb, 10000), 7070000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_BROADCAST, 8, mb, gb, 10000), 1070000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_ALLTOALL, 8, 8 * mb, gb, 10000), 7070000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_SEND, 8, mb, gb, 10000), 1010000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_BARRIER, 8, 0, gb, 10000), 140000);
    assert_int_equal(dp_emulated_ns(DP_COLLECTIVE_ALLREDUCE, 1, mb, gb, 10000), 0);
}

static void emulated_data_arrives_no_sooner_than_by_wire(void **state)
{
    enum { COUNT = 250000 };
    fixture_t f;
    float *in;
    float *out = calloc(COUNT, sizeof(*out));
    void *memory = NULL;
    dp_engine_piece_t piece = {.out = out, .count = COUNT, .prescale = 2.0, .postscale = 0.25};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)state;
    open_engine(&f, 4, 100000000, 1000000);
    assert_int_equal(f.engine->ops->alloc(f.engine, COUNT * sizeof(*in), &memory), DP_OK);
    assert_true(f.engine->ops->owns(f.engine, memory, COUNT * sizeof(*in)));
    piece.in = in = memory;
    for (int i = 0; i < COUNT; i++) {
        assert_true(in[i] == 0.0f);
        in[i] = (float)i;
    }
    run(&f, &op);
    assert_int_equal(op.status, DP_OK);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == 0.5f * (float)i);
    /* 6 steps of 1 ms and 0.25 MB each */
    assert_true(op.end_ns - op.begin_ns >= 21000000);
    assert_int_equal(f.engine->ops->free(f.engine, memory), DP_OK);
    assert_int_equal(f.engine->ops->free(f.engine, memory), DP_ERR_INVALID);
    assert_false(f.engine->ops->owns(f.engine, memory, 1));
    close_engine(&f);
    free(out);
}

/* Two transfers of 20 ms each, at the same time: neither has the wire to itself. */
static void emulated_lanes_share_the_wire(void **state)
{
    enum { COUNT = 500000 };
    fixture_t f;
    float *data = calloc(COUNT, sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = COUNT, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t ops[2];
    dp_event_t *events[2];
    dp_stream_t *streams[2];

    (void)state;
    open_engine(&f, 2, 100000000, 0);
    streams[0] = f.stream;
    assert_int_equal(f.device->ops->stream_create(f.device, "gather", &streams[1]), DP_OK);
    for (int i = 0; i < 2; i++) {
        ops[i] = (dp_engine_op_t){.lane = (dp_lane_t)i,
                                  .collective = i == 0 ? DP_COLLECTIVE_REDUCE_SCATTER
                                                       : DP_COLLECTIVE_ALLGATHER,
                                  .dtype = DP_F32,
                                  .pieces = &piece,
                                  .piece_count = 1};
        assert_int_equal(f.device->ops->event_create(f.device, &events[i]), DP_OK);
        assert_int_equal(f.engine->ops->enqueue(f.engine, streams[i], DP_WORK_LARGE, &ops[i]),
                         DP_OK);
        assert_int_equal(f.device->ops->event_record(events[i], streams[i]), DP_OK);
    }
    for (int i = 0; i < 2; i++) {
        f.device->ops->event_wait(events[i]);
        f.device->ops->event_destroy(events[i]);
        assert_int_equal(ops[i].status, DP_OK);
    }
    assert_true(dp_max(ops[0].end_ns, ops[1].end_ns) - dp_min(ops[0].begin_ns, ops[1].begin_ns) >=
                39000000);
    f.device->ops->stream_destroy(streams[1]);
    close_engine(&f);
    free(data);
}

static void emulated_exchanges_give_back_the_own_block(void **state)
{
    fixture_t f;
    const int32_t in[3] = {1, 2, 3};
    int32_t out[3] = {0, 0, 0};
    const size_t count = 3;
    size_t came = 0;
    dp_engine_exchange_t exchange = {
        .in = in, .send_counts = &count, .out = out, .capacity = 3, .recv_counts = &came};
    dp_engine_op_t op = {
        .collective = DP_COLLECTIVE_ALLTOALLV, .dtype = DP_I32, .exchange = &exchange};

    (void)state;
    open_engine(&f, 8, 1000000000, 0);
    run(&f, &op);
    assert_int_equal(op.status, DP_OK);
    assert_memory_equal(in, out, sizeof(in));
    assert_int_equal(came, 3);
    exchange.capacity = 2;
    run(&f, &op);
    assert_int_equal(op.status, DP_ERR_TRUNCATED);
    assert_non_null(strstr(op.text, "can take 2 elements, 3 come"));
    close_engine(&f);
}

/* An hour of wire does not hold up an abort. */
static void emulated_waits_end_with_an_abort(void **state)
{
    fixture_t f;
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_BARRIER};
    dp_event_t *event;

    (void)state;
    open_engine(&f, 4, 1000, 600000000000u);
    assert_int_equal(f.device->ops->event_create(f.device, &event), DP_OK);
    assert_int_equal(f.engine->ops->enqueue(f.engine, f.stream, DP_WORK_SMALL, &op), DP_OK);
    assert_int_equal(f.device->ops->event_record(event, f.stream), DP_OK);
    assert_false(f.device->ops->event_done(event));
    f.engine->ops->abort(f.engine, DP_ERR_PEER_LOST, "says the test");
    f.device->ops->event_wait(event);
    assert_int_equal(op.status, DP_ERR_PEER_LOST);
    assert_string_equal(op.text, "says the test");
    f.device->ops->event_destroy(event);
    close_engine(&f);
}

static void emulated_worlds_have_one_rank(void **state)
{
    dp_bootstrap_t *bootstraps[2];
    dp_config_t config;
    dp_engine_t *engine = NULL;
    dp_error_t error = {DP_OK, ""};

    (void)state;
    dp_config_defaults(&config);
    config.emulate_ranks = 8;
    assert_int_equal(threads_bootstrap(2, bootstraps), DP_OK);
    assert_int_equal(
        dp_engine_emulated_create(bootstraps[0], NULL, &config, NULL, NULL, NULL, &engine, &error),
        DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "EMULATED"));
    assert_non_null(strstr(error.text, "2 ranks"));
    dp_bootstrap_destroy(bootstraps[0]);
    dp_bootstrap_destroy(bootstraps[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_times_are_those_of_a_ring),
        cmocka_unit_test(emulated_data_arrives_no_sooner_than_by_wire),
        cmocka_unit_test(emulated_lanes_share_the_wire),
        cmocka_unit_test(emulated_exchanges_give_back_the_own_block),
        cmocka_unit_test(emulated_waits_end_with_an_abort),
        cmocka_unit_test(emulated_worlds_have_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
