/*
 * cases_groups.c - what Horovod asserts of process sets, join and barrier.
 */
#include "tests/parity/parity.h"

/* Every rank of the group gives its rank plus one. */
static int sum_in(dp_context_t *dp, dp_group_t *group, const char *name, int wanted)
{
    float value = (float)(dp_rank(dp) + 1);
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(dp,
                  parity_wait(dp_allreduce(group, name, &value, &value, 1, DP_F32, NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, value == (float)wanted, "%s: %g, not %d", name, (double)value, wanted);
    return 0;
}

/* ---- Process sets --------------------------------------------------------------------------- */

int parity_process_set_add_remove(dp_context_t *dp)
{
    const int ranks = dp_size(dp), rank = dp_rank(dp);
    int list[PARITY_RANKS_MAX];
    dp_group_t *group = NULL;

    /* all ranks but the last, in descending order; the last calls too and gets none */
    for (int i = 0; i < ranks - 1; i++)
        list[i] = ranks - 2 - i;
    for (int turn = 0; turn < 5; turn++) {
        EXPECT_STATUS(dp, dp_group_create(dp, "most", list, (size_t)ranks - 1, NULL, &group),
                      DP_OK);
        if (rank == ranks - 1) {
            EXPECT(dp, group == NULL, "a group without this rank");
            continue;
        }
        EXPECT(dp, dp_group_rank(group) == rank, "%d", dp_group_rank(group));
        EXPECT(dp, dp_group_size(group) == ranks - 1, "%d", dp_group_size(group));
        EXPECT(dp, dp_group_world_rank(group, ranks - 2) == ranks - 2, "order");
        EXPECT(dp, dp_group_world_rank(group, ranks - 1) == -1, "a rank too many");
        EXPECT(dp, strcmp(dp_group_name(group), "most") == 0, "%s", dp_group_name(group));
        if (sum_in(dp, group, "x", ranks * (ranks - 1) / 2)) return 1;
        EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    }
    EXPECT_STATUS(dp, dp_group_destroy(dp_world(dp)), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_destroy(NULL), DP_OK);
    return 0;
}

/* Groups that share ranks, and a rank in several: used in opposite order on odd and even ranks. */
int parity_process_sets_overlap(dp_context_t *dp)
{
    const int ranks = dp_size(dp), rank = dp_rank(dp);
    dp_group_t *groups[2] = {NULL, NULL};
    dp_handle_t *handles[2] = {NULL, NULL};
    float values[2] = {1.0f, 1.0f};
    int all[PARITY_RANKS_MAX];

    for (int i = 0; i < ranks; i++)
        all[i] = i;
    EXPECT_STATUS(dp, dp_group_create(dp, "low", all, (size_t)ranks - 1, NULL, &groups[0]), DP_OK);
    EXPECT_STATUS(dp, dp_group_create(dp, "high", all + 1, (size_t)ranks - 1, NULL, &groups[1]),
                  DP_OK);
    for (int turn = 0; turn < 20; turn++) {
        for (int k = 0; k < 2; k++) {
            const int which = rank % 2 == 0 ? k : 1 - k;

            values[which] = 1.0f;
            if (groups[which] == NULL) continue;
            EXPECT_STATUS(dp,
                          dp_allreduce(groups[which], "both", &values[which], &values[which], 1,
                                       DP_F32, NULL, &handles[which]),
                          DP_OK);
        }
        for (int k = 0; k < 2; k++) {
            if (groups[k] == NULL) continue;
            EXPECT_STATUS(dp, dp_wait(handles[k], 120.0, NULL), DP_OK);
            EXPECT(dp, values[k] == (float)(ranks - 1), "%g", (double)values[k]);
        }
    }
    for (int k = 0; k < 2; k++)
        EXPECT_STATUS(dp, dp_group_destroy(groups[k]), DP_OK);
    return 0;
}

int parity_process_set_errors(dp_context_t *dp)
{
    int twice[2] = {0, 0}, beyond[1] = {dp_size(dp)}, negative[1] = {-1};
    int own[2] = {0, dp_rank(dp) == 0 ? 1 : dp_rank(dp)};
    dp_group_t *group = NULL;

    EXPECT_STATUS(dp, dp_group_create(dp, "g", twice, 2, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", beyond, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", negative, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", own, 0, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "", own, 2, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, NULL, own, 2, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", NULL, 2, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", own, 2, NULL, NULL), DP_ERR_INVALID);
    EXPECT(dp, group == NULL, "set by a failure");
    if (parity_after_rank0(dp, "errors.gate")) return 1;
    /* rank 0 and rank 1 name different lists under one name */
    if (dp_rank(dp) < 2 && dp_size(dp) > 2) {
        int list[3] = {0, 1, 2};

        EXPECT_STATUS(
            dp, dp_group_create(dp, "contested", list, dp_rank(dp) == 0 ? 3 : 2, NULL, &group),
            DP_ERR_MISMATCH);
        EXPECT_TEXT(dp, dp_error_text(dp), "contested");
    } else if (dp_rank(dp) == 2) {
        int list[3] = {0, 1, 2};

        EXPECT_STATUS(dp, dp_group_create(dp, "contested", list, 3, NULL, &group), DP_ERR_MISMATCH);
    }
    return 0;
}

int parity_process_set_split(dp_context_t *dp)
{
    const int ranks = dp_size(dp), rank = dp_rank(dp);
    dp_group_t *group = NULL, *single = NULL;
    int wanted = 0;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "colors", rank % 2, 0, NULL, &group), DP_OK);
    for (int r = rank % 2; r < ranks; r += 2)
        wanted += r + 1;
    if (sum_in(dp, group, "split", wanted)) return 1;
    EXPECT_STATUS(
        dp, dp_group_split(group, "leader", dp_group_rank(group) == 0 ? 0 : -1, 0, NULL, &single),
        DP_OK);
    EXPECT(dp, (single != NULL) == (dp_group_rank(group) == 0), "who has no color has no group");
    if (single != NULL && sum_in(dp, single, "alone", rank + 1)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(single), DP_OK);
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    return 0;
}

/* A mismatch in one group is nothing to the other, nor to the world. */
int parity_process_sets_are_independent(dp_context_t *dp)
{
    float values[2] = {0};
    dp_handle_t *handle = NULL;
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    if (dp_rank(dp) % 2 == 0) { /* 2 + 4 + ... on the odd ranks */
        EXPECT_STATUS(dp,
                      parity_wait(dp_allreduce(half, "bad", values, values,
                                               dp_rank(dp) == 0 ? 1 : 2, DP_F32, NULL, &handle),
                                  &handle, NULL),
                      DP_ERR_MISMATCH);
    } else if (sum_in(dp, half, "bad", dp_size(dp) / 2 * (dp_size(dp) / 2 + 1))) {
        return 1;
    }
    if (sum_in(dp, dp_world(dp), "bad", dp_size(dp) * (dp_size(dp) + 1) / 2)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* ---- join ----------------------------------------------------------------------------------- */

/* Joins; who came last is the same for all. */
static int join(dp_context_t *dp, dp_group_t *group, int *last)
{
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(dp, parity_wait(dp_join(group, NULL, &handle), &handle, &result), DP_OK);
    EXPECT(dp, result.last_rank >= 0 && result.last_rank < dp_group_size(group), "last %d",
           result.last_rank);
    *last = result.last_rank;
    return 0;
}

/* The others reduce two tensors while `first` has joined, with names that are new or known. */
static int reduce_without(dp_context_t *dp, int first, int is_known, int count_joined)
{
    const double ranks = dp_size(dp);
    const double share = count_joined ? (ranks - 1.0) / ranks : 1.0;
    float a[5], b[17];
    int32_t whole[5];
    int last;

    if (dp_rank(dp) != first || is_known) {
        for (int turn = is_known ? 0 : 1; turn < 2; turn++) {
            dp_options_t options = DP_OPTIONS_INIT;
            dp_handle_t *handles[3] = {NULL, NULL, NULL};
            dp_result_t result = DP_RESULT_INIT;
            char names[3][64];

            if (turn == 1 && dp_rank(dp) == first) break;
            for (int k = 0; k < 3; k++) {
                snprintf(names[k], sizeof(names[k]), "join.%d.%d.%d.%d", k, first, is_known,
                         count_joined);
            }
            options.reduce = DP_AVERAGE;
            options.count_joined = count_joined;
            parity_fill(DP_F32, a, 5, 4.0, 0.0);
            parity_fill(DP_F32, b, 17, 4.0, 0.0);
            parity_fill(DP_I32, whole, 5, 12.0, 0.0);
            EXPECT_STATUS(
                dp, dp_allreduce(dp_world(dp), names[0], a, a, 5, DP_F32, &options, &handles[0]),
                DP_OK);
            EXPECT_STATUS(
                dp, dp_allreduce(dp_world(dp), names[1], b, b, 17, DP_F32, &options, &handles[1]),
                DP_OK);
            EXPECT_STATUS(dp,
                          dp_allreduce(dp_world(dp), names[2], whole, whole, 5, DP_I32, &options,
                                       &handles[2]),
                          DP_OK);
            for (int k = 0; k < 3; k++)
                EXPECT_STATUS(dp, dp_wait(handles[k], 120.0, &result), DP_OK);
            EXPECT(dp, result.contributors == dp_size(dp) - turn, "%d contributed",
                   result.contributors);
            for (int i = 0; i < 17; i++) {
                const double wanted = parity_value(DP_F32, (size_t)i) * 4.0 * (turn ? share : 1.0);
                const double error = (double)b[i] - wanted;

                EXPECT(dp, error < 1e-5 && error > -1e-5, "%g, not %g", (double)b[i], wanted);
                if (i >= 5) continue;
                EXPECT(dp, a[i] == b[i], "%g, not %g", (double)a[i], (double)b[i]);
                EXPECT(dp,
                       whole[i] == (int32_t)(parity_value(DP_I32, (size_t)i) * 12.0 *
                                             (turn ? ranks - 1.0 : 1.0) /
                                             (turn && count_joined ? ranks
                                              : turn               ? ranks - 1.0
                                                                   : 1.0)),
                       "%d", whole[i]);
            }
        }
    }
    return join(dp, dp_world(dp), &last);
}

int parity_join_allreduce(dp_context_t *dp)
{
    for (int first = 0; first < 2; first++) {
        for (int is_known = 0; is_known < 2; is_known++) {
            /* an average over those that contribute, or as Horovod has it */
            if (reduce_without(dp, first, is_known, 0)) return 1;
            if (reduce_without(dp, first, is_known, 1)) return 1;
        }
    }
    return 0;
}

/* The last one is known to all: rank 0 joins only after it has heard of all the others. */
int parity_join_last_rank(dp_context_t *dp)
{
    const int ranks = dp_size(dp);
    int last;

    for (int latest = 0; latest < ranks; latest++) {
        dp_group_t *world = dp_world(dp);
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle = NULL;
        float value = 1.0f;

        if (dp_rank(dp) == latest) {
            /* until it is the only one that has not joined */
            do {
                value = 1.0f;
                EXPECT_STATUS(dp,
                              parity_wait(dp_allreduce(world, "alone", &value, &value, 1, DP_F32,
                                                       NULL, &handle),
                                          &handle, &result),
                              DP_OK);
                EXPECT(dp, value == (float)result.contributors, "%g of %d", (double)value,
                       result.contributors);
            } while (result.contributors > 1);
        }
        if (join(dp, world, &last)) return 1;
        EXPECT(dp, last == latest, "last %d, not %d", last, latest);
    }
    return 0;
}

/* Horovod refuses it; here the joined rank's row is zero, and its part of a v-gather empty. */
int parity_join_allgather(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp);
    float in[17], out[17 * PARITY_RANKS_MAX];
    size_t counts[PARITY_RANKS_MAX];
    dp_handle_t *handle = NULL;
    int last;

    if (dp_rank(dp) != 0) {
        for (int i = 0; i < 17; i++)
            in[i] = (float)dp_rank(dp);
        EXPECT_STATUS(dp,
                      parity_wait(dp_allgather(dp_world(dp), "join.gather", in, out, 17, DP_F32,
                                               NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (size_t i = 0; i < 17 * ranks; i++) {
            const size_t row = i / 17;

            EXPECT(dp, out[i] == (float)row, "element %zu is %g", i, (double)out[i]);
        }
        EXPECT_STATUS(dp,
                      parity_wait(dp_allgatherv(dp_world(dp), "join.gatherv", in, 17, out,
                                                17 * ranks, counts, DP_F32, NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (size_t r = 0; r < ranks; r++)
            EXPECT(dp, counts[r] == (r == 0 ? 0 : 17), "%zu of rank %zu", counts[r], r);
        for (size_t i = 0; i < 17 * (ranks - 1); i++) {
            const size_t row = 1 + i / 17;

            EXPECT(dp, out[i] == (float)row, "element %zu is %g", i, (double)out[i]);
        }
    }
    return join(dp, dp_world(dp), &last);
}

/* A root that joined has nothing to give: an error. From one that has not, it works. */
int parity_join_broadcast(dp_context_t *dp)
{
    float data[17];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    int last;

    if (dp_rank(dp) != 0) {
        parity_fill(DP_F32, data, 17, dp_rank(dp) == 1 ? 3.0 : 0.0, 0.0);
        EXPECT_STATUS(dp,
                      parity_wait(dp_broadcast(dp_world(dp), "join.root", data, data, 17, DP_F32, 0,
                                               NULL, &handle),
                                  &handle, &result),
                      DP_ERR_ORDER);
        EXPECT_TEXT(dp, result.text, "join.root");
        EXPECT_STATUS(dp,
                      parity_wait(dp_broadcast(dp_world(dp), "join.broadcast", data, data, 17,
                                               DP_F32, 1, NULL, &handle),
                                  &handle, &result),
                      DP_OK);
        EXPECT(dp, parity_differs(DP_F32, data, 17, 3.0, 0.0) == SIZE_MAX, "data");
    }
    return join(dp, dp_world(dp), &last);
}

int parity_join_alltoall_reducescatter(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX], out[PARITY_RANKS_MAX];
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    int last;

    if (dp_rank(dp) != 0) {
        for (int r = 0; r < dp_size(dp); r++)
            in[r] = (float)r;
        EXPECT_STATUS(dp,
                      parity_wait(dp_alltoall(dp_world(dp), "join.alltoall", in, out, 1, DP_F32,
                                              NULL, &handle),
                                  &handle, &result),
                      DP_ERR_ORDER);
        EXPECT_TEXT(dp, result.text, "join.alltoall");
        EXPECT_STATUS(dp,
                      parity_wait(dp_reduce_scatter(dp_world(dp), "join.scatter", in, out, 1,
                                                    DP_F32, NULL, &handle),
                                  &handle, &result),
                      DP_OK);
        EXPECT(dp, out[0] == (float)(dp_rank(dp) * (dp_size(dp) - 1)), "%g", (double)out[0]);
    }
    return join(dp, dp_world(dp), &last);
}

/* A rank that joined one group works on in others; nothing is submitted to a group one has joined.
 */
int parity_join_process_sets(dp_context_t *dp)
{
    const int ranks = dp_size(dp);
    dp_handle_t *handle = NULL;
    dp_result_t result = DP_RESULT_INIT;
    dp_group_t *half;
    float value = 1.0f;

    if (parity_half(dp, &half)) return 1;
    if (dp_group_rank(half) == 0) {
        EXPECT_STATUS(dp, dp_join(half, NULL, &handle), DP_OK);
        if (dp_group_size(half) > 1) { /* whose others join after the sum in the world */
            EXPECT_STATUS(dp, dp_allreduce(half, "late", &value, &value, 1, DP_F32, NULL, NULL),
                          DP_ERR_ORDER);
        }
    }
    if (sum_in(dp, dp_world(dp), "beside", ranks * (ranks + 1) / 2)) return 1;
    if (dp_group_rank(half) != 0) EXPECT_STATUS(dp, dp_join(half, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, &result), DP_OK);
    if (sum_in(dp, dp_world(dp), "again", ranks * (ranks + 1) / 2)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* ---- barrier -------------------------------------------------------------------------------- */

/* No rank passes before all have come: rank 0 comes only after it has seen the others wait. */
int parity_barrier(dp_context_t *dp)
{
    dp_handle_t *handle = NULL;

    for (int turn = 0; turn < 10; turn++) {
        if (dp_rank(dp) != 0) {
            EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "barrier", NULL, &handle), DP_OK);
            EXPECT_STATUS(dp, dp_test(handle), DP_ERR_PENDING);
        }
        if (sum_in(dp, dp_world(dp), "all wait", dp_size(dp) * (dp_size(dp) + 1) / 2)) return 1;
        if (dp_rank(dp) == 0)
            EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "barrier", NULL, &handle), DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_OK);
    }
    return 0;
}

int parity_barrier_process_sets(dp_context_t *dp)
{
    dp_group_t *half;
    dp_handle_t *handle = NULL;

    if (parity_half(dp, &half)) return 1;
    for (int turn = 0; turn < 10 + dp_rank(dp) % 2 * 10; turn++)
        EXPECT_STATUS(dp, parity_wait(dp_barrier(half, "barrier", NULL, &handle), &handle, NULL),
                      DP_OK);
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}
