/*
 * test_gpt2_data.c - data files, good and bad, and the order of sequences.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/data/view.h"
#include "examples/gpt2/train/options.h"
#include "examples/gpt2/base/random.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

static gpt2_error_t error;

/* A stream of one file. */
static int open_one(const char *path, gpt2_data_t **out)
{
    char *list[] = {(char *)(uintptr_t)path};
    const gpt2_words_t words = {list, 1};

    return gpt2_data_open(&words, 0, out, &error);
}

/* Writes a token file whose header says `count`, with `there` tokens behind it. */
static const char *write_tokens(const char *name, int32_t magic, int32_t version, int32_t count,
                                size_t there, uint16_t last)
{
    size_t bytes = 1024 + 2 * there;
    unsigned char *content = calloc(1, bytes);
    int32_t header[3] = {magic, version, count};
    const char *path;

    assert_non_null(content);
    memcpy(content, header, sizeof(header));
    for (size_t i = 0; i < there; i++) {
        uint16_t token = (uint16_t)(i + 1 == there ? last : i % 100);
        memcpy(content + 1024 + 2 * i, &token, 2);
    }
    path = scratch_write(name, content, bytes);
    free(content);
    return path;
}

static void expect_open_fails(const char *path, const char *text)
{
    gpt2_data_t *data = NULL;

    assert_int_equal(open_one(path, &data), -1);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, text);
    if (strstr(error.text, path) == NULL) fail_msg("\"%s\" lacks the path", error.text);
}

static void bad_files_are_refused_with_their_values(void **state)
{
    gpt2_data_t *data;

    (void)state;
    expect_open_fails(scratch_path("missing.txt"), "No such file");
    expect_open_fails(scratch_path("."), "not a regular file");
    expect_open_fails(scratch_write("empty.txt", "", 0), "empty");
    expect_open_fails(scratch_write("short.bin", "ab", 2), "magic");
    expect_open_fails(write_tokens("magic.bin", 7, 1, 10, 10, 0), "magic 7, expected 20240520");
    expect_open_fails(write_tokens("version.bin", 20240520, 7, 10, 10, 0), "version 7");
    expect_open_fails(write_tokens("cut.bin", 20240520, 1, 10, 9, 0),
                      "1042 bytes long, but its header says 10 tokens = 1044 bytes");
    expect_open_fails(write_tokens("negative.bin", 20240520, 1, -5, 9, 0), "-5 tokens");

    assert_int_equal(open_one(write_tokens("vocab.bin", 20240520, 1, 10, 10, 50257), &data), 0);
    assert_int_equal(gpt2_data_is_text(data), 0);
    assert_int_equal(gpt2_data_check(data, 50258, &error), 0);
    assert_int_equal(gpt2_data_check(data, 50257, &error), -1);
    assert_non_null(strstr(error.text, "token 9 is 50257, outside the vocabulary of 50257"));
    gpt2_data_close(data);

    assert_int_equal(open_one(scratch_write("a.txt", "ab\xff", 3), &data), 0);
    assert_int_equal(gpt2_data_check(data, 128, &error), -1);
    assert_non_null(strstr(error.text, "byte 2 is 255"));
    gpt2_view_t all = gpt2_view_all(data);
    assert_int_equal(gpt2_view_check(&all, "the training part", 3, &error), -1);
    assert_non_null(strstr(error.text, "has 3 tokens, a sequence of 3 needs 4"));
    assert_int_equal(gpt2_view_check(&all, "the training part", 2, &error), 0);
    gpt2_data_close(data);
}

static void shares_are_contiguous_and_complete(void **state)
{
    (void)state;
    for (uint64_t count = 0; count < 40; count++) {
        for (uint64_t parts = 1; parts < 9; parts++) {
            uint64_t expected = 0;

            for (uint64_t i = 0; i < parts; i++) {
                uint64_t first;
                uint64_t last;

                gpt2_share(count, i, parts, &first, &last);
                assert_int_equal(first, expected);
                assert_true(last - first >= count / parts && last - first <= count / parts + 1);
                expected = last;
            }
            assert_int_equal(expected, count);
        }
    }
}

