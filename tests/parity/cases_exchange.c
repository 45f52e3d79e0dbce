/*
 * cases_exchange.c - what Horovod asserts of alltoall and reducescatter; and the operations with a
 * root, which it lacks.
 */
#include <stdlib.h>

#include "tests/parity/parity.h"

/* ---- alltoall ------------------------------------------------------------------------------- */

/* Rank s sends counts(s, r) elements to rank r, all of value s * 16 + r. */
typedef size_t (*counts_t)(int source, int target);

static size_t by_source(int source, int target)
{
    (void)target;
    return (size_t)source + 1;
}

static size_t nobody(int source, int target)
{
    (void)source;
    (void)target;
    return 0;
}

static size_t not_from_one(int source, int target)
{
    (void)target;
    return source == 1 ? 0 : (size_t)source + 1;
}

static size_t not_to_one(int source, int target)
{
    return target == 1 ? 0 : (size_t)source + 1;
}

static size_t ragged(int source, int target)
{
    return (size_t)(source * 7 + target * 5) % 11;
}

static int exchange(dp_context_t *dp, dp_group_t *group, const char *label, counts_t counts,
                    size_t width)
{
    const int ranks = dp_group_size(group), rank = dp_group_rank(group);
    size_t send[PARITY_RANKS_MAX], receive[PARITY_RANKS_MAX], sent = 0, received = 0;
    double *in, *out;
    int failed = 0;

    for (int r = 0; r < ranks; r++) {
        send[r] = counts(rank, r) * width;
        sent += send[r];
        received += counts(r, rank) * width;
    }
    in = malloc((sent + 1) * sizeof(double));
    out = malloc((received + 1) * sizeof(double));
    failed = in == NULL || out == NULL;
    for (int dtype = 0; !failed && dtype < DP_DTYPE_COUNT; dtype++) {
        const size_t element = dp_dtype_bytes((dp_dtype_t)dtype);
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle = NULL;
        char *at = (char *)in;
        char name[64];

        snprintf(name, sizeof(name), "%s.%d", label, dtype);
        for (int r = 0; r < ranks; r++) {
            parity_fill((dp_dtype_t)dtype, at, send[r], 0.0, rank * 16 + r);
            at += send[r] * element;
        }
        memset(receive, 0xff, sizeof(receive));
        failed = parity_wait(dp_alltoallv(group, name, in, send, out, received, receive,
                                          (dp_dtype_t)dtype, NULL, &handle),
                             &handle, &result) != DP_OK ||
                 result.count != received;
        at = (char *)out;
        for (int r = 0; !failed && r < ranks; r++) {
            failed =
                receive[r] != counts(r, rank) * width ||
                parity_differs((dp_dtype_t)dtype, at, receive[r], 0.0, r * 16 + rank) != SIZE_MAX;
            at += receive[r] * element;
        }
        if (failed) fprintf(stderr, "%s: %s\n", name, result.text);
    }
    free(in);
    free(out);
    EXPECT(dp, !failed, "%s: %s", label, dp_error_text(dp));
    return 0;
}

int parity_alltoall(dp_context_t *dp)
{
    for (size_t width = 1; width <= 4; width *= 2) {
        char name[32];

        snprintf(name, sizeof(name), "alltoall.%zu", width);
        if (exchange(dp, dp_world(dp), name, by_source, width)) return 1;
    }
    return 0;
}

/* Under one name counts change from use to use. */
int parity_alltoall_uneven(dp_context_t *dp)
{
    return exchange(dp, dp_world(dp), "alltoall.uneven", ragged, 3) ||
           exchange(dp, dp_world(dp), "alltoall.uneven", by_source, 1) ||
           exchange(dp, dp_world(dp), "alltoall.uneven", ragged, 400);
}

int parity_alltoall_zero_splits(dp_context_t *dp)
{
    return exchange(dp, dp_world(dp), "alltoall.zero", nobody, 1);
}

int parity_alltoall_one_rank_sends_nothing(dp_context_t *dp)
{
    return exchange(dp, dp_world(dp), "alltoall.silent", not_from_one, 2);
}

int parity_alltoall_one_rank_receives_nothing(dp_context_t *dp)
{
    return exchange(dp, dp_world(dp), "alltoall.deaf", not_to_one, 2);
}

