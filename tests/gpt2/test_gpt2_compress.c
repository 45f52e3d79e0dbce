/*
 * test_gpt2_compress.c - what threshold dropping chooses and keeps, and PowerSGD's factors, against
 * plain loops; without ranks, which compress.sh has.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/strategy/topk.h"
#include "tests/unit/cases.h"

static float *floats(size_t count)
{
    float *x = calloc(count + 1, sizeof(float));

    assert_non_null(x);
    return x;
}

static float noise(uint64_t stream, size_t index)
{
    return (float)gpt2_random_normal(11, stream, index);
}

/* ---- Threshold dropping --------------------------------------------------------------------- */

/* A tensor of one rank, and a message with room for `share` of it. */
typedef struct fixture {
    size_t count;
    double share;
    float *gradient;
    float *residual;
    float *momentum;
    gpt2_topk_values_t values;
    char *message;
    gpt2_topk_list_t list;
    float *sample;
    uint32_t *bins;
} fixture_t;

static void make_fixture(fixture_t *fixture, size_t count, double share, int momentum)
{
    const size_t room = gpt2_topk_room(count, share);

    memset(fixture, 0, sizeof(*fixture));
    fixture->count = count;
    fixture->share = share;
    fixture->gradient = floats(count);
    fixture->residual = floats(count);
    fixture->momentum = floats(count);
    fixture->values = (gpt2_topk_values_t){.gradient = fixture->gradient,
                                           .by = 1.0f,
                                           .residual = fixture->residual,
                                           .momentum = momentum ? fixture->momentum : NULL,
                                           .factor = 0.9f,
                                           .count = count};
    fixture->message = calloc(1, gpt2_topk_message_bytes(count, room));
    fixture->sample = floats(GPT2_TOPK_SAMPLE);
    fixture->bins = calloc(GPT2_TOPK_BINS, sizeof(*fixture->bins));
    assert_non_null(fixture->message);
    assert_non_null(fixture->bins);
    fixture->list = gpt2_topk_list(fixture->message, count, room);
}

static void end_fixture(fixture_t *fixture)
{
    free(fixture->gradient);
    free(fixture->residual);
    free(fixture->momentum);
    free(fixture->message);
    free(fixture->sample);
    free(fixture->bins);
}

static size_t choose(fixture_t *fixture, const gpt2_kernels_t *kernels, int *nonfinite)
{
    return gpt2_topk_choose(kernels->compress, &fixture->values, fixture->share, &fixture->list,
                            fixture->sample, fixture->bins, nonfinite);
}

/* sent [count] = the list's elements, zeros elsewhere; the list's places ascend. */
static void unpack_list(const fixture_t *fixture, float *sent)
{
    const gpt2_topk_list_t *list = &fixture->list;
    size_t next = 0;

    memset(sent, 0, fixture->count * sizeof(float));
    for (size_t block = 0; block * GPT2_TOPK_BLOCK < fixture->count; block++) {
        size_t last = 0;

        for (uint32_t i = 0; i < list->block_counts[block]; i++, next++) {
            const size_t place = block * GPT2_TOPK_BLOCK + list->offsets[next];

            assert_true(i == 0 || place > last);
            assert_true(place < fixture->count);
            sent[place] = list->values[next];
            last = place;
        }
    }
}

/* Sent and kept together are what there was, each element in one of the two. */
static void nothing_is_lost(void **state)
{
    enum { COUNT = 200003, STEPS = 3 };

    (void)state;
    for (int momentum = 0; momentum < 2; momentum++) {
        fixture_t fixture;
        float *before = floats(COUNT);
        float *sent = floats(COUNT);
        float *speed = floats(COUNT);

        make_fixture(&fixture, COUNT, 0.01, momentum);
        for (int step = 0; step < STEPS; step++) {
            const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
            size_t found = 0;
            int nonfinite;
            size_t chosen;

            for (size_t i = 0; i < COUNT; i++) {
                fixture.gradient[i] = noise(20 + (uint64_t)step, i);
                speed[i] = fixture.momentum[i];
                before[i] = fixture.residual[i] + (momentum ? 0.9f * speed[i] + fixture.gradient[i]
                                                            : fixture.gradient[i]);
            }
            chosen = choose(&fixture, kernels, &nonfinite);
            assert_int_equal(nonfinite, 0);
            assert_true(chosen > 0 && chosen <= fixture.list.room);
            unpack_list(&fixture, sent);
            kernels->compress->topk_keep(&fixture.values, &fixture.list);
            for (size_t i = 0; i < COUNT; i++) {
                const float next = 0.9f * speed[i] + fixture.gradient[i];
                const int is_sent = sent[i] != 0.0f;

                found += (size_t)is_sent;
                assert_true((is_sent ? sent[i] : fixture.residual[i]) == before[i]);
                if (is_sent) assert_true(fixture.residual[i] == 0.0f);
                if (momentum) assert_true(fixture.momentum[i] == (is_sent ? 0.0f : next));
            }
            assert_int_equal(found, chosen);
        }
        end_fixture(&fixture);
        free(before);
        free(sent);
        free(speed);
    }
}

