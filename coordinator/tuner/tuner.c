/*
 * tuner.c - finds the value of one setting under which a program's steps take least time. Pure;
 * tuner.h has the picture, tune.c calls it.
 *
 * Steps on a shared machine differ by more than most values of a setting matter, and drift. So a
 * candidate is compared with two windows of the best so far, one before and one after it, by
 * medians only. It has to be faster by a margin that grows with the scatter of all three; in doubt
 * it is measured again.
 */
#include "coordinator/tuner/tuner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/common.h"

#define MARGIN 0.01     /* less than this is not worth a change */
#define TRIES 4         /* measurements of one candidate, at most */
#define SCATTER 1.5     /* errors of the mean that a gain must exceed, beside the margin */
#define UNUSUAL_STEPS 6 /* so many of one size in a row, then they are the usual ones */
#define LAST_STEPS (6 * (DP_TUNER_WINDOW + DP_TUNER_WARMUP)) /* kept for the end */

void dp_ladder_around(dp_ladder_t *ladder, uint64_t initial, uint64_t least, uint64_t most,
                      int halvings, int doublings)
{
    uint64_t down[DP_LADDER_MAX], value = initial;
    int count = 0;

    *ladder = (dp_ladder_t){.count = 0};
    while (count < halvings && count < DP_LADDER_MAX - 1 && value / 2 >= least && value > 1) {
        value /= 2;
        down[count++] = value;
    }
    while (count > 0)
        ladder->values[ladder->count++] = down[--count];
    ladder->initial = ladder->count;
    ladder->values[ladder->count++] = initial;
    for (value = initial; doublings > 0 && ladder->count < DP_LADDER_MAX && value != 0;
         doublings--) {
        if (value > most / 2) break;
        value *= 2;
        ladder->values[ladder->count++] = value;
    }
}

/* ---- Windows -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), ascending);
    return count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2.0;
}

/* The window's median, and about how wrong that is: the median of the distances from it over the
 * root of their number (1.86 = 1.48 for sigma times 1.25 for a median). */
static double measure_window(dp_tuner_t *tuner, double *noise)
{
    double distances[DP_TUNER_WINDOW];
    double middle = median(tuner->samples, tuner->count);

    for (int i = 0; i < tuner->count; i++) {
        distances[i] =
            tuner->samples[i] > middle ? tuner->samples[i] - middle : middle - tuner->samples[i];
    }
    *noise = 1.86 / 3.0 * median(distances, tuner->count); /* 3: the root of the window */
    tuner->count = 0;
    return middle;
}

/* Puts a value in force for the next window. 1: it is another one. */
static int begin_window(dp_tuner_t *tuner, dp_tuner_phase_t phase, int index)
{
    const int changes = tuner->current != index;

    tuner->phase = phase;
    tuner->current = index;
    tuner->count = 0;
    tuner->skip = changes ? DP_TUNER_WARMUP : 0;
    return changes;
}

/* ---- The search ----------------------------------------------------------------------------- */

static int finish_search(dp_tuner_t *tuner, int index)
{
    tuner->best = index;
    return begin_window(tuner, DP_TUNER_FINISHED, index);
}

/* The direction after a candidate: on if it paid, else the other way if none has
 * been accepted yet, else the search is over. */
static void choose_direction(dp_tuner_t *tuner, int is_accepted)
{
    if (is_accepted) {
        tuner->has_moved = 1;
    } else {
        tuner->direction = tuner->direction == 1 && !tuner->has_moved ? -1 : 0;
    }
}

/* Begins the next candidate's window, or the comparison at the end. A direction ends at the
 * ladder's end as it does at a candidate that is not faster. */
static int begin_next_candidate(dp_tuner_t *tuner)
{
    while (tuner->direction != 0 && tuner->steps < DP_TUNER_STEPS_MAX - LAST_STEPS) {
        const int next = tuner->best + tuner->direction;

        if (next >= 0 && next < tuner->ladder.count)
            return begin_window(tuner, DP_TUNER_CANDIDATE, next);
        choose_direction(tuner, 0);
    }
    if (tuner->best != tuner->ladder.initial)
        return begin_window(tuner, DP_TUNER_INITIAL, tuner->ladder.initial);
    tuner->initial_s = tuner->best_s = tuner->before;
    return finish_search(tuner, tuner->ladder.initial);
}

/* The candidate was measured between two windows of the best so far. One that is neither clearly
 * faster nor clearly not is measured again, together with what was found before. */
