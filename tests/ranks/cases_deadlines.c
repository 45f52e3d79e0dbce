/*
 * cases_deadlines.c - waits with a deadline: the waiting thread carries out small operations, and
 * leaves them at any moment without harm to them.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/ranks/cases_internal.h"

enum { STEPS = 600, COUNT_MAX = 6000 };

/* Equal on all ranks for the sizes, not for the deadlines. */
static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* This thread waits no more. 0: nobody carries the operation out. */
static int look_until_over(const dp_handle_t *handle)
{
    const double end = seconds_now() + 20.0;

    while (dp_test(handle) == DP_ERR_PENDING) {
        if (seconds_now() > end) return 0;
        usleep(100);
    }
    return 1;
}

/* Up to half a millisecond at a time; often 0 or so little that it is over at once. Now and then
 * this thread leaves the operation alone between two waits. */
static dp_status_t wait_in_slices(dp_handle_t *handle, uint32_t *seed, uint64_t *slices)
{
    dp_status_t status = DP_ERR_PENDING;

    while (status == DP_ERR_PENDING) {
        if (*slices % 4 == 1 && !look_until_over(handle)) return DP_ERR_PENDING;
        const uint32_t length = next(seed) % 6;

        status = dp_wait(handle, length == 0 ? 0.0 : 1e-6 * (double)(1u << (2 * length - 1)), NULL);
        ++*slices;
    }
    return status;
}

/* Brief operations, larger ones, and both at once, so that they may be launched together. A wait
 * that is left with nobody to carry the launch out would never end. */
int case_deadlines(dp_context_t *dp)
{
    uint32_t sizes = 7, own = 1000u * (uint32_t)dp_rank(dp) + 1u;
    uint64_t slices = 0;
    float values[3][COUNT_MAX];

    for (int step = 0; step < STEPS; step++) {
        const uint32_t repeat = sizes;
        static const char *const names[] = {"first", "second", "third"};
        const int operations = 1 + (int)(next(&sizes) % 3);
        dp_handle_t *handles[3], *barrier;
        size_t counts[3];

        for (int i = 0; i < operations; i++) {
            counts[i] = next(&sizes) % 4 == 0 ? 1 + next(&sizes) % COUNT_MAX : 1 + next(&sizes) % 9;
            for (size_t k = 0; k < counts[i]; k++)
                values[i][k] = (float)(dp_rank(dp) + step % 50);
            EXPECT_STATUS(dp,
                          dp_allreduce(dp_world(dp), names[i], values[i], values[i], counts[i],
                                       DP_F32, NULL, &handles[i]),
                          DP_OK);
        }
        EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "barrier", NULL, &barrier), DP_OK);
        if (step % 200 < 100) sizes = repeat; /* the same again */
        for (int i = operations; i-- > 0;) {
            const float ranks = (float)dp_size(dp);
            const float expected = ranks * (ranks - 1.0f) / 2.0f + ranks * (float)(step % 50);

            EXPECT_STATUS(dp, wait_in_slices(handles[i], &own, &slices), DP_OK);
            for (size_t k = 0; k < counts[i]; k++) {
                EXPECT(dp, values[i][k] == expected, "step %d, %s[%zu] is %g, not %g", step,
                       names[i], k, (double)values[i][k], (double)expected);
            }
        }
        EXPECT_STATUS(dp, wait_in_slices(barrier, &own, &slices), DP_OK);
    }
    EXPECT(dp, slices >= STEPS, "%llu slices", (unsigned long long)slices);
    return 0;
}

/* Under DP_INJECT=slow:1@engine=1500ms: rank 1 has agreed to every operation and comes late to its
 * data, so that rank 0, which has begun, waits there. It is back in time all the same. */
