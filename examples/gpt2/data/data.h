/*
 * data.h - the tokens of one or many files, as one stream.
 *
 * A text is a sequence of bytes, vocabulary 256. A file that starts with llm.c's magic 20240520
 * holds 16-bit tokens. Each file follows the one before without a gap, so how tokens are cut into
 * files does not change a run.
 */
#ifndef GPT2_DATA_H
#define GPT2_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt2/data/paths.h"

#define GPT2_TOKENS_MAGIC 20240520
#define GPT2_TOKENS_VERSION 1
#define GPT2_HEADER_INTS 256 /* of every llm.c file */

typedef struct gpt2_data gpt2_data_t; /* a stream of tokens in files */

/* Opens files, one behind the other, and checks their lengths against their headers. Files of
 * different kinds are refused. is_raw: a file without a header holds 16-bit tokens, as nanoGPT
 * writes them. Give it back with gpt2_data_close(). */
int gpt2_data_open(const gpt2_words_t *paths, int is_raw, gpt2_data_t **out, gpt2_error_t *error);
void gpt2_data_close(gpt2_data_t *data);

int gpt2_data_is_text(const gpt2_data_t *data);
const char *gpt2_data_name(const gpt2_data_t *data); /* the first file's; borrowed from it */
size_t gpt2_data_files(const gpt2_data_t *data);     /* how many there are, >= 1 */
uint64_t gpt2_data_count(const gpt2_data_t *data);   /* tokens of all files */

/* Refuses two that are not of one kind, with the files' names. */
int gpt2_data_check_kinds(const gpt2_data_t *data, const gpt2_data_t *other, gpt2_error_t *error);

/* 1: path leads to one of the files. */
int gpt2_data_has(const gpt2_data_t *data, const char *path);

/* Tokens at .. at+count-1 of the stream, which must have as many. Fails where a file is gone or has
 * another length than at the start, or where a token is outside the vocabulary. */
int gpt2_data_read(gpt2_data_t *data, uint64_t at, size_t count, int32_t *tokens,
                   gpt2_error_t *error);

/* From now on refuses a token outside the vocabulary, with its file, position and value. Reads
 * 256 MiB at once, of many files a part of each; the rest is checked when it is trained on. */
int gpt2_data_check(gpt2_data_t *data, int vocab, gpt2_error_t *error);

#endif
