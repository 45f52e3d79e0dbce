/*
 * utf8.h - code points in UTF-8 and back. Pure.
 */
#ifndef GPT2_UTF8_H
#define GPT2_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define GPT2_UTF8_BYTES_MAX ((size_t)4)

/* Where text [bytes] begins with valid UTF-8: the number of bytes, and *code. Else 0. */
size_t gpt2_utf8_get(const unsigned char *text, size_t bytes, uint32_t *code);

/* Writes a code point to text [GPT2_UTF8_BYTES_MAX]; returns its bytes. */
size_t gpt2_utf8_put(unsigned char *text, uint32_t code);

#endif
