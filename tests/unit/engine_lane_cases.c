/*
 * engine_lane_cases.c - the two lanes of an engine do not wait for each other.
 *
 * The proof takes no clock: the last rank gives its part of an operation in one lane only once it
 * has seen operations of the other lane complete on itself. If these waited for the first, the test
 * would never end.
 */
#include "engine_cases.h"

#include <stdlib.h>
#include <string.h>

enum { large_count = 300000, gathers = 12, rounds = 25 };

/* An operation on a stream of its own lane. */
typedef struct lane_run {
    dp_engine_op_t op;
    dp_engine_piece_t piece;
    dp_event_t *event;
} lane_run_t;

typedef struct lane_streams {
    dp_stream_t *of[DP_LANE_COUNT];
} lane_streams_t;

static int open_streams(engine_rank_t *rank, lane_streams_t *streams)
{
    streams->of[DP_LANE_MAIN] = rank->stream;
    return engine_check(rank,
                        rank->device->ops->stream_create(rank->device, "gather",
                                                         &streams->of[DP_LANE_GATHER]) == DP_OK,
                        "no stream");
}

static void close_streams(engine_rank_t *rank, lane_streams_t *streams)
{
    rank->device->ops->stream_destroy(streams->of[DP_LANE_GATHER]);
}

static void start(engine_rank_t *rank, const lane_streams_t *streams, lane_run_t *run)
{
    const dp_device_ops_t *device = rank->device->ops;
    dp_stream_t *stream = streams->of[run->op.lane];

    run->op.pieces = &run->piece;
    run->op.piece_count = 1;
    run->op.sequence = ++rank->sequence;
    if (device->event_create(rank->device, &run->event) != DP_OK) abort();
    if (rank->engine->ops->enqueue(rank->engine, stream, DP_WORK_LARGE, &run->op) != DP_OK) abort();
    if (device->event_record(run->event, stream) != DP_OK) abort();
}

static void finish(engine_rank_t *rank, lane_run_t *run)
{
    rank->device->ops->event_wait(run->event);
    rank->device->ops->event_destroy(run->event);
    engine_check(rank, run->op.status == DP_OK, "%s %llu: %s: %s",
                 dp_collective_name(run->op.collective), (unsigned long long)run->op.sequence,
                 dp_status_string(run->op.status), run->op.text);
}

/* ---- Operations ----------------------------------------------------------------------------- */

/* A sum over the ranks of a group of `place + 1`. */
static void make_sum(lane_run_t *run, dp_engine_group_t *group, int place, float *data,
                     size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(place + 1);
    memset(run, 0, sizeof(*run));
    run->op.group = group;
    run->op.collective = DP_COLLECTIVE_ALLREDUCE;
    run->op.dtype = DP_F32;
    run->piece = (dp_engine_piece_t){
        .in = data, .out = data, .count = count, .prescale = 1.0, .postscale = 1.0};
}

static void check_sum(engine_rank_t *rank, const float *data, size_t count, int size)
{
    const float expected = (float)(size * (size + 1) / 2);

    for (size_t i = 0; i < count; i++) {
        if (!engine_check(rank, data[i] == expected, "element %zu is %g, not %g", i,
                          (double)data[i], (double)expected))
            return;
    }
}

/* Rows of `round * 16 + place`, an odd round a broadcast of rank 0's row. */
static void make_gather(lane_run_t *run, dp_engine_group_t *group, int place, int round,
                        int32_t *data, size_t count)
{
    const int is_gather = round % 2 == 0;
    int32_t *row = data + (is_gather ? (size_t)place * count : 0);

    memset(run, 0, sizeof(*run));
    run->op.group = group;
    run->op.lane = DP_LANE_GATHER;
    run->op.dtype = DP_I32;
    run->op.collective = is_gather ? DP_COLLECTIVE_ALLGATHER : DP_COLLECTIVE_BROADCAST;
    run->piece = (dp_engine_piece_t){.in = row, .out = data, .count = count, .stride = count};
    for (size_t i = 0; i < count; i++)
        row[i] = round * 16 + place;
    if (!is_gather && place != 0) run->piece.in = NULL;
}

static void check_gather(engine_rank_t *rank, int round, const int32_t *data, size_t count,
                         int size)
{
    const int rows = round % 2 == 0 ? size : 1;

    for (size_t i = 0; i < (size_t)rows * count; i++) {
        const int32_t expected = round * 16 + (int32_t)(i / count);

        if (!engine_check(rank, data[i] == expected, "round %d: element %zu is %d, not %d", round,
                          i, data[i], expected))
            return;
    }
}

/* ---- Cases ---------------------------------------------------------------------------------- */

/* Small enough for one barrier, or several chunks. */
static size_t count_of(int round)
{
    return round % 4 < 2 ? 100 : 100000;
}

