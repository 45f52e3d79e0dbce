/*
 * test_gpt2_tokens.c - GPT-2's byte pairs: classes of characters, pieces, merges against a plain
 * loop, and what is said of files that are not what they should be. tokens_peers.py holds the same
 * code against tiktoken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/base/utf8.h"
#include "examples/gpt2/data/json.h"
#include "examples/gpt2/data/view.h"
#include "examples/gpt2/tokens/encode.h"
#include "examples/gpt2/tokens/split.h"
#include "examples/gpt2/tokens/tokenize.h"
#include "examples/gpt2/tokens/unicode.h"
#include "tests/gpt2/scratch.h"

static gpt2_error_t error;

static gpt2_vocabulary_t *open_fixture(void)
{
    char *list[] = {(char *)(uintptr_t)GPT2_FIXTURES "/tokens"};
    const gpt2_words_t words = {list, 1};
    gpt2_vocabulary_t *vocabulary = NULL;

    if (gpt2_vocabulary_open(&words, &vocabulary, &error) != 0) fail_msg("%s", error.text);
    return vocabulary;
}

/* As many as Unicode 16.0 has, by tiktoken 0.14's count. */
static void classes_are_those_of_unicode(void **state)
{
    size_t counts[4] = {0};

    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++)
        counts[gpt2_char_class(code)]++;
    assert_int_equal(counts[GPT2_CHAR_LETTER], 141028);
    assert_int_equal(counts[GPT2_CHAR_NUMBER], 1911);
    assert_int_equal(counts[GPT2_CHAR_SPACE], 25);
    assert_int_equal(gpt2_char_class(0xE9), GPT2_CHAR_LETTER);  /* e acute */
    assert_int_equal(gpt2_char_class(0x301), GPT2_CHAR_OTHER);  /* a combining mark */
    assert_int_equal(gpt2_char_class(0xBD), GPT2_CHAR_NUMBER);  /* one half */
    assert_int_equal(gpt2_char_class(0x200B), GPT2_CHAR_OTHER); /* a space without width */
    assert_int_equal(gpt2_char_class(0x3000), GPT2_CHAR_SPACE); /* an ideographic one */
    assert_int_equal(gpt2_char_class(0x20000), GPT2_CHAR_LETTER);
}

static void utf8_is_valid_or_refused(void **state)
{
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80",
                                      "\xe2\x82",
                                      "\xc3("};
    unsigned char text[GPT2_UTF8_BYTES_MAX];

    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code += code < 0x900 ? 1 : 37) {
        uint32_t back = 0;
        const size_t bytes = gpt2_utf8_put(text, code);
        const int is_half = code >= 0xD800 && code <= 0xDFFF;

        assert_int_equal(gpt2_utf8_get(text, bytes, &back), is_half ? 0 : bytes);
        if (!is_half) assert_int_equal(back, code);
        assert_int_equal(gpt2_utf8_get(text, bytes - (bytes > 1), &back), bytes > 1 ? 0 : 1);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint32_t code;

        assert_int_equal(gpt2_utf8_get((const unsigned char *)bad[i], strlen(bad[i]), &code), 0);
    }
}

/* text's pieces with a bar between them. */
static void expect_pieces(const char *text, const char *expected)
{
    char joined[256] = "";
    const size_t bytes = strlen(text);
    size_t used = 0;

    for (size_t at = 0; at < bytes;) {
        const size_t length = gpt2_split((const unsigned char *)text + at, bytes - at, 1);

        assert_in_range(length, 1, bytes - at);
        used += (size_t)snprintf(joined + used, sizeof(joined) - used, "%s%.*s", at == 0 ? "" : "|",
                                 (int)length, text + at);
        at += length;
    }
    assert_string_equal(joined, expected);
}

/* What the expression gives, by Python's module regex. */
static void pieces_are_those_of_the_expression(void **state)
{
    (void)state;
    expect_pieces("Hello world", "Hello| world");
    expect_pieces("it's we'll I've you're don't they'd I'm",
                  "it|'s| we|'ll| I|'ve| you|'re| don|'t| they|'d| I|'m");
    expect_pieces("'x 'S ''s '", "'|x| '|S| ''|s| '");
    expect_pieces("  two   blanks ", " | two|  | blanks| ");
    expect_pieces("a\n\nb\n c \n", "a|\n|\n|b|\n| c| \n");
    expect_pieces("\t\tx", "\t|\t|x");
    expect_pieces(" \xc2\xa0x", " |\xc2\xa0|x");
    expect_pieces("\xe3\x80\x80\xe3\x80\x80.", "\xe3\x80\x80|\xe3\x80\x80|.");
    expect_pieces("abc123 456,789.", "abc|123| 456|,|789|.");
    expect_pieces("na\xc3\xafve \xc2\xbdx", "na\xc3\xafve| \xc2\xbd|x");
    expect_pieces("cafe\xcc\x81s", "cafe|\xcc\x81|s");
    expect_pieces(" \x80\xff! \xf0\x9f\x98\x80", " \x80\xff!| \xf0\x9f\x98\x80");
    expect_pieces("\x1c\x1d", "\x1c\x1d");
}

