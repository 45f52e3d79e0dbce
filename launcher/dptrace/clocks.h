/*
 * clocks.h - the clocks of a job's nodes, as dprun measured them and left them in its run
 * directory.
 */
#ifndef DP_DPTRACE_CLOCKS_H
#define DP_DPTRACE_CLOCKS_H

#include <stddef.h>
#include <stdint.h>

typedef struct dp_clock_entry {
    int rank;
    uint64_t at_ns;    /* on the rank's clock */
    int64_t offset_ns; /* to add to it to have dprun's */
    uint64_t error_ns;
} dp_clock_entry_t;

typedef struct dp_clocks {
    dp_clock_entry_t *entries; /* [count] owned; those of a rank in ascending time */
    size_t count;
} dp_clocks_t;

/* Reads "clocks" of a run directory; without one, or with one that makes no sense, there are no
 * entries. -1: no memory. */
int dp_clocks_read(const char *directory, dp_clocks_t *clocks);
void dp_clocks_fini(dp_clocks_t *clocks);

/* The index-th entry of a rank, or its last where there are fewer; NULL: it has none. */
const dp_clock_entry_t *dp_clocks_find(const dp_clocks_t *clocks, int rank, size_t index);

#endif
