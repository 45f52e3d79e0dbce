/*
 * tuner.c - finds the settings under which a program's steps take least time, one knob at a time.
 *
 * Steps on a shared machine differ by more than most settings matter, and drift. So a candidate is
 * compared with two windows of the best so far, one before and one after it, medians only, and has
 * to be faster by a margin that grows with the scatter of all three; in doubt it is measured again.
 */
#include "coordinator/tuner/tuner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/common.h"
#include "runtime/base/config_value.h"

#define MARGIN 0.01     /* less than this is not worth a change */
#define TRIES 4         /* measurements of one candidate, at most */
#define SCATTER 1.5     /* errors of the mean that a gain must exceed, beside the margin */
#define PASSES 2        /* over all knobs; the second only if the first moved something */
#define STRANGE_STEPS 6 /* in a row, then they are the usual ones */
#define LAST_STEPS (6 * (DP_TUNER_WINDOW + DP_TUNER_WARMUP)) /* kept for the end */

static const char *const names[DP_KNOBS] = {"FUSION_BYTES", "FUSION_BUFFERS", "IN_PLACE",
                                            "FUSION_HOLD"};

const char *dp_knob_name(dp_knob_t knob)
{
    return (unsigned)knob < DP_KNOBS ? names[knob] : "?";
}

/* ---- Ladders -------------------------------------------------------------------------------- */

