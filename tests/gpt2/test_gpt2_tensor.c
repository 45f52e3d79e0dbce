/*
 * test_gpt2_tensor.c - the parts of a model that tensor parallelism makes, each on a thread,
 * against the whole model: gradients agree, and have the bits of one process that adds up as many
 * pieces. Odd shapes: heads, units and tokens that the parts do not divide evenly, padding, one
 * token.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/model/groups.h"
#include "examples/gpt2/model/model.h"

#define PARTS_MAX 3
#define BATCH 2
#define LENGTH 12
#define SEED 5

static gpt2_error_t error;

/* ---- Sums over parts ------------------------------------------------------------------------ */

typedef struct meeting {
    pthread_barrier_t gate;
    int parts;
    float *values[PARTS_MAX];
} meeting_t;

typedef struct place {
    meeting_t *meeting;
    gpt2_model_t *model;
    const gpt2_batch_t *batch;
    int part;
    size_t count;
    int is_max;
    int sums; /* so far */
    int fail_at;
    double loss;
    double unlearned; /* the loss of a pass without backward */
    int code;
    gpt2_reducer_t reducer;
    gpt2_error_t error;
} place_t;

static int start_sum(void *user, float *values, size_t count, int is_max)
{
    place_t *self = user;

    if (++self->sums == self->fail_at) return gpt2_fail(&self->error, "the sum fails");
    self->meeting->values[self->part] = values;
    self->count = count;
    self->is_max = is_max;
    return 0;
}

/* In the order of the parts, as libdp adds ranks up. */
static int finish_sum(void *user)
{
    place_t *self = user;
    meeting_t *meeting = self->meeting;
    float *out = malloc(self->count * sizeof(*out));

    assert_non_null(out);
    pthread_barrier_wait(&meeting->gate);
    for (size_t i = 0; i < self->count; i++) {
        out[i] = meeting->values[0][i];
        for (int p = 1; p < meeting->parts; p++) {
            const float value = meeting->values[p][i];

            out[i] = !self->is_max ? out[i] + value : value > out[i] ? value : out[i];
        }
    }
    pthread_barrier_wait(&meeting->gate);
    memcpy(meeting->values[self->part], out, self->count * sizeof(*out));
    free(out);
    return 0;
}

/* ---- Models --------------------------------------------------------------------------------- */

static const gpt2_shape_t SHAPE = {
    .vocab = 257, .vocab_padded = 272, .context = 16, .layers = 2, .heads = 3, .width = 48};

static gpt2_model_t *make_model(const gpt2_shape_t *shape, int parts, int part, int pieces,
                                int threads)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    const gpt2_model_options_t options = {.shape = *shape,
                                          .stage = {.is_staged = 1,
                                                    .parts = parts,
                                                    .part = part,
                                                    .last = shape->layers,
                                                    .has_embedding = 1,
                                                    .has_head = 1,
                                                    .slots = 1},
                                          .batch = BATCH,
                                          .length = LENGTH,
                                          .threads = threads,
                                          .training = 1,
                                          .pieces = pieces,
                                          .kernels = kernels,
                                          .gemm = kernels->gemm};
    gpt2_model_t *model;

    assert_int_equal(gpt2_model_create(&options, &model, &error), 0);
    return model;
}

/* Random numbers everywhere, also where a fresh model has zeros and ones. */
static void fill_weights(gpt2_model_t *model)
{
    for (size_t i = 0; i < model->layout->count; i++) {
        const gpt2_tensor_t *tensor = &model->layout->tensors[i];
        float *weights = gpt2_model_weight(model, i);
        const size_t count =
            i == gpt2_layout_wte(model->layout)
                ? (size_t)model->layout->shape.vocab * (size_t)model->layout->shape.width
                : tensor->count;

        for (size_t at = 0; at < count; at++)
            weights[at] = (float)(0.2 * gpt2_random_normal(SEED, i, at));
    }
}

static void run_step(gpt2_model_t *model, const gpt2_batch_t *batch, double *loss,
                     double *unlearned, int *code)
{
    const gpt2_edges_t edges = {.input = NULL};

    gpt2_model_clear(model);
    gpt2_model_select(model, 0, &edges);
    gpt2_model_forward(model, batch, NULL);
    *unlearned = gpt2_model_head(model, batch, 0, 0.0f, 0, NULL);
    gpt2_model_forward(model, batch, NULL);
    *loss = gpt2_model_head(model, batch, 1, 0.125f, 0, NULL);
    *code = gpt2_model_backward(model, batch, 0, NULL);
    gpt2_model_join_lookups(model);
}

