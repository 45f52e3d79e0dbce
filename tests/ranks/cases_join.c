/*
 * cases_join.c - ranks that run out of data: the others go on without them, until all have joined.
 */
#include <stdlib.h>

#include "kernels/kernels.h"
#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

/* Waits for the end of a dp_join(). */
static int expect_joined(dp_context_t *dp, dp_handle_t *handle, int last)
{
    dp_result_t result = DP_RESULT_INIT;

    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, last < 0 || result.last_rank == last, "the last to join was %d, wanted %d",
           result.last_rank, last);
    EXPECT(dp, result.last_rank >= 0, "%d", result.last_rank);
    return 0;
}

/* Rank r has 3 * (r + 1) batches: averages are over the ranks that still have one. */
static int uneven_epoch(dp_context_t *dp, dp_group_t *group, int in_arena)
{
    enum { COUNT = 5000 };
    int rank = dp_group_rank(group), ranks = dp_group_size(group);
    float *values = (float *)(void *)case_allocate(dp, COUNT * sizeof(float), in_arena);
    dp_handle_t *handle, *joined;
    float small = 1.0f;
    dp_status_t status;

    EXPECT(dp, values != NULL, "no memory");
    for (int step = 0; step < 3 * (rank + 1); step++) {
        int first = step / 3; /* the lowest rank that still has data */
        dp_options_t options = DP_OPTIONS_INIT;
        dp_result_t result = DP_RESULT_INIT;
        float sum = 0.0f;

        for (int i = 0; i < COUNT; i++)
            values[i] = (float)(rank + 1);
        options.reduce = DP_AVERAGE;
        options.count_joined = step % 2;
        EXPECT_STATUS(
            dp, dp_allreduce(group, "gradient", values, values, COUNT, DP_F32, &options, &handle),
            DP_OK);
        for (int r = first; r < ranks; r++)
            sum += (float)(r + 1);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
        EXPECT(dp, result.contributors == ranks - first, "step %d: %d contributors, wanted %d",
               step, result.contributors, ranks - first);
        sum *= (float)(1.0 / (step % 2 ? ranks : ranks - first));
        EXPECT(dp, values[COUNT - 1] == sum, "step %d: %.9g, wanted %.9g", step,
               (double)values[COUNT - 1], (double)sum);
    }
    EXPECT_STATUS(dp, dp_join(group, NULL, &joined), DP_OK);
    /* refused until all have joined; what was is submitted again then, so all ranks do it once */
    status = dp_allreduce(group, "too soon", &small, &small, 1, DP_F32, NULL, &handle);
    EXPECT(dp, status == DP_ERR_ORDER || (status == DP_OK && dp_test(joined) == DP_OK), "%s",
           dp_status_string(status));
    if (status == DP_ERR_ORDER) EXPECT_TEXT(dp, dp_error_text(dp), "joined");
    if (expect_joined(dp, joined, ranks - 1) != 0) return 1;
    if (status == DP_ERR_ORDER) {
        EXPECT_STATUS(dp, dp_allreduce(group, "too soon", &small, &small, 1, DP_F32, NULL, &handle),
                      DP_OK);
    }
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, small == (float)ranks, "%g of %d", (double)small, ranks);
    case_give_back(dp, (char *)values, in_arena);
    return 0;
}

int case_join(dp_context_t *dp)
{
    dp_group_t *parity;

    for (int round = 0; round < 3; round++)
        if (uneven_epoch(dp, dp_world(dp), round % 2) != 0) return 1;
    if (case_sum(dp, dp_world(dp), "after", 1.0, dp_size(dp)) != 0) return 1;
    /* in groups, of which the others learn nothing */
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "parity", dp_rank(dp) % 2, 0, NULL, &parity),
                  DP_OK);
    for (int round = 0; round < 2; round++)
        if (uneven_epoch(dp, parity, round % 2) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(parity), DP_OK);
    return 0;
}

/* ---- What the absent give ------------------------------------------------------------------- */

