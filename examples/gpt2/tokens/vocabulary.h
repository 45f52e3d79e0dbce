/*
 * vocabulary.h - GPT-2's byte pairs: the tokens, which bytes each stands for, and which two become
 * one.
 *
 * Read from the two files that OpenAI and Hugging Face hand out, under either pair of names:
 * encoder.json and vocab.bpe, vocab.json and merges.txt. In them a token is text in which every
 * byte is a character of its own. Read-only once open, by any thread.
 */
#ifndef GPT2_VOCABULARY_H
#define GPT2_VOCABULARY_H

#include <stdint.h>

#include "examples/gpt2/base/flags.h"

typedef struct gpt2_vocabulary gpt2_vocabulary_t;

/* paths: a folder that has the two files, or the two files. Every token's number must be there
 * once, from 0 on, every byte must have a token, and every merge must make one. Give it back with
 * gpt2_vocabulary_close(). */
int gpt2_vocabulary_open(const gpt2_words_t *paths, gpt2_vocabulary_t **out, gpt2_error_t *error);
void gpt2_vocabulary_close(gpt2_vocabulary_t *vocabulary);

size_t gpt2_vocabulary_count(const gpt2_vocabulary_t *vocabulary);

/* The token "<|endoftext|>", which stands between documents and which no text becomes; -1: none. */
int32_t gpt2_vocabulary_end(const gpt2_vocabulary_t *vocabulary);

/* The bytes that a token stands for; borrowed. token < count. */
const unsigned char *gpt2_vocabulary_bytes(const gpt2_vocabulary_t *vocabulary, int32_t token,
                                           size_t *bytes);

/* The token of one byte. */
int32_t gpt2_vocabulary_byte(const gpt2_vocabulary_t *vocabulary, unsigned char byte);

/* 1: the tokens become *merged where they stand together; the pair with the lowest *rank goes
 * first. */
int gpt2_vocabulary_merge(const gpt2_vocabulary_t *vocabulary, int32_t left, int32_t right,
                          uint32_t *rank, int32_t *merged);

#endif
