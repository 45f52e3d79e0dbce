/*
 * intervals.h - lists of intervals of time, in intervals.c: what the analysis is made of. Part of
 * analysis_internal.h.
 */
#ifndef DP_DPTRACE_INTERVALS_H
#define DP_DPTRACE_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

/* [start, end) ns. Each user gives the other fields a meaning of its own, or none. */
typedef struct dp_interval {
    uint64_t start, end;
    size_t event;    /* of a wait: its index */
    uint32_t bucket; /* index of the bucket, or UINT32_MAX */
    uint32_t why;    /* dp_why_t */
} dp_interval_t;

typedef struct dp_interval_list {
    dp_interval_t *items; /* [count]; owned */
    size_t count, room;
} dp_interval_list_t;

/* An empty interval is left out. 0: no memory. */
int dp_intervals_add(dp_interval_list_t *list, uint64_t start, uint64_t end, uint32_t bucket,
                     uint32_t why);
void dp_intervals_sort(dp_interval_list_t *list); /* by start */
/* Those that overlap or touch become one. Sorts them. */
void dp_intervals_merge(dp_interval_list_t *list);
/* Adds to out what `from` covers and `without` does not. Both merged. 0: no memory. */
int dp_intervals_subtract(const dp_interval_list_t *from, const dp_interval_list_t *without,
                          dp_interval_list_t *out);
/* The time that they cover together: where several overlap it counts once. Sorts them. */
double dp_intervals_covered(dp_interval_list_t *list);

#endif
