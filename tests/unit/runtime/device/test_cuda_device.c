/*
 * test_cuda_device.c - the CUDA device over the double of the runtime: order, events, tallies,
 * stamps, which GPU, and what happens when calls fail.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <math.h>
#include <unistd.h>

#include "runtime/device/cuda.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"
#include "tests/unit/isolated.h"
#include "tests/unit/runtime/device/cuda_fixture.h"

/* ---- Order ---------------------------------------------------------------------------------- */

static void calls_of_all_streams_run_in_the_order_given(void **unused)
{
    enum { count = 60 };
    fixture_t f;
    list_t list = {{0}, 0};
    note_t notes[count];
    gate_t gate;

    (void)unused;
    begin(&f);
    cuda_double_set_jitter(5);
    hold(&f, 1, &gate);
    for (int i = 0; i < count; i++) {
        notes[i] = (note_t){&list, i};
        assert_int_equal(f.ops->call(f.stream[i % 3], DP_WORK_LARGE, append, &notes[i]), DP_OK);
    }
    gate_open(&gate);
    f.ops->drain(f.device);
    assert_int_equal(list.count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(list.at[i], i);
    end(&f);
}

static void a_stream_waits_for_an_event_of_another(void **unused)
{
    fixture_t f;
    dp_event_t *event;
    gate_t gate;
    float *memory;
    void *data;
    float one = 1.0f, seen = 0.0f;

    (void)unused;
    begin(&f);
    assert_int_equal(f.ops->alloc(f.device, 8, &data), DP_OK);
    memory = data;
    assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
    assert_true(f.ops->event_done(event));     /* never recorded */
    for (int round = 1; round <= 3; round++) { /* and the event is used again */
        one = (float)round;
        hold(&f, 0, &gate);
        assert_int_equal(f.ops->copy(f.stream[0], &memory[0], &one, sizeof(one)), DP_OK);
        assert_int_equal(f.ops->event_record(event, f.stream[0]), DP_OK);
        assert_false(f.ops->event_done(event));
        assert_int_equal(f.ops->stream_wait(f.stream[1], event), DP_OK);
        assert_int_equal(f.ops->copy(f.stream[1], &memory[1], &memory[0], sizeof(one)), DP_OK);
        gate_open(&gate);
        assert_int_equal(f.ops->event_record(event, f.stream[1]), DP_OK);
        assert_int_equal(f.ops->event_wait(event), DP_OK);
        assert_true(f.ops->event_done(event));
        memcpy(&seen, &memory[1], sizeof(seen));
        assert_true(seen == one);
    }
    f.ops->event_destroy(event);
    f.ops->free(f.device, data);
    end(&f);
}

/* An event that was not reached yet is no error of the thread that asks, whose next launch would be
 * taken for failed. */
static void a_question_leaves_no_error(void **unused)
{
    fixture_t f;
    dp_event_t *event;
    void *data;
    gate_t gate;

    (void)unused;
    begin(&f);
    assert_int_equal(f.ops->alloc(f.device, 16, &data), DP_OK);
    assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
    hold(&f, 0, &gate);
    assert_int_equal(f.ops->event_record(event, f.stream[0]), DP_OK);
    assert_false(f.ops->event_done(event));
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    assert_int_equal(f.ops->fill(f.stream[1], DP_F32, DP_SUM, data, 4), DP_OK);
    gate_open(&gate);
    assert_int_equal(f.ops->event_wait(event), DP_OK);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    f.ops->event_destroy(event);
    f.ops->free(f.device, data);
    end(&f);
}

/* ---- Work ----------------------------------------------------------------------------------- */

typedef struct figures {
    const dp_tally_t *tallies;
    size_t count;
    uint64_t nonfinite; /* of all tallies, as a call() saw them */
    double absmax;
} figures_t;

static void look(void *argument)
{
    figures_t *figures = argument;

    for (size_t i = 0; i < figures->count; i++) {
        figures->nonfinite += figures->tallies[i].nonfinite;
        figures->absmax = dp_max(figures->absmax, figures->tallies[i].absmax);
    }
}

/* More pieces than a batch takes, and more batches than a stream has. */
static void a_cast_delivers_its_tallies_before_the_next_call(void **unused)
{
    const size_t count = 260, elements = 5, rounds = 40;
    fixture_t f;
    void *in, *out;
    dp_tally_t *tallies = calloc(rounds * count, sizeof(*tallies));
    dp_cast_piece_t *pieces = calloc(count, sizeof(*pieces));
    const dp_cast_args_t args = {
        .from = DP_F32, .to = DP_F32, .pieces = pieces, .piece_count = count};
    figures_t figures[40];

    (void)unused;
    begin(&f);
    cuda_double_set_jitter(9);
    assert_int_equal(f.ops->alloc(f.device, count * elements * sizeof(float), &in), DP_OK);
    assert_int_equal(f.ops->alloc(f.device, count * elements * sizeof(float), &out), DP_OK);
    for (size_t i = 0; i < count * elements; i++)
        ((float *)in)[i] = i % 7 == 0 ? (float)INFINITY : (float)i;
    for (size_t r = 0; r < rounds; r++) {
        for (size_t i = 0; i < count; i++) {
            dp_tally_t *tally = &tallies[r * count + i];

            dp_tally_init(tally);
            pieces[i] = (dp_cast_piece_t){.from = (float *)in + i * elements,
                                          .to = (float *)out + i * elements,
                                          .count = elements,
                                          .scale = (double)(r + 1),
                                          .tally = i % 10 == 9 ? NULL : tally};
        }
        assert_int_equal(f.ops->cast(f.stream[0], &args, NULL), DP_OK);
        figures[r] = (figures_t){&tallies[r * count], count, 0, 0.0};
        assert_int_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, look, &figures[r]), DP_OK);
        memset(pieces, 0, count * sizeof(*pieces)); /* arguments were copied */
    }
    f.ops->drain(f.device);
    for (size_t r = 0; r < rounds; r++) {
        uint64_t nonfinite = 0;

        for (size_t i = 0; i < count * elements; i++)
            nonfinite += i % 7 == 0 && i / elements % 10 != 9;
        assert_int_equal(figures[r].nonfinite, nonfinite);
        assert_true(figures[r].absmax == (double)((r + 1) * (count * elements - elements - 1)));
    }
    for (size_t i = 0; i < count * elements; i++)
        assert_true(((float *)out)[i] == ((float *)in)[i] * (float)rounds);
    f.ops->free(f.device, in);
    f.ops->free(f.device, out);
    free(pieces);
    free(tallies);
    end(&f);
}

