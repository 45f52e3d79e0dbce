/*
 * test_gpt2_precision.c - the arithmetic of mixed precision: rounding to 16 bits, products that
 * round, the loss scale's rule, and which words go together.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/model/precision.h"
#include "tests/unit/cases.h"

#define LARGEST 0x7bffu /* 65504 as fp16 */

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* ---- Rounding ------------------------------------------------------------------------------- */

static void expect_fp16(const gpt2_kernels_t *kernels, float in, float expected)
{
    /* Long enough for the widest vector, and for its tail. */
    float values[19];

    for (int i = 0; i < 19; i++)
        values[i] = (i & 1) == 0 ? in : -in;
    kernels->round_fp16(values, values, 19);
    for (int i = 0; i < 19; i++) {
        const float wanted = (i & 1) == 0 ? expected : -expected;

        if (bits_of(values[i]) == bits_of(wanted)) continue;
        fail_msg("%s: %a at %d becomes %a, expected %a", kernels->isa, (double)in, i,
                 (double)values[i], (double)wanted);
    }
}

/* Every number of 16 bits, there and back; and as one number at a time is read. */
static void halves_are_packed_and_unpacked_exactly(void **state)
{
    uint16_t in[4096];
    uint16_t back[4096];
    float wide[4096];

    (void)state;
    for (int is_fp16 = 0; is_fp16 <= 1; is_fp16++) {
        for (uint32_t first = 0; first < 65536; first += 4096) {
            for (uint32_t i = 0; i < 4096; i++)
                in[i] = (uint16_t)(first + i);
            gpt2_halves_unpack(wide, in, 4096, is_fp16);
            gpt2_halves_pack(back, wide, 4096, is_fp16);
            for (uint32_t i = 0; i < 4096; i++) {
                const float one = is_fp16 ? gpt2_from_fp16(in[i]) : gpt2_from_bf16(in[i]);

                assert_int_equal(back[i], in[i]);
                if (isnan(one) ? !isnan(wide[i]) : bits_of(one) != bits_of(wide[i])) {
                    fail_msg("%04x is %a, expected %a", in[i], (double)wide[i], (double)one);
                }
            }
        }
    }
}

/* Each number of fp16, the middle between two neighbours, and what lies next to the middle. */
static void fp16_rounds_every_number_to_nearest_even(void **state)
{
    (void)state;
    for (const gpt2_kernels_t *const *isa = gpt2_kernels_list(); *isa != NULL; isa++) {
        for (uint32_t half = 0; half <= LARGEST; half++) {
            const float low = gpt2_from_fp16((uint16_t)half);
            const float high = half == LARGEST ? 65536.0f : gpt2_from_fp16((uint16_t)(half + 1));
            const float above = half == LARGEST ? INFINITY : high;
            const float middle = 0.5f * (low + high);

            expect_fp16(*isa, low, low);
            expect_fp16(*isa, middle, (half & 1) == 0 ? low : above);
            expect_fp16(*isa, nextafterf(middle, 0.0f), low);
            expect_fp16(*isa, nextafterf(middle, INFINITY), above);
        }
        expect_fp16(*isa, INFINITY, INFINITY);
        expect_fp16(*isa, 3e38f, INFINITY);
        expect_fp16(*isa, from_bits(1), 0.0f);
    }
}

/* All 65,536 values of the upper half with every way that the lower bits can round. */
static void instruction_sets_round_to_equal_bits(void **state)
{
    static const uint32_t lows[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    enum { LOWS = sizeof(lows) / sizeof(lows[0]), COUNT = 8 * LOWS };
    const gpt2_kernels_t *const *isas = gpt2_kernels_list();

    (void)state;
    for (uint32_t upper = 0; upper < 1u << 16; upper++) {
        float in[COUNT];
        float first[2 * COUNT];
        float other[2 * COUNT];

        for (uint32_t i = 0; i < COUNT; i++)
            in[i] = from_bits(upper << 16 | i / LOWS << 13 | lows[i % LOWS]);
        isas[0]->round_fp16(first, in, COUNT);
        isas[0]->round_bf16(first + COUNT, in, COUNT);
        for (const gpt2_kernels_t *const *isa = isas + 1; *isa != NULL; isa++) {
            (*isa)->round_fp16(other, in, COUNT);
            (*isa)->round_bf16(other + COUNT, in, COUNT);
            for (uint32_t i = 0; i < 2 * COUNT; i++) {
                if (bits_of(first[i]) == bits_of(other[i])) continue;
                fail_msg("%s and %s differ at %08x", isas[0]->isa, (*isa)->isa,
                         bits_of(in[i % COUNT]));
            }
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            const float narrow = gpt2_from_bf16(gpt2_to_bf16(in[i]));

            assert_int_equal(isnan(in[i]) != 0, isnan(first[i]) != 0);
            assert_int_equal(bits_of(narrow), bits_of(first[COUNT + i]));
        }
    }
}

/* ---- Products ------------------------------------------------------------------------------- */

static float *noise(uint64_t stream, size_t count)
{
    float *values = malloc((count + 1) * sizeof(float));

    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)gpt2_random_normal(9, stream, i);
    return values;
}

