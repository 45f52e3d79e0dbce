/*
 * direct_loop.h - the loop of the direct floor: no method moves fewer bytes. floor.c and apart.c.
 */
#ifndef DP_TESTS_DIRECT_LOOP_H
#define DP_TESTS_DIRECT_LOOP_H

#include <stddef.h>

/* As wide as this machine can; -O3 is set where it is built. */
#if defined(__x86_64__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

WIDE static void add_to_both(float *restrict own, float *restrict other, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float sum = own[i] + other[i];

        own[i] = sum;
        other[i] = sum;
    }
}

#endif
