/*
 * late_launch.c - a rank that is behind catches up: it launches late what others had launched by
 * the schedule, in the schedule's order.
 *
 *   occurrences  | settled, launched | settled | unsettled | ...      in the schedule's order
 *                ^ 0                 ^ done: the next bucket to launch late
 *   deferred     launches that were ordered after the schedule; each comes behind a bucket number
 *
 * A bucket is launched late when all of it is settled. A launch that was ordered later and has to
 * come behind it is kept back until then, and all after that one, so that every rank launches in
 * the same order. Called through the hooks of schedule.h, on the thread that drives the negotiator.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_DEFERRED 64
#define WHAT_IN_TEXT 320 /* bytes of a tensor's name where a text needs room behind it */

/* ---- Launching late ------------------------------------------------------------------------- */

/* One more than the last of the bucket that begins at `first`. */
static size_t bucket_end(const dp_catch_up_t *catch_up, size_t first)
{
    const dp_occurrence_t *occurrences = catch_up->occurrences;
    size_t end = first;

    while (end < catch_up->count && occurrences[end].bucket == occurrences[first].bucket)
        end++;
    return end;
}

/* The number of the first bucket that this rank has still to launch late. */
static uint64_t next_late_bucket(const dp_catch_up_t *catch_up)
{
    for (size_t i = catch_up->done; i < catch_up->count && catch_up->late_count > 0; i++) {
        if (!catch_up->occurrences[i].is_launched) return catch_up->occurrences[i].bucket;
    }
    return UINT64_MAX;
}

static void launch_late(dp_negotiator_t *n, size_t begin, size_t end)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;
    size_t entry_begin = n->out.launch_entry_count;
    dp_own_output_t *output;

    for (size_t i = begin; i < end; i++) {
        dp_occurrence_t *occurrence = &catch_up->occurrences[i];
        dp_launch_entry_t launch_entry = {.request = occurrence->request,
                                          .signature = occurrence->signature,
                                          .name = occurrence->entry->name,
                                          .id = occurrence->entry->id,
                                          .absent = occurrence->absent,
                                          .is_void = occurrence->is_void,
                                          .last_absmax = occurrence->absmax,
                                          .in_place = occurrence->in_place};

        catch_up->late_count--;
        if (dp_outbox_entry(n, &launch_entry) != DP_OK ||
            dp_table_retire(&n->table, occurrence->signature) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        occurrence->signature = NULL; /* it goes when the output was taken */
    }
    output = dp_outbox_output(n, DP_OUTPUT_LAUNCH);
    if (output == NULL) return;
    output->sequence = n->schedule->base + catch_up->occurrences[begin].bucket + 1;
    output->group = catch_up->occurrences[begin].group;
    output->entry_begin = entry_begin;
    output->entry_count = end - begin;
    output->is_scheduled = 1;
    n->order.launching = dp_max(n->order.launching, output->sequence);
    catch_up->gave_up_ns = catch_up->has_warned = 0; /* a thread may wait for more */
    if (catch_up->waited_ns != 0) catch_up->waited_ns = dp_max(n->now_ns, 1);
}

/* Outputs that were kept back for late launches, which are made now. */
static void launch_deferred(dp_negotiator_t *n)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;
    uint64_t first_late = next_late_bucket(catch_up);
    size_t done = 0;

    for (; done < catch_up->deferred_count && catch_up->deferred[done].behind <= first_late;
         done++) {
        const dp_own_output_t *deferred = &catch_up->deferred[done];
        size_t entry_begin = n->out.launch_entry_count;
        dp_own_output_t *output;

        for (size_t e = 0; e < deferred->entry_count; e++) {
            if (dp_outbox_entry(n, &catch_up->deferred_entries[deferred->entry_begin + e]) == DP_OK)
                continue;
            dp_fatal_memory(n);
            return;
        }
        output = dp_outbox_output(n, deferred->kind);
        if (output == NULL) return;
        *output = *deferred;
        output->entry_begin = entry_begin;
    }
    catch_up->deferred_count -= done;
    n->out.kept_back = catch_up->deferred_count;
    if (catch_up->deferred_count == 0) catch_up->deferred_entry_count = 0;
    memmove(catch_up->deferred, catch_up->deferred + done,
            catch_up->deferred_count * sizeof(*catch_up->deferred));
}

static void launch_settled(dp_negotiator_t *n)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;

    if (catch_up->deferred_count > 0) launch_deferred(n);
    while (catch_up->done < catch_up->count && !n->is_fatal) {
        size_t end = bucket_end(catch_up, catch_up->done);

        if (!catch_up->occurrences[catch_up->done].is_launched) {
            for (size_t i = catch_up->done; i < end; i++) {
                if (!catch_up->occurrences[i].is_settled) return;
            }
            launch_late(n, catch_up->done, end);
        }
        catch_up->done = end;
        if (catch_up->deferred_count > 0 && !n->is_fatal) launch_deferred(n);
    }
}

/* Called with each flush, and has nearly always nothing to do. */
void dp_schedule_catch_up(dp_negotiator_t *n)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;

    if (catch_up->done == catch_up->count && catch_up->deferred_count == 0) return;
    if (!n->is_fatal) launch_settled(n);
}

