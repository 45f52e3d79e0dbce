/*
 * engine_cases.c - cases that every world of ranks must pass, threads or processes.
 */
#include "engine_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_reference.h"
#include "sanitizer.h"

static const size_t counts[] = {0, 1, 7, 4096, 4097, 0, 9000, 33};
#define PIECES DP_ARRAY_LEN(counts)

/* Elements of all pieces, with an odd one between them so that they are not aligned. */
static size_t spread(size_t *starts)
{
    size_t at = 1;

    for (size_t i = 0; i < PIECES; i++) {
        starts[i] = at;
        at += counts[i] + 1;
    }
    return at;
}

/* One allreduce of all pieces against the reference. */
static void check_allreduce(engine_rank_t *rank, const engine_world_t *world, dp_dtype_t dtype,
                            dp_reduce_t reduce, dp_wire_t wire, int in_place, int scaled)
{
    const size_t bytes = dp_dtype_bytes(dtype);
    size_t starts[PIECES];
    const size_t total = spread(starts);
    char *in = engine_memory(rank, total * bytes);
    char *out = in_place ? in : engine_memory(rank, total * bytes);
    char *given = malloc(total * bytes);
    const int exact = wire == DP_WIRE_NONE && reduce != DP_PRODUCT;
    dp_engine_piece_t pieces[PIECES] = {0};
    dp_tally_t tallies[PIECES];
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = dtype,
                         .reduce = reduce,
                         .wire = wire,
                         .pieces = pieces,
                         .piece_count = PIECES};

    if (in == NULL || out == NULL || given == NULL) abort();
    reference_fill(dtype, given, total, rank->rank, 0, exact);
    memcpy(in, given, total * bytes);
    for (size_t i = 0; i < PIECES; i++) {
        const double mean =
            reduce == DP_AVERAGE && dp_dtype_is_float(dtype) ? 1.0 / rank->size : 1.0;

        dp_tally_init(&tallies[i]);
        pieces[i] = (dp_engine_piece_t){.in = in + starts[i] * bytes,
                                        .out = out + starts[i] * bytes,
                                        .count = counts[i],
                                        .prescale = scaled ? 0.5 : 1.0,
                                        .postscale = (scaled ? 4.0 : 1.0) * mean,
                                        .exponent = (int)i - 3,
                                        .tally = &tallies[i]};
    }
    engine_run(rank, &op, in_place ? DP_WORK_LARGE : DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s %s: %s: %s", dp_dtype_name(dtype),
                 dp_reduce_name(reduce), dp_status_string(op.status), op.text);
    for (size_t i = 0; i < PIECES && op.status == DP_OK; i++) {
        const reference_t what = {
            dtype, reduce, wire, pieces[i].exponent, pieces[i].prescale, pieces[i].postscale,
            exact};
        dp_tally_t expected;
        char *block = malloc(counts[i] * bytes + 1);
        size_t k;

        reference_reduce(world, &what, starts[i], counts[i], block);
        k = reference_differs(dtype, block, out + starts[i] * bytes, counts[i]);
        engine_check(
            rank, k == counts[i], "%s %s wire %s, piece %zu element %zu differs, in place %d",
            dp_dtype_name(dtype), dp_reduce_name(reduce), dp_wire_name(wire), i, k, in_place);
        if (rank->engine->ops->compresses && dp_dtype_is_float(dtype) &&
            (reduce == DP_SUM || reduce == DP_AVERAGE)) {
            const dp_cast_piece_t piece = {block, block, counts[i], 1.0f, &expected};
            const dp_cast_args_t args = {dtype, dtype, &piece, 1, 0};

            dp_tally_init(&expected);
            if (dtype != DP_F64 && counts[i] != 0) dp_kernel_cast(&args);
            engine_check(rank,
                         dtype == DP_F64 || (dp_tally_sum_squares(&expected) ==
                                                 dp_tally_sum_squares(&tallies[i]) &&
                                             expected.absmax == tallies[i].absmax &&
                                             expected.nonfinite == tallies[i].nonfinite),
                         "%s %s wire %s: figures of piece %zu: %.17g, expected %.17g",
                         dp_dtype_name(dtype), dp_reduce_name(reduce), dp_wire_name(wire), i,
                         dp_tally_sum_squares(&tallies[i]), dp_tally_sum_squares(&expected));
        }
        free(block);
    }
    for (size_t i = 0; i < PIECES && op.status == DP_OK; i++) { /* nothing beside the pieces */
        engine_check(rank,
                     in_place ? memcmp(in + (starts[i] - 1) * bytes,
                                       given + (starts[i] - 1) * bytes, bytes) == 0
                              : memcmp(in, given, total * bytes) == 0,
                     "%s: bytes beside piece %zu changed", dp_dtype_name(dtype), i);
    }
    free(given);
    if (out != in) rank->engine->ops->free(rank->engine, out);
    rank->engine->ops->free(rank->engine, in);
}

