/*
 * digest_internal.h - what digest.c shares with digest_schedule.c, or, for a negotiator without a
 * schedule, with digest_none.c.
 */
#ifndef DP_TESTS_SIM_DIGEST_INTERNAL_H
#define DP_TESTS_SIM_DIGEST_INTERNAL_H

#include "coordinator/negotiator/negotiator_internal.h"

static inline uint64_t mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}

/* What the schedule knows, and what it knows of one entry. */
uint64_t digest_schedule(uint64_t digest, const dp_negotiator_t *n);
uint64_t digest_schedule_entry(uint64_t digest, const dp_negotiator_t *n, const dp_entry_t *entry);

#endif