enum { FIGURE_COUNT = 9000 };

/* Casts pieces of [count] values with figures, to behind [FIGURE_COUNT] of 8 bytes, settles these,
 * and gives back what the host makes of the tallies. */
static double decide_on(fixture_t *f, dp_figures_t *figures, void *data, dp_dtype_t dtype,
                        size_t count, double clip_norm)
{
    enum { PIECES = 3 };
    const size_t bytes = dp_dtype_bytes(dtype);
    dp_tally_t tallies[PIECES], all;
    dp_cast_piece_t pieces[PIECES];
    const dp_cast_args_t args = {
        .from = dtype, .to = dtype, .pieces = pieces, .piece_count = PIECES};

    for (size_t i = 0; i < PIECES; i++) { /* equal parts, and what is left */
        const size_t part = count / PIECES, at = i * part;

        dp_tally_init(&tallies[i]);
        pieces[i] = (dp_cast_piece_t){.from = (unsigned char *)data + at * bytes,
                                      .count = i + 1 < PIECES ? part : count - at,
                                      .scale = 1.0,
                                      .tally = &tallies[i]};
    }
    for (int s = 0; s < 2; s++) { /* two streams at a time, so each element counts twice */
        for (size_t i = 0; i < PIECES; i++) {
            pieces[i].to = (unsigned char *)data + (size_t)(s + 1) * FIGURE_COUNT * 8 +
                           i * (count / PIECES) * bytes;
        }
        assert_int_equal(f->ops->cast(f->stream[s], &args, figures), DP_OK);
    }
    f->ops->drain(f->device);
    assert_int_equal(f->ops->decide(f->stream[2], figures, clip_norm, 0), DP_OK);
    assert_int_equal(cudaStreamSynchronize(f->ops->stream_native(f->stream[2])), cudaSuccess);
    dp_tally_init(&all);
    for (size_t i = 0; i < PIECES; i++)
        dp_tally_merge(&all, &tallies[i]);
    return sqrt(dp_tally_sum_squares(&all));
}

