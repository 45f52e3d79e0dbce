/*
 * nearest.c - edit distance over short words. Pure; called where an option or preset is unknown.
 */
#include "examples/gpt2/base/nearest.h"

#include <string.h>

#define WORD_MAX 64 /* longer words are compared by their beginning */

/* Levenshtein's distance: insertions, deletions and replacements that turn a into b. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1];
    size_t a_length = strnlen(a, WORD_MAX);
    size_t b_length = strnlen(b, WORD_MAX);

    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
            size_t best = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = best < replaced ? best : replaced;
        }
    }
    return row[b_length];
}

const char *gpt2_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = names[0];
    size_t best_distance = edit_distance(word, names[0]);

    for (size_t i = 1; i < count; i++) {
        size_t distance = edit_distance(word, names[i]);

        if (distance >= best_distance) continue;
        best_distance = distance;
        best = names[i];
    }
    return best;
}
