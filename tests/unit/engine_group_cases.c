/*
 * engine_group_cases.c - reduce, outputs that nobody wants, and groups made and ended at random.
 */
#include "engine_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_reference.h"

#define RANKS 16

/* ---- Reduce --------------------------------------------------------------------------------- */

static const size_t counts[] = {5, 0, 4096, 9001, 1, 70000};
#define PIECES DP_ARRAY_LEN(counts)

/* The figures of `expected`, and those found. */
static void check_tally(engine_rank_t *rank, dp_dtype_t dtype, void *expected, size_t count,
                        const dp_tally_t *found)
{
    dp_tally_t tally;
    const dp_cast_piece_t piece = {expected, expected, count, 1.0f, &tally};
    const dp_cast_args_t args = {dtype, dtype, &piece, 1, 0};

    dp_tally_init(&tally);
    if (count != 0) dp_kernel_cast(&args);
    engine_check(rank,
                 dp_tally_sum_squares(&tally) == dp_tally_sum_squares(found) &&
                     tally.absmax == found->absmax && tally.nonfinite == found->nonfinite,
                 "reduce %s: figures of %zu elements: %.17g, expected %.17g", dp_dtype_name(dtype),
                 count, dp_tally_sum_squares(found), dp_tally_sum_squares(&tally));
}

/* One piece per root, each against the reference; of one nobody wants the result. small: all of
 * it fits the way that takes one meet. */
static void check_reduce(engine_rank_t *rank, const engine_world_t *world, dp_dtype_t dtype,
                         dp_reduce_t reduce, dp_wire_t wire, int in_place, int small)
{
    const size_t bytes = dp_dtype_bytes(dtype);
    const size_t pieces = small ? 2 : PIECES;
    const int wants = rank->engine->ops->compresses && dp_dtype_is_float(dtype) &&
                      dtype != DP_F64 && reduce <= DP_AVERAGE;
    const double mean = reduce == DP_AVERAGE && dp_dtype_is_float(dtype) ? 1.0 / rank->size : 1.0;
    dp_engine_piece_t list[PIECES] = {0};
    dp_tally_t tallies[PIECES];
    char *ins[PIECES];
    char *outs[PIECES];
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_REDUCE,
                         .dtype = dtype,
                         .reduce = reduce,
                         .wire = wire,
                         .pieces = list,
                         .piece_count = pieces};
    const reference_t what = {dtype, reduce, wire, 1, 1.0, mean, wire == DP_WIRE_NONE};

    for (size_t i = 0; i < pieces; i++) {
        const int root = ((int)i + (int)dtype) % rank->size;

        ins[i] = engine_memory(rank, counts[i] * bytes + 1);
        outs[i] = in_place ? ins[i] : engine_memory(rank, counts[i] * bytes + 1);
        reference_fill(dtype, ins[i], counts[i], rank->rank, i * 1000, wire == DP_WIRE_NONE);
        dp_tally_init(&tallies[i]);
        list[i] = (dp_engine_piece_t){
            .in = ins[i],
            .out = root == rank->rank && i != 3 ? outs[i] : NULL, /* the fourth is dropped */
            .count = counts[i],
            .prescale = 1.0,
            .postscale = mean,
            .exponent = 1,
            .root = root,
            .tally = wants ? &tallies[i] : NULL};
    }
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "reduce %s %s: %s", dp_dtype_name(dtype),
                 dp_reduce_name(reduce), op.text);
    for (size_t i = 0; op.status == DP_OK && i < pieces; i++) {
        char *expected = malloc(counts[i] * bytes + 1);

        reference_reduce(world, &what, i * 1000, counts[i], expected);
        if (list[i].out != NULL) {
            engine_check(rank, memcmp(expected, outs[i], counts[i] * bytes) == 0,
                         "reduce %s %s wire %s, in place %d: piece %zu differs",
                         dp_dtype_name(dtype), dp_reduce_name(reduce), dp_wire_name(wire), in_place,
                         i);
        } else if (in_place) {
            reference_fill(dtype, expected + 0, counts[i], rank->rank, i * 1000,
                           wire == DP_WIRE_NONE);
            engine_check(rank, memcmp(expected, ins[i], counts[i] * bytes) == 0,
                         "reduce %s: the input of piece %zu changed", dp_dtype_name(dtype), i);
        }
        if (wants && (list[i].out != NULL || !in_place)) {
            check_tally(rank, dtype, expected, counts[i], &tallies[i]);
        }
        free(expected);
    }
    for (size_t i = 0; i < pieces; i++) {
        rank->engine->ops->free(rank->engine, ins[i]);
        if (!in_place) rank->engine->ops->free(rank->engine, outs[i]);
    }
}

