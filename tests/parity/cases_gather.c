/*
 * cases_gather.c - what Horovod asserts of allgather and broadcast.
 */
#include <stdlib.h>

#include "tests/parity/parity.h"

static const size_t uneven[] = {17, 32, 81, 12, 15, 23, 22, 0, 1, 40, 3, 9, 28, 5, 7, 2};

/* ---- allgather ------------------------------------------------------------------------------ */

static int gather(dp_context_t *dp, dp_group_t *group, const char *name, dp_dtype_t dtype,
                  size_t count)
{
    const size_t bytes = count * dp_dtype_bytes(dtype), ranks = (size_t)dp_group_size(group);
    char *in = malloc(bytes), *out = malloc(bytes * ranks);
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status = DP_ERR_NO_MEMORY;
    size_t wrong = SIZE_MAX;

    if (in != NULL && out != NULL) {
        parity_fill(dtype, in, count, 0.0, dp_rank(dp));
        status = parity_wait(dp_allgather(group, name, in, out, count, dtype, NULL, &handle),
                             &handle, &result);
        for (size_t r = 0; status == DP_OK && r < ranks; r++) {
            const int world_rank = dp_group_world_rank(group, (int)r);

            if (parity_differs(dtype, out + r * bytes, count, 0.0, world_rank) != SIZE_MAX)
                wrong = r;
        }
    }
    free(in);
    free(out);
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT(dp, wrong == SIZE_MAX, "%s: row %zu", name, wrong);
    EXPECT(dp, result.count == count * ranks, "%zu elements", result.count);
    return 0;
}

int parity_allgather(dp_context_t *dp)
{
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < PARITY_COUNTS; i++) {
            char name[64];

            snprintf(name, sizeof(name), "gather.%d.%zu", dtype, i);
            if (gather(dp, dp_world(dp), name, (dp_dtype_t)dtype, parity_counts[i])) return 1;
        }
    }
    return 0;
}

int parity_allgather_process_sets(dp_context_t *dp)
{
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        char name[64];

        snprintf(name, sizeof(name), "gather.set.%d", dtype);
        if (gather(dp, half, name, (dp_dtype_t)dtype, 17)) return 1;
    }
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* Parts of 17, 32, 81, ... rows of `width`, and counts that change from use to use. */
static int gather_uneven(dp_context_t *dp, dp_group_t *group, const char *name, dp_dtype_t dtype,
                         size_t width, size_t turn)
{
    const size_t ranks = (size_t)dp_group_size(group), element = dp_dtype_bytes(dtype);
    size_t counts[PARITY_RANKS_MAX], total = 0, at = 0, mine = 0;
    char *in, *out;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;
    int wrong = -1;

    for (size_t r = 0; r < ranks; r++) {
        const size_t rank = (size_t)dp_group_world_rank(group, (int)r);
        const size_t count = uneven[(rank + turn) % DP_ARRAY_LEN(uneven)] * width;

        if (rank == (size_t)dp_rank(dp)) mine = count;
        total += count;
    }
    in = malloc(mine * element + 1);
    out = malloc(total * element + 1);
    if (in == NULL || out == NULL) {
        free(in);
        free(out);
        return 1;
    }
    parity_fill(dtype, in, mine, 0.0, dp_rank(dp));
    status =
        parity_wait(dp_allgatherv(group, name, in, mine, out, total, counts, dtype, NULL, &handle),
                    &handle, &result);
    for (size_t r = 0; status == DP_OK && r < ranks; r++) {
        const int rank = dp_group_world_rank(group, (int)r);
        const size_t count = uneven[((size_t)rank + turn) % DP_ARRAY_LEN(uneven)] * width;

        if (counts[r] != count ||
            parity_differs(dtype, out + at * element, count, 0.0, rank) != SIZE_MAX) {
            wrong = (int)r;
        }
        at += count;
    }
    free(in);
    free(out);
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT(dp, wrong < 0, "%s: part %d", name, wrong);
    EXPECT(dp, result.count == total, "%zu elements, not %zu", result.count, total);
    return 0;
}

int parity_allgather_variable_size(dp_context_t *dp)
{
    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        char name[64];

        snprintf(name, sizeof(name), "variable.%d", dtype);
        for (size_t turn = 0; turn < 3; turn++) {
            const size_t width = turn == 0 ? 1 : turn == 1 ? 17 : 17 * 17;

            if (gather_uneven(dp, dp_world(dp), name, (dp_dtype_t)dtype, width, turn)) return 1;
        }
    }
    return 0;
}

