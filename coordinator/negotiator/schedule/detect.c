/*
 * detect.c - the root: finds rounds that repeat themselves, and makes a schedule of one.
 *
 * A round is what was ordered between two calls of dp_negotiator_round(); where the program makes
 * none, the shortest sequence that was ordered several times in a row. The schedule is the last
 * such round as it was ordered, launch by launch: two tensors of one launch were pending together
 * on every rank, so no rank had waited for the first before it submitted the second, and what it
 * did wait for lies in a launch before. The first declared round is believed at once, later ones
 * when several whole ones were alike. A schedule that did not live for twice as long as it took to
 * find costs more rounds before the next.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <stdlib.h>
#include <string.h>

#define HISTORY_MAX 32768  /* launches remembered, and the longest declared round */
#define PERIOD_MAX 4096    /* the longest sequence that is looked for */
#define REPEATS 3          /* times it must have been seen */
#define REPEATS_MAX 384    /* at most, after schedules that did not last */
#define LONG_LIFE 2        /* times the rounds seen before: then a schedule was worth it */
#define DECLARED_AGAIN 2   /* declared rounds alike, after a schedule has ended */
#define TORN_MOST 4        /* declared rounds in a row that cut operations: then none is believed */
#define CANDIDATES 8       /* earlier places of a tensor that are tried as a period */
#define COUNTED_BUCKETS 16 /* buckets between two COUNTs, at least */

/* Only what every rank needs of every other: no rank can be done before all have launched. Averages
 * of integers cannot be put right where a rank joins instead. */
