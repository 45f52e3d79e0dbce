/*
 * test_gpt2_lamb.c - LAMB against worked examples and a plain loop in double; and that neither
 * threads, instruction sets nor the cut into shards change a bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/model/lamb.h"
#include "tests/unit/cases.h"

#define TENSORS_MAX 8

static gpt2_error_t error;

/* A model of any tensors, to be updated only, with its optimizer. */
typedef struct world {
    gpt2_layout_t layout;
    gpt2_tensor_t tensors[TENSORS_MAX];
    gpt2_group_t groups[TENSORS_MAX]; /* one for each tensor */
    float *weights_at[TENSORS_MAX];
    float *gradients_at[TENSORS_MAX];
    gpt2_model_t model;
    gpt2_optimizer_t *optimizer;
} world_t;

/* counts [count], of which the last `vectors` are 1-D. Tensors lie on multiples of a block. */
static void make_world(world_t *world, const size_t *counts, size_t count, size_t vectors,
                       int threads, const gpt2_kernels_t *kernels,
                       const gpt2_optimizer_settings_t *settings)
{
    memset(world, 0, sizeof(*world));
    world->layout.tensors = world->tensors;
    world->layout.count = count;
    world->layout.groups = world->groups;
    world->layout.group_count = count;
    for (size_t i = 0; i < count; i++) {
        gpt2_tensor_t *tensor = &world->tensors[i];

        (void)snprintf(tensor->name, sizeof(tensor->name), "tensor.%zu", i);
        tensor->count = counts[i];
        tensor->offset = world->layout.arena_count;
        tensor->decay = i + vectors < count;
        tensor->group = i;
        world->groups[i].offset = tensor->offset;
        world->groups[i].count =
            (counts[i] + GPT2_LAMB_BLOCK - 1) / GPT2_LAMB_BLOCK * GPT2_LAMB_BLOCK;
        world->layout.arena_count += world->groups[i].count;
    }
    world->model.layout = &world->layout;
    world->model.kernels = kernels;
    world->model.weights_at = world->weights_at;
    world->model.gradients_at = world->gradients_at;
    world->model.weights = calloc(world->layout.arena_count, sizeof(float));
    world->model.gradients = calloc(world->layout.arena_count, sizeof(float));
    assert_non_null(world->model.weights);
    assert_non_null(world->model.gradients);
    for (size_t i = 0; i < count; i++) {
        world->weights_at[i] = world->model.weights + world->tensors[i].offset;
        world->gradients_at[i] = world->model.gradients + world->tensors[i].offset;
    }
    assert_int_equal(gpt2_team_create(threads, &world->model.team, &error), 0);
    assert_int_equal(gpt2_optimizer_create(&world->model, settings, &world->optimizer, &error), 0);
}

static void end_world(world_t *world)
{
    gpt2_optimizer_destroy(world->optimizer);
    gpt2_team_destroy(world->model.team);
    free(world->model.weights);
    free(world->model.gradients);
}

static gpt2_optimizer_settings_t make_settings(double decay)
{
    return (gpt2_optimizer_settings_t){.beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .epsilon = 1e-6,
                                       .decay = decay,
                                       .kind = &gpt2_optimizer_lamb};
}

static void close_to(const char *what, double found, double expected, double tolerance)
{
    if (fabs(found - expected) <= tolerance * fmax(fabs(expected), 1e-3)) return;
    fail_msg("%s: %.10g, expected %.10g", what, found, expected);
}

/* ---- Worked examples ------------------------------------------------------------------------ */

/* A step of a tensor of three or two elements: what goes in, and what must come out. */
typedef struct example_step {
    double gradient[3];
    double clip;
    double direction; /* its norm; 0: not asked for */
    double ratio;
    double weights[3];
} example_step_t;

static void check_example(const char *name, const gpt2_optimizer_settings_t *settings, size_t count,
                          const double *start, const example_step_t *steps, size_t step_count)
{
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        const size_t counts[] = {count};
        world_t world;

        make_world(&world, counts, 1, 0, 1, *isa, settings);
        for (size_t i = 0; i < count; i++)
            world.model.weights[i] = (float)start[i];
        for (size_t s = 0; s < step_count; s++) {
            const example_step_t *step = &steps[s];
            char what[64];
            double sums[2];

            for (size_t i = 0; i < count; i++)
                world.model.gradients[i] = (float)step->gradient[i];
            gpt2_optimizer_update(world.optimizer, &world.model, 0.01, step->clip);
            (*isa)->lamb_add(sums, world.optimizer->partials, 1);
            (void)snprintf(what, sizeof(what), "%s, %s, step %zu", name, (*isa)->isa, s + 1);
            if (step->direction > 0.0) close_to(what, sqrt(sums[1]), step->direction, 1e-6);
            close_to(what, gpt2_lamb_rate(1.0, settings->phi_max, sums), step->ratio, 2e-6);
            for (size_t i = 0; i < count; i++)
                close_to(what, world.model.weights[i], step->weights[i], 4e-7);
        }
        end_world(&world);
    }
}