static void figures_are_those_of_the_tallies(void **unused)
{
    enum { COUNT = FIGURE_COUNT };
    fixture_t f;
    void *data, *memory;
    dp_figures_t *figures;
    double norm;

    (void)unused;
    begin(&f);
    cuda_double_set_jitter(3);
    assert_int_equal(f.ops->alloc(f.device, 3 * COUNT * sizeof(double), &data), DP_OK);
    assert_int_equal(f.ops->alloc(f.device, sizeof(*figures), &memory), DP_OK);
    figures = memory;
    for (int round = 0; round < 3; round++) { /* magnitudes that no double holds at a time */
        for (int i = 0; i < COUNT; i++)
            ((float *)data)[i] = ldexpf(1.0f + (float)i / COUNT, i % 7 * (20 - 10 * round) - 60);
        norm = decide_on(&f, figures, data, DP_F32, COUNT, 0.25);
        assert_true(figures->norm == (float)norm && norm > 0.0);
        assert_true(figures->clip == (float)(norm > 0.25 ? 0.25 / norm : 1.0));
        assert_int_equal(figures->skip, 0);
    }
    ((float *)data)[77] = -INFINITY;
    (void)decide_on(&f, figures, data, DP_F32, COUNT, 0.0);
    assert_true(isinf(figures->norm) && figures->clip == 1.0f && figures->skip == 1);
    memset(data, 0, COUNT * sizeof(double));
    norm = decide_on(&f, figures, data, DP_F64, 100, 1.0); /* and the sums have begun anew */
    assert_true(norm == 0.0 && figures->norm == 0.0f && figures->clip == 1.0f);
    assert_int_equal(figures->skip, 0);
    ((double *)data)[3] = 1e200; /* its square is beyond the sums, and finite all the same */
    (void)decide_on(&f, figures, data, DP_F64, 100, 1.0);
    assert_true(isinf(figures->norm) && figures->clip == 0.0f && figures->skip == 0);
    assert_int_equal(f.ops->decide(f.stream[0], figures, 1.0, 1), DP_OK); /* of a failure */
    assert_int_equal(cudaStreamSynchronize(f.ops->stream_native(f.stream[0])), cudaSuccess);
    assert_int_equal(figures->skip, 1);
    f.ops->abort(f.device);
    memset(data, 0, COUNT * sizeof(double));
    (void)decide_on(&f, figures, data, DP_F32, 100, 1.0);
    assert_true(figures->norm == 0.0f && figures->skip == 1);
    f.ops->free(f.device, memory);
    f.ops->free(f.device, data);
    end(&f);
}

/* A third of an f64 is not a third in fp32. */
static void a_scale_keeps_the_precision_of_f64(void **unused)
{
    fixture_t f;
    void *data;
    dp_cast_piece_t piece = {.count = 1, .scale = 1.0 / 3.0};
    const dp_cast_args_t args = {.from = DP_F64, .to = DP_F64, .pieces = &piece, .piece_count = 1};

    (void)unused;
    begin(&f);
    assert_int_equal(f.ops->alloc(f.device, sizeof(double), &data), DP_OK);
    *(double *)data = 1.0;
    piece.from = piece.to = data;
    assert_int_equal(f.ops->cast(f.stream[0], &args, NULL), DP_OK);
    assert_int_equal(cudaStreamSynchronize(f.ops->stream_native(f.stream[0])), cudaSuccess);
    assert_true(*(double *)data == 1.0 / 3.0);
    *(double *)data = 1.0;
    dp_kernel_cast(&args);
    assert_true(*(double *)data == 1.0 / 3.0);
    f.ops->free(f.device, data);
    end(&f);
}

