/*
 * flags.c - finds each word's row in the table and assigns. Main thread, first of all.
 */
#include "examples/gpt2/base/flags.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

static void *option_field(void *options, const gpt2_flag_t *row)
{
    return (char *)options + row->offset;
}

static int assign(void *options, const gpt2_flag_t *row, char *text, gpt2_error_t *error)
{
    char *end = text;
    double value;

    if (row->kind == GPT2_FLAG_TEXT) {
        *(char **)option_field(options, row) = text;
        return 0;
    }
    errno = 0;
    value = row->kind == GPT2_FLAG_REAL ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        return gpt2_fail(error, "%s %s: not a %s", row->flag, text,
                         row->kind == GPT2_FLAG_REAL ? "number" : "whole number");
    }
    /* Written so that NaN is outside too. */
    if (!(errno == 0 && value >= row->low && value <= row->high)) {
        return gpt2_fail(error, "%s %s: out of range %.10g to %.10g", row->flag, text, row->low,
                         row->high);
    }
    if (row->kind == GPT2_FLAG_REAL) {
        *(double *)option_field(options, row) = value;
    } else {
        *(int64_t *)option_field(options, row) = (int64_t)value;
    }
    return 0;
}

static void assign_initial(const gpt2_flags_t *flags, void *options)
{
    for (size_t i = 0; i < flags->count; i++) {
        const gpt2_flag_t *row = &flags->rows[i];
        void *field = option_field(options, row);

        if (row->flag == NULL) continue;
        switch (row->kind) {
        case GPT2_FLAG_TEXT:
            *(const char **)field = row->initial; /* the options' texts are never written to */
            break;
        case GPT2_FLAG_WORDS:
            *(gpt2_words_t *)field = (gpt2_words_t){NULL, 0};
            break;
        case GPT2_FLAG_WHOLE:
            *(int64_t *)field = row->initial == NULL ? -1 : strtoll(row->initial, NULL, 10);
            break;
        case GPT2_FLAG_REAL:
            *(double *)field = row->initial == NULL ? -1.0 : strtod(row->initial, NULL);
            break;
        case GPT2_FLAG_SWITCH:
            *(int *)field = 0;
            break;
        }
    }
}

static const gpt2_flag_t *find_flag(const gpt2_flags_t *flags, const char *flag, size_t length)
{
    for (size_t i = 0; i < flags->count; i++) {
        const gpt2_flag_t *row = &flags->rows[i];

        if (row->flag == NULL || strlen(row->flag) != length) continue;
        if (strncmp(row->flag, flag, length) == 0) return row;
    }
    return NULL;
}

static int unknown(const gpt2_flags_t *flags, const char *flag, gpt2_error_t *error)
{
    const char *names[GPT2_FLAGS_MAX];
    size_t count = 0;

    if (flag[0] != '-') {
        return gpt2_fail(error, "%s: stands behind no flag that takes it (%s); --help lists all",
                         flag, flags->stray);
    }
    for (size_t i = 0; i < flags->count; i++) {
        const char *name = flags->rows[i].flag;

        if (name != NULL && name[0] != '\0') names[count++] = name;
    }
    return gpt2_fail(error, "%s: no such flag, did you mean %s? --help lists all", flag,
                     gpt2_nearest(flag, names, count));
}

void gpt2_words_describe(const gpt2_words_t *words, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%s", words->count == 0 ? "" : words->list[0]);
    if (words->count > 1 && strlen(text) < bytes) {
        (void)snprintf(text + strlen(text), bytes - strlen(text), " and %zu more",
                       words->count - 1);
    }
}

/* Remembers what a flag was given, and where it was given something else before. */
static void note_values(char *repeated, const gpt2_flag_t *row, gpt2_words_t *given,
                        const gpt2_words_t *now)
{
    const size_t used = strlen(repeated);
    char texts[2][80];
    int is_same = given->count == now->count;

    for (size_t i = 0; is_same && i < now->count; i++)
        is_same = strcmp(given->list[i], now->list[i]) == 0;
    if (given->count > 0 && !is_same) {
        gpt2_words_describe(given, texts[0], sizeof(texts[0]));
        gpt2_words_describe(now, texts[1], sizeof(texts[1]));
        (void)snprintf(repeated + used, GPT2_REPEATED_MAX - used,
                       "%s is given twice, %s and %s: the last one counts\n", row->flag, texts[0],
                       texts[1]);
    }
    *given = *now;
}

/* A word that a flag begins with; "-" alone is a file's name by custom. */
static int is_flag(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

/* The values of one flag from argv[i] on: one, or for WORDS all up to the next flag. */
static gpt2_words_t values_at(const gpt2_flag_t *row, int argc, char **argv, int i, int is_attached)
{
    gpt2_words_t values = {argv + i, i < argc ? 1 : 0};

    if (row->kind != GPT2_FLAG_WORDS || is_attached) return values;
    values.count = 0;
    while (i + (int)values.count < argc && !is_flag(argv[i + (int)values.count]))
        values.count++;
    return values;
}

int gpt2_flags_parse(const gpt2_flags_t *flags, int argc, char **argv, void *options,
                     char *repeated, gpt2_error_t *error)
{
    gpt2_words_t given[GPT2_FLAGS_MAX] = {{NULL, 0}};

    repeated[0] = '\0';
    assign_initial(flags, options);
    for (int i = 1; i < argc;) {
        const int is_stray = !is_flag(argv[i]);
        char *equals = is_stray ? NULL : strchr(argv[i], '=');
        const size_t length = equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]);
        const gpt2_flag_t *row = find_flag(flags, argv[i], is_stray ? 0 : length);
        gpt2_words_t values;

        if (row == NULL) return unknown(flags, argv[i], error);
        if (row->kind == GPT2_FLAG_SWITCH) {
            if (equals != NULL) return gpt2_fail(error, "%s takes no value", row->flag);
            *(int *)option_field(options, row) = 1;
            i++;
            continue;
        }
        if (equals != NULL) {
            argv[i] = equals + 1;
        } else if (!is_stray) {
            i++;
        }
        values = values_at(row, argc, argv, i, equals != NULL);
        if (values.count == 0)
            return gpt2_fail(error, "%s needs a value: %s", row->flag, row->help);
        if (is_stray && given[row - flags->rows].count > 0) return unknown(flags, argv[i], error);
        if (row->kind == GPT2_FLAG_WORDS) {
            *(gpt2_words_t *)option_field(options, row) = values;
        } else if (assign(options, row, values.list[0], error) != 0) {
            return -1;
        }
        note_values(repeated, row, &given[row - flags->rows], &values);
        i += (int)values.count;
    }
    return 0;
}

void gpt2_flags_help(const gpt2_flags_t *flags, FILE *out)
{
    (void)fprintf(out, "%s", flags->usage);
    for (size_t i = 0; i < flags->count; i++) {
        const gpt2_flag_t *row = &flags->rows[i];
        char left[64];

        if (row->flag == NULL) {
            (void)fprintf(out, "\n%s\n", row->value);
            continue;
        }
        (void)snprintf(left, sizeof(left), "%s%s%s", row->flag, row->flag[0] == '\0' ? "" : " ",
                       row->value == NULL ? "" : row->value);
        (void)fprintf(out, "  %-22s %s\n", left, row->help);
    }
    (void)fprintf(out, "\n%s", flags->example);
}