static void *run_place(void *argument)
{
    place_t *self = argument;

    run_step(self->model, self->batch, &self->loss, &self->unlearned, &self->code);
    return NULL;
}

static void run_places(place_t *places, int parts)
{
    pthread_t threads[PARTS_MAX];

    for (int p = 0; p < parts; p++)
        assert_int_equal(pthread_create(&threads[p], NULL, run_place, &places[p]), 0);
    for (int p = 0; p < parts; p++)
        pthread_join(threads[p], NULL);
}

static void make_places(place_t *places, meeting_t *meeting, const gpt2_shape_t *shape, int parts,
                        const gpt2_batch_t *batch, int threads)
{
    meeting->parts = parts;
    assert_int_equal(pthread_barrier_init(&meeting->gate, NULL, (unsigned)parts), 0);
    for (int p = 0; p < parts; p++) {
        place_t *place = &places[p];

        *place = (place_t){.meeting = meeting, .part = p, .batch = batch};
        place->model = make_model(shape, parts, p, 0, threads);
        place->reducer = (gpt2_reducer_t){place, start_sum, finish_sum, &place->error};
        gpt2_model_reduce_by(place->model, &place->reducer);
    }
}

static void end_places(place_t *places, meeting_t *meeting)
{
    for (int p = 0; p < meeting->parts; p++)
        gpt2_model_destroy(places[p].model);
    pthread_barrier_destroy(&meeting->gate);
}

/* ---- Claims --------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, size_t count)
{
    double off = 0.0;
    double all = 0.0;

    for (size_t i = 0; i < count; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return all > 0.0 ? sqrt(off / all) : sqrt(off);
}

static void compare_gradients(const place_t *places, int parts, gpt2_model_t *plain,
                              gpt2_model_t *split)
{
    const gpt2_layout_t *layout = plain->layout;
    float *whole = calloc(layout->arena_count, sizeof(*whole));

    assert_non_null(whole);
    for (int p = 0; p < parts; p++) {
        const gpt2_model_t *model = places[p].model;

        for (size_t i = 0; i < layout->group_count; i++) {
            gpt2_group_paste(model->layout, i, model->gradients_at[i],
                             whole + layout->groups[i].offset);
        }
        for (size_t i = 0; i < layout->count; i++) {
            if (layout->tensors[i].cut != GPT2_CUT_NONE) continue; /* every part has it: */
            assert_memory_equal(gpt2_model_gradient(model, i), gpt2_model_gradient(split, i),
                                layout->tensors[i].count * sizeof(float));
        }
    }
    for (size_t i = 0; i < layout->count; i++) {
        const float *found = whole + layout->tensors[i].offset;
        const size_t count = layout->tensors[i].count;
        const double off = distance(found, gpt2_model_gradient(plain, i), count);

        if (!(off < 1e-5)) fail_msg("%s is off by %g", layout->tensors[i].name, off);
        if (memcmp(found, gpt2_model_gradient(split, i), count * sizeof(*found)) != 0)
            fail_msg("%s has other bits", layout->tensors[i].name);
    }
    free(whole);
}

static void check_parts(const gpt2_shape_t *shape, int parts, int threads, int length)
{
    int32_t inputs[BATCH * LENGTH];
    int32_t targets[BATCH * LENGTH];
    const gpt2_batch_t batch = {inputs, targets, BATCH, length};
    gpt2_model_t *plain = make_model(shape, 1, 0, 0, threads);
    gpt2_model_t *split = make_model(shape, 1, 0, parts, threads);
    double losses[2];
    double unlearned[2];
    place_t places[PARTS_MAX];
    meeting_t meeting;
    int code;

    for (int i = 0; i < BATCH * LENGTH; i++) {
        inputs[i] = (i * 89 + 3) % shape->vocab;
        targets[i] = (i * 57 + shape->vocab - 1) % shape->vocab;
    }
    inputs[1] = inputs[0]; /* a token that occurs twice */
    make_places(places, &meeting, shape, parts, &batch, threads);
    fill_weights(plain);
    fill_weights(split);
    for (int p = 0; p < parts; p++) {
        for (size_t i = 0; i < plain->layout->group_count; i++) {
            gpt2_group_cut(places[p].model->layout, i, plain->weights_at[i],
                           places[p].model->weights_at[i]);
        }
    }
    run_step(plain, &batch, &losses[0], &unlearned[0], &code);
    run_step(split, &batch, &losses[1], &unlearned[1], &code);
    run_places(places, parts);
    assert_true(fabs(losses[1] - losses[0]) < 1e-5 * losses[0]);
    for (int p = 0; p < parts; p++) {
        assert_int_equal(places[p].code, 0);
        assert_true(places[p].loss == (p == 0 ? losses[1] : 0.0));
        assert_true(places[p].unlearned == (p == 0 ? unlearned[1] : 0.0));
    }
    compare_gradients(places, parts, plain, split);
    end_places(places, &meeting);
    gpt2_model_destroy(plain);
    gpt2_model_destroy(split);
}