static void a_fill_is_what_changes_nothing(void **unused)
{
    fixture_t f;
    void *data;

    (void)unused;
    begin(&f);
    assert_int_equal(f.ops->alloc(f.device, 100 * sizeof(float), &data), DP_OK);
    assert_int_equal(f.ops->fill(f.stream[0], DP_F32, DP_MIN, data, 99), DP_OK);
    assert_int_equal(f.ops->fill(f.stream[0], DP_F32, DP_MIN, data, 0), DP_OK);
    assert_int_equal(cudaStreamSynchronize(f.ops->stream_native(f.stream[0])), cudaSuccess);
    for (int i = 0; i < 99; i++)
        assert_true(((float *)data)[i] == (float)INFINITY);
    assert_true(((float *)data)[99] == 0.0f); /* alloc() gives zeros */
    f.ops->free(f.device, data);
    end(&f);
}

/* The device's clock is the test's: no wait of a loaded machine is in it. Whichever moment a stamp
 * counts from lies between before and after, while that clock stood still. */
static void stamps_are_times_of_the_hosts_clock(void **unused)
{
    static const double start_ms = 1e6, later_ms[] = {50.0, 70.0};
    const uint64_t rounding_ns = 1000; /* CUDA returns float milliseconds */
    fixture_t f;
    gate_t gates[DP_ARRAY_LEN(later_ms)];
    dp_event_t *reached[DP_ARRAY_LEN(later_ms)];
    uint64_t stamps[DP_ARRAY_LEN(later_ms)] = {0, 0}, before, after;

    (void)unused;
    cuda_double_reset();
    cuda_double_set_clock(start_ms);
    before = dp_now_ns();
    open_device(&f, STDERR_FILENO);
    for (size_t i = 0; i < DP_ARRAY_LEN(later_ms); i++) {
        assert_int_equal(f.ops->event_create(f.device, &reached[i]), DP_OK);
        hold(&f, 0, &gates[i]);
        assert_int_equal(f.ops->stamp(f.stream[0], &stamps[i]), DP_OK);
        assert_int_equal(f.ops->event_record(reached[i], f.stream[0]), DP_OK);
    }
    after = dp_now_ns();
    for (size_t i = 0; i < DP_ARRAY_LEN(later_ms); i++) {
        cuda_double_set_clock(start_ms + later_ms[i]);
        gate_open(&gates[i]);
        assert_int_equal(f.ops->event_wait(reached[i]), DP_OK);
    }
    f.ops->drain(f.device);
    for (size_t i = 0; i < DP_ARRAY_LEN(later_ms); i++) {
        const uint64_t later_ns = (uint64_t)(later_ms[i] * 1e6);

        assert_in_range(stamps[i], before + later_ns - rounding_ns, after + later_ns + rounding_ns);
        f.ops->event_destroy(reached[i]);
    }
    end(&f);
}

/* The clock's stream shares a queue of the hardware with one that is held up: stamps do not wait
 * for it, whether or not it is time for a new base. */
static void a_stamp_waits_for_no_stream(void **unused)
{
    enum { connections = 8 };
    fixture_t f;
    cudaStream_t streams[connections];
    gate_t gate;
    uint64_t stamps[2] = {0, 0};
    const uint64_t begin_ns = dp_now_ns();

    (void)unused;
    begin(&f);
    gate_init(&gate);
    for (int i = 0; i < connections; i++) { /* one of them is in the clock's queue */
        assert_int_equal(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking),
                         cudaSuccess);
    }
    assert_int_equal(f.ops->stamp(f.stream[0], &stamps[0]), DP_OK);
    f.ops->drain(f.device);
    while (dp_now_ns() - begin_ns < 1050000000u) /* a base lives for a second */
        usleep(10000);
    for (int i = 0; i < connections; i++) {
        if (streams[i] == f.ops->stream_native(f.stream[0])) continue;
        assert_int_equal(cudaLaunchHostFunc(streams[i], gate_pass, &gate), cudaSuccess);
        assert_int_equal(cudaLaunchHostFunc(streams[i], gate_pass, &gate), cudaSuccess);
    }
    assert_int_equal(f.ops->stamp(f.stream[0], &stamps[1]), DP_OK);
    gate_open(&gate);
    f.ops->drain(f.device);
    assert_true(stamps[0] != 0 && stamps[0] < stamps[1]);
    for (int i = 0; i < connections; i++)
        assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
    end(&f);
}

