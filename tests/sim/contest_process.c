/*
 * contest_process.c - real ranks that make a group under one name with two lists, as often as it
 * takes to meet in every way.
 *
 *     contest_process below   5 ranks, DP_TREE_ARITY=2: both lists are announced below rank 1, so
 *                             they fail before rank 0 calls at all, which is told when it does
 *     contest_process apart   4 ranks or more: rank 1 and rank 3 have one list, rank 2 another; the
 *                             first at the root decides: all fail, or the first is made, and rank 2
 *                             is told that rank 1 has left
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dp.h"

enum { NAMES = 16, THREADS = 8 };

static int expect(dp_context_t *dp, const char *what, int holds, dp_status_t status)
{
    if (holds) return 0;
    fprintf(stderr, "rank %d: %s: %s: %s\n", dp_rank(dp), what, dp_status_string(status),
            dp_error_text(dp));
    return 1;
}

/* ---- Below one node ------------------------------------------------------------------------- */

static int fail_below(dp_context_t *dp, const char *name, const int list[2])
{
    dp_group_t *group = NULL;
    dp_status_t status = dp_group_create(dp, name, list, 2, NULL, &group);

    return expect(dp, name,
                  status == DP_ERR_MISMATCH &&
                      strstr(dp_error_text(dp), "rank 3 on rank 3 (") != NULL &&
                      strstr(dp_error_text(dp), "rank 4 on rank 4 (") != NULL,
                  status);
}

static int below(dp_context_t *dp)
{
    static const int lists[2][2] = {{0, 3}, {0, 4}};
    const int rank = dp_rank(dp);
    int failed = 0;

    for (int i = 0; i < NAMES; i++) {
        dp_handle_t *handle;
        char name[32];

        snprintf(name, sizeof(name), "pair %d", i);
        if (rank >= 3) failed |= fail_below(dp, name, lists[rank - 3]);
        if (dp_barrier(dp_world(dp), "failed", NULL, &handle) != DP_OK ||
            dp_wait(handle, 60.0, NULL) != DP_OK)
            return 1;
        if (rank == 0) failed |= fail_below(dp, name, lists[i % 2]);
    }
    return failed;
}

/* ---- At the root ---------------------------------------------------------------------------- */

typedef struct caller {
    dp_context_t *dp;
    pthread_t thread;
    int index, failed;
} caller_t;

static void *call(void *argument)
{
    static const int lists[2][2] = {{1, 3}, {1, 2}};
    caller_t *caller = argument;
    const int rank = dp_rank(caller->dp);

    for (int i = caller->index; i < NAMES; i += THREADS) {
        dp_group_t *group = NULL;
        dp_status_t status;
        char name[32];

        snprintf(name, sizeof(name), "pair %d", i);
        status = dp_group_create(caller->dp, name, lists[rank == 2], 2, NULL, &group);
        caller->failed |= expect(caller->dp, name,
                                 rank == 2 ? status == DP_ERR_MISMATCH || status == DP_ERR_LEFT
                                           : status == DP_ERR_MISMATCH || status == DP_OK,
                                 status);
    }
    return NULL;
}

static int apart(dp_context_t *dp)
{
    caller_t callers[THREADS];
    int failed = 0;

    if (dp_rank(dp) < 1 || dp_rank(dp) > 3) return 0;
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (caller_t){.dp = dp, .index = i};
        if (pthread_create(&callers[i].thread, NULL, call, &callers[i]) != 0) return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(callers[i].thread, NULL);
        failed |= callers[i].failed;
    }
    return failed;
}

int main(int argc, char **argv)
{
    dp_context_t *dp;
    int failed;

    if (argc != 2 || dp_init(NULL, &dp) != DP_OK) return 2;
    failed = strcmp(argv[1], "below") == 0 ? below(dp) : apart(dp);
    return dp_finalize(dp) == DP_OK ? failed : 1;
}
