/*
 * test_gpt2_kernels.c - each instruction set's arithmetic against plain loops in double.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cpu/kernels.h"
#include "examples/gpt2/base/random.h"
#include "tests/unit/cases.h"

static float noise(uint64_t stream, size_t index)
{
    return (float)gpt2_random_normal(9, stream, index);
}

/* With a mantissa of 8 bits, so that a product in bf16 has no other operands than one in fp32. */
static float *noise_matrix(uint64_t stream, size_t count)
{
    float *values = malloc((count + 1) * sizeof(float));

    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = rintf(noise(stream, i) * 16.0f) / 16.0f;
    return values;
}

static void check_gemm(gpt2_gemm_fn gemm, const char *name, int ta, int tb, size_t m, size_t n,
                       size_t k, float beta)
{
    size_t lda = (ta ? m : k) + 3;
    size_t ldb = (tb ? k : n) + 1;
    size_t ldc = n + 2;
    float *a = noise_matrix(1, lda * (ta ? k : m));
    float *b = noise_matrix(2, ldb * (tb ? n : k));
    float *c = noise_matrix(3, ldc * m);
    float *scratch = malloc(GPT2_GEMM_SCRATCH * sizeof(float));
    float *old = malloc(ldc * m * sizeof(float) + 1);

    assert_non_null(scratch);
    assert_non_null(old);
    memcpy(old, c, ldc * m * sizeof(float));
    if (beta == 0.0f) {
        /* beta 0 must not read: NaN would spread. */
        for (size_t i = 0; i < m; i++) {
            for (size_t j = 0; j < n; j++)
                c[i * ldc + j] = NAN;
        }
    }
    gemm(ta, tb, m, n, k, 0.5f, a, lda, b, ldb, beta, c, ldc, scratch);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < ldc; j++) {
            double sum = 0.0;

            if (j >= n) {
                assert_true(c[i * ldc + j] == old[i * ldc + j]); /* the gap is untouched */
                continue;
            }
            for (size_t p = 0; p < k; p++) {
                sum += (double)(ta ? a[p * lda + i] : a[i * lda + p]) *
                       (double)(tb ? b[j * ldb + p] : b[p * ldb + j]);
            }
            sum = 0.5 * sum + (beta == 0.0f ? 0.0 : (double)beta * (double)old[i * ldc + j]);
            if (!(fabs(c[i * ldc + j] - sum) < 1e-5 * (10.0 + sqrt((double)k)))) {
                fail_msg("%s %d%d %zux%zux%zu at %zu,%zu: %g, plain %g", name, ta, tb, m, n, k, i,
                         j, (double)c[i * ldc + j], sum);
            }
        }
    }
    free(a);
    free(b);
    free(c);
    free(scratch);
    free(old);
}

static void own_gemm_matches_plain_loops(void **state)
{
    static const size_t sizes[][3] = {{1, 1, 1},     {5, 7, 3},     {12, 32, 16},
                                      {64, 64, 64},  {13, 33, 65},  {200, 70, 30},
                                      {33, 530, 20}, {20, 40, 300}, {193, 513, 257}};
    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (int variant = 0; variant < 8; variant++) {
                float beta = variant < 4 ? 0.0f : 0.75f;
                check_gemm((*isa)->gemm, (*isa)->isa, variant & 1, (variant >> 1) & 1, sizes[s][0],
                           sizes[s][1], sizes[s][2], beta);
            }
        }
    }
}

static void check_library_gemm(gpt2_gemm_fn gemm, const char *name)
{
    /* the last crosses every block of the bf16 product */
    static const size_t sizes[][3] = {{1, 1, 1}, {13, 33, 65}, {130, 129, 128}, {257, 385, 770}};

    if (gemm == NULL) skip();
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (int variant = 0; variant < 4; variant++) {
            float beta = variant == 1 || variant == 2 ? 0.0f : 0.75f;

            if (s == 3 && beta != 0.0f) continue; /* plain loops take their time */
            check_gemm(gemm, name, variant & 1, variant >> 1, sizes[s][0], sizes[s][1], sizes[s][2],
                       beta);
        }
    }
}

static void onednn_matches_plain_loops(void **state)
{
    (void)state;
    check_library_gemm(gpt2_gemm_dnnl(), "oneDNN");
}

static void onednn_in_bf16_matches_plain_loops(void **state)
{
    (void)state;
    check_library_gemm(gpt2_gemm_dnnl_bf16(), "oneDNN in bf16");
}

static void chosen_gemm_has_its_name(void **state)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    gpt2_gemm_fn dnnl = gpt2_gemm_dnnl();

    (void)state;
    assert_string_equal(gpt2_gemm_name(gpt2_gemm_choose("own", kernels), kernels),
                        "our own kernel");
    if (dnnl != NULL) {
        assert_ptr_equal(gpt2_gemm_choose("auto", kernels), dnnl);
        assert_string_equal(gpt2_gemm_name(dnnl, kernels), "oneDNN");
    }
    assert_ptr_equal(gpt2_gemm_choose("dnnl", kernels), dnnl);
}

