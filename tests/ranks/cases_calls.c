/*
 * cases_calls.c - the calls themselves: handles and their rules, wrong arguments, ranks that
 * disagree, leave or abort, several threads of a program.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "tests/ranks/cases_internal.h"

static void pause_ms(long ms)
{
    struct timespec length = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&length, NULL);
}

int case_handles(dp_context_t *dp)
{
    dp_group_t *world = dp_world(dp);
    float values[100], other[100] = {0};
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL, *barrier = NULL;
    dp_status_t status;
    int rank = dp_rank(dp), ranks = dp_size(dp), is_late = rank == ranks - 1 && ranks > 1;

    for (int i = 0; i < 100; i++)
        values[i] = 1.0f;
    /* The last rank comes late: the others see a running operation, and say when they have. */
    if (is_late) {
        EXPECT_STATUS(dp, dp_barrier(world, "seen", NULL, &barrier), DP_OK);
        EXPECT_STATUS(dp, dp_wait(barrier, 60.0, NULL), DP_OK);
    }
    EXPECT_STATUS(dp, dp_allreduce(world, "h", values, values, 100, DP_F32, NULL, &handle), DP_OK);
    if (ranks > 1 && !is_late) {
        EXPECT_STATUS(dp, dp_wait(handle, 0.01, NULL), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_wait(handle, 0.0, NULL), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_test(handle), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_allreduce(world, "h", other, other, 100, DP_F32, NULL, NULL),
                      DP_ERR_BUSY);
        EXPECT_TEXT(dp, dp_error_text(dp), "tensor h");
        EXPECT_STATUS(dp, dp_barrier(world, "seen", NULL, NULL), DP_OK);
    }
    while ((status = dp_test(handle)) == DP_ERR_PENDING)
        pause_ms(1);
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, -1.0, NULL), DP_OK);
    EXPECT(dp, values[99] == (float)ranks, "%g", (double)values[99]);

    /* Without handles, and with one given back at once. */
    for (int i = 0; i < 20; i++) {
        char name[32];

        snprintf(name, sizeof(name), "all.%d", i);
        EXPECT_STATUS(dp,
                      dp_allreduce(world, name, &other[i], &other[i], 1, DP_F32, NULL,
                                   i == 3 ? &handle : NULL),
                      DP_OK);
        if (i == 3) dp_release(handle);
    }
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);

    /* Woken for by nobody, and only looked at. */
    for (int i = 0, looks = 0; i < 20; i++) {
        options.more_follow = 1;
        EXPECT_STATUS(dp, dp_allreduce(world, "h", values, values, 1, DP_F32, &options, &handle),
                      DP_OK);
        while ((status = dp_test(handle)) == DP_ERR_PENDING && ++looks < 20000)
            pause_ms(1);
        EXPECT_STATUS(dp, status, DP_OK);
        dp_release(handle);
    }

    /* A barrier completes after the last rank came. */
    if (is_late) pause_ms(100);
    EXPECT_STATUS(dp, dp_barrier(world, "b", NULL, &barrier), DP_OK);
    EXPECT_STATUS(dp, dp_wait(barrier, 60.0, NULL), DP_OK);
    dp_release(NULL);
    return 0;
}

/* Times that are no number, handles given back twice, memory taken back too early: told, and
 * nothing is lost by it. */
int case_misuse(dp_context_t *dp)
{
    const int ranks = dp_size(dp), is_late = dp_rank(dp) == ranks - 1 && ranks > 1;
    dp_group_t *world = dp_world(dp);
    float *values = NULL, other[10] = {0};
    dp_handle_t *handle = NULL, *second = NULL, *barrier = NULL;
    void *memory = NULL;

    EXPECT_STATUS(dp, dp_alloc(dp, 12288, &memory), DP_OK);
    values = memory;
    if (is_late) {
        EXPECT_STATUS(dp, dp_barrier(world, "tried", NULL, &barrier), DP_OK);
        EXPECT_STATUS(dp, dp_wait(barrier, 60.0, NULL), DP_OK);
    }
    /* Not at the start of the memory, and in the second place of a list. */
    EXPECT_STATUS(dp,
                  dp_grouped_allreduce(world, "list",
                                       (dp_tensor_t[]){{other, other, 10, DP_F32},
                                                       {values + 1500, values + 1500, 100, DP_F32}},
                                       2, NULL, &handle),
                  DP_OK);
    if (ranks > 1 && !is_late) {
        EXPECT_STATUS(dp, dp_wait(handle, (double)NAN, NULL), DP_ERR_INVALID);
        EXPECT_TEXT(dp, dp_error_text(dp), "dp_wait: seconds is not a number");
        EXPECT_STATUS(dp, dp_wait_all(dp, (double)-NAN), DP_ERR_INVALID);
        EXPECT_STATUS(dp, dp_wait(handle, -0.0, NULL), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_wait(handle, 1e-300, NULL), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_wait_all(dp, 1e-3), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_free(dp, memory), DP_ERR_BUSY);
        EXPECT_TEXT(dp, dp_error_text(dp), "dp_free: tensor list is in flight");
        EXPECT_STATUS(dp, dp_barrier(world, "tried", NULL, NULL), DP_OK);
    }
    EXPECT_STATUS(dp, dp_wait(handle, (double)INFINITY, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, -1.0, NULL), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "dp_wait: this handle was given back before");
    EXPECT_STATUS(dp, dp_test(handle), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_stream_wait(handle, NULL, -1.0), DP_ERR_INVALID);
    dp_release(handle);
    EXPECT_STATUS(dp, dp_wait_all(dp, -INFINITY), DP_OK);
    EXPECT_STATUS(dp, dp_free(dp, memory), DP_OK);

    /* Given back while it is under way: the operation goes on, and its handle is gone all the same.
     */
    EXPECT_STATUS(dp, dp_allreduce(world, "go", other, other, 10, DP_F32, NULL, &handle), DP_OK);
    dp_release(handle);
    EXPECT_STATUS(dp, dp_wait(handle, -1.0, NULL), DP_ERR_INVALID);
    dp_release(handle);
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    EXPECT_STATUS(dp, dp_barrier(world, "end", NULL, &second), DP_OK);
    EXPECT_STATUS(dp, dp_wait(second, 60.0, NULL), DP_OK);
    return 0;
}

