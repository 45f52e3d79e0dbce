/*
 * standing.c - where a rank and those below it stand in the cached schedule, and the first reason
 * for which it must end.
 *
 * The lowest file of this folder: launch.c and schedule_messages.c ask it, and it calls neither.
 * Called on the thread that drives the negotiator.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <stdio.h>

/* The number of this rank's next bucket. */
uint64_t dp_schedule_next(const dp_schedule_t *schedule)
{
    if (schedule->own_bucket_count == 0) return DP_SCHEDULE_NOBODY;
    return schedule->run.step / schedule->own_bucket_count * schedule->bucket_count +
           schedule->own_buckets[schedule->run.step % schedule->own_bucket_count];
}

uint64_t dp_schedule_own_rounds(const dp_schedule_t *schedule)
{
    return schedule->own_bucket_count == 0 ? DP_SCHEDULE_NOBODY
                                           : schedule->run.step / schedule->own_bucket_count;
}

/* All rounds that the whole subtree has launched. */
uint64_t dp_schedule_rounds(const dp_negotiator_t *n)
{
    uint64_t rounds = dp_schedule_own_rounds(n->schedule);

    for (int i = 0; i < n->child_count; i++)
        rounds = dp_min(rounds, n->schedule->run.child_rounds[i]);
    return rounds;
}

uint64_t dp_schedule_horizon(const dp_negotiator_t *n)
{
    return (n->schedule->run.confirmed + n->schedule->stride + 1) * n->schedule->bucket_count;
}

void dp_schedule_leave(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                       const char *text)
{
    dp_schedule_t *schedule = n->schedule;

    if (!dp_schedule_is_active(n) || schedule->stop.has_reason) return;
    schedule->stop.has_reason = 1;
    schedule->stop.reason = reason;
    schedule->stop.rank = rank;
    snprintf(schedule->stop.text, sizeof(schedule->stop.text), "%s", text);
}