static void permutation_visits_everything_once(void **state)
{
    static const uint64_t counts[] = {1, 2, 3, 10, 97, 1000};

    (void)state;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        unsigned char *seen = calloc(1, counts[c]);

        assert_non_null(seen);
        for (uint64_t i = 0; i < counts[c]; i++) {
            uint64_t to = gpt2_random_permute(4, 2, i, counts[c]);
            assert_true(to < counts[c]);
            assert_int_equal(seen[to], 0);
            seen[to] = 1;
        }
        free(seen);
    }
}

/* A text in which every place can be recognized. */
static gpt2_data_t *numbered_text(size_t bytes)
{
    gpt2_data_t *data;
    unsigned char *text = malloc(bytes);

    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = (unsigned char)(gpt2_random_bits(1, 2, i));
    assert_int_equal(open_one(scratch_write("numbered.txt", text, bytes), &data), 0);
    free(text);
    return data;
}

static void batches_do_not_depend_on_the_split(void **state)
{
    enum { LENGTH = 16, BATCH = 12, STEPS = 30 };
    gpt2_data_t *data = numbered_text(1000);
    gpt2_view_t view = gpt2_view_all(data);
    int32_t whole[2][BATCH * LENGTH];
    int32_t parts[2][BATCH * LENGTH];

    (void)state;
    /* 61 sequences an epoch: steps cross its end. */
    assert_int_equal(gpt2_view_sequences(&view, LENGTH), 61);
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_int_equal(
            gpt2_view_training(&view, 9, LENGTH, step * BATCH, BATCH, whole[0], whole[1], &error),
            0);
        for (uint64_t ranks = 1; ranks <= 7; ranks++) {
            for (uint64_t rank = 0; rank < ranks; rank++) {
                uint64_t first;
                uint64_t last;

                gpt2_share(BATCH, rank, ranks, &first, &last);
                assert_int_equal(gpt2_view_training(&view, 9, LENGTH, step * BATCH + first,
                                                    (int)(last - first), parts[0] + first * LENGTH,
                                                    parts[1] + first * LENGTH, &error),
                                 0);
            }
            assert_memory_equal(whole, parts, sizeof(whole));
        }
        for (int i = 0; i < BATCH * LENGTH - 1; i++) {
            if (i % LENGTH != LENGTH - 1) assert_int_equal(whole[1][i], whole[0][i + 1]);
        }
    }
    gpt2_data_close(data);
}

static void validation_covers_the_view_evenly(void **state)
{
    gpt2_data_t *data = numbered_text(500);
    gpt2_view_t all = gpt2_view_all(data);
    gpt2_view_t training;
    gpt2_view_t view;
    int32_t inputs[8];
    int32_t targets[8];

    (void)state;
    gpt2_view_split(&all, 0.1, &training, &view);
    assert_int_equal(training.count, 450);
    assert_int_equal(view.first, 450);
    assert_int_equal(view.count, 50);
    /* The last of them ends with the file's last byte. */
    assert_int_equal(gpt2_view_validation(&view, 8, 5, 4, 1, inputs, targets, &error), 0);
    assert_int_equal(targets[7], (unsigned char)gpt2_random_bits(1, 2, 499));
    assert_int_equal(gpt2_view_validation(&view, 8, 5, 0, 1, inputs, targets, &error), 0);
    assert_int_equal(inputs[0], (unsigned char)gpt2_random_bits(1, 2, 450));
    gpt2_data_close(data);
}

static void entropy_of_a_known_text(void **state)
{
    gpt2_data_t *data;
    double unigram;
    double bigram;
    char text[1001];

    (void)state;
    for (int i = 0; i < 1000; i++)
        text[i] = "ab"[i % 2];
    assert_int_equal(open_one(scratch_write("ab.txt", text, 1000), &data), 0);
    gpt2_view_t view = gpt2_view_all(data);
    assert_int_equal(gpt2_view_entropy(&view, &unigram, &bigram, &error), 0);
    assert_true(fabs(unigram - log(2.0)) < 1e-9);
    assert_true(bigram < 1e-9);
    gpt2_data_close(data);
}

/* Parses "a b c" and completes the options; -1 with the error. */
static int parse(const char *line, gpt2_options_t *options, gpt2_shape_t *shape)
{
    static char copy[256];
    static char name[] = "gpt2";
    static char *argv[32] = {name}; /* the options borrow it */
    int argc = 1;

    (void)strncpy(copy, line, sizeof(copy) - 1);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    if (gpt2_options_parse(argc, argv, options, &error) != 0) return -1;
    return gpt2_options_complete(options, 1, shape, &error);
}

