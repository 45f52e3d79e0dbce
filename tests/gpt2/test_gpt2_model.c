/*
 * test_gpt2_model.c - the model against the oracle, finite differences, PyTorch's fixtures, and
 * against itself with the batch split over simulated ranks.
 *
 * Tolerances: fp32 sums of a few thousand products round to about 1e-6 relative; 1e-5 per tensor
 * leaves a factor and still catches every wrong term.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/model/optimizer.h"
#include "examples/gpt2/base/random.h"
#include "tests/gpt2/fixture.h"
#include "tests/gpt2/oracle.h"
#include "tests/unit/cases.h"

#define TENSOR_TOLERANCE 1e-5

static gpt2_model_t *make_model(gpt2_shape_t shape, int batch, int length, int threads,
                                const gpt2_kernels_t *kernels, gpt2_gemm_fn gemm)
{
    gpt2_error_t error;
    gpt2_model_t *model = NULL;
    gpt2_model_options_t options = {.shape = shape,
                                    .batch = batch,
                                    .length = length,
                                    .threads = threads,
                                    .training = 1,
                                    .kernels = kernels,
                                    .gemm = gemm};

    if (gpt2_model_create(&options, &model, &error) != 0) fail_msg("%s", error.text);
    return model;
}

/* One pass; gradients of the mean loss end up in the model. Returns the mean loss. */
static double run(gpt2_model_t *model, const gpt2_batch_t *batch)
{
    double tokens = (double)batch->count * batch->length;
    double loss;

    gpt2_model_forward(model, batch, NULL);
    loss = gpt2_model_head(model, batch, 1, (float)(1.0 / tokens), 0, NULL);
    assert_int_equal(gpt2_model_backward(model, batch, 0, NULL), 0);
    return loss / tokens;
}

static double *to_double(const gpt2_layout_t *layout, const float *arena)
{
    double *values = calloc(layout->arena_count, sizeof(double));

    assert_non_null(values);
    for (size_t i = 0; i < layout->arena_count; i++)
        values[i] = arena[i];
    return values;
}

/* Fails naming the tensor, unless every gradient is within the tolerance of the oracle's. */
static void compare_gradients(const gpt2_model_t *model, const double *expected, const char *what)
{
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        double off = relative_l2_double(model->gradients + tensor->offset,
                                        expected + tensor->offset, tensor->count);

        if (!(off < TENSOR_TOLERANCE)) {
            fail_msg("%s: %s differs by %.3g relative", what, tensor->name, off);
        }
    }
}

static void random_tokens(int32_t *tokens, size_t count, int vocab, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)(gpt2_random_bits(seed, 77, i) % (uint64_t)vocab);
    }
}

/* Larger weights than at initialization, so that no gradient is hidden behind a small factor. */
static void random_weights(gpt2_model_t *model)
{
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        for (size_t j = 0; j < tensor->count; j++) {
            double value = 0.15 * gpt2_random_normal(5, i, j);
            if (strstr(tensor->name, "ln_") != NULL && strstr(tensor->name, "weight") != NULL) {
                value += 1.0;
            }
            model->weights[tensor->offset + j] = (float)value;
        }
    }
}

static const gpt2_shape_t SMALL = {50, 52, 72, 2, 3, 24};

