/*
 * cases_pairs.c - send and recv: between any two, many at a time under one name, of any size; and
 * capacities that do not do, there and in the other exchanges.
 */
#include <stdlib.h>

#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

enum { RANKS_MAX = 64 };

/* Element i of what s sends to r in a step. */
static int32_t value_of(int s, int r, int step, size_t i)
{
    return (int32_t)(i * 7 + (size_t)(s * 1000 + r * 100 + step));
}

/* Some are empty, some large enough to be cut. */
static size_t size_of(int s, int r, int step)
{
    static const size_t sizes[] = {1, 0, 1000, 33, 70001};

    return sizes[(size_t)(s + 3 * r + step) % DP_ARRAY_LEN(sizes)];
}

/* Everybody sends to everybody under one name, each rank in its own order. */
static int exchange_all(dp_context_t *dp, dp_group_t *group, int step, int in_arena)
{
    int rank = dp_group_rank(group), ranks = dp_group_size(group);
    dp_handle_t *sends[RANKS_MAX] = {NULL}, *receives[RANKS_MAX] = {NULL};
    char *out[RANKS_MAX] = {NULL}, *in[RANKS_MAX] = {NULL};

    for (int k = 1; k < ranks; k++) {
        int to = step % 2 == 0 ? (rank + k) % ranks : (rank + ranks - k) % ranks;
        int from = rank % 2 == 0 ? (rank + k) % ranks : (rank + ranks - k) % ranks;
        size_t sent = size_of(rank, to, step), room = size_of(from, rank, step) + (size_t)step % 2;

        out[to] = case_allocate(dp, sent * 4, in_arena);
        in[from] = case_allocate(dp, room * 4, in_arena);
        EXPECT(dp, out[to] != NULL && in[from] != NULL, "no memory");
        for (size_t i = 0; i < sent; i++)
            ((int32_t *)(void *)out[to])[i] = value_of(rank, to, step, i);
        EXPECT_STATUS(dp, dp_send(group, "mail", out[to], sent, DP_I32, to, NULL, &sends[to]),
                      DP_OK);
        EXPECT_STATUS(
            dp, dp_recv(group, "mail", in[from], room, DP_I32, from, NULL, &receives[from]), DP_OK);
    }
    for (int other = 0; other < ranks; other++) {
        dp_result_t result = DP_RESULT_INIT;

        if (other == rank) continue;
        EXPECT_STATUS(dp, dp_wait(receives[other], 60.0, &result), DP_OK);
        EXPECT(dp, result.count == size_of(other, rank, step), "%zu came, wanted %zu", result.count,
               size_of(other, rank, step));
        for (size_t i = 0; i < result.count; i++)
            EXPECT(dp, ((int32_t *)(void *)in[other])[i] == value_of(other, rank, step, i),
                   "step %d: element %zu from %d is %d, wanted %d", step, i, other,
                   ((int32_t *)(void *)in[other])[i], value_of(other, rank, step, i));
        EXPECT_STATUS(dp, dp_wait(sends[other], 60.0, &result), DP_OK);
        EXPECT(dp, result.count == 0, "a sender received %zu", result.count);
        case_give_back(dp, in[other], in_arena);
        case_give_back(dp, out[other], in_arena);
    }
    return 0;
}