int parity_alltoall_process_sets(dp_context_t *dp)
{
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    if (exchange(dp, half, "alltoall.set", ragged, 5)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

int parity_alltoall_equal_split(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp);
    double in[PARITY_RANKS_MAX * 17], out[PARITY_RANKS_MAX * 17];

    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        const size_t row = 17 * dp_dtype_bytes((dp_dtype_t)dtype);
        dp_handle_t *handle = NULL;
        char name[32];

        snprintf(name, sizeof(name), "alltoall.equal.%d", dtype);
        for (size_t r = 0; r < ranks; r++) {
            parity_fill((dp_dtype_t)dtype, (char *)in + r * row, 17, 0.0,
                        (double)r * 4 + dp_rank(dp));
        }
        EXPECT_STATUS(dp,
                      parity_wait(dp_alltoall(dp_world(dp), name, in, out, 17, (dp_dtype_t)dtype,
                                              NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (size_t r = 0; r < ranks; r++) {
            EXPECT(dp,
                   parity_differs((dp_dtype_t)dtype, (char *)out + r * row, 17, 0.0,
                                  dp_rank(dp) * 4 + (double)r) == SIZE_MAX,
                   "%s: row %zu", name, r);
        }
    }
    return 0;
}

int parity_alltoall_type_error(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX] = {0}, out[PARITY_RANKS_MAX];
    const dp_dtype_t dtype = dp_rank(dp) % 2 == 0 ? DP_I32 : DP_F32;
    size_t send[PARITY_RANKS_MAX] = {0};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(
        dp,
        parity_wait(dp_alltoall(dp_world(dp), "alltoall.type", in, out, 1, dtype, NULL, &handle),
                    &handle, &result),
        DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "i32");
    EXPECT_STATUS(dp,
                  parity_wait(dp_alltoallv(dp_world(dp), "alltoall.typev", in, send, out,
                                           PARITY_RANKS_MAX, NULL, dtype, NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "f32");
    return 0;
}

/* Rows of different length where all are said to be equal. */
int parity_alltoall_rank_error(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX * 2] = {0}, out[PARITY_RANKS_MAX * 2];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(dp,
                  parity_wait(dp_alltoall(dp_world(dp), "alltoall.rows", in, out,
                                          1 + (size_t)dp_rank(dp) % 2, DP_F32, NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "alltoall.rows");
    return 0;
}

/* Where Horovod refuses splits that exceed the tensor, the sum of the counts is the tensor here;
 * what can be wrong is that nothing was given, or that the sum is no size at all. */
int parity_alltoall_splits_error(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX] = {0}, out[PARITY_RANKS_MAX];
    size_t send[PARITY_RANKS_MAX];

    EXPECT_STATUS(
        dp,
        dp_alltoallv(dp_world(dp), "alltoall.splits", in, NULL, out, 1, NULL, DP_F32, NULL, NULL),
        DP_ERR_INVALID);
    for (int r = 0; r < dp_size(dp); r++)
        send[r] = SIZE_MAX / 4;
    EXPECT_STATUS(
        dp,
        dp_alltoallv(dp_world(dp), "alltoall.splits", in, send, out, 1, NULL, DP_F32, NULL, NULL),
        DP_ERR_INVALID);
    return 0;
}

/* ---- reducescatter -------------------------------------------------------------------------- */

/* Row r of in is value(i) + r; grouped as two tensors where asked for. */
static int scatter_sums(dp_context_t *dp, dp_group_t *group, const char *label, dp_reduce_t reduce,
                        int grouped)
{
    const size_t ranks = (size_t)dp_group_size(group), rank = (size_t)dp_group_rank(group);
    const double factor = reduce == DP_AVERAGE ? 1.0 : (double)ranks;
    double in[2][17 * PARITY_RANKS_MAX], out[2][17];

    for (int dtype = 0; dtype < DP_BOOL; dtype++) {
        const size_t row = 17 * dp_dtype_bytes((dp_dtype_t)dtype);
        dp_options_t options = DP_OPTIONS_INIT;
        dp_tensor_t tensors[2];
        dp_handle_t *handle = NULL;
        dp_status_t status;
        char name[64];

        snprintf(name, sizeof(name), "%s.%d", label, dtype);
        options.reduce = reduce;
        for (size_t k = 0; k < 2; k++) {
            for (size_t r = 0; r < ranks; r++)
                parity_fill((dp_dtype_t)dtype, (char *)in[k] + r * row, 17, 1.0, (double)(r + k));
            tensors[k] = (dp_tensor_t){in[k], out[k], 17, (dp_dtype_t)dtype};
        }
        if (grouped) {
            status = dp_grouped_reduce_scatter(group, name, tensors, 2, &options, &handle);
        } else {
            status = dp_reduce_scatter(group, name, in[0], out[0], 17, (dp_dtype_t)dtype, &options,
                                       &handle);
        }
        EXPECT_STATUS(dp, parity_wait(status, &handle, NULL), DP_OK);
        for (size_t k = 0; k < (grouped ? 2u : 1u); k++) {
            EXPECT(dp,
                   parity_differs((dp_dtype_t)dtype, out[k], 17, factor,
                                  factor * (double)(rank + k)) == SIZE_MAX,
                   "%s: tensor %zu", name, k);
        }
    }
    return 0;
}

int parity_reducescatter(dp_context_t *dp)
{
    return scatter_sums(dp, dp_world(dp), "scatter", DP_SUM, 0);
}

int parity_reducescatter_average(dp_context_t *dp)
{
    return scatter_sums(dp, dp_world(dp), "scatter.average", DP_AVERAGE, 0);
}

int parity_grouped_reducescatter(dp_context_t *dp)
{
    return scatter_sums(dp, dp_world(dp), "scatter.grouped", DP_SUM, 1);
}

int parity_grouped_reducescatter_average(dp_context_t *dp)
{
    return scatter_sums(dp, dp_world(dp), "scatter.grouped.average", DP_AVERAGE, 1);
}

int parity_reducescatter_process_sets(dp_context_t *dp)
{
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    if (scatter_sums(dp, half, "scatter.set", DP_SUM, 0)) return 1;
    if (scatter_sums(dp, half, "scatter.set.grouped", DP_SUM, 1)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* A length that the number of ranks does not divide: the first ranks get one more. */
int parity_reducescatter_uneven(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp), total = 4 * ranks + ranks / 2;
    double in[5 * PARITY_RANKS_MAX], out[5];
    size_t counts[PARITY_RANKS_MAX], first = 0;

    for (size_t r = 0; r < ranks; r++) {
        counts[r] = 4 + (r < ranks / 2);
        if (r < (size_t)dp_rank(dp)) first += counts[r];
    }
    for (int dtype = 0; dtype < DP_BOOL; dtype++) {
        const size_t mine = counts[dp_rank(dp)];
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle = NULL;
        char name[64];

        snprintf(name, sizeof(name), "scatter.uneven.%d", dtype);
        for (size_t i = 0; i < total; i++)
            parity_store((dp_dtype_t)dtype, in, i, (double)i);
        EXPECT_STATUS(dp,
                      parity_wait(dp_reduce_scatterv(dp_world(dp), name, in, out, counts,
                                                     (dp_dtype_t)dtype, NULL, &handle),
                                  &handle, &result),
                      DP_OK);
        for (size_t i = 0; i < mine; i++) {
            uint64_t wanted[2] = {0};

            parity_store((dp_dtype_t)dtype, wanted, 0, (double)(ranks * (first + i)));
            EXPECT(dp,
                   memcmp((char *)out + i * dp_dtype_bytes((dp_dtype_t)dtype), wanted,
                          dp_dtype_bytes((dp_dtype_t)dtype)) == 0,
                   "%s: element %zu", name, i);
        }
        EXPECT(dp, result.count == mine, "%zu elements", result.count);
    }
    return 0;
}

int parity_reducescatter_error(dp_context_t *dp)
{
    float in[2 * PARITY_RANKS_MAX] = {0}, out[2];
    size_t counts[PARITY_RANKS_MAX];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(dp,
                  parity_wait(dp_reduce_scatter(dp_world(dp), "scatter.error", in, out,
                                                1 + (size_t)dp_rank(dp) % 2, DP_F32, NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "scatter.error");
    for (int r = 0; r < dp_size(dp); r++)
        counts[r] = r == 0 ? 1 + (size_t)dp_rank(dp) % 2 : 0;
    EXPECT_STATUS(dp,
                  parity_wait(dp_reduce_scatterv(dp_world(dp), "scatter.errorv", in, out, counts,
                                                 DP_F32, NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "scatter.errorv");
    return 0;
}

int parity_reducescatter_type_error(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX] = {0}, out[1];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(
        dp,
        parity_wait(dp_reduce_scatter(dp_world(dp), "scatter.type", in, out, 1,
                                      dp_rank(dp) % 2 == 0 ? DP_I32 : DP_F32, NULL, &handle),
                    &handle, &result),
        DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "f32");
    return 0;
}

/* One element per rank, which Horovod refuses as a scalar, is a row like any other. */
int parity_reducescatter_scalar(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX], out = 0.0f;
    dp_handle_t *handle = NULL;

    for (int r = 0; r < dp_size(dp); r++)
        in[r] = (float)r;
    EXPECT_STATUS(dp,
                  parity_wait(dp_reduce_scatter(dp_world(dp), "scatter.one", in, &out, 1, DP_F32,
                                                NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, out == (float)(dp_size(dp) * dp_rank(dp)), "%g", (double)out);
    return 0;
}
