/*
 * config_value.h - names, sizes, times, numbers and choices as people write them, and back.
 *
 * Pure text work, one function per direction. It must not know which setting a value belongs to.
 */
#ifndef DP_BASE_CONFIG_VALUE_H
#define DP_BASE_CONFIG_VALUE_H

#include "runtime/base/common.h"

/* Longest name that is looked at, with its NUL; bounds the edit distance's table. */
#define DP_CONFIG_NAME_ROOM 64

/* "fusion-bytes" and "Fusion_Bytes" become "FUSION_BYTES"; 0: the name is too long. */
int dp_config_fold_name(const char *name, char folded[DP_CONFIG_NAME_ROOM]);

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

#endif