/* A constant gradient: within a few times 1 / share steps everything has been sent about as often
 * as it should have been. */
static void everything_is_sent_in_time(void **state)
{
    enum { COUNT = 5000, STEPS = 400 };
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    fixture_t fixture;
    float *sent = floats(COUNT);
    double *total = calloc(COUNT, sizeof(double));

    (void)state;
    assert_non_null(total);
    make_fixture(&fixture, COUNT, 0.05, 0);
    for (int step = 0; step < STEPS; step++) {
        int nonfinite;

        for (size_t i = 0; i < COUNT; i++)
            fixture.gradient[i] = (float)(1 + i % 4);
        (void)choose(&fixture, kernels, &nonfinite);
        unpack_list(&fixture, sent);
        kernels->compress->topk_keep(&fixture.values, &fixture.list);
        for (size_t i = 0; i < COUNT; i++)
            total[i] += (double)sent[i];
    }
    for (size_t i = 0; i < COUNT; i++) {
        const double wanted = (double)(STEPS * (1 + i % 4));

        assert_true(total[i] + (double)fixture.residual[i] == wanted); /* small whole numbers */
        assert_true(total[i] > 0.8 * wanted);
    }
    free(total);
    free(sent);
    end_fixture(&fixture);
}

static float laplace(size_t index)
{
    const double u = gpt2_random_uniform(5, 1, index) - 0.5;

    return (float)(u < 0.0 ? log(1.0 + 2.0 * u + 1e-300) : -log(1.0 - 2.0 * u + 1e-300));
}

/* A matrix [rows][96] with a gradient in every twentieth row, as an embedding's. */
static float one_hot(size_t index)
{
    return index / 96 % 20 == 7 ? noise(2, index) : 0.0f;
}

static void the_sample_finds_the_quantile(void **state)
{
    enum { COUNT = 1000032 };
    fixture_t fixture;

    (void)state;
    make_fixture(&fixture, COUNT, 0.01, 0);
    for (int kind = 0; kind < 3; kind++) {
        const gpt2_topk_quota_t quota = gpt2_topk_quota(COUNT, 0.01);
        float threshold;
        size_t above = 0;

        for (size_t i = 0; i < COUNT; i++) {
            fixture.gradient[i] = kind == 0 ? noise(1, i) : kind == 1 ? laplace(i) : one_hot(i);
        }
        threshold = gpt2_topk_threshold(&fixture.values, &quota, fixture.sample);
        for (size_t i = 0; i < COUNT; i++)
            above += fabsf(fixture.gradient[i]) > threshold;
        if (above < COUNT / 100 * 7 / 10 || above > COUNT / 100 * 13 / 10) {
            fail_msg("kind %d: %zu of %d above %g", kind, above, COUNT, (double)threshold);
        }
    }
    end_fixture(&fixture);
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* More than fit are above the threshold: the largest are sent, exactly. The sample has every third
 * element, and all of these are small. */
static void too_many_are_cut_to_the_largest(void **state)
{
    enum { COUNT = 250001 };
    fixture_t fixture;
    float *sizes = floats(COUNT);

    (void)state;
    make_fixture(&fixture, COUNT, 0.01, 0);
    for (size_t i = 0; i < COUNT; i++) {
        fixture.gradient[i] = i % 3 == 0 ? 1e-6f : noise(3, i);
        sizes[i] = fabsf(fixture.gradient[i]);
    }
    qsort(sizes, COUNT, sizeof(float), descending);
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        float *sent = floats(COUNT);
        float least = FLT_MAX;
        int nonfinite;
        const size_t chosen = choose(&fixture, *isa, &nonfinite);

        assert_int_equal(chosen, fixture.list.room);
        unpack_list(&fixture, sent);
        for (size_t i = 0; i < COUNT; i++) {
            if (sent[i] != 0.0f) least = fminf(least, fabsf(sent[i]));
        }
        assert_true(least == sizes[chosen - 1]);
        free(sent);
    }
    free(sizes);
    end_fixture(&fixture);
}