static void narrow_rounds_to_nearest_and_keeps_nan(void **state)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80},
        {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82},
        {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0},
        {0x7fffffff, 0x7fff}, {0xff800001, 0xffc0}, {0x00000001, 0x0000}, {0x00018000, 0x0002},
    };
    enum { COUNT = sizeof(cases) / sizeof(cases[0]) };
    float in[2 * COUNT + 1];
    uint16_t out[2 * COUNT + 1];

    (void)state;
    for (size_t i = 0; i < 2 * COUNT + 1; i++)
        memcpy(&in[i], &cases[i % COUNT].from, sizeof(in[i]));
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        (*isa)->narrow(out, in, 2 * COUNT + 1);
        for (size_t i = 0; i < 2 * COUNT + 1; i++) {
            if (out[i] == cases[i % COUNT].to) continue;
            fail_msg("%s: %08x to %04x, expected %04x", (*isa)->isa, cases[i % COUNT].from, out[i],
                     cases[i % COUNT].to);
        }
    }
}

static void gelu_is_close_over_the_whole_range(void **state)
{
    enum { COUNT = 4001 };
    static float x[COUNT];
    static float out[COUNT];
    static float slope[COUNT];
    static float bias[COUNT];

    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = (float)(i - 2000) * 0.01f; /* -20 .. 20 */
            slope[i] = 1.0f;
        }
        (*isa)->gelu(out, x, bias, 1, COUNT);
        (*isa)->gelu_backward(slope, x, COUNT);
        for (int i = 0; i < COUNT; i++) {
            double v = x[i];
            double u = 0.7978845608028654 * (v + 0.044715 * v * v * v);
            double t = tanh(u);
            double du = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * v * v);

            assert_true(fabs(out[i] - 0.5 * v * (1.0 + t)) < 1e-6 * (1.0 + fabs(v)));
            assert_true(fabs(slope[i] - (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * du)) < 2e-6);
        }
    }
}

static void softmax_sums_to_one_and_hides_the_future(void **state)
{
    enum { ROWS = 5, COLUMNS = 21, FIRST = 16, COUNT = ROWS * COLUMNS };
    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        float s[COUNT];
        float again[COUNT];
        float lse[ROWS];

        for (size_t i = 0; i < COUNT; i++)
            again[i] = s[i] = 20.0f * noise(4, i);
        (*isa)->causal_softmax(s, lse, 0.5f, FIRST, ROWS, COLUMNS);
        (*isa)->causal_probabilities(again, lse, 0.5f, FIRST, ROWS, COLUMNS);
        for (size_t row = 0; row < ROWS; row++) {
            double sum = 0.0;
            double total = 0.0;

            for (size_t i = 0; i <= FIRST + row; i++) {
                total += exp(0.5 * 20.0 * (double)noise(4, row * COLUMNS + i));
            }
            for (size_t i = 0; i < COLUMNS; i++) {
                double exact =
                    i > FIRST + row ? 0.0 : exp(10.0 * (double)noise(4, row * COLUMNS + i)) / total;
                assert_true(fabs(s[row * COLUMNS + i] - exact) < 1e-5);
                assert_true(fabs(again[row * COLUMNS + i] - exact) < 1e-5);
                sum += s[row * COLUMNS + i];
            }
            assert_true(fabs(sum - 1.0) < 1e-6);
        }
    }
}

/* The loss of a row, from the parts of a softmax; with a weight, logits become its gradient. */
static double row_loss(const gpt2_kernels_t *isa, float *logits, size_t target, float weight)
{
    const float highest = isa->largest(logits, 37);
    const double logit = logits[target];
    const float total = isa->exponentials(logits, 37, highest);

    isa->scale(logits, weight / total, 37);
    logits[target] -= weight;
    return log((double)total) - (logit - (double)highest);
}

static void softmax_survives_large_logits(void **state)
{
    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        float logits[37];
        double loss;

        for (int i = 0; i < 37; i++)
            logits[i] = i == 7 ? 1000.0f : -1000.0f;
        loss = row_loss(*isa, logits, 8, 2.0f);
        assert_true(fabs(loss - 2000.0) < 1e-3);
        assert_true(fabs(logits[7] - 2.0) < 1e-6 && fabs(logits[8] + 2.0) < 1e-6);
        logits[3] = NAN;
        assert_true(isnan(row_loss(*isa, logits, 8, 2.0f)));
    }
}

static void adamw_is_bit_equal_for_every_instruction_set(void **state)
{
    enum { COUNT = 1003 };
    const gpt2_adamw_t adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.7f, 0.1f, 0.05f};
    float first[3][COUNT];

    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        float *gradients = noise_matrix(5, COUNT);
        float now[3][COUNT];

        for (size_t i = 0; i < COUNT; i++) {
            now[0][i] = noise(6, i);
            now[1][i] = noise(7, i);
            now[2][i] = fabsf(noise(8, i));
        }
        (*isa)->adamw(now[0], gradients, now[1], now[2], COUNT, &adamw);
        if (isa == gpt2_kernels_list()) memcpy(first, now, sizeof(first));
        assert_memory_equal(first, now, sizeof(first));
        free(gradients);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_gemm_matches_plain_loops),
        cmocka_unit_test(onednn_matches_plain_loops),
        cmocka_unit_test(onednn_in_bf16_matches_plain_loops),
        cmocka_unit_test(chosen_gemm_has_its_name),
        cmocka_unit_test(narrow_rounds_to_nearest_and_keeps_nan),
        cmocka_unit_test(gelu_is_close_over_the_whole_range),
        cmocka_unit_test(softmax_sums_to_one_and_hides_the_future),
        cmocka_unit_test(softmax_survives_large_logits),
        cmocka_unit_test(adamw_is_bit_equal_for_every_instruction_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