/* A scaled product of small numbers in 16 bits is rounded once by an engine that widens, and at
 * every step by one that does not. */
void case_reductions(engine_rank_t *rank, void *user)
{
    const int widens = rank->engine->ops->compresses;

    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
            if (dtype == DP_BOOL && reduce == DP_AVERAGE) continue;
            check_allreduce(rank, user, (dp_dtype_t)dtype, (dp_reduce_t)reduce, DP_WIRE_NONE,
                            (dtype + reduce) % 2,
                            dp_dtype_is_float((dp_dtype_t)dtype) && reduce % 2 == 0 &&
                                (widens || reduce != DP_PRODUCT));
        }
    }
}

void case_wires(engine_rank_t *rank, void *user)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        check_allreduce(rank, user, DP_F32, DP_SUM, DP_WIRE_FP16, in_place, 0);
        check_allreduce(rank, user, DP_F32, DP_AVERAGE, DP_WIRE_FP16, in_place, 1);
        check_allreduce(rank, user, DP_F32, DP_SUM, DP_WIRE_BF16, in_place, 1);
    }
}

/* ---- Moves ---------------------------------------------------------------------------------- */

static void check_move(engine_rank_t *rank, dp_collective_t collective, dp_dtype_t dtype, int root,
                       size_t count, int in_place)
{
    const size_t bytes = dp_dtype_bytes(dtype);
    const int gathers = collective == DP_COLLECTIVE_ALLGATHER;
    const size_t rows = gathers ? (size_t)rank->size : 1;
    const size_t stride = count + 3;
    char *out = engine_memory(rank, (rows * stride + 1) * bytes);
    char *in = engine_memory(rank, (count + 1) * bytes);
    char *expected = malloc((count + 1) * bytes);
    char *own = in + bytes; /* not aligned */
    dp_engine_piece_t piece[2];
    dp_engine_op_t op = {
        .collective = collective, .dtype = dtype, .root = root, .pieces = piece, .piece_count = 2};
    const size_t half = count / DP_TALLY_BLOCK / 2 * DP_TALLY_BLOCK; /* two parts */

    if (in == NULL || out == NULL || expected == NULL) return;
    if (in_place) own = out + (gathers ? (size_t)rank->rank * stride * bytes : 0);
    if (gathers || rank->rank == root) reference_fill(dtype, own, count, rank->rank, 0, 1);
    for (int i = 0; i < 2; i++) {
        const size_t at = i == 0 ? 0 : half;

        piece[i] =
            (dp_engine_piece_t){.in = gathers || rank->rank == root ? own + at * bytes : NULL,
                                .out = out + at * bytes,
                                .count = i == 0 ? half : count - half,
                                .stride = stride};
    }
    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "%s of %zu: %s", dp_collective_name(collective), count,
                 op.text);
    for (size_t row = 0; row < rows && op.status == DP_OK; row++) {
        reference_fill(dtype, expected, count, gathers ? (int)row : root, 0, 1);
        engine_check(rank, memcmp(expected, out + row * stride * bytes, count * bytes) == 0,
                     "%s %s of %zu, root %d, in place %d: row %zu differs",
                     dp_collective_name(collective), dp_dtype_name(dtype), count, root, in_place,
                     row);
    }
    free(expected);
    rank->engine->ops->free(rank->engine, in);
    rank->engine->ops->free(rank->engine, out);
}

