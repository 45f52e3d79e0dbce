/*
 * tail.h - the last lines a rank wrote, kept for the report of a failure.
 */
#ifndef DP_LAUNCHER_TAIL_H
#define DP_LAUNCHER_TAIL_H

#include <stddef.h>

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
