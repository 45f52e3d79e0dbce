/*
 * test_gpt2_stream.c - many data files as one stream: how they are named, cut and counted, and what
 * is said where they are not what they should be.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/data/view.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

#define TOKENS 40000
#define BORDER ((uint64_t)1 << 31)

static gpt2_error_t error;
static const gpt2_words_t NONE = {NULL, 0};

/* A file of `count` tokens of the test's stream from `first` on; a header only where has_header. */
static const char *write_part(const char *name, uint64_t first, size_t count, int has_header)
{
    const size_t head = has_header ? 1024 : 0;
    unsigned char *content = calloc(1, head + 2 * count + 1);
    const int32_t header[3] = {20240520, 1, (int32_t)count};
    const char *path;

    assert_non_null(content);
    if (has_header) memcpy(content, header, sizeof(header));
    for (size_t i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)(gpt2_random_bits(5, 5, first + i) % 50257);

        memcpy(content + head + 2 * i, &token, 2);
    }
    path = scratch_write(name, content, head + 2 * count);
    free(content);
    return path;
}

static const char *make_folder(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s", scratch_path(name));
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static gpt2_words_t one_word(char *list[1], const char *word)
{
    list[0] = (char *)(uintptr_t)word;
    return (gpt2_words_t){list, 1};
}

static int open_word(const char *word, int is_raw, gpt2_corpus_t *out)
{
    char *list[1];
    const gpt2_words_t words = one_word(list, word);

    return gpt2_corpus_open(&words, &NONE, is_raw, out, &error);
}

static void expect_refused(const char *word, const char *text)
{
    gpt2_corpus_t corpus;

    error.text[0] = '\0';
    if (open_word(word, 0, &corpus) == 0) fail_msg("%s: accepted, expected \"%s\"", word, text);
    gpt2_corpus_close(&corpus);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, text);
}

static void expect_equal(const gpt2_view_t *a, const gpt2_view_t *b)
{
    enum { LENGTH = 100, COUNT = 900 }; /* more than two epochs */
    static int32_t x[2][COUNT * LENGTH];
    static int32_t y[2][COUNT * LENGTH];
    uint64_t prints[2];

    assert_int_equal(a->count, b->count);
    assert_int_equal(gpt2_view_training(a, 3, LENGTH, 0, COUNT, x[0], x[1], &error), 0);
    if (gpt2_view_training(b, 3, LENGTH, 0, COUNT, y[0], y[1], &error) != 0)
        fail_msg("%s", error.text);
    assert_memory_equal(x, y, sizeof(x));
    assert_int_equal(gpt2_view_fingerprint(a, &prints[0], &error), 0);
    assert_int_equal(gpt2_view_fingerprint(b, &prints[1], &error), 0);
    assert_int_equal(prints[0], prints[1]);
}

