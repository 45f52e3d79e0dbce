/*
 * split.h - cuts a text into the pieces within which GPT-2's byte pairs merge.
 *
 * The pieces are those of the expression in OpenAI's encoder.py,
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * so their bytes together are the text. Pure.
 */
#ifndef GPT2_SPLIT_H
#define GPT2_SPLIT_H

#include <stddef.h>

/* Bytes of the piece that text [bytes] begins with. is_end 0: the text goes on behind these bytes,
 * and the result is 0 where what follows may decide. Only with bytes == 0 is it 0 at the end. */
size_t gpt2_split(const unsigned char *text, size_t bytes, int is_end);

#endif
