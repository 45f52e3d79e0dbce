/*
 * error.h - why something failed, as one line for people.
 *
 * Functions of the trainer that can fail return 0 or -1 and take a gpt2_error_t *; the first to
 * know the cause writes it, callers pass the -1 on.
 */
#ifndef GPT2_ERROR_H
#define GPT2_ERROR_H

#define GPT2_ERROR_TEXT_MAX 1024

typedef struct gpt2_error {
    char text[GPT2_ERROR_TEXT_MAX];
} gpt2_error_t;

/* Writes the text (NULL error: nothing) and returns -1, so that `return gpt2_fail(...)` reads. */
int gpt2_fail(gpt2_error_t *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Control characters become '?': texts end on a terminal, and names in files may hold anything. */
void gpt2_mask(char *text);

#endif