/* Operations faster than they can be done: what is refused says how many there were just then. */
int case_queue(dp_context_t *dp)
{
    for (int i = 0; i < 3000; i++) {
        char name[16];
        dp_status_t status;

        snprintf(name, sizeof(name), "q.%d", i % 100);
        while ((status = dp_barrier(dp_world(dp), name, NULL, NULL)) == DP_ERR_FULL) {
            const char *text = strstr(dp_error_text(dp), "operations are in flight");
            size_t count = 0;

            EXPECT(dp, text != NULL, "\"%s\"", dp_error_text(dp));
            while (text > dp_error_text(dp) && text[-1] != ':')
                text--;
            EXPECT(dp, sscanf(text, "%zu", &count) == 1 && count == QUEUE_CASE_DEPTH, "\"%s\"",
                   dp_error_text(dp));
            sched_yield();
        }
        EXPECT_STATUS(dp, status, DP_OK);
    }
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    return 0;
}

int case_arguments(dp_context_t *dp)
{
    dp_group_t *world = dp_world(dp);
    dp_options_t options = DP_OPTIONS_INIT;
    float value = 0.0f;
    int32_t number = 0;
    char name[DP_NAME_MAX + 2];
    void *memory = NULL;

    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    EXPECT_STATUS(dp, dp_allreduce(NULL, "a", &value, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, NULL, &value, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, "", &value, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, name, &value, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, "a", NULL, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "in is NULL");
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, NULL, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, (dp_dtype_t)99, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "99");
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, SIZE_MAX / 2, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_broadcast(world, "a", &value, &value, 1, DP_F32, dp_size(dp), NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_broadcast(world, "a", &value, &value, 1, DP_F32, -1, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_grouped_allreduce(world, "a", NULL, 3, NULL, NULL), DP_ERR_INVALID);
    options.prescale = 2.0;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &number, &number, 1, DP_I32, &options, NULL),
                  DP_ERR_INVALID);
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.reduce = (dp_reduce_t)77;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_INVALID);
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.launch_now = 2;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "launch_now is 2");
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.more_follow = -1;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "more_follow is -1");
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.size = 3;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_INVALID);
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.stream = &options;
    EXPECT_STATUS(dp, dp_allreduce(world, "a", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_UNSUPPORTED);
    EXPECT_STATUS(dp, dp_wait(NULL, 0.0, NULL), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_test(NULL), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_alloc(dp, (size_t)1 << 60, &memory), DP_ERR_NO_MEMORY);
    EXPECT_STATUS(dp, dp_free(dp, &value), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_free(dp, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_alloc(dp, 0, &memory), DP_OK);
    EXPECT_STATUS(dp, dp_free(dp, memory), DP_OK);
    EXPECT(dp, dp_setting(dp, "FUSION_BYTES") != NULL, "no such setting");
    EXPECT(dp, strcmp(dp_setting(dp, "DEVICE"), "host") == 0, "it is %s", dp_setting(dp, "DEVICE"));
    EXPECT(dp, dp_setting(dp, "NONSENSE") == NULL, "it is %s", dp_setting(dp, "NONSENSE"));
    EXPECT(dp, dp_rank(NULL) == -1 && dp_world(NULL) == NULL, "NULL context");
    EXPECT(dp, dp_node_count(dp) >= 1 && dp_local_rank(dp) < dp_local_size(dp), "places");
    return 0;
}

/* One tensor differs between ranks: it fails everywhere, by name, and nothing else does. */
int case_mismatch(dp_context_t *dp)
{
    dp_group_t *world = dp_world(dp);
    int rank = dp_rank(dp), ranks = dp_size(dp);
    float values[8] = {0}, good = 1.0f;
    dp_handle_t *bad, *fine;
    dp_result_t result = DP_RESULT_INIT;

    for (int round = 0; round < 3; round++) {
        dp_dtype_t dtype = round == 1 && rank == ranks - 1 ? DP_I32 : DP_F32;
        size_t count = round != 1 && rank == ranks - 1 ? 5 : 4;
        dp_status_t submitted;

        good = 1.0f;
        submitted = dp_allreduce(world, "wrong", values, values, count, dtype, NULL, &bad);
        EXPECT_STATUS(dp, submitted, DP_OK);
        EXPECT_STATUS(dp, dp_allreduce(world, "right", &good, &good, 1, DP_F32, NULL, &fine),
                      DP_OK);
        EXPECT_STATUS(dp, dp_wait(bad, 30.0, &result), DP_ERR_MISMATCH);
        EXPECT_TEXT(dp, result.text, "wrong");
        if (round != 1) {
            EXPECT_TEXT(dp, result.text, "5");
            EXPECT_TEXT(dp, result.text, "4");
        } else {
            EXPECT_TEXT(dp, result.text, "i32");
            EXPECT_TEXT(dp, result.text, "f32");
        }
        EXPECT_STATUS(dp, dp_wait(fine, 30.0, NULL), DP_OK);
        EXPECT(dp, good == (float)ranks, "%g", (double)good);
    }
    /* and the name works again once the ranks agree */
    for (int i = 0; i < 8; i++)
        values[i] = 2.0f;
    EXPECT_STATUS(dp, dp_allreduce(world, "wrong", values, values, 8, DP_F32, NULL, &bad), DP_OK);
    EXPECT_STATUS(dp, dp_wait(bad, 30.0, NULL), DP_OK);
    EXPECT(dp, values[7] == 2.0f * (float)ranks, "%g", (double)values[7]);
    return 0;
}

/* The last rank finalizes while the others still wait for it. */
int case_left(dp_context_t *dp)
{
    float value = 1.0f;
    dp_handle_t *handle;
    dp_result_t result = DP_RESULT_INIT;
    char name[32];

    if (dp_rank(dp) == dp_size(dp) - 1) return 0;
    EXPECT_STATUS(
        dp, dp_allreduce(dp_world(dp), "lonely", &value, &value, 1, DP_F32, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 30.0, &result), DP_ERR_LEFT);
    snprintf(name, sizeof(name), "rank %d", dp_size(dp) - 1);
    EXPECT_TEXT(dp, result.text, name);
    EXPECT_TEXT(dp, result.text, "lonely");
    return 0;
}

/* Every rank finalizes with an operation that only the others could complete: nobody hangs. */
int case_left_crosswise(dp_context_t *dp)
{
    static float values[64];
    char name[32];

    snprintf(name, sizeof(name), "only.%d", dp_rank(dp));
    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), name, &values[dp_rank(dp)], &values[dp_rank(dp)], 1,
                               DP_F32, NULL, NULL),
                  DP_OK);
    return 0;
}