int parity_allgather_async_fused(dp_context_t *dp)
{
    enum { COUNT = DP_DTYPE_COUNT };
    const size_t ranks = (size_t)dp_size(dp);
    double in[COUNT][17];
    double(*out)[17 * PARITY_RANKS_MAX] = calloc(COUNT, sizeof(*out));
    dp_handle_t *handles[COUNT];
    const int is_first = dp_rank(dp) == 0;
    int failed = out == NULL;

    if (!failed && !is_first) failed = parity_after_rank0(dp, "gathers.gate");
    for (int k = 0; !failed && k < COUNT; k++) {
        char name[32];

        snprintf(name, sizeof(name), "gathers.%d", k);
        parity_fill((dp_dtype_t)k, in[k], 17, 0.0, dp_rank(dp));
        failed = dp_allgather(dp_world(dp), name, in[k], out[k], 17, (dp_dtype_t)k, NULL,
                              &handles[k]) != DP_OK;
        if (!failed && is_first && ranks > 1) failed = dp_test(handles[k]) != DP_ERR_PENDING;
    }
    if (!failed && is_first) failed = parity_after_rank0(dp, "gathers.gate");
    for (int k = 0; !failed && k < COUNT; k++) {
        const size_t row = 17 * dp_dtype_bytes((dp_dtype_t)k);

        failed = dp_wait(handles[k], 120.0, NULL) != DP_OK;
        for (size_t r = 0; !failed && r < ranks; r++) {
            failed = parity_differs((dp_dtype_t)k, (char *)out[k] + r * row, 17, 0.0, (double)r) !=
                     SIZE_MAX;
        }
    }
    free(out);
    EXPECT(dp, !failed, "%s", dp_error_text(dp));
    return 0;
}

/* Where all parts are said to be equal, others are an error. */
int parity_allgather_error(dp_context_t *dp)
{
    float in[64] = {0}, out[64 * PARITY_RANKS_MAX];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    const size_t count = 10 + (size_t)dp_rank(dp) % 2;

    EXPECT_STATUS(dp,
                  parity_wait(dp_allgather(dp_world(dp), "gather.error", in, out, count, DP_F32,
                                           NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "gather.error");
    EXPECT_TEXT(dp, result.text, "11");
    return 0;
}

int parity_allgather_type_error(dp_context_t *dp)
{
    float in[17] = {0}, out[17 * PARITY_RANKS_MAX];
    const dp_dtype_t dtype = dp_rank(dp) % 2 == 0 ? DP_I32 : DP_F32;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(
        dp,
        parity_wait(dp_allgather(dp_world(dp), "gather.type", in, out, 17, dtype, NULL, &handle),
                    &handle, &result),
        DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "i32");
    EXPECT_STATUS(dp,
                  parity_wait(dp_allgatherv(dp_world(dp), "gather.typev", in, 17, out,
                                            DP_ARRAY_LEN(out), NULL, dtype, NULL, &handle),
                              &handle, &result),
                  DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "f32");
    return 0;
}

int parity_allgather_duplicate_name_error(dp_context_t *dp)
{
    float in[17] = {0}, out[17 * PARITY_RANKS_MAX];
    dp_handle_t *handle = NULL;

    if (dp_rank(dp) != 0 && parity_after_rank0(dp, "gather.gate")) return 1;
    EXPECT_STATUS(
        dp, dp_allgather(dp_world(dp), "gather.twice", in, out, 17, DP_F32, NULL, &handle), DP_OK);
    if (dp_rank(dp) == 0) {
        EXPECT_STATUS(dp,
                      dp_allgather(dp_world(dp), "gather.twice", in, out, 17, DP_F32, NULL, NULL),
                      DP_ERR_BUSY);
        if (parity_after_rank0(dp, "gather.gate")) return 1;
    }
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_OK);
    return 0;
}

int parity_grouped_allgather(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp);
    double in[5][17], out[5][17 * PARITY_RANKS_MAX];

    for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++) {
        const size_t row = 17 * dp_dtype_bytes((dp_dtype_t)dtype);
        dp_tensor_t tensors[5];
        dp_handle_t *handle = NULL;
        char name[32];

        snprintf(name, sizeof(name), "gather.grouped.%d", dtype);
        for (int k = 0; k < 5; k++) {
            parity_fill((dp_dtype_t)dtype, in[k], 17, 0.0, dp_rank(dp) + k);
            tensors[k] = (dp_tensor_t){in[k], out[k], 17, (dp_dtype_t)dtype};
        }
        EXPECT_STATUS(
            dp,
            parity_wait(dp_grouped_allgather(dp_world(dp), name, tensors, 5, NULL, &handle),
                        &handle, NULL),
            DP_OK);
        for (size_t k = 0; k < 5; k++) {
            for (size_t r = 0; r < ranks; r++) {
                EXPECT(dp,
                       parity_differs((dp_dtype_t)dtype, (char *)out[k] + r * row, 17, 0.0,
                                      (double)(r + k)) == SIZE_MAX,
                       "%s: tensor %zu, row %zu", name, k, r);
            }
        }
    }
    return 0;
}