typedef struct shape {
    size_t m, n, k;
    int ta, tb;
    float beta;
} shape_t;

/* Against plain loops in double over operands that are rounded first. */
static void check_rounded(gpt2_gemm_fn gemm, gpt2_precision_t precision, const shape_t *s)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    const size_t lda = (s->ta ? s->m : s->k) + 3;
    const size_t ldb = (s->tb ? s->k : s->n) + 1;
    const size_t ldc = s->n + 2;
    const size_t a_count = lda * (s->ta ? s->k : s->m);
    const size_t b_count = ldb * (s->tb ? s->n : s->k);
    float *a = noise(1, a_count);
    float *b = noise(2, b_count);
    float *c = noise(3, ldc * s->m);
    float *old = noise(3, ldc * s->m);
    float *scratch = malloc(GPT2_GEMM_SCRATCH * sizeof(float));
    void (*round)(float *, const float *, size_t) =
        precision == GPT2_FP16 ? kernels->round_fp16 : kernels->round_bf16;

    assert_non_null(scratch);
    gemm(s->ta, s->tb, s->m, s->n, s->k, 0.5f, a, lda, b, ldb, s->beta, c, ldc, scratch);
    round(a, a, a_count);
    round(b, b, b_count);
    for (size_t i = 0; i < s->m; i++) {
        for (size_t j = 0; j < ldc; j++) {
            const double was = (double)old[i * ldc + j];
            const double is = (double)c[i * ldc + j];
            double sum = 0.0;
            double allowed;

            if (j >= s->n) {
                assert_true(is == was); /* the gap is untouched */
                continue;
            }
            for (size_t p = 0; p < s->k; p++) {
                sum += 0.5 * (double)(s->ta ? a[p * lda + i] : a[i * lda + p]) *
                       (double)(s->tb ? b[j * ldb + p] : b[p * ldb + j]);
            }
            /* fp32 sums in another order, and half a unit of fp16 for its rounded result. */
            allowed = 1e-5 * (1.0 + sqrt((double)s->k));
            if (precision == GPT2_FP16) allowed += fabs(sum) / 2048.0 + 1e-7;
            if (fabs(is - sum - (double)s->beta * was) <= allowed) continue;
            fail_msg("%s %zux%zux%zu at %zu,%zu: %g, plain %g", gpt2_precision_name(precision),
                     s->m, s->n, s->k, i, j, is, sum + (double)s->beta * was);
        }
    }
    free(a);
    free(b);
    free(c);
    free(old);
    free(scratch);
}

static void rounded_products_match_plain_loops(void **state)
{
    /* the last one crosses every block */
    static const shape_t shapes[] = {
        {1, 1, 1, 0, 0, 0.0f},      {13, 33, 65, 1, 0, 0.75f}, {64, 64, 64, 0, 1, 1.0f},
        {130, 70, 257, 0, 1, 0.0f}, {5, 400, 300, 1, 1, 1.0f}, {257, 385, 259, 0, 0, 1.0f},
    };
    static const char *const bases[] = {"own", "blas", "dnnl", "auto"};
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];

    (void)state;
    for (int i = 0; i < 4; i++) {
        for (int precision = GPT2_BF16; precision <= GPT2_FP16; precision++) {
            gpt2_gemm_fn gemm =
                gpt2_gemm_choose_precise((gpt2_precision_t)precision, bases[i], kernels);

            if (gemm == NULL) continue; /* not in this build */
            for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                check_rounded(gemm, (gpt2_precision_t)precision, &shapes[s]);
        }
    }
}

