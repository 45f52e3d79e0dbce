/*
 * data.h - a text or token file, and which of its sequences a step trains on.
 *
 * A text is a sequence of bytes, vocabulary 256. A file that starts with llm.c's magic 20240520
 * holds 16-bit tokens. Which sequences make up a global batch depends on the seed alone, never
 * on how many ranks share the work.
 */
#ifndef GPT2_DATA_H
#define GPT2_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt2/base/error.h"

#define GPT2_TOKENS_MAGIC 20240520
#define GPT2_TOKENS_VERSION 1
#define GPT2_HEADER_INTS 256     /* of every llm.c file */
#define GPT2_VALIDATION_PART 0.1 /* of a file, at its end, where --val names no other */

typedef struct gpt2_data gpt2_data_t; /* one file, mapped */

/* A stretch of a file; borrowed from it. */
typedef struct gpt2_view {
    const gpt2_data_t *data;
    uint64_t first; /* token */
    uint64_t count; /* tokens */
} gpt2_view_t;

/* Opens and maps a file; checks a token file's header against its length. Give it back with
 * gpt2_data_close(). */
int gpt2_data_open(const char *path, gpt2_data_t **out, gpt2_error_t *error);
void gpt2_data_close(gpt2_data_t *data);

int gpt2_data_is_text(const gpt2_data_t *data);
gpt2_view_t gpt2_data_all(const gpt2_data_t *data);

/* Refuses a file with a token outside the vocabulary, with its position and value. Reads it all. */
int gpt2_data_check(const gpt2_data_t *data, int vocab, gpt2_error_t *error);

/* Cuts the last part (0 < part < 1) off for validation. */
void gpt2_view_split(const gpt2_view_t *all, double part, gpt2_view_t *training,
                     gpt2_view_t *validation);

/* Refuses a view too short for one sequence of that length and its targets. */
int gpt2_view_check(const gpt2_view_t *view, const char *what, int length, gpt2_error_t *error);

/* Sequences of an epoch, >= 1. */
uint64_t gpt2_view_sequences(const gpt2_view_t *view, int length);

/*
 * Training sequences first .. first+count-1 of an endless order: epoch after epoch, each a
 * permutation of the view's sequences that depends on (seed, epoch), cut at an offset of its own.
 * inputs, targets: [count][length].
 */
void gpt2_view_training(const gpt2_view_t *view, uint64_t seed, int length, uint64_t first,
                        int count, int32_t *inputs, int32_t *targets);

/* Where sequence `index` of that order begins in the file, in tokens. */
uint64_t gpt2_view_position(const gpt2_view_t *view, uint64_t seed, int length, uint64_t index);

/* Says which sequences [count][length] were trained on, by number (the first one's) and tokens: a
 * sum, so that ranks and passes may take them in any order. */
uint64_t gpt2_sequences_hash(const int32_t *tokens, int length, uint64_t first, int count);

/* Of `total` validation sequences, evenly spaced over the view, those from first on. */
void gpt2_view_validation(const gpt2_view_t *view, int length, uint64_t total, uint64_t first,
                          int count, int32_t *inputs, int32_t *targets);

/* The part [*first, *last) of `count` things that part `index` of `parts` takes: contiguous, in
 * order, sizes differing by at most one. */
void gpt2_share(uint64_t count, uint64_t index, uint64_t parts, uint64_t *first, uint64_t *last);

/* Entropies of a text in nats per byte: of single bytes, and of a byte given the one before. */
void gpt2_view_entropy(const gpt2_view_t *view, double *unigram, double *bigram);

#endif
