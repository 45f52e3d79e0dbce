/*
 * view.h - which of the data's sequences a step trains on.
 *
 * Which sequences make up a global batch depends on the seed alone, never on how many ranks share
 * the work. Sequences cross the borders of files.
 */
#ifndef GPT2_VIEW_H
#define GPT2_VIEW_H

#include "examples/gpt2/data/data.h"

#define GPT2_VALIDATION_PART 0.1 /* of the data, at their end, where no other files are for it */

/* A stretch of the stream; borrowed from it. */
typedef struct gpt2_view {
    gpt2_data_t *data;
    uint64_t first; /* token */
    uint64_t count; /* tokens */
} gpt2_view_t;

/* The tokens that a run trains and validates on. */
typedef struct gpt2_corpus {
    gpt2_data_t *data;
    gpt2_data_t *val_data; /* NULL: the same files */
    gpt2_view_t training;
    gpt2_view_t validation;
} gpt2_corpus_t;

/* Opens what the words of --data and --val mean. Without the latter and without files for
 * validation in a folder the last GPT2_VALIDATION_PART of the data is for validation. Give it back
 * with gpt2_corpus_close(), also after a failure. */
int gpt2_corpus_open(const gpt2_words_t *data, const gpt2_words_t *val, int is_raw,
                     gpt2_corpus_t *out, gpt2_error_t *error);
void gpt2_corpus_close(gpt2_corpus_t *corpus);

gpt2_view_t gpt2_view_all(gpt2_data_t *data);

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
 * inputs, targets: [count][length]. Fails where a file is gone or has another length than at the
 * start.
 */
int gpt2_view_training(const gpt2_view_t *view, uint64_t seed, int length, uint64_t first,
                       int count, int32_t *inputs, int32_t *targets, gpt2_error_t *error);

/* Where sequence `index` of that order begins in the stream, in tokens. */
uint64_t gpt2_view_position(const gpt2_view_t *view, uint64_t seed, int length, uint64_t index);

/* Says which sequences [count][length] were trained on, by number (the first one's) and tokens: a
 * sum, so that ranks and passes may take them in any order. */
uint64_t gpt2_sequences_hash(const int32_t *tokens, int length, uint64_t first, int count);

/* Of `total` validation sequences, evenly spaced over the view, those from first on. */
int gpt2_view_validation(const gpt2_view_t *view, int length, uint64_t total, uint64_t first,
                         int count, int32_t *inputs, int32_t *targets, gpt2_error_t *error);

/* A hash of the number of tokens and of 4096 of them, evenly spaced: equal data have equal ones
 * however they are cut into files, and other data have another. It does not see single tokens that
 * were changed. */
int gpt2_view_fingerprint(const gpt2_view_t *view, uint64_t *out, gpt2_error_t *error);

/* The part [*first, *last) of `count` things that part `index` of `parts` takes: contiguous, in
 * order, sizes differing by at most one. */
void gpt2_share(uint64_t count, uint64_t index, uint64_t parts, uint64_t *first, uint64_t *last);

/* Entropies of a text in nats per byte: of single bytes, and of a byte given the one before. */
int gpt2_view_entropy(const gpt2_view_t *view, double *unigram, double *bigram,
                      gpt2_error_t *error);

#endif
