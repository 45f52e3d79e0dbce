/*
 * cases_order.c - ordered groups beside others: a world on whose order the ranks agree, ordered
 * groups that overlap it and each other, and what happens where programs differ in one of them.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/ranks/cases_internal.h"

enum { BULK = 40000, ROUNDS = 20 };

static int make_group(dp_context_t *dp, const char *name, int color, dp_order_t order,
                      dp_group_t **group)
{
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;

    options.order = order;
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), name, color, 0, &options, group), DP_OK);
    return 0;
}

/* Sometimes a moment, so that ranks come to operations in every order. */
static void delay(unsigned *seed)
{
    if (rand_r(seed) % 4 == 0)
        nanosleep(&(struct timespec){0, (long)(rand_r(seed) % 2000) * 1000}, NULL);
}

static int sum_in(dp_context_t *dp, dp_group_t *group, float value, dp_handle_t *handle,
                  const float *out)
{
    const float wanted = value * (float)dp_group_size(group);

    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, *out == wanted, "%s: %g, wanted %g", dp_group_name(group), (double)*out,
           (double)wanted);
    return 0;
}

/* An ordered group of all ranks and the world, in opposite orders on odd and even ranks, launched
 * at once and waited for in either order: neither lane may wait for the other. */
int case_order_mixed(dp_context_t *dp)
{
    const int is_odd = dp_rank(dp) % 2;
    float *bulk[2], small[2];
    dp_options_t now = DP_OPTIONS_INIT;
    unsigned seed = (unsigned)dp_rank(dp);
    dp_group_t *groups[2];

    now.launch_now = 1;
    groups[0] = dp_world(dp);
    if (make_group(dp, "tp", 0, DP_ORDER_PROGRAM, &groups[1]) != 0) return 1;
    for (int i = 0; i < 2; i++) {
        bulk[i] = (float *)(void *)case_allocate(dp, BULK * sizeof(float), i);
        EXPECT(dp, bulk[i] != NULL, "no memory");
    }
    for (int round = 0; round < ROUNDS; round++) {
        dp_handle_t *large[2], *handles[2];

        for (int i = 0; i < 2; i++) {
            const int at = i ^ is_odd;

            for (int k = 0; k < BULK; k++)
                bulk[at][k] = (float)(round + at);
            small[at] = (float)(round + 1);
            EXPECT_STATUS(dp,
                          dp_allreduce(groups[at], "bulk", bulk[at], bulk[at], BULK, DP_F32, &now,
                                       &large[at]),
                          DP_OK);
            delay(&seed);
            EXPECT_STATUS(dp,
                          dp_allreduce(groups[at], at == 1 ? NULL : "small", &small[at], &small[at],
                                       1, DP_F32, NULL, &handles[at]),
                          DP_OK);
        }
        for (int i = 0; i < 2; i++) {
            const int at = round % 2 == 0 ? i ^ is_odd : 1 - (i ^ is_odd);

            if (sum_in(dp, groups[at], (float)(round + 1), handles[at], &small[at]) != 0) return 1;
            if (sum_in(dp, groups[at], (float)(round + at), large[at], &bulk[at][BULK - 1]) != 0)
                return 1;
        }
    }
    for (int i = 1; i >= 0; i--)
        case_give_back(dp, (char *)bulk[i], i);
    EXPECT_STATUS(dp, dp_group_destroy(groups[1]), DP_OK);
    return 0;
}

/* Rows and columns of a grid two ranks wide: small sums in rows that block, bulk in columns beside
 * them, now and then something in the world. Without a control message for either. */