/* Stamps one behind the other while three bases follow one another, of which the second one is seen
 * late: a base lives for a second. */
static void stamps_of_two_bases_are_in_order(void **unused)
{
    enum { burst = 16 };
    fixture_t f;
    uint64_t stamps[burst], last = 0, now_ns = 0;
    const uint64_t begin_ns = dp_now_ns();

    (void)unused;
    begin(&f);
    while (now_ns < 2400000000u) {
        now_ns = dp_now_ns() - begin_ns;
        cuda_double_slow_queries(now_ns > 900000000u && now_ns < 1200000000u ? 130 : 0);
        for (int i = 0; i < burst; i++)
            assert_int_equal(f.ops->stamp(f.stream[0], &stamps[i]), DP_OK);
        f.ops->drain(f.device);
        for (int i = 0; i < burst; i++) {
            assert_true(stamps[i] >= last);
            last = stamps[i];
        }
    }
    end(&f);
}

/* ---- Which GPU, which memory ---------------------------------------------------------------- */

static void the_program_chooses_else_the_local_rank(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    fixture_t f;

    (void)unused;
    cuda_double_reset();
    cuda_double_set_devices(3);
    assert_int_equal(make(&f, 4, &error), DP_OK); /* no context: 4 modulo 3 */
    assert_int_equal(dp_device_cuda_ordinal(f.device), 1);
    dp_device_destroy(f.device);
    assert_int_equal(cudaSetDevice(2), cudaSuccess);
    assert_int_equal(make(&f, 0, &error), DP_OK);
    assert_int_equal(dp_device_cuda_ordinal(f.device), 2);
    dp_device_destroy(f.device);
    assert_int_equal(cuda_double_live(), 0);
}

static void pointers_and_streams_say_whose_they_are(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    void *here, *there, *pinned;
    cudaStream_t ours, theirs;
    dp_stream_t *stream = NULL;
    dp_event_t *event = NULL;
    int local, now = -1;
    fixture_t f;

    (void)unused;
    cuda_double_reset();
    cuda_double_set_devices(2);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaMalloc(&there, 10), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&theirs), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&ours), cudaSuccess);
    assert_int_equal(cudaMallocHost(&pinned, 10), cudaSuccess);
    assert_int_equal(make(&f, 0, &error), DP_OK);
    f.ops = f.device->ops;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(f.ops->alloc(f.device, 10, &here), DP_OK);
    assert_int_equal(cudaGetDevice(&now), cudaSuccess);
    assert_int_equal(now, 1); /* the program's thread is where it was */
    assert_int_equal(f.ops->kind(f.device, here), DP_MEMORY_DEVICE);
    assert_int_equal(f.ops->kind(f.device, (char *)here + 9), DP_MEMORY_DEVICE);
    assert_int_equal(f.ops->kind(f.device, there), DP_MEMORY_OTHER_DEVICE);
    assert_int_equal(f.ops->kind(f.device, pinned), DP_MEMORY_DEVICE);
    assert_int_equal(f.ops->kind(f.device, &local), DP_MEMORY_HOST);
    assert_int_equal(f.ops->stream_adopt(f.device, theirs, &stream), DP_ERR_UNSUPPORTED);
    assert_null(stream);
    assert_int_equal(f.ops->stream_adopt(f.device, ours, &stream), DP_OK);
    assert_ptr_equal(f.ops->stream_native(stream), ours);
    f.ops->stream_destroy(stream);
    /* The default stream that a program names is the context's, though the thread is elsewhere. */
    assert_int_equal(f.ops->stream_adopt(f.device, cudaStreamLegacy, &stream), DP_OK);
    assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
    assert_int_equal(f.ops->event_record(event, stream), DP_OK);
    assert_int_equal(f.ops->stream_wait(stream, event), DP_OK);
    assert_int_equal(f.ops->event_wait(event), DP_OK);
    f.ops->event_destroy(event);
    f.ops->stream_destroy(stream);
    assert_int_equal(cudaGetDevice(&now), cudaSuccess);
    assert_int_equal(now, 1);
    assert_int_equal(cudaStreamDestroy(ours), cudaSuccess); /* still the program's */
    assert_int_equal(cudaStreamDestroy(theirs), cudaSuccess);
    f.ops->free(f.device, here);
    cudaFree(there);
    cudaFreeHost(pinned);
    dp_device_destroy(f.device);
    assert_int_equal(cuda_double_live(), 0);
}

