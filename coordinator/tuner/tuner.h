/*
 * tuner.h - finds the value of one setting under which a program's steps take least time.
 *
 * Pure: a step's time and bytes go in, a value comes out. It must not know about ranks, threads,
 * clocks or what the value does. tune.c calls it at the end of each step, under a lock.
 *
 *     values tried     ... 50us  100us  [200us]  400us  800us ...      a ladder of factors of two
 *                                       initial ---> up while that pays; if the first step up does
 *                                                    not, down while that pays
 *     a candidate      best so far | candidate | best so far           a window of 9 steps each
 *     at the end       initial | best | initial | best                 kept only if clearly faster
 */
#ifndef DP_COORDINATOR_TUNER_H
#define DP_COORDINATOR_TUNER_H

#include <stddef.h>
#include <stdint.h>

#define DP_LADDER_MAX 9

/* The values to try, ascending. */
typedef struct dp_ladder {
    uint64_t values[DP_LADDER_MAX]; /* [count] */
    int count;
    int initial; /* index of the one that is in force at first */
} dp_ladder_t;

/* The values to try around one: halved and doubled within [least, most]. The initial value stays as
 * it is. */
void dp_ladder_around(dp_ladder_t *ladder, uint64_t initial, uint64_t least, uint64_t most,
                      int halvings, int doublings);

typedef enum dp_tuner_phase {
    DP_TUNER_BEFORE,    /* measures the best so far */
    DP_TUNER_CANDIDATE, /* then a candidate */
    DP_TUNER_AFTER,     /* then the best so far again */
    DP_TUNER_INITIAL,   /* at the end the initial value */
    DP_TUNER_BEST,      /* and the best one, twice each in turn */
    DP_TUNER_FINISHED
} dp_tuner_phase_t;

#define DP_TUNER_WINDOW 9       /* steps of a measurement: their median counts */
#define DP_TUNER_WARMUP 2       /* steps after a change that are not looked at */
#define DP_TUNER_STEPS_MAX 2000 /* then the initial value holds again */

typedef struct dp_tuner {
    dp_ladder_t ladder;
    int current; /* index of the value in force */
    int best;    /* index of the best value so far */
    dp_tuner_phase_t phase;
    /* the search */
    int direction; /* 1, then -1, then 0: nothing is left to try */
    int has_moved; /* a candidate in this direction was better */
    /* the window */
    double samples[DP_TUNER_WINDOW];
    int count, skip;
    uint64_t bytes; /* of a usual step; others are not looked at */
    int unusual;    /* steps in a row that were not usual */
    double before, before_noise, candidate, candidate_noise;
    int tries;             /* of the candidate */
    double gain, variance; /* sums over them, relative; at the end of all windows */
    int turn;              /* of the comparison at the end */
    double initials[2], bests[2];
    int steps;                /* seen so far */
    double initial_s, best_s; /* once finished: a step's time before and after */
} dp_tuner_t;

void dp_tuner_init(dp_tuner_t *tuner, const dp_ladder_t *ladder); /* copied */

/* A step took so long and moved so much. 1: another value is to be in force from the next step on,
 * dp_tuner_value(). */
int dp_tuner_step(dp_tuner_t *tuner, double seconds, uint64_t bytes);

uint64_t dp_tuner_value(const dp_tuner_t *tuner);

#endif