static int judge_candidate(dp_tuner_t *tuner, double after, double after_noise)
{
    const double incumbent = (tuner->before + after) / 2.0;
    const double noise = dp_max(tuner->before_noise, after_noise);
    double margin, error;
    int is_accepted;

    tuner->tries++;
    tuner->gain += (incumbent - tuner->candidate) / incumbent;
    tuner->variance += (tuner->candidate_noise * tuner->candidate_noise + noise * noise / 2.0) /
                       (incumbent * incumbent);
    margin = MARGIN * tuner->tries;
    error = SCATTER * sqrt(tuner->variance);
    is_accepted = tuner->gain > margin + error;
    tuner->before = after;
    tuner->before_noise = after_noise;
    if (!is_accepted && tuner->gain > margin - error && tuner->tries < TRIES)
        return begin_window(tuner, DP_TUNER_CANDIDATE, tuner->best + tuner->direction);
    if (is_accepted) {
        tuner->best += tuner->direction;
        tuner->before = tuner->candidate;
        tuner->before_noise = tuner->candidate_noise;
    }
    tuner->tries = 0;
    tuner->gain = tuner->variance = 0.0;
    choose_direction(tuner, is_accepted);
    return begin_next_candidate(tuner);
}

/* The best value is kept only if it is clearly faster than the initial one. */
static int conclude(dp_tuner_t *tuner)
{
    tuner->initial_s = (tuner->initials[0] + tuner->initials[1]) / 2.0;
    tuner->best_s = (tuner->bests[0] + tuner->bests[1]) / 2.0;
    /* the error of the difference of two means of two windows each */
    if (tuner->initial_s - tuner->best_s >
        MARGIN * tuner->initial_s + SCATTER * sqrt(tuner->variance) / 2.0)
        return finish_search(tuner, tuner->best);
    tuner->best_s = tuner->initial_s;
    return finish_search(tuner, tuner->ladder.initial);
}

static int end_window(dp_tuner_t *tuner)
{
    double noise;
    const double middle = measure_window(tuner, &noise);

    switch (tuner->phase) {
    case DP_TUNER_BEFORE:
        tuner->before = middle;
        tuner->before_noise = noise;
        return begin_next_candidate(tuner);
    case DP_TUNER_CANDIDATE:
        tuner->candidate = middle;
        tuner->candidate_noise = noise;
        return begin_window(tuner, DP_TUNER_AFTER, tuner->best);
    case DP_TUNER_AFTER:
        return judge_candidate(tuner, middle, noise);
    case DP_TUNER_INITIAL:
        tuner->initials[tuner->turn] = middle;
        tuner->variance += noise * noise;
        return begin_window(tuner, DP_TUNER_BEST, tuner->best);
    case DP_TUNER_BEST:
        tuner->bests[tuner->turn] = middle;
        tuner->variance += noise * noise;
        if (tuner->turn++ > 0) return conclude(tuner);
        return begin_window(tuner, DP_TUNER_INITIAL, tuner->ladder.initial);
    case DP_TUNER_FINISHED:
        break;
    }
    return 0;
}

/* ---- From outside --------------------------------------------------------------------------- */

void dp_tuner_init(dp_tuner_t *tuner, const dp_ladder_t *ladder)
{
    *tuner = (dp_tuner_t){.ladder = *ladder,
                          .current = ladder->initial,
                          .best = ladder->initial,
                          .direction = 1,
                          .skip = DP_TUNER_WARMUP};
}

/* Steps of another size have become the usual ones: what was measured says nothing about them. */
static int begin_again(dp_tuner_t *tuner, uint64_t bytes)
{
    const int was_comparing = tuner->phase == DP_TUNER_INITIAL || tuner->phase == DP_TUNER_BEST;

    tuner->bytes = bytes;
    tuner->unusual = tuner->turn = tuner->tries = tuner->has_moved = 0;
    tuner->gain = tuner->variance = 0.0;
    tuner->direction = 1;
    return was_comparing ? begin_window(tuner, DP_TUNER_INITIAL, tuner->ladder.initial)
                         : begin_window(tuner, DP_TUNER_BEFORE, tuner->best);
}

/* It took too long to find out: nothing is changed on a guess. */
static int run_out(dp_tuner_t *tuner)
{
    tuner->initial_s = tuner->best_s = tuner->before;
    return finish_search(tuner, tuner->ladder.initial);
}

int dp_tuner_step(dp_tuner_t *tuner, double seconds, uint64_t bytes)
{
    if (tuner->phase == DP_TUNER_FINISHED) return 0;
    tuner->steps++;
    if (tuner->steps >= DP_TUNER_STEPS_MAX) return run_out(tuner);
    if (tuner->bytes == 0) tuner->bytes = bytes;
    if (bytes != tuner->bytes)
        return ++tuner->unusual < UNUSUAL_STEPS ? 0 : begin_again(tuner, bytes);
    tuner->unusual = 0;
    if (tuner->skip > 0) { /* launches of the old value, and a new cached schedule */
        tuner->skip--;
        return 0;
    }
    tuner->samples[tuner->count++] = seconds;
    return tuner->count == DP_TUNER_WINDOW ? end_window(tuner) : 0;
}

uint64_t dp_tuner_value(const dp_tuner_t *tuner)
{
    return tuner->ladder.values[tuner->current];
}
