/*
 * test_engine_brief.c - a brief operation whose caller has a deadline: enqueue() comes back
 * although a rank is missing, and the operation goes on without the caller.
 *
 * The proof takes no clock: the last rank gives its part only once enqueue() has come back on all
 * the others. If that waited for the last rank, the test would never end.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_world.h"

enum { rounds = 40, count_max = 1024, give_up_ns = 200000 };

typedef struct meeting {
    _Atomic int gone; /* ranks whose enqueue() has come back, over all rounds */
} meeting_t;

typedef struct brief {
    dp_engine_piece_t piece;
    dp_engine_op_t op;
    float *in, *out;
} brief_t;

/* Rank r gives r + 1 + round in every element. */
static void make(engine_rank_t *rank, brief_t *brief, dp_collective_t collective, size_t count,
                 int round)
{
    const size_t rows = collective == DP_COLLECTIVE_ALLGATHER ? (size_t)rank->size : 1;

    for (size_t i = 0; i < count; i++)
        brief->in[i] = (float)(rank->rank + 1 + round);
    memset(brief->out, 0, rows * count * sizeof(float));
    brief->piece = (dp_engine_piece_t){.in = brief->in,
                                       .out = brief->out,
                                       .count = count,
                                       .stride = count,
                                       .prescale = 1.0,
                                       .postscale = 1.0};
    brief->op = (dp_engine_op_t){.collective = collective,
                                 .dtype = DP_F32,
                                 .pieces = &brief->piece,
                                 .piece_count = 1,
                                 .sequence = ++rank->sequence};
}

static void check(engine_rank_t *rank, const brief_t *brief, int round)
{
    const int size = rank->size;
    const size_t count = brief->piece.count;
    const dp_collective_t collective = brief->op.collective;
    const size_t rows = collective == DP_COLLECTIVE_ALLGATHER ? (size_t)size : 1;

    if (!engine_check(rank, brief->op.status == DP_OK, "%s: %s", dp_collective_name(collective),
                      brief->op.text))
        return;
    if (collective == DP_COLLECTIVE_REDUCE && rank->rank != 0) return;
    for (size_t i = 0; i < rows * count; i++) {
        const float expected = collective == DP_COLLECTIVE_ALLGATHER ? (float)(i / count) + 1.0f
                               : collective == DP_COLLECTIVE_BROADCAST
                                   ? 1.0f
                                   : (float)(size * (size + 1) / 2 + (size - 1) * round);

        if (!engine_check(rank, brief->out[i] == expected + (float)round, "%s: [%zu] is %g",
                          dp_collective_name(collective), i, (double)brief->out[i]))
            return;
    }
}

static void enqueue(engine_rank_t *rank, brief_t *brief)
{
    if (rank->engine->ops->enqueue(rank->engine, rank->stream, DP_WORK_SMALL, &brief->op) != DP_OK)
        abort();
}

static void wait_for_stream(engine_rank_t *rank)
{
    dp_event_t *event;

    if (rank->device->ops->event_create(rank->device, &event) != DP_OK ||
        rank->device->ops->event_record(event, rank->stream) != DP_OK)
        abort();
    rank->device->ops->event_wait(event);
    rank->device->ops->event_destroy(event);
}

static void make_room(engine_rank_t *rank, brief_t *brief)
{
    brief->in = engine_memory(rank, count_max * sizeof(float));
    brief->out = engine_memory(rank, (size_t)rank->size * count_max * sizeof(float));
}

