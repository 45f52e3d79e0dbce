/*
 * own.c - this rank's submissions: from dp_negotiator_submit() until they arrive as this branch's
 * part of an occurrence, and their end.
 *
 * A submission arrives at once. Only the creation of a group can end while this rank's submission
 * stays: two lists of ranks have used one name, and this rank's was not the one that was launched.
 * Then dp_own_queue() keeps the entry, and dp_own_flush() has the submission arrive again.
 *
 * Called by negotiator.c and receive.c, on the thread that drives the negotiator.
 */
#include "coordinator/negotiator/own.h"

#include "coordinator/negotiator/state.h"

#include <stdlib.h>
#include <string.h>

static void arrive_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_arrival_t arrival = {.branch = dp_own_branch(n), .rank = n->rank};
    const dp_submitted_t *own = &entry->own;

    if (entry->part.is_submitted || !own->is_there) return;
    entry->part.is_submitted = 1;
    entry->part.request = own->request;
    arrival.in_place = own->in_place;
    arrival.absmax = own->absmax;
    arrival.priority = own->priority;
    arrival.is_urgent = own->is_urgent;
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

/* Without memory for the signature the submission is not taken. */
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
    uint64_t tick_ns;

    if (entry->signature == NULL || !dp_signature_equal(signature, entry->signature)) {
        own.signature = dp_signature_copy(signature);
        if (own.signature == NULL) return DP_ERR_NO_MEMORY;
    }
    if (submission->timeout_ns > 0) {
        own.expires_ns = n->now_ns + dp_min(submission->timeout_ns, UINT64_MAX - n->now_ns);
        own.timed_at = n->own.timed.count;
        tick_ns = dp_min(dp_own_deadline(n), own.expires_ns);
        if (dp_entry_array_push(&n->own.timed, entry) != DP_OK) {
            free(own.signature);
            return DP_ERR_NO_MEMORY;
        }
        n->own.tick_ns = tick_ns;
    }
    entry->own = own;
    n->own.pending++;
    if (entry->view != NULL) {
        entry->view->own_pending++;
        if (signature->collective == DP_COLLECTIVE_GROUP_DESTROY) entry->view->ending = entry;
    }
    arrive_own(n, entry);
    return DP_OK;
}

/* Its time limit counts no more. The last one of the list takes its place. */
static void end_limit(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_entry_array_t *timed = &n->own.timed;
    dp_entry_t *last;

    if (entry->own.expires_ns == 0) return;
    last = timed->entries[--timed->count];
    timed->entries[entry->own.timed_at] = last;
    last->own.timed_at = entry->own.timed_at;
    entry->own.expires_ns = 0;
}

/* This rank's submission of the tensor was handed back. */
void dp_own_end(dp_negotiator_t *n, dp_entry_t *entry)
{
    end_limit(n, entry);
    entry->own.is_there = 0;
    free(entry->own.signature);
    entry->own.signature = NULL;
    n->own.pending--;
    if (entry->view == NULL) return;
    entry->view->own_pending--;
    if (entry->view->ending == entry) entry->view->ending = NULL;
}

void dp_own_queue(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->is_queued || !entry->own.is_there) return;
    if (dp_entry_array_push(&n->own.queue, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->is_queued = 1;
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
        arrive_own(n, entry);
    }
    if (n->is_fatal) return;
    memmove(queue->entries, queue->entries + count, (queue->count - count) * sizeof(dp_entry_t *));
    queue->count -= count;
}

void dp_own_tick(dp_negotiator_t *n)
{
    dp_entry_array_t *timed = &n->own.timed;
    uint64_t next_ns = UINT64_MAX;

    if (n->now_ns < dp_own_deadline(n)) return;
    for (size_t i = timed->count; i > 0 && !n->is_fatal; i--) {
        dp_entry_t *entry = timed->entries[i - 1];

        if (n->now_ns < entry->own.expires_ns) {
            next_ns = dp_min(next_ns, entry->own.expires_ns);
            continue;
        }
        end_limit(n, entry);
        if (entry->part.is_submitted) dp_stall_expire(n, entry);
    }
    n->own.tick_ns = next_ns;
}

uint64_t dp_own_deadline(const dp_negotiator_t *n)
{
    return n->own.timed.count == 0 ? UINT64_MAX : n->own.tick_ns;
}

void dp_own_urgent(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (!entry->own.is_there) return;
    entry->own.is_urgent = 1;
    if (entry->part.is_submitted) dp_agree_urgent(n, entry);
}

void dp_own_count(dp_negotiator_t *n, int change)
{
    n->own.pending += (size_t)change;
}

void dp_own_forget(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_entry_array_remove(&n->own.queue, entry);
    end_limit(n, entry);
}

void dp_own_fini(dp_negotiator_t *n)
{
    free(n->own.queue.entries);
    free(n->own.timed.entries);
}
