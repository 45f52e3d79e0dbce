/*
 * cases_handles.c - the rules of dp.h about handles and results, each once.
 */
#include "tests/parity/parity.h"

/* Submits "NAME" on rank 0 at once and elsewhere after rank 0 called open_gate(). */
static int submit_behind_gate(dp_context_t *dp, const char *name, float *value, size_t count,
                              dp_handle_t **handle)
{
    if (dp_rank(dp) != 0 && parity_after_rank0(dp, "handles.gate")) return 1;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), name, value, value, count, DP_F32, NULL, handle),
                  DP_OK);
    return 0;
}

static int open_gate(dp_context_t *dp)
{
    return dp_rank(dp) == 0 ? parity_after_rank0(dp, "handles.gate") : 0;
}

/* A failed submission sets no handle; a wait writes no result unless the operation is over. */
int parity_outputs_are_written_only_when_due(dp_context_t *dp)
{
    dp_handle_t *const untouched = (dp_handle_t *)(void *)dp;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = untouched;
    float value = 1.0f;

    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "", &value, &value, 1, DP_F32, NULL, &handle),
                  DP_ERR_INVALID);
    EXPECT(dp, handle == untouched, "the handle was written");
    if (submit_behind_gate(dp, "due", &value, 1, &handle)) return 1;
    if (dp_rank(dp) == 0) {
        result.nonfinite = 99;
        EXPECT_STATUS(dp, dp_wait(handle, 0.0, &result), DP_ERR_PENDING);
        EXPECT_STATUS(dp, dp_wait(handle, 0.01, &result), DP_ERR_PENDING);
        EXPECT(dp, result.nonfinite == 99, "the result was written");
    }
    if (open_gate(dp)) return 1;
    /* A result of a size that no version has is refused, and the handle stays. */
    result.size = 12;
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, &result), DP_ERR_INVALID);
    EXPECT(dp, dp_rank(dp) != 0 || result.nonfinite == 99, "the result was written");
    result = (dp_result_t)DP_RESULT_INIT;
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, &result), DP_OK);
    EXPECT(dp, result.count == 1 && result.contributors == dp_size(dp) && result.nonfinite == 0,
           "count %zu, contributors %d", result.count, result.contributors);
    EXPECT(dp, result.sum_squares == (double)value * (double)value, "%g", result.sum_squares);
    EXPECT(dp, result.last_rank == -1 && result.text[0] == '\0', "%s", result.text);
    return 0;
}

/* dp_test() looks as often as one likes; the handle stays until a wait has told the end. */
int parity_test_keeps_the_handle(dp_context_t *dp)
{
    float value = 1.0f;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    if (submit_behind_gate(dp, "look", &value, 1, &handle)) return 1;
    if (dp_rank(dp) == 0 && dp_size(dp) > 1) {
        for (int i = 0; i < 3; i++)
            EXPECT_STATUS(dp, dp_test(handle), DP_ERR_PENDING);
    }
    if (open_gate(dp)) return 1;
    EXPECT_STATUS(dp, dp_wait_all(dp, 120.0), DP_OK);
    for (int i = 0; i < 3; i++)
        EXPECT_STATUS(dp, dp_test(handle), DP_OK);
    /* dp_stream_wait() without a stream waits, and keeps the handle too */
    EXPECT_STATUS(dp, dp_stream_wait(handle, NULL, -1.0), DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(handle, &value, -1.0), DP_ERR_UNSUPPORTED);
    status = dp_wait(handle, 0.0, NULL); /* only looks, and it is over */
    EXPECT_STATUS(dp, status, DP_OK);
    EXPECT_STATUS(dp, dp_stream_wait(NULL, NULL, -1.0), DP_ERR_INVALID);
    return 0;
}

/* A name is free as soon as its operation has completed here, whoever still holds the handle. */
int parity_names_are_free_after_completion(dp_context_t *dp)
{
    enum { TURNS = 50 };
    dp_handle_t *handles[TURNS];
    float values[TURNS];

    for (int i = 0; i < TURNS; i++) {
        values[i] = (float)i;
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), "free", &values[i], &values[i], 1, DP_F32, NULL,
                                   &handles[i]),
                      DP_OK);
        EXPECT_STATUS(dp, dp_stream_wait(handles[i], NULL, -1.0), DP_OK);
    }
    for (int i = TURNS - 1; i >= 0; i--) {
        EXPECT_STATUS(dp, dp_wait(handles[i], 120.0, NULL), DP_OK);
        EXPECT(dp, values[i] == (float)(i * dp_size(dp)), "%g", (double)values[i]);
    }
    return 0;
}

/* A handle given back early, or never had: the operation goes on, and its failure is not lost. */
int parity_failures_without_a_handle_are_told(dp_context_t *dp)
{
    const size_t bad = dp_rank(dp) == 0 ? 1 : 2;
    dp_handle_t *released = NULL, *kept = NULL;
    float a[2] = {1.0f}, b[2] = {1.0f}, c[2] = {1.0f}, d[2] = {1.0f};
    dp_result_t result = DP_RESULT_INIT;
    dp_group_t *world = dp_world(dp);

    EXPECT_STATUS(dp, dp_allreduce(world, "told.fine", a, a, 1, DP_F32, NULL, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_allreduce(world, "told.released", b, b, bad, DP_F32, NULL, &released),
                  DP_OK);
    dp_release(released);
    EXPECT_STATUS(dp, dp_allreduce(world, "told.kept", c, c, bad, DP_F32, NULL, &kept), DP_OK);
    EXPECT_STATUS(dp, dp_wait_all(dp, 120.0), DP_ERR_MISMATCH);
    EXPECT(dp, a[0] == (float)dp_size(dp), "%g", (double)a[0]);
    EXPECT_STATUS(dp, dp_wait_all(dp, 120.0), DP_OK); /* told once */
    EXPECT_STATUS(dp, dp_test(kept), DP_ERR_MISMATCH);
    EXPECT_STATUS(dp, dp_stream_wait(kept, NULL, -1.0), DP_ERR_MISMATCH);
    EXPECT_STATUS(dp, dp_wait(kept, 120.0, &result), DP_ERR_MISMATCH); /* its own to the holder */
    EXPECT_TEXT(dp, result.text, "told.kept");
    EXPECT_STATUS(dp, dp_allreduce(world, "told.null", d, d, bad, DP_F32, NULL, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_wait_all(dp, 120.0), DP_ERR_MISMATCH);
    EXPECT_STATUS(dp, dp_wait_all(dp, 0.0), DP_OK);
    return 0;
}

/* A failure that a holder knows of is not told to dp_wait_all(). */
int parity_failures_with_a_handle_are_the_holders(dp_context_t *dp)
{
    float value[2] = {1.0f};
    dp_handle_t *handle = NULL;

    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), "holder", value, value, dp_rank(dp) == 0 ? 1 : 2,
                               DP_F32, NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait_all(dp, 120.0), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_ERR_MISMATCH);
    return 0;
}

/* Left to dp_finalize(), done and not. That nothing leaks is what the sanitizers see. */
int parity_handles_may_be_left_to_finalize(dp_context_t *dp)
{
    static float values[PARITY_RANKS_MAX][8];
    float *mine = values[dp_rank(dp)];
    dp_handle_t *handle = NULL;

    for (int i = 0; i < 8; i++) {
        char name[32];

        snprintf(name, sizeof(name), "left.%d", i);
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), name, &mine[i], &mine[i], 1, DP_F32, NULL, &handle),
            DP_OK);
        if (i < 4) EXPECT_STATUS(dp, dp_stream_wait(handle, NULL, -1.0), DP_OK);
    }
    return 0;
}
