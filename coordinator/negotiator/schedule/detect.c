/*
 * detect.c - the root: sees that rounds repeat themselves, and makes a plan of one.
 *
 * A round is what was ordered between two calls of dp_negotiator_round(); where the program makes
 * none, the shortest sequence that was ordered several times in a row. The plan is the last such
 * round as it was ordered, launch by launch: two tensors of one launch were pending together on
 * every rank, so no rank had waited for the first before it submitted the second, and what it did
 * wait for lies in a launch before. The first declared round is believed at once, later ones when
 * several whole ones were alike. A lock that did not live for twice as long as it took to find
 * costs more rounds before the next.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

#define PAST_MAX 32768     /* launches remembered, and the longest declared round */
#define PERIOD_MAX 4096    /* the longest sequence that is looked for */
#define REPEATS 3          /* times it must have been seen */
#define REPEATS_MAX 384    /* at most, after locks that did not last */
#define LONG_LIFE 2        /* times the rounds seen before: then a lock was worth it */
#define DECLARED_AGAIN 2   /* declared rounds alike, after a lock has ended */
#define TORN_MOST 4        /* declared rounds in a row that cut operations: then none is believed */
#define CANDIDATES 8       /* earlier places of a tensor that are tried as a period */
#define COUNTED_BUCKETS 16 /* buckets between two COUNTs, at least */

/* Only what every rank needs of every other: nobody can be done before all have launched. Averages
 * of integers cannot be put right where a rank joins instead. */
int dp_lock_is_lockable(const dp_row_t *row, const dp_signature_t *signature)
{
    uint64_t elements = 0;

    if (row->scope == NULL || row->own_expect != NULL || signature == NULL) return 0;
    if (row->scope->is_closed || row->id == DP_ID_NONE) return 0;
    if (signature->collective != DP_COLLECTIVE_ALLREDUCE &&
        signature->collective != DP_COLLECTIVE_REDUCE_SCATTER &&
        signature->collective != DP_COLLECTIVE_REDUCE_SCATTERV)
        return 0;
    for (uint32_t i = 0; i < signature->part_count; i++) {
        dp_dtype_t type = signature->parts[i].dtype;
        int is_float = type == DP_F16 || type == DP_BF16 || type == DP_F32 || type == DP_F64;

        if (signature->reduce == DP_AVERAGE && !signature->count_joined && !is_float) return 0;
        elements |= signature->parts[i].count;
    }
    return elements > 0;
}

void dp_plan_forget(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    for (size_t i = 0; i < lock->past_count; i++)
        lock->past[i].row->past = 0;
    lock->past_count = lock->mark = lock->period = lock->repeat = 0;
    lock->is_due = lock->is_whole = 0;
}