int case_order_grid(dp_context_t *dp)
{
    enum { LAYERS = 5, STEPS = 6 };
    dp_stats_t before = DP_STATS_INIT, after = DP_STATS_INIT;
    unsigned seed = (unsigned)dp_rank(dp) + 7;
    dp_group_t *row, *column;
    float *gradients[LAYERS], one;
    dp_handle_t *handles[LAYERS], *handle;

    if (make_group(dp, "row", dp_rank(dp) / 2, DP_ORDER_PROGRAM, &row) != 0) return 1;
    if (make_group(dp, "column", dp_rank(dp) % 2, DP_ORDER_PROGRAM, &column) != 0) return 1;
    for (int i = 0; i < LAYERS; i++) {
        gradients[i] = (float *)(void *)case_allocate(dp, BULK * sizeof(float), i % 2);
        EXPECT(dp, gradients[i] != NULL, "no memory");
    }
    for (int step = 0; step < STEPS; step++) {
        if (step == 1) EXPECT_STATUS(dp, dp_stats_get(dp, &before), DP_OK);
        if (step == STEPS - 1) EXPECT_STATUS(dp, dp_stats_get(dp, &after), DP_OK);
        for (int i = 0; i < LAYERS; i++) {
            char name[16];

            delay(&seed);
            one = (float)(step + i);
            EXPECT_STATUS(dp, dp_allreduce(row, NULL, &one, &one, 1, DP_F32, NULL, &handle), DP_OK);
            if (sum_in(dp, row, (float)(step + i), handle, &one) != 0) return 1;
            for (int k = 0; k < BULK; k++)
                gradients[i][k] = (float)(step + i);
            snprintf(name, sizeof(name), "g.%d", i);
            EXPECT_STATUS(dp,
                          dp_allreduce(column, name, gradients[i], gradients[i], BULK, DP_F32, NULL,
                                       &handles[i]),
                          DP_OK);
        }
        for (int i = LAYERS - 1; i >= 0; i--)
            if (sum_in(dp, column, (float)(step + i), handles[i], &gradients[i][BULK - 1]) != 0)
                return 1;
    }
    EXPECT(dp, after.control_sent == before.control_sent, "%llu control messages in four steps",
           (unsigned long long)(after.control_sent - before.control_sent));
    if (case_sum(dp, dp_world(dp), "behind", 1.0, dp_size(dp)) != 0) return 1;
    for (int i = LAYERS - 1; i >= 0; i--)
        case_give_back(dp, (char *)gradients[i], i % 2);
    EXPECT_STATUS(dp, dp_group_destroy(column), DP_OK);
    EXPECT_STATUS(dp, dp_group_destroy(row), DP_OK);
    return 0;
}

/* Operations of this rank that are over. */
static uint64_t completed(dp_context_t *dp)
{
    dp_stats_t stats = DP_STATS_INIT;

    (void)dp_stats_get(dp, &stats);
    return stats.completed;
}

/* The last rank comes to group a's operation only when it has seen b's, though the others submitted
 * and launched a's first; and no wait for b ends a's bucket. */
int case_order_apart(dp_context_t *dp)
{
    const int is_last = dp_rank(dp) == dp_size(dp) - 1;
    float late = 1.0f, open = 2.0f, quick = 3.0f;
    dp_options_t now = DP_OPTIONS_INIT;
    dp_handle_t *late_handle = NULL, *open_handle, *handle;
    dp_group_t *a, *b;
    uint64_t earlier;

    now.launch_now = 1;
    if (make_group(dp, "a", 0, DP_ORDER_PROGRAM, &a) != 0) return 1;
    if (make_group(dp, "b", 0, DP_ORDER_PROGRAM, &b) != 0) return 1;
    if (!is_last)
        EXPECT_STATUS(dp, dp_allreduce(a, "late", &late, &late, 1, DP_F32, &now, &late_handle),
                      DP_OK);
    EXPECT_STATUS(dp, dp_allreduce(b, "quick", &quick, &quick, 1, DP_F32, NULL, &handle), DP_OK);
    if (sum_in(dp, b, 3.0f, handle, &quick) != 0) return 1;
    if (is_last)
        EXPECT_STATUS(dp, dp_allreduce(a, "late", &late, &late, 1, DP_F32, &now, &late_handle),
                      DP_OK);
    if (sum_in(dp, a, 1.0f, late_handle, &late) != 0) return 1;
    earlier = completed(dp);
    EXPECT_STATUS(dp, dp_allreduce(a, "open", &open, &open, 1, DP_F32, NULL, &open_handle), DP_OK);
    quick = 3.0f;
    EXPECT_STATUS(dp, dp_allreduce(b, "quick", &quick, &quick, 1, DP_F32, NULL, &handle), DP_OK);
    if (sum_in(dp, b, 3.0f, handle, &quick) != 0) return 1;
    EXPECT(dp, completed(dp) == earlier + 1, "%llu operations are over, wanted 1",
           (unsigned long long)(completed(dp) - earlier));
    return sum_in(dp, a, 2.0f, open_handle, &open);
}

