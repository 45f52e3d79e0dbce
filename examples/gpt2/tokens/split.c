/*
 * split.c - a scanner in place of the regular expression.
 */
#include "examples/gpt2/tokens/split.h"

#include "examples/gpt2/base/utf8.h"
#include "examples/gpt2/tokens/unicode.h"

/* A piece depends on at most the two characters behind it: the last white space of a run, which may
 * belong to the next piece, and the one that ends the run. */
#define LOOK_AHEAD (2 * GPT2_UTF8_BYTES_MAX)

/* 's 't 'm 'd 're 've 'll */
static size_t contraction(const unsigned char *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\'') return 0;
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd') return 2;
    if (bytes < 3) return 0;
    if ((text[1] == 'r' || text[1] == 'v') && text[2] == 'e') return 3;
    return text[1] == 'l' && text[2] == 'l' ? 3 : 0;
}

/* The end of the run of characters of one class that reaches `at`. */
static size_t run_end(const unsigned char *text, size_t bytes, size_t at, gpt2_char_class_t class)
{
    size_t length;

    while (at < bytes && gpt2_char_at(text + at, bytes - at, &length) == class)
        at += length;
    return at;
}

/* A run of white space, without its last character where something follows: a blank goes to the
 * word behind it, and any other character is a piece of its own. */
static size_t white_space(const unsigned char *text, size_t bytes)
{
    size_t at = 0;
    size_t last = 0;
    size_t length;

    while (at < bytes && gpt2_char_at(text + at, bytes - at, &length) == GPT2_CHAR_SPACE) {
        last = at;
        at += length;
    }
    return at < bytes && last > 0 ? last : at;
}

static size_t piece_length(const unsigned char *text, size_t bytes)
{
    const size_t blank = text[0] == ' ' ? 1 : 0;
    const size_t short_form = contraction(text, bytes);
    gpt2_char_class_t class;
    size_t length;

    if (short_form > 0) return short_form;
    if (blank == bytes) return blank;
    class = gpt2_char_at(text + blank, bytes - blank, &length);
    if (class == GPT2_CHAR_SPACE) return white_space(text, bytes);
    return run_end(text, bytes, blank + length, class);
}

size_t gpt2_split(const unsigned char *text, size_t bytes, int is_end)
{
    const size_t length = bytes == 0 ? 0 : piece_length(text, bytes);

    return is_end || bytes - length >= LOOK_AHEAD ? length : 0;
}
