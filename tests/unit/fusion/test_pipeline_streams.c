/*
 * test_pipeline_streams.c - work behind events of a program's own streams: nothing starts too
 * early, nothing is waited for by a thread that others need, and no order of steps hangs.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/kernel_data.h"
#include "tests/unit/pipeline_world.h"
#include "tests/unit/sanitizer.h"

static const dp_device_ops_t *device_of(const world_t *world, int rank)
{
    return world->rank[rank].device->ops;
}

static void make_events(world_t *world, world_op_t *op, int has_ready)
{
    for (int r = 0; r < world->ranks; r++) {
        dp_device_t *device = world->rank[r].device;
        int place = op_place(world, op, r);

        if (place < 0) continue;
        assert_int_equal(device->ops->event_create(device, &op->done_event[place]), DP_OK);
        if (!has_ready) continue;
        assert_int_equal(device->ops->event_create(device, &op->ready[place]), DP_OK);
    }
}

static void free_events(world_t *world, world_op_t *op)
{
    for (int r = 0; r < world->ranks; r++) {
        const dp_device_ops_t *device = device_of(world, r);
        int place = op_place(world, op, r);

        if (place < 0) continue;
        if (op->done_event[place] != NULL) device->event_destroy(op->done_event[place]);
        if (op->ready[place] != NULL) device->event_destroy(op->ready[place]);
    }
}

/* ---- A stream that produces an operation's input once a gate opens -------------------------- */

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int is_open; /* guarded by lock */
} gate_t;

#define GATE_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                     \
    }

