/*
 * test_cuda_program.c - the CUDA device over the double of the runtime, beside a program that
 * queues far ahead of it: marks of the program's streams, and launches behind them.
 */
#include "tests/unit/cases.h"
#include "tests/unit/isolated.h"
#include "tests/unit/runtime/device/cuda_fixture.h"

/* A stream of the program's, with a gate in it that is closed. */
static dp_stream_t *adopt_held(fixture_t *f, cudaStream_t *native, gate_t *gate)
{
    dp_stream_t *stream = NULL;

    assert_int_equal(cudaStreamCreateWithFlags(native, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(f->ops->stream_adopt(f->device, *native, &stream), DP_OK);
    assert_int_equal(f->ops->stream_branch(stream), DP_OK);
    gate_init(gate);
    assert_int_equal(cudaLaunchHostFunc(*native, gate_pass, gate), cudaSuccess);
    return stream;
}

/* The program queues far ahead, so its marks may hold up neither a launch's end nor drain(). */
static void marks_of_the_programs_stream_hold_up_nothing(void **unused)
{
    list_t list = {.count = 0}, program_list = {.count = 0};
    note_t ours = {&list, 1}, programs = {&program_list, 2};
    uint64_t stamp = 0;
    cudaStream_t native;
    dp_stream_t *stream;
    fixture_t f;
    gate_t gate;

    (void)unused;
    begin(&f);
    stream = adopt_held(&f, &native, &gate);
    assert_int_equal(f.ops->stamp(stream, &stamp), DP_OK);
    assert_int_equal(f.ops->call(stream, DP_WORK_SMALL, append, &programs), DP_OK);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_SMALL, append, &ours), DP_OK);
    f.ops->drain(f.device);
    assert_int_equal(list.count, 1);
    assert_int_equal(program_list.count, 0);
    gate_open(&gate);
    f.ops->stream_destroy(stream); /* waits for its functions */
    assert_int_equal(program_list.count, 1);
    assert_true(stamp != 0); /* on a busy machine a base is read late: no later bound */
    assert_int_equal(cudaStreamDestroy(native), cudaSuccess);
    end(&f);
}

/* A thread queues a step, of 48 launches here, while the device is in the one before: each launch
 * has tallies to bring back, and the thread waits for none. */
static void a_step_is_queued_ahead_of_the_device(void **unused)
{
    enum { LAUNCHES = 48 };
    float values[LAUNCHES];
    dp_tally_t tallies[LAUNCHES];
    cudaStream_t native;
    dp_stream_t *program;
    dp_event_t *ready;
    fixture_t f;
    gate_t gate;

    (void)unused;
    begin(&f);
    program = adopt_held(&f, &native, &gate);
    assert_int_equal(f.ops->event_create(f.device, &ready), DP_OK);
    assert_int_equal(f.ops->event_record(ready, program), DP_OK);
    assert_int_equal(f.ops->stream_wait(f.stream[0], ready), DP_OK);
    for (int i = 0; i < LAUNCHES; i++) {
        dp_cast_piece_t piece = {
            .from = &values[i], .to = &values[i], .count = 1, .scale = 2.0, .tally = &tallies[i]};
        const dp_cast_args_t args = {
            .from = DP_F32, .to = DP_F32, .pieces = &piece, .piece_count = 1};

        values[i] = (float)i;
        dp_tally_init(&tallies[i]);
        assert_int_equal(f.ops->cast(f.stream[0], &args, NULL), DP_OK);
    }
    gate_open(&gate);
    f.ops->drain(f.device);
    for (int i = 0; i < LAUNCHES; i++)
        assert_true(values[i] == 2.0f * (float)i && tallies[i].absmax == 2.0 * i);
    f.ops->event_destroy(ready);
    f.ops->stream_destroy(program);
    assert_int_equal(cudaStreamDestroy(native), cudaSuccess);
    end(&f);
}

/* Neither of the stream's own, nor of one that this thread captures elsewhere. */
static void a_mark_is_no_part_of_a_graph(void **unused)
{
    uint64_t stamp = 0;
    cudaStream_t native, other;
    dp_stream_t *stream;
    fixture_t f;
    gate_t gate;

    (void)unused;
    begin(&f);
    stream = adopt_held(&f, &native, &gate);
    gate_open(&gate);
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    cuda_double_capture(native);
    assert_int_equal(f.ops->stamp(stream, &stamp), DP_ERR_UNSUPPORTED);
    cuda_double_capture(other);
    assert_int_equal(f.ops->stamp(stream, &stamp), DP_OK);
    cuda_double_capture(NULL);
    f.ops->stream_destroy(stream);
    assert_true(stamp != 0);
    assert_int_equal(cudaStreamDestroy(native), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_of_the_programs_stream_hold_up_nothing),
        cmocka_unit_test(a_step_is_queued_ahead_of_the_device),
        cmocka_unit_test(a_mark_is_no_part_of_a_graph),
    };

    return run_isolated_cases(tests, DP_ARRAY_LEN(tests));
}