/* A second operation is enqueued behind the one that goes on, and must not overtake it. */
static void come_late(engine_rank_t *rank, void *user)
{
    static const dp_collective_t kinds[] = {DP_COLLECTIVE_ALLREDUCE, DP_COLLECTIVE_REDUCE,
                                            DP_COLLECTIVE_BROADCAST, DP_COLLECTIVE_ALLGATHER};
    meeting_t *meeting = user;
    const int others = rank->size - 1;
    brief_t first, second;

    make_room(rank, &first);
    make_room(rank, &second);
    for (int round = 0; round < rounds; round++) {
        const size_t count = round % 3 == 0 ? 1 : round % 3 == 1 ? 700 : 250;

        make(rank, &first, kinds[round % 4], count, round);
        make(rank, &second, kinds[(round + 1) % 4], count, round);
        if (rank->rank == others) {
            while (atomic_load(&meeting->gone) < (round + 1) * others)
                usleep(100);
        } else {
            first.op.give_up_ns = dp_now_ns() + (uint64_t)(round % 4) * give_up_ns;
            if (round % 2 == 0) second.op.give_up_ns = first.op.give_up_ns;
        }
        enqueue(rank, &first);
        if (rank->rank != others) {
            enqueue(rank, &second);
            atomic_fetch_add(&meeting->gone, 1);
        } else {
            enqueue(rank, &second);
        }
        wait_for_stream(rank);
        check(rank, &first, round);
        check(rank, &second, round);
    }
}

static void enqueue_returns_although_a_rank_is_missing(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        engine_world_t world = ENGINE_WORLD(size, 1);
        meeting_t meeting = {0};

        world.spin_ns = size == 3 ? 50000 : 0;
        assert_int_equal(engine_world_threads(&world, come_late, &meeting), 0);
    }
}

/* Between giving up and going on. */
static void be_aborted(engine_rank_t *rank, void *user)
{
    meeting_t *meeting = user;
    brief_t brief;

    make_room(rank, &brief);
    if (rank->rank == rank->size - 1) {
        while (atomic_load(&meeting->gone) < rank->size - 1)
            usleep(1000);
        rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
        return;
    }
    make(rank, &brief, DP_COLLECTIVE_ALLREDUCE, 9, 0);
    brief.op.give_up_ns = dp_now_ns();
    enqueue(rank, &brief);
    if (rank->rank == 0) usleep(20000); /* the stream's thread sleeps at the barrier by then */
    rank->engine->ops->abort(rank->engine, DP_ERR_PEER_LOST, "rank 1 was lost, says the test");
    wait_for_stream(rank);
    engine_check(rank, brief.op.status == DP_ERR_PEER_LOST, "status is %s",
                 dp_status_string(brief.op.status));
    engine_check(rank, strcmp(brief.op.text, "rank 1 was lost, says the test") == 0, "text is '%s'",
                 brief.op.text);
    atomic_fetch_add(&meeting->gone, 1);
}

static void an_abort_ends_what_goes_on(void **state)
{
    engine_world_t world = ENGINE_WORLD(3, 1);
    meeting_t meeting = {0};

    (void)state;
    assert_int_equal(engine_world_threads(&world, be_aborted, &meeting), 0);
}

static void say_how_much(engine_rank_t *rank, void *user)
{
    const size_t *expected = user;
    const size_t bytes = rank->engine->ops->brief_bytes(rank->engine, NULL);

    engine_check(rank, bytes == *expected, "%zu bytes are brief, not %zu", bytes, *expected);
}

/* Each of n ranks reads the inputs of all, so there is a bound of the whole; between nodes the
 * engine cannot leave an operation. */
static void how_much_is_brief_depends_on_the_ranks(void **state)
{
    const engine_world_t two = ENGINE_WORLD(2, 1), twelve = ENGINE_WORLD(12, 1),
                         apart = ENGINE_WORLD(2, 2);
    size_t bytes = 4096;

    (void)state;
    assert_int_equal(engine_world_threads(&two, say_how_much, &bytes), 0);
    bytes = (size_t)32 * 1024 / 12;
    assert_int_equal(engine_world_threads(&twelve, say_how_much, &bytes), 0);
    bytes = 0;
    assert_int_equal(engine_world_threads(&apart, say_how_much, &bytes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(enqueue_returns_although_a_rank_is_missing),
        cmocka_unit_test(an_abort_ends_what_goes_on),
        cmocka_unit_test(how_much_is_brief_depends_on_the_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
