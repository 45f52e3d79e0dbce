/*
 * cases_program.c - order=program: no message in steady state, the same results as any other way,
 * and every way in which ranks' programs can differ, reported by all ranks in a text.
 */
#include <stdlib.h>
#include <time.h>

#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

#define TENSORS 40

static size_t count_of(int tensor)
{
    return (size_t)tensor * (size_t)tensor * 20 + 1;
}

/* Small whole numbers, so that every order of adding gives the same. */
static int step_of(dp_context_t *dp, float *const *values, int step)
{
    dp_handle_t *handles[TENSORS];
    int ranks = dp_size(dp);

    for (int i = 0; i < TENSORS; i++) {
        size_t count = count_of(i);
        char name[32];

        for (size_t e = 0; e < count; e++)
            values[i][e] = (float)((int)(e % 100) + i + step + dp_rank(dp));
        snprintf(name, sizeof(name), "program.%d", i);
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), name, values[i], values[i], count, DP_F32, NULL,
                                   &handles[i]),
                      DP_OK);
    }
    for (int i = 0; i < TENSORS; i++) {
        size_t count = count_of(i);

        EXPECT_STATUS(dp, dp_wait(handles[i], 60.0, NULL), DP_OK);
        for (size_t e = 0; e < count; e++) {
            int wanted = ranks * ((int)(e % 100) + i + step) + ranks * (ranks - 1) / 2;

            EXPECT(dp, values[i][e] == (float)wanted, "tensor %d element %zu is %g, wanted %d", i,
                   e, (double)values[i][e], wanted);
        }
    }
    return 0;
}

/* Rounds of mixed memory: buckets depend on the program alone, and no message is sent. */
int case_program_rounds(dp_context_t *dp)
{
    dp_stats_t before = DP_STATS_INIT, after = DP_STATS_INIT;
    float *values[TENSORS];

    for (int i = 0; i < TENSORS; i++) {
        values[i] = (float *)(void *)case_allocate(dp, count_of(i) * sizeof(float), i % 3 == 0);
        EXPECT(dp, values[i] != NULL, "no memory");
    }
    for (int step = 0; step < 9; step++) {
        if (step == 2) EXPECT_STATUS(dp, dp_stats_get(dp, &before), DP_OK);
        /* one round more, so that nobody has begun to finalize */
        if (step == 8) EXPECT_STATUS(dp, dp_stats_get(dp, &after), DP_OK);
        if (step_of(dp, values, step) != 0) return 1;
    }
    EXPECT(dp, after.control_sent == before.control_sent, "%llu control messages in six rounds",
           (unsigned long long)(after.control_sent - before.control_sent));
    EXPECT(dp, (after.buckets - before.buckets) % 6 == 0, "%llu buckets in six equal rounds",
           (unsigned long long)(after.buckets - before.buckets));
    EXPECT(dp, after.buckets - before.buckets < (uint64_t)6 * TENSORS,
           "%llu buckets in six rounds of %d tensors: nothing was fused",
           (unsigned long long)(after.buckets - before.buckets), TENSORS);
    for (int i = TENSORS - 1; i >= 0; i--)
        case_give_back(dp, (char *)values[i], i % 3 == 0);
    return 0;
}