/* Of equal elements those with the lowest index have a place. */
static void ties_go_by_index(void **state)
{
    enum { COUNT = 150000 };
    fixture_t fixture;
    float *sent = floats(COUNT);

    (void)state;
    make_fixture(&fixture, COUNT, 0.01, 0);
    for (size_t i = 0; i < COUNT; i++)
        fixture.gradient[i] = i % 3 == 0 ? 0.0f : i % 2 == 0 ? -2.0f : 2.0f;
    fixture.gradient[COUNT - 1] = 3.0f;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        int nonfinite;
        size_t left = choose(&fixture, *isa, &nonfinite);

        assert_true(left > 0 && left <= fixture.list.room);
        unpack_list(&fixture, sent);
        assert_true(sent[COUNT - 1] == 3.0f);
        left--;
        for (size_t i = 0; i + 1 < COUNT; i++) {
            const int is_due = left > 0 && fixture.gradient[i] != 0.0f;

            assert_true(sent[i] == (is_due ? fixture.gradient[i] : 0.0f));
            left -= (size_t)is_due;
        }
        assert_int_equal(left, 0);
    }
    free(sent);
    end_fixture(&fixture);
}

static void all_zero_sends_nothing(void **state)
{
    fixture_t fixture;
    int nonfinite;

    (void)state;
    make_fixture(&fixture, 70000, 0.01, 0);
    assert_int_equal(choose(&fixture, gpt2_kernels_list()[0], &nonfinite), 0);
    assert_int_equal(nonfinite, 0);
    assert_int_equal(fixture.list.block_counts[0], 0);
    assert_int_equal(fixture.list.block_counts[1], 0);
    end_fixture(&fixture);
}

static void inf_and_nan_are_noticed(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    static const size_t places[] = {0, 31, 4096, 69999};

    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (size_t i = 0; i < 12; i++) {
            fixture_t fixture;
            int nonfinite;

            make_fixture(&fixture, 70000, 0.01, (int)(i % 2));
            fixture.gradient[places[i / 3]] = bad[i % 3];
            (void)choose(&fixture, *isa, &nonfinite);
            assert_int_equal(nonfinite, 1);
            fixture.gradient[places[i / 3]] = 1.0f;
            (void)choose(&fixture, *isa, &nonfinite);
            assert_int_equal(nonfinite, 0);
            end_fixture(&fixture);
        }
    }
}

/* With nothing dropped every element is in the list, and adding lists up is adding tensors up. */
static void nothing_dropped_is_a_plain_sum(void **state)
{
    enum { COUNT = 70001 };
    fixture_t fixtures[2];
    float *out = floats(COUNT);
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;
    double squares = 0.0;
    double found;

    (void)state;
    for (size_t rank = 0; rank < 2; rank++) {
        int nonfinite;

        make_fixture(&fixtures[rank], COUNT, 1.0, 0);
        for (size_t i = 0; i < COUNT; i++)
            fixtures[rank].gradient[i] = i % 5 == 0 ? 0.0f : noise(30 + rank, i);
        assert_int_equal(choose(&fixtures[rank], gpt2_kernels_list()[0], &nonfinite), COUNT);
        kernels->topk_add(out, COUNT, &fixtures[rank].list);
    }
    found = kernels->scale_squares(out, COUNT, 0.5f);
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(out[i] == (fixtures[0].gradient[i] + fixtures[1].gradient[i]) * 0.5f);
        squares += (double)out[i] * (double)out[i];
    }
    assert_true(fabs(found - squares) < 1e-12 * squares);
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++)
        assert_true((*isa)->compress->scale_squares(out, COUNT, 1.0f) == found);
    end_fixture(&fixtures[0]);
    end_fixture(&fixtures[1]);
    free(out);
}

