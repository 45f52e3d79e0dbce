/*
 * config_value.h - names, sizes, times, numbers and choices as people write them, and back.
 *
 * Pure text work, one function per direction. It must not know which setting a value belongs to.
 */
#ifndef DP_BASE_CONFIG_VALUE_H
#define DP_BASE_CONFIG_VALUE_H

#include "runtime/base/error.h"

/* Longest name that is looked at, with its NUL; bounds the edit distance's table. */
#define DP_CONFIG_NAME_ROOM 64

/* "fusion-bytes" and "Fusion_Bytes" become "FUSION_BYTES"; 0: the name is too long. */
int dp_config_fold_name(const char *name, char folded[DP_CONFIG_NAME_ROOM]);

/* Nearest of count names to a misspelt one by edit distance, or NULL when none is close. */
const char *dp_nearest_name(const char *name, const char *const *names, size_t count);

/* Each returns NULL and writes *value, or returns what is wrong, as the end of a sentence that
 * begins with the value: "is not a size: ..." (static). */
const char *dp_parse_bytes(const char *text, int64_t *value);   /* 4096, 64K, 32M, 2G, 1T */
const char *dp_parse_time(const char *text, int64_t *value);    /* 200us, 1.5s, 10min, 0; in ns */
const char *dp_parse_integer(const char *text, int64_t *value); /* -1, 42 */
const char *dp_parse_yes_no(const char *text, int64_t *value);  /* 0 1 yes no on off true false */

/* Position of text among "a|b|c", in any case; -1: not among them. */
int dp_parse_choice(const char *text, const char *choices);

void dp_format_bytes(int64_t value, char *text,
                     size_t room);                           /* in the largest unit that is exact */
void dp_format_time(int64_t value, char *text, size_t room); /* likewise */
void dp_format_choice(int position, const char *choices, char *text, size_t room);

/* The steps that a timeline shows, as in --timeline FILE:steps=A-B. dprun reads the file's name
 * from it, every rank which of its records to keep. */
typedef struct dp_window {
    size_t file_bytes; /* of the text: the file's name */
    int has_steps;     /* 0: all of them */
    uint64_t first, last;
} dp_window_t;

/* FILE[:steps=A-B], A <= B. Errors quote the text. */
dp_status_t dp_window_parse(const char *text, dp_window_t *window, dp_error_t *error);

#endif