/* ---- Keeping back --------------------------------------------------------------------------- */

static dp_status_t keep_back(dp_negotiator_t *n, const dp_own_output_t *output)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;
    size_t entries = catch_up->deferred_entry_count + output->entry_count;

    if (catch_up->deferred_count == catch_up->deferred_room) {
        size_t room = catch_up->deferred_room > 0 ? catch_up->deferred_room * 2 : FIRST_DEFERRED;
        dp_own_output_t *grown = realloc(catch_up->deferred, room * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        catch_up->deferred = grown;
        catch_up->deferred_room = room;
    }
    if (entries > catch_up->deferred_entry_room) {
        dp_launch_entry_t *grown =
            realloc(catch_up->deferred_entries, 2 * entries * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        catch_up->deferred_entries = grown;
        catch_up->deferred_entry_room = 2 * entries;
    }
    memcpy(catch_up->deferred_entries + catch_up->deferred_entry_count,
           n->out.launch_entries + output->entry_begin,
           output->entry_count * sizeof(*n->out.launch_entries));
    catch_up->deferred[catch_up->deferred_count] = *output;
    catch_up->deferred[catch_up->deferred_count++].entry_begin = catch_up->deferred_entry_count;
    catch_up->deferred_entry_count = entries;
    n->out.kept_back = catch_up->deferred_count;
    return DP_OK;
}

void dp_schedule_defer(dp_negotiator_t *n, uint64_t behind)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;
    dp_own_output_t *output;

    if (n->is_fatal || (catch_up->deferred_count == 0 && behind <= next_late_bucket(catch_up)))
        return;
    output = &n->out.outputs[n->out.output_count - 1];
    output->behind = behind;
    if (keep_back(n, output) != DP_OK) dp_fatal_memory(n);
    n->out.output_count--;
}

/* ---- Late launches that would never come ---------------------------------------------------- */

/* A thread of this rank waits for a launch that has to come behind one which this rank has not
 * submitted. Most often another thread is about to submit that, so a warning comes first, and
 * giving up late. */
static uint64_t warn_ns(const dp_negotiator_t *n)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;

    if (catch_up->late_count == 0 || catch_up->waited_ns == 0 || catch_up->has_warned ||
        n->stall.warn_ns == 0)
        return UINT64_MAX;
    return catch_up->waited_ns + n->stall.warn_ns;
}

/* Half of the time that is left, when the wait begins, until others end the job. So however many
 * tensors have to be given up, one after the other, all of it comes before that limit. */
static uint64_t give_up_ns(const dp_negotiator_t *n)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;
    uint64_t limit_ns = catch_up->ended_ns + n->stall.limit_ns;
    uint64_t waited_ns = catch_up->waited_ns;

    if (catch_up->late_count == 0 || waited_ns == 0 || catch_up->gave_up_ns != 0 ||
        n->stall.limit_ns == 0)
        return UINT64_MAX;
    return waited_ns + (limit_ns > waited_ns ? (limit_ns - waited_ns) / 2 : 0);
}

static void give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    dp_notice_t notice = {
        .kind = DP_ITEM_GIVE_UP, .rank = rank, .entry = entry, .position = position};

    if (dp_is_root(n)) {
        dp_order_give_up(n, entry, rank);
    } else {
        dp_outbox_notice(n, &notice);
    }
}

/* Of the bucket that this rank has to launch next: warns of what it has not submitted, or gives
 * that up. */
static void report_missing(dp_negotiator_t *n, int gives_up)
{
    dp_catch_up_t *catch_up = &n->schedule->catch_up;
    char what[DP_ENTRY_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    size_t end;

    while (catch_up->done < catch_up->count && catch_up->occurrences[catch_up->done].is_launched)
        catch_up->done++;
    end = bucket_end(catch_up, catch_up->done);
    for (size_t i = catch_up->done; i < end && !n->is_fatal; i++) {
        dp_occurrence_t *occurrence = &catch_up->occurrences[i];

        if (occurrence->is_settled || occurrence->entry->own.is_there) continue;
        if (gives_up) {
            give_up(n, n->rank, n->position, occurrence->entry);
            continue;
        }
        snprintf(text, sizeof(text),
                 "a thread has waited %.1f s behind %.*s, which this rank has not submitted and "
                 "others launched as in the rounds before; DP_SCHEDULE=off launches in any order",
                 (double)(n->now_ns - catch_up->waited_ns) * 1e-9, WHAT_IN_TEXT,
                 dp_entry_text(occurrence->entry, what));
        dp_outbox_warn(n, text);
        return;
    }
}

void dp_catch_up_tick(dp_negotiator_t *n)
{
    if (n->now_ns >= warn_ns(n)) {
        n->schedule->catch_up.has_warned = 1;
        report_missing(n, 0);
    }
    if (n->is_fatal || n->now_ns < give_up_ns(n)) return;
    n->schedule->catch_up.gave_up_ns = n->now_ns;
    report_missing(n, 1);
}

uint64_t dp_catch_up_deadline(const dp_negotiator_t *n)
{
    return dp_min(warn_ns(n), give_up_ns(n));
}

void dp_schedule_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    if (entry->schedule->unsettled == 0 || position < entry->ended.position) return;
    give_up(n, rank, position, entry);
}
