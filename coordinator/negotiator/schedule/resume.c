/*
 * resume.c - the root: a schedule that lasted for a while comes back when what ended it has passed.
 *
 * A loss that is averaged now and then, an evaluation, a comparison of weights: each is a tensor
 * outside the schedule and ends it, and behind it the same rounds go on. So the schedule is kept,
 * and the root counts how often its tensors are launched by negotiation. When all of them have come
 * through the same number of rounds, and one of them is announced again, a round begins, and the
 * root orders the same schedule. A schedule may begin anywhere, so a wrong guess costs its end and
 * nothing else. Called by detect.c and, through schedule.h, by flush.c and agree.c.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

/* Does this reason leave the schedule as good as before? */
static int is_passing(dp_schedule_end_reason_t reason)
{
    return reason == DP_SCHEDULE_END_TENSOR || reason == DP_SCHEDULE_END_GROUP ||
           reason == DP_SCHEDULE_END_STALL;
}

/* A launch counts for a bucket if any rank has made it: the other ranks catch up. */
void dp_resume_keep(dp_negotiator_t *n, uint64_t rounds)
{
    dp_schedule_t *schedule = n->schedule;

    schedule->resume.is_kept = schedule->resume.rounds_lived > 0 &&
                               rounds >= schedule->resume.rounds_lived &&
                               is_passing(schedule->stop.reason);
    for (size_t i = 0; i < n->table.entry_count && schedule->resume.is_kept; i++) {
        n->table.entries[i]->schedule->resume_uses = 0;
        n->table.entries[i]->schedule->resume_launches = 0;
    }
    for (size_t b = 0; b < schedule->bucket_count && schedule->resume.is_kept; b++) {
        const dp_schedule_bucket_t *bucket = &schedule->buckets[b];

        for (size_t i = 0; i < bucket->count; i++) {
            dp_entry_t *entry = schedule->planned[bucket->begin + i].entry;

            entry->schedule->resume_uses++;
            entry->schedule->resume_launches += bucket->rounds;
        }
    }
}

void dp_resume_drop(dp_negotiator_t *n)
{
    n->schedule->resume.is_kept = 0;
}

void dp_resume_note(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (n->schedule->resume.is_kept)
        entry->schedule->resume_launches++; /* of others it is not looked at */
}

static int is_of_schedule(const dp_entry_t *entry)
{
    return entry->schedule->resume_uses > 0 && !entry->arrived.is_mismatched &&
           entry->arrived.proposed == NULL;
}

/* Is something announced, and all of it of the schedule? */
static int has_round_begun(const dp_negotiator_t *n)
{
    int found = 0;

    for (size_t i = 0; i < n->table.entry_count; i++) {
        const dp_entry_t *entry = n->table.entries[i];

        if (!entry->is_pending) continue;
        if (!is_of_schedule(entry)) return 0;
        found = 1;
    }
    return found;
}

/* Have all tensors come through the same number of whole rounds? */
static int is_between_rounds(const dp_schedule_t *schedule)
{
    const dp_entry_t *first = schedule->planned[0].entry;

    if (first->schedule->resume_launches % first->schedule->resume_uses != 0) return 0;
    for (size_t i = 0; i < schedule->planned_count; i++) {
        const dp_entry_t *entry = schedule->planned[i].entry;

        if (!dp_schedule_can_hold(entry, entry->signature)) return 0;
        if (entry->schedule->resume_launches * first->schedule->resume_uses !=
            first->schedule->resume_launches * entry->schedule->resume_uses)
            return 0;
    }
    return 1;
}

/* Before anything is ordered: the first tensor of the round is to be launched by the schedule. */
void dp_resume_order(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    if (!schedule->resume.is_kept || n->is_fatal || n->is_finished) return;
    if (!has_round_begun(n) || !dp_schedule_is_calm(n) || !is_between_rounds(schedule)) return;
    dp_resume_drop(n);
    dp_schedule_send_whole(n);
    if (!n->is_fatal) dp_schedule_begin(n, n->sequence);
}

/* The kept schedule may hold entries of the group, which are going. */
void dp_schedule_group_ended(dp_negotiator_t *n)
{
    dp_resume_drop(n);
}