/* A thread that has never called CUDA is on device 0, says CUDA, and most calls make a context
 * there. None of ours does, as the memory that it takes is another rank's. */
static void *call_without_context(void *argument)
{
    const fixture_t *f = argument;
    void *memory = NULL, *pinned = NULL;
    dp_stream_t *adopted = NULL;
    int local = 0, is_good;

    is_good =
        f->ops->kind(f->device, &local) == DP_MEMORY_HOST &&
        f->ops->alloc(f->device, 64, &memory) == DP_OK &&
        f->ops->pinned_alloc(f->device, 64, &pinned) == DP_OK &&
        f->ops->stream_adopt(f->device, f->ops->stream_native(f->stream[0]), &adopted) == DP_OK;
    f->ops->stream_destroy(adopted);
    f->ops->free(f->device, memory);
    f->ops->pinned_free(f->device, pinned);
    return is_good ? argument : NULL;
}

/* Its first call is the one that counts. */
static void *ask_without_context(void *argument)
{
    const fixture_t *f = argument;
    dp_stream_t *adopted = NULL;
    void *native = f->ops->stream_native(f->stream[0]);

    if (f->ops->stream_adopt(f->device, native, &adopted) != DP_OK) return NULL;
    f->ops->stream_destroy(adopted);
    return argument;
}

static void *free_without_context(void *argument)
{
    const fixture_t *f = argument;

    f->ops->free(f->device, f->memory);
    return argument;
}

static void a_thread_makes_no_context_elsewhere(void **unused)
{
    static void *(*const calls[])(void *) = {call_without_context, ask_without_context,
                                             free_without_context};
    dp_error_t error = {DP_OK, ""};
    pthread_t thread;
    void *result;
    fixture_t f;

    (void)unused;
    cuda_double_reset();
    cuda_double_set_devices(2);
    assert_int_equal(make(&f, 1, &error), DP_OK);
    f.ops = f.device->ops;
    assert_int_equal(f.ops->stream_create(f.device, "test", &f.stream[0]), DP_OK);
    assert_int_equal(f.ops->alloc(f.device, 64, &f.memory), DP_OK);
    for (size_t i = 0; i < DP_ARRAY_LEN(calls); i++) {
        assert_int_equal(pthread_create(&thread, NULL, calls[i], &f), 0);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_non_null(result);
    }
    assert_true(cuda_double_has_context(1));
    assert_false(cuda_double_has_context(0));
    f.ops->stream_destroy(f.stream[0]);
    dp_device_destroy(f.device);
    assert_int_equal(cuda_double_live(), 0);
}

/* The program captures a graph on a stream of its own: ours work on, in threads of ours. */
static void *work_meanwhile(void *argument)
{
    fixture_t *f = argument;
    dp_event_t *event = NULL;
    uint64_t stamp = 0;

    if (f->ops->enter(f->device, NULL) != DP_OK) return NULL;
    if (f->ops->stamp(f->stream[0], &stamp) != DP_OK) return NULL;
    if (f->ops->event_create(f->device, &event) != DP_OK) return NULL;
    if (f->ops->event_record(event, f->stream[0]) != DP_OK) return NULL;
    if (f->ops->event_wait(event) != DP_OK) return NULL;
    f->ops->drain(f->device);
    f->ops->event_destroy(event);
    return stamp != 0 ? argument : NULL;
}