/* One file; 200 of them with 40 descriptors to spare, an empty one among them; raw. */
static void cuts_do_not_change_the_samples(void **state)
{
    enum { PARTS = 200 };
    const char *folder = make_folder("parts");
    gpt2_corpus_t whole;
    gpt2_corpus_t parts;
    gpt2_corpus_t raw;
    struct rlimit limit;
    struct rlimit low;
    uint64_t print[2];
    char pattern[600];

    (void)state;
    for (uint64_t i = 0; i < PARTS; i++) {
        uint64_t first;
        uint64_t last;
        char name[64];

        gpt2_share(TOKENS, i < 7 ? i : i - 1, PARTS - 1, &first, &last);
        if (i == 7) last = first; /* an empty file */
        (void)snprintf(name, sizeof(name), "parts/fine_train_%03d.bin", (int)i);
        (void)write_part(name, i == 7 ? 0 : first, i == 7 ? 0 : last - first, 1);
    }
    (void)snprintf(pattern, sizeof(pattern), "%s/fine_*_[0-9]*.bin", folder);
    assert_int_equal(open_word(write_part("whole.bin", 0, TOKENS, 1), 0, &whole), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = (struct rlimit){.rlim_cur = 100, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    if (open_word(pattern, 0, &parts) != 0) fail_msg("%s", error.text);
    assert_int_equal(gpt2_data_files(parts.data), PARTS);
    expect_equal(&whole.training, &parts.training);
    gpt2_corpus_close(&parts);
    if (open_word(folder, 0, &parts) != 0) fail_msg("%s", error.text);
    expect_equal(&whole.training, &parts.training);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);

    if (open_word(write_part("nano.bin", 0, TOKENS, 0), 1, &raw) != 0) fail_msg("%s", error.text);
    expect_equal(&whole.training, &raw.training);
    /* Other data have another fingerprint, of the same length as well. */
    gpt2_corpus_close(&raw);
    assert_int_equal(open_word(write_part("nano.bin", 1, TOKENS, 0), 1, &raw), 0);
    assert_int_equal(gpt2_view_fingerprint(&raw.training, &print[0], &error), 0);
    assert_int_equal(gpt2_view_fingerprint(&whole.training, &print[1], &error), 0);
    assert_true(print[0] != print[1]);
    gpt2_corpus_close(&raw);
    gpt2_corpus_close(&parts);
    gpt2_corpus_close(&whole);
}

/* Shards without a block on disk: 2^30 tokens each, the last three of each are their number. */
static void tokens_are_counted_in_64_bits(void **state)
{
    const uint64_t each = (uint64_t)1 << 30;
    const char *folder = make_folder("large");
    gpt2_corpus_t corpus;
    int32_t tokens[8];
    int beyond = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        const int32_t header[3] = {20240520, 1, 1 << 30};
        const uint16_t marks[3] = {(uint16_t)(i + 1), (uint16_t)(i + 1), (uint16_t)(i + 1)};
        char name[64];
        int fd;

        (void)snprintf(name, sizeof(name), "large/train_%d.bin", i);
        fd = open(scratch_write(name, header, sizeof(header)), O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        if (ftruncate(fd, 1024 + 2 * (off_t)each) != 0) skip(); /* a file system with a limit */
        assert_int_equal(pwrite(fd, marks, sizeof(marks), 1024 + 2 * ((off_t)each - 3)), 6);
        close(fd);
    }
    if (open_word(folder, 0, &corpus) != 0) fail_msg("%s", error.text);
    assert_true(gpt2_data_count(corpus.data) == 3 * each);
    assert_int_equal(gpt2_data_read(corpus.data, BORDER - 4, 8, tokens, &error), 0);
    assert_memory_equal(tokens, ((const int32_t[8]){0, 2, 2, 2, 0, 0, 0, 0}), sizeof(tokens));
    assert_int_equal(gpt2_data_read(corpus.data, 3 * each - 4, 4, tokens, &error), 0);
    assert_memory_equal(tokens, ((const int32_t[4]){0, 3, 3, 3}), 4 * sizeof(*tokens));
    for (uint64_t i = 0; i < 64; i++)
        beyond += gpt2_view_position(&corpus.training, 1, 1024, i) > BORDER;
    assert_true(beyond > 5 && beyond < 40); /* a quarter of them, by chance */
    gpt2_corpus_close(&corpus);
    /* One file cannot say that it has as many. */
    assert_int_equal(truncate(scratch_path("large/train_0.bin"), 1024 + 2 * (off_t)BORDER), 0);
    expect_refused(folder, "2147483648 tokens, but its header counts in 32 bits");
}

static void folders_have_files_for_validation(void **state)
{
    const char *folder = make_folder("corpus");
    gpt2_corpus_t corpus;
    char *list[2];
    char pattern[600];
    gpt2_words_t words;

    (void)state;
    expect_refused(folder, "a folder without *.bin or *.txt");
    (void)write_part("corpus/fineweb_val_000000.bin", 0, 700, 1);
    expect_refused(folder, "all 1 files are for validation");
    (void)write_part("corpus/fineweb_train_000001.bin", 0, 500, 1);
    (void)write_part("corpus/interval.bin", 500, 300, 1);
    (void)scratch_write("corpus/.hidden.bin", "x", 1);
    (void)scratch_write("corpus/readme.txt", "x", 1);
    if (open_word(folder, 0, &corpus) != 0) fail_msg("%s", error.text);
    assert_int_equal(corpus.training.count, 800);
    assert_int_equal(corpus.validation.count, 700);
    gpt2_corpus_close(&corpus);
    /* --val says it itself; a folder there means its files for validation. */
    words = one_word(list, folder);
    assert_int_equal(gpt2_corpus_open(&words, &words, 0, &corpus, &error), 0);
    assert_int_equal(corpus.training.count, 800);
    assert_int_equal(corpus.validation.count, 700);
    gpt2_corpus_close(&corpus);
    /* A pattern is taken by its word. */
    (void)snprintf(pattern, sizeof(pattern), "%s/f*.bin", folder);
    assert_int_equal(open_word(pattern, 0, &corpus), 0);
    assert_int_equal(corpus.training.count + corpus.validation.count, 1200);
    gpt2_corpus_close(&corpus);
    list[1] = pattern;
    words.count = 2;
    assert_int_equal(gpt2_corpus_open(&words, &NONE, 0, &corpus, &error), -1);
    assert_non_null(strstr(error.text, "the same file as"));
    gpt2_corpus_close(&corpus);
    (void)snprintf(pattern, sizeof(pattern), "%s/*", folder);
    expect_refused(pattern, "fineweb_train_000001.bin is tokens, but ");
    expect_refused("no_*.bin", "no_*.bin: no file matches");
    expect_refused("a.bin,b.bin", "several files are separated by blanks");
}

static void foreign_files_are_told_as_what_they_are(void **state)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";

    (void)state;
    expect_refused(scratch_write("p.bin", pointer, sizeof(pointer) - 1), "run git lfs pull");
    expect_refused(scratch_write("p.txt", pointer, sizeof(pointer) - 1), "run git lfs pull");
    expect_refused(scratch_write("z.bin", "PK\003\004............", 16), "torch.save()");
    expect_refused(scratch_write("k.bin", "\x80\004\x95............", 15), "pickled");
    expect_refused(scratch_write("l.bin", "\xa1\xd9\x34\x01\x07\0\0\0........", 16),
                   "tokens of Llama 3, of 32 bits");
    expect_refused(scratch_write("n.bin", "\x93NUMPY..........", 16), "numpy.save()");
    expect_refused(write_part("raw.bin", 0, 50, 0), "as nanoGPT writes them: --raw-tokens");
}