void case_moves(engine_rank_t *rank, void *user)
{
    static const size_t sizes[] = {0, 1, 1000, 5000, 100000, 700001};
    dp_engine_op_t barrier = {.collective = DP_COLLECTIVE_BARRIER};

    (void)user;
    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            const dp_dtype_t dtype = in_place ? DP_U8 : DP_F32;

            check_move(rank, DP_COLLECTIVE_ALLGATHER, dtype, 0, sizes[i], in_place);
            for (int root = 0; root < rank->size; root += 1 + (sizes[i] > 5000)) {
                check_move(rank, DP_COLLECTIVE_BROADCAST, dtype, root, sizes[i], in_place);
            }
        }
        engine_run(rank, &barrier, DP_WORK_SMALL);
        engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
    }
}

/* ---- reduce_scatter ------------------------------------------------------------------------- */

static void check_scatter(engine_rank_t *rank, const engine_world_t *world, dp_dtype_t dtype,
                          dp_reduce_t reduce, dp_wire_t wire, size_t count, int in_place)
{
    const size_t bytes = dp_dtype_bytes(dtype);
    const size_t stride = count + 1;
    const size_t total = stride * (size_t)rank->size;
    char *in = engine_memory(rank, total * bytes);
    char *out = in_place ? in + (size_t)rank->rank * stride * bytes : malloc(count * bytes + 1);
    const double mean = reduce == DP_AVERAGE && dp_dtype_is_float(dtype) ? 1.0 / rank->size : 1.0;
    const reference_t what = {dtype, reduce, wire, 2, 1.0, mean, 0};
    dp_tally_t tally;
    dp_tally_t whole;
    dp_engine_piece_t piece = {.in = in,
                               .out = out,
                               .count = count,
                               .stride = stride,
                               .prescale = 1.0,
                               .postscale = mean,
                               .exponent = 2,
                               .tally = &tally};
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_REDUCE_SCATTER,
                         .dtype = dtype,
                         .reduce = reduce,
                         .wire = wire,
                         .pieces = &piece,
                         .piece_count = 1};

    if (in == NULL || out == NULL) return;
    dp_tally_init(&tally);
    dp_tally_init(&whole);
    reference_fill(dtype, in, total, rank->rank, 0, 0);
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "reduce_scatter %s %s of %zu: %s", dp_dtype_name(dtype),
                 dp_reduce_name(reduce), count, op.text);
    for (int row = 0; row < rank->size && op.status == DP_OK; row++) {
        char *expected = calloc(count + 1, 8);
        const dp_cast_piece_t cast = {expected, expected, count, 1.0f, &whole};
        const dp_cast_args_t args = {dtype, dtype, &cast, 1, 0};

        /* On a wire it is not rounded again after the sum: it does not travel back. */
        if (wire == DP_WIRE_NONE || world->nodes == 1)
            reference_reduce(world, &what, (size_t)row * stride, count, expected);
        if (row == rank->rank && (wire == DP_WIRE_NONE || world->nodes == 1)) {
            engine_check(rank, memcmp(expected, out, count * bytes) == 0,
                         "reduce_scatter %s %s of %zu differs, in place %d", dp_dtype_name(dtype),
                         dp_reduce_name(reduce), count, in_place);
        }
        if (dtype == DP_F32 && count != 0) dp_kernel_cast(&args);
        free(expected);
    }
    if (rank->engine->ops->compresses && dtype == DP_F32 && wire == DP_WIRE_NONE &&
        reduce <= DP_AVERAGE) {
        engine_check(rank,
                     dp_tally_sum_squares(&whole) == dp_tally_sum_squares(&tally) &&
                         whole.absmax == tally.absmax,
                     "reduce_scatter of %zu: sum of squares %.17g, expected %.17g", count,
                     dp_tally_sum_squares(&tally), dp_tally_sum_squares(&whole));
    }
    if (!in_place) free(out);
    rank->engine->ops->free(rank->engine, in);
}