/* The algorithm as OpenAI's encoder.py has it: the pair of lowest rank in the whole piece, all its
 * occurrences from the left, and again. */
static size_t plain_merge(const gpt2_vocabulary_t *vocabulary, const unsigned char *piece,
                          size_t bytes, int32_t *tokens)
{
    size_t count = bytes;

    for (size_t i = 0; i < bytes; i++)
        tokens[i] = gpt2_vocabulary_byte(vocabulary, piece[i]);
    for (;;) {
        uint32_t lowest = UINT32_MAX;
        uint32_t rank;
        int32_t merged;
        size_t out = 0;

        for (size_t i = 0; i + 1 < count; i++) {
            if (gpt2_vocabulary_merge(vocabulary, tokens[i], tokens[i + 1], &rank, &merged) &&
                rank < lowest) {
                lowest = rank;
            }
        }
        if (lowest == UINT32_MAX) return count;
        for (size_t i = 0; i < count; out++) {
            if (i + 1 < count &&
                gpt2_vocabulary_merge(vocabulary, tokens[i], tokens[i + 1], &rank, &merged) &&
                rank == lowest) {
                tokens[out] = merged;
                i += 2;
            } else {
                tokens[out] = tokens[i++];
            }
        }
        count = out;
    }
}

/* Words, blanks, other characters and stray bytes. */
static size_t draw_text(uint64_t seed, unsigned char *text, size_t room)
{
    static const char *const words[] = {
        "the",      " rank",   " tensor's", "  ",      "\n\n",
        " 2026",    "''re",    " and",      "ability", "\xe4\xbd\xa0\xe5\xa5\xbd",
        "\xc2\xa0", "aaaaaaa", " . . ."};
    const size_t count = sizeof(words) / sizeof(words[0]);
    size_t used = 0;

    for (uint64_t i = 0; used + 16 < room; i++) {
        const uint64_t bits = gpt2_random_bits(seed, 7, i);
        const char *word = words[bits % count];

        if (bits >> 32 & 3) {
            memcpy(text + used, word, strlen(word));
            used += strlen(word);
        } else {
            text[used++] = (unsigned char)(bits >> 40);
        }
    }
    return used;
}

static void tokens_are_those_of_the_plain_loop_and_give_the_bytes_back(void **state)
{
    enum { ROOM = 20000 };
    static unsigned char text[ROOM];
    static unsigned char back[ROOM];
    static int32_t expected[ROOM];
    gpt2_vocabulary_t *vocabulary = open_fixture();
    gpt2_encoder_t *encoder;

    (void)state;
    assert_int_equal(gpt2_vocabulary_count(vocabulary), 512);
    assert_int_equal(gpt2_vocabulary_end(vocabulary), 511);
    assert_int_equal(gpt2_encoder_create(vocabulary, &encoder, &error), 0);
    for (uint64_t seed = 0; seed < 4; seed++) {
        const size_t bytes = draw_text(seed, text, ROOM);
        gpt2_tokens_t tokens = {NULL, 0, 0};
        size_t count = 0;
        size_t used;
        size_t given = 0;

        for (size_t at = 0; at < bytes;) {
            const size_t length = gpt2_split(text + at, bytes - at, 1);

            count += plain_merge(vocabulary, text + at, length, expected + count);
            at += length;
        }
        /* In one go, and as a stream of which ever more is known. */
        assert_int_equal(gpt2_encode(encoder, text, bytes, 1, &used, &tokens, &error), 0);
        assert_int_equal(used, bytes);
        assert_int_equal(tokens.count, count);
        assert_memory_equal(tokens.list, expected, count * sizeof(*expected));
        tokens.count = 0;
        for (size_t known = 0; known <= bytes; known += seed + 1) {
            const size_t to = known + seed + 1 > bytes ? bytes : known;

            assert_int_equal(
                gpt2_encode(encoder, text + given, to - given, to == bytes, &used, &tokens, &error),
                0);
            given += used;
        }
        assert_int_equal(given, bytes);
        assert_int_equal(tokens.count, count);
        assert_memory_equal(tokens.list, expected, count * sizeof(*expected));
        given = 0;
        for (size_t i = 0; i < count; i++) {
            size_t length;
            const unsigned char *piece = gpt2_vocabulary_bytes(vocabulary, expected[i], &length);

            memcpy(back + given, piece, length);
            given += length;
        }
        assert_int_equal(given, bytes);
        assert_memory_equal(back, text, bytes);
        free(tokens.list);
    }
    gpt2_encoder_destroy(encoder);
    gpt2_vocabulary_close(vocabulary);
}

