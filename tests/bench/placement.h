/*
 * placement.h - how far apart two cores are right now: nanoseconds for a cache line to cross.
 *
 * A virtual machine's cores may sit on one core complex or on two, or be hyperthreads of one core,
 * and be moved in mid-run, which changes a small allreduce fourfold. A benchmark that compares two
 * ways measures this around each of its slices and compares like with like.
 */
#ifndef DP_TESTS_PLACEMENT_H
#define DP_TESTS_PLACEMENT_H

#include <stdatomic.h>

#include "runtime/base/common.h"

typedef struct placement {
    _Alignas(128) _Atomic uint32_t ball[2]; /* [0] written by side 0, [1] by side 1 */
    _Alignas(128) _Atomic uint32_t rounds;  /* measurements finished */
    double ns;                              /* of the last one */
} placement_t;                              /* in zeroed memory that both sides map */

/* Siblings are hyperthreads of one core: they share its caches, and its time. */
enum { PLACEMENT_SIBLINGS, PLACEMENT_NEAR, PLACEMENT_BETWEEN, PLACEMENT_FAR, PLACEMENT_COUNT };

static inline const char *placement_name(int placement)
{
    static const char *const names[PLACEMENT_COUNT] = {"siblings", "near", "between", "far"};

    return names[placement];
}

/* Both sides call it; both get the same answer. A one-way trip in ns, the best of some tries. */
static inline double placement_measure(placement_t *table, int side, uint32_t *round)
{
    enum { TRIES = 5, TRIPS = 100 };
    uint32_t hit = *round * TRIES * TRIPS;
    double best = 1e9;

    for (int try = 0; try < TRIES; try++) {
        const uint64_t start_ns = dp_now_ns();
        double each;

        for (int trip = 0; trip < TRIPS; trip++) {
            hit++;
            if (side == 0) atomic_store_explicit(&table->ball[0], hit, memory_order_release);
            while (atomic_load_explicit(&table->ball[1 - side], memory_order_acquire) != hit) {
            }
            if (side == 1) atomic_store_explicit(&table->ball[1], hit, memory_order_release);
        }
        each = (double)(dp_now_ns() - start_ns) / TRIPS / 2;
        best = dp_min(best, each);
    }
    ++*round;
    if (side == 0) {
        table->ns = best;
        atomic_store_explicit(&table->rounds, *round, memory_order_release);
    }
    while (atomic_load_explicit(&table->rounds, memory_order_acquire) < *round) {
    }
    return table->ns;
}

static inline int placement_of(double ns)
{
    if (ns < 35) return PLACEMENT_SIBLINGS;
    if (ns < 110) return PLACEMENT_NEAR;
    return ns > 140 ? PLACEMENT_FAR : PLACEMENT_BETWEEN;
}

/* The class of a slice; -1: it changed meanwhile. */
static inline int placement_class(double before_ns, double after_ns)
{
    const int before = placement_of(before_ns);

    return before == placement_of(after_ns) ? before : -1;
}

#endif
