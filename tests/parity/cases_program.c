/*
 * cases_program.c - what Horovod asserts of ranks, of broadcast state and of its optimizer wrapper,
 * whose part here are the gradients of a model.
 */
#include <math.h>

#include "tests/parity/parity.h"

int parity_rank_and_size(dp_context_t *dp)
{
    const int size = dp_size(dp);
    int32_t own[5] = {dp_rank(dp), dp_local_rank(dp), dp_local_size(dp), dp_node_rank(dp),
                      dp_node_count(dp)};
    int32_t all[PARITY_RANKS_MAX][5];
    dp_handle_t *handle = NULL;

    EXPECT(dp, own[0] >= 0 && own[0] < size, "rank %d", own[0]);
    EXPECT(dp, dp_group_rank(dp_world(dp)) == own[0], "%d", dp_group_rank(dp_world(dp)));
    EXPECT(dp, dp_group_size(dp_world(dp)) == size, "%d", dp_group_size(dp_world(dp)));
    EXPECT(dp, strcmp(dp_group_name(dp_world(dp)), "world") == 0, "%s",
           dp_group_name(dp_world(dp)));
    EXPECT_STATUS(dp,
                  parity_wait(dp_allgather(dp_world(dp), "who", own, all, 5, DP_I32, NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    for (int r = 0; r < size; r++) {
        int neighbours = 0;

        EXPECT(dp, all[r][0] == r, "row %d is of rank %d", r, all[r][0]);
        for (int other = 0; other < size; other++) {
            if (all[other][3] != all[r][3]) continue;
            neighbours++;
            EXPECT(dp, (all[other][1] == all[r][1]) == (other == r), "local rank %d", all[r][1]);
        }
        EXPECT(dp, neighbours == all[r][2], "%d on a node of %d", neighbours, all[r][2]);
        EXPECT(dp, all[r][1] < all[r][2] && all[r][3] < all[r][4] && all[r][4] == own[4],
               "places of rank %d", r);
    }
    return 0;
}

/* ---- Weights -------------------------------------------------------------------------------- */

typedef struct model {
    float weights[3][10];
    float gradients[3][10];
    dp_gradient_t tensors[3];
} model_t;

static void make_model(model_t *model, dp_context_t *dp)
{
    static const char *const names[3] = {"conv1", "conv2", "head"};

    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 10; i++) {
            model->weights[k][i] = (float)(100 * dp_rank(dp) + 10 * k + i);
            model->gradients[k][i] = (float)(dp_rank(dp) + k);
        }
        model->tensors[k] =
            (dp_gradient_t){names[k], model->weights[k], model->gradients[k], 10, DP_F32};
    }
}

/* Weights become those of rank 0; those of different tensors are not mixed up. */
int parity_broadcast_state(dp_context_t *dp)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients = NULL;
    model_t model;

    make_model(&model, dp);
    options.prefix = "state.";
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, &options, &gradients), DP_OK);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 10; i++) {
            EXPECT(dp, model.weights[k][i] == (float)(10 * k + i), "weight %d of %d is %g", i, k,
                   (double)model.weights[k][i]);
        }
    }
    dp_gradients_destroy(gradients);
    return 0;
}