/* Six ordered groups are more than there are lanes: those that share one keep the program's order.
 */
int case_order_many(dp_context_t *dp)
{
    enum { GROUPS = 6 };
    dp_group_t *groups[GROUPS];
    dp_handle_t *handles[GROUPS];
    float values[GROUPS];

    for (int i = 0; i < GROUPS; i++) {
        char name[8];

        snprintf(name, sizeof(name), "g%d", i);
        if (make_group(dp, name, 0, DP_ORDER_PROGRAM, &groups[i]) != 0) return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < GROUPS; i++) {
            values[i] = (float)(i + round);
            EXPECT_STATUS(
                dp,
                dp_allreduce(groups[i], NULL, &values[i], &values[i], 1, DP_F32, NULL, &handles[i]),
                DP_OK);
        }
        for (int i = 0; i < GROUPS; i++)
            if (sum_in(dp, groups[i], (float)(i + round), handles[i], &values[i]) != 0) return 1;
        if (round % 5 != 4) continue; /* lanes are free for a later group */
        EXPECT_STATUS(dp, dp_group_destroy(groups[round % GROUPS]), DP_OK);
        if (make_group(dp, "again", 0, DP_ORDER_PROGRAM, &groups[round % GROUPS]) != 0) return 1;
    }
    return 0;
}

/* The same gradients, averaged in a group of either kind, have the same bits. */
int case_order_gradients(dp_context_t *dp)
{
    enum { COUNT = 5000, TENSORS = 6 };
    static const dp_order_t orders[2] = {DP_ORDER_NEGOTIATED, DP_ORDER_PROGRAM};
    float *values[2];

    for (int i = 0; i < 2; i++) {
        dp_gradient_t parameters[TENSORS] = {{0}};
        dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
        unsigned seed = (unsigned)dp_rank(dp) + 3;
        dp_gradients_t *gradients;
        char names[TENSORS][8];

        values[i] = calloc((size_t)TENSORS * COUNT, sizeof(float));
        EXPECT(dp, values[i] != NULL, "no memory");
        for (int k = 0; k < TENSORS * COUNT; k++)
            values[i][k] = (float)(rand_r(&seed) % 10000) / 7.0f;
        for (int t = 0; t < TENSORS; t++) {
            snprintf(names[t], sizeof(names[t]), "w%d", t);
            parameters[t].name = names[t];
            parameters[t].gradient = values[i] + (size_t)t * COUNT;
            parameters[t].count = COUNT;
            parameters[t].dtype = DP_F32;
        }
        if (make_group(dp, i == 0 ? "either" : "ordered", 0, orders[i], &options.group) != 0)
            return 1;
        EXPECT_STATUS(dp, dp_gradients_create(dp, parameters, TENSORS, &options, &gradients),
                      DP_OK);
        for (int t = TENSORS - 1; t >= 0; t--)
            EXPECT_STATUS(dp, dp_gradients_ready(gradients, (size_t)t, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, &result), DP_OK);
        dp_gradients_destroy(gradients);
    }
    EXPECT(dp, memcmp(values[0], values[1], (size_t)TENSORS * COUNT * sizeof(float)) == 0,
           "an ordered group averages to other bits");
    free(values[0]);
    free(values[1]);
    return 0;
}