static void oracle_gradients_match_finite_differences(void **state)
{
    const gpt2_shape_t shape = {13, 13, 6, 2, 2, 8};
    gpt2_model_t *model = make_model(shape, 2, 5, 1, NULL, NULL);
    const gpt2_layout_t *layout = model->layout;
    int32_t tokens[20];
    double *weights;
    double *gradients = calloc(layout->arena_count, sizeof(double));

    (void)state;
    random_tokens(tokens, 20, shape.vocab, 3);
    random_weights(model);
    weights = to_double(layout, model->weights);
    (void)oracle_loss(layout, weights, tokens, tokens + 10, 2, 5, gradients);
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        double difference = 0.0;
        double size = 0.0;

        for (size_t j = 0; j < tensor->count; j++) {
            double *at = &weights[tensor->offset + j];
            double old = *at;
            double above;
            double slope;

            *at = old + 1e-5;
            above = oracle_loss(layout, weights, tokens, tokens + 10, 2, 5, NULL);
            *at = old - 1e-5;
            slope = (above - oracle_loss(layout, weights, tokens, tokens + 10, 2, 5, NULL)) / 2e-5;
            *at = old;
            difference += pow(slope - gradients[tensor->offset + j], 2);
            size += slope * slope;
        }
        if (sqrt(difference) > 1e-7 * sqrt(size) + 1e-9) {
            fail_msg("%s: off by %.3g of %.3g", tensor->name, sqrt(difference), sqrt(size));
        }
    }
    free(weights);
    free(gradients);
    gpt2_model_destroy(model);
}

/* Every instruction set, both matrix products, one to three threads. */
static void gradients_match_oracle(void **state)
{
    int32_t tokens[2 * 3 * 70];
    double *expected = NULL;
    double expected_loss = 0.0;

    (void)state;
    random_tokens(tokens, sizeof(tokens) / sizeof(tokens[0]), SMALL.vocab, 4);
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (int variant = 0; variant < 6; variant++) {
            gpt2_gemm_fn gemm = variant % 2 == 0 ? (*isa)->gemm : gpt2_gemm_blas();
            int threads = 1 + variant / 2;
            gpt2_model_t *model = make_model(SMALL, 3, 70, threads, *isa, gemm);
            gpt2_batch_t batch = {tokens, tokens + 210, 3, 70};
            char what[64];
            double loss;

            random_weights(model);
            if (expected == NULL) {
                double *weights = to_double(model->layout, model->weights);
                expected = calloc(model->layout->arena_count, sizeof(double));
                expected_loss =
                    oracle_loss(model->layout, weights, tokens, tokens + 210, 3, 70, expected);
                free(weights);
            }
            loss = run(model, &batch);
            (void)snprintf(what, sizeof(what), "%s %s %d threads", (*isa)->isa,
                           variant % 2 == 0 ? "own" : "blas", threads);
            if (fabs(loss - expected_loss) > 1e-6 * expected_loss) {
                fail_msg("%s: loss %.9g, oracle %.9g", what, loss, expected_loss);
            }
            compare_gradients(model, expected, what);
            gpt2_model_destroy(model);
        }
    }
    free(expected);
}