static void run_gathers(engine_rank_t *rank, const lane_streams_t *streams, int32_t *data)
{
    for (int round = 0; round < gathers; round++) {
        lane_run_t gather;

        make_gather(&gather, NULL, rank->rank, round, data, count_of(round));
        start(rank, streams, &gather);
        finish(rank, &gather);
        check_gather(rank, round, data, count_of(round), rank->size);
    }
}

void case_lane_gathers_pass(engine_rank_t *rank, void *user)
{
    const int withholds = rank->rank == rank->size - 1;
    float *large = engine_memory(rank, large_count * sizeof(*large));
    int32_t *rows = engine_memory(rank, (size_t)rank->size * 100000 * sizeof(*rows));
    lane_streams_t streams;
    lane_run_t sum;

    (void)user;
    if (large == NULL || rows == NULL || !open_streams(rank, &streams)) return;
    make_sum(&sum, NULL, rank->rank, large, large_count);
    if (!withholds) start(rank, &streams, &sum);
    run_gathers(rank, &streams, rows);
    if (withholds) start(rank, &streams, &sum);
    finish(rank, &sum);
    check_sum(rank, large, large_count, rank->size);
    close_streams(rank, &streams);
}

void case_lane_reduces_pass(engine_rank_t *rank, void *user)
{
    const int withholds = rank->rank == rank->size - 1;
    float *data = engine_memory(rank, large_count * sizeof(*data));
    int32_t *rows = engine_memory(rank, (size_t)rank->size * 100000 * sizeof(*rows));
    lane_streams_t streams;
    lane_run_t gather;

    (void)user;
    if (data == NULL || rows == NULL || !open_streams(rank, &streams)) return;
    make_gather(&gather, NULL, rank->rank, 2, rows, 100000);
    if (!withholds) start(rank, &streams, &gather);
    for (int round = 0; round < gathers; round++) {
        const size_t count = round % 2 ? 10 : large_count;
        lane_run_t sum;

        make_sum(&sum, NULL, rank->rank, data, count);
        start(rank, &streams, &sum);
        finish(rank, &sum);
        check_sum(rank, data, count, rank->size);
    }
    if (withholds) start(rank, &streams, &gather);
    finish(rank, &gather);
    check_gather(rank, 2, rows, 100000, rank->size);
    close_streams(rank, &streams);
}

/* Both lanes at once, in the world or in a group that ends after some rounds. */
static void run_both(engine_rank_t *rank, const lane_streams_t *streams, dp_engine_group_t *group,
                     int place, int size)
{
    float *data = engine_memory(rank, large_count * sizeof(*data));
    int32_t *rows = engine_memory(rank, (size_t)size * 100000 * sizeof(*rows));

    for (int round = 0; data != NULL && rows != NULL && round < rounds; round++) {
        const size_t count = round % 3 ? 1000 : large_count;
        lane_run_t sum, gather;

        make_sum(&sum, group, place, data, count);
        make_gather(&gather, group, place, round, rows, count_of(round));
        start(rank, streams, round % 2 ? &sum : &gather);
        start(rank, streams, round % 2 ? &gather : &sum);
        finish(rank, &sum);
        finish(rank, &gather);
        check_sum(rank, data, count, size);
        check_gather(rank, round, rows, count_of(round), size);
    }
    rank->engine->ops->free(rank->engine, data);
    rank->engine->ops->free(rank->engine, rows);
}

void case_lanes_at_once(engine_rank_t *rank, void *user)
{
    const dp_engine_ops_t *engine = rank->engine->ops;
    const int members = rank->size - 1; /* all but rank 0 */
    lane_streams_t streams;
    int ranks[16];

    (void)user;
    if (!open_streams(rank, &streams)) return;
    run_both(rank, &streams, NULL, rank->rank, rank->size);
    for (int i = 0; i < members; i++)
        ranks[i] = i + 1;
    /* The same number again: what the first group left behind must not disturb the second. */
    for (uint32_t uid = 1; rank->rank > 0 && uid <= 2; uid++) {
        const dp_engine_members_t about = {
            .uid = uid, .group_index = 5, .ranks = ranks, .count = members, .name = "some"};
        dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};
        dp_engine_group_t *group;
        dp_error_t error = {DP_OK, ""};

        if (!engine_check(rank, engine->group_create(rank->engine, &about, &group, &error) == DP_OK,
                          "group_create: %s", error.text))
            break;
        run_both(rank, &streams, group, rank->rank - 1, members);
        barrier.group = group;
        engine_run(rank, &barrier, DP_WORK_SMALL);
        engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
        engine->group_destroy(rank->engine, group);
    }
    run_both(rank, &streams, NULL, rank->rank, rank->size);
    close_streams(rank, &streams);
}
