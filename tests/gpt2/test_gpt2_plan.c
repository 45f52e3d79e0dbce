/*
 * test_gpt2_plan.c - what a run will take: the plan's arithmetic against sums made by hand, the
 * division of time, and the files of --plan, --samples and --summary.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/data/json.h"
#include "examples/gpt2/train/run.h"
#include "examples/gpt2/train/summary.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

#define MIB 1048576.0

static gpt2_error_t error;

static void close_to(double found, double expected, double tolerance)
{
    if (fabs(found / expected - 1.0) > tolerance) fail_msg("%g, expected %g", found, expected);
}

static gpt2_layout_t *layout_of(const char *preset)
{
    gpt2_layout_t *layout = NULL;
    gpt2_shape_t shape;

    assert_int_equal(gpt2_shape_preset(preset, &shape, &error), 0);
    assert_int_equal(gpt2_layout_create(&shape, &layout, &error), 0);
    return layout;
}

static gpt2_plan_t plan_of(const gpt2_layout_t *layout, gpt2_plan_stage_t stage, int ranks)
{
    const gpt2_plan_input_t input = {.layout = layout,
                                     .stage = stage,
                                     .ranks = ranks,
                                     .sharers = ranks,
                                     .accumulate = 1,
                                     .wire_width = 4.0};
    gpt2_plan_t plan;

    gpt2_plan_make(&input, &plan);
    return plan;
}

/* P floats, N ranks: 16P bytes; 8P + 8P/N; 4P + 12P/N and two blocks' and wte's gradients; 16P/N
 * and two blocks and wte of both. MiB, worked out by hand without rows' rounding and with all of
 * the model sharded: the plan may be larger by the root and by that rounding, and not smaller. */