void case_scatter(engine_rank_t *rank, void *user)
{
    static const size_t sizes[] = {0, 1, 4096, 5001, 150001};

    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        check_scatter(rank, user, DP_F32, DP_SUM, DP_WIRE_NONE, sizes[i], 0);
        check_scatter(rank, user, DP_F32, DP_AVERAGE, DP_WIRE_NONE, sizes[i], 1);
        check_scatter(rank, user, DP_BF16, DP_SUM, DP_WIRE_NONE, sizes[i], 0);
        check_scatter(rank, user, DP_I32, DP_AVERAGE, DP_WIRE_NONE, sizes[i], 1);
        check_scatter(rank, user, DP_F64, DP_MAX, DP_WIRE_NONE, sizes[i], 0);
        if (!rank->engine->ops->compresses) continue;
        check_scatter(rank, user, DP_F32, DP_SUM, DP_WIRE_FP16, sizes[i], 0);
    }
}

/* ---- The same numbers, cut differently ------------------------------------------------------ */

static void run_cut(engine_rank_t *rank, float *data, size_t count, size_t piece_elems,
                    dp_wire_t wire, dp_tally_t *tally)
{
    const size_t pieces = (count + piece_elems - 1) / piece_elems;
    dp_engine_piece_t *list = calloc(pieces, sizeof(*list));
    dp_tally_t *tallies = calloc(pieces, sizeof(*tallies));
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_F32,
                         .reduce = DP_AVERAGE,
                         .wire = wire,
                         .pieces = list,
                         .piece_count = pieces};

    if (list == NULL || tallies == NULL) abort();
    for (size_t i = 0; i < pieces; i++) {
        float *at = data + i * piece_elems;

        dp_tally_init(&tallies[i]);
        list[i] = (dp_engine_piece_t){.in = at,
                                      .out = at,
                                      .count = dp_min(piece_elems, count - i * piece_elems),
                                      .prescale = 1.0,
                                      .postscale = 1.0 / rank->size,
                                      .exponent = 3,
                                      .tally = &tallies[i]};
    }
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "cut by %zu: %s", piece_elems, op.text);
    dp_tally_init(tally);
    for (size_t i = 0; i < pieces; i++)
        dp_tally_merge(tally, &tallies[i]);
    free(tallies);
    free(list);
}

void case_grouping(engine_rank_t *rank, void *user)
{
    enum { BLOCKS = under_sanitizer ? 60 : 300, COUNT = BLOCKS * DP_TALLY_BLOCK + 17 };
    static const size_t cuts[] = {COUNT, 3 * DP_TALLY_BLOCK, DP_TALLY_BLOCK,
                                  BLOCKS / 3 * DP_TALLY_BLOCK};
    float *data = engine_memory(rank, COUNT * sizeof(*data));
    float *first = malloc(COUNT * sizeof(*first));
    dp_tally_t expected;
    dp_tally_t tally;

    (void)user;
    if (data == NULL || first == NULL) return;
    for (int wire = DP_WIRE_NONE; wire <= DP_WIRE_BF16; wire++) {
        for (size_t i = 0; i < 2 * DP_ARRAY_LEN(cuts); i++) { /* each twice: run to run */
            reference_fill(DP_F32, data, COUNT, rank->rank, 0, 0);
            run_cut(rank, data, COUNT, cuts[i % DP_ARRAY_LEN(cuts)], (dp_wire_t)wire, &tally);
            if (i == 0) {
                memcpy(first, data, COUNT * sizeof(*first));
                expected = tally;
            }
            engine_check(rank, memcmp(first, data, COUNT * sizeof(*first)) == 0,
                         "cut by %zu: other bits", cuts[i % DP_ARRAY_LEN(cuts)]);
            engine_check(rank, memcmp(&expected, &tally, sizeof(tally)) == 0,
                         "cut by %zu: other figures", cuts[i % DP_ARRAY_LEN(cuts)]);
        }
    }
    /* Very many pieces, most of them small. */
    reference_fill(DP_F32, data, COUNT, rank->rank, 0, 1);
    memcpy(first, data, COUNT * sizeof(*first));
    run_cut(rank, data, 5000 * 11, 11, DP_WIRE_NONE, &tally);
    run_cut(rank, first == NULL ? data : data + 60000, 60000, 60000, DP_WIRE_NONE, &tally);
    for (size_t i = 0; i < 5000 * 11; i++) {
        float sum = 0.0f;

        for (int r = 0; r < rank->size; r++) {
            float value;

            reference_fill(DP_F32, &value, 1, r, i, 1);
            sum += value;
        }
        if (!engine_check(rank, data[i] == sum * (float)(1.0 / rank->size),
                          "many pieces: element %zu is %g, expected %g", i, (double)data[i],
                          (double)sum / rank->size)) {
            break;
        }
    }
    free(first);
    rank->engine->ops->free(rank->engine, data);
}

