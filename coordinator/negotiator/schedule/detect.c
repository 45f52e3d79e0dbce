/*
 * detect.c - the root: finds rounds that repeat themselves, and makes a schedule of one.
 *
 * A round is what was ordered between two calls of dp_negotiator_round(). Where the program makes
 * none, it is the shortest sequence that was ordered several times in a row:
 *
 *   history   a b c | a b c | a b c        period 3, repeat 6: the newest 6 equal those 3 before
 *   is_first  1 0 1   1 1 1   1 0 1        buckets of the schedule: a | b | c
 *
 * The schedule is the last such round as it was ordered, launch by launch: two tensors of one
 * launch were pending together on every rank, so no rank had waited for the first before it
 * submitted the second, and what it did wait for lies in an earlier launch. The first declared
 * round is believed at once, later ones when several whole ones were alike. The root's call ends a
 * round for groups without the root at any point of theirs; so a first round that holds launches of
 * such groups must come a second time: two rounds alike have the same part of each, and the second
 * one goes on where the first one ended. A schedule that did not live for twice as long as it took
 * to find costs more rounds before the next one.
 *
 * Called through the hooks of schedule.h for each launch that is ordered and by flush.c, on the
 * thread that drives the root's negotiator.
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

static void forget_history(dp_negotiator_t *n)
{
    dp_detect_t *detect = &n->schedule->detect;

    for (size_t i = 0; i < detect->count; i++)
        detect->history[i].entry->schedule->last_launch = 0;
    detect->count = detect->round_begin = detect->period = detect->repeat = 0;
    detect->due = 0;
    detect->is_whole = 0;
    detect->declared = 0; /* the next one does not follow on those before */
}

