/*
 * cases_group_life.c - groups in a program's life: several threads, gradients of a group, an end in
 * the middle, and what they cost to those outside.
 */
#include <pthread.h>
#include <stdlib.h>

#include "tests/ranks/cases_internal.h"

enum { RANKS_MAX = 64 };

static size_t list_all(const dp_context_t *dp, int *ranks)
{
    for (int rank = 0; rank < dp_size(dp); rank++)
        ranks[rank] = rank;
    return (size_t)dp_size(dp);
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct worker {
    dp_context_t *dp;
    int index;
    int failed;
    pthread_t thread;
} worker_t;

static int work(worker_t *worker)
{
    dp_context_t *dp = worker->dp;
    int list[RANKS_MAX], ranks = dp_size(dp);
    size_t count = list_all(dp, list);
    char name[32];

    snprintf(name, sizeof(name), "of thread %d", worker->index);
    for (int round = 0; round < 4; round++) {
        dp_group_t *group;

        EXPECT_STATUS(dp, dp_group_create(dp, name, list, count, NULL, &group), DP_OK);
        for (int i = 0; i < 20; i++)
            if (case_sum(dp, group, "v", worker->index + i, ranks * (worker->index + i)) != 0)
                return 1;
        EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    }
    return 0;
}

static void *run_worker(void *argument)
{
    worker_t *worker = argument;

    worker->failed = work(worker);
    return NULL;
}

int case_group_threads(dp_context_t *dp)
{
    worker_t workers[3];
    int failed = 0;

    for (int i = 0; i < 3; i++) {
        workers[i] = (worker_t){.dp = dp, .index = i};
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0) return 1;
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(workers[i].thread, NULL);
        failed |= workers[i].failed;
    }
    return failed;
}

/* ---- Gradients ------------------------------------------------------------------------------ */

/* Two models at once, one in each half of the world. */
int case_group_gradients(dp_context_t *dp)
{
    enum { COUNT = 2000 };
    static const char *const names[2] = {"w", "b"};
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    float weights[2][COUNT], gradients[2][COUNT];
    dp_gradient_t tensors[2];
    dp_gradients_t *model;
    dp_group_t *half;
    int own;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "half", dp_rank(dp) % 2, 0, NULL, &half), DP_OK);
    own = dp_group_rank(half);
    for (int k = 0; k < 2; k++) {
        tensors[k] = (dp_gradient_t){names[k], weights[k], gradients[k], COUNT, DP_F32};
        for (int i = 0; i < COUNT; i++)
            weights[k][i] = (float)dp_rank(dp);
    }
    options.group = half;
    EXPECT_STATUS(dp, dp_gradients_create(dp, tensors, 2, &options, &model), DP_OK);
    EXPECT(dp, weights[1][COUNT - 1] == (float)dp_group_world_rank(half, 0), "%g",
           (double)weights[1][COUNT - 1]);
    for (int step = 0; step < 5; step++) {
        dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;

        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < COUNT; i++)
                gradients[k][i] = (float)(2 * own);
            EXPECT_STATUS(dp, dp_gradients_ready(model, (size_t)k, NULL), DP_OK);
        }
        EXPECT_STATUS(dp, dp_gradients_sync(model, &result), DP_OK);
        EXPECT(dp, gradients[1][7] == (float)(dp_group_size(half) - 1), "%g",
               (double)gradients[1][7]);
    }
    dp_gradients_destroy(model);
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* ---- The end in the middle ------------------------------------------------------------------ */

/* The last rank aborts while the others make a group with it, join it, end it. */
int case_group_abort(dp_context_t *dp)
{
    static const float now = 1.0f; /* outlives the call: nobody waits for it */
    int list[RANKS_MAX], rank = dp_rank(dp), last = dp_size(dp) - 1;
    size_t count = list_all(dp, list);
    dp_group_t *group, *more = NULL;
    dp_handle_t *handle;
    dp_status_t status;

    EXPECT_STATUS(dp, dp_group_create(dp, "doomed", list, count, NULL, &group), DP_OK);
    if (rank == last) {
        /* the others have the first group, each of them, when they ask for this */
        for (int other = 0; other < last; other++) {
            float value = 0.0f;

            EXPECT_STATUS(dp, dp_recv(group, "now", &value, 1, DP_F32, other, NULL, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
        }
        dp_abort(dp, "no more groups");
        /* it takes a moment until that is known here too */
        while ((status = dp_group_create(dp, "more", &rank, 1, NULL, &more)) == DP_OK)
            ;
        EXPECT_STATUS(dp, status, DP_ERR_ABORTED);
        return 0;
    }
    EXPECT_STATUS(dp, dp_send(group, "now", &now, 1, DP_F32, last, NULL, NULL), DP_OK);
    switch (rank % 3) {
    case 0:
        EXPECT_STATUS(dp, dp_group_create(dp, "more", list, count, NULL, &more), DP_ERR_ABORTED);
        break;
    case 1:
        status = dp_join(group, NULL, &handle);
        if (status == DP_OK) status = dp_wait(handle, 60.0, NULL);
        EXPECT_STATUS(dp, status, DP_ERR_ABORTED);
        break;
    default:
        EXPECT_STATUS(dp, dp_group_destroy(group), DP_ERR_ABORTED);
        break;
    }
    EXPECT_TEXT(dp, dp_error_text(dp), "no more groups");
    return 0;
}

/* ---- Those outside -------------------------------------------------------------------------- */

static int messages_now(dp_context_t *dp, uint64_t *count)
{
    dp_stats_t stats = DP_STATS_INIT;

    EXPECT_STATUS(dp, dp_stats_get(dp, &stats), DP_OK);
    *count = stats.control_sent + stats.control_received;
    return 0;
}

/* Ranks 0 and 1 work; a leaf of the tree that is neither hears nothing of it. */
int case_group_outsiders(dp_context_t *dp)
{
    enum { OPERATIONS = 200 };
    static const int pair[2] = {0, 1};
    uint64_t before, after;
    dp_group_t *group;

    EXPECT_STATUS(dp, dp_group_create(dp, "pair", pair, 2, NULL, &group), DP_OK);
    if (case_sum(dp, dp_world(dp), "begin", 1.0, dp_size(dp)) != 0) return 1;
    if (messages_now(dp, &before) != 0) return 1;
    for (int i = 0; i < OPERATIONS && group != NULL; i++) {
        char name[32];

        snprintf(name, sizeof(name), "v.%d", i % 50);
        if (case_sum(dp, group, name, 1.0, 2.0) != 0) return 1;
    }
    if (case_sum(dp, dp_world(dp), "end", 1.0, dp_size(dp)) != 0) return 1;
    if (messages_now(dp, &after) != 0) return 1;
    /* the sum at the end costs a few; with pretended nodes an outsider may lead members */
    EXPECT(dp, group != NULL || dp_node_count(dp) > 1 || after - before <= 10,
           "%llu messages to rank %d for %d operations of others",
           (unsigned long long)(after - before), dp_rank(dp), OPERATIONS);
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    return case_sum(dp, dp_world(dp), "over", 1.0, dp_size(dp));
}
