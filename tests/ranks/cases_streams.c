/*
 * cases_streams.c - data from device streams, results for device streams, and a program that runs
 * ahead of both. Only for ranks that are threads: a program has no streams of the CPU device.
 *
 * Each of these would stand still for ever if the data plane started something whose data waits for
 * what is started later.
 */
#include <math.h>
#include <stdlib.h>

#include "coordinator/api/operation/stream.h"
#include "coordinator/api/context/context.h"
#include "tests/ranks/cases_internal.h"

enum { STEPS = 40, COUNT = 3000 };

typedef struct work {
    float *values;       /* [COUNT] the tensor */
    const float *before; /* [COUNT] what it follows from; NULL: nothing */
    float scale;
} work_t;

/* On the stream: the next step's gradient from the last one's average. */
static void produce(void *argument)
{
    const work_t *work = argument;

    for (int i = 0; i < COUNT; i++)
        work->values[i] = (work->before == NULL ? 1.0f : work->before[i]) * work->scale;
}

static int enqueue(dp_context_t *dp, dp_stream_t *stream, work_t *work)
{
    EXPECT_STATUS(dp, dp->device->ops->call(stream, DP_WORK_LARGE, produce, work), DP_OK);
    return 0;
}

static int synchronise(dp_context_t *dp, dp_stream_t *stream)
{
    dp_event_t *event;

    EXPECT_STATUS(dp, dp->device->ops->event_create(dp->device, &event), DP_OK);
    EXPECT_STATUS(dp, dp->device->ops->event_record(event, stream), DP_OK);
    EXPECT_STATUS(dp, dp->device->ops->event_wait(event), DP_OK);
    dp->device->ops->event_destroy(event);
    return 0;
}

/* Two tensors, each step's from the step before, and the thread never waits for a result. Odd ranks
 * submit the two in the other order. */
static int run_ahead(dp_context_t *dp, int in_arena)
{
    static const char *const names[2] = {"first", "second"};
    int ranks = dp_size(dp);
    dp_options_t options = DP_OPTIONS_INIT;
    dp_stream_t *stream;
    work_t *work = calloc((size_t)STEPS * 2, sizeof(*work));
    float *values = (float *)(void *)case_allocate(dp, sizeof(float) * COUNT * 4, in_arena);

    EXPECT(dp, work != NULL && values != NULL, "no memory");
    EXPECT_STATUS(dp, dp_context_stream_create(dp, &stream), DP_OK);
    options.reduce = DP_AVERAGE;
    options.stream = stream;
    for (int step = 0; step < STEPS; step++) {
        dp_handle_t *handles[2];

        for (int k = 0; k < 2; k++) {
            int which = dp_rank(dp) % 2 ? 1 - k : k;
            float *now = values + (size_t)(which * 2 + step % 2) * COUNT;
            float *before = values + (size_t)(which * 2 + 1 - step % 2) * COUNT;
            work_t *part = &work[step * 2 + which];

            *part = (work_t){now, step == 0 ? NULL : before, which == 0 ? 2.0f : 0.5f};
            if (enqueue(dp, stream, part) != 0) return 1;
            EXPECT_STATUS(dp,
                          dp_allreduce(dp_world(dp), names[which], now, now, COUNT, DP_F32,
                                       &options, &handles[k]),
                          DP_OK);
        }
        for (int k = 0; k < 2; k++) {
            EXPECT_STATUS(dp, dp_stream_wait(handles[k], stream, -1.0), DP_OK);
            dp_release(handles[k]);
        }
        /* powers of two stay exact; they must not leave the range */
        if (step % 20 == 19)
            for (int which = 0; which < 2; which++) {
                float *now = values + (size_t)(which * 2 + step % 2) * COUNT;
                float wanted = which == 0 ? 1048576.0f : 1.0f / 1048576.0f;

                if (synchronise(dp, stream) != 0) return 1;
                for (int i = 0; i < COUNT; i++) {
                    EXPECT(dp, now[i] == wanted, "%d ranks, %s, step %d: element %d is %g, not %g",
                           ranks, names[which], step, i, (double)now[i], (double)wanted);
                    now[i] = 1.0f;
                }
            }
    }
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    case_give_back(dp, (char *)values, in_arena);
    free(work);
    return 0;
}

int case_run_ahead(dp_context_t *dp)
{
    return run_ahead(dp, 0) != 0 || run_ahead(dp, 1) != 0;
}

/* One name again and again, without a wait in between but the streams'; two streams, one of which
 * is held back by the program. */
