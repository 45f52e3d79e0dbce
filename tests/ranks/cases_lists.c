/*
 * cases_lists.c - lists of tensors that complete together, in each form; and operations whose sizes
 * change with every use of their name.
 */
#include <stdlib.h>

#include "tests/ranks/cases_internal.h"

enum { RANKS_MAX = 64, LARGE = 30000 };

/* One float and one integer tensor of in_rows and out_rows rows. */
typedef struct pair {
    float *a_in, *a_out;
    int32_t b_in[3 * RANKS_MAX], b_out[3 * RANKS_MAX];
    dp_tensor_t list[2];
} pair_t;

static int prepare(dp_context_t *dp, pair_t *pair, size_t rows)
{
    int rank = dp_rank(dp);

    pair->a_in = (float *)(void *)case_allocate(dp, LARGE * rows * sizeof(float), 0);
    pair->a_out = (float *)(void *)case_allocate(dp, LARGE * rows * sizeof(float), 0);
    EXPECT(dp, pair->a_in != NULL && pair->a_out != NULL, "no memory");
    for (size_t i = 0; i < LARGE * rows; i++)
        pair->a_in[i] = (float)((int)(i % 100) + rank);
    for (size_t i = 0; i < 3 * rows; i++) {
        pair->b_in[i] = (int32_t)i * 10 + rank;
        pair->b_out[i] = -1;
    }
    pair->list[0] = (dp_tensor_t){pair->a_in, pair->a_out, LARGE, DP_F32};
    pair->list[1] = (dp_tensor_t){pair->b_in, pair->b_out, 3, DP_I32};
    return 0;
}

static int finish(dp_context_t *dp, dp_handle_t *handle, size_t count)
{
    dp_result_t result = DP_RESULT_INIT;

    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, result.count == count, "%zu elements, wanted %zu", result.count, count);
    return 0;
}

int case_lists(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp), root = ranks - 1;
    size_t all = (LARGE + 3) * (size_t)ranks;
    float first = (float)(ranks * (ranks - 1) / 2); /* the sum of the ranks */
    dp_group_t *world = dp_world(dp);
    dp_handle_t *handle;
    pair_t pair;

    for (int round = 0; round < 3; round++) {
        if (prepare(dp, &pair, (size_t)ranks) != 0) return 1;
        EXPECT_STATUS(dp, dp_grouped_reduce(world, "reduce", pair.list, 2, root, NULL, &handle),
                      DP_OK);
        if (finish(dp, handle, rank == root ? LARGE + 3 : 0) != 0) return 1;
        EXPECT(dp, pair.b_out[2] == (rank == root ? 20 * ranks + (int)first : -1), "%d",
               pair.b_out[2]);
        EXPECT(dp, rank != root || pair.a_out[LARGE - 1] == 99.0f * (float)ranks + first, "%g",
               (double)pair.a_out[LARGE - 1]);
        EXPECT_STATUS(dp, dp_grouped_broadcast(world, "cast", pair.list, 2, root, NULL, &handle),
                      DP_OK);
        if (finish(dp, handle, LARGE + 3) != 0) return 1;
        EXPECT(dp, pair.a_out[LARGE - 1] == (float)(99 + root), "%g",
               (double)pair.a_out[LARGE - 1]);
        EXPECT(dp, pair.b_out[1] == 10 + root, "%d", pair.b_out[1]);
        EXPECT_STATUS(dp, dp_grouped_allgather(world, "gather", pair.list, 2, NULL, &handle),
                      DP_OK);
        if (finish(dp, handle, all) != 0) return 1;
        for (int r = 0; r < ranks; r++) {
            EXPECT(dp, pair.a_out[LARGE * r + 5] == (float)(5 + r), "row %d: %g", r,
                   (double)pair.a_out[LARGE * r + 5]);
            EXPECT(dp, pair.b_out[3 * r + 2] == 20 + r, "row %d: %d", r, pair.b_out[3 * r + 2]);
        }
        EXPECT_STATUS(dp, dp_grouped_reduce_scatter(world, "scatter", pair.list, 2, NULL, &handle),
                      DP_OK);
        if (finish(dp, handle, LARGE + 3) != 0) return 1;
        EXPECT(dp, pair.b_out[1] == (3 * rank + 1) * 10 * ranks + (int)first, "%d", pair.b_out[1]);
        EXPECT(dp, pair.a_out[7] == (float)((LARGE * rank + 7) % 100 * ranks) + first, "%g",
               (double)pair.a_out[7]);
        /* one of the list is wrong on one rank: none of it is done */
        if (ranks > 1) {
            dp_result_t result = DP_RESULT_INIT;

            pair.b_out[0] = -5;
            if (rank == 0) pair.list[1].count = 2;
            EXPECT_STATUS(dp, dp_grouped_allreduce(world, "bad", pair.list, 2, NULL, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_ERR_MISMATCH);
            EXPECT_TEXT(dp, result.text, "count of tensor 1");
            EXPECT(dp, pair.b_out[0] == -5, "%d", pair.b_out[0]);
        }
        case_give_back(dp, (char *)pair.a_in, 0);
        case_give_back(dp, (char *)pair.a_out, 0);
    }
    return 0;
}

/* Every kind under one name each, larger, smaller and empty from step to step. */
int case_changing(dp_context_t *dp)
{
    static const size_t counts[] = {5, 2000, 0, 70001, 1, 333};

    for (int step = 0; step < 18; step++) {
        case_op_t ops[CASE_KINDS];

        for (int kind = 0; kind < CASE_KINDS; kind++) {
            ops[kind] = (case_op_t){.kind = kind,
                                    .group = dp_world(dp),
                                    .dtype = step % 4 == 3 ? DP_I64 : DP_F32,
                                    .count = counts[step % 6],
                                    .step = step,
                                    .in_place = step % 5 == 1,
                                    .in_arena = step % 3 == 1,
                                    .root = step % dp_size(dp)};
            if (case_op_begin(dp, &ops[kind], case_kind_name(kind)) != 0) return 1;
        }
        for (int kind = CASE_KINDS - 1; kind >= 0; kind--)
            if (case_op_end(dp, &ops[kind]) != 0) return 1;
    }
    return 0;
}

/* All of it again, watched by DP_CHECK_DATA. */
int case_watched(dp_context_t *dp)
{
    return case_collectives_in(dp, dp_world(dp), "w.", 1) != 0 || case_changing(dp) != 0;
}