static void warm_up_goes_down_in_stages(void **state)
{
    const gpt2_compress_settings_t settings = {.rate = 0.99, .start = 10, .warmup = 8};
    const gpt2_compress_settings_t plain = {.rate = 0.9};

    (void)state;
    assert_true(gpt2_topk_share(&settings, 10) == 0.25);
    assert_true(gpt2_topk_share(&settings, 11) == 0.25);
    assert_true(gpt2_topk_share(&settings, 12) == 0.0625);
    assert_true(gpt2_topk_share(&settings, 15) == 0.015625);
    assert_true(fabs(gpt2_topk_share(&settings, 17) - 0.01) < 1e-12);
    assert_true(fabs(gpt2_topk_share(&settings, 18) - 0.01) < 1e-12);
    assert_true(fabs(gpt2_topk_share(&plain, 0) - 0.1) < 1e-12);
    assert_int_equal(gpt2_topk_room(1000, 0.1), 125);
    assert_int_equal(gpt2_topk_room(1000, 0.9), 1000);
    assert_int_equal(gpt2_topk_room(1000, 1.0), 1000);
}

/* Of 124M: 1.25 times 1 % at 6 bytes, and the vectors as they are; 4 (rows + columns) floats. With
 * some hundred ranks sparse messages, of which each rank gets all, outgrow an all-reduce. */
static void bytes_of_124m_are_known(void **state)
{
    gpt2_compress_settings_t settings = {.method = "topk", .rate = 0.99, .rank = 4};
    gpt2_layout_t *layout;
    gpt2_error_t error;
    gpt2_shape_t shape;
    double compressed;
    double dense;

    (void)state;
    assert_int_equal(gpt2_shape_preset("124M", &shape, &error), 0);
    assert_int_equal(gpt2_layout_create(&shape, &layout, &error), 0);
    gpt2_compress_bytes(&settings, layout, 2, &compressed, &dense);
    assert_true(fabs(dense - 497.9e6) < 0.1e6 && fabs(compressed - 9.8e6) < 0.1e6);
    gpt2_compress_bytes(&settings, layout, 100, &compressed, &dense);
    assert_true(compressed < dense);
    gpt2_compress_bytes(&settings, layout, 110, &compressed, &dense);
    assert_true(compressed > dense);
    settings.method = "powersgd";
    gpt2_compress_bytes(&settings, layout, 8, &compressed, &dense);
    assert_true(fabs(dense / compressed - 134.9) < 0.1);
    settings.method = "none";
    gpt2_compress_bytes(&settings, layout, 8, &compressed, &dense);
    assert_true(compressed == dense);
    gpt2_layout_destroy(layout);
}

/* ---- PowerSGD ------------------------------------------------------------------------------- */

/* P Q' of one matrix, in double, from the same Q. */
static void plain_powersgd(const float *matrix, size_t rows, size_t columns, size_t rank,
                           const float *q, double *product)
{
    double *p = calloc(rank * rows, sizeof(double));
    double *back = calloc(rank * columns, sizeof(double));

    assert_non_null(p);
    assert_non_null(back);
    for (size_t k = 0; k < rank; k++) {
        double length = 0.0;

        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++)
                p[k * rows + i] += (double)matrix[i * columns + j] * (double)q[k * columns + j];
        }
        for (size_t other = 0; other < k; other++) {
            double along = 0.0;

            for (size_t i = 0; i < rows; i++)
                along += p[k * rows + i] * p[other * rows + i];
            for (size_t i = 0; i < rows; i++)
                p[k * rows + i] -= along * p[other * rows + i];
        }
        for (size_t i = 0; i < rows; i++)
            length += p[k * rows + i] * p[k * rows + i];
        for (size_t i = 0; i < rows; i++)
            p[k * rows + i] /= sqrt(length);
    }
    for (size_t k = 0; k < rank; k++) {
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++)
                back[k * columns + j] += (double)matrix[i * columns + j] * p[k * rows + i];
        }
    }
    memset(product, 0, rows * columns * sizeof(double));
    for (size_t k = 0; k < rank; k++) {
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++)
                product[i * columns + j] += p[k * rows + i] * back[k * columns + j];
        }
    }
    free(p);
    free(back);
}

