/*
 * cases_gradients.c - dp_gradients_t: broadcast, average, accumulation, clipping, overflow, the
 * errors of a loop in the wrong order, and what DP_CHECK_DATA finds.
 */
#include <math.h>

#include "tests/ranks/cases_internal.h"

enum { COUNT_A = 1000, COUNT_B = 37 };

typedef struct model {
    float wa[COUNT_A], wb[COUNT_B], ga[COUNT_A], gb[COUNT_B];
    dp_gradient_t tensors[2];
} model_t;

static void fill(model_t *model, float weight, float gradient)
{
    for (int i = 0; i < COUNT_A; i++) {
        model->wa[i] = weight;
        model->ga[i] = gradient;
    }
    for (int i = 0; i < COUNT_B; i++) {
        model->wb[i] = weight;
        model->gb[i] = gradient;
    }
    model->tensors[0] = (dp_gradient_t){"a", model->wa, model->ga, COUNT_A, DP_F32};
    model->tensors[1] = (dp_gradient_t){"b", model->wb, model->gb, COUNT_B, DP_F32};
}

int case_gradients(dp_context_t *dp)
{
    model_t model;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradients_t *gradients;
    float mean = ((float)dp_size(dp) + 1.0f) / 2.0f;
    double norm;

    fill(&model, (float)dp_rank(dp) + 5.0f, 0.0f);
    options.accumulation_steps = 2;
    options.clip_norm = 1.0;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, &options, &gradients), DP_OK);
    EXPECT(dp, model.wa[0] == 5.0f && model.wb[COUNT_B - 1] == 5.0f, "weights of rank 0: %g %g",
           (double)model.wa[0], (double)model.wb[COUNT_B - 1]);
    for (int step = 0; step < 5; step++) {
        fill(&model, 5.0f, 0.0f);
        for (int micro = 0; micro < 2; micro++) {
            for (int i = 0; i < COUNT_B; i++)
                model.gb[i] += (float)dp_rank(dp) + 1.0f;
            EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
            for (int i = 0; i < COUNT_A; i++)
                model.ga[i] += 2.0f * ((float)dp_rank(dp) + 1.0f);
            EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
        }
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, &result), DP_OK);
        EXPECT(dp, fabsf(model.ga[7] - 2.0f * mean) < 1e-5f, "%g, wanted %g", (double)model.ga[7],
               2.0 * (double)mean);
        EXPECT(dp, fabsf(model.gb[7] - mean) < 1e-5f, "%g, wanted %g", (double)model.gb[7],
               (double)mean);
        norm = sqrt(COUNT_A * 4.0 * (double)mean * (double)mean +
                    COUNT_B * (double)mean * (double)mean);
        EXPECT(dp, fabs(result.norm - norm) < 1e-5 * norm, "%g, wanted %g", result.norm, norm);
        EXPECT(dp, fabs(result.clip_coef - 1.0 / norm) < 1e-5 / norm, "%g", result.clip_coef);
        EXPECT(dp, result.skip == 0, "skip %d", result.skip);
    }
    dp_gradients_destroy(gradients);
    dp_gradients_destroy(NULL);
    return 0;
}

/* Without a GPU the result of a sync on a stream lies in ordinary memory, and is the same. */
int case_gradients_on(dp_context_t *dp)
{
    model_t model;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_device_result_t result = DP_DEVICE_RESULT_INIT;
    dp_gradients_t *gradients;
    const uint32_t *skip;

    options.clip_norm = 1.0;
    fill(&model, 1.0f, 3.0f);
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, &options, &gradients), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync_on(NULL, NULL, &result), DP_ERR_INVALID);
    result.size = 1;
    EXPECT_STATUS(dp, dp_gradients_sync_on(gradients, NULL, &result), DP_ERR_INVALID);
    result.size = sizeof(result);
    EXPECT_STATUS(dp, dp_gradients_sync_on(gradients, NULL, &result), DP_ERR_ORDER);
    EXPECT(dp, *result.skip == 1, "after a failure skip is %u", *result.skip);
    skip = result.skip;
    for (int step = 0; step < 4; step++) {
        fill(&model, 1.0f, 3.0f + (float)dp_rank(dp));
        if (step == 2 && dp_rank(dp) == dp_size(dp) - 1) model.gb[3] = NAN;
        for (size_t i = 0; i < 2; i++)
            EXPECT_STATUS(dp, dp_gradients_ready(gradients, i, NULL), DP_OK);
        if (step == 0) {
            EXPECT_STATUS(dp, dp_gradients_sync(gradients, &found), DP_OK);
            continue;
        }
        EXPECT_STATUS(dp, dp_gradients_sync_on(gradients, NULL, &result), DP_OK);
        EXPECT(dp, result.skip == skip && *skip == (step == 2), "step %d: skip is %u", step, *skip);
        EXPECT(dp, step == 2 ? isinf(*result.norm) : *result.norm == (float)found.norm,
               "step %d: norm %g, %g before", step, (double)*result.norm, found.norm);
        EXPECT(dp, *result.clip_coef == (step == 2 ? 0.0f : (float)found.clip_coef),
               "step %d: clip %g", step, (double)*result.clip_coef);
    }
    dp_gradients_destroy(gradients);
    return 0;
}