void case_large(engine_rank_t *rank, void *user)
{
    enum { COUNT = under_sanitizer ? 700001 : 3000001 };
    float *data = engine_memory(rank, COUNT * sizeof(*data));
    dp_tally_t tally;

    (void)user;
    if (data == NULL) return;
    for (int wire = DP_WIRE_NONE; wire <= DP_WIRE_FP16; wire++) {
        double squares = 0.0;

        for (size_t i = 0; i < COUNT; i++)
            data[i] = (float)(i % 64 + (size_t)rank->rank);
        run_cut(rank, data, COUNT, COUNT, (dp_wire_t)wire, &tally);
        for (size_t i = 0; i < COUNT; i++) {
            const float expected =
                (float)(i % 64 * (size_t)rank->size + (size_t)(rank->size * (rank->size - 1) / 2)) *
                (float)(1.0 / rank->size);

            squares += (double)data[i] * (double)data[i];
            if (!engine_check(
                    rank, data[i] == expected, "large, wire %s: element %zu is %g, expected %g",
                    dp_wire_name((dp_wire_t)wire), i, (double)data[i], (double)expected)) {
                break;
            }
        }
        engine_check(rank,
                     tally.nonfinite == 0 && dp_tally_sum_squares(&tally) > 0.999999 * squares &&
                         dp_tally_sum_squares(&tally) < 1.000001 * squares,
                     "large: sum of squares %g, expected %g", dp_tally_sum_squares(&tally),
                     squares);
    }
    rank->engine->ops->free(rank->engine, data);
}

void case_repeat(engine_rank_t *rank, void *user)
{
    float *data = engine_memory(rank, 20000 * sizeof(*data));

    (void)user;
    if (data == NULL) return;
    for (int i = 0; i < 300; i++) {
        const size_t count = i % 3 == 0 ? 1 : i % 3 == 1 ? 3000 : 20000;
        dp_engine_piece_t piece = {
            .in = data, .out = data, .count = count, .prescale = 1.0, .postscale = 1.0};
        dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                             .dtype = DP_F32,
                             .pieces = &piece,
                             .piece_count = 1};

        for (size_t k = 0; k < count; k++)
            data[k] = (float)(rank->rank + i);
        engine_run(rank, &op, i % 2 ? DP_WORK_SMALL : DP_WORK_LARGE);
        if (!engine_check(rank, op.status == DP_OK, "repeat %d: %s", i, op.text)) return;
        for (size_t k = 0; k < count; k++) {
            const float expected = (float)(i * rank->size + rank->size * (rank->size - 1) / 2);

            if (!engine_check(rank, data[k] == expected, "repeat %d: %g, expected %g", i,
                              (double)data[k], (double)expected)) {
                return;
            }
        }
    }
    rank->engine->ops->free(rank->engine, data);
}