static void gate_open(gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_pass(void *argument)
{
    gate_t *gate = argument;

    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->opened, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

typedef struct producer {
    world_op_t *op;
    int place;
    size_t bytes[op_tensors_max];
} producer_t;

static void produce(void *argument)
{
    producer_t *producer = argument;
    world_op_t *op = producer->op;

    for (size_t t = 0; t < op->tensor_count; t++) {
        memcpy((void *)(uintptr_t)op->tensors[producer->place][t].in, op->saved[producer->place][t],
               producer->bytes[t]);
    }
}

/* Of a rank's input. */
static size_t input_bytes(const world_t *world, const world_op_t *op, int place, size_t t)
{
    size_t count = op->tensors[place][t].count;

    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER) count *= (size_t)op_size(world, op);
    if (op->collective == DP_COLLECTIVE_ALLGATHERV) count = op->blocks[place][0];
    if (op->collective == DP_COLLECTIVE_ALLTOALL) {
        count = 0;
        for (int to = 0; to < op_size(world, op); to++)
            count += op->blocks[place][to];
    }
    return count * dp_dtype_bytes(op->dtype);
}

/* The input is there only once the gate is open: until then it is something else. */
static void produce_behind_gate(world_t *world, world_op_t *op, int rank, dp_stream_t *stream,
                                gate_t *gate, producer_t *producer)
{
    const dp_device_ops_t *device = device_of(world, rank);

    *producer = (producer_t){.op = op, .place = op_place(world, op, rank)};
    for (size_t t = 0; t < op->tensor_count; t++) {
        producer->bytes[t] = input_bytes(world, op, producer->place, t);
        memset((void *)(uintptr_t)op->tensors[producer->place][t].in, 1, producer->bytes[t]);
    }
    assert_int_equal(device->call(stream, DP_WORK_LARGE, gate_pass, gate), DP_OK);
    assert_int_equal(device->call(stream, DP_WORK_LARGE, produce, producer), DP_OK);
    assert_int_equal(device->event_record(op->ready[producer->place], stream), DP_OK);
}

static const struct kind {
    dp_collective_t collective;
    int in_place;
    size_t count;
} kinds[] = {
    {DP_COLLECTIVE_ALLREDUCE, 0, 10},       {DP_COLLECTIVE_ALLREDUCE, 1, 10},
    {DP_COLLECTIVE_ALLREDUCE, 0, 20000},    {DP_COLLECTIVE_ALLREDUCE, 1, 90000},
    {DP_COLLECTIVE_REDUCE, 0, 30},          {DP_COLLECTIVE_BROADCAST, 0, 50},
    {DP_COLLECTIVE_BROADCAST, 1, 20000},    {DP_COLLECTIVE_ALLGATHER, 0, 100},
    {DP_COLLECTIVE_REDUCE_SCATTER, 0, 100}, {DP_COLLECTIVE_REDUCE_SCATTERV, 0, 100},
    {DP_COLLECTIVE_ALLTOALL, 0, 40},        {DP_COLLECTIVE_ALLGATHERV, 0, 3000},
};

/* With the gate closed the operation is issued, and so is one behind it that is ready, as the
 * launch thread must stay free whatever its sizes; nothing is complete. */
static void issued_before_ready_and_done_after(void **unused)
{
    (void)unused;
    for (int variant = 0; variant < 4; variant++) {
        for (size_t k = 0; k < DP_ARRAY_LEN(kinds); k++) {
            world_op_t ops[2] = {{.collective = kinds[k].collective,
                                  .dtype = DP_F32,
                                  .count = kinds[k].count,
                                  .tensor_count = k % 2 + 1,
                                  .in_place = kinds[k].in_place},
                                 {.dtype = DP_F32, .count = 100, .in_place = variant % 2}};
            dp_stream_t *streams[world_ranks_max];
            producer_t producers[world_ranks_max];
            gate_t gate = GATE_INIT;
            world_t world;

            /* One stays inside a fused buffer: there must be another for what comes behind it. */
            world_init(&world, 2, variant / 2, 400000, 2);
            if (kinds[k].collective >= DP_COLLECTIVE_GATHER) ops[0].tensor_count = 1;
            for (int i = 0; i < 2; i++) {
                op_make(&world, &ops[i], k * 10 + (size_t)i);
                make_events(&world, &ops[i], i == 0);
            }
            for (int r = 0; r < 2; r++) {
                dp_device_t *device = world.rank[r].device;

                assert_int_equal(device->ops->stream_create(device, "user", &streams[r]), DP_OK);
                produce_behind_gate(&world, &ops[0], r, streams[r], &gate, &producers[r]);
            }
            world_launch(&world, &ops[0], 1);
            world_launch(&world, &ops[1], 1);
            for (int i = 0; i < 2; i++) {
                for (int r = 0; r < 2; r++)
                    world_wait_issued(&world, r, &ops[i]);
            }
            pthread_mutex_lock(&world.lock);
            for (int i = 0; i < 2; i++)
                assert_int_equal(ops[i].done_count[0] + ops[i].done_count[1], 0);
            pthread_mutex_unlock(&world.lock);
            assert_int_equal(device_of(&world, 0)->event_done(ops[0].done_event[0]), 0);
            gate_open(&gate);
            world_wait(&world);
            for (int i = 0; i < 2; i++) {
                op_check(&world, &ops[i], 0.0);
                free_events(&world, &ops[i]);
                op_free(&world, &ops[i]);
            }
            for (int r = 0; r < 2; r++)
                device_of(&world, r)->stream_destroy(streams[r]);
            world_fini(&world);
        }
    }
}

/* Reads an output on a stream behind a done event. */
typedef struct reader {
    const dp_pipeline_tensor_t *tensor;
    size_t bytes;
    unsigned char *seen; /* [bytes] */
} reader_t;

static void read_output(void *argument)
{
    reader_t *reader = argument;
    const unsigned char *out = reader->tensor->out;
    size_t half = reader->bytes / 2;

    /* The end first: one who copies from the start would always be just behind the unpacking. */
    memcpy(reader->seen + half, out + half, reader->bytes - half);
    memcpy(reader->seen, out, half);
}

static size_t output_bytes(const world_t *world, const world_op_t *op, int place, size_t t)
{
    size_t count = op->tensors[place][t].count;

    if (op->collective == DP_COLLECTIVE_ALLGATHER) count *= (size_t)op_size(world, op);
    if (op->collective == DP_COLLECTIVE_REDUCE && place != op->root) return 0;
    return op->tensors[place][t].out == NULL ? 0 : count * dp_dtype_bytes(op->dtype);
}

/* Copies every output of rank 0 on its stream, behind the done event. */
static void read_behind_done(world_t *world, world_op_t *op, dp_stream_t *stream,
                             reader_t readers[op_tensors_max])
{
    const dp_device_ops_t *device = device_of(world, 0);

    world_wait_issued(world, 0, op);
    assert_int_equal(device->stream_wait(stream, op->done_event[0]), DP_OK);
    for (size_t t = 0; t < op->tensor_count; t++) {
        size_t bytes = output_bytes(world, op, 0, t);

        readers[t] = (reader_t){&op->tensors[0][t], bytes, NULL};
        if (bytes == 0) continue;
        readers[t].seen = malloc(bytes);
        assert_int_equal(device->call(stream, DP_WORK_LARGE, read_output, &readers[t]), DP_OK);
    }
}

static void check_readers(const world_op_t *op, reader_t readers[op_tensors_max])
{
    for (size_t t = 0; t < op->tensor_count; t++) {
        if (readers[t].bytes > 0) {
            assert_memory_equal(readers[t].seen, op->tensors[0][t].out, readers[t].bytes);
        }
        free(readers[t].seen);
    }
}

/* Many items in one launch, each with events of its own, parts in several buckets. */
static void events_of_fused_and_cut_items(void **unused)
{
    enum { count = 30 };
    world_op_t *ops = calloc(count, sizeof(*ops));
    producer_t producers[2][count];
    reader_t readers[count][op_tensors_max];
    dp_stream_t *streams[2];
    world_t world;

    (void)unused;
    for (int buffers = 1; buffers <= 3; buffers++) {
        gate_t gate = GATE_INIT;

        gate.is_open = 1;
        memset(ops, 0, count * sizeof(*ops));
        world_init(&world, 2, buffers % 2, 100000, buffers);
        for (int r = 0; r < 2; r++) {
            dp_device_t *device = world.rank[r].device;

            assert_int_equal(device->ops->stream_create(device, "user", &streams[r]), DP_OK);
        }
        for (int i = 0; i < count; i++) {
            ops[i] = (world_op_t){.collective = kinds[(size_t)i % DP_ARRAY_LEN(kinds)].collective,
                                  .dtype = i % 4 ? DP_F32 : DP_I16,
                                  .count = i % 6 || i == 0 ? (size_t)i * 40
                                                           : 70000, /* the first: empty */
                                  .in_place = i % 5 == 0};
            op_make(&world, &ops[i], (uint64_t)i);
            if (i % 7 != 6) make_events(&world, &ops[i], i % 3 != 2);
            for (int r = 0; r < 2 && ops[i].ready[0] != NULL; r++)
                produce_behind_gate(&world, &ops[i], r, streams[r], &gate, &producers[r][i]);
        }
        for (int i = 0; i < count; i += 10)
            world_launch(&world, ops + i, 10);
        for (int i = 1; i < count; i++) {
            if (ops[i].done_event[0] == NULL) continue;
            read_behind_done(&world, &ops[i], streams[0], readers[i]);
        }
        world_wait(&world);
        /* Ends with what the program itself put there. */
        for (int r = 0; r < 2; r++)
            device_of(&world, r)->stream_destroy(streams[r]);
        for (int i = 0; i < count; i++) {
            int is_empty = ops[i].count == 0;

            /* An empty item is done without being issued. */
            if (is_empty) assert_int_equal(ops[i].issued_count[0], 0);
            if (!is_empty) op_check(&world, &ops[i], 0.0);
            if (!is_empty && ops[i].done_event[0] != NULL) check_readers(&ops[i], readers[i]);
            free_events(&world, &ops[i]);
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
    free(ops);
}

/* Rank 0 unpacks for long what came in the first bucket, and has nothing to unpack in the last. */
static void done_event_covers_every_bucket(void **unused)
{
    enum { count = under_thread_sanitizer ? 1 << 18 : 1 << 23 };
    world_op_t op = {.collective = DP_COLLECTIVE_REDUCE_SCATTERV, .dtype = DP_F32, .count = count};
    reader_t readers[op_tensors_max];
    dp_stream_t *stream;
    world_t world;

    (void)unused;
    world_init(&world, 2, 1, count * sizeof(float), 2);
    assert_int_equal(device_of(&world, 0)->stream_create(world.rank[0].device, "user", &stream),
                     DP_OK);
    op_make(&world, &op, 1);
    op.tensors[0][1].count = op.tensors[1][1].count = 1;
    make_events(&world, &op, 0);
    world_launch(&world, &op, 1);
    read_behind_done(&world, &op, stream, readers);
    world_wait(&world);
    device_of(&world, 0)->stream_destroy(stream);
    assert_int_equal(op.status[0], DP_OK);
    assert_int_equal(op.done[0].count, count);
    assert_int_equal(op.done[1].count, 1);
    check_readers(&op, readers);
    free_events(&world, &op);
    op_free(&world, &op);
    world_fini(&world);
}

/* ---- Run-ahead ------------------------------------------------------------------------------ */

enum { names = 2, steps = 20 };

/* The work of a rank's stream for a step: the last result plus the rank. */
typedef struct step {
    const float *last; /* NULL: the first step */
    float *next;
    size_t count;
    int rank;
} step_t;

static void compute(void *argument)
{
    const step_t *step = argument;

    for (size_t i = 0; i < step->count; i++)
        step->next[i] = (step->last != NULL ? step->last[i] : (float)i) + (float)step->rank;
}

typedef struct runner {
    world_t *world;
    world_op_t (*ops)[names]; /* [steps] */
    step_t (*work)[names];    /* [steps] */
    dp_stream_t *stream;
    int rank;
    int is_one_launch; /* of both names; else of one each */
} runner_t;

/*
 * A training loop that never waits for a result: the gradients of step k + 1 are made on a stream
 * that waits for those of step k, and are submitted as soon as step k is issued. One rank makes
 * them in the other order.
 */
static void *run_ahead(void *argument)
{
    runner_t *runner = argument;
    world_t *world = runner->world;
    const dp_device_ops_t *device = device_of(world, runner->rank);
    int r = runner->rank;

    for (int s = 0; s < steps; s++) {
        for (int n = 0; n < names && s > 0; n++) {
            world_wait_issued(world, r, &runner->ops[s - 1][n]);
            device->stream_wait(runner->stream, runner->ops[s - 1][n].done_event[r]);
        }
        for (int i = 0; i < names; i++) {
            int n = r % 2 ? names - 1 - i : i;

            device->call(runner->stream, DP_WORK_LARGE, compute, &runner->work[s][n]);
            device->event_record(runner->ops[s][n].ready[r], runner->stream);
        }
        if (runner->is_one_launch) {
            world_launch_rank(world, r, runner->ops[s], names, (uint64_t)s + 1);
            continue;
        }
        for (int n = 0; n < names; n++)
            world_launch_rank(world, r, &runner->ops[s][n], 1, (uint64_t)(s * names + n) + 1);
    }
    return NULL;
}

/* nodes: of the CPU engine; 0: over the fake one. */
static void run_steps(int ranks, int nodes, int buffers, size_t count, int in_place,
                      int is_one_launch)
{
    world_op_t(*ops)[names] = calloc(steps, sizeof(*ops));
    step_t(*work)[names] = calloc((size_t)ranks * steps, sizeof(*work));
    runner_t runners[world_ranks_max];
    pthread_t threads[world_ranks_max];
    world_t world;

    if (nodes > 0) world_init_cpu(&world, ranks, nodes, 65536, buffers);
    if (nodes == 0) world_init(&world, ranks, 1, 65536, buffers);
    for (int s = 0; s < steps; s++) {
        for (int n = 0; n < names; n++) {
            world_op_t *op = &ops[s][n];

            *op = (world_op_t){.dtype = DP_F32,
                               .reduce = DP_SUM,
                               .postscale = 1.0 / ranks,
                               .count = count + (size_t)n,
                               .in_place = in_place};
            op_make(&world, op, 1);
            make_events(&world, op, 1);
            for (int r = 0; r < ranks; r++) {
                work[(size_t)r * steps + (size_t)s][n] =
                    (step_t){.last = s > 0 ? ops[s - 1][n].tensors[r][0].out : NULL,
                             .next = (float *)(uintptr_t)op->tensors[r][0].in,
                             .count = op->tensors[r][0].count,
                             .rank = r};
            }
        }
    }
    for (int r = 0; r < ranks; r++) {
        dp_device_t *device = world.rank[r].device;

        runners[r] = (runner_t){&world, ops, work + (size_t)r * steps, NULL, r, is_one_launch};
        assert_int_equal(device->ops->stream_create(device, "user", &runners[r].stream), DP_OK);
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_ahead, &runners[r]), 0);
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    world_wait(&world);
    for (int s = 0; s < steps; s++) {
        for (int n = 0; n < names; n++) {
            for (int r = 0; r < ranks; r++) {
                const float *out = ops[s][n].tensors[r][0].out;
                float mean = (float)(ranks - 1) / 2.0f;

                assert_int_equal(ops[s][n].status[r], DP_OK);
                assert_int_equal(ops[s][n].is_late[r], 0);
                for (size_t i = 0; i < ops[s][n].tensors[r][0].count; i++)
                    assert_true(out[i] == (float)i + (float)(s + 1) * mean);
            }
            free_events(&world, &ops[s][n]);
            op_free(&world, &ops[s][n]);
        }
    }
    for (int r = 0; r < ranks; r++)
        device_of(&world, r)->stream_destroy(runners[r].stream);
    world_fini(&world);
    free(work);
    free(ops);
}

static void steps_run_ahead_without_a_wait(void **unused)
{
    static const size_t counts[] = {5, 3000, 40000}; /* inline, one fused buffer, several */

    (void)unused;
    for (int buffers = 1; buffers <= 3; buffers++) {
        for (size_t c = 0; c < 3; c++) {
            int variant = ((int)c + buffers) % 4;

            if (under_sanitizer && (int)c + 1 != buffers) continue; /* each once */
            run_steps(2 + buffers % 2 * 2, 0, buffers, counts[c], variant % 2, variant / 2);
        }
    }
    for (int variant = 0; variant < 4; variant++) {
        run_steps(4, 1, 1 + variant / 2, counts[variant % 3], variant % 2, variant / 2);
        /* Traffic between nodes is the work of a library that the sanitizer cannot follow. */
        if (!under_thread_sanitizer)
            run_steps(2, 2, 1, counts[variant % 3], variant / 2, variant % 2);
    }
}

/* ---- Failure -------------------------------------------------------------------------------- */

static void abort_behind_a_closed_gate(void **unused)
{
    (void)unused;
    for (int in_place = 0; in_place < 2; in_place++) {
        world_op_t ops[3];
        dp_stream_t *streams[2];
        producer_t producers[2][3];
        gate_t gate = GATE_INIT;
        world_t world;

        memset(ops, 0, sizeof(ops));
        world_init(&world, 2, 1, 100000, 1);
        for (int r = 0; r < 2; r++) {
            dp_device_t *device = world.rank[r].device;

            assert_int_equal(device->ops->stream_create(device, "user", &streams[r]), DP_OK);
        }
        for (int i = 0; i < 3; i++) {
            ops[i] = (world_op_t){.dtype = DP_F32, .count = 20000, .in_place = in_place};
            op_make(&world, &ops[i], (uint64_t)i);
            make_events(&world, &ops[i], 1);
            for (int r = 0; r < 2; r++)
                produce_behind_gate(&world, &ops[i], r, streams[r], &gate, &producers[r][i]);
            world_launch(&world, &ops[i], 1);
        }
        world_wait_issued(&world, 0, &ops[0]);
        dp_pipeline_abort(world.rank[0].pipeline, DP_ERR_PEER_LOST, "rank 1 is gone");
        dp_pipeline_abort(world.rank[1].pipeline, DP_ERR_PEER_LOST, "rank 1 is gone");
        gate_open(&gate);
        world_wait(&world);
        for (int i = 0; i < 3; i++) {
            for (int r = 0; r < 2; r++) {
                assert_int_equal(ops[i].done_count[r], 1);
                assert_int_equal(ops[i].status[r], DP_ERR_PEER_LOST);
                assert_string_equal(ops[i].text[r], "rank 1 is gone");
                assert_int_equal(ops[i].is_late[r], 0);
                /* A stream that waits for it goes on. */
                assert_int_equal(device_of(&world, r)->event_done(ops[i].done_event[r]), 1);
            }
        }
        for (int r = 0; r < 2; r++) /* ends with what the stream has yet to produce */
            device_of(&world, r)->stream_destroy(streams[r]);
        for (int i = 0; i < 3; i++) {
            free_events(&world, &ops[i]);
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
    }
}

/* Runs in the launch thread, where a barrier completes: what follows there fails to allocate. */
static void arm(void *user, const dp_pipeline_done_t *done)
{
    const world_op_t *op = done->request;

    if (op->collective == DP_COLLECTIVE_BARRIER) fail_allocation(*(long *)user);
}

static void every_failed_allocation_is_survived(void **unused)
{
    int failures = 0, successes = 0;

    (void)unused;
    for (long n = 1; n < 60; n++) {
        world_op_t ops[3] = {{.collective = DP_COLLECTIVE_BARRIER},
                             {.dtype = DP_F32, .count = 60000, .tensor_count = 2},
                             {.collective = DP_COLLECTIVE_REDUCE, .dtype = DP_F32, .count = 100}};
        producer_t producers[3];
        gate_t gate = GATE_INIT;
        dp_stream_t *stream;
        int failed = 0;
        world_t world;

        world_init(&world, 1, 1, 100000, 4);
        world.on_done = arm;
        world.user = &n;
        assert_int_equal(device_of(&world, 0)->stream_create(world.rank[0].device, "user", &stream),
                         DP_OK);
        for (int i = 0; i < 3; i++) {
            op_make(&world, &ops[i], (uint64_t)i);
            if (i == 0) continue;
            make_events(&world, &ops[i], 1);
            produce_behind_gate(&world, &ops[i], 0, stream, &gate, &producers[i]);
        }
        for (int i = 0; i < 3; i++)
            world_launch(&world, &ops[i], 1);
        gate_open(&gate);
        world_wait(&world);
        device_of(&world, 0)->stream_destroy(stream);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ops[i].done_count[0], 1);
            assert_int_equal(ops[i].is_late[0], 0);
            if (ops[i].status[0] == DP_OK) {
                op_check(&world, &ops[i], 0.0);
            } else {
                failed = 1;
                assert_int_equal(ops[i].status[0], DP_ERR_NO_MEMORY);
            }
            free_events(&world, &ops[i]);
            op_free(&world, &ops[i]);
        }
        world_fini(&world);
        failures += failed;
        successes += !failed;
    }
    assert_true(failures > 10 && successes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(issued_before_ready_and_done_after),
        cmocka_unit_test(events_of_fused_and_cut_items),
        cmocka_unit_test(done_event_covers_every_bucket),
        cmocka_unit_test(steps_run_ahead_without_a_wait),
        cmocka_unit_test(abort_behind_a_closed_gate),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
