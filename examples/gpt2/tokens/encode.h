/*
 * encode.h - a text's tokens, by GPT-2's byte pairs.
 *
 * Within each piece of split.h the two neighbours of lowest rank merge, again and again, until none
 * can. The tokens' bytes together are the text's, whatever bytes it has: what is not valid UTF-8 is
 * kept, where a program that reads text in Python has U+FFFD or an exception.
 */
#ifndef GPT2_ENCODE_H
#define GPT2_ENCODE_H

#include "examples/gpt2/tokens/vocabulary.h"

typedef struct gpt2_encoder gpt2_encoder_t; /* working memory; one thread */

typedef struct gpt2_tokens {
    int32_t *list; /* [count], freed with free() */
    size_t count;
    size_t room;
} gpt2_tokens_t;

/* The vocabulary is borrowed until gpt2_encoder_destroy(). */
int gpt2_encoder_create(const gpt2_vocabulary_t *vocabulary, gpt2_encoder_t **out,
                        gpt2_error_t *error);
void gpt2_encoder_destroy(gpt2_encoder_t *encoder);

/* Appends a text's tokens, as far as they are certain, and returns in *used how many bytes they
 * stand for. is_end: the text ends there, so all are. Refuses a piece above 64 MiB. */
int gpt2_encode(gpt2_encoder_t *encoder, const void *text, size_t bytes, int is_end, size_t *used,
                gpt2_tokens_t *tokens, gpt2_error_t *error);

/* Appends one token. */
int gpt2_tokens_append(gpt2_tokens_t *tokens, int32_t token, gpt2_error_t *error);

#endif