static void states_are_those_of_the_formulas(void **state)
{
    static const struct {
        const char *preset;
        int ranks;
        double mib[4];
    } CASES[] = {
        {"124M", 2, {1899, 1425, 1389, 1353}},      {"124M", 4, {1899, 1187, 1032, 878}},
        {"124M", 8, {1899, 1068, 854, 640}},        {"350M", 2, {5415, 4061, 3677, 3293}},
        {"350M", 8, {5415, 3046, 2154, 1262}},      {"774M", 4, {11812, 7382, 5563, 3744}},
        {"1558M", 2, {23768, 17826, 15397, 12967}}, {"1558M", 64, {23768, 12070, 6762, 1455}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        gpt2_layout_t *layout = layout_of(CASES[i].preset);

        for (int stage = GPT2_PLAN_NONE; stage <= GPT2_PLAN_WEIGHTS; stage++) {
            const gpt2_plan_t plan = plan_of(layout, (gpt2_plan_stage_t)stage, CASES[i].ranks);
            const double found = (double)plan.total / MIB;

            close_to(found, CASES[i].mib[stage], 0.025);
            assert_true(found > CASES[i].mib[stage] * 0.999);
        }
        gpt2_layout_destroy(layout);
    }
}

/* Of 124M on two ranks, by part. */
static void parts_shrink_in_the_order_of_the_stages(void **state)
{
    gpt2_layout_t *layout = layout_of("124M");
    const double whole = 124475904.0 * 4;
    const double slots = (2 * 7087872.0 + 38633472.0) * 4;
    gpt2_plan_t plan = plan_of(layout, GPT2_PLAN_OPTIMIZER, 2);

    (void)state;
    close_to((double)plan.weights, whole, 0.01);
    close_to((double)plan.gradients, whole, 0.01);
    close_to((double)plan.moments, whole, 0.01);
    plan = plan_of(layout, GPT2_PLAN_GRADIENTS, 2);
    close_to((double)plan.weights, whole, 0.01);
    close_to((double)plan.gradients, whole / 2 + slots, 0.01);
    plan = plan_of(layout, GPT2_PLAN_WEIGHTS, 2);
    close_to((double)plan.weights, whole / 2 + slots, 0.01);
    close_to((double)plan.moments, whole, 0.01);
    gpt2_layout_destroy(layout);
}

static double sent(const char *preset, gpt2_plan_stage_t stage, int ranks, double width)
{
    gpt2_layout_t *layout = layout_of(preset);
    const gpt2_plan_input_t input = {.layout = layout,
                                     .stage = stage,
                                     .ranks = ranks,
                                     .sharers = ranks,
                                     .accumulate = 1,
                                     .wire_width = width};
    gpt2_plan_t plan;

    gpt2_plan_make(&input, &plan);
    gpt2_layout_destroy(layout);
    return (plan.sent_gradients + plan.sent_weights) / 1e6;
}

/* (N - 1) / N of the bytes for a reduction or a gather to or of rows, twice that for an
 * all-reduce. */
static void bytes_on_the_wire_are_those_of_the_formulas(void **state)
{
    (void)state;
    close_to(sent("124M", GPT2_PLAN_NONE, 2, 4.0), 498, 0.01);
    close_to(sent("124M", GPT2_PLAN_NONE, 8, 4.0), 871, 0.01);
    close_to(sent("124M", GPT2_PLAN_NONE, 2, 2.0), 249, 0.01);
    close_to(sent("124M", GPT2_PLAN_OPTIMIZER, 8, 4.0), 871, 0.01);
    close_to(sent("1558M", GPT2_PLAN_GRADIENTS, 8, 4.0), 10904, 0.01);
    /* 16-bit gradients, 32-bit weights: three quarters. */
    close_to(sent("350M", GPT2_PLAN_OPTIMIZER, 8, 2.0), 0.75 * 2484, 0.01);
    /* Three times the model, without the second gather of the last block and of wte. */
    close_to(sent("124M", GPT2_PLAN_WEIGHTS, 2, 4.0),
             0.5 * 4 * (3 * 124.475904 - 7.087872 - 38.633472), 0.01);
    assert_true(sent("124M", GPT2_PLAN_WEIGHTS, 1, 4.0) < 1e-9);
}

/* And the rows of its own gradients that the others add up: counted between three pretended nodes,
 * 2.653 models; the rest is padding that does not travel. */
static void a_server_sends_the_model_to_every_other_rank(void **state)
{
    gpt2_layout_t *layout = layout_of("tiny");
    gpt2_plan_input_t input = {.layout = layout,
                               .ranks = 3,
                               .sharers = 3,
                               .accumulate = 1,
                               .is_server = 1,
                               .wire_width = 4.0};
    gpt2_plan_t plan;

    (void)state;
    gpt2_plan_make(&input, &plan);
    assert_true(plan.sent_weights == 2.0 * 4.0 * (double)layout->arena_count);
    close_to(plan.sent_gradients, 2.0 / 3.0 * 4.0 * (double)layout->arena_count, 1e-9);
    gpt2_layout_destroy(layout);
}

/* On four ranks, two copies: rows are averaged across, half the model a rank. */
static void copies_of_the_state_exchange_rows(void **state)
{
    gpt2_layout_t *layout = layout_of("124M");
    gpt2_plan_input_t input = {.layout = layout,
                               .stage = GPT2_PLAN_WEIGHTS,
                               .ranks = 4,
                               .sharers = 2,
                               .accumulate = 1,
                               .wire_width = 4.0};
    gpt2_plan_t plan;

    (void)state;
    gpt2_plan_make(&input, &plan);
    close_to(plan.sent_gradients / 1e6, 4 * 124.475904 * (0.5 + 0.5), 0.01);
    close_to((double)plan.total, (double)plan_of(layout, GPT2_PLAN_WEIGHTS, 2).total, 1e-9);
    gpt2_layout_destroy(layout);
}

/* Sums over several passes are kept whole, and the blocks are gathered again for each. */
static void accumulation_keeps_whole_gradients(void **state)
{
    gpt2_layout_t *layout = layout_of("124M");
    gpt2_plan_input_t input = {.layout = layout,
                               .stage = GPT2_PLAN_WEIGHTS,
                               .ranks = 2,
                               .sharers = 2,
                               .accumulate = 3,
                               .wire_width = 4.0};
    gpt2_plan_t plan;

    (void)state;
    gpt2_plan_make(&input, &plan);
    close_to((double)plan.gradients, 124475904.0 * 4, 0.01);
    close_to(plan.sent_weights, 0.5 * 4 * (38633472.0 + 3 * 23 * 7087872.0), 0.01);
    gpt2_layout_destroy(layout);
}

static void waiting_is_skew_first_and_exposed_else(void **state)
{
    gpt2_phases_t phases = {0};
    const gpt2_traffic_t before = {.wait_ns = 1000000000, .skew_ns = 500000000};
    const gpt2_traffic_t after = {.wait_ns = 4000000000, .skew_ns = 1500000000};

    (void)state;
    gpt2_phases_divide(&phases, 5.0, &before, &after, &phases.forward, 1);
    gpt2_phases_divide(&phases, 2.5, &before, &after, &phases.optimizer, 0);
    assert_true(fabs(phases.forward - 2.0) < 1e-9);
    assert_true(fabs(phases.skew - 2.0) < 1e-9);
    assert_true(fabs(phases.exposed - 3.5) < 1e-9);
    assert_true(fabs(phases.weights - 2.0) < 1e-9);
    /* A wait that seems longer than what it is a part of counts in part. */
    assert_true(fabs(phases.optimizer) < 1e-9);
}

static void sums_of_samples_do_not_depend_on_who_took_which(void **state)
{
    int32_t tokens[6][4];
    uint64_t parts;

    (void)state;
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 4; k++)
            tokens[i][k] = 10 * i + k;
    }
    parts = gpt2_sequences_hash(tokens[4], 4, 14, 2) + gpt2_sequences_hash(tokens[0], 4, 10, 4);
    assert_true(parts == gpt2_sequences_hash(tokens[0], 4, 10, 6));
    assert_true(parts != gpt2_sequences_hash(tokens[0], 4, 11, 6));
    tokens[3][2]++;
    assert_true(parts != gpt2_sequences_hash(tokens[0], 4, 10, 6));
}

/* ---- Files ---------------------------------------------------------------------------------- */