static void fixture_matches(const char *name)
{
    fixture_t fixture;
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    gpt2_error_t error;
    gpt2_batch_t batch;
    double loss;
    float *expected;
    float *logits;
    size_t rows;

    fixture_read(&fixture, name);
    model = make_model(fixture.shape, fixture.batch, fixture.length, 1, NULL, NULL);
    batch = (gpt2_batch_t){fixture.x, fixture.y, fixture.batch, fixture.length};
    rows = (size_t)fixture.batch * (size_t)fixture.length;
    fixture_to_arena(model->layout, model->weights, fixture.weights);
    expected = calloc(model->layout->arena_count, sizeof(float));
    logits = calloc(rows * (size_t)fixture.shape.vocab, sizeof(float));
    assert_non_null(expected);
    assert_non_null(logits);

    loss = run(model, &batch);
    assert_true(fabs(loss - fixture.loss) < 1e-6 * fixture.loss);
    gpt2_model_logits(model, &batch, logits);
    assert_true(relative_l2(logits, fixture.logits, rows * (size_t)fixture.shape.vocab) <
                TENSOR_TOLERANCE);
    fixture_to_arena(model->layout, expected, fixture.gradients);
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        double off = relative_l2(model->gradients + tensor->offset, expected + tensor->offset,
                                 tensor->count);
        if (!(off < TENSOR_TOLERANCE)) {
            fail_msg("%s: gradient of %s off by %.3g", name, tensor->name, off);
        }
    }

    gpt2_optimizer_settings_t settings = {.learning_rate = fixture.learning_rate,
                                          .final_rate = 1.0,
                                          .steps = 5,
                                          .beta1 = fixture.beta1,
                                          .beta2 = fixture.beta2,
                                          .epsilon = 1e-8,
                                          .decay = fixture.decay};
    assert_int_equal(gpt2_optimizer_create(model, &settings, &optimizer, &error), 0);
    for (int step = 0; step < fixture.steps; step++) {
        double norm;

        loss = run(model, &batch);
        if (fabs(loss - fixture.losses[step]) > 1e-5 * fixture.losses[step]) {
            fail_msg("%s: step %d loss %.9g, PyTorch %.9g", name, step, loss, fixture.losses[step]);
        }
        norm = sqrt(gpt2_arena_sum_squares(model, model->gradients));
        gpt2_optimizer_update(optimizer, model, settings.learning_rate,
                              norm > 1.0 ? 1.0 / norm : 1.0);
    }
    fixture_to_arena(model->layout, expected, fixture.weights_end);
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        double off;

        if (strstr(tensor->name, "qkv.bias") != NULL) {
            /* A bias of the keys shifts all scores of a row alike, so its true gradient is zero.
             * Adam divides the rounding noise by its own size: these weights mean nothing. */
            size_t keys = tensor->offset + tensor->count / 3;
            memcpy(model->weights + keys, expected + keys, tensor->count / 3 * sizeof(float));
        }
        off =
            relative_l2(model->weights + tensor->offset, expected + tensor->offset, tensor->count);
        if (!(off < TENSOR_TOLERANCE)) {
            fail_msg("%s: weights of %s off by %.3g", name, tensor->name, off);
        }
    }
    free(expected);
    free(logits);
    gpt2_optimizer_destroy(optimizer);
    gpt2_model_destroy(model);
    fixture_free(&fixture);
}

static void pytorch_ragged_case_matches(void **state)
{
    (void)state;
    fixture_matches("ragged");
}

static void pytorch_long_case_matches(void **state)
{
    (void)state;
    fixture_matches("long");
}

static void pytorch_deep_case_matches(void **state)
{
    (void)state;
    fixture_matches("deep");
}

/* `parts` simulated ranks: each takes a contiguous part of the batch, the gradients are averaged as
 * libdp would, and the weights of rank 0 are updated. losses [steps]. */
static void train_in_parts(int parts, int accumulate, int steps, double *losses)
{
    const gpt2_shape_t shape = {64, 64, 32, 2, 2, 32};
    const gpt2_optimizer_settings_t settings = {.learning_rate = 1e-3,
                                                .final_rate = 1.0,
                                                .steps = 100,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .epsilon = 1e-8,
                                                .decay = 0.1};
    enum { BATCH = 8, LENGTH = 32 };
    gpt2_model_t *model = make_model(shape, BATCH, LENGTH, 1, NULL, NULL);
    gpt2_optimizer_t *optimizer;
    gpt2_error_t error;
    size_t arena = model->layout->arena_count;
    float *sum = calloc(arena, sizeof(float));
    int32_t tokens[2 * BATCH * LENGTH];
    /* The divisor of the average: gpt2_model_head() gets weights that undo it. */
    float divisor = (float)(parts * accumulate);

    assert_non_null(sum);
    gpt2_model_init_weights(model, 1);
    assert_int_equal(gpt2_optimizer_create(model, &settings, &optimizer, &error), 0);
    for (int step = 0; step < steps; step++) {
        double norm;

        random_tokens(tokens, 2 * (size_t)BATCH * LENGTH, shape.vocab, 100 + (uint64_t)step % 3);
        memset(sum, 0, arena * sizeof(float));
        losses[step] = 0.0;
        for (int part = 0; part < parts; part++) {
            int first = BATCH * part / parts;
            int count = BATCH * (part + 1) / parts - first;

            for (int micro = 0; micro < accumulate; micro++) {
                int from = first + count * micro / accumulate;
                int to = first + count * (micro + 1) / accumulate;
                gpt2_batch_t batch = {tokens + (size_t)(from * LENGTH),
                                      tokens + (size_t)((BATCH + from) * LENGTH), to - from,
                                      LENGTH};

                gpt2_model_forward(model, &batch, NULL);
                losses[step] +=
                    gpt2_model_head(model, &batch, 1, divisor / (BATCH * LENGTH), micro > 0, NULL) /
                    (BATCH * LENGTH);
                assert_int_equal(gpt2_model_backward(model, &batch, micro > 0, NULL), 0);
            }
            for (size_t i = 0; i < arena; i++)
                sum[i] += model->gradients[i];
        }
        for (size_t i = 0; i < arena; i++)
            model->gradients[i] = sum[i] / divisor;
        norm = sqrt(gpt2_arena_sum_squares(model, model->gradients));
        gpt2_optimizer_update(optimizer, model, 1e-3, norm > 1.0 ? 1.0 / norm : 1.0);
    }
    free(sum);
    gpt2_optimizer_destroy(optimizer);
    gpt2_model_destroy(model);
}

