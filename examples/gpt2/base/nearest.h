/*
 * nearest.h - the word of a list that looks most like a mistyped one.
 */
#ifndef GPT2_NEAREST_H
#define GPT2_NEAREST_H

#include <stddef.h>

/* One of names [count], count >= 1: the one with the smallest edit distance; the first of equals.
 */
const char *gpt2_nearest(const char *word, const char *const *names, size_t count);

#endif
