/*
 * recorder.h - what a rank's flight recorder says it did last, for the failure report. Called by
 * report.c and, to trim files, by dprun.c and station_files.c.
 *
 * Reads trace.R.dpt of the run directory (runtime/base/trace_format.h), whose bytes are checked.
 */
#ifndef DP_LAUNCHER_RECORDER_H
#define DP_LAUNCHER_RECORDER_H

#include <stddef.h>
#include <stdint.h>

typedef struct dp_last_moments {
    int has_step;
    uint64_t step;
    char text[256]; /* "in backward; last: submit h.3.mlp 1.2 MB, 0.004 s before"; "": nothing found
                     */
} dp_last_moments_t;

/* Reads trace.R.dpt of a run directory. end_ns: when the rank ended, on dp_now_ns()'s clock. A
 * missing or unreadable file leaves last empty. */
void dp_recorder_last(const char *run_dir, int rank, uint64_t end_ns, dp_last_moments_t *last);

/* Cuts off the part of its file that a recorder allocated and never used. The rank has ended. */
void dp_recorder_trim(const char *run_dir, int rank);

#endif