void dp_ladder_around(dp_ladder_t *ladder, uint64_t home, uint64_t least, uint64_t most,
                      int rungs_down, int rungs_up)
{
    uint64_t down[DP_LADDER_MAX], value = home;
    int count = 0;

    *ladder = (dp_ladder_t){.count = 0};
    while (count < rungs_down && count < DP_LADDER_MAX - 1 && value / 2 >= least && value > 1) {
        value /= 2;
        down[count++] = value;
    }
    while (count > 0)
        ladder->values[ladder->count++] = down[--count];
    ladder->home = ladder->count;
    ladder->values[ladder->count++] = home;
    for (value = home; rungs_up > 0 && ladder->count < DP_LADDER_MAX && value != 0; rungs_up--) {
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
static double measure(dp_tuner_t *tuner, double *noise)
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

/* Puts settings in force for the next window. */
static int enter(dp_tuner_t *tuner, dp_tuner_phase_t phase, const int rungs[DP_KNOBS])
{
    const int changes = memcmp(tuner->rungs, rungs, sizeof(tuner->rungs)) != 0;

    tuner->phase = phase;
    memmove(tuner->rungs, rungs, sizeof(tuner->rungs));
    tuner->count = 0;
    tuner->skip = changes ? DP_TUNER_WARMUP : 0;
    tuner->changes += changes;
    return changes;
}

/* ---- The search ----------------------------------------------------------------------------- */

static void next_knob(dp_tuner_t *tuner)
{
    tuner->knob++;
    tuner->direction = 1;
    tuner->has_moved = 0;
    if (tuner->knob < DP_KNOBS || tuner->pass + 1 >= PASSES || !tuner->pass_moved) return;
    tuner->pass++;
    tuner->pass_moved = 0;
    tuner->knob = 0;
}

/* A candidate's fate: one step further in a direction that paid, else the other one, else the next
 * knob. */
static void turn(dp_tuner_t *tuner, int is_accepted)
{
    if (is_accepted) {
        tuner->has_moved = tuner->pass_moved = 1;
    } else if (tuner->direction == 1 && !tuner->has_moved) {
        tuner->direction = -1;
    } else {
        next_knob(tuner);
    }
}

/* The next candidate; 0: there is none left. */
static int find_candidate(dp_tuner_t *tuner, int candidate[DP_KNOBS])
{
    while (tuner->knob < DP_KNOBS && tuner->steps < DP_TUNER_STEPS_MAX - LAST_STEPS) {
        const int rung = tuner->best[tuner->knob] + tuner->direction;

        if (rung >= 0 && rung < tuner->ladders[tuner->knob].count) {
            memcpy(candidate, tuner->best, sizeof(tuner->best));
            candidate[tuner->knob] = rung;
            return 1;
        }
        turn(tuner, 0);
    }
    return 0;
}

static void home_of(const dp_tuner_t *tuner, int rungs[DP_KNOBS])
{
    for (int knob = 0; knob < DP_KNOBS; knob++)
        rungs[knob] = tuner->ladders[knob].home;
}

static int settle(dp_tuner_t *tuner, const int rungs[DP_KNOBS])
{
    memmove(tuner->best, rungs, sizeof(tuner->best));
    return enter(tuner, DP_TUNER_SETTLED, rungs);
}

static int search(dp_tuner_t *tuner)
{
    int candidate[DP_KNOBS], home[DP_KNOBS];

    if (find_candidate(tuner, candidate)) return enter(tuner, DP_TUNER_CANDIDATE, candidate);
    home_of(tuner, home);
    if (memcmp(home, tuner->best, sizeof(home)) != 0) return enter(tuner, DP_TUNER_HOME, home);
    tuner->home_s = tuner->best_s = tuner->before;
    return settle(tuner, home);
}

/* The candidate was measured between two windows of the best so far. What is neither clearly faster
 * nor clearly not is measured again, and counts together with what was found before. */
static int judge(dp_tuner_t *tuner, double after, double after_noise)
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
    if (!is_accepted && tuner->gain > margin - error && tuner->tries < TRIES) {
        int candidate[DP_KNOBS];

        memcpy(candidate, tuner->best, sizeof(candidate));
        candidate[tuner->knob] += tuner->direction;
        tuner->before = after;
        tuner->before_noise = after_noise;
        return enter(tuner, DP_TUNER_CANDIDATE, candidate);
    }
    if (is_accepted) {
        tuner->best[tuner->knob] += tuner->direction;
        tuner->before = tuner->candidate;
        tuner->before_noise = tuner->candidate_noise;
    } else {
        tuner->before = after;
        tuner->before_noise = after_noise;
    }
    tuner->tries = 0;
    tuner->gain = tuner->variance = 0.0;
    turn(tuner, is_accepted);
    return search(tuner);
}

/* What was found is kept only if it is faster than what the program came with, taken together. */
static int conclude(dp_tuner_t *tuner)
{
    int home[DP_KNOBS];

    tuner->home_s = (tuner->homes[0] + tuner->homes[1]) / 2.0;
    tuner->best_s = (tuner->bests[0] + tuner->bests[1]) / 2.0;
    /* the error of the difference of two means of two windows each */
    if (tuner->home_s - tuner->best_s >
        MARGIN * tuner->home_s + SCATTER * sqrt(tuner->variance) / 2.0)
        return settle(tuner, tuner->best);
    home_of(tuner, home);
    tuner->best_s = tuner->home_s;
    return settle(tuner, home);
}

static int end_window(dp_tuner_t *tuner)
{
    double noise;
    const double middle = measure(tuner, &noise);
    int home[DP_KNOBS];

    switch (tuner->phase) {
    case DP_TUNER_BEFORE:
        tuner->before = middle;
        tuner->before_noise = noise;
        return search(tuner);
    case DP_TUNER_CANDIDATE:
        tuner->candidate = middle;
        tuner->candidate_noise = noise;
        return enter(tuner, DP_TUNER_AFTER, tuner->best);
    case DP_TUNER_AFTER:
        return judge(tuner, middle, noise);
    case DP_TUNER_HOME:
        tuner->homes[tuner->round] = middle;
        tuner->variance += noise * noise;
        return enter(tuner, DP_TUNER_BEST, tuner->best);
    case DP_TUNER_BEST:
        tuner->bests[tuner->round] = middle;
        tuner->variance += noise * noise;
        if (tuner->round++ > 0) return conclude(tuner);
        home_of(tuner, home);
        return enter(tuner, DP_TUNER_HOME, home);
    case DP_TUNER_SETTLED:
        break;
    }
    return 0;
}

/* ---- From outside --------------------------------------------------------------------------- */

void dp_tuner_init(dp_tuner_t *tuner, const dp_ladder_t ladders[DP_KNOBS])
{
    *tuner = (dp_tuner_t){.direction = 1, .skip = DP_TUNER_WARMUP};
    memcpy(tuner->ladders, ladders, sizeof(tuner->ladders));
    home_of(tuner, tuner->rungs);
    home_of(tuner, tuner->best);
}

/* Steps of another kind have become the usual ones: what was measured is of no use for them. */
static int begin_again(dp_tuner_t *tuner, uint64_t bytes)
{
    int home[DP_KNOBS];

    tuner->bytes = bytes;
    tuner->strange = 0;
    tuner->round = tuner->tries = 0;
    tuner->gain = tuner->variance = 0.0;
    tuner->knob = tuner->pass = tuner->has_moved = tuner->pass_moved = 0;
    tuner->direction = 1;
    home_of(tuner, home);
    return tuner->phase == DP_TUNER_HOME || tuner->phase == DP_TUNER_BEST
               ? enter(tuner, DP_TUNER_HOME, home)
               : enter(tuner, DP_TUNER_BEFORE, tuner->best);
}

/* It took too long to find out: nothing is changed on a guess. */
static int run_out(dp_tuner_t *tuner)
{
    int home[DP_KNOBS];

    home_of(tuner, home);
    tuner->home_s = tuner->best_s = tuner->before;
    return settle(tuner, home);
}

int dp_tuner_step(dp_tuner_t *tuner, double seconds, uint64_t bytes)
{
    if (tuner->phase == DP_TUNER_SETTLED) return 0;
    tuner->steps++;
    if (tuner->steps >= DP_TUNER_STEPS_MAX) return run_out(tuner);
    if (tuner->bytes == 0) tuner->bytes = bytes;
    if (bytes != tuner->bytes) {
        return ++tuner->strange < STRANGE_STEPS ? 0 : begin_again(tuner, bytes);
    }
    tuner->strange = 0;
    if (tuner->skip > 0) {
        tuner->skip--;
        return 0;
    }
    tuner->samples[tuner->count++] = seconds;
    return tuner->count == DP_TUNER_WINDOW ? end_window(tuner) : 0;
}

uint64_t dp_tuner_value(const dp_tuner_t *tuner, dp_knob_t knob)
{
    return tuner->ladders[knob].values[tuner->rungs[knob]];
}

static void format_value(dp_knob_t knob, uint64_t value, char *text, size_t room)
{
    switch (knob) {
    case DP_KNOB_BUCKET:
    case DP_KNOB_IN_PLACE:
        dp_format_bytes((int64_t)value, text, room);
        break;
    case DP_KNOB_HOLD:
        dp_format_time((int64_t)value, text, room);
        break;
    case DP_KNOB_BUFFERS:
    case DP_KNOBS:
        snprintf(text, room, "%llu", (unsigned long long)value);
        break;
    }
}

void dp_tuner_report(const dp_tuner_t *tuner, char *text, size_t room)
{
    size_t used;
    int found = 0;

    snprintf(text, room, "tuned in %d steps:", tuner->steps);
    for (int knob = 0; knob < DP_KNOBS; knob++) {
        const dp_ladder_t *ladder = &tuner->ladders[knob];
        char now[32], before[32];

        if (tuner->rungs[knob] == ladder->home) continue;
        format_value((dp_knob_t)knob, ladder->values[tuner->rungs[knob]], now, sizeof(now));
        format_value((dp_knob_t)knob, ladder->values[ladder->home], before, sizeof(before));
        used = strlen(text);
        snprintf(text + used, room - used, "%s %s %s (was %s)", found++ > 0 ? "," : "", names[knob],
                 now, before);
    }
    used = strlen(text);
    if (found == 0) {
        snprintf(text + used, room - used, " nothing is faster than the settings in force");
        return;
    }
    snprintf(text + used, room - used, "; a step takes %.3f ms instead of %.3f ms (%.1f %% less)",
             tuner->best_s * 1e3, tuner->home_s * 1e3,
             100.0 * (1.0 - tuner->best_s / tuner->home_s));
}