/* Worked out in double by hand: learning rate .01, betas .9 and .999, epsilon 1e-6, decay .01. */
static void worked_examples_come_out(void **state)
{
    static const double start[3] = {1.0, -2.0, 3.0};
    static const double zeros[3] = {0.0, 0.0, 0.0};
    static const example_step_t with_correction[] = {
        {{0.1, -0.2, 0.3}, 1.0, 1.766737879, 2.117833908, {0.978610089, -1.9783982, 2.978186381}},
        {{0.3, 0.1, -0.2}, 1.0, 0.986214346, 3.758746952, {0.943745339, -1.967643698, 2.971634817}},
        {{3.0, -4.0, 0.0}, 0.2, 1.147196938, 3.213793214, {0.914651851, -1.945458155, 2.96708953}},
    };
    static const example_step_t without_correction[] = {
        {{0.1, -0.2, 0.3}, 1.0, 0.0, 0.678964679, {0.978468143, -1.978396853, 2.978327825}},
        {{0.3, 0.1, -0.2}, 1.0, 0.0, 0.898412441, {0.943343902, -1.968052105, 2.972543103}},
    };
    static const example_step_t capped[] = {
        {{0.1, -0.2, 0.3}, 1.0, 1.766737879, 1.132029841, {0.988566612, -1.988453352, 2.98834013}},
    };
    static const example_step_t from_zero[] = {
        {{0.5, 0.5, 0.0}, 1.0, 0.0, 1.0, {-0.00999998, -0.00999998, 0.0}},
    };
    gpt2_optimizer_settings_t settings = make_settings(0.01);

    (void)state;
    check_example("bias correction", &settings, 3, start, with_correction, 3);
    check_example("from zero", &settings, 2, zeros, from_zero, 1);
    settings.without_correction = 1;
    check_example("no bias correction", &settings, 3, start, without_correction, 2);
    settings.without_correction = 0;
    settings.phi_max = 2.0;
    check_example("a largest norm of 2", &settings, 3, start, capped, 1);
}

/* ---- Against a plain loop ------------------------------------------------------------------- */

typedef struct plain {
    double *w;
    double *m;
    double *v;
} plain_t;

static void plain_step(plain_t *plain, const float *gradients, size_t count, int step, double rate,
                       double decay, int is_adapted)
{
    double *u = malloc((count + 1) * sizeof(double));
    double of_weights = 0.0;
    double of_directions = 0.0;

    assert_non_null(u);
    for (size_t i = 0; i < count; i++) {
        const double g = (double)gradients[i];

        plain->m[i] = 0.9 * plain->m[i] + 0.1 * g;
        plain->v[i] = 0.999 * plain->v[i] + 0.001 * g * g;
        u[i] = plain->m[i] / (1.0 - pow(0.9, step)) /
                   (sqrt(plain->v[i] / (1.0 - pow(0.999, step))) + 1e-6) +
               (is_adapted ? decay : 0.0) * plain->w[i];
        of_weights += plain->w[i] * plain->w[i];
        of_directions += u[i] * u[i];
    }
    if (is_adapted && of_weights > 0.0 && of_directions > 0.0) {
        rate *= sqrt(of_weights / of_directions);
    }
    for (size_t i = 0; i < count; i++)
        plain->w[i] -= rate * u[i];
    free(u);
}

/* scale 0: weights begin at zero. */
static void fill_noise(float *values, size_t count, uint64_t stream, float scale)
{
    for (size_t i = 0; i < count; i++)
        values[i] = scale * (float)gpt2_random_normal(3, stream, i);
}