/* An object of any length: its length first. */
int parity_broadcast_object(dp_context_t *dp)
{
    static const char object[] = "{\"epoch\": 7, \"best\": 0.25}";
    uint64_t bytes = dp_rank(dp) == 0 ? sizeof(object) : 0;
    char text[64] = "";
    dp_handle_t *handle = NULL;

    if (dp_rank(dp) == 0) memcpy(text, object, sizeof(object));
    EXPECT_STATUS(dp,
                  parity_wait(dp_broadcast(dp_world(dp), "object.bytes", &bytes, &bytes, 1, DP_U64,
                                           0, NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, bytes == sizeof(object), "%llu bytes", (unsigned long long)bytes);
    EXPECT_STATUS(dp,
                  parity_wait(dp_broadcast(dp_world(dp), "object.data", text, text, bytes, DP_U8, 0,
                                           NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, strcmp(text, object) == 0, "%s", text);
    return 0;
}

/* ---- The optimizer wrapper ------------------------------------------------------------------ */

int parity_duplicate_names(dp_context_t *dp)
{
    dp_gradients_t *gradients = NULL;
    model_t model;

    make_model(&model, dp);
    model.tensors[2].name = "conv1";
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, NULL, &gradients), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "conv1");
    return 0;
}

/* Steps in which only some tensors get a gradient, the same on all ranks: the rest is zero. */
int parity_dynamic_requires_grad(dp_context_t *dp)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients = NULL;
    const float mean = (float)(dp_size(dp) - 1) / 2.0f; /* of the ranks */
    model_t model;

    make_model(&model, dp);
    options.prefix = "dynamic.";
    options.zero_unready = 1;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, &options, &gradients), DP_OK);
    for (int step = 0; step < 10; step++) {
        make_model(&model, dp);
        for (int k = 0; k < 3; k++) {
            if (step % 2 == 0 ? k == 0 : k != 0)
                EXPECT_STATUS(dp, dp_gradients_ready(gradients, (size_t)k, NULL), DP_OK);
        }
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
        for (int k = 0; k < 3; k++) {
            const int is_trained = step % 2 == 0 ? k == 0 : k != 0;
            const float wanted = is_trained ? mean + (float)k : 0.0f;

            EXPECT(dp, fabsf(model.gradients[k][9] - wanted) <= 1e-6f, "step %d, tensor %d: %g",
                   step, k, (double)model.gradients[k][9]);
        }
    }
    dp_gradients_destroy(gradients);
    return 0;
}

int parity_gradient_clipping(dp_context_t *dp)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradients_t *gradients = NULL;
    double squares = 0.0;
    model_t model;

    make_model(&model, dp);
    options.prefix = "clip.";
    options.clip_norm = 0.1;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, &options, &gradients), DP_OK);
    for (int k = 0; k < 3; k++)
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, (size_t)k, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, &result), DP_OK);
    for (int k = 0; k < 3; k++)
        squares += 10.0 * pow((dp_size(dp) - 1) / 2.0 + k, 2.0);
    EXPECT(dp, fabs(result.norm - sqrt(squares)) < 1e-5 * result.norm, "norm %g, not %g",
           result.norm, sqrt(squares));
    EXPECT(dp, fabs(result.clip_coef * result.norm - 0.1) < 1e-9, "clip %g of %g", result.clip_coef,
           result.norm);
    EXPECT(dp, result.skip == 0, "skipped");
    dp_gradients_destroy(gradients);
    return 0;
}

/* Where Horovod warns of a second synchronisation, this is an error and loses nothing. */
int parity_synchronize_twice(dp_context_t *dp)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients = NULL;
    model_t model;

    make_model(&model, dp);
    options.prefix = "twice.";
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, &options, &gradients), DP_OK);
    for (int turn = 0; turn < 2; turn++) {
        make_model(&model, dp);
        for (int k = 0; k < 3; k++)
            EXPECT_STATUS(dp, dp_gradients_ready(gradients, (size_t)k, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_ERR_ORDER);
        EXPECT(dp, model.gradients[2][0] == (float)(dp_size(dp) - 1) / 2.0f + 2.0f, "%g",
               (double)model.gradients[2][0]);
    }
    dp_gradients_destroy(gradients);
    return 0;
}

/* Gradients of a part of the world, as a wrapper restricted to a process set. */
int parity_optimizer_process_sets(dp_context_t *dp)
{
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients = NULL;
    dp_group_t *half;
    float mean = 0.0f;
    model_t model;

    if (parity_half(dp, &half)) return 1;
    for (int r = 0; r < dp_group_size(half); r++)
        mean += (float)dp_group_world_rank(half, r);
    mean /= (float)dp_group_size(half);
    make_model(&model, dp);
    options.group = half;
    EXPECT_STATUS(dp, dp_gradients_create(dp, model.tensors, 3, &options, &gradients), DP_OK);
    EXPECT(dp, model.weights[1][3] == (float)(100 * (dp_rank(dp) % 2) + 13), "%g",
           (double)model.weights[1][3]);
    make_model(&model, dp);
    for (int k = 0; k < 3; k++)
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, (size_t)k, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
    for (int k = 0; k < 3; k++) {
        EXPECT(dp, fabsf(model.gradients[k][0] - mean - (float)k) <= 1e-6f, "%g",
               (double)model.gradients[k][0]);
    }
    dp_gradients_destroy(gradients);
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}