static void split_batches_train_alike(void **state)
{
    enum { STEPS = 20 };
    static const int splits[][2] = {{2, 1}, {3, 1}, {1, 2}, {3, 2}, {11, 1}};
    double whole[STEPS];
    double parts[STEPS];

    (void)state;
    train_in_parts(1, 1, STEPS, whole);
    assert_true(whole[STEPS - 1] < whole[0]);
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        train_in_parts(splits[i][0], splits[i][1], STEPS, parts);
        for (int step = 0; step < STEPS; step++) {
            if (fabs(parts[step] - whole[step]) > 1e-6 * whole[step]) {
                fail_msg("%d parts, accumulation %d, step %d: loss %.9g, whole %.9g", splits[i][0],
                         splits[i][1], step, parts[step], whole[step]);
            }
        }
    }
}

typedef struct handed {
    size_t next;
    int calls;
    int stop_at;
} handed_t;

static int note_ready(void *user, size_t first, size_t count)
{
    handed_t *handed = user;

    assert_int_equal(first, handed->next);
    handed->next += count;
    return ++handed->calls == handed->stop_at ? -1 : 0;
}

/* Threads share the drawing, but each number is a function of the seed and its place. */
static void weights_do_not_depend_on_threads(void **state)
{
    gpt2_model_t *models[3];
    const size_t threads[3] = {1, 2, 5};
    size_t bytes;

    (void)state;
    for (int i = 0; i < 3; i++) {
        models[i] = make_model(SMALL, 1, 8, (int)threads[i], NULL, NULL);
        gpt2_model_init_weights(models[i], 7);
    }
    bytes = models[0]->layout->arena_count * sizeof(float);
    assert_memory_equal(models[0]->weights, models[1]->weights, bytes);
    assert_memory_equal(models[0]->weights, models[2]->weights, bytes);
    for (size_t i = 0; i < models[0]->layout->count; i++) {
        const gpt2_tensor_t *tensor = &models[0]->layout->tensors[i];
        const size_t at = tensor->count / 2;
        const float drawn = (float)(0.02 * gpt2_random_normal(7, i, at));

        if (i != gpt2_layout_wpe(models[0]->layout)) continue;
        assert_true(models[0]->weights[tensor->offset + at] == drawn && drawn != 0.0f);
    }
    for (int i = 0; i < 3; i++)
        gpt2_model_destroy(models[i]);
}

