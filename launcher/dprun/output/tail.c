/*
 * tail.c - a ring of the last lines of one rank.
 *
 * Filled by output.c, read by failure/report.c. Pure.
 */
#include "launcher/dprun/output/tail.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/dprun/output/lines.h"
#include "runtime/base/error.h"

void dp_tail_add(dp_tail_t *tail, const char *text, size_t bytes)
{
    size_t oldest = tail->count % DP_TAIL_LINES;
    size_t kept = bytes <= DP_TAIL_BYTES ? bytes : dp_lines_cut(text, DP_TAIL_BYTES);
    char *copy;

    if (bytes == 0) return;
    copy = malloc(kept + 1);
    if (copy == NULL) return;
    for (size_t i = 0; i < kept; i++)
        copy[i] = (char)(text[i] == '\t' ? ' ' : text[i] == '\0' ? '?' : text[i]);
    copy[kept] = '\0';
    dp_text_mask(copy);
    free(tail->lines[oldest]);
    tail->lines[oldest] = copy;
    tail->count++;
}

const char *dp_tail_get(const dp_tail_t *tail, size_t from_end)
{
    if (from_end >= DP_TAIL_LINES || from_end >= tail->count) return NULL;
    return tail->lines[(tail->count - 1 - from_end) % DP_TAIL_LINES];
}

void dp_tail_fini(dp_tail_t *tail)
{
    for (size_t i = 0; i < DP_TAIL_LINES; i++) {
        free(tail->lines[i]);
        tail->lines[i] = NULL;
    }
    tail->count = 0;
}