static void parts_have_the_gradients_of_the_whole(void **state)
{
    gpt2_shape_t even = SHAPE;
    gpt2_shape_t wide = SHAPE;

    (void)state;
    check_parts(&SHAPE, 2, 1, LENGTH); /* 1 head and 2, 128 tokens and 129 */
    check_parts(&SHAPE, 3, 2, LENGTH);
    check_parts(&SHAPE, 2, 2, 1);
    even.heads = 2;
    even.vocab = even.vocab_padded = 256;
    check_parts(&even, 2, 1, LENGTH);
    wide.heads = 25; /* 12 heads and 13, 200 units each: products deeper than one panel */
    wide.width = 300;
    wide.layers = 1;
    check_parts(&wide, 2, 2, LENGTH);
}

/* First weights, hashes and the number of parameters do not depend on the parts. */
static void parts_are_slices_of_the_whole(void **state)
{
    gpt2_model_t *plain = make_model(&SHAPE, 1, 0, 0, 1);
    const gpt2_layout_t *layout = plain->layout;
    uint64_t hashes[2] = {0, 0};

    (void)state;
    gpt2_model_init_weights(plain, SEED);
    for (size_t i = 0; i < layout->count; i++)
        hashes[0] += gpt2_tensor_hash(layout, i, gpt2_model_weight(plain, i));
    for (int parts = 2; parts <= PARTS_MAX; parts++) {
        size_t counted = 0;

        hashes[1] = 0;
        for (int p = 0; p < parts; p++) {
            gpt2_model_t *model = make_model(&SHAPE, parts, p, 0, 2);
            float *cut = calloc(gpt2_layout_largest_group(layout), sizeof(*cut));

            assert_non_null(cut);
            gpt2_model_init_weights(model, SEED);
            for (size_t i = 0; i < layout->group_count; i++) {
                const size_t bytes = model->layout->groups[i].count * sizeof(float);

                memset(cut, 0, bytes);
                gpt2_group_cut(model->layout, i, plain->weights_at[i], cut);
                assert_memory_equal(model->weights_at[i], cut, bytes);
            }
            for (size_t i = 0; i < layout->count; i++) {
                if (model->layout->tensors[i].cut == GPT2_CUT_NONE && p > 0) continue;
                hashes[1] += gpt2_tensor_hash(model->layout, i, gpt2_model_weight(model, i));
                counted += model->layout->tensors[i].count;
            }
            free(cut);
            gpt2_model_destroy(model);
        }
        assert_true(hashes[1] == hashes[0]);
        assert_int_equal(counted, layout->parameter_count);
    }
    gpt2_model_destroy(plain);
}

/* A sum that fails stops the model: the pass ends, and so does every later one. */
static void a_failed_sum_stops_the_model(void **state)
{
    int32_t tokens[BATCH * LENGTH] = {0};
    const gpt2_batch_t batch = {tokens, tokens, BATCH, LENGTH};
    place_t places[PARTS_MAX];
    meeting_t meeting;

    (void)state;
    for (int fail_at = 1; fail_at < 20; fail_at += 6) {
        make_places(places, &meeting, &SHAPE, 2, &batch, 2);
        for (int p = 0; p < 2; p++)
            places[p].fail_at = fail_at;
        run_places(places, 2);
        for (int p = 0; p < 2; p++) {
            assert_int_equal(places[p].code, -1);
            assert_true(places[p].model->is_stopped);
            assert_int_equal(places[p].sums, fail_at);
        }
        end_places(places, &meeting);
    }
}

static void more_parts_than_heads_or_tokens_are_refused(void **state)
{
    gpt2_shape_t shape = SHAPE;

    (void)state;
    assert_int_equal(gpt2_parts_check(&shape, "--tp ", 3, &error), 0);
    assert_int_equal(gpt2_parts_check(&shape, "--tp ", 4, &error), -1);
    assert_string_equal(error.text, "--tp 4: every part needs a head, but the model has 3");
    shape.vocab = 2;
    assert_int_equal(gpt2_parts_check(&shape, "--tp ", 3, &error), -1);
    assert_string_equal(error.text, "--tp 3: every part needs a token, but the vocabulary has 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_gradients_of_the_whole),
        cmocka_unit_test(parts_are_slices_of_the_whole),
        cmocka_unit_test(a_failed_sum_stops_the_model),
        cmocka_unit_test(more_parts_than_heads_or_tokens_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
