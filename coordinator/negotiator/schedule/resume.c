/*
 * resume.c - the root: a plan that held for a while comes back when what ended it has passed.
 *
 * A loss that is averaged now and then, an evaluation, a comparison of weights: each is a tensor
 * outside the plan and ends the lock, and behind it the same rounds go on. So the plan is kept, and
 * it is counted how often its tensors have been launched since. When all of them have come through
 * the same number of rounds and one is announced again, a round begins, and the schedule is locked
 * as it was. A lock may begin anywhere, so a wrong guess costs another end of it and nothing else.
 */
#include "coordinator/negotiator/negotiator_internal.h"

/* What ended it says nothing against the plan. */
static int is_passing(dp_schedule_end_reason_t reason)
{
    return reason == DP_SCHEDULE_END_TENSOR || reason == DP_SCHEDULE_END_GROUP ||
           reason == DP_SCHEDULE_END_STALL;
}

/* Bucket by bucket, as far as any rank had come: the others make up for it. */
void dp_resume_keep(dp_negotiator_t *n, uint64_t rounds)
{
    dp_lock_t *lock = &n->lock;

    lock->is_kept =
        lock->resume_rounds > 0 && rounds >= lock->resume_rounds && is_passing(lock->reason);
    for (size_t i = 0; i < n->table.row_count && lock->is_kept; i++)
        n->table.rows[i]->kept_uses = n->table.rows[i]->kept_launches = 0;
    for (size_t b = 0; b < lock->bucket_count && lock->is_kept; b++) {
        const dp_lock_bucket_t *bucket = &lock->buckets[b];

        for (size_t i = 0; i < bucket->count; i++) {
            dp_row_t *row = lock->entries[bucket->begin + i].row;

            row->kept_uses++;
            row->kept_launches += bucket->rounds;
        }
    }
}

void dp_resume_drop(dp_negotiator_t *n)
{
    n->lock.is_kept = 0;
}

void dp_resume_note(dp_negotiator_t *n, dp_row_t *row)
{
    if (n->lock.is_kept) row->kept_launches++; /* of others it is not looked at */
}

static int is_of_plan(const dp_row_t *row)
{
    return row->kept_uses > 0 && !row->is_mismatched && row->proposed == NULL;
}

/* Is something announced, and all of it of the plan? */
static int begins(const dp_negotiator_t *n)
{
    int found = 0;

    for (size_t i = 0; i < n->table.row_count; i++) {
        const dp_row_t *row = n->table.rows[i];

        if (!row->is_pending) continue;
        if (!is_of_plan(row)) return 0;
        found = 1;
    }
    return found;
}

/* Have all tensors come through the same number of whole rounds? */
static int is_between_rounds(const dp_lock_t *lock)
{
    const dp_row_t *first = lock->entries[0].row;

    if (first->kept_launches % first->kept_uses != 0) return 0;
    for (size_t i = 0; i < lock->entry_count; i++) {
        const dp_row_t *row = lock->entries[i].row;

        if (!dp_lock_is_lockable(row, row->signature)) return 0;
        if (row->kept_launches * first->kept_uses != first->kept_launches * row->kept_uses)
            return 0;
    }
    return 1;
}

/* Before anything is ordered: the first tensor of the round is to be launched by the plan. */
void dp_resume_flush(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    if (!lock->is_kept || lock->is_scheduled || n->is_fatal || n->is_finished) return;
    if (!begins(n) || !dp_plan_is_calm(n) || !is_between_rounds(lock)) return;
    dp_plan_send(n);
    if (!n->is_fatal) dp_lock_begin(n, n->sequence);
}