static dp_status_t reserve(dp_lock_t *lock)
{
    size_t room = lock->past_room > 0 ? lock->past_room * 2 : 256;
    dp_past_t *grown;

    if (lock->past_count < lock->past_room) return DP_OK;
    grown = realloc(lock->past, room * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    lock->past = grown;
    lock->past_room = room;
    return DP_OK;
}

/* Two places that a round could not tell apart. */
static int is_same(const dp_past_t *a, const dp_past_t *b)
{
    return a->row == b->row;
}

/* Does the sequence go on as it went a period ago? Else another period is tried. */
static void follow_period(dp_lock_t *lock)
{
    const dp_past_t *newest = &lock->past[lock->past_count - 1];
    size_t at = lock->past_count - 1, earlier = newest->before;

    if (lock->period > 0 && at >= lock->period && is_same(newest, &lock->past[at - lock->period])) {
        lock->repeat++;
        return;
    }
    lock->period = lock->repeat = 0;
    for (int i = 0; i < CANDIDATES && earlier > 0; i++) {
        size_t period = at - (earlier - 1), same = 1;

        if (period > PERIOD_MAX) return;
        while (same + period <= at &&
               is_same(&lock->past[at - same], &lock->past[at - same - period]))
            same++;
        if (same > lock->repeat) {
            lock->period = period;
            lock->repeat = same;
        }
        earlier = lock->past[earlier - 1].before;
    }
}

void dp_plan_note(dp_negotiator_t *n, dp_row_t *row, const dp_launch_entry_t *entry, int is_first)
{
    dp_lock_t *lock = &n->lock;

    if (!lock->may_schedule) return;
    dp_resume_note(n, row);
    if (entry->absent > 0 || !dp_lock_is_lockable(row, row->signature)) {
        dp_plan_forget(n);
        return;
    }
    if (lock->past_count == PAST_MAX) dp_plan_forget(n);
    if (reserve(lock) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    lock->past[lock->past_count++] =
        (dp_past_t){row, row->past, is_first, entry->in_place, entry->last_absmax};
    row->past = lock->past_count;
    if (!lock->is_declared) follow_period(lock);
}

/* Of the declared round that is over, whatever the order in it. */
static uint64_t digest_round(const dp_lock_t *lock)
{
    uint64_t digest = 0;

    for (size_t i = lock->mark; i < lock->past_count; i++)
        digest += ((uint64_t)lock->past[i].row->id + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return digest;
}

void dp_plan_round(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    uint64_t digest = digest_round(lock);
    int has_ended = lock->need > 0; /* a lock before this round */

    if (!dp_is_root(n) || !lock->may_schedule || lock->is_scheduled || lock->torn == TORN_MOST)
        return;
    lock->torn = n->own_pending > 0 ? lock->torn + 1 : 0;
    lock->is_declared = lock->torn < TORN_MOST;
    if (lock->past_count > lock->mark && n->own_pending == 0 && (lock->is_whole || !has_ended)) {
        lock->declared = digest == lock->digest ? lock->declared + 1 : 1;
        lock->digest = digest;
        lock->is_due = 1; /* dp_plan_flush() looks at it */
    } else {
        dp_plan_forget(n);
    }
    lock->is_whole = n->own_pending == 0;
}

static uint32_t needed(const dp_lock_t *lock)
{
    if (!lock->is_declared) return dp_max(lock->need, REPEATS);
    return lock->need == 0 ? 1 : dp_max(lock->need / REPEATS, DECLARED_AGAIN);
}

void dp_plan_ended(dp_negotiator_t *n, uint64_t rounds)
{
    dp_lock_t *lock = &n->lock;

    dp_plan_forget(n);
    dp_resume_keep(n, rounds);
    lock->declared = 0;
    lock->need = rounds >= LONG_LIFE * (uint64_t)needed(lock)
                     ? REPEATS
                     : dp_min(dp_max(lock->need, REPEATS) * 2, REPEATS_MAX);
}

/* ---- The plan --------------------------------------------------------------------------- */

/* Do the last `count` launches make a plan? */
static int is_plan(const dp_negotiator_t *n, size_t count)
{
    const dp_lock_t *lock = &n->lock;
    const dp_past_t *round = &lock->past[lock->past_count - count];

    if (count == 0 || !round->is_first) return 0;
    for (size_t i = 0; i < count; i++) {
        /* what has no figure yet would travel uncompressed for as long as the lock lives */
        if (round[i].row->signature->wire == DP_WIRE_FP16 && round[i].absmax < 0) return 0;
    }
    return 1;
}

/* Is all well enough for a lock? */
int dp_plan_is_calm(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    if (lock->open > 0 || lock->debts > 0 || n->restarts.count > 0) return 0;
    if (n->left_count > 0 || n->is_finalizing || n->stall.stalled_count > 0) return 0;
    for (size_t i = 0; i <= n->group_count; i++) {
        const dp_scope_t *scope = i < n->group_count ? n->groups[i] : n->world;

        if (scope->joined_count > 0 || scope->has_join || scope->is_closed) return 0;
    }
    return 1;
}

/* Is nothing pending that would end the lock at once? */
static int is_clear(const dp_negotiator_t *n, size_t first)
{
    for (size_t i = 0; i < n->table.row_count; i++) {
        const dp_row_t *row = n->table.rows[i];

        if (row->is_pending && (row->is_mismatched || row->past <= first || row->proposed != NULL))
            return 0;
    }
    return 1;
}

/* Did a launch begin here, in any of the rounds that were seen? What was together once need not be
 * the next time. */
static int begins(const dp_lock_t *lock, size_t at, size_t period)
{
    if (lock->is_declared || lock->past[at].is_first) return lock->past[at].is_first;
    for (int i = 1; i < REPEATS && at >= period; i++) {
        at -= period;
        if (lock->past[at].is_first) return 1;
    }
    return 0;
}

static dp_status_t make(dp_negotiator_t *n, size_t first)
{
    dp_lock_t *lock = &n->lock;
    size_t entries = lock->past_count - first;

    if (dp_lock_plan_reserve(lock, entries, entries) != DP_OK) return DP_ERR_NO_MEMORY;
    lock->bucket_count = lock->entry_count = 0;
    for (size_t i = first; i < lock->past_count; i++) {
        const dp_past_t *past = &lock->past[i];

        if (begins(lock, i, entries))
            lock->buckets[lock->bucket_count++] = (dp_lock_bucket_t){lock->entry_count, 0, 0};
        lock->buckets[lock->bucket_count - 1].count++;
        lock->entries[lock->entry_count++] =
            (dp_lock_entry_t){past->row, past->in_place, past->absmax};
    }
    lock->stride = (uint32_t)(1 + (COUNTED_BUCKETS - 1) / dp_max(lock->bucket_count, 1));
    return DP_OK;
}

void dp_plan_send(dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;
    dp_item_t *item = &n->made;
    size_t bytes =
        64 + lock->bucket_count * DP_BUCKET_BYTES + lock->entry_count * DP_BUCKET_ENTRY_BYTES;
    dp_writer_t writer;

    item->kind = DP_ITEM_SCHEDULE;
    item->sequence = n->sequence;
    item->stride = lock->stride;
    item->count = (uint32_t)lock->bucket_count;
    if (!dp_outbox_down_begin(n, n->world->expect, n->position, bytes, &writer)) return;
    dp_item_write(&writer, item);
    for (size_t b = 0; b < lock->bucket_count; b++) {
        const dp_lock_bucket_t *bucket = &lock->buckets[b];

        dp_write_u32(&writer, (uint32_t)bucket->count);
        for (size_t i = 0; i < bucket->count; i++) {
            const dp_lock_entry_t *planned = &lock->entries[bucket->begin + i];

            item->id = planned->row->id;
            item->flags = planned->in_place ? DP_FLAG_IN_PLACE : 0;
            item->absmax = planned->absmax;
            dp_item_write_entry(&writer, item);
        }
    }
    dp_outbox_down_commit(n, &writer, 1);
    dp_outbox_close_down(n); /* what follows is of the next epoch */
}

/* How many launches the plan would have; 0: it is not time. */
static size_t due(dp_lock_t *lock)
{
    size_t count = lock->past_count - lock->mark;

    if (!lock->is_declared) {
        if (lock->period == 0) return 0;
        return lock->repeat >= lock->period * (size_t)(needed(lock) - 1) ? lock->period : 0;
    }
    if (!lock->is_due) return 0;
    lock->is_due = 0;
    lock->mark = lock->past_count;
    return lock->declared >= needed(lock) ? count : 0;
}

void dp_plan_flush(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    size_t count;

    if (!dp_is_root(n) || !lock->may_schedule || lock->is_scheduled || n->is_fatal ||
        n->is_finished)
        return;
    count = due(lock);
    if (count == 0 || !is_plan(n, count) || !dp_plan_is_calm(n) ||
        !is_clear(n, lock->past_count - count))
        return;
    if (make(n, lock->past_count - count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_plan_send(n);
    if (!n->is_fatal) dp_lock_begin(n, n->sequence);
}