static void check_against_plain(const size_t *counts, size_t count, size_t vectors, double decay,
                                int adapts_all)
{
    gpt2_optimizer_settings_t settings = make_settings(decay);
    plain_t plain[TENSORS_MAX];
    world_t world;

    settings.adapts_all = adapts_all;
    make_world(&world, counts, count, vectors, 2, gpt2_kernels_list()[0], &settings);
    for (size_t i = 0; i < count; i++) {
        float *weights = world.model.weights + world.tensors[i].offset;

        fill_noise(weights, counts[i], i, 1.0f);
        plain[i].w = malloc(3 * counts[i] * sizeof(double));
        assert_non_null(plain[i].w);
        plain[i].m = plain[i].w + counts[i];
        plain[i].v = plain[i].m + counts[i];
        for (size_t at = 0; at < counts[i]; at++) {
            plain[i].w[at] = (double)weights[at];
            plain[i].m[at] = plain[i].v[at] = 0.0;
        }
    }
    for (int step = 1; step <= 7; step++) {
        for (size_t i = 0; i < count; i++) {
            float *gradients = world.model.gradients + world.tensors[i].offset;

            fill_noise(gradients, counts[i], 100 * (uint64_t)step + i, 1.0f);
            plain_step(&plain[i], gradients, counts[i], step, 5e-4, decay,
                       adapts_all || i + vectors < count);
        }
        gpt2_optimizer_update(world.optimizer, &world.model, 5e-4, 1.0);
    }
    for (size_t i = 0; i < count; i++) {
        const float *weights = world.model.weights + world.tensors[i].offset;

        for (size_t at = 0; at < counts[i]; at++) {
            if (fabs((double)weights[at] - plain[i].w[at]) < 2e-6 * (1.0 + fabs(plain[i].w[at])))
                continue;
            fail_msg("tensor %zu of %zu elements at %zu: %.9g, plain %.9g", i, counts[i], at,
                     (double)weights[at], plain[i].w[at]);
        }
        free(plain[i].w);
    }
    end_world(&world);
}

/* The shapes on which Apex tests its LAMB, with a sixteenth of the rows, and its odd count. */
static void lamb_follows_a_plain_loop(void **state)
{
    static const size_t shapes[] = {(size_t)256 * 1024, (size_t)256 * 2048, (size_t)2020 * 1024,
                                    4096, 1};
    static const size_t odd[] = {18011};
    static const size_t one[] = {1, 4097, 1, 77};

    (void)state;
    check_against_plain(shapes, 5, 2, 0.01, 0);
    check_against_plain(odd, 1, 0, 0.0, 0);
    check_against_plain(odd, 1, 0, 0.01, 0);
    check_against_plain(one, 4, 2, 0.1, 0);
    check_against_plain(one, 4, 2, 0.1, 1);
}

/* A tensor of zeros that never gets a gradient stays, and one that gets some moves. */
static void a_tensor_of_zeros_can_move(void **state)
{
    static const size_t counts[] = {5000, 5000};
    const gpt2_optimizer_settings_t settings = make_settings(0.1);
    world_t world;

    (void)state;
    make_world(&world, counts, 2, 0, 1, gpt2_kernels_list()[0], &settings);
    for (size_t i = 0; i < 5000; i++)
        world.model.gradients[world.tensors[1].offset + i] = i % 3 == 0 ? -0.5f : 2.0f;
    gpt2_optimizer_update(world.optimizer, &world.model, 0.01, 1.0);
    for (size_t i = 0; i < 5000; i++) {
        const float moved = world.model.weights[world.tensors[1].offset + i];

        assert_true(world.model.weights[i] == 0.0f);
        assert_true(fabsf(moved) > 0.0099f && fabsf(moved) < 0.0101f);
    }
    end_world(&world);
}

/* ---- The same bits -------------------------------------------------------------------------- */

static const size_t COUNTS[] = {50000, 4096, 1, 12288, 70001, 300};
enum { COUNT = sizeof(COUNTS) / sizeof(COUNTS[0]), STEPS = 3 };

static void begin_step(world_t *world, int step)
{
    for (size_t i = 0; i < COUNT; i++) {
        float *gradients = world->model.gradients + world->tensors[i].offset;

        if (step == 0)
            fill_noise(world->model.weights + world->tensors[i].offset, COUNTS[i], i, 0.5f);
        fill_noise(gradients, COUNTS[i], 10 * (uint64_t)step + 7 + i, 1e-2f);
    }
}

static void run_world(world_t *world, int threads, const gpt2_kernels_t *kernels)
{
    const gpt2_optimizer_settings_t settings = make_settings(0.1);

    make_world(world, COUNTS, COUNT, 1, threads, kernels, &settings);
    for (int step = 0; step < STEPS; step++) {
        begin_step(world, step);
        gpt2_optimizer_update(world->optimizer, &world->model, 1e-2, 0.7);
    }
}

static void assert_same(const world_t *a, const world_t *b)
{
    const size_t bytes = a->layout.arena_count * sizeof(float);

    assert_memory_equal(a->model.weights, b->model.weights, bytes);
    assert_memory_equal(a->optimizer->m, b->optimizer->m, bytes);
    assert_memory_equal(a->optimizer->v, b->optimizer->v, bytes);
}

static void threads_and_instruction_sets_change_no_bit(void **state)
{
    world_t one;

    (void)state;
    run_world(&one, 1, gpt2_kernels_list()[0]);
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (int threads = 1; threads <= 3; threads++) {
            world_t other;

            run_world(&other, threads, *isa);
            assert_same(&one, &other);
            end_world(&other);
        }
    }
    end_world(&one);
}