int case_gradients_order(dp_context_t *dp)
{
    model_t model;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients;

    fill(&model, 1.0f, 3.0f);
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 2, NULL), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_ERR_ORDER);
    EXPECT_TEXT(dp, dp_error_text(dp), "tensor b is not ready");
    /* nothing was lost: the missing one, then the same sync again */
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
    EXPECT(dp, model.ga[0] == 3.0f, "%g", (double)model.ga[0]);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_ERR_ORDER);
    dp_gradients_destroy(gradients);

    fill(&model, 1.0f, 3.0f);
    options.zero_unready = 1;
    options.prefix = "second.";
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, &options, &gradients), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
    EXPECT(dp, model.ga[0] == 3.0f && model.gb[0] == 0.0f, "%g %g", (double)model.ga[0],
           (double)model.gb[0]);
    /* left to dp_finalize() */
    model.tensors[1].name = "a";
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_ERR_INVALID);
    model.tensors[1].dtype = DP_I32;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_gradients_create(dp, NULL, 2, NULL, &gradients), DP_ERR_INVALID);
    return 0;
}

/* Ranks that list different tensors are told, instead of waiting for ever. */
int case_gradients_lists(dp_context_t *dp)
{
    model_t model;
    dp_gradients_t *gradients;
    int is_last = dp_rank(dp) == dp_size(dp) - 1;

    fill(&model, 1.0f, 1.0f);
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, is_last ? 1 : 2, NULL, &gradients),
                  DP_ERR_MISMATCH);
    if (is_last) model.tensors[1].count--;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, dp_error_text(dp), "tensor 1 is b");
    return 0;
}

int case_overflow(dp_context_t *dp)
{
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    model_t model;
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradients_t *gradients;

    fill(&model, 1.0f, 0.0f);
    options.initial_loss_scale = 1024.0;
    options.growth_interval = 3;
    options.wire = DP_WIRE_FP16;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, &options, &gradients), DP_OK);
    for (int step = 0; step < 5; step++) {
        fill(&model, 1.0f, 2.0f * (step < 1 ? 1024.0f : 512.0f));
        if (step == 0 && dp_rank(dp) == dp_size(dp) - 1) model.ga[500] = INFINITY;
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, &result), DP_OK);
        if (step == 0) {
            EXPECT(dp, result.skip == 1 && result.nonfinite == 1, "skip %d, nonfinite %llu",
                   result.skip, (unsigned long long)result.nonfinite);
            EXPECT(dp, result.loss_scale == 512.0, "%g", result.loss_scale);
        } else {
            EXPECT(dp, result.skip == 0, "skip %d in step %d", result.skip, step);
            if (step < 4)
                EXPECT(dp, fabsf(model.ga[0] - 2.0f) < 2e-3f, "%g in step %d", (double)model.ga[0],
                       step);
            EXPECT(dp, result.loss_scale == (step < 3 ? 512.0 : 1024.0), "%g in step %d",
                   result.loss_scale, step);
        }
    }
    /* The state that a checkpoint keeps. */
    EXPECT_STATUS(dp, dp_gradients_loss_scale_get(gradients, &state), DP_OK);
    EXPECT(dp, state.scale == 1024.0 && state.good_steps == 1, "%g, %d good", state.scale,
           state.good_steps);
    state.scale = 2.0;
    EXPECT_STATUS(dp, dp_gradients_loss_scale_set(gradients, &state), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_loss_scale_get(gradients, &state), DP_ERR_ORDER);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, &result), DP_OK);
    EXPECT(dp, result.loss_scale == 2.0, "%g", result.loss_scale);
    dp_gradients_destroy(gradients);
    return 0;
}

/* One step; 1 when the check failed, here or elsewhere, as it should. */
static int checked_step(dp_context_t *dp, model_t *model, dp_gradients_t *gradients, int step,
                        dp_status_t *status)
{
    int writes = step == 1 && dp_rank(dp) == 0;
    dp_handle_t *written;

    /* the others come to the barrier first, so that nothing is launched before the write */
    if (writes) {
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
        model->ga[3] += 1.0f;
    }
    if (step == 1) {
        EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "written", NULL, &written), DP_OK);
        EXPECT_STATUS(dp, dp_wait(written, -1.0, NULL), DP_OK);
    }
    if (!writes) EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
    *status = dp_gradients_sync(gradients, NULL);
    if (writes) {
        EXPECT_STATUS(dp, *status, DP_ERR_CHECK);
        EXPECT_TEXT(dp, dp_error_text(dp), "tensor a");
    }
    if (step == 0) EXPECT_STATUS(dp, *status, DP_OK);
    return 0;
}

/* A gradient written between ready and sync is found, whoever writes it and when. The others then
 * compare weights with a rank that is gone: they end by DP_ERR_LEFT. */
int case_check(dp_context_t *dp)
{
    model_t model;
    dp_gradients_t *gradients;
    dp_status_t status = DP_OK;
    int failed = 0;

    fill(&model, 1.0f, 1.0f);
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_OK);
    for (int step = 0; step < 3 && status == DP_OK && !failed; step++)
        failed = checked_step(dp, &model, gradients, step, &status);
    dp_gradients_destroy(gradients);
    return failed;
}

int case_check_weights(dp_context_t *dp)
{
    model_t model;
    dp_gradients_t *gradients;

    fill(&model, 1.0f, 1.0f);
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 2, NULL, &gradients), DP_OK);
    if (dp_rank(dp) == 1) model.wb[5] = 1.5f;
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_ready(gradients, 1, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_ERR_CHECK);
    EXPECT_TEXT(dp, dp_error_text(dp), "weights of b differ");
    EXPECT_TEXT(dp, dp_error_text(dp), "rank 1");
    dp_gradients_destroy(gradients);
    return 0;
}