static void check_powersgd(const gpt2_compress_kernels_t *kernels, size_t rows, size_t columns,
                           size_t rank)
{
    const size_t count = rows * columns;
    float *all = floats(3 * count + rank * (rows + 2 * columns));
    float *matrix = all + 2 * count;
    float *first_q = matrix + count;
    gpt2_powersgd_matrix_t factors = {.gradient = all,
                                      .residual = all + count,
                                      .scale = 0.5f,
                                      .rows = rows,
                                      .columns = columns,
                                      .rank = rank,
                                      .q = first_q + rank * columns,
                                      .p = first_q + 2 * rank * columns};
    double *product = calloc(count, sizeof(double));
    double off = 0.0;
    double size = 0.0;
    double squares;
    double found;

    assert_non_null(product);
    for (size_t i = 0; i < count; i++) {
        factors.gradient[i] = noise(40, i);
        factors.residual[i] = noise(41, i);
        matrix[i] = factors.residual[i] + 0.5f * factors.gradient[i];
    }
    for (size_t i = 0; i < rank * columns; i++)
        factors.q[i] = first_q[i] = noise(42, i);
    plain_powersgd(matrix, rows, columns, rank, first_q, product);

    kernels->powersgd_rows(&factors);
    kernels->powersgd_orthonormal(factors.p, rows, rank);
    for (size_t a = 0; a < rank; a++) {
        for (size_t b = 0; b <= a; b++) {
            double dot = 0.0;

            for (size_t i = 0; i < rows; i++)
                dot += (double)factors.p[a * rows + i] * (double)factors.p[b * rows + i];
            if (fabs(dot - (a == b)) > 1e-5) fail_msg("columns %zu, %zu: %g", a, b, dot);
        }
    }
    kernels->powersgd_columns(&factors);
    found = kernels->powersgd_finish(&factors);
    squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double difference = (double)factors.gradient[i] - product[i];

        off += difference * difference;
        size += product[i] * product[i];
        squares += (double)factors.gradient[i] * (double)factors.gradient[i];
        assert_true(factors.residual[i] == matrix[i] - factors.gradient[i]);
    }
    if (!(off <= 1e-8 * size)) fail_msg("%zux%zu rank %zu: off by %g", rows, columns, rank, off);
    assert_true(fabs(found - squares) < 1e-12 * squares);
    free(product);
    free(all);
}

static void factors_follow_a_plain_loop(void **state)
{
    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        check_powersgd((*isa)->compress, 64, 48, 4);
        check_powersgd((*isa)->compress, 33, 5000, 3); /* more columns than a part has */
        check_powersgd((*isa)->compress, 130, 7, 1);
        check_powersgd((*isa)->compress, 20, 30, 8);
    }
}

/* A matrix of rank 2 is its own approximation at rank 2, and at rank 4, where the columns that are
 * left over become zero. */
static void a_low_rank_matrix_is_sent_whole(void **state)
{
    enum { ROWS = 40, COLUMNS = 30, COUNT = ROWS * COLUMNS };
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;

    (void)state;
    for (size_t rank = 2; rank <= 4; rank += 2) {
        float *gradient = floats(COUNT);
        float *residual = floats(COUNT);
        float *p = floats(rank * ROWS);
        float *q = floats(rank * COLUMNS);
        const gpt2_powersgd_matrix_t factors = {.gradient = gradient,
                                                .residual = residual,
                                                .scale = 1.0f,
                                                .rows = ROWS,
                                                .columns = COLUMNS,
                                                .rank = rank,
                                                .p = p,
                                                .q = q};

        for (size_t i = 0; i < COUNT; i++) {
            gradient[i] = noise(50, i / COLUMNS) * noise(51, i % COLUMNS) +
                          noise(52, i / COLUMNS) * noise(53, i % COLUMNS);
        }
        for (size_t i = 0; i < rank * COLUMNS; i++)
            q[i] = noise(54, i);
        kernels->powersgd_rows(&factors);
        kernels->powersgd_orthonormal(p, ROWS, rank);
        kernels->powersgd_columns(&factors);
        (void)kernels->powersgd_finish(&factors);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabsf(residual[i]) < 2e-5f);
        free(gradient);
        free(residual);
        free(p);
        free(q);
    }
}

