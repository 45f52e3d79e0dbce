/*
 * json.h - reads JSON that others wrote, value by value, from a buffer.
 *
 * A reader for headers and small configurations: it builds no tree and allocates nothing. Every
 * access is checked against the end, nesting is limited, and a text that is not JSON is refused
 * where it stops being it. Numbers are whole and not negative; others can be skipped.
 */
#ifndef GPT2_JSON_H
#define GPT2_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct gpt2_json {
    const char *text;
    size_t bytes;
    size_t at;
    int failed; /* 1: not JSON, or not what was asked for; every later call fails as well */
} gpt2_json_t;

/* begin() enters an object or array and returns 1, or 0 where there is none here. next() before
 * each member returns 1 where there is one, and 0 at the end, which it consumes. first: 1 for
 * the first member. */
int gpt2_json_open(gpt2_json_t *json, char bracket);
int gpt2_json_next(gpt2_json_t *json, char bracket, int first);

/* A string as UTF-8, cut to room - 1 bytes. key: with the colon behind it. 0, or -1. */
int gpt2_json_string(gpt2_json_t *json, char *out, size_t room);
int gpt2_json_key(gpt2_json_t *json, char *out, size_t room);
int gpt2_json_number(gpt2_json_t *json, uint64_t *out);
/* Any value, whole. */
int gpt2_json_skip(gpt2_json_t *json);
/* 0 where nothing but white space is left. */
int gpt2_json_end(gpt2_json_t *json);

#endif