/* Sends have no place in the order of a group, nor joins; operations without a name have none
 * elsewhere. The world beside it has all. */
int case_order_refused(dp_context_t *dp)
{
    dp_handle_t *handle;
    dp_group_t *group;
    float value = 1.0f;

    if (make_group(dp, "tp", 0, DP_ORDER_PROGRAM, &group) != 0) return 1;
    EXPECT_STATUS(dp, dp_join(group, NULL, &handle), DP_ERR_UNSUPPORTED);
    EXPECT_TEXT(dp, dp_error_text(dp), "order=program");
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), NULL, &value, &value, 1, DP_F32, NULL, &handle),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_barrier(group, "here", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_join(dp_world(dp), NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    return 0;
}

/* Another order in one of two ordered groups: the text names the group and both operations. */
int case_order_swapped(dp_context_t *dp)
{
    const int is_last = dp_rank(dp) == dp_size(dp) - 1;
    float values[2] = {1.0f, 2.0f}, same = 1.0f;
    dp_handle_t *handles[2] = {NULL, NULL}, *handle;
    dp_group_t *tp, *other;
    dp_status_t found = DP_OK;

    if (make_group(dp, "other", 0, DP_ORDER_PROGRAM, &other) != 0) return 1;
    if (make_group(dp, "tp", 0, DP_ORDER_PROGRAM, &tp) != 0) return 1;
    EXPECT_STATUS(dp, dp_allreduce(other, "same", &same, &same, 1, DP_F32, NULL, &handle), DP_OK);
    if (sum_in(dp, other, 1.0f, handle, &same) != 0) return 1;
    for (int i = 0; i < 2 && found == DP_OK; i++)
        found = dp_allreduce(tp, is_last == (i == 0) ? "right" : "left", &values[i], &values[i], 1,
                             DP_F32, NULL, &handles[i]);
    for (int i = 0; i < 2; i++) {
        const dp_status_t status = handles[i] == NULL ? DP_OK : dp_wait(handles[i], 60.0, NULL);

        if (found == DP_OK) found = status;
    }
    EXPECT(dp, found == DP_ERR_MISMATCH, "%s: %s", dp_status_string(found), dp_error_text(dp));
    EXPECT_TEXT(dp, dp_error_text(dp), "entry 1 of group 'tp'");
    EXPECT_TEXT(dp, dp_error_text(dp), "left (allreduce");
    EXPECT_TEXT(dp, dp_error_text(dp), "right (allreduce");
    return 0;
}

/* Nobody waits for the operations that differ, so no engine compares them, and the neighbours never
 * stop talking: the heartbeats come all the same. */
int case_order_busy(dp_context_t *dp)
{
    const int is_last = dp_rank(dp) == dp_size(dp) - 1;
    float value = 1.0f, one = 1.0f, sum = 0.0f;
    dp_status_t found = DP_OK;
    dp_handle_t *handle;
    dp_group_t *tp;

    if (make_group(dp, "tp", 0, DP_ORDER_PROGRAM, &tp) != 0) return 1;
    EXPECT_STATUS(
        dp, dp_allreduce(tp, is_last ? "right" : "left", &value, &value, 1, DP_F32, NULL, NULL),
        DP_OK);
    for (int i = 0; i < 1000 && found == DP_OK; i++) {
        found = dp_allreduce(dp_world(dp), "busy", &one, &sum, 1, DP_F32, NULL, &handle);
        if (found == DP_OK) found = dp_wait(handle, 60.0, NULL);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    EXPECT(dp, found == DP_ERR_MISMATCH, "%s: %s", dp_status_string(found), dp_error_text(dp));
    EXPECT_TEXT(dp, dp_error_text(dp), "entry 1 of group 'tp'");
    return 0;
}