static void bad_flags_are_refused_with_what_would_be_right(void **state)
{
    static const char *const cases[][2] = {
        {"--stepz 3", "--stepz: no such flag, did you mean --steps?"},
        {"--steps", "--steps needs a value"},
        {"--steps x", "--steps x: not a whole number"},
        {"--steps 3x", "--steps 3x: not a whole number"},
        {"--batch 0", "--batch 0: out of range 1 to 1048576"},
        {"--lr nan", "--lr nan: out of range 0 to 10"},
        {"--lr=-1", "--lr -1: out of range"},
        {"--beta1 1", "out of range"},
        {"--preset tny", "did you mean tiny"},
        {"--wire fp15", "did you mean fp16"},
        {"--gemm bla", "did you mean blas"},
        {"--seq 65", "--seq 65 is above the context of 64"},
        {"--accumulate 9 --batch 8", "--accumulate 9 is above the --batch of 8"},
        {"--width 65", "--width 65 is not a multiple of --heads 2"},
        {"--resume auto", "--out, which is missing"},
        {"--help=1", "--help takes no value"},
        {"--data", "--data needs a value"},
        {"--data --steps 3", "--data needs a value"},
        {"--data=a.bin b.bin",
         "b.bin: stands behind no flag that takes it (files to train on: --data"},
        {"kjv.txt", "kjv.txt: stands behind no flag"},
        {"--overwrite", "--out holds, which is missing"},
        {"--overwrite --out r --resume auto", "--resume auto goes on with"},
    };
    gpt2_options_t options;
    gpt2_shape_t shape;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (parse(cases[i][0], &options, &shape) == 0) fail_msg("%s passed", cases[i][0]);
        if (strstr(error.text, cases[i][1]) == NULL) {
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i][0], error.text, cases[i][1]);
        }
    }
    assert_int_equal(parse("--preset quick --steps=7 --lr 1e-4", &options, &shape), 0);
    assert_int_equal(options.steps, 7);
    assert_int_equal(options.warmup, 0); /* a tenth of the steps at most */
    assert_true(options.lr == 1e-4);
    assert_int_equal(shape.vocab, 256);
    assert_int_equal(parse("--preset 124M", &options, &shape), 0);
    assert_int_equal(gpt2_options_complete(&options, 0, &shape, &error), 0);
    assert_int_equal(shape.vocab_padded, 50304);
}

static void flags_given_twice_and_lists_are_understood(void **state)
{
    gpt2_options_t options;
    gpt2_shape_t shape;
    char text[64];

    (void)state;
    assert_int_equal(parse("--data a_1.bin a_2.bin a_3.bin --seed 4 --val v.bin", &options, &shape),
                     0);
    assert_int_equal(options.data.count, 3);
    assert_string_equal(options.data.list[2], "a_3.bin");
    assert_int_equal(options.val.count, 1);
    assert_string_equal(options.repeated, "");
    assert_int_equal(options.seed_is_default, 0);
    gpt2_words_describe(&options.data, text, sizeof(text));
    assert_string_equal(text, "a_1.bin and 2 more");

    /* The last one counts, as behind a script's own flags, and is told where it differs. */
    assert_int_equal(
        parse("--steps 4 --lr=1e-3 --data=a --steps=9 --data b c --lr 1e-3 --plan --plan", &options,
              &shape),
        0);
    assert_int_equal(options.steps, 9);
    assert_int_equal(options.data.count, 2);
    assert_int_equal(options.seed, 1);
    assert_int_equal(options.seed_is_default, 1);
    assert_string_equal(options.repeated, "--steps is given twice, 4 and 9: the last one counts\n"
                                          "--data is given twice, a and b and 1 more: the last one "
                                          "counts\n");
}

static int setup(void **state)
{
    (void)state;
    (void)scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused_with_their_values),
        cmocka_unit_test(shares_are_contiguous_and_complete),
        cmocka_unit_test(permutation_visits_everything_once),
        cmocka_unit_test(batches_do_not_depend_on_the_split),
        cmocka_unit_test(validation_covers_the_view_evenly),
        cmocka_unit_test(entropy_of_a_known_text),
        cmocka_unit_test(bad_flags_are_refused_with_what_would_be_right),
        cmocka_unit_test(flags_given_twice_and_lists_are_understood),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