static void a_capture_of_the_programs_is_none_of_ours(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    dp_stream_t *adopted = NULL;
    dp_event_t *event = NULL;
    cudaStream_t captured;
    pthread_t thread;
    void *result;
    fixture_t f;

    (void)unused;
    begin_quiet(&f);
    assert_int_equal(cudaStreamCreate(&captured), cudaSuccess);
    assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
    assert_int_equal(f.ops->stream_adopt(f.device, captured, &adopted), DP_OK);
    cuda_double_capture(captured);
    assert_int_equal(pthread_create(&thread, NULL, work_meanwhile, &f), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_non_null(result);
    /* what is captured is no moment that a stream of ours could wait for */
    assert_int_equal(f.ops->event_record(event, adopted), DP_ERR_UNSUPPORTED);
    assert_int_equal(f.ops->health(f.device, &error), DP_OK);
    cuda_double_capture(NULL);
    assert_int_equal(f.ops->event_record(event, adopted), DP_OK);
    f.ops->stream_destroy(adopted);
    f.ops->event_destroy(event);
    assert_int_equal(cudaStreamDestroy(captured), cudaSuccess);
    end(&f);
}

/* ---- Failure -------------------------------------------------------------------------------- */

static void without_a_device_it_says_so(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    fixture_t f;

    (void)unused;
    cuda_double_reset();
    cuda_double_set_devices(0);
    assert_int_equal(make(&f, 0, &error), DP_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "no CUDA device"));
}

/* The nth call fails, for every n, until all of them succeed; nothing is left behind. */
static void every_call_may_fail(void **unused)
{
    int n = 1;

    (void)unused;
    for (;; n++) {
        dp_error_t error = {DP_OK, ""};
        dp_stream_t *stream = NULL;
        dp_event_t *event = NULL;
        void *memory = NULL;
        dp_status_t status;
        fixture_t f;

        cuda_double_reset();
        cuda_double_fail(NULL, n, cudaErrorMemoryAllocation);
        status = make_logged(&f, 0, -1, &error);
        if (status == DP_OK) {
            f.ops = f.device->ops;
            status = f.ops->alloc(f.device, 64, &memory);
            if (status == DP_OK) status = f.ops->stream_create(f.device, "test", &stream);
            if (status == DP_OK) status = f.ops->event_create(f.device, &event);
            if (status == DP_OK) status = f.ops->fill(stream, DP_U8, DP_SUM, memory, 64);
            if (status == DP_OK) status = f.ops->event_record(event, stream);
            if (status == DP_OK) status = f.ops->event_wait(event);
            f.ops->event_destroy(event);
            f.ops->stream_destroy(stream);
            f.ops->free(f.device, memory);
            dp_device_destroy(f.device);
        }
        assert_int_equal(cuda_double_live(), 0);
        if (status == DP_OK && cuda_double_calls() < (size_t)n) break;
    }
    assert_in_range(n, 20, 200);
}

/* An error that concerns one call is told by that call; the device goes on. */
static void a_refused_call_leaves_the_device_well(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    dp_event_t *event = NULL;
    fixture_t f;

    (void)unused;
    begin_quiet(&f);
    cuda_double_fail(NULL, 1, cudaErrorNotPermitted);
    assert_int_equal(f.ops->event_create(f.device, &event), DP_ERR_SYSTEM);
    assert_int_equal(f.ops->health(f.device, &error), DP_OK);
    assert_int_equal(*f.ops->skip_flag(f.device), 0);
    assert_int_equal(f.ops->event_create(f.device, &event), DP_OK);
    f.ops->event_destroy(event);
    end(&f);
}

/* After an asynchronous error functions run all the same, and the device says why. */
static void a_broken_device_says_so_and_lets_go(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    list_t list = {{0}, 0};
    note_t note = {&list, 7};
    gate_t gate;
    fixture_t f;

    (void)unused;
    begin_quiet(&f);
    hold(&f, 0, &gate);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, append, &note), DP_OK);
    assert_int_equal(f.ops->health(f.device, &error), DP_OK);
    assert_int_equal(*f.ops->skip_flag(f.device), 0);
    cuda_double_break(cudaErrorIllegalAddress);
    f.ops->drain(f.device);
    assert_int_equal(list.count, 1);
    assert_int_equal(f.ops->health(f.device, &error), DP_ERR_SYSTEM);
    assert_non_null(strstr(error.text, "cudaErrorIllegalAddress"));
    assert_int_equal(*f.ops->skip_flag(f.device), 1);
    assert_int_not_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, append, &note), DP_OK);
    gate_open(&gate);
    end(&f);
}

/* The program has returned from main() without dp_finalize(): CUDA says that it is gone. That is no
 * failure to tell anybody, and the word's memory may be gone as well. */
