/*
 * text.h - the figures of the ranks of one node in Prometheus' text format, read from the first
 * pages of their recorders and from /proc. The ranks are not asked, and cannot notice.
 *
 * serve.c calls it, in the event loop of dprun or of a node's station.
 */
#ifndef DP_LAUNCHER_METRICS_TEXT_H
#define DP_LAUNCHER_METRICS_TEXT_H

#include <stdint.h>
#include <stdio.h>

/*
 * The ranks [first_rank, first_rank + count) of a job, whose recorders are in run_dir; a rank that
 * has not joined yet has no lines. now_ns: a time of dp_now_ns().
 */
typedef struct dp_metrics_source {
    const char *run_dir;
    const char *node; /* of all of them */
    int first_rank, count;
} dp_metrics_source_t;

void dp_metrics_write(const dp_metrics_source_t *source, uint64_t now_ns, FILE *out);

#endif
