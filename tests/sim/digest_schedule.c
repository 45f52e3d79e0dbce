/*
 * digest_schedule.c - the cached schedule's part of a negotiator's digest.
 */
#include "digest_internal.h"

#include "coordinator/negotiator/schedule/schedule_internal.h"

/* Rounds that all tensors of a kept schedule have come through: only what is above matters. */
static uint64_t fewest_kept(const dp_negotiator_t *n)
{
    uint64_t fewest = UINT64_MAX;

    for (size_t i = 0; i < n->table.entry_count; i++) {
        const dp_entry_t *entry = n->table.entries[i];

        if (entry->schedule->resume_uses > 0)
            fewest =
                dp_min(fewest, entry->schedule->resume_launches / entry->schedule->resume_uses);
    }
    return fewest;
}

uint64_t digest_schedule_entry(uint64_t digest, const dp_negotiator_t *n, const dp_entry_t *entry)
{
    const dp_schedule_entry_t *own = entry->schedule;

    digest = mix(digest, (uint64_t)own->fits | (uint64_t)own->unsettled << 8 |
                             (uint64_t)own->planned_uses << 32);
    digest = mix(digest, own->last_launch);
    if (!n->schedule->resume.is_kept) return digest;
    digest = mix(digest, own->resume_uses);
    return mix(digest, own->resume_launches - fewest_kept(n) * own->resume_uses);
}

uint64_t digest_schedule(uint64_t digest, const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;

    digest =
        mix(digest, (uint64_t)dp_schedule_is_active(n) << 32 | (uint64_t)schedule->is_paused << 33 |
                        (uint64_t)schedule->stop.has_reason << 34 |
                        (uint64_t)schedule->stop.is_reason_sent << 35 |
                        (uint64_t)schedule->stop.is_reached_sent << 36 |
                        (uint64_t)schedule->detect.is_declared << 37 |
                        (uint64_t)(schedule->detect.due > 0) << 38 |
                        (uint64_t)(schedule->catch_up.waited_ns != 0) << 39 |
                        (uint64_t)(schedule->catch_up.gave_up_ns != 0) << 40 |
                        (uint64_t)schedule->catch_up.has_warned << 41 |
                        (uint64_t)schedule->detect.is_whole << 42 |
                        (uint64_t)schedule->resume.is_kept << 43 |
                        (uint64_t)schedule->run.has_misfit << 44);
    if (schedule->stop.has_reason && dp_schedule_is_active(n))
        digest = mix(digest, (uint64_t)schedule->stop.reason << 32 | (uint32_t)schedule->stop.rank);
    digest = mix(digest, schedule->base);
    digest = mix(digest, schedule->run.step);
    digest = mix(digest, schedule->run.launched);
    digest = mix(digest, schedule->run.confirmed);
    digest = mix(digest, schedule->run.counts_sent);
    digest = mix(digest, (uint64_t)schedule->run.slowest);
    for (int i = 0; i < n->child_count && dp_schedule_is_active(n); i++)
        digest = mix(digest, schedule->run.child_rounds[i]);
    if (schedule->is_paused) {
        digest = mix(digest, (uint64_t)schedule->stop.children_awaited);
        digest = mix(digest, schedule->stop.low);
        digest = mix(digest, schedule->stop.high);
    }
    digest = mix(digest, schedule->catch_up.unsettled);
    digest = mix(digest, schedule->catch_up.ahead);
    for (int i = 0; schedule->catch_up.floors != NULL && i < n->size; i++)
        digest = mix(digest, schedule->catch_up.floors[i]);
    digest = mix(digest, schedule->catch_up.done);
    for (size_t i = 0; i < schedule->catch_up.count; i++) {
        digest = mix(digest, (uint64_t)schedule->catch_up.occurrences[i].is_settled << 1 |
                                 (uint64_t)schedule->catch_up.occurrences[i].is_launched << 2 |
                                 (uint64_t)schedule->catch_up.occurrences[i].is_void << 3 |
                                 (uint64_t)schedule->catch_up.occurrences[i].absent << 8);
        digest = mix(digest, schedule->catch_up.occurrences[i].bucket +
                                 schedule->catch_up.occurrences[i].entry->hash);
    }
    for (size_t i = 0; i < schedule->detect.count; i++)
        digest = mix(digest, schedule->detect.history[i].entry->hash +
                                 (uint64_t)schedule->detect.history[i].is_first);
    digest =
        mix(digest, (uint64_t)schedule->detect.rounds_needed << 32 | schedule->detect.declared);
    digest = mix(digest, (uint64_t)schedule->detect.rounds_cut);
    digest = mix(digest, schedule->detect.period << 16 | schedule->detect.repeat);
    for (size_t i = 0; i < schedule->catch_up.deferred_count; i++)
        digest = mix(digest, schedule->catch_up.deferred[i].sequence +
                                 schedule->catch_up.deferred[i].behind);
    return digest;
}
