/*
 * tuner.h - finds the settings under which a program's steps take least time, one knob at a time.
 *
 * Pure: times and bytes of steps go in, settings come out. It starts from the settings in force,
 * measures each candidate between two measurements of the best so far, keeps it only if it is
 * faster beyond the noise, and at the end compares what it found with where it began: what is not
 * faster is undone. It must not know about ranks, threads, clocks or files.
 */
#ifndef DP_COORDINATOR_TUNER_H
#define DP_COORDINATOR_TUNER_H

#include <stddef.h>
#include <stdint.h>

typedef enum dp_knob {
    DP_KNOB_BUCKET,   /* bytes of a fused buffer */
    DP_KNOB_BUFFERS,  /* fused buffers in flight */
    DP_KNOB_IN_PLACE, /* bytes from which on a tensor is reduced where it lies */
    DP_KNOB_HOLD,     /* ns the root holds a launch back to fuse more */
    DP_KNOBS
} dp_knob_t;

const char *dp_knob_name(dp_knob_t knob); /* of its setting: "FUSION_BYTES" */

#define DP_LADDER_MAX 9

/* The values a knob may take, ascending. */
typedef struct dp_ladder {
    uint64_t values[DP_LADDER_MAX]; /* [count] */
    int count;
    int home; /* which of them is in force at first */
} dp_ladder_t;

/* The values to try around one: halved and doubled within [least, most]. home stays as it is. */
void dp_ladder_around(dp_ladder_t *ladder, uint64_t home, uint64_t least, uint64_t most,
                      int rungs_down, int rungs_up);

typedef enum dp_tuner_phase {
    DP_TUNER_BEFORE,    /* measures the best so far */
    DP_TUNER_CANDIDATE, /* then a candidate */
    DP_TUNER_AFTER,     /* then the best so far again */
    DP_TUNER_HOME,      /* at the end where it began */
    DP_TUNER_BEST,      /* and what it found, twice each in turn */
    DP_TUNER_SETTLED
} dp_tuner_phase_t;

#define DP_TUNER_WINDOW 9       /* steps of a measurement: their median counts */
#define DP_TUNER_WARMUP 2       /* steps after a change that are not looked at */
#define DP_TUNER_STEPS_MAX 2000 /* then it settles with what it has */

typedef struct dp_tuner {
    dp_ladder_t ladders[DP_KNOBS];
    int rungs[DP_KNOBS]; /* in force */
    int best[DP_KNOBS];
    dp_tuner_phase_t phase;
    /* the search */
    int knob, direction, has_moved, pass, pass_moved;
    /* the window */
    double samples[DP_TUNER_WINDOW];
    int count, skip;
    uint64_t bytes; /* of a usual step; others are not looked at */
    int strange;    /* steps in a row that were not usual */
    double before, before_noise, candidate, candidate_noise;
    int tries;             /* of the candidate */
    double gain, variance; /* sums over them, relative; at the end of all windows */
    int round;             /* of the comparison at the end */
    double homes[2], bests[2];
    int steps;             /* seen so far */
    int changes;           /* of the settings so far */
    double home_s, best_s; /* once settled: a step's time before and after */
} dp_tuner_t;

/* ladders are copied; a knob with one value is left alone. */
void dp_tuner_init(dp_tuner_t *tuner, const dp_ladder_t ladders[DP_KNOBS]);

/* A step took so long and moved so much. 1: the settings in force are to be others from the next
 * step on, dp_tuner_value() says which. */
int dp_tuner_step(dp_tuner_t *tuner, double seconds, uint64_t bytes);

uint64_t dp_tuner_value(const dp_tuner_t *tuner, dp_knob_t knob);

/* What it chose and what it gained, in a line; once settled. */
void dp_tuner_report(const dp_tuner_t *tuner, char *text, size_t room);

#endif
