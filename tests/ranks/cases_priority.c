/*
 * cases_priority.c - an operation of higher priority overtakes others that the root holds back.
 *
 * Runs with a DP_FUSION_HOLD of a second: while a large sum is in the data plane, what is complete
 * is held back, and goes by priority as soon as that sum is over.
 */
#include <sched.h>
#include <stdlib.h>

#include "tests/ranks/cases_internal.h"

enum { ROUNDS = 8, QUEUED = 8, LARGE = 4 << 20, MIDDLE = 256 << 10, SMALL = 1000 };
enum { ORDINARY = 1, URGENT = 2 }; /* cookies */

typedef struct queue {
    float *large, *small;  /* in place */
    float *middle[QUEUED]; /* likewise */
    dp_handle_t *handles[QUEUED + 1];
} queue_t;

static float *allocate(dp_context_t *dp, size_t count)
{
    return (float *)(void *)case_allocate(dp, count * sizeof(float), 1);
}

static int begin(dp_context_t *dp, queue_t *queue)
{
    queue->large = allocate(dp, LARGE);
    queue->small = allocate(dp, (size_t)SMALL * (size_t)dp_size(dp));
    EXPECT(dp, queue->large != NULL && queue->small != NULL, "no memory");
    for (int i = 0; i < QUEUED; i++) {
        queue->middle[i] = allocate(dp, MIDDLE);
        EXPECT(dp, queue->middle[i] != NULL, "no memory");
    }
    return 0;
}

static int submit_sum(dp_context_t *dp, const char *kind, int round, float *values, size_t count,
                      dp_handle_t **handle)
{
    dp_options_t options = DP_OPTIONS_INIT;
    char name[32];

    options.cookie = ORDINARY;
    snprintf(name, sizeof(name), "%s.%d", kind, round);
    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), name, values, values, count, DP_F32, &options, handle),
                  DP_OK);
    return 0;
}

/* The last submission, which goes first. */
static int submit_urgent(dp_context_t *dp, queue_t *queue, int round, dp_handle_t **handle)
{
    float *row = queue->small + (size_t)SMALL * (size_t)dp_rank(dp);
    dp_options_t options = DP_OPTIONS_INIT;
    char name[32];

    for (int i = 0; i < SMALL; i++)
        queue->small[i] = row[i] = 1.0f + (float)dp_rank(dp);
    options.cookie = URGENT;
    options.priority = dp_rank(dp) == dp_size(dp) - 1 ? 1 : -1; /* the largest counts */
    snprintf(name, sizeof(name), "urgent.%d", round);
    if (round % 2 == 0) {
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), name, queue->small, queue->small, SMALL, DP_F32,
                                   &options, handle),
                      DP_OK);
    } else {
        EXPECT_STATUS(
            dp,
            dp_allgather(dp_world(dp), name, row, queue->small, SMALL, DP_F32, &options, handle),
            DP_OK);
    }
    return 0;
}

/* Did the urgent operation, submitted last, end before the last one? In the order in which they
 * ended, so that it does not matter when this thread looks. */
static int has_overtaken(dp_context_t *dp)
{
    uint64_t cookies[QUEUED + 2];

    /* A cookie may come a moment after dp_wait() has returned. */
    for (size_t count = 0; count < QUEUED + 2; sched_yield())
        count += dp_completions_read(dp, cookies + count, QUEUED + 2 - count);
    return cookies[QUEUED + 1] != URGENT;
}

/* 1 is added to *overtaken where the urgent operation ended before the last of the queue. */
static int play(dp_context_t *dp, queue_t *queue, int round, int *overtaken)
{
    const int ranks = dp_size(dp);
    dp_handle_t *urgent;

    if (submit_sum(dp, "large", round, queue->large, LARGE, &queue->handles[QUEUED]) != 0) return 1;
    for (int i = 0; i < QUEUED; i++) {
        char kind[16];

        snprintf(kind, sizeof(kind), "middle.%d", i);
        if (submit_sum(dp, kind, round, queue->middle[i], MIDDLE, &queue->handles[i]) != 0)
            return 1;
    }
    if (submit_urgent(dp, queue, round, &urgent) != 0) return 1;
    EXPECT_STATUS(dp, dp_wait(urgent, 60.0, NULL), DP_OK);
    EXPECT(dp,
           round % 2 == 0 ? queue->small[0] == 0.5f * (float)(ranks * (ranks + 1))
                          : queue->small[(size_t)SMALL * (size_t)(ranks - 1)] == (float)ranks,
           "round %d: %g", round, (double)queue->small[0]);
    for (int i = 0; i <= QUEUED; i++)
        EXPECT_STATUS(dp, dp_wait(queue->handles[i], 60.0, NULL), DP_OK);
    /* A gather goes beside the sums in any case. */
    *overtaken += has_overtaken(dp) && round % 2 == 0;
    return 0;
}

int case_priority(dp_context_t *dp)
{
    int overtaken = 0;
    queue_t queue;

    if (begin(dp, &queue) != 0) return 1;
    for (int round = 0; round < ROUNDS; round++)
        if (play(dp, &queue, round, &overtaken) != 0) return 1;
    case_give_back(dp, (char *)queue.large, 1);
    case_give_back(dp, (char *)queue.small, 1);
    for (int i = 0; i < QUEUED; i++)
        case_give_back(dp, (char *)queue.middle[i], 1);
    /* Submitted last on every rank: without priorities it never ends before them. Where a rank
     * submits so slowly that the large sum is over before, nothing is held back in that round. */
    EXPECT(dp, overtaken > 0, "in none of %d rounds", ROUNDS / 2);
    return 0;
}
