/*
 * own.c - this rank's submissions: from dp_negotiator_submit() until they arrive as this branch's
 * part of an occurrence.
 *
 * A submission arrives at once, unless an earlier occurrence of its tensor is still pending here: a
 * schedule that has ended may leave early launches, which are negotiated first. When an occurrence
 * ends, own_end.c queues the entry, and dp_own_flush() looks whether there is a next one.
 *
 * Called by negotiator.c, flush.c and receive.c, on the thread that drives the negotiator.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

/* A tensor that no rank may announce again: all its occurrences end here, as failures. */
static void close_entry(dp_negotiator_t *n, dp_entry_t *entry)
{
    while (dp_schedule_is_unsettled(n, entry) && !n->is_fatal)
        dp_leave_end(n, entry);
    if (!entry->own.is_there || n->is_fatal) return;
    dp_leave_refuse(n, entry, entry->own.request);
    dp_own_end(n, entry);
}

/* The launch was made by the schedule; the arrival stands for its submission. */
static void arrive_early(dp_negotiator_t *n, dp_entry_t *entry, const dp_arrival_t *arrival,
                         uint64_t since_ns)
{
    entry->part.is_submitted = entry->part.is_early = 1;
    entry->part.request = NULL;
    dp_agree_pending(n, entry, since_ns);
    dp_agree_arrive(n, entry, arrival);
}

/* This rank's part of the oldest occurrence that has not ended. */
static void arrive(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_arrival_t arrival = {.branch = dp_own_branch(n), .rank = n->rank};
    dp_submitted_t *own = &entry->own;
    uint64_t since_ns;

    if (dp_schedule_stand_in(n, entry, &arrival, &since_ns)) {
        arrive_early(n, entry, &arrival, since_ns);
        return;
    }
    if (!own->is_there) return;
    entry->part.is_submitted = 1;
    entry->part.request = own->request;
    arrival.in_place = own->in_place;
    arrival.absmax = own->absmax;
    arrival.priority = own->priority;
    arrival.is_urgent = own->is_urgent || arrival.is_urgent;
    if (own->signature != NULL) {
        arrival.signature = dp_signature_copy(own->signature);
        if (arrival.signature == NULL) {
            dp_fatal_memory(n);
            return;
        }
    }
    if (own->since_ns < n->now_ns) dp_agree_pending(n, entry, own->since_ns);
    dp_agree_arrive(n, entry, &arrival);
}

void dp_own_arrive(dp_negotiator_t *n, dp_entry_t *entry)
{
    const dp_group_view_t *view = entry->view;

    if (entry->part.is_submitted) return;
    if (view != NULL && entry->own_expect == NULL && view->is_closed && !entry->leave.is_kept) {
        close_entry(n, entry);
    } else if (entry->own.is_there && view != NULL && view->ending == entry &&
               dp_schedule_has_early(n, view)) {
        dp_own_queue(n, entry); /* the end of a group comes after all that was launched there */
    } else {
        arrive(n, entry);
    }
}

/* Nothing is taken where there is no memory for the signature. */
dp_status_t dp_own_submit(dp_negotiator_t *n, dp_entry_t *entry, const dp_submission_t *submission)
{
    const dp_signature_t *signature = submission->signature;
    dp_submitted_t own = {.is_there = 1,
                          .request = submission->request,
                          .in_place = submission->in_place != 0,
                          .is_urgent = submission->is_urgent != 0,
                          .absmax = dp_absmax_clean(submission->last_absmax),
                          .priority = submission->priority,
                          .since_ns = n->now_ns};

    if (entry->signature == NULL || !dp_signature_equal(signature, entry->signature)) {
        own.signature = dp_signature_copy(signature);
        if (own.signature == NULL) return DP_ERR_NO_MEMORY;
    }
    entry->own = own;
    n->own.pending++;
    if (entry->view != NULL) {
        entry->view->own_pending++;
        if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY) entry->view->ending = entry;
    }
    if (!dp_schedule_submitted(n, entry)) dp_own_arrive(n, entry);
    return DP_OK;
}

/* Entries that are queued meanwhile wait for the next call. */
void dp_own_flush(dp_negotiator_t *n)
{
    dp_entry_array_t *queue = &n->own.queue;
    size_t count = queue->count;

    if (count == 0) return;
    for (size_t i = 0; i < count && !n->is_fatal; i++) {
        dp_entry_t *entry = queue->entries[i];

        entry->is_queued = 0;
        if (!dp_schedule_is_active(n)) dp_own_arrive(n, entry);
    }
    if (n->is_fatal) return;
    memmove(queue->entries, queue->entries + count, (queue->count - count) * sizeof(dp_entry_t *));
    queue->count -= count;
}