int dp_detect_can_hold(const dp_entry_t *entry, const dp_signature_t *signature)
{
    uint64_t elements = 0;

    if (entry->view == NULL || entry->own_expect != NULL || signature == NULL) return 0;
    if (entry->view->is_closed || entry->id == DP_ID_NONE) return 0;
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

static void forget_history(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    for (size_t i = 0; i < schedule->detect.count; i++)
        schedule->detect.history[i].entry->schedule->last_launch = 0;
    schedule->detect.count = schedule->detect.round_begin = schedule->detect.period =
        schedule->detect.repeat = 0;
    schedule->detect.is_due = schedule->detect.is_whole = 0;
}

static dp_status_t reserve_history(dp_schedule_t *schedule)
{
    size_t room = schedule->detect.room > 0 ? schedule->detect.room * 2 : 256;
    dp_ordered_t *grown;

    if (schedule->detect.count < schedule->detect.room) return DP_OK;
    grown = realloc(schedule->detect.history, room * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    schedule->detect.history = grown;
    schedule->detect.room = room;
    return DP_OK;
}

/* Same tensor? */
static int is_same_tensor(const dp_ordered_t *a, const dp_ordered_t *b)
{
    return a->entry == b->entry;
}

/* Does the sequence go on as it went a period ago? Else another period is tried. */
static void follow_period(dp_schedule_t *schedule)
{
    const dp_ordered_t *newest = &schedule->detect.history[schedule->detect.count - 1];
    size_t at = schedule->detect.count - 1, earlier = newest->before;

    if (schedule->detect.period > 0 && at >= schedule->detect.period &&
        is_same_tensor(newest, &schedule->detect.history[at - schedule->detect.period])) {
        schedule->detect.repeat++;
        return;
    }
    schedule->detect.period = schedule->detect.repeat = 0;
    for (int i = 0; i < CANDIDATES && earlier > 0; i++) {
        size_t period = at - (earlier - 1), same = 1;

        if (period > PERIOD_MAX) return;
        while (same + period <= at && is_same_tensor(&schedule->detect.history[at - same],
                                                     &schedule->detect.history[at - same - period]))
            same++;
        if (same > schedule->detect.repeat) {
            schedule->detect.period = period;
            schedule->detect.repeat = same;
        }
        earlier = schedule->detect.history[earlier - 1].before;
    }
}

void dp_schedule_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                            const dp_launch_entry_t *launch_entry, int is_first)
{
    dp_schedule_t *schedule = n->schedule;

    if (!schedule->detect.may_schedule) return;
    dp_resume_note(n, entry);
    if (launch_entry->absent > 0 || !dp_detect_can_hold(entry, entry->signature)) {
        forget_history(n);
        return;
    }
    if (schedule->detect.count == HISTORY_MAX) forget_history(n);
    if (reserve_history(schedule) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    schedule->detect.history[schedule->detect.count++] =
        (dp_ordered_t){entry, entry->schedule->last_launch, is_first, launch_entry->in_place,
                       launch_entry->last_absmax};
    entry->schedule->last_launch = schedule->detect.count;
    if (!schedule->detect.is_declared) follow_period(schedule);
}

/* Of the declared round that is over, whatever the order in it. */
static uint64_t digest_round(const dp_schedule_t *schedule)
{
    uint64_t digest = 0;

    for (size_t i = schedule->detect.round_begin; i < schedule->detect.count; i++)
        digest +=
            ((uint64_t)schedule->detect.history[i].entry->id + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return digest;
}

void dp_schedule_round(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    uint64_t digest = digest_round(schedule);
    int has_ended = schedule->detect.rounds_needed > 0; /* a schedule before this round */

    if (!dp_is_root(n) || !schedule->detect.may_schedule || schedule->is_active ||
        schedule->detect.rounds_cut == TORN_MOST)
        return;
    schedule->detect.rounds_cut = n->own.pending > 0 ? schedule->detect.rounds_cut + 1 : 0;
    schedule->detect.is_declared = schedule->detect.rounds_cut < TORN_MOST;
    if (schedule->detect.count > schedule->detect.round_begin && n->own.pending == 0 &&
        (schedule->detect.is_whole || !has_ended)) {
        schedule->detect.declared =
            digest == schedule->detect.digest ? schedule->detect.declared + 1 : 1;
        schedule->detect.digest = digest;
        schedule->detect.is_due = 1; /* dp_schedule_detect() looks at it */
    } else {
        forget_history(n);
    }
    schedule->detect.is_whole = n->own.pending == 0;
}

static uint32_t needed_rounds(const dp_schedule_t *schedule)
{
    if (!schedule->detect.is_declared) return dp_max(schedule->detect.rounds_needed, REPEATS);
    return schedule->detect.rounds_needed == 0
               ? 1
               : dp_max(schedule->detect.rounds_needed / REPEATS, DECLARED_AGAIN);
}

void dp_detect_ended(dp_negotiator_t *n, uint64_t rounds)
{
    dp_schedule_t *schedule = n->schedule;

    forget_history(n);
    dp_resume_keep(n, rounds);
    schedule->detect.declared = 0;
    schedule->detect.rounds_needed =
        rounds >= LONG_LIFE * (uint64_t)needed_rounds(schedule)
            ? REPEATS
            : dp_min(dp_max(schedule->detect.rounds_needed, REPEATS) * 2, REPEATS_MAX);
}

/* ---- The schedule ----------------------------------------------------------------------- */

/* Do the last `count` launches make a schedule? */
static int is_usable_round(const dp_negotiator_t *n, size_t count)
{
    const dp_schedule_t *schedule = n->schedule;
    const dp_ordered_t *round = &schedule->detect.history[schedule->detect.count - count];

    if (count == 0 || !round->is_first) return 0;
    for (size_t i = 0; i < count; i++) {
        /* what has no figure yet would travel uncompressed for as long as the schedule lives */
        if (round[i].entry->signature->wire == DP_WIRE_FP16 && round[i].absmax < 0) return 0;
    }
    return 1;
}

/* Is all well enough for a schedule? */
int dp_detect_is_calm(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;

    if (schedule->catch_up.unsettled > 0 || schedule->catch_up.late_count > 0 ||
        n->own.queue.count > 0)
        return 0;
    if (n->leave.left_count > 0 || n->leave.is_finalizing || n->stall.stalled_count > 0) return 0;
    for (size_t i = 0; i <= n->groups.count; i++) {
        const dp_group_view_t *view = i < n->groups.count ? n->groups.views[i] : n->world;

        if (view->joined_count > 0 || view->has_join || view->is_closed) return 0;
    }
    return 1;
}

/* Is nothing pending that would end the schedule at once? */
static int has_nothing_else_pending(const dp_negotiator_t *n, size_t first)
{
    for (size_t i = 0; i < n->table.entry_count; i++) {
        const dp_entry_t *entry = n->table.entries[i];

        if (entry->is_pending &&
            (entry->arrived.is_mismatched || entry->schedule->last_launch <= first ||
             entry->arrived.proposed != NULL))
            return 0;
    }
    return 1;
}

/* Did a launch begin here, in any of the rounds that were seen? What was together once need not be
 * the next time. */
static int begins_launch(const dp_schedule_t *schedule, size_t at, size_t period)
{
    if (schedule->detect.is_declared || schedule->detect.history[at].is_first)
        return schedule->detect.history[at].is_first;
    for (int i = 1; i < REPEATS && at >= period; i++) {
        at -= period;
        if (schedule->detect.history[at].is_first) return 1;
    }
    return 0;
}

static dp_status_t build_schedule(dp_negotiator_t *n, size_t first)
{
    dp_schedule_t *schedule = n->schedule;
    size_t entries = schedule->detect.count - first;

    if (dp_schedule_reserve(schedule, entries, entries) != DP_OK) return DP_ERR_NO_MEMORY;
    schedule->bucket_count = schedule->planned_count = 0;
    for (size_t i = first; i < schedule->detect.count; i++) {
        const dp_ordered_t *past = &schedule->detect.history[i];

        if (begins_launch(schedule, i, entries))
            schedule->buckets[schedule->bucket_count++] =
                (dp_schedule_bucket_t){schedule->planned_count, 0, 0};
        schedule->buckets[schedule->bucket_count - 1].count++;
        schedule->planned[schedule->planned_count++] =
            (dp_planned_t){past->entry, past->in_place, past->absmax};
    }
    schedule->stride = (uint32_t)(1 + (COUNTED_BUCKETS - 1) / dp_max(schedule->bucket_count, 1));
    return DP_OK;
}

void dp_schedule_send_whole(dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;
    dp_item_t *item = &n->made;
    size_t bytes = 64 + schedule->bucket_count * DP_BUCKET_BYTES +
                   schedule->planned_count * DP_BUCKET_ENTRY_BYTES;
    dp_writer_t writer;

    item->kind = DP_ITEM_SCHEDULE;
    item->sequence = n->sequence;
    item->stride = schedule->stride;
    item->count = (uint32_t)schedule->bucket_count;
    if (!dp_outbox_down_begin(n, n->world->expect, n->position, bytes, &writer)) return;
    dp_item_write(&writer, item);
    for (size_t b = 0; b < schedule->bucket_count; b++) {
        const dp_schedule_bucket_t *bucket = &schedule->buckets[b];

        dp_write_u32(&writer, (uint32_t)bucket->count);
        for (size_t i = 0; i < bucket->count; i++) {
            const dp_planned_t *planned = &schedule->planned[bucket->begin + i];

            item->id = planned->entry->id;
            item->flags = planned->in_place ? DP_FLAG_IN_PLACE : 0;
            item->absmax = planned->absmax;
            dp_item_write_entry(&writer, item);
        }
    }
    dp_outbox_down_commit(n, &writer, 1);
    dp_outbox_close_down(n); /* what follows is of the next epoch */
}

/* How many launches the schedule would have; 0: it is not time. */
static size_t due_length(dp_schedule_t *schedule)
{
    size_t count = schedule->detect.count - schedule->detect.round_begin;

    if (!schedule->detect.is_declared) {
        if (schedule->detect.period == 0) return 0;
        return schedule->detect.repeat >=
                       schedule->detect.period * (size_t)(needed_rounds(schedule) - 1)
                   ? schedule->detect.period
                   : 0;
    }
    if (!schedule->detect.is_due) return 0;
    schedule->detect.is_due = 0;
    schedule->detect.round_begin = schedule->detect.count;
    return schedule->detect.declared >= needed_rounds(schedule) ? count : 0;
}

void dp_schedule_detect(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    size_t count;

    if (!dp_is_root(n) || !schedule->detect.may_schedule || schedule->is_active || n->is_fatal ||
        n->is_finished)
        return;
    count = due_length(schedule);
    if (count == 0 || !is_usable_round(n, count) || !dp_detect_is_calm(n) ||
        !has_nothing_else_pending(n, schedule->detect.count - count))
        return;
    if (build_schedule(n, schedule->detect.count - count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_schedule_send_whole(n);
    if (!n->is_fatal) dp_schedule_begin(n, n->sequence);
}
