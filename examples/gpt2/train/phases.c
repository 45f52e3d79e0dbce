/*
 * phases.c - divides time among the parts of a step. The trainer calls it on the main thread.
 */
#include "examples/gpt2/train/phases.h"

#include <math.h>

void gpt2_phases_divide(gpt2_phases_t *phases, double elapsed, const gpt2_traffic_t *before,
                        const gpt2_traffic_t *after, double *work, int is_weights)
{
    /* The library's clock is not the caller's, so a wait may seem longer than what contains it. */
    const double waited = fmin(1e-9 * (double)(after->wait_ns - before->wait_ns), elapsed);
    const double skew = fmin(1e-9 * (double)(after->skew_ns - before->skew_ns), waited);

    phases->skew += skew;
    phases->exposed += waited - skew;
    if (is_weights) phases->weights += waited - skew;
    *work += elapsed - waited;
}

gpt2_phases_t gpt2_phases_between(const gpt2_phases_t *before, const gpt2_phases_t *after)
{
    return (gpt2_phases_t){.forward = after->forward - before->forward,
                           .backward = after->backward - before->backward,
                           .exposed = after->exposed - before->exposed,
                           .skew = after->skew - before->skew,
                           .optimizer = after->optimizer - before->optimizer,
                           .other = after->other - before->other,
                           .total = after->total - before->total,
                           .weights = after->weights - before->weights,
                           .transfer = after->transfer - before->transfer,
                           .wire = after->wire - before->wire,
                           .steps = after->steps - before->steps};
}