/* The factors of an average are the averages of the factors: that is why all-reduces will do. */
static void factors_are_linear(void **state)
{
    enum { ROWS = 24, COLUMNS = 36, COUNT = ROWS * COLUMNS, RANK = 3 };
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;
    float *gradients[3];
    float *p[3];
    float *q = floats((size_t)RANK * COLUMNS);
    float *residual = floats(COUNT);

    (void)state;
    for (size_t i = 0; i < (size_t)RANK * COLUMNS; i++)
        q[i] = noise(60, i);
    for (size_t m = 0; m < 3; m++) {
        gradients[m] = floats(COUNT);
        p[m] = floats((size_t)RANK * ROWS);
        for (size_t i = 0; i < COUNT; i++) {
            gradients[m][i] = m < 2 ? noise(61 + m, i) : 0.5f * (gradients[0][i] + gradients[1][i]);
        }
    }
    for (size_t m = 0; m < 3; m++) {
        const gpt2_powersgd_matrix_t factors = {.gradient = gradients[m],
                                                .residual = residual,
                                                .scale = 1.0f,
                                                .rows = ROWS,
                                                .columns = COLUMNS,
                                                .rank = RANK,
                                                .p = p[m],
                                                .q = q};

        kernels->powersgd_rows(&factors);
    }
    for (size_t i = 0; i < (size_t)RANK * ROWS; i++)
        assert_true(fabsf(p[2][i] - 0.5f * (p[0][i] + p[1][i])) < 1e-4f);
    for (size_t m = 0; m < 3; m++) {
        free(gradients[m]);
        free(p[m]);
    }
    free(q);
    free(residual);
}

/* The update of the model has the same bits for every instruction set, from the same P, Q. */
static void what_is_applied_does_not_depend_on_the_processor(void **state)
{
    enum { ROWS = 50, COLUMNS = 70, COUNT = ROWS * COLUMNS, RANK = 4 };
    float *first = NULL;
    double squares = 0.0;

    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        float *gradient = floats(COUNT);
        float *residual = floats(COUNT);
        float *p = floats((size_t)RANK * ROWS);
        float *q = floats((size_t)RANK * COLUMNS);
        const gpt2_powersgd_matrix_t factors = {.gradient = gradient,
                                                .residual = residual,
                                                .scale = 1.0f,
                                                .rows = ROWS,
                                                .columns = COLUMNS,
                                                .rank = RANK,
                                                .p = p,
                                                .q = q};
        double found;

        for (size_t i = 0; i < (size_t)RANK * ROWS; i++)
            p[i] = noise(70, i);
        for (size_t i = 0; i < (size_t)RANK * COLUMNS; i++)
            q[i] = noise(71, i);
        (*isa)->compress->powersgd_orthonormal(p, ROWS, RANK);
        found = (*isa)->compress->powersgd_finish(&factors);
        if (first == NULL) {
            first = gradient;
            squares = found;
        } else {
            assert_memory_equal(first, gradient, COUNT * sizeof(float));
            assert_true(found == squares);
            free(gradient);
        }
        free(residual);
        free(p);
        free(q);
    }
    free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(everything_is_sent_in_time),
        cmocka_unit_test(the_sample_finds_the_quantile),
        cmocka_unit_test(too_many_are_cut_to_the_largest),
        cmocka_unit_test(ties_go_by_index),
        cmocka_unit_test(all_zero_sends_nothing),
        cmocka_unit_test(inf_and_nan_are_noticed),
        cmocka_unit_test(nothing_dropped_is_a_plain_sum),
        cmocka_unit_test(warm_up_goes_down_in_stages),
        cmocka_unit_test(bytes_of_124m_are_known),
        cmocka_unit_test(factors_follow_a_plain_loop),
        cmocka_unit_test(a_low_rank_matrix_is_sent_whole),
        cmocka_unit_test(factors_are_linear),
        cmocka_unit_test(what_is_applied_does_not_depend_on_the_processor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
