/*
 * phases.h - where the time of a step goes: the parts that reports show, and how a stretch of time
 * is divided among them. Pure arithmetic.
 */
#ifndef GPT2_PHASES_H
#define GPT2_PHASES_H

#include <stdint.h>

#include "examples/gpt2/strategy/strategy.h"

/* Where the time of steps went, in seconds; the parts sum to total. */
typedef struct gpt2_phases {
    double forward;
    double backward;  /* with the hand-over of gradients */
    double exposed;   /* waiting for gradients or weights that were on their way */
    double skew;      /* waiting for ranks that were not ready */
    double optimizer; /* norm, clip, update */
    double other;     /* picking data, bookkeeping */
    double total;
    double weights;  /* of exposed: waiting for weights; the rest is for gradients */
    double transfer; /* communication, hidden or not; not a part */
    double wire;     /* bytes that this rank sent to other nodes; not a part */
    uint64_t steps;
} gpt2_phases_t;

/* Divides `elapsed` seconds: blocked in the library waiting for late ranks is skew, blocked
 * otherwise is exposed, and the rest counts as *work. The traffic is that of its start and end.
 * is_weights: what it waited for; else it was gradients. */
void gpt2_phases_divide(gpt2_phases_t *phases, double elapsed, const gpt2_traffic_t *before,
                        const gpt2_traffic_t *after, double *work, int is_weights);

/* after - before, part by part. */
gpt2_phases_t gpt2_phases_between(const gpt2_phases_t *before, const gpt2_phases_t *after);

#endif