int case_pairs(dp_context_t *dp)
{
    dp_group_t *odd;
    float value = 0.0f;

    EXPECT_STATUS(dp, dp_send(dp_world(dp), "self", &value, 1, DP_F32, dp_rank(dp), NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_recv(dp_world(dp), "self", &value, 1, DP_F32, dp_size(dp), NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(
        dp, dp_send(dp_world(dp), "none", NULL, 1, DP_F32, dp_rank(dp) == 0 ? 1 : 0, NULL, NULL),
        DP_ERR_INVALID);
    for (int step = 0; step < 12; step++)
        if (exchange_all(dp, dp_world(dp), step, step % 3 == 0) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "parity", dp_rank(dp) % 2, 0, NULL, &odd),
                  DP_OK);
    for (int step = 0; step < 4; step++)
        if (exchange_all(dp, odd, step, step % 2) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(odd), DP_OK);
    return 0;
}

/* A name as long as names may be, to two ranks at a time. */
int case_pair_names(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp);
    char name[DP_NAME_MAX + 1];
    dp_handle_t *handles[RANKS_MAX];
    double values[RANKS_MAX] = {0}, own = rank + 1.0;

    memset(name, 'n', DP_NAME_MAX);
    name[DP_NAME_MAX] = '\0';
    for (int last = 0; last < 2; last++) {
        name[DP_NAME_MAX - 1] = last ? 'y' : 'x'; /* two names that differ at the end alone */
        if (rank == 0) {
            for (int r = 1; r < ranks; r++)
                EXPECT_STATUS(
                    dp, dp_recv(dp_world(dp), name, &values[r], 1, DP_F64, r, NULL, &handles[r]),
                    DP_OK);
            if (last == 0) {
                EXPECT_STATUS(
                    dp, dp_recv(dp_world(dp), name, &values[1], 1, DP_F64, 1, NULL, &handles[0]),
                    DP_ERR_BUSY);
            }
            if (case_sum(dp, dp_world(dp), "go", 1.0, ranks) != 0) return 1;
            for (int r = 1; r < ranks; r++) {
                EXPECT_STATUS(dp, dp_wait(handles[r], 60.0, NULL), DP_OK);
                EXPECT(dp, values[r] == r + 1.0, "%g", values[r]);
            }
        } else {
            if (case_sum(dp, dp_world(dp), "go", 1.0, ranks) != 0) return 1;
            EXPECT_STATUS(dp, dp_send(dp_world(dp), name, &own, 1, DP_F64, 0, NULL, &handles[0]),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handles[0], 60.0, NULL), DP_OK);
        }
    }
    /* a rank with nothing left to send would otherwise finalize and end the world for the others */
    return case_sum(dp, dp_world(dp), "after", 1.0, ranks);
}

/* The types differ: both sides learn it. */
int case_pair_mismatch(dp_context_t *dp)
{
    int rank = dp_rank(dp);
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;
    int32_t number = 1;

    for (int round = 0; round < 2 && rank < 2; round++) {
        dp_dtype_t dtype = round == 0 && rank == 1 ? DP_F32 : DP_I32;

        if (rank == 0) {
            EXPECT_STATUS(dp, dp_send(dp_world(dp), "m", &number, 1, dtype, 1, NULL, &handle),
                          DP_OK);
        } else {
            EXPECT_STATUS(dp, dp_recv(dp_world(dp), "m", &number, 1, dtype, 0, NULL, &handle),
                          DP_OK);
        }
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), round == 0 ? DP_ERR_MISMATCH : DP_OK);
        if (round == 0) EXPECT_TEXT(dp, result.text, "i32");
    }
    return case_sum(dp, dp_world(dp), "after", 1.0, dp_size(dp));
}

/* ---- Capacities ----------------------------------------------------------------------------- */

/* Waits. Where a rank lacks room, all learn of the tensor and of `who`; NULL: all goes well. */
static int expect_end(dp_context_t *dp, dp_handle_t *handle, const char *who)
{
    dp_result_t result = DP_RESULT_INIT;
    dp_status_t status = dp_wait(handle, 60.0, &result);

    EXPECT_STATUS(dp, status, who != NULL ? DP_ERR_TRUNCATED : DP_OK);
    if (who == NULL) return 0;
    EXPECT_TEXT(dp, result.text, "tensor t.");
    EXPECT_TEXT(dp, result.text, who);
    EXPECT(dp, result.count == 0, "%zu", result.count);
    return 0;
}