int case_abort(dp_context_t *dp)
{
    float value = 1.0f;
    dp_handle_t *handle = NULL;
    dp_result_t result = DP_RESULT_INIT;
    int culprit = dp_size(dp) - 1;
    dp_status_t status;
    char name[32];

    if (dp_rank(dp) == culprit) {
        pause_ms(50);
        dp_abort(dp, "the data is gone");
        while (dp_barrier(dp_world(dp), "gone", NULL, NULL) != DP_ERR_ABORTED)
            pause_ms(5);
    } else {
        status = dp_allreduce(dp_world(dp), "t", &value, &value, 1, DP_F32, NULL, &handle);
        if (status == DP_OK) status = dp_wait(handle, 30.0, &result);
        EXPECT_STATUS(dp, status, DP_ERR_ABORTED);
    }
    snprintf(name, sizeof(name), "rank %d", culprit);
    EXPECT_TEXT(dp, dp_error_text(dp), name);
    EXPECT_TEXT(dp, dp_error_text(dp), "the data is gone");
    return 0;
}

/* ---- Several threads of one program --------------------------------------------------------- */

typedef struct worker {
    dp_context_t *dp;
    int index;
    int failed;
    pthread_t thread;
} worker_t;

static int work(worker_t *worker)
{
    dp_context_t *dp = worker->dp;

    for (int i = 0; i < 150; i++) {
        float value = (float)(worker->index + 1);
        dp_handle_t *handle;
        char name[32];

        snprintf(name, sizeof(name), "thread.%d.%d", worker->index, i % 5);
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), name, &value, &value, 1, DP_F32, NULL, &handle), DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
        EXPECT(dp, value == (float)((worker->index + 1) * dp_size(dp)), "%g", (double)value);
    }
    return 0;
}

static void *run_worker(void *argument)
{
    worker_t *worker = argument;

    worker->failed = work(worker);
    return NULL;
}

int case_threads(dp_context_t *dp)
{
    worker_t workers[4];
    int failed = 0;

    for (int i = 0; i < 4; i++) {
        workers[i] = (worker_t){.dp = dp, .index = i};
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0) return 1;
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        failed |= workers[i].failed;
    }
    return failed;
}