/* Every way of waiting launches what is waited for; a barrier keeps its place. */
int case_program_waits(dp_context_t *dp)
{
    float one = 1.0f, two = 2.0f, three = 3.0f;
    int ranks = dp_size(dp);
    dp_handle_t *handle, *barrier;
    dp_status_t status;

    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "one", &one, &one, 1, DP_F32, NULL, &handle),
                  DP_OK);
    while ((status = dp_test(handle)) == DP_ERR_PENDING) {
    }
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 0.0, NULL), DP_OK);
    EXPECT(dp, one == (float)ranks, "%g", (double)one);
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "two", &two, &two, 1, DP_F32, NULL, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "barrier", NULL, &barrier), DP_OK);
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "three", &three, &three, 1, DP_F32, NULL, &handle),
                  DP_OK);
    while ((status = dp_wait(handle, 0.0, NULL)) == DP_ERR_PENDING) {
    }
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT_STATUS(dp, dp_wait(barrier, 60.0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    EXPECT(dp, two == 2.0f * (float)ranks && three == 3.0f * (float)ranks, "%g %g", (double)two,
           (double)three);
    return 0;
}

/* Operations of this rank that are over. */
static uint64_t completed(dp_context_t *dp)
{
    dp_stats_t stats = DP_STATS_INIT;

    (void)dp_stats_get(dp, &stats);
    return stats.completed;
}

/* A gather is over without any wait, with all that was submitted before it and nothing behind it.
 */
int case_program_now(dp_context_t *dp)
{
    enum { ROW = 1000, ROUNDS = 3 };
    const size_t size = (size_t)dp_size(dp), rank = (size_t)dp_rank(dp);
    float before = 1.0f, behind = 2.0f, *rows;
    dp_options_t now = DP_OPTIONS_INIT;

    now.launch_now = 1;
    rows = (float *)(void *)case_allocate(dp, size * ROW * sizeof(float), 1);
    EXPECT(dp, rows != NULL, "no memory");
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t earlier = completed(dp);

        for (size_t i = 0; i < ROW; i++)
            rows[rank * ROW + i] = (float)(rank + (size_t)round);
        before = behind = 1.0f;
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), "before", &before, &before, 1, DP_F32, NULL, NULL),
                      DP_OK);
        EXPECT_STATUS(
            dp,
            dp_allgather(dp_world(dp), "rows", rows + rank * ROW, rows, ROW, DP_F32, &now, NULL),
            DP_OK);
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), "behind", &behind, &behind, 1, DP_F32, NULL, NULL),
                      DP_OK);
        for (int ms = 0; ms < 60000 && completed(dp) < earlier + 2; ms++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        EXPECT(dp, completed(dp) == earlier + 2, "%llu of 3 operations are over, wanted 2; %s",
               (unsigned long long)(completed(dp) - earlier), dp_error_text(dp));
        EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
        for (size_t r = 0; r < size; r++)
            EXPECT(dp, rows[r * ROW + ROW - 1] == (float)(r + (size_t)round), "row %zu has %g", r,
                   (double)rows[r * ROW + ROW - 1]);
        EXPECT(dp, before == (float)size, "%g", (double)before);
    }
    case_give_back(dp, (char *)rows, 1);
    return 0;
}

/* An operation without a place in an order that all ranks share is refused at once. */
int case_program_refused(dp_context_t *dp)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_join(dp_world(dp), NULL, &handle), DP_ERR_UNSUPPORTED);
    return case_sum(dp, dp_world(dp), "after", 1.0, dp_size(dp));
}

/* ---- Programs that differ ------------------------------------------------------------------- */

/* Programs that differ end the world, and a rank can hear of that anywhere: while it still waits
 * for what was the same everywhere, in a submission, or in the wait it came for. */
typedef struct ending {
    dp_context_t *dp;
    dp_status_t wanted;
    dp_status_t found;
} ending_t;

/* Submits a sum; NULL once the world has ended. */
static dp_handle_t *submit(ending_t *ending, const char *name, float *values, size_t count)
{
    dp_handle_t *handle = NULL;

    if (ending->found != DP_OK) return NULL;
    ending->found =
        dp_allreduce(dp_world(ending->dp), name, values, values, count, DP_F32, NULL, &handle);
    return ending->found == DP_OK ? handle : NULL;
}

static void finish(ending_t *ending, dp_handle_t *handle)
{
    dp_status_t status = handle == NULL ? ending->found : dp_wait(handle, 60.0, NULL);

    if (ending->found == DP_OK) ending->found = status;
}

/* A common beginning, so that the difference is in the middle of a program. */
static ending_t begin(dp_context_t *dp, dp_status_t wanted)
{
    static float same[64]; /* of each rank: ranks may be threads */
    ending_t ending = {dp, wanted, DP_OK};

    for (int i = 0; i < 3; i++)
        finish(&ending, submit(&ending, "same", &same[dp_rank(dp)], 1));
    return ending;
}