int case_streams_cross(dp_context_t *dp)
{
    enum { TIMES = 30 };
    dp_options_t options = DP_OPTIONS_INIT;
    dp_stream_t *producer, *consumer;
    work_t work[TIMES], copies[TIMES];
    float *values = calloc((size_t)TIMES * COUNT, sizeof(float));
    float *seen = calloc((size_t)TIMES * COUNT, sizeof(float));

    EXPECT(dp, values != NULL && seen != NULL, "no memory");
    EXPECT_STATUS(dp, dp_context_stream_create(dp, &producer), DP_OK);
    EXPECT_STATUS(dp, dp_context_stream_create(dp, &consumer), DP_OK);
    options.stream = producer;
    for (int i = 0; i < TIMES; i++) {
        dp_handle_t *handle;
        dp_status_t status;

        work[i] = (work_t){values + (size_t)i * COUNT, NULL, (float)(i + 1)};
        copies[i] = (work_t){seen + (size_t)i * COUNT, values + (size_t)i * COUNT, 1.0f};
        if (enqueue(dp, producer, &work[i]) != 0) return 1;
        status = dp_allreduce(dp_world(dp), "again", work[i].values, work[i].values, COUNT, DP_F32,
                              &options, &handle);
        EXPECT_STATUS(dp, status, DP_OK);
        /* issued, not over: the name is free again though the last sum may still be under way */
        EXPECT_STATUS(dp, dp_stream_wait(handle, consumer, -1.0), DP_OK);
        if (enqueue(dp, consumer, &copies[i]) != 0) return 1;
        dp_release(handle);
    }
    if (synchronise(dp, consumer) != 0) return 1;
    for (int i = 0; i < TIMES; i++)
        EXPECT(dp, seen[(size_t)i * COUNT + COUNT - 1] == (float)((i + 1) * dp_size(dp)),
               "use %d: %g", i, (double)seen[(size_t)i * COUNT + COUNT - 1]);
    EXPECT_STATUS(dp, dp_wait_all(dp, 60.0), DP_OK);
    free(values);
    free(seen);
    return 0;
}

static int meet(dp_context_t *dp, const char *name)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), name, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    return 0;
}

int case_stream_rules(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *early, *handle;
    dp_stream_t *stream;
    float value = 1.0f, other = 1.0f;

    EXPECT_STATUS(dp, dp_stream_wait(NULL, NULL, -1.0), DP_ERR_INVALID);
    /* submitted before there was a stream: its end is what can be waited for */
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "early", &other, &other, 1, DP_F32, NULL, &early),
                  DP_OK);
    EXPECT_STATUS(dp, dp_context_stream_create(dp, &stream), DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(early, stream, -1.0), DP_OK);
    EXPECT_STATUS(dp, dp_test(early), DP_OK);
    EXPECT_STATUS(dp, dp_wait(early, 60.0, NULL), DP_OK);

    options.stream = &value;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "v", &value, &value, 1, DP_F32, &options, NULL),
                  DP_ERR_UNSUPPORTED);
    EXPECT_TEXT(dp, dp_error_text(dp), "stream");
    options.stream = stream;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "v", &value, &value, 1, DP_F32, &options, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(handle, &value, -1.0), DP_ERR_UNSUPPORTED);
    EXPECT_STATUS(dp, dp_stream_wait(handle, stream, -1.0), DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(handle, NULL, -1.0), DP_OK);
    EXPECT(dp, value == (float)dp_size(dp), "%g", (double)value);
    EXPECT_STATUS(dp, dp_stream_wait(handle, stream, -1.0), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    /* a barrier has nothing to wait for on a stream but its end */
    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "b", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(handle, stream, -1.0), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    if (dp_size(dp) > 1) {
        /* what the others have not submitted is not issued */
        if (dp_rank(dp) != 0 && meet(dp, "looked") != 0) return 1;
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), "late", &value, &value, 1, DP_F32, &options, &handle),
            DP_OK);
        if (dp_rank(dp) == 0) {
            EXPECT_STATUS(dp, dp_stream_wait(handle, stream, 0.0), DP_ERR_PENDING);
            EXPECT_STATUS(dp, dp_stream_wait(handle, stream, 0.01), DP_ERR_PENDING);
            EXPECT_STATUS(dp, dp_stream_wait(handle, stream, NAN), DP_ERR_INVALID);
            if (meet(dp, "looked") != 0) return 1;
        }
        EXPECT_STATUS(dp, dp_stream_wait(handle, stream, 60.0), DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    }
    /* a failure is told, not waited for */
    if (dp_size(dp) > 1) {
        size_t count = dp_rank(dp) == 0 ? 1 : 0;

        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), "bad", &value, &value, count, DP_F32, &options, &handle),
            DP_OK);
        EXPECT_STATUS(dp, dp_stream_wait(handle, stream, -1.0), DP_ERR_MISMATCH);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_ERR_MISMATCH);
    }
    return case_sum(dp, dp_world(dp), "after", 1.0, dp_size(dp));
}