void case_reduce(engine_rank_t *rank, void *user)
{
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce += 1 + dtype % 2) {
            if (dtype == DP_BOOL && reduce == DP_AVERAGE) continue;
            check_reduce(rank, user, (dp_dtype_t)dtype, (dp_reduce_t)reduce, DP_WIRE_NONE,
                         (dtype + reduce) % 2, reduce % 3 == 2);
        }
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        check_reduce(rank, user, DP_F32, DP_SUM, DP_WIRE_NONE, in_place, 1);
        if (!rank->engine->ops->compresses) continue;
        check_reduce(rank, user, DP_F32, DP_SUM, DP_WIRE_FP16, in_place, 0);
        check_reduce(rank, user, DP_F32, DP_AVERAGE, DP_WIRE_BF16, in_place, 0);
    }
}

/* ---- Outputs that are not wanted ------------------------------------------------------------ */

/* Odd ranks want nothing; even ones get what they would otherwise. */
static void check_dropped(engine_rank_t *rank, dp_collective_t collective, size_t count)
{
    const int wants = rank->rank % 2 == 0;
    const size_t rows = (size_t)rank->size;
    float *in = engine_memory(rank, (rows * count + 1) * sizeof(*in));
    float *out = calloc(rows * count + 1, sizeof(*out));
    dp_tally_t tally;
    const size_t sum_of_ranks = rows * (rows - 1) / 2;
    const float of_ranks = (float)sum_of_ranks;
    double squares = 0.0;
    dp_engine_piece_t piece = {.in = in,
                               .out = wants ? out : NULL,
                               .count = count,
                               .stride = count,
                               .prescale = 1.0,
                               .postscale = 1.0,
                               .tally = collective == DP_COLLECTIVE_REDUCE_SCATTER ? &tally : NULL};
    dp_engine_op_t op = {
        .collective = collective, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};

    if (in == NULL || out == NULL) abort();
    dp_tally_init(&tally);
    for (size_t i = 0; i < rows * count; i++)
        in[i] = (float)(i % 7) + (float)rank->rank;
    engine_run(rank, &op, DP_WORK_LARGE);
    engine_check(rank, op.status == DP_OK, "%s: %s", dp_collective_name(collective), op.text);
    for (size_t i = 0; i < rows * count; i++) {
        const size_t of_row = i % count;
        const size_t row = i / count;
        float expected = (float)(of_row % 7) + (float)row; /* allgather */

        if (collective == DP_COLLECTIVE_BROADCAST) {
            expected = i < count ? (float)(i % 7) : 0.0f;
        } else if (collective == DP_COLLECTIVE_REDUCE_SCATTER) {
            const size_t at = (size_t)rank->rank * count + i;
            const float sum = (float)(i % 7) * (float)rows + of_ranks;

            squares += (double)sum * (double)sum;
            expected = i >= count ? 0.0f : (float)(at % 7) * (float)rows + of_ranks;
        }
        if (!engine_check(rank, out[i] == (wants ? expected : 0.0f),
                          "%s of %zu: element %zu is %g, expected %g",
                          dp_collective_name(collective), count, i, (double)out[i],
                          (double)expected)) {
            break;
        }
    }
    if (rank->engine->ops->compresses && collective == DP_COLLECTIVE_REDUCE_SCATTER &&
        op.status == DP_OK && count != 0) {
        engine_check(rank, dp_tally_sum_squares(&tally) == squares,
                     "reduce_scatter: sum of squares %.17g, expected %.17g",
                     dp_tally_sum_squares(&tally), squares);
    }
    rank->engine->ops->free(rank->engine, in);
    free(out);
}

/* Averages of integers by another number than the ranks there are. */
static void check_divisor(engine_rank_t *rank, size_t count)
{
    int32_t *data = engine_memory(rank, count * sizeof(*data));
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = count, .prescale = 1.0, .postscale = 1.0};
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_I32,
                         .reduce = DP_AVERAGE,
                         .divisor = 3,
                         .pieces = &piece,
                         .piece_count = 1};

    for (size_t i = 0; i < count; i++)
        data[i] = -(int32_t)i;
    engine_run(rank, &op, DP_WORK_SMALL);
    for (size_t i = 0; i < count; i++) {
        if (!engine_check(rank, data[i] == -(int32_t)i * rank->size / 3, "divided by 3: %d",
                          data[i])) {
            break;
        }
    }
    rank->engine->ops->free(rank->engine, data);
}

void case_dropped(engine_rank_t *rank, void *user)
{
    static const size_t sizes[] = {1, 300, 5000, 90000};

    (void)user;
    for (size_t i = 0; i < DP_ARRAY_LEN(sizes); i++) {
        check_dropped(rank, DP_COLLECTIVE_BROADCAST, sizes[i]);
        check_dropped(rank, DP_COLLECTIVE_ALLGATHER, sizes[i]);
        check_dropped(rank, DP_COLLECTIVE_REDUCE_SCATTER, sizes[i]);
        check_divisor(rank, sizes[i]);
    }
}

/* ---- Groups --------------------------------------------------------------------------------- */

#define ALIVE 5

typedef struct member_list {
    int ranks[RANKS];
    int count; /* 0: no such group */
    uint32_t group_index;
    dp_engine_group_t *group; /* NULL where this rank is not in it, and of the world */
} member_list_t;