/* The world has ended, and the text tells both sides. */
static int ends_with(const ending_t *ending, const char *one, const char *other)
{
    dp_context_t *dp = ending->dp;

    EXPECT(dp, ending->found == ending->wanted, "%s, wanted %s; %s",
           dp_status_string(ending->found), dp_status_string(ending->wanted), dp_error_text(dp));
    EXPECT_TEXT(dp, dp_error_text(dp), "order=program");
    EXPECT_TEXT(dp, dp_error_text(dp), one);
    EXPECT_TEXT(dp, dp_error_text(dp), other);
    return 0;
}

static int is_last(dp_context_t *dp)
{
    return dp_rank(dp) == dp_size(dp) - 1;
}

/* Two tensors of one size in another order on the last rank: without a check the sums are wrong. */
int case_program_swapped(dp_context_t *dp)
{
    ending_t ending = begin(dp, DP_ERR_MISMATCH);
    float left[100] = {0}, right[100] = {0};
    dp_handle_t *first = submit(&ending, is_last(dp) ? "right" : "left", left, 100);
    dp_handle_t *second = submit(&ending, is_last(dp) ? "left" : "right", right, 100);

    finish(&ending, second);
    finish(&ending, first);
    return ends_with(&ending, "left (allreduce sum of 100 f32)",
                     "right (allreduce sum of 100 f32)");
}

/* Another size on the last rank, far larger: nobody's memory is written beyond its end. */
int case_program_sizes(dp_context_t *dp)
{
    enum { SMALL = 5000, LARGE = 3000000 };
    size_t count = is_last(dp) ? LARGE : SMALL;
    float *values = malloc((size_t)LARGE * sizeof(*values));
    ending_t ending = begin(dp, DP_ERR_MISMATCH);

    EXPECT(dp, values != NULL, "no memory");
    for (size_t i = 0; i < LARGE; i++)
        values[i] = 7.0f;
    finish(&ending, submit(&ending, "sized", values, count));
    for (size_t i = count; i < LARGE; i++)
        EXPECT(dp, values[i] == 7.0f, "element %zu behind the end is %g", i, (double)values[i]);
    free(values);
    return ends_with(&ending, "5000 f32", "3000000 f32");
}

/* In dp_alloc() memory on one rank only: the ranks would plan different buckets. */
int case_program_memory(dp_context_t *dp)
{
    int in_arena = dp_rank(dp) == 0;
    float *values = (float *)(void *)case_allocate(dp, 1000 * sizeof(float), in_arena);
    ending_t ending = begin(dp, DP_ERR_MISMATCH);

    EXPECT(dp, values != NULL, "no memory");
    finish(&ending, submit(&ending, "placed", values, 1000));
    case_give_back(dp, (char *)values, in_arena);
    return ends_with(&ending, "where it lies) on rank 0", "f32) on rank");
}

/* One rank waits where the others go on: their buckets would differ. */
int case_program_cuts(dp_context_t *dp)
{
    ending_t ending = begin(dp, DP_ERR_MISMATCH);
    float a[10] = {0}, b[10] = {0};
    dp_handle_t *first = submit(&ending, "a", a, 10), *second;

    if (is_last(dp) && first != NULL) (void)dp_test(first);
    second = submit(&ending, "b", b, 10);
    finish(&ending, second);
    finish(&ending, first);
    return ends_with(&ending, "a wait on rank", "b (allreduce");
}

/* One rank's bucket ends where the others' go on. */
int case_program_now_differs(dp_context_t *dp)
{
    ending_t ending = begin(dp, DP_ERR_MISMATCH);
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    float value = 0.0f;

    options.launch_now = is_last(dp);
    if (ending.found == DP_OK)
        ending.found =
            dp_allreduce(dp_world(dp), "now", &value, &value, 1, DP_F32, &options, &handle);
    finish(&ending, handle);
    return ends_with(&ending, "now (allreduce sum of 1 f32) on rank", "1 f32, launched at once)");
}

/* One tensor less on the last rank, which finalizes: the others learn which rank and which tensor.
 */
int case_program_early(dp_context_t *dp)
{
    ending_t ending = begin(dp, DP_ERR_LEFT);
    float value = 0.0f;

    if (is_last(dp)) return ending.found != DP_OK && ending.found != DP_ERR_LEFT;
    finish(&ending, submit(&ending, "lonely", &value, 1));
    return ends_with(&ending, "finalized before entry 7", "lonely (allreduce");
}