static void an_unloaded_runtime_is_no_news(void **unused)
{
    dp_error_t error = {DP_OK, ""};
    list_t list = {{0}, 0};
    note_t note = {&list, 7};
    char text[16];
    int ends[2];
    gate_t gate;
    fixture_t f;

    (void)unused;
    assert_int_equal(pipe(ends), 0);
    begin_logged(&f, ends[1]);
    hold(&f, 0, &gate);
    assert_int_equal(f.ops->call(f.stream[0], DP_WORK_LARGE, append, &note), DP_OK);
    cuda_double_break(cudaErrorCudartUnloading);
    f.ops->drain(f.device);
    assert_int_equal(list.count, 1);
    assert_int_equal(f.ops->health(f.device, &error), DP_ERR_SYSTEM);
    f.ops->abort(f.device);
    assert_int_equal(*f.ops->skip_flag(f.device), 0);
    gate_open(&gate);
    end(&f);
    close(ends[1]);
    assert_int_equal(read(ends[0], text, sizeof(text)), 0);
    close(ends[0]);
}

/* An error that the program has made, and not asked for, is not the launch's. */
static void an_older_error_is_not_the_launchs(void **unused)
{
    fixture_t f;
    void *data, *none;

    (void)unused;
    begin(&f);
    assert_int_equal(f.ops->alloc(f.device, 16, &data), DP_OK);
    assert_int_not_equal(cudaMalloc(&none, SIZE_MAX / 2), cudaSuccess);
    assert_int_equal(f.ops->fill(f.stream[0], DP_F32, DP_SUM, data, 4), DP_OK);
    assert_int_equal(cudaStreamSynchronize(f.ops->stream_native(f.stream[0])), cudaSuccess);
    f.ops->free(f.device, data);
    end(&f);
}

static void a_refused_launch_is_an_error_and_leaves_the_batch(void **unused)
{
    fixture_t f;
    float value = 2.0f;
    dp_tally_t tally;
    dp_cast_piece_t piece = {
        .from = &value, .to = &value, .count = 1, .scale = 2.0, .tally = &tally};
    const dp_cast_args_t args = {.from = DP_F32, .to = DP_F32, .pieces = &piece, .piece_count = 1};

    (void)unused;
    begin_quiet(&f);
    dp_tally_init(&tally);
    for (int i = 0; i < 80; i++) { /* more often than a stream has batches */
        cuda_double_fail("launch", 1, cudaErrorInvalidValue);
        assert_int_equal(f.ops->cast(f.stream[0], &args, NULL), DP_ERR_SYSTEM);
    }
    assert_int_equal(f.ops->cast(f.stream[0], &args, NULL), DP_OK);
    f.ops->drain(f.device);
    assert_true(value == 4.0f && tally.absmax == 4.0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_all_streams_run_in_the_order_given),
        cmocka_unit_test(a_stream_waits_for_an_event_of_another),
        cmocka_unit_test(a_question_leaves_no_error),
        cmocka_unit_test(a_cast_delivers_its_tallies_before_the_next_call),
        cmocka_unit_test(figures_are_those_of_the_tallies),
        cmocka_unit_test(a_scale_keeps_the_precision_of_f64),
        cmocka_unit_test(a_fill_is_what_changes_nothing),
        cmocka_unit_test(stamps_are_times_of_the_hosts_clock),
        cmocka_unit_test(a_stamp_waits_for_no_stream),
        cmocka_unit_test(stamps_of_two_bases_are_in_order),
        cmocka_unit_test(the_program_chooses_else_the_local_rank),
        cmocka_unit_test(pointers_and_streams_say_whose_they_are),
        cmocka_unit_test(a_thread_makes_no_context_elsewhere),
        cmocka_unit_test(a_capture_of_the_programs_is_none_of_ours),
        cmocka_unit_test(without_a_device_it_says_so),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(a_refused_call_leaves_the_device_well),
        cmocka_unit_test(a_broken_device_says_so_and_lets_go),
        cmocka_unit_test(an_unloaded_runtime_is_no_news),
        cmocka_unit_test(an_older_error_is_not_the_launchs),
        cmocka_unit_test(a_refused_launch_is_an_error_and_leaves_the_batch),
    };

    return run_isolated_cases(tests, DP_ARRAY_LEN(tests));
}
