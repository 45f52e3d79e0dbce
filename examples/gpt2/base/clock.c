/*
 * clock.c - seconds of a clock that never jumps; see clock.h.
 */
#include "examples/gpt2/base/clock.h"

#include <time.h>

double gpt2_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