static dp_status_t reserve_history(dp_detect_t *detect)
{
    size_t room = detect->room > 0 ? detect->room * 2 : 256;
    dp_ordered_t *grown;

    if (detect->count < detect->room) return DP_OK;
    grown = realloc(detect->history, room * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    detect->history = grown;
    detect->room = room;
    return DP_OK;
}

/* Same tensor? */
static int is_same_tensor(const dp_ordered_t *a, const dp_ordered_t *b)
{
    return a->entry == b->entry;
}

/* Keeps the invariant: the newest `repeat` launches equal those `period` before them. If the newest
 * one breaks it, the last few places of its tensor are tried as a period; the longest match wins.
 */
static void follow_period(dp_detect_t *detect)
{
    const dp_ordered_t *newest = &detect->history[detect->count - 1];
    size_t at = detect->count - 1, earlier = newest->before;

    if (detect->period > 0 && at >= detect->period &&
        is_same_tensor(newest, &detect->history[at - detect->period])) {
        detect->repeat++;
        return;
    }
    detect->period = detect->repeat = 0;
    for (int i = 0; i < CANDIDATES && earlier > 0; i++) {
        size_t period = at - (earlier - 1), same = 1;

        if (period > PERIOD_MAX) return;
        while (same + period <= at &&
               is_same_tensor(&detect->history[at - same], &detect->history[at - same - period]))
            same++;
        if (same > detect->repeat) {
            detect->period = period;
            detect->repeat = same;
        }
        earlier = detect->history[earlier - 1].before;
    }
}

void dp_detect_note_order(dp_negotiator_t *n, dp_entry_t *entry,
                          const dp_launch_entry_t *launch_entry, int is_first)
{
    dp_detect_t *detect = &n->schedule->detect;

    dp_resume_note(n, entry);
    if (launch_entry->absent > 0 || !dp_schedule_can_hold(entry, entry->signature)) {
        forget_history(n);
        return;
    }
    if (detect->count == HISTORY_MAX) forget_history(n);
    if (reserve_history(detect) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    detect->history[detect->count++] =
        (dp_ordered_t){entry, entry->schedule->last_launch, is_first, launch_entry->in_place,
                       launch_entry->last_absmax};
    entry->schedule->last_launch = detect->count;
    if (!detect->is_declared) follow_period(detect);
}

/* Of the declared round that is over, whatever the order in it. */
static uint64_t digest_round(const dp_detect_t *detect)
{
    uint64_t digest = 0;

    for (size_t i = detect->round_begin; i < detect->count; i++)
        digest += ((uint64_t)detect->history[i].entry->id + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return digest;
}

void dp_detect_end_round(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    dp_detect_t *detect = &schedule->detect;
    uint64_t digest = digest_round(detect);
    int has_ended = detect->rounds_needed > 0; /* a schedule before this round */

    if (dp_schedule_is_active(n) || detect->rounds_cut == TORN_MOST) return;
    detect->rounds_cut = n->own.pending > 0 ? detect->rounds_cut + 1 : 0;
    detect->is_declared = detect->rounds_cut < TORN_MOST;
    if (detect->count > detect->round_begin && n->own.pending == 0 &&
        (detect->is_whole || !has_ended)) {
        detect->declared = digest == detect->digest ? detect->declared + 1 : 1;
        detect->digest = digest;
        detect->due = detect->count - detect->round_begin; /* dp_detect_order() looks at it */
        detect->round_begin = detect->count;
    } else {
        forget_history(n);
    }
    detect->is_whole = n->own.pending == 0;
}

static uint32_t needed_rounds(const dp_detect_t *detect)
{
    if (!detect->is_declared) return dp_max(detect->rounds_needed, REPEATS);
    return detect->rounds_needed == 0 ? 1 : dp_max(detect->rounds_needed / REPEATS, DECLARED_AGAIN);
}

void dp_detect_ended(dp_negotiator_t *n, uint64_t rounds)
{
    dp_detect_t *detect = &n->schedule->detect;

    forget_history(n);
    dp_resume_keep(n, rounds);
    detect->rounds_needed = rounds >= LONG_LIFE * (uint64_t)needed_rounds(detect)
                                ? REPEATS
                                : dp_min(dp_max(detect->rounds_needed, REPEATS) * 2, REPEATS_MAX);
}

/* ---- The schedule --------------------------------------------------------------------------- */

/* Do the last `count` launches make a schedule? */
static int is_usable_round(const dp_negotiator_t *n, size_t count)
{
    const dp_detect_t *detect = &n->schedule->detect;
    const dp_ordered_t *round = &detect->history[detect->count - count];

    if (count == 0 || !round->is_first) return 0;
    for (size_t i = 0; i < count; i++) {
        /* what has no figure yet would travel uncompressed for as long as the schedule lives */
        if (round[i].entry->signature->wire == DP_WIRE_FP16 && round[i].absmax < 0) return 0;
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

/* Did a launch begin here, in any of the rounds that were seen? Tensors that were launched together
 * once need not be pending together in the next round. */
static int begins_launch(const dp_detect_t *detect, size_t at, size_t period)
{
    if (detect->is_declared || detect->history[at].is_first) return detect->history[at].is_first;
    for (int i = 1; i < REPEATS && at >= period; i++) {
        at -= period;
        if (detect->history[at].is_first) return 1;
    }
    return 0;
}

static dp_status_t build_schedule(dp_negotiator_t *n, size_t first)
{
    dp_schedule_t *schedule = n->schedule;
    dp_detect_t *detect = &schedule->detect;
    size_t entries = detect->count - first;

    if (dp_schedule_reserve(schedule, entries, entries) != DP_OK) return DP_ERR_NO_MEMORY;
    schedule->bucket_count = schedule->planned_count = 0;
    for (size_t i = first; i < detect->count; i++) {
        const dp_ordered_t *past = &schedule->detect.history[i];

        if (begins_launch(detect, i, entries)) {
            schedule->buckets[schedule->bucket_count++] =
                (dp_schedule_bucket_t){schedule->planned_count, 0, 0};
        }
        schedule->buckets[schedule->bucket_count - 1].count++;
        schedule->planned[schedule->planned_count++] =
            (dp_planned_t){past->entry, past->in_place, past->absmax};
    }
    schedule->stride = (uint32_t)(1 + (COUNTED_BUCKETS - 1) / dp_max(schedule->bucket_count, 1));
    return DP_OK;
}

/* Is one of the last `count` launches of a group without this rank? */
static int has_foreign(const dp_negotiator_t *n, size_t count)
{
    const dp_detect_t *detect = &n->schedule->detect;

    for (size_t i = detect->count - count; i < detect->count; i++) {
        if (!dp_entry_takes_part(n, detect->history[i].entry)) return 1;
    }
    return 0;
}

/* How many launches the schedule would have; 0: it is not time. */
static size_t due_length(dp_negotiator_t *n)
{
    dp_detect_t *detect = &n->schedule->detect;
    size_t count = detect->due;

    if (!detect->is_declared) {
        if (detect->period == 0) return 0;
        return detect->repeat >= detect->period * (size_t)(needed_rounds(detect) - 1)
                   ? detect->period
                   : 0;
    }
    detect->due = 0;
    if (count == 0) return 0;
    if (detect->declared < DECLARED_AGAIN && has_foreign(n, count)) return 0;
    return detect->declared >= needed_rounds(detect) ? count : 0;
}

void dp_detect_order(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    dp_detect_t *detect = &schedule->detect;
    size_t count;

    if (n->is_fatal || n->is_finished) return;
    count = due_length(n);
    if (count == 0 || !is_usable_round(n, count) || !dp_schedule_is_calm(n) ||
        !has_nothing_else_pending(n, detect->count - count))
        return;
    if (build_schedule(n, detect->count - count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    dp_resume_drop(n);
    dp_schedule_send_whole(n);
    if (!n->is_fatal) dp_schedule_begin(n, n->sequence);
}
