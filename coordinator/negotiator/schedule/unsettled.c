/*
 * unsettled.c - what a schedule that has ended left to catch up on: the questions that others ask.
 *
 * It reads what catch_up.c keeps and calls no file of the negotiator, so that the negotiator's own
 * files can ask it without a circle. Called through schedule.h, on the thread that drives the
 * negotiator.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

int dp_catch_up_is_unsettled(const dp_entry_t *entry)
{
    return entry->schedule->unsettled > 0;
}

int dp_catch_up_has_early(const dp_negotiator_t *n, const dp_group_view_t *view)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;

    if (view == NULL) return catch_up->early_count > 0;
    for (size_t i = 0; i < catch_up->count && catch_up->early_count > 0; i++) {
        const dp_occurrence_t *occurrence = &catch_up->occurrences[i];

        if (occurrence->is_own && occurrence->is_launched && !occurrence->is_settled &&
            occurrence->group == view->uid)
            return 1;
    }
    return 0;
}

/*
 * Buckets are settled in the schedule's order, each as a whole. A launch of the new epoch comes
 * behind what its ranks have settled; if that could lie behind a bucket that is not settled, a rank
 * would have to launch that bucket first, and its program may submit the bucket's tensors only when
 * it has the result of the new launch.
 */
int dp_catch_up_must_wait(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;
    const dp_occurrence_t *next = &catch_up->occurrences[catch_up->settled];

    if (entry->schedule->unsettled == 0) return 0;
    if (entry->schedule->occurrences->bucket != next->bucket) return 1;
    for (size_t i = catch_up->settled;
         i < catch_up->count && catch_up->occurrences[i].bucket == next->bucket; i++) {
        const dp_occurrence_t *occurrence = &catch_up->occurrences[i];

        if (!occurrence->is_settled && !occurrence->entry->arrived.is_complete) return 1;
    }
    return 0;
}

int dp_catch_up_has_own(const dp_negotiator_t *n)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;

    return catch_up->late_count > 0 || catch_up->early_count > 0 || catch_up->deferred_count > 0;
}
