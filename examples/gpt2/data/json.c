/*
 * json.c - a recursive descent over bytes, without recursion: nesting is counted.
 */
#include "examples/gpt2/data/json.h"

#include <string.h>

#include "examples/gpt2/base/utf8.h"

#define DEPTH_MAX 64

static int refuse_json(gpt2_json_t *json)
{
    json->failed = 1;
    return -1;
}

/* The next byte that is not white space, not taken; 0 at the end. */
static char peek(gpt2_json_t *json)
{
    if (json->failed) return 0;
    while (json->at < json->bytes && json->text[json->at] != '\0' &&
           strchr(" \t\r\n", json->text[json->at]) != NULL) {
        json->at++;
    }
    if (json->at >= json->bytes) return 0;
    return json->text[json->at];
}

int gpt2_json_open(gpt2_json_t *json, char bracket)
{
    if (peek(json) != bracket || bracket == 0) {
        (void)refuse_json(json);
        return 0;
    }
    json->at++;
    return 1;
}

int gpt2_json_next(gpt2_json_t *json, char bracket, int first)
{
    const char close = bracket == '{' ? '}' : ']';
    const char c = peek(json);

    if (c == close) {
        json->at++;
        return 0;
    }
    if (c == 0) {
        (void)refuse_json(json);
        return 0;
    }
    if (first) return 1;
    if (c != ',') {
        (void)refuse_json(json);
        return 0;
    }
    json->at++;
    return 1;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads the four digits of an escape: json->at is on its letter u, and then on its last digit. */
static int read_hex(gpt2_json_t *json, uint32_t *code)
{
    static const char digits[] = "0123456789abcdefABCDEF";

    *code = 0;
    for (int i = 0; i < 4; i++) {
        const int c = ++json->at < json->bytes ? json->text[json->at] : 0;
        const char *digit = c == 0 ? NULL : strchr(digits, c);

        if (digit == NULL) return refuse_json(json);
        *code = *code * 16 + (uint32_t)(digit - digits < 16 ? digit - digits : digit - digits - 6);
    }
    return 0;
}

/* Likewise, with the other half of a UTF-16 pair; a half alone is U+FFFD. */
static int read_unicode(gpt2_json_t *json, uint32_t *code)
{
    const size_t next = json->at + 5;
    uint32_t low;

    if (read_hex(json, code) != 0) return -1;
    if (*code < 0xD800 || *code > 0xDFFF) return 0;
    if (*code < 0xDC00 && next + 1 < json->bytes && json->text[next] == '\\' &&
        json->text[next + 1] == 'u') {
        json->at = next + 1;
        if (read_hex(json, &low) != 0) return -1;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
            return 0;
        }
        json->at = next - 1; /* another character, to be read by itself */
    }
    *code = 0xFFFD;
    return 0;
}

/* The character of an escape, whose letter json->at is on. */
static int read_escape(gpt2_json_t *json, uint32_t *code)
{
    static const char letters[] = "\"\\/bfnrtu";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    const int c = json->at < json->bytes ? json->text[json->at] : 0;
    const char *found = c == 0 ? NULL : strchr(letters, c);

    if (found == NULL) return refuse_json(json);
    if (c == 'u') return read_unicode(json, code);
    *code = (unsigned char)meanings[found - letters];
    return 0;
}

int gpt2_json_string(gpt2_json_t *json, char *out, size_t room)
{
    size_t used = 0;

    if (peek(json) != '"') return refuse_json(json);
    for (json->at++; json->at < json->bytes; json->at++) {
        unsigned char text[GPT2_UTF8_BYTES_MAX] = {(unsigned char)json->text[json->at]};
        size_t length = 1;
        uint32_t code;

        if (text[0] == '"') {
            json->at++;
            if (room > 0) out[used] = '\0';
            return 0;
        }
        if (text[0] < ' ') return refuse_json(json);
        if (text[0] == '\\') {
            json->at++;
            if (read_escape(json, &code) != 0) return -1;
            length = gpt2_utf8_put(text, code);
        }
        if (used + length < room) {
            memcpy(out + used, text, length);
            used += length;
        } else {
            room = used + 1 < room ? used + 1 : room; /* cut here, not behind a gap */
        }
    }
    return refuse_json(json);
}

int gpt2_json_key(gpt2_json_t *json, char *out, size_t room)
{
    if (gpt2_json_string(json, out, room) != 0) return -1;
    if (peek(json) != ':') return refuse_json(json);
    json->at++;
    return 0;
}

int gpt2_json_number(gpt2_json_t *json, uint64_t *out)
{
    uint64_t value = 0;

    if (!is_digit(peek(json))) return refuse_json(json);
    while (json->at < json->bytes && is_digit(json->text[json->at])) {
        const uint64_t digit = (uint64_t)(json->text[json->at++] - '0');

        if (value > (UINT64_MAX - digit) / 10) return refuse_json(json);
        value = 10 * value + digit;
    }
    if (json->at < json->bytes && json->text[json->at] != '\0' &&
        strchr(".eE", json->text[json->at]) != NULL) {
        return refuse_json(json);
    }
    *out = value;
    return 0;
}

/* A word: a number of any kind, true, false, null. */
static int skip_word(gpt2_json_t *json)
{
    const size_t begin = json->at;

    while (json->at < json->bytes && json->text[json->at] != '\0' &&
           strchr(" \t\r\n,:[]{}\"", json->text[json->at]) == NULL) {
        json->at++;
    }
    return json->at > begin ? 0 : refuse_json(json);
}

int gpt2_json_skip(gpt2_json_t *json)
{
    char open[DEPTH_MAX]; /* brackets around here */
    int first = 1;        /* no member of the innermost one has been read */
    int depth = 0;

    do {
        const char c = peek(json);

        if (depth > 0) {
            if (!gpt2_json_next(json, open[depth - 1], first)) {
                if (json->failed) return -1;
                depth--;
                first = 0;
                continue;
            }
            first = 0;
            if (open[depth - 1] == '{' && gpt2_json_key(json, NULL, 0) != 0) return -1;
        }
        if (json->failed || c == 0) return refuse_json(json);
        switch (peek(json)) {
        case '{':
        case '[':
            if (depth == DEPTH_MAX) return refuse_json(json);
            open[depth++] = json->text[json->at++];
            first = 1;
            break;
        case '"':
            if (gpt2_json_string(json, NULL, 0) != 0) return -1;
            break;
        default:
            if (skip_word(json) != 0) return -1;
        }
    } while (depth > 0);
    return 0;
}

int gpt2_json_end(gpt2_json_t *json)
{
    (void)peek(json);
    return !json->failed && json->at == json->bytes ? 0 : refuse_json(json);
}