/* 256 * 256 is above 65504: Inf in fp16, but neither in bf16 nor where terms cancel. */
static void fp16_products_overflow_and_bf16_ones_do_not(void **state)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    gpt2_gemm_fn fp16 = gpt2_gemm_choose_precise(GPT2_FP16, "own", kernels);
    gpt2_gemm_fn bf16 = gpt2_gemm_choose_precise(GPT2_BF16, "own", kernels);
    float *scratch = malloc(GPT2_GEMM_SCRATCH * sizeof(float));
    const float a[2] = {256.0f, 256.0f};
    const float b[2] = {256.0f, -256.0f};
    float c = 1.0f;

    (void)state;
    assert_non_null(scratch);
    fp16(0, 0, 1, 1, 1, 1.0f, a, 1, b, 1, 1.0f, &c, 1, scratch);
    assert_true(isinf(c) && c > 0.0f);
    fp16(0, 0, 1, 1, 1, -1.0f, a, 1, b, 1, 0.0f, &c, 1, scratch);
    assert_true(isinf(c) && c < 0.0f);
    fp16(0, 0, 1, 1, 2, 1.0f, a, 2, b, 1, 0.0f, &c, 1, scratch);
    assert_true(c == 0.0f);
    bf16(0, 0, 1, 1, 1, 1.0f, a, 1, b, 1, 0.0f, &c, 1, scratch);
    assert_true(c == 65536.0f);
    c = 3.0f;
    fp16(0, 0, 1, 1, 0, 1.0f, a, 1, b, 1, 0.5f, &c, 1, scratch);
    assert_true(c == 1.5f); /* without terms beta alone counts */
    free(scratch);
}

static void products_have_names(void **state)
{
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];

    (void)state;
    assert_string_equal(
        gpt2_gemm_name(gpt2_gemm_choose_precise(GPT2_FP16, "own", kernels), kernels),
        "our own kernel, fp16 emulated");
    assert_ptr_equal(gpt2_gemm_choose_precise(GPT2_FP32, "own", kernels), kernels->gemm);
    assert_null(gpt2_gemm_choose_precise(GPT2_FP16, "dnnl-bf16", kernels));
    if (gpt2_gemm_dnnl_bf16() != NULL) {
        assert_string_equal(
            gpt2_gemm_name(gpt2_gemm_choose_precise(GPT2_BF16, "auto", kernels), kernels),
            "oneDNN in bf16");
    }
}

/* ---- The loss scale ------------------------------------------------------------------------- */

/* Steps in a word: '+' a good one, '!' an overflow. */
static void expect_scale(int interval, int hysteresis, double initial, const char *steps,
                         double expected)
{
    const gpt2_loss_scale_settings_t settings = {initial, interval, hysteresis};
    gpt2_loss_scale_t scale = gpt2_loss_scale_start(&settings);

    for (const char *step = steps; *step != '\0'; step++)
        gpt2_loss_scale_move(&scale, &settings, *step == '!');
    if (scale.scale != expected) {
        fail_msg("interval %d, hysteresis %d, from %g: %s ends at %g, expected %g", interval,
                 hysteresis, initial, steps, scale.scale, expected);
    }
}

static void the_loss_scale_moves_by_its_rule(void **state)
{
    (void)state;
    expect_scale(3, 1, 8.0, "", 8.0);
    expect_scale(3, 1, 8.0, "++", 8.0);
    expect_scale(3, 1, 8.0, "+++", 16.0);
    expect_scale(3, 1, 8.0, "++!++", 4.0);
    expect_scale(3, 1, 8.0, "++!+++", 8.0);
    expect_scale(3, 1, 8.0, "!!!!!!!!!", 1.0);
    expect_scale(1, 1, GPT2_LOSS_SCALE_MAX / 2, "+++", GPT2_LOSS_SCALE_MAX);
    /* the third overflow in a row, and each behind it; a good step begins the count anew */
    expect_scale(9, 3, 8.0, "!!", 8.0);
    expect_scale(9, 3, 8.0, "!!!", 4.0);
    expect_scale(9, 3, 8.0, "!!!!", 2.0);
    expect_scale(9, 3, 8.0, "!!+!!", 8.0);
    expect_scale(9, 3, 8.0, "!!!+!!", 4.0);
    /* there is none */
    expect_scale(1, 1, 0.0, "+!+!!!", 1.0);
}

