/*
 * cases_rows.c - rows in place, as sharded training has them: they are reduced and gathered where
 * they lie, and no byte is copied.
 */
#include "tests/ranks/cases_internal.h"

/* Rows in place, as sharded training has them: gradients are reduced and scattered, weights
 * gathered, two small tensors beside them as one operation. */
typedef struct rows {
    float *gradients, *weights; /* [size of the group][ROW] */
    float *small;               /* [2][size of the group] */
    dp_group_t *group;
    int round;
} rows_t;

enum { ROW = 5000 };

static int rows_round(dp_context_t *dp, rows_t *rows)
{
    const size_t size = (size_t)dp_group_size(rows->group);
    const size_t rank = (size_t)dp_group_rank(rows->group);
    float *row = rows->gradients + rank * ROW, *own = rows->weights + rank * ROW;
    const dp_tensor_t pair[2] = {{rows->small + rank, rows->small, 1, DP_F32},
                                 {rows->small + size + rank, rows->small + size, 1, DP_F32}};
    const float step = (float)(rows->round++ % 100);
    dp_handle_t *handles[3];

    for (size_t i = 0; i < size * ROW; i++)
        rows->gradients[i] = step + (float)(i / ROW) + (float)rank;
    EXPECT_STATUS(dp,
                  dp_reduce_scatter(rows->group, "rows.gradients", rows->gradients, row, ROW,
                                    DP_F32, NULL, &handles[0]),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handles[0], 60.0, NULL), DP_OK);
    for (size_t i = 0; i < ROW; i++)
        own[i] = 0.5f * row[i];
    rows->small[rank] = step;
    rows->small[size + rank] = (float)rank;
    EXPECT_STATUS(dp,
                  dp_allgather(rows->group, "rows.weights", own, rows->weights, ROW, DP_F32, NULL,
                               &handles[1]),
                  DP_OK);
    EXPECT_STATUS(dp, dp_grouped_allgather(rows->group, "rows.small", pair, 2, NULL, &handles[2]),
                  DP_OK);
    for (int i = 1; i < 3; i++)
        EXPECT_STATUS(dp, dp_wait(handles[i], 60.0, NULL), DP_OK);
    for (size_t r = 0; r < size; r++) {
        const float sum = (float)size * (step + (float)r) + (float)(size * (size - 1) / 2);

        EXPECT(dp,
               rows->weights[r * ROW] == 0.5f * sum &&
                   rows->weights[r * ROW + ROW - 1] == 0.5f * sum,
               "round %d, row %zu: %g and %g, wanted %g", rows->round, r,
               (double)rows->weights[r * ROW], (double)rows->weights[r * ROW + ROW - 1],
               0.5 * (double)sum);
        EXPECT(dp, rows->small[r] == step && rows->small[size + r] == (float)r, "%g, %g",
               (double)rows->small[r], (double)rows->small[size + r]);
    }
    return 0;
}

/* Rounds of a group's ranks. */
static int rows_rounds(dp_context_t *dp, dp_group_t *group, int count)
{
    const size_t size = (size_t)dp_group_size(group);
    rows_t rows = {.group = group};

    rows.gradients = (float *)(void *)case_allocate(dp, size * ROW * sizeof(float), 1);
    rows.weights = (float *)(void *)case_allocate(dp, size * ROW * sizeof(float), 1);
    rows.small = (float *)(void *)case_allocate(dp, 2 * size * sizeof(float), 1);
    EXPECT(dp, rows.gradients != NULL && rows.weights != NULL && rows.small != NULL, "no memory");
    for (int i = 0; i < count; i++)
        if (rows_round(dp, &rows) != 0) return 1;
    case_give_back(dp, (char *)rows.gradients, 1);
    case_give_back(dp, (char *)rows.weights, 1);
    case_give_back(dp, (char *)rows.small, 1);
    return 0;
}

/* In the world, and in groups of the even and the odd ranks and of all but the first. In either
 * order. */
int case_rows_in_groups(dp_context_t *dp)
{
    dp_group_t *parity, *tail;
    dp_stats_t before = DP_STATS_INIT, after = DP_STATS_INIT;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "parity", dp_rank(dp) % 2, 0, NULL, &parity),
                  DP_OK);
    EXPECT_STATUS(
        dp, dp_group_split(dp_world(dp), "tail", dp_rank(dp) > 0 ? 0 : -1, 0, NULL, &tail), DP_OK);
    EXPECT_STATUS(dp, dp_stats_get(dp, &before), DP_OK);
    if (rows_rounds(dp, dp_world(dp), 12) != 0) return 1;
    if (rows_rounds(dp, parity, 12) != 0) return 1;
    if (tail != NULL && rows_rounds(dp, tail, 12) != 0) return 1;
    EXPECT_STATUS(dp, dp_stats_get(dp, &after), DP_OK);
    EXPECT(dp, after.bytes_packed == before.bytes_packed, "%llu bytes were copied",
           (unsigned long long)(after.bytes_packed - before.bytes_packed));
    return 0;
}