static void backward_hands_over_every_tensor_once_in_order(void **state)
{
    gpt2_model_t *model = make_model(SMALL, 1, 8, 2, NULL, NULL);
    int32_t tokens[16] = {0};
    gpt2_batch_t batch = {tokens, tokens + 8, 1, 8};
    gpt2_batch_t nothing = {tokens, tokens + 8, 0, 8};
    handed_t handed = {0, 0, 0};
    gpt2_hooks_t hooks = {.user = &handed, .ready = note_ready};

    (void)state;
    gpt2_model_init_weights(model, 1);
    gpt2_model_forward(model, &batch, NULL);
    (void)gpt2_model_head(model, &batch, 1, 1.0f, 0, NULL);
    assert_int_equal(gpt2_model_backward(model, &batch, 0, &hooks), 0);
    assert_int_equal(handed.next, model->layout->count);
    assert_int_equal(handed.calls, 2 + SMALL.layers);

    handed = (handed_t){0, 0, 1};
    assert_int_equal(gpt2_model_backward(model, &batch, 0, &hooks), -1);

    handed = (handed_t){0, 0, 0};
    assert_int_equal(gpt2_model_backward(model, &nothing, 0, &hooks), 0);
    assert_int_equal(handed.next, model->layout->count);
    for (size_t i = 0; i < model->layout->arena_count; i++) {
        assert_true(model->gradients[i] == 0.0f);
    }
    gpt2_model_destroy(model);
}

static void layout_of_124m_has_148_tensors_without_gaps(void **state)
{
    gpt2_shape_t shape;
    gpt2_layout_t *layout;
    gpt2_error_t error;

    (void)state;
    assert_int_equal(gpt2_shape_preset("124M", &shape, &error), 0);
    assert_int_equal(gpt2_layout_create(&shape, &layout, &error), 0);
    assert_int_equal(layout->count, 148);
    assert_int_equal(layout->parameter_count, 124475904);
    assert_int_equal(layout->arena_count, 124475904 + 280064); /* 1-D tensors, rounded up */
    assert_int_equal(layout->group_count, 14);
    for (size_t i = 0; i < layout->count; i++)
        assert_int_equal(layout->tensors[i].offset % GPT2_TENSOR_ALIGN, 0);
    assert_string_equal(layout->tensors[gpt2_layout_block(layout, 3) + GPT2_QKV_W].name,
                        "h.3.attn.qkv.weight");
    gpt2_layout_destroy(layout);
    assert_int_equal(gpt2_shape_preset("124m", &shape, &error), -1);
    assert_non_null(strstr(error.text, "did you mean 124M"));
    shape = (gpt2_shape_t){256, 256, 64, 2, 3, 64};
    assert_int_equal(gpt2_shape_check(&shape, &error), -1);
    assert_non_null(strstr(error.text, "--width 64 is not a multiple of --heads 3"));
}

/* Up to the rate in equal steps, the first of which is one, and down to a tenth along a cosine. */
static void learning_rate_warms_up_and_decays(void **state)
{
    const gpt2_optimizer_settings_t settings = {
        .learning_rate = 8.0, .final_rate = 0.1, .warmup = 4, .steps = 14};

    (void)state;
    for (uint64_t step = 0; step < 4; step++)
        assert_true(fabs(gpt2_learning_rate(&settings, step) - 2.0 * (double)(step + 1)) < 1e-12);
    assert_true(fabs(gpt2_learning_rate(&settings, 4) - 8.0) < 1e-12);
    assert_true(fabs(gpt2_learning_rate(&settings, 9) - (8.0 + 0.8) / 2) < 1e-12);
    assert_true(fabs(gpt2_learning_rate(&settings, 14) - 0.8) < 1e-12);
    assert_true(fabs(gpt2_learning_rate(&settings, 1000) - 0.8) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learning_rate_warms_up_and_decays),
        cmocka_unit_test(layout_of_124m_has_148_tensors_without_gaps),
        cmocka_unit_test(oracle_gradients_match_finite_differences),
        cmocka_unit_test(gradients_match_oracle),
        cmocka_unit_test(pytorch_ragged_case_matches),
        cmocka_unit_test(pytorch_long_case_matches),
        cmocka_unit_test(pytorch_deep_case_matches),
        cmocka_unit_test(split_batches_train_alike),
        cmocka_unit_test(weights_do_not_depend_on_threads),
        cmocka_unit_test(backward_hands_over_every_tensor_once_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
