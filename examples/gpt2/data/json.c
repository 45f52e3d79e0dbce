/*
 * json.c - a recursive descent over bytes, without recursion: nesting is counted.
 */
#include "examples/gpt2/data/json.h"

#include <string.h>

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

int gpt2_json_string(gpt2_json_t *json, char *out, size_t room)
{
    size_t length = 0;

    if (peek(json) != '"') return refuse_json(json);
    for (json->at++; json->at < json->bytes; json->at++) {
        char c = json->text[json->at];

        if (c == '"') {
            json->at++;
            if (room > 0) out[length] = '\0';
            return 0;
        }
        if ((unsigned char)c < ' ') return refuse_json(json);
        if (c == '\\') {
            if (++json->at >= json->bytes) return refuse_json(json);
            c = json->text[json->at];
            if (c == '\0' || strchr("\"\\/bfnrtu", c) == NULL) return refuse_json(json);
        }
        if (length + 1 < room) out[length++] = c;
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

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
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
