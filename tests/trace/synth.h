/*
 * synth.h - writes the recorders of a job that never ran, with known truth inside: who is late by
 * how much, how fast the wire is, how long everything takes.
 */
#ifndef DP_TESTS_SYNTH_H
#define DP_TESTS_SYNTH_H

#include "runtime/trace/trace.h"

typedef struct dp_synth {
    int ranks;
    int steps;
    int first_step;
    int buckets; /* per step */
    int tensors; /* per bucket */
    int spans;   /* short spans of the program per backward layer, to make events many */
    uint64_t forward_ns;
    uint64_t layer_ns; /* backward, per bucket */
    uint64_t optimizer_ns;
    uint64_t bucket_bytes;
    uint64_t wire_ns;   /* per bucket */
    uint64_t pack_ns;   /* per bucket, and as much to unpack */
    uint64_t launch_ns; /* from the last submission anywhere to the launch */
    int late_rank;      /* -1: none */
    uint64_t late_ns;   /* added to its forward */
    int wait_for_all;   /* one wait without a request instead of one per bucket */
    size_t trace_bytes;
    int gathers;    /* the last so many buckets of a step are all-gathers; the others all-reduces */
    int on_device;  /* 1: tensors come from streams, and odd ranks mark their work there */
    int unasked;    /* 1: a rank launches without asking the others, whom its engine waits for */
    int take_turns; /* 1: in each step another rank is the late one */
} dp_synth_t;
#define DP_SYNTH_INIT                                                                              \
    {                                                                                              \
        4, 20, 100, 6, 4, 0, 8000000, 3000000, 2000000, 16000000, 2000000, 300000, 50000, -1, 0,   \
            0, (size_t)16 << 20, 0, 0, 0, 0                                                        \
    }

/* Writes trace.R.dpt of every rank into the directory. */
dp_status_t dp_synth_write(const dp_synth_t *synth, const char *run_dir, dp_error_t *error);

#endif