/* Reads, changes a file, reads again. */
static void files_that_change_meanwhile_are_told(void **state)
{
    const char *path;
    gpt2_corpus_t corpus;
    int32_t token;

    (void)state;
    path = write_part("change.bin", 0, 500, 1);
    assert_int_equal(open_word(path, 0, &corpus), 0);
    assert_int_equal(gpt2_data_read(corpus.data, 7, 1, &token, &error), 0);
    assert_int_equal(truncate(path, 1024 + 20), 0);
    assert_int_equal(gpt2_data_read(corpus.data, 499, 1, &token, &error), -1);
    assert_non_null(strstr(error.text, "change.bin: 2024 bytes long when the run began, 1044 now"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(gpt2_data_read(corpus.data, 7, 1, &token, &error), -1);
    assert_non_null(strstr(error.text, "removed or replaced"));
    gpt2_corpus_close(&corpus);

    path = write_part("change.bin", 0, 500, 1);
    assert_int_equal(open_word(path, 0, &corpus), 0);
    assert_int_equal(unlink(path), 0); /* before it is opened for good */
    assert_int_equal(gpt2_data_read(corpus.data, 7, 1, &token, &error), -1);
    assert_non_null(strstr(error.text, "it was there when the run began, now: No such file"));
    gpt2_corpus_close(&corpus);

    /* Rewritten in place with a token that the model has not. */
    path = write_part("change.bin", 0, 500, 1);
    assert_int_equal(open_word(path, 0, &corpus), 0);
    assert_int_equal(gpt2_data_check(corpus.data, 50257, &error), 0);
    {
        const int fd = open(path, O_WRONLY | O_CLOEXEC);

        assert_int_equal(pwrite(fd, "\xff\xff", 2, 1024 + 2 * 33), 2);
        close(fd);
    }
    assert_int_equal(gpt2_data_read(corpus.data, 32, 1, &token, &error), 0);
    assert_int_equal(gpt2_data_read(corpus.data, 33, 1, &token, &error), -1);
    assert_non_null(strstr(error.text, "token 33 is 65535, outside the vocabulary of 50257"));
    gpt2_corpus_close(&corpus);
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
        cmocka_unit_test_setup_teardown(cuts_do_not_change_the_samples, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_are_counted_in_64_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_have_files_for_validation, setup, teardown),
        cmocka_unit_test_setup_teardown(foreign_files_are_told_as_what_they_are, setup, teardown),
        cmocka_unit_test_setup_teardown(files_that_change_meanwhile_are_told, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
