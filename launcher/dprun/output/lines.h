/*
 * lines.h - cuts a stream of bytes into lines, and keeps the last lines of a rank for the report of
 * a failure.
 *
 * Pure: no descriptors, no prefixes. Bytes are bytes, NUL and broken UTF-8 included.
 */
#ifndef DP_LAUNCHER_LINES_H
#define DP_LAUNCHER_LINES_H

#include <stddef.h>

#define DP_LINE_BYTES_MAX ((size_t)1 << 20) /* of memory for each stream that needs it */

typedef enum dp_line_end {
    DP_LINE_NEWLINE,        /* ended by "\n", which is not part of it */
    DP_LINE_RETURN_NEWLINE, /* ended by "\r\n", likewise */
    DP_LINE_RETURN,         /* ended by "\r": the next one is to be shown in its place */
    DP_LINE_CUT,            /* too long; the next one goes on */
    DP_LINE_OPEN            /* the stream ended without a newline */
} dp_line_end_t;

typedef struct dp_lines {
    char *data;
    size_t bytes;
    size_t room;
    int has_return; /* a "\r" came last: "\r\n" is one end, "\r" another */
} dp_lines_t;

/* text is borrowed for the call. */
typedef void (*dp_line_fn)(void *context, const char *text, size_t bytes, dp_line_end_t end);

void dp_lines_init(dp_lines_t *lines);
void dp_lines_fini(dp_lines_t *lines);
void dp_lines_feed(dp_lines_t *lines, const char *data, size_t bytes, dp_line_fn emit,
                   void *context);
/* The stream is over: emits what is left. */
void dp_lines_end(dp_lines_t *lines, dp_line_fn emit, void *context);

/* Where to cut text of `bytes` so that no UTF-8 character is broken: at most 3 less. */
size_t dp_lines_cut(const char *text, size_t bytes);

/* The last lines that a rank wrote. */
#define DP_TAIL_LINES 20
#define DP_TAIL_BYTES 400 /* of each line; more than fits is cut */

typedef struct dp_tail {
    char *lines[DP_TAIL_LINES]; /* a ring, owned */
    size_t count;               /* ever added */
} dp_tail_t;

/* Copies a line; control characters become '?', empty lines are not kept. Out of memory: dropped.
 */
void dp_tail_add(dp_tail_t *tail, const char *text, size_t bytes);

/* The i-th last line, 0 the very last; NULL when there is none. */
const char *dp_tail_get(const dp_tail_t *tail, size_t from_end);
void dp_tail_fini(dp_tail_t *tail);

#endif