/* Objects of any length are bytes. */
int parity_allgather_object(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp);
    char text[64], out[64 * PARITY_RANKS_MAX];
    size_t counts[PARITY_RANKS_MAX], at = 0;
    dp_handle_t *handle = NULL;

    snprintf(text, sizeof(text), "{\"rank\": %d, \"data\": \"%.*s\"}", dp_rank(dp), dp_rank(dp) % 9,
             "xxxxxxxxx");
    EXPECT_STATUS(dp,
                  parity_wait(dp_allgatherv(dp_world(dp), "object", text, strlen(text) + 1, out,
                                            sizeof(out), counts, DP_U8, NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    for (size_t r = 0; r < ranks; r++) {
        char wanted[64];

        snprintf(wanted, sizeof(wanted), "{\"rank\": %zu, \"data\": \"%.*s\"}", r, (int)(r % 9),
                 "xxxxxxxxx");
        EXPECT(dp, counts[r] == strlen(wanted) + 1, "%zu bytes of rank %zu", counts[r], r);
        EXPECT(dp, strcmp(out + at, wanted) == 0, "%s", out + at);
        at += counts[r];
    }
    return 0;
}

/* A receiver with too little room: an error on all, by name, nothing written; then it works. */
int parity_allgather_too_little_room(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp), room = 3 * ranks;
    float in[3] = {1, 2, 3}, out[3 * PARITY_RANKS_MAX];
    const int is_short = dp_rank(dp) == dp_size(dp) - 1;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    char who[32];

    for (int turn = 0; turn < 2; turn++) {
        memset(out, 0x55, sizeof(out));
        EXPECT_STATUS(
            dp,
            parity_wait(dp_allgatherv(dp_world(dp), "short", in, 3, out, is_short ? room - 1 : room,
                                      NULL, DP_F32, NULL, &handle),
                        &handle, &result),
            DP_ERR_TRUNCATED);
        snprintf(who, sizeof(who), "rank %d", dp_size(dp) - 1);
        EXPECT_TEXT(dp, result.text, who);
        EXPECT_TEXT(dp, result.text, "short");
        EXPECT(dp, ((char *)out)[0] == 0x55, "written");
        EXPECT_STATUS(dp,
                      parity_wait(dp_allgatherv(dp_world(dp), "short", in, 3, out, room, NULL,
                                                DP_F32, NULL, &handle),
                                  &handle, &result),
                      DP_OK);
        EXPECT(dp, out[room - 1] == 3.0f, "%g", (double)out[room - 1]);
    }
    return 0;
}

/* ---- broadcast ------------------------------------------------------------------------------ */

static int broadcast_all(dp_context_t *dp, dp_group_t *group, const char *label, int in_place,
                         size_t count)
{
    double *in = malloc(count * sizeof(double)), *out = malloc(count * sizeof(double));
    int failed = in == NULL || out == NULL;

    for (int dtype = 0; !failed && dtype < DP_DTYPE_COUNT; dtype++) {
        for (int root = 0; !failed && root < dp_group_size(group); root++) {
            const int world_root = dp_group_world_rank(group, root);
            dp_handle_t *handle = NULL;
            char name[64];

            snprintf(name, sizeof(name), "%s.%d.%d.%zu", label, dtype, root, count);
            parity_fill((dp_dtype_t)dtype, in, count, 0.0, dp_rank(dp));
            failed = parity_wait(dp_broadcast(group, name, in, in_place ? in : out, count,
                                              (dp_dtype_t)dtype, root, NULL, &handle),
                                 &handle, NULL) != DP_OK ||
                     parity_differs((dp_dtype_t)dtype, in_place ? in : out, count, 0.0,
                                    world_root) != SIZE_MAX ||
                     (!in_place &&
                      parity_differs((dp_dtype_t)dtype, in, count, 0.0, dp_rank(dp)) != SIZE_MAX);
        }
    }
    free(in);
    free(out);
    EXPECT(dp, !failed, "%s: %s", label, dp_error_text(dp));
    return 0;
}

int parity_broadcast(dp_context_t *dp)
{
    for (size_t i = 0; i < PARITY_COUNTS; i++)
        if (broadcast_all(dp, dp_world(dp), "broadcast", 0, parity_counts[i])) return 1;
    return 0;
}

int parity_broadcast_inplace(dp_context_t *dp)
{
    for (size_t i = 0; i < PARITY_COUNTS; i++)
        if (broadcast_all(dp, dp_world(dp), "broadcast.in", 1, parity_counts[i])) return 1;
    return 0;
}

int parity_broadcast_process_sets(dp_context_t *dp)
{
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    if (broadcast_all(dp, half, "broadcast.set", 0, 17)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

static int broadcast_refused(dp_context_t *dp, const char *name, size_t count, dp_dtype_t dtype,
                             int root, const char *words)
{
    float data[64] = {0};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(
        dp,
        parity_wait(dp_broadcast(dp_world(dp), name, data, data, count, dtype, root, NULL, &handle),
                    &handle, &result),
        DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, name);
    EXPECT_TEXT(dp, result.text, words);
    return 0;
}

int parity_broadcast_error(dp_context_t *dp)
{
    return broadcast_refused(dp, "broadcast.error", 10 + (size_t)dp_rank(dp) % 2, DP_F32, 0, "11");
}

int parity_broadcast_type_error(dp_context_t *dp)
{
    return broadcast_refused(dp, "broadcast.type", 17, dp_rank(dp) % 2 == 0 ? DP_I32 : DP_F32, 0,
                             "f32");
}

int parity_broadcast_rank_error(dp_context_t *dp)
{
    float value = 0.0f;

    if (broadcast_refused(dp, "broadcast.root", 17, DP_F32, dp_rank(dp) % 2, "root")) return 1;
    EXPECT_STATUS(dp,
                  dp_broadcast(dp_world(dp), "broadcast.nobody", &value, &value, 1, DP_F32,
                               dp_size(dp), NULL, NULL),
                  DP_ERR_INVALID);
    return 0;
}

int parity_broadcast_duplicate_name_error(dp_context_t *dp)
{
    float data[17] = {0};
    dp_handle_t *handle = NULL;

    if (dp_rank(dp) != 0 && parity_after_rank0(dp, "broadcast.gate")) return 1;
    EXPECT_STATUS(
        dp, dp_broadcast(dp_world(dp), "broadcast.twice", data, data, 17, DP_F32, 0, NULL, &handle),
        DP_OK);
    if (dp_rank(dp) == 0) {
        EXPECT_STATUS(
            dp,
            dp_broadcast(dp_world(dp), "broadcast.twice", data, data, 17, DP_F32, 0, NULL, NULL),
            DP_ERR_BUSY);
        if (parity_after_rank0(dp, "broadcast.gate")) return 1;
    }
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_OK);
    return 0;
}

int parity_grouped_broadcast(dp_context_t *dp)
{
    float first[17], second[5];
    double third[3];
    dp_tensor_t tensors[3] = {
        {first, first, 17, DP_F32}, {second, second, 5, DP_F32}, {third, third, 3, DP_F64}};
    const int root = dp_size(dp) - 1;
    dp_handle_t *handle = NULL;

    parity_fill(DP_F32, first, 17, 1.0, dp_rank(dp));
    parity_fill(DP_F32, second, 5, 2.0, dp_rank(dp));
    parity_fill(DP_F64, third, 3, 3.0, dp_rank(dp));
    EXPECT_STATUS(dp,
                  parity_wait(dp_grouped_broadcast(dp_world(dp), "broadcast.grouped", tensors, 3,
                                                   root, NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, parity_differs(DP_F32, first, 17, 1.0, root) == SIZE_MAX, "first");
    EXPECT(dp, parity_differs(DP_F32, second, 5, 2.0, root) == SIZE_MAX, "second");
    EXPECT(dp, parity_differs(DP_F64, third, 3, 3.0, root) == SIZE_MAX, "third");
    return 0;
}