static int is_member(const member_list_t *list, int rank)
{
    for (int i = 0; i < list->count; i++) {
        if (list->ranks[i] == rank) return 1;
    }
    return 0;
}

static void make_group(engine_rank_t *rank, member_list_t *list, uint32_t group_index, uint32_t uid,
                       uint64_t *seed)
{
    dp_engine_members_t members = {.uid = uid, .group_index = group_index, .name = "some"};
    dp_error_t error = {DP_OK, ""};

    *list = (member_list_t){.group_index = group_index};
    for (int r = 0; r < rank->size; r++) {
        if (draw(seed, 3) != 0) list->ranks[list->count++] = r;
    }
    if (list->count == 0) list->ranks[list->count++] = (int)draw(seed, (uint64_t)rank->size);
    if (!is_member(list, rank->rank)) return;
    members.ranks = list->ranks;
    members.count = list->count;
    engine_check(rank,
                 rank->engine->ops->group_create(rank->engine, &members, &list->group, &error) ==
                     DP_OK,
                 "group_create: %s", error.text);
}

static void end_group(engine_rank_t *rank, member_list_t *list)
{
    dp_engine_op_t barrier = {.group = list->group, .collective = DP_COLLECTIVE_BARRIER};

    if (is_member(list, rank->rank)) {
        engine_run(rank, &barrier, DP_WORK_SMALL);
        engine_check(rank, barrier.status == DP_OK, "barrier: %s", barrier.text);
        rank->engine->ops->group_destroy(rank->engine, list->group);
    }
    list->count = 0;
}

/* Sums in a group, of whole numbers. */
static void check_sum(engine_rank_t *rank, const member_list_t *list, uint64_t *seed, int large)
{
    const size_t count = large ? 30000 + (size_t)draw(seed, 30000) : 1 + (size_t)draw(seed, 200);
    const int reduces = draw(seed, 2) != 0;
    const int root = (int)draw(seed, (uint64_t)list->count);
    const float plus = (float)draw(seed, 100);
    float *data;
    float sum = 0.0f;
    dp_engine_piece_t piece;
    dp_engine_op_t op;

    if (!is_member(list, rank->rank)) return;
    data = engine_memory(rank, count * sizeof(*data));
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(i % 10) + plus + (float)rank->rank;
    for (int i = 0; i < list->count; i++)
        sum += plus + (float)list->ranks[i];
    piece = (dp_engine_piece_t){
        .in = data, .out = data, .count = count, .prescale = 1.0, .postscale = 1.0, .root = root};
    op = (dp_engine_op_t){.group = list->group,
                          .collective = reduces ? DP_COLLECTIVE_REDUCE : DP_COLLECTIVE_ALLREDUCE,
                          .dtype = DP_F32,
                          .pieces = &piece,
                          .piece_count = 1};
    engine_run(rank, &op, large ? DP_WORK_LARGE : DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "in a group of %d: %s", list->count, op.text);
    for (size_t i = 0; op.status == DP_OK && i < count; i++) {
        const float expected = reduces && list->ranks[root] != rank->rank
                                   ? (float)(i % 10) + plus + (float)rank->rank
                                   : (float)(i % 10) * (float)list->count + sum;

        if (!engine_check(rank, data[i] == expected, "in a group of %d: element %zu is %g, not %g",
                          list->count, i, (double)data[i], (double)expected)) {
            break;
        }
    }
    rank->engine->ops->free(rank->engine, data);
}

/* Group numbers are used again as soon as the order allows, while other ranks may lag behind. */
void case_groups(engine_rank_t *rank, void *user)
{
    member_list_t lists[ALIVE + 1] = {0};
    uint64_t seed = 4711 + (uint64_t)rank->size;
    uint32_t uid = 0;

    (void)user;
    for (int r = 0; r < rank->size; r++)
        lists[0].ranks[lists[0].count++] = r;
    for (int i = 0; i < 400; i++) {
        const uint32_t at = (uint32_t)draw(&seed, ALIVE + 1);
        const uint64_t what = draw(&seed, 8);
        const uint64_t its_seed = draw(&seed, 1u << 30) + 1;

        if (lists[at].count == 0) {
            make_group(rank, &lists[at], at * 200, ++uid, &seed);
        } else if (what == 0 && at != 0) {
            end_group(rank, &lists[at]);
        } else if (what < 5) {
            check_sum(rank, &lists[at], &seed, what == 1);
        } else if (is_member(&lists[at], rank->rank)) {
            static const dp_collective_t some[] = {DP_COLLECTIVE_ALLTOALLV,
                                                   DP_COLLECTIVE_ALLGATHERV, DP_COLLECTIVE_SEND};

            check_exchange(rank, lists[at].group, lists[at].ranks, lists[at].count,
                           some[its_seed % DP_ARRAY_LEN(some)], its_seed);
        }
        if (rank->failures > 0) return;
    }
    for (uint32_t at = 1; at <= ALIVE; at++) {
        if (lists[at].count != 0 && at % 2 == 0) end_group(rank, &lists[at]);
    } /* the others end with the engine */
}