/* ---- Words ---------------------------------------------------------------------------------- */

static gpt2_precision_words_t words(const char *precision, const char *level, const char *scale)
{
    return (gpt2_precision_words_t){precision, level, scale, 2000, 1};
}

static void words_make_a_plan(void **state)
{
    static const struct {
        const char *precision, *level, *scale, *device;
        gpt2_precision_t type;
        int number;
        double initial;
    } cases[] = {
        {"auto", "auto", "auto", "cpu", GPT2_FP32, 0, 0.0},
        {"auto", "auto", "auto", "cuda", GPT2_BF16, 1, 0.0},
        {"auto", "O0", "auto", "cuda", GPT2_FP32, 0, 0.0},
        {"auto", "O2", "auto", "cpu", GPT2_BF16, 2, 0.0},
        {"bf16", "O2", "auto", "cuda", GPT2_BF16, 2, 0.0},
        {"fp16", "auto", "auto", "cpu", GPT2_FP16, 1, 65536.0},
        {"fp16", "O2", "16777216", "cpu", GPT2_FP16, 2, 16777216.0},
        {"fp16", "O1", "none", "cpu", GPT2_FP16, 1, 0.0},
        {"bf16", "O1", "1", "cpu", GPT2_BF16, 1, 1.0},
        {"fp32", "O0", "1024", "cpu", GPT2_FP32, 0, 1024.0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gpt2_precision_words_t given =
            words(cases[i].precision, cases[i].level, cases[i].scale);
        gpt2_precision_plan_t plan;
        gpt2_error_t error;

        if (gpt2_precision_choose(&given, cases[i].device, &plan, &error) != 0) {
            fail_msg("case %zu: %s", i, error.text);
        }
        assert_int_equal(plan.precision, cases[i].type);
        assert_int_equal(plan.level, cases[i].number);
        assert_true(plan.scale.initial == cases[i].initial);
        assert_int_equal(plan.scale.growth_interval, 2000);
    }
}

static void words_that_contradict_each_other_are_refused(void **state)
{
    static const char *const cases[][5] = {
        {"fp_16", "auto", "auto", "cpu", "--precision fp_16: no such choice, did you mean fp16?"},
        {"auto", "O3", "auto", "cpu", "--amp O3: no such choice, did you mean O"},
        {"fp16", "O0", "auto", "cpu", "--amp O0 computes in fp32, but --precision is fp16"},
        {"fp32", "O1", "auto", "cpu", "--amp O1 computes in 16 bits, but --precision is fp32"},
        {"fp16", "auto", "1000", "cpu", "--loss-scale 1000: neither auto, none nor a power of two"},
        {"fp16", "auto", "33554432", "cpu", "a power of two from 1 to 16777216"},
        {"fp16", "auto", "0.5", "cpu", "--loss-scale 0.5"},
        {"fp16", "auto", "nan", "cpu", "--loss-scale nan"},
        {"fp16", "auto", "-4", "cpu", "--loss-scale -4"},
        {"fp16", "auto", "64k", "cpu", "--loss-scale 64k"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gpt2_precision_words_t given = words(cases[i][0], cases[i][1], cases[i][2]);
        gpt2_precision_plan_t plan;
        gpt2_error_t error = {""};

        assert_int_equal(gpt2_precision_choose(&given, cases[i][3], &plan, &error), -1);
        if (strstr(error.text, cases[i][4]) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, error.text, cases[i][4]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_packed_and_unpacked_exactly),
        cmocka_unit_test(fp16_rounds_every_number_to_nearest_even),
        cmocka_unit_test(instruction_sets_round_to_equal_bits),
        cmocka_unit_test(rounded_products_match_plain_loops),
        cmocka_unit_test(fp16_products_overflow_and_bf16_ones_do_not),
        cmocka_unit_test(products_have_names),
        cmocka_unit_test(the_loss_scale_moves_by_its_rule),
        cmocka_unit_test(words_make_a_plan),
        cmocka_unit_test(words_that_contradict_each_other_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
