/*
 * flags.h - reads a command line by a table: one row is a flag, its range, its default and its line
 * of --help.
 *
 * The program and its commands have a table each. It must not know what a flag means.
 */
#ifndef GPT2_FLAGS_H
#define GPT2_FLAGS_H

#include <stddef.h>
#include <stdio.h>

#include "examples/gpt2/base/error.h"

#define GPT2_REPEATED_MAX 512 /* bytes of text */
#define GPT2_FLAGS_MAX 128    /* rows of a table */

typedef struct gpt2_words {
    char **list; /* [count] */
    size_t count;
} gpt2_words_t;

/* The kind of a row fixes the type of its field: char *, gpt2_words_t, int64_t, double or int. */
typedef enum gpt2_flag_kind {
    GPT2_FLAG_TEXT,
    GPT2_FLAG_WORDS, /* all words up to the next flag */
    GPT2_FLAG_WHOLE,
    GPT2_FLAG_REAL,
    GPT2_FLAG_SWITCH
} gpt2_flag_kind_t;

typedef struct gpt2_flag {
    const char *flag; /* "--steps"; "": the words before the first flag; NULL: value is a heading */
    const char *value; /* what --help calls its value; NULL for a switch */
    gpt2_flag_kind_t kind;
    size_t offset; /* of the field in the options' struct */
    double low;    /* whole and real numbers: the range */
    double high;
    const char *initial; /* NULL: not given, -1 for numbers */
    const char *help;
} gpt2_flag_t;

typedef struct gpt2_flags {
    const gpt2_flag_t *rows; /* [count] */
    size_t count;
    const char *usage;   /* what --help begins with */
    const char *example; /* and ends with */
    const char *stray;   /* what a word means that stands behind no flag */
} gpt2_flags_t;

/* Fills in options, an object of the struct that the rows' offsets mean; texts and lists are
 * borrowed from argv, whose words may be changed. repeated [GPT2_REPEATED_MAX]: flags that were
 * given twice with different values, a line for each; the last one counts, so that a script can add
 * its caller's flags behind its own. An unknown flag, a missing or bad value: -1 with the flag, the
 * value and what would be right. */
int gpt2_flags_parse(const gpt2_flags_t *flags, int argc, char **argv, void *options,
                     char *repeated, gpt2_error_t *error);

void gpt2_flags_help(const gpt2_flags_t *flags, FILE *out);

/* text [bytes] = the words for people: "a.bin", "a.bin and 102 more". */
void gpt2_words_describe(const gpt2_words_t *words, char *text, size_t bytes);

#endif