/* Rank 0 has joined; the others see the identity of each operation in its place. */
static int go_on(dp_context_t *dp, dp_group_t *group)
{
    int rank = dp_group_rank(group), ranks = dp_group_size(group);
    static const dp_reduce_t kinds[] = {DP_SUM, DP_AVERAGE, DP_MIN, DP_MAX, DP_PRODUCT};
    static const dp_dtype_t dtypes[] = {DP_F32, DP_I32, DP_F64, DP_U8, DP_F16, DP_BF16};

    for (size_t k = 0; k < 5; k++)
        for (size_t d = 0; d < 6; d++) {
            char value[16], wanted[16], name[32];
            dp_options_t options = DP_OPTIONS_INIT;
            size_t element = dp_dtype_bytes(dtypes[d]);
            dp_handle_t *handle;

            /* The reference is over ranks 0 .. n-1, so rank r plays r-1. */
            case_fill(dtypes[d], kinds[k], rank - 1, 0, 2, value);
            case_reference(dtypes[d], kinds[k], ranks - 1, 0, 2, wanted);
            options.reduce = kinds[k];
            snprintf(name, sizeof(name), "identity.%zu", d);
            EXPECT_STATUS(dp,
                          dp_allreduce(group, name, value, value, 2, dtypes[d], &options, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
            EXPECT(dp, memcmp(value, wanted, 2 * element) == 0,
                   "reduction %d of %s: byte %02x, wanted %02x", (int)kinds[k],
                   dp_dtype_name(dtypes[d]), (unsigned char)value[0], (unsigned char)wanted[0]);
        }
    return 0;
}

static int copies(dp_context_t *dp, dp_group_t *group)
{
    int rank = dp_group_rank(group), ranks = dp_group_size(group);
    int32_t in[64 * 3], out[64 * 3];
    size_t counts[64], parts[64];
    dp_tensor_t list[2] = {{in, out, 3, DP_I32}, {in + 3, out + 3, 1, DP_I32}};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;

    for (int i = 0; i < 3 * ranks; i++) {
        in[i] = rank * 100 + i;
        out[i] = -1;
    }
    EXPECT_STATUS(dp, dp_allgather(group, "rows", in, out, 3, DP_I32, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, result.contributors == ranks - 1, "%d", result.contributors);
    EXPECT(dp, out[0] == 0 && out[2] == 0, "rank 0 gave %d and %d", out[0], out[2]);
    EXPECT(dp, out[3 * (ranks - 1) + 2] == (ranks - 1) * 100 + 2, "%d", out[3 * (ranks - 1) + 2]);
    EXPECT_STATUS(dp,
                  dp_allgatherv(group, "parts", in, 2, out, (size_t)(3 * ranks), counts, DP_I32,
                                NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, counts[0] == 0 && counts[1] == 2, "%zu and %zu", counts[0], counts[1]);
    EXPECT(dp, result.count == 2 * (size_t)(ranks - 1), "%zu", result.count);
    EXPECT(dp, out[0] == 100 && out[1] == 101, "%d and %d", out[0], out[1]);
    EXPECT_STATUS(dp, dp_broadcast(group, "root", in, out, 3, DP_I32, ranks - 1, NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, out[2] == (ranks - 1) * 100 + 2, "%d", out[2]);
    EXPECT_STATUS(dp, dp_reduce_scatter(group, "row", in, out, 2, DP_I32, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, out[0] == 100 * (ranks * (ranks - 1) / 2) + 2 * rank * (ranks - 1), "%d", out[0]);
    for (int r = 0; r < ranks; r++)
        parts[r] = r == 1 ? 2 : 1;
    EXPECT_STATUS(dp, dp_reduce_scatterv(group, "part", in, out, parts, DP_I32, NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp,
           out[0] == 100 * (ranks * (ranks - 1) / 2) + (rank + (rank > 1 ? 1 : 0)) * (ranks - 1),
           "%d", out[0]);
    EXPECT_STATUS(dp, dp_reduce(group, "sum", in, out, 1, DP_I32, 1, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, rank != 1 || out[0] == 100 * (ranks * (ranks - 1) / 2), "%d", out[0]);
    EXPECT_STATUS(dp, dp_grouped_allreduce(group, "list", list, 2, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, out[3] == 100 * (ranks * (ranks - 1) / 2) + 3 * (ranks - 1), "%d", out[3]);
    EXPECT_STATUS(dp, dp_barrier(group, "barrier", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    return 0;
}

/* Calls that would need data of rank 0, which has left, are refused. */
static int refusals(dp_context_t *dp, dp_group_t *group)
{
    int rank = dp_group_rank(group), ranks = dp_group_size(group);
    float in[64] = {0}, out[64] = {0};

    for (int kind = 0; kind < 5; kind++) {
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle = NULL;
        dp_status_t status = DP_OK;

        switch (kind) {
        case 0:
            status = dp_broadcast(group, "r.broadcast", in, out, 1, DP_F32, 0, NULL, &handle);
            break;
        case 1:
            status = dp_gather(group, "r.gather", in, out, 1, DP_F32, 1, NULL, &handle);
            break;
        case 2:
            status = dp_alltoall(group, "r.alltoall", in, out, 1, DP_F32, NULL, &handle);
            break;
        case 3:
            status = dp_reduce(group, "r.reduce", in, out, 1, DP_F32, 0, NULL, &handle);
            break;
        default:
            if (rank == ranks - 1)
                status = dp_recv(group, "r.recv", in, 1, DP_F32, 0, NULL, &handle);
            break;
        }
        EXPECT_STATUS(dp, status, DP_OK);
        if (handle == NULL) continue;
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_ERR_ORDER);
        EXPECT_TEXT(dp, result.text, "r.");
        EXPECT_TEXT(dp, result.text, "joined");
        EXPECT_TEXT(dp, result.text, "rank 0");
    }
    return 0;
}

int case_join_identities(dp_context_t *dp)
{
    dp_group_t *world = dp_world(dp);
    dp_handle_t *handle;

    for (int round = 0; round < 2; round++) {
        if (dp_rank(dp) != 0) {
            if (go_on(dp, world) != 0 || copies(dp, world) != 0 || refusals(dp, world) != 0)
                return 1;
        }
        EXPECT_STATUS(dp, dp_join(world, NULL, &handle), DP_OK);
        if (expect_joined(dp, handle, dp_size(dp) > 1 ? -1 : 0) != 0) return 1;
        if (case_sum(dp, world, "after", 1.0, dp_size(dp)) != 0) return 1;
    }
    return 0;
}

/* A rank that joins and goes: ranks that wait for the others' join learn that it will not come. */
int case_join_left(dp_context_t *dp)
{
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;

    if (dp_rank(dp) == dp_size(dp) - 1) return 0; /* never joins */
    EXPECT_STATUS(dp, dp_join(dp_world(dp), NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_ERR_LEFT);
    EXPECT(dp, result.text[0] != '\0', "no text");
    return 0;
}

/* Tensors pending when a rank joins are launched with it all the same; joins of several groups at
 * once do not meet. */
int case_join_pending(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp);
    dp_group_t *everyone = NULL;
    dp_handle_t *handles[20], *joined, *other;
    double values[20];
    int list[64];

    for (int r = 0; r < ranks; r++)
        list[r] = r;
    EXPECT_STATUS(dp, dp_group_create(dp, "everyone", list, (size_t)ranks, NULL, &everyone), DP_OK);
    for (int i = 0; i < 20; i++) {
        char name[16];

        snprintf(name, sizeof(name), "p.%d", i);
        values[i] = rank + i;
        EXPECT_STATUS(dp,
                      dp_allreduce(i % 2 ? everyone : dp_world(dp), name, &values[i], &values[i], 1,
                                   DP_F64, NULL, &handles[i]),
                      DP_OK);
    }
    EXPECT_STATUS(dp, dp_join(dp_world(dp), NULL, &joined), DP_OK);
    EXPECT_STATUS(dp, dp_join(everyone, NULL, &other), DP_OK);
    for (int i = 0; i < 20; i++) {
        dp_result_t result = DP_RESULT_INIT;

        EXPECT_STATUS(dp, dp_wait(handles[i], 60.0, &result), DP_OK);
        EXPECT(dp, result.contributors == ranks, "%d", result.contributors);
        EXPECT(dp, values[i] == ranks * i + ranks * (ranks - 1) / 2.0, "%g", values[i]);
    }
    if (expect_joined(dp, other, -1) != 0 || expect_joined(dp, joined, -1) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(everyone), DP_OK);
    return 0;
}