/* The last rank's room is one element short: all learn it, nothing is written, all goes on. */
int case_truncated(dp_context_t *dp)
{
    enum { EACH = 50 };
    dp_group_t *world = dp_world(dp);
    int rank = dp_rank(dp), ranks = dp_size(dp), last = ranks - 1;
    int32_t in[EACH * RANKS_MAX], out[EACH * RANKS_MAX];
    size_t counts[RANKS_MAX], found[RANKS_MAX] = {0}, room = (size_t)(EACH * ranks);
    char name[32];

    (void)snprintf(name, sizeof(name), "rank %d", last);
    for (int round = 0; round < 3; round++) {
        const char *who = round == 1 ? NULL : name; /* lacks room */
        size_t less = who != NULL && rank == last ? 1 : 0;
        dp_handle_t *handle;

        for (int i = 0; i < EACH * ranks; i++) {
            in[i] = rank * 1000 + i;
            out[i] = -1;
        }
        for (int r = 0; r < ranks; r++)
            counts[r] = EACH;
        EXPECT_STATUS(dp,
                      dp_allgatherv(world, "t.allgatherv", in, EACH, out, room - less, found,
                                    DP_I32, NULL, &handle),
                      DP_OK);
        if (expect_end(dp, handle, who) != 0) return 1;
        EXPECT(dp, out[EACH * last] == (who != NULL ? -1 : last * 1000), "%d", out[EACH * last]);
        EXPECT(dp, found[0] == EACH && found[last] == EACH, "%zu and %zu", found[0], found[last]);
        EXPECT_STATUS(dp,
                      dp_alltoallv(world, "t.alltoallv", in, counts, out, room - less, NULL, DP_I32,
                                   NULL, &handle),
                      DP_OK);
        if (expect_end(dp, handle, who) != 0) return 1;
        EXPECT(dp, who != NULL || out[EACH * last] == last * 1000 + EACH * rank, "%d",
               out[EACH * last]);
        EXPECT_STATUS(dp,
                      dp_gatherv(world, "t.gatherv", in, EACH, out, room - less, NULL, DP_I32, last,
                                 NULL, &handle),
                      DP_OK);
        if (expect_end(dp, handle, who) != 0) return 1;
        EXPECT_STATUS(dp,
                      dp_scatterv(world, "t.scatterv", in, counts, out, EACH - less, DP_I32, 0,
                                  NULL, &handle),
                      DP_OK);
        if (expect_end(dp, handle, who) != 0) return 1;
        EXPECT(dp, who != NULL || out[0] == EACH * rank, "%d", out[0]);
        if (rank == 0)
            EXPECT_STATUS(dp, dp_send(world, "t.pair", in, EACH, DP_I32, last, NULL, &handle),
                          DP_OK);
        if (rank == last)
            EXPECT_STATUS(dp, dp_recv(world, "t.pair", out, EACH - less, DP_I32, 0, NULL, &handle),
                          DP_OK);
        if ((rank == 0 || rank == last) && expect_end(dp, handle, who) != 0) return 1;
        if (case_sum(dp, world, "after", 1.0, ranks) != 0) return 1;
    }
    return 0;
}

/* Sums of counts that no memory could hold, and outputs that lie in inputs. */
int case_bad_counts(dp_context_t *dp)
{
    dp_group_t *world = dp_world(dp);
    int rank = dp_rank(dp), ranks = dp_size(dp);
    size_t counts[RANKS_MAX], fine[RANKS_MAX];
    float data[RANKS_MAX * 4] = {0}, other[RANKS_MAX * 4] = {0};
    dp_tensor_t list[2] = {{data, data, 1, DP_F32}, {other, NULL, 1, DP_F32}};

    for (int r = 0; r < ranks; r++) {
        counts[r] = SIZE_MAX / 2;
        fine[r] = 2;
    }
    EXPECT_STATUS(dp, dp_alltoallv(world, "c", data, counts, other, 1, NULL, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_alltoallv(world, "c", data, NULL, other, 1, NULL, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_reduce_scatterv(world, "c", data, other, counts, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_scatterv(world, "c", data, counts, other, 1, DP_F32, rank, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp,
                  dp_allgatherv(world, "c", data, 1, other, SIZE_MAX / 2, NULL, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_alltoall(world, "c", data, other, SIZE_MAX / 4, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "exceed memory");
    /* overlaps */
    EXPECT_STATUS(dp, dp_alltoall(world, "o", data, data, 1, DP_F32, NULL, NULL), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "overlap");
    EXPECT_STATUS(dp, dp_allreduce(world, "o", data, data + 1, 3, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, "o", data + 1, data, 3, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_reduce(world, "o", data, data + 1, 3, DP_F32, rank, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_broadcast(world, "o", data, data + 1, 3, DP_F32, rank, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp,
                  dp_allgatherv(world, "o", data, 1, data, (size_t)ranks, NULL, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(
        dp, dp_gatherv(world, "o", data, 1, data, (size_t)ranks, NULL, DP_F32, rank, NULL, NULL),
        DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_scatterv(world, "o", data, fine, data, 2, DP_F32, rank, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_alltoallv(world, "o", data, fine, data, 2, NULL, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(
        dp, dp_reduce_scatterv(world, "o", data, data + 2 * rank + 1, fine, DP_F32, NULL, NULL),
        DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_grouped_allreduce(world, "o", list, 2, NULL, NULL), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "tensor 1 of the list");
    /* roots */
    EXPECT_STATUS(dp, dp_reduce(world, "r", data, other, 1, DP_F32, ranks, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_gather(world, "r", data, other, 1, DP_F32, -1, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_scatterv(world, "r", data, fine, other, 2, DP_F32, ranks, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_grouped_broadcast(world, "r", list, 1, ranks, NULL, NULL), DP_ERR_INVALID);
    return case_sum(dp, world, "after", 1.0, ranks);
}