/* Row `rank` of each tensor, in whole blocks; the last tensor every rank has whole. */
static size_t make_spans(const world_t *world, int rank, int ranks, gpt2_span_t *spans)
{
    size_t count = 0;

    for (size_t i = 0; i < COUNT; i++) {
        const int is_whole = i + 1 == COUNT;
        size_t first = 0;
        size_t last = COUNTS[i];
        size_t at;

        if (!is_whole) gpt2_team_part(COUNTS[i], GPT2_LAMB_BLOCK, rank, ranks, &first, &last);
        if (first == last) continue;
        at = world->tensors[i].offset + first;
        spans[count++] = (gpt2_span_t){.tensor = i,
                                       .first = first,
                                       .count = last - first,
                                       .weights = world->model.weights + at,
                                       .gradients = world->model.gradients + at,
                                       .m = world->optimizer->m + at,
                                       .v = world->optimizer->v + at,
                                       .is_whole = is_whole};
    }
    return count;
}

/* As gpt2_optimizer_begin(), without its groups. */
static void begin_half(gpt2_optimizer_t *optimizer)
{
    const size_t bytes = optimizer->partial_count * sizeof(double);

    optimizer->updates++;
    optimizer->learning_rate = 1e-2;
    optimizer->clip = 0.7;
    memset(optimizer->partials, 0, bytes);
    memset(optimizer->of_whole, 0, bytes);
}

/* Each rank updates its spans in a model of its own; then everyone takes all spans from their
 * owners. */
static void sharded_step(world_t *worlds, int ranks)
{
    gpt2_span_t spans[COUNT];

    for (int rank = 0; rank < ranks; rank++) {
        const size_t count = make_spans(&worlds[rank], rank, ranks, spans);

        begin_half(worlds[rank].optimizer);
        gpt2_optimizer_lamb.prepare(worlds[rank].optimizer, &worlds[rank].model, spans, count);
    }
    for (size_t i = 0; i < worlds[0].optimizer->partial_count; i++) {
        double sum = 0.0;

        for (int rank = 0; rank < ranks; rank++)
            sum += worlds[rank].optimizer->partials[i];
        for (int rank = 0; rank < ranks; rank++)
            worlds[rank].optimizer->partials[i] = sum + worlds[rank].optimizer->of_whole[i];
    }
    for (int rank = 0; rank < ranks; rank++) {
        const size_t count = make_spans(&worlds[rank], rank, ranks, spans);

        /* A few spans at a time. */
        for (size_t i = 0; i < count; i++)
            gpt2_optimizer_lamb.apply(worlds[rank].optimizer, &worlds[rank].model, &spans[i], 1);
        for (int other = 0; other < ranks; other++) {
            gpt2_span_t theirs[COUNT];

            (void)make_spans(&worlds[other], rank, ranks, theirs);
            for (size_t i = 0; i < count; i++) {
                const size_t bytes = spans[i].count * sizeof(float);

                if (other == rank || spans[i].tensor + 1 == COUNT) continue;
                memcpy(theirs[i].weights, spans[i].weights, bytes);
                memcpy(theirs[i].m, spans[i].m, bytes);
                memcpy(theirs[i].v, spans[i].v, bytes);
            }
        }
    }
}

static void shards_change_no_bit(void **state)
{
    const gpt2_optimizer_settings_t settings = make_settings(0.1);
    world_t whole;

    (void)state;
    run_world(&whole, 1, gpt2_kernels_list()[0]);
    for (int ranks = 1; ranks <= 4; ranks++) {
        world_t worlds[4];

        for (int rank = 0; rank < ranks; rank++) {
            make_world(&worlds[rank], COUNTS, COUNT, 1, 1 + rank % 2, gpt2_kernels_list()[0],
                       &settings);
        }
        for (int step = 0; step < STEPS; step++) {
            for (int rank = 0; rank < ranks; rank++)
                begin_step(&worlds[rank], step);
            sharded_step(worlds, ranks);
        }
        for (int rank = 0; rank < ranks; rank++) {
            assert_same(&whole, &worlds[rank]);
            end_world(&worlds[rank]);
        }
    }
    end_world(&whole);
}

static void unknown_optimizer_is_refused(void **state)
{
    (void)state;
    assert_null(gpt2_optimizer_find("lam", &error));
    assert_non_null(strstr(error.text, "did you mean lamb?"));
    assert_ptr_equal(gpt2_optimizer_find("adamw", &error), &gpt2_optimizer_adamw);
    assert_ptr_equal(gpt2_optimizer_find("lamb", &error), &gpt2_optimizer_lamb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples_come_out),
        cmocka_unit_test(lamb_follows_a_plain_loop),
        cmocka_unit_test(a_tensor_of_zeros_can_move),
        cmocka_unit_test(threads_and_instruction_sets_change_no_bit),
        cmocka_unit_test(shards_change_no_bit),
        cmocka_unit_test(unknown_optimizer_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