static int run_flags(const char *more)
{
    static char copy[2048];
    char *argv[64];
    int argc = 0;
    gpt2_options_t options;
    gpt2_strategy_t *strategy = NULL;
    int code;

    snprintf(copy, sizeof(copy),
             "gpt2 --strategy single --layers 1 --heads 1 --width 8 --context 8 "
             "--seq 8 --eval-batches 1 %s",
             more);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    assert_int_equal(gpt2_options_parse(argc, argv, &options, &error), 0);
    assert_int_equal(gpt2_strategy_single.create(&strategy, &error), 0);
    code = gpt2_run(&options, strategy, &error);
    assert_int_equal(strategy->ops->destroy(strategy, &error), 0);
    return code;
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);

    assert_non_null(file);
    assert_non_null(text);
    *bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

static char *read_json(const char *path)
{
    size_t bytes;
    char *text = read_file(path, &bytes);
    gpt2_json_t json = {.text = text, .bytes = bytes};

    if (gpt2_json_skip(&json) != 0 || gpt2_json_end(&json) != 0)
        fail_msg("%s is no JSON behind %zu bytes: %.60s", path, json.at, text + json.at);
    return text;
}

static void write_text(char *path, size_t room)
{
    char text[600];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 7);
    snprintf(path, room, "%s", scratch_write("text", text, sizeof(text)));
}

static void a_summary_is_json_with_every_step(void **state)
{
    char data[512];
    char flags[1800];
    char *text;

    (void)state;
    write_text(data, sizeof(data));
    snprintf(flags, sizeof(flags), "--data %s --batch 2 --steps 5 --log-every 2 --summary %s", data,
             scratch_path("summary.json"));
    assert_int_equal(run_flags(flags), 0);
    text = read_json(scratch_path("summary.json"));
    assert_non_null(strstr(text, "\"step\": [1, 2, 3, 4, 5]"));
    assert_non_null(strstr(text, "\"loss\": [null, ")); /* asked for in every second step */
    assert_non_null(strstr(text, "\"run_steps\": 5"));
    assert_non_null(strstr(text, "\"samples\": \""));
    assert_null(strstr(text, "nan"));
    free(text);
}

static void samples_are_places_of_the_order_of_training(void **state)
{
    char data[512];
    char flags[1800];
    size_t bytes;
    uint64_t *places;
    gpt2_corpus_t corpus;
    char *list[] = {data};
    const gpt2_words_t words = {list, 1};
    const gpt2_words_t none = {NULL, 0};
    int32_t inputs[8];
    int32_t targets[8];

    (void)state;
    write_text(data, sizeof(data));
    snprintf(flags, sizeof(flags), "--data %s --batch 3 --steps 40 --seed 5 --samples %s", data,
             scratch_path("samples"));
    assert_int_equal(run_flags(flags), 0);
    places = (uint64_t *)(void *)read_file(scratch_path("samples"), &bytes);
    assert_int_equal(bytes, 120 * sizeof(*places));
    assert_int_equal(gpt2_corpus_open(&words, &none, 0, &corpus, &error), 0);
    for (uint64_t i = 0; i < 120; i++) {
        int32_t at[8];
        char *text;

        assert_int_equal(gpt2_view_training(&corpus.training, 5, 8, i, 1, inputs, targets, &error),
                         0);
        text = read_file(data, &bytes);
        for (int k = 0; k < 8; k++)
            at[k] = (unsigned char)text[places[i] + (uint64_t)k];
        assert_memory_equal(at, inputs, sizeof(at));
        free(text);
    }
    gpt2_corpus_close(&corpus);
    free(places);
}

static void a_plan_needs_no_data_and_trains_nothing(void **state)
{
    char flags[1800];
    char *text;

    (void)state;
    snprintf(flags, sizeof(flags), "--plan --plan-ranks 4 --batch 8 --summary %s",
             scratch_path("plan.json"));
    assert_int_equal(run_flags(flags), 0);
    text = read_json(scratch_path("plan.json"));
    assert_non_null(strstr(text, "\"ranks\": 4"));
    assert_non_null(strstr(text, "\"plan\": {\"weights\": "));
    assert_null(strstr(text, "\"steps\""));
    free(text);
    assert_int_not_equal(run_flags("--plan --seq 9"), 0);
}

static int set_up(void **state)
{
    (void)state;
    return scratch_make() == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_those_of_the_formulas),
        cmocka_unit_test(parts_shrink_in_the_order_of_the_stages),
        cmocka_unit_test(bytes_on_the_wire_are_those_of_the_formulas),
        cmocka_unit_test(a_server_sends_the_model_to_every_other_rank),
        cmocka_unit_test(copies_of_the_state_exchange_rows),
        cmocka_unit_test(accumulation_keeps_whole_gradients),
        cmocka_unit_test(waiting_is_skew_first_and_exposed_else),
        cmocka_unit_test(sums_of_samples_do_not_depend_on_who_took_which),
        cmocka_unit_test_setup_teardown(a_summary_is_json_with_every_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(samples_are_places_of_the_order_of_training, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_plan_needs_no_data_and_trains_nothing, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