int case_deadlines_kept(dp_context_t *dp)
{
    const int is_slow = getenv("DP_INJECT") != NULL;

    for (int step = 0; step < 3; step++) {
        float value = 1.0f;
        dp_handle_t *handle;
        dp_status_t status;
        double begin, took;

        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), "sum", &value, &value, 1, DP_F32, NULL, &handle), DP_OK);
        begin = seconds_now();
        status = dp_wait(handle, dp_rank(dp) == 0 ? 0.2 : -1.0, NULL);
        took = seconds_now() - begin;
        if (dp_rank(dp) == 0 && status != DP_OK) {
            EXPECT_STATUS(dp, status, DP_ERR_PENDING);
            EXPECT(dp, took > 0.19 && took < 0.9, "%.2f s", took);
            status = dp_wait(handle, -1.0, NULL);
            took = -1.0;
        }
        EXPECT_STATUS(dp, status, DP_OK);
        EXPECT(dp, value == (float)dp_size(dp), "%g", (double)value);
        EXPECT(dp, !is_slow || dp_rank(dp) != 0 || took < 0.0, "rank 1 was not late");
    }
    return 0;
}

/* One of the calls that can be given a time limit; what it makes is destroyed. */
static dp_status_t make_in_time(dp_context_t *dp, int place, double timeout)
{
    float gradient[4] = {0};
    const dp_gradient_t tensor = {"g", NULL, gradient, 4, DP_F32};
    const dp_shard_unit_t unit = {.name = "u", .count = 9};
    const int dims[1] = {dp_size(dp)};
    const char *const names[1] = {"axis"};
    dp_gradients_options_t gradients_options = DP_GRADIENTS_OPTIONS_INIT;
    dp_shards_options_t shards_options = DP_SHARDS_OPTIONS_INIT;
    dp_group_options_t group_options = DP_GROUP_OPTIONS_INIT;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_gradients_t *gradients = NULL;
    dp_shards_t *shards = NULL;
    dp_handle_t *handle;
    dp_group_t *group = NULL;
    int ranks[64];
    dp_status_t status;

    for (int i = 0; i < dp_size(dp); i++)
        ranks[i] = i;
    gradients_options.timeout = shards_options.timeout = timeout;
    group_options.timeout = options.timeout = timeout;
    switch (place) {
    case 0:
        status = dp_group_create(dp, "all", ranks, (size_t)dp_size(dp), &group_options, &group);
        break;
    case 1:
        status = dp_group_split(dp_world(dp), "half", 1, 0, &group_options, &group);
        break;
    case 2:
        status = dp_mesh_create(dp, dims, 1, names, &group_options, &group);
        break;
    case 3:
        status = dp_barrier(dp_world(dp), "barrier", &options, &handle);
        if (status != DP_OK) return status;
        while ((status = dp_wait(handle, 1e-3, NULL)) == DP_ERR_PENDING)
            continue; /* the end of a wait is not the operation's */
        return status;
    case 4:
        status = dp_gradients_create(dp, &tensor, 1, &gradients_options, &gradients);
        dp_gradients_destroy(gradients);
        return status;
    default:
        status = dp_shards_create(dp, &unit, 1, &shards_options, &shards);
        dp_shards_destroy(shards);
        return status;
    }
    if (status != DP_OK) return status;
    return dp_group_order(group) == DP_ORDER_NEGOTIATED ? dp_group_destroy(group) : DP_ERR_ORDER;
}

static int meet(dp_context_t *dp)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "given up", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    return 0;
}

/* The last rank comes when the others have given up: it is told so, and the next time all is well.
 */
int case_time_limits(dp_context_t *dp)
{
    const int last = dp_size(dp) - 1;
    char missing[32];

    snprintf(missing, sizeof(missing), "missing rank %d ", last);
    EXPECT_STATUS(dp, make_in_time(dp, 0, -1.0), DP_ERR_INVALID);
    EXPECT_STATUS(dp, make_in_time(dp, 3, (double)NAN), DP_ERR_INVALID);
    for (int place = 0; place < 6; place++) {
        if (dp_rank(dp) == last && meet(dp) != 0) return 1;
        EXPECT_STATUS(dp, make_in_time(dp, place, 0.1), DP_ERR_TIMEOUT);
        EXPECT_TEXT(dp, dp_error_text(dp), missing);
        if (dp_rank(dp) != last && meet(dp) != 0) return 1;
        EXPECT_STATUS(dp, dp_async_error(dp), DP_OK);
        EXPECT_STATUS(dp, make_in_time(dp, place, 30.0), DP_OK);
    }
    return 0;
}
