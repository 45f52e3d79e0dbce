/*
 * give_up.c - late launches that would never come: a thread of this rank waits for a launch that
 * has to come behind one which this rank has not submitted.
 *
 * Most often another thread is about to submit that, so a warning comes first. Half-way to the
 * stall limit the rank gives the tensor up, and the root fails it on all ranks. Called by
 * negotiator.c for the time, and by receive.c for GIVE_UP of ranks below.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <stdio.h>

#define WHAT_IN_TEXT 320 /* bytes of a tensor's name where a text needs room behind it */

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

static void send_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
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
    end = dp_catch_up_bucket_end(catch_up, catch_up->done);
    for (size_t i = catch_up->done; i < end && !n->is_fatal; i++) {
        dp_occurrence_t *occurrence = &catch_up->occurrences[i];

        if (occurrence->is_settled || occurrence->entry->own.is_there) continue;
        if (gives_up) {
            send_give_up(n, n->rank, n->position, occurrence->entry);
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

void dp_catch_up_check_time(dp_negotiator_t *n)
{
    if (n->now_ns >= warn_ns(n)) {
        n->schedule->catch_up.has_warned = 1;
        report_missing(n, 0);
    }
    if (n->is_fatal || n->now_ns < give_up_ns(n)) return;
    n->schedule->catch_up.gave_up_ns = n->now_ns;
    report_missing(n, 1);
}

uint64_t dp_catch_up_next_check(const dp_negotiator_t *n)
{
    return dp_min(warn_ns(n), give_up_ns(n));
}

void dp_schedule_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    if (entry->schedule->unsettled == 0 || position < entry->ended.position) return;
    send_give_up(n, rank, position, entry);
}