/* A run of a million bytes that nothing cuts takes no time to speak of: the plain loop would take
 * a day. */
static void a_long_piece_merges_too(void **state)
{
    enum { BYTES = 1000000 };
    int32_t expected[50];
    gpt2_vocabulary_t *vocabulary = open_fixture();
    gpt2_encoder_t *encoder;
    gpt2_tokens_t tokens = {NULL, 0, 0};
    unsigned char *text = malloc(BYTES);
    size_t used;

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = (unsigned char)"there"[i % 5];
    assert_int_equal(gpt2_encoder_create(vocabulary, &encoder, &error), 0);
    assert_int_equal(gpt2_encode(encoder, text, BYTES, 1, &used, &tokens, &error), 0);
    assert_int_equal(used, BYTES);
    assert_int_equal(tokens.count, plain_merge(vocabulary, text, 50, expected) * (BYTES / 50));
    assert_memory_equal(tokens.list, expected, 20 * sizeof(*expected));
    free(tokens.list);
    free(text);
    gpt2_encoder_destroy(encoder);
    gpt2_vocabulary_close(vocabulary);
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* A vocabulary of the 256 bytes and "ab", with `members` behind it, and these merges. */
static void write_vocabulary(const char *members, const char *merges)
{
    static char text[16384];
    int used = snprintf(text, sizeof(text), "{");
    int next = 256;

    for (int i = 0; i < 256; i++) {
        const int is_plain = (i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;

        used += snprintf(text + used, sizeof(text) - (size_t)used, "\"\\u%04X\": %d, ",
                         is_plain ? i : next++, i);
    }
    used += snprintf(text + used, sizeof(text) - (size_t)used, "\"ab\": 256%s}", members);
    (void)scratch_write("vocab.json", text, (size_t)used);
    (void)scratch_write("merges.txt", merges, strlen(merges));
}

static void vocabulary_refused(const char *members, const char *merges, const char *text)
{
    char *list[] = {(char *)(uintptr_t)scratch_path("vocab.json"),
                    (char *)(uintptr_t)scratch_path("merges.txt")};
    const gpt2_words_t words = {list, 2};
    gpt2_vocabulary_t *vocabulary;

    write_vocabulary(members, merges);
    error.text[0] = '\0';
    if (gpt2_vocabulary_open(&words, &vocabulary, &error) == 0) fail_msg("accepted: %s", text);
    if (strstr(error.text, text) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, text);
}

static void files_are_checked_against_each_other(void **state)
{
    char *list[] = {(char *)(uintptr_t)scratch_path("merges.txt"),
                    (char *)(uintptr_t)scratch_path("vocab.json")};
    const gpt2_words_t words = {list, 2};
    const gpt2_words_t one = {list, 1};
    gpt2_vocabulary_t *vocabulary;
    uint32_t rank = 7;
    int32_t merged = 0;

    (void)state;
    write_vocabulary("", "#version: 0.2\r\na b\r\n");
    if (gpt2_vocabulary_open(&words, &vocabulary, &error) != 0) fail_msg("%s", error.text);
    assert_int_equal(gpt2_vocabulary_merge(vocabulary, 'a', 'b', &rank, &merged), 1);
    assert_int_equal(rank, 0);
    assert_int_equal(merged, 256);
    assert_int_equal(gpt2_vocabulary_end(vocabulary), -1);
    gpt2_vocabulary_close(vocabulary);

    assert_int_equal(gpt2_vocabulary_open(&one, &vocabulary, &error), -1);
    assert_non_null(strstr(error.text, "expected a folder with vocab.json and merges.txt"));
    vocabulary_refused("", "a b\nab c\n", "line 2, \"ab c\", does not join two tokens to a third");
    vocabulary_refused("", "a b c\n", "line 1, \"a b c\", does not join");
    vocabulary_refused("", "ab\n", "line 1, \"ab\", does not join");
    vocabulary_refused(", \"cd\": 300", "", "\"cd\" has number 300, but there are 258 tokens");
    vocabulary_refused(", \"cd\": 256", "", "two tokens have number 256, \"cd\" is one");
    vocabulary_refused(", \"ab\": 257", "", "tokens 256 and 257 are the same");
    vocabulary_refused(", \"\\u4f60\": 257", "", "has a character that stands for no byte");
    vocabulary_refused(", \"\": 257", "", "has a character that stands for no byte");
    vocabulary_refused(", \"cd\": \"x\"", "", "not a token and its number");
    vocabulary_refused(", \"cd\"", "", "not a JSON object of tokens and their numbers");
}

/* One byte is another: refused, or a vocabulary that gives every text back. */
static void a_damaged_file_is_refused_or_works(void **state)
{
    static char whole[2][16384];
    const char *names[2] = {"vocab.json", "merges.txt"};
    size_t sizes[2];
    size_t opened = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[512];
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/tokens/%s", GPT2_FIXTURES, names[i]);
        file = fopen(path, "rb");
        assert_non_null(file);
        sizes[i] = fread(whole[i], 1, sizeof(whole[i]), file);
        (void)fclose(file);
    }
    for (uint64_t i = 0; i < 200; i++) {
        static const char text[] = "the rank's tensors  and 12";
        const int which = (int)(i % 2);
        const size_t at = (size_t)(gpt2_random_bits(9, 0, i) % sizes[which]);
        const char kept = whole[which][at];
        char *list[2];
        const gpt2_words_t words = {list, 2};
        gpt2_vocabulary_t *vocabulary;
        gpt2_encoder_t *encoder;
        gpt2_tokens_t tokens = {NULL, 0, 0};
        size_t used;
        size_t bytes = 0;

        whole[which][at] = (char)gpt2_random_bits(9, 1, i);
        for (int k = 0; k < 2; k++)
            list[k] = (char *)(uintptr_t)scratch_write(names[k], whole[k], sizes[k]);
        whole[which][at] = kept;
        if (gpt2_vocabulary_open(&words, &vocabulary, &error) != 0) continue;
        opened++;
        assert_int_equal(gpt2_encoder_create(vocabulary, &encoder, &error), 0);
        assert_int_equal(gpt2_encode(encoder, text, strlen(text), 1, &used, &tokens, &error), 0);
        for (size_t k = 0; k < tokens.count; k++) {
            size_t length;

            assert_memory_equal(gpt2_vocabulary_bytes(vocabulary, tokens.list[k], &length),
                                text + bytes, 1);
            bytes += length;
        }
        assert_int_equal(bytes, strlen(text));
        free(tokens.list);
        gpt2_encoder_destroy(encoder);
        gpt2_vocabulary_close(vocabulary);
    }
    assert_in_range(opened, 1, 199);
}

static void json_strings_are_text(void **state)
{
    static const struct {
        const char *json;
        const char *text; /* NULL: refused */
    } cases[] = {{"\"\\u00e4\\n\\\"\\/\"", "\xc3\xa4\n\"/"},
                 {"\"\\uD83D\\uDE00!\"", "\xf0\x9f\x98\x80!"},
                 {"\"\\uD83D\\u0041\"", "\xef\xbf\xbd"
                                        "A"},
                 {"\"\\uDE00\"", "\xef\xbf\xbd"},
                 {"\"\\uD83D\"", "\xef\xbf\xbd"},
                 {"\"0123456789abcdefgh\"", "0123456789abcde"},
                 {"\"0123456789abcd\xc3\xa4\"", "0123456789abcd\xc3"},
                 {"\"0123456789abcd\\u00e4x\"", "0123456789abcd"},
                 {"\"\\u00g4\"", NULL},
                 {"\"\\u00\"", NULL},
                 {"\"\\x\"", NULL}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gpt2_json_t json = {cases[i].json, strlen(cases[i].json), 0, 0};
        char out[16];
        const int code = gpt2_json_string(&json, out, sizeof(out));

        assert_int_equal(code, cases[i].text == NULL ? -1 : 0);
        if (code == 0) assert_string_equal(out, cases[i].text);
    }
}

/* ---- The command ---------------------------------------------------------------------------- */

static int run(const char *const *words, size_t count)
{
    char *argv[16];

    memcpy(argv, words, count * sizeof(*argv));
    return gpt2_tokenize((int)count, argv);
}

static int tokenize(const char *text, const char *out, const char *more, const char *value)
{
    const char *words[] = {"tokenize", text, "--tokenizer", GPT2_FIXTURES "/tokens",
                           "-o",       out,  more,          value};

    return run(words, more == NULL ? 6 : value == NULL ? 7 : 8);
}

/* All tokens that a file or a pattern holds. */
static size_t read_back(const char *path, int32_t *tokens)
{
    char *list[] = {(char *)(uintptr_t)path};
    const gpt2_words_t words = {list, 1};
    gpt2_words_t paths;
    gpt2_data_t *data;
    size_t count;

    assert_int_equal(gpt2_paths_expand(&words, 0, &paths, NULL, &error), 0);
    if (gpt2_data_open(&paths, 0, &data, &error) != 0) fail_msg("%s", error.text);
    count = (size_t)gpt2_data_count(data);
    assert_int_equal(gpt2_data_read(data, 0, count, tokens, &error), 0);
    gpt2_data_close(data);
    gpt2_paths_free(&paths);
    return count;
}

static void the_command_writes_documents_and_shards(void **state)
{
    static const char text[] = "the rank\0\0 the tensor\0x";
    static int32_t whole[64];
    static int32_t cut[64];
    const char *in = scratch_write("in.txt", text, sizeof(text) - 1);
    size_t count;

    (void)state;
    assert_int_equal(tokenize(in, scratch_path("out.bin"), "--null", NULL), 0);
    count = read_back(scratch_path("out.bin"), whole);
    assert_int_equal(whole[0], 511); /* three documents: an empty one is none */
    for (size_t i = 0, ends = 0; i < count; i++) {
        ends += whole[i] == 511;
        if (i + 1 == count) assert_int_equal(ends, 3);
    }
    assert_int_equal(whole[count - 2], 511);
    assert_int_equal(whole[count - 1], 'x' - '!');
    {
        const char *words[] = {"tokenize",
                               in,
                               "--null",
                               "--tokenizer",
                               GPT2_FIXTURES "/tokens",
                               "-o",
                               scratch_path("cut.bin"),
                               "--shard-tokens",
                               "3"};

        assert_int_equal(run(words, 9), 0);
    }
    assert_int_equal(read_back(scratch_path("cut_000001.bin"), cut), 3);
    assert_int_equal(read_back(scratch_path("cut_*.bin"), cut), count);
    assert_memory_equal(whole, cut, count * sizeof(*cut));
    assert_int_equal(tokenize(in, scratch_path("out.bin"), NULL, NULL),
                     0); /* zero bytes are text */
    assert_int_equal(read_back(scratch_path("out.bin"), cut), count + 1);
}

static void the_command_refuses_what_it_cannot_do(void **state)
{
    const char *in = scratch_write("in2.txt", "text", 4);
    const char *none = scratch_write("none.txt", "", 0);
    const char *missing[] = {"tokenize", in, "-o", scratch_path("x.bin")};

    (void)state;
    assert_int_equal(tokenize(scratch_path("absent"), scratch_path("x.bin"), NULL, NULL), 1);
    assert_int_equal(tokenize(none, scratch_path("x.bin"), NULL, NULL), 1);
    assert_int_equal(tokenize(in, in, NULL, NULL), 2);
    assert_int_equal(tokenize(in, scratch_path("x.bin"), "--shard-tokens", "0"), 2);
    assert_int_equal(run(missing, 4), 2);
    assert_int_equal(tokenize(in, "/dev/full", NULL, NULL), 1);
    assert_int_equal(access(scratch_path("x.bin"), F_OK), -1); /* nothing is left */
}

static int make_scratch(void **state)
{
    (void)state;
    return scratch_make() == NULL;
}

static int remove_scratch(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_unicode),
        cmocka_unit_test(utf8_is_valid_or_refused),
        cmocka_unit_test(pieces_are_those_of_the_expression),
        cmocka_unit_test(tokens_are_those_of_the_plain_loop_and_give_the_bytes_back),
        cmocka_unit_test(a_long_piece_merges_too),
        cmocka_unit_test(files_are_checked_against_each_other),
        cmocka_unit_test(a_damaged_file_is_refused_or_works),
        cmocka_unit_test(json_strings_are_text),
        cmocka_unit_test(the_command_writes_documents_and_shards),
        cmocka_unit_test(the_command_refuses_what_it_cannot_do),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
