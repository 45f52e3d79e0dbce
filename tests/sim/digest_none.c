/*
 * digest_none.c - the digest of a negotiator that is built without a schedule: there is nothing.
 */
#include "digest_internal.h"

uint64_t digest_schedule(uint64_t digest, const dp_negotiator_t *n)
{
    (void)n;
    return digest;
}

uint64_t digest_schedule_entry(uint64_t digest, const dp_negotiator_t *n, const dp_entry_t *entry)
{
    (void)n;
    (void)entry;
    return digest;
}
