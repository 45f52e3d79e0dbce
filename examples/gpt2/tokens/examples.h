/*
 * examples.h - the questions of HellaSwag and LAMBADA, as tokens.
 *
 * Read line by line from the JSON lines that their authors hand out. It must not know the model.
 */
#ifndef GPT2_EXAMPLES_H
#define GPT2_EXAMPLES_H

#include "examples/gpt2/tokens/encode.h"

#define GPT2_CHOICES_MAX 8

typedef enum gpt2_suite {
    GPT2_HELLASWAG, /* "ctx", "endings" and "label": which of the endings goes on? */
    GPT2_LAMBADA    /* "text": what is its last word? */
} gpt2_suite_t;

/* A text in which the tokens from `from` on are asked for. */
typedef struct gpt2_choice {
    gpt2_tokens_t tokens;
    size_t from;
} gpt2_choice_t;

typedef struct gpt2_example {
    gpt2_choice_t choices[GPT2_CHOICES_MAX]; /* [count] */
    size_t count;
    size_t label; /* the right one */
} gpt2_example_t;

typedef struct gpt2_examples gpt2_examples_t; /* a file that is being read */

/* The encoder is borrowed until gpt2_examples_close(). */
int gpt2_examples_open(const char *path, gpt2_suite_t suite, gpt2_encoder_t *encoder,
                       gpt2_examples_t **out, gpt2_error_t *error);
void gpt2_examples_close(gpt2_examples_t *examples);

/* The next example, valid until the next call; *out = NULL at the end. A line that is none fails
 * with its number. */
int gpt2_examples_next(gpt2_examples_t *examples, const gpt2_example_t **out, gpt2_error_t *error);

#endif
