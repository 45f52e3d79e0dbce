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

#include <stdlib.h>
#include <string.h>

#define FIRST_DEFERRED 64

/* ---- Launching late ------------------------------------------------------------------------- */

/* One more than the last of the bucket that begins at `first`. */
size_t dp_catch_up_bucket_end(const dp_catch_up_t *catch_up, size_t first)
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
        size_t end = dp_catch_up_bucket_end(catch_up, catch_up->done);

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

/* Called with each flush. */
void dp_catch_up_launch(dp_negotiator_t *n)
{
    const dp_catch_up_t *catch_up = &n->schedule->catch_up;

    if (!n->is_fatal && (catch_up->done < catch_up->count || catch_up->deferred_count > 0))
        launch_settled(n);
    n->marks.in_catch_up = catch_up->unsettled > 0 || catch_up->late_count > 0 ||
                           catch_up->early_count > 0 || catch_up->deferred_count > 0;
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

void dp_catch_up_defer(dp_negotiator_t *n, uint64_t behind)
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
