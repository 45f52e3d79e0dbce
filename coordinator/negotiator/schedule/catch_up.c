/*
 * catch_up.c - what is left of a schedule when it ends: launches that some ranks made and others
 * could not follow yet.
 *
 * Between the lowest and the highest number at which ranks stood, each occurrence is *owed*. It is
 * negotiated late, by the ordinary rules: who had launched it counts as ready (a *shadow*), who had
 * not submits it when its program does. What is agreed settles it on all ranks alike, a launch or a
 * failure. Who launches late has *debts*: a bucket is made up for when all of it is settled, in the
 * plan's order, and no later launch passes it. Nothing is over on a rank that launched early before
 * it was told, and a rank that launches late does so only after it was settled: so no wrong result
 * can be taken for a right one.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT_IN_TEXT 320 /* bytes of a tensor's name where a text needs room behind it */

/* ---- What is owed ----------------------------------------------------------------------- */

static dp_schedule_bucket_t *bucket_of(dp_schedule_t *schedule, uint64_t number)
{
    return &schedule->buckets[number % schedule->bucket_count];
}

static dp_status_t reserve_occurrences(dp_schedule_t *schedule, size_t count)
{
    dp_occurrence_t *grown;

    if (count <= schedule->occurrence_room) return DP_OK;
    grown = realloc(schedule->occurrences, count * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    schedule->occurrences = grown;
    schedule->occurrence_room = count;
    return DP_OK;
}

/* Has this rank launched it? What it launches it launches in order. */
static void add_occurrence(dp_schedule_t *schedule, const dp_planned_t *planned, uint64_t number,
                           int is_own)
{
    dp_occurrence_t *occurrence = &schedule->occurrences[schedule->occurrence_count++];

    memset(occurrence, 0, sizeof(*occurrence));
    occurrence->entry = planned->entry;
    occurrence->group = planned->entry->view->uid;
    occurrence->bucket = number;
    occurrence->is_own = is_own;
    occurrence->is_launched = !is_own || number < schedule->launched;
    occurrence->in_place = planned->in_place;
    occurrence->absmax = planned->absmax;
    if (!is_own) return;
    schedule->early_count += (size_t)occurrence->is_launched;
    schedule->late_count += (size_t)!occurrence->is_launched;
}

/* From the last to the first, so that each entry's chain begins with its oldest. */
static void link_occurrences(dp_schedule_t *schedule)
{
    for (size_t i = schedule->occurrence_count; i > 0; i--) {
        dp_occurrence_t *occurrence = &schedule->occurrences[i - 1];

        occurrence->next_of_entry = occurrence->entry->occurrences;
        occurrence->entry->occurrences = occurrence;
    }
}

/* The root: before the first launch of the epoch. */
static void reset_floors(dp_negotiator_t *n)
{
    if (n->schedule.floors == NULL)
        n->schedule.floors = malloc((size_t)n->size * sizeof(*n->schedule.floors));
    if (n->schedule.floors == NULL) {
        dp_fatal_memory(n);
        return;
    }
    memset(n->schedule.floors, 0, (size_t)n->size * sizeof(*n->schedule.floors));
}

/* The i-th rank that takes part in a tensor. */
static int rank_of(const dp_entry_t *entry, uint32_t i)
{
    if (entry->view == NULL) return entry->list[i];
    if (entry->root < 0) return dp_group_view_rank(entry->view, (int)i);
    return dp_group_view_rank(entry->view, i == 0 ? entry->root : entry->peer);
}

uint64_t dp_catch_up_floor(dp_negotiator_t *n, const dp_entry_t *entry)
{
    uint64_t floor = entry->ahead;

    for (uint32_t i = 0; n->schedule.floors != NULL && i < dp_entry_ranks(entry); i++)
        floor = dp_max(floor, n->schedule.floors[rank_of(entry, i)]);
    DP_ASSERT(floor <= n->schedule.catch_up_end); /* else a launch waits for what nobody owes */
    return floor;
}

void dp_catch_up_raise_floor(dp_negotiator_t *n, const dp_entry_t *entry, uint64_t floor)
{
    for (uint32_t i = 0; n->schedule.floors != NULL && i < dp_entry_ranks(entry); i++) {
        int rank = rank_of(entry, i);

        n->schedule.floors[rank] = dp_max(n->schedule.floors[rank], floor);
    }
}

void dp_catch_up_begin(dp_negotiator_t *n, uint64_t low, uint64_t high)
{
    dp_schedule_t *schedule = &n->schedule;
    size_t count = 0;

    schedule->occurrence_count = schedule->occurrences_done = schedule->early_count =
        schedule->late_count = 0;
    schedule->catch_up_end = high;
    schedule->voided_ns = schedule->has_warned = 0;
    schedule->ended_ns = n->now_ns;
    if (schedule->reason == DP_SCHEDULE_END_STALL) /* then others count from their launches on */
        schedule->ended_ns -= dp_min(n->now_ns, n->stall_warn_ns);
    if (schedule->waited_ns != 0) schedule->waited_ns = dp_max(n->now_ns, 1);
    for (uint64_t number = low; number < high; number++)
        count += bucket_of(schedule, number)->count;
    if (reserve_occurrences(schedule, count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    for (uint64_t number = low; number < high; number++) {
        const dp_schedule_bucket_t *bucket = bucket_of(schedule, number);

        if (number / schedule->bucket_count >= bucket->rounds) continue; /* by nobody */

        for (size_t i = 0; i < bucket->count; i++) {
            const dp_planned_t *planned = &schedule->planned[bucket->begin + i];

            if (planned->entry == NULL) continue;
            planned->entry->unsettled++;
            schedule->unsettled++;
            if (dp_entry_takes_part(n, planned->entry)) {
                add_occurrence(schedule, planned, number, 1);
            } else if (dp_is_root(n)) {
                add_occurrence(schedule, planned, number, 0);
            }
        }
    }
    link_occurrences(schedule);
    schedule->ahead = schedule->launched > low ? schedule->launched : 0;
    if (dp_is_root(n)) reset_floors(n);
    for (size_t i = 0; i < n->table.entry_count && !n->is_fatal; i++)
        dp_catch_up_restart(n, n->table.entries[i]);
}

void dp_catch_up_restart(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->is_restarting || (!entry->own.is_there && entry->unsettled == 0)) return;
    if (dp_entry_array_push(&n->restarts, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->is_restarting = 1;
}

/* ---- Settled ---------------------------------------------------------------------------- */

static dp_occurrence_t *settle_oldest(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_occurrence_t *occurrence = entry->occurrences;

    entry->unsettled--;
    n->schedule.unsettled--;
    if (occurrence == NULL) return NULL;
    entry->occurrences = occurrence->next_of_entry;
    occurrence->is_settled = 1;
    if (dp_is_root(n)) dp_catch_up_raise_floor(n, entry, occurrence->bucket + 1);
    return occurrence->is_own ? occurrence : NULL;
}

static void report_settled(dp_negotiator_t *n, const dp_occurrence_t *occurrence, uint32_t absent,
                           dp_status_t status, const char *text)
{
    dp_own_output_t *output = dp_outbox_text_output(n, DP_OUTPUT_SETTLED, text);

    n->schedule.early_count--;
    if (output == NULL) return;
    output->sequence = n->schedule.base + occurrence->bucket + 1;
    output->id = occurrence->entry->id;
    output->absent = absent;
    output->status = status;
}

void dp_catch_up_agreed(dp_negotiator_t *n, dp_entry_t *entry, uint32_t absent)
{
    dp_occurrence_t *occurrence = settle_oldest(n, entry);

    if (occurrence == NULL) return;
    if (occurrence->is_launched) {
        report_settled(n, occurrence, absent, DP_OK, "");
        return;
    }
    occurrence->request = entry->request;
    occurrence->absent = absent;
    occurrence->signature = dp_signature_copy(entry->signature);
    if (occurrence->signature == NULL) dp_fatal_memory(n);
}

/* The tensor's signature was agreed on before the schedule: those who launched it used that one. */
void dp_catch_up_failed(dp_negotiator_t *n, dp_entry_t *entry, dp_status_t status, const char *text)
{
    dp_occurrence_t *occurrence = settle_oldest(n, entry);

    if (occurrence == NULL) return;
    if (occurrence->is_launched) {
        report_settled(n, occurrence, 0, status, text);
        return;
    }
    occurrence->is_void = 1;
    occurrence->signature = dp_signature_copy(entry->signature);
    if (occurrence->signature == NULL) dp_fatal_memory(n);
}

/* ---- Paid ------------------------------------------------------------------------------- */

/* One more than the last of the bucket that begins at `first`. */
static size_t bucket_end(const dp_schedule_t *schedule, size_t first)
{
    size_t end = first;

    while (end < schedule->occurrence_count &&
           schedule->occurrences[end].bucket == schedule->occurrences[first].bucket)
        end++;
    return end;
}

/* The number of the first bucket that this rank has still to make up for. */
static uint64_t next_late_bucket(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = &n->schedule;

    for (size_t i = schedule->occurrences_done;
         i < schedule->occurrence_count && schedule->late_count > 0; i++) {
        if (!schedule->occurrences[i].is_launched) return schedule->occurrences[i].bucket;
    }
    return UINT64_MAX;
}

static void launch_late(dp_negotiator_t *n, size_t begin, size_t end)
{
    dp_schedule_t *schedule = &n->schedule;
    size_t entry_begin = n->launch_entry_count;
    dp_own_output_t *output;

    for (size_t i = begin; i < end; i++) {
        dp_occurrence_t *occurrence = &schedule->occurrences[i];
        dp_launch_entry_t launch_entry = {.request = occurrence->request,
                                          .signature = occurrence->signature,
                                          .name = occurrence->entry->name,
                                          .id = occurrence->entry->id,
                                          .absent = occurrence->absent,
                                          .is_void = occurrence->is_void,
                                          .last_absmax = occurrence->absmax,
                                          .in_place = occurrence->in_place};

        schedule->late_count--;
        if (dp_outbox_entry(n, &launch_entry) != DP_OK ||
            dp_table_retire(&n->table, occurrence->signature) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        occurrence->signature = NULL; /* it goes when the output was taken */
    }
    output = dp_outbox_output(n, DP_OUTPUT_LAUNCH);
    if (output == NULL) return;
    output->sequence = schedule->base + schedule->occurrences[begin].bucket + 1;
    output->group = schedule->occurrences[begin].group;
    output->entry_begin = entry_begin;
    output->entry_count = end - begin;
    output->is_scheduled = 1;
    n->launching = dp_max(n->launching, output->sequence);
    schedule->voided_ns = schedule->has_warned = 0; /* a thread may wait for more */
    if (schedule->waited_ns != 0) schedule->waited_ns = dp_max(n->now_ns, 1);
}

/* What waited behind debts that are paid now. */
static void launch_deferred(dp_negotiator_t *n)
{
    uint64_t first_late = next_late_bucket(n);
    size_t done = 0;

    for (; done < n->deferred_count && n->deferred[done].behind <= first_late && !n->is_fatal;
         done++) {
        const dp_own_output_t *late = &n->deferred[done];
        size_t entry_begin = n->launch_entry_count;
        dp_own_output_t *output;

        for (size_t e = 0; e < late->entry_count; e++) {
            if (dp_outbox_entry(n, &n->deferred_entries[late->entry_begin + e]) == DP_OK) continue;
            dp_fatal_memory(n);
            return;
        }
        output = dp_outbox_output(n, late->kind);
        if (output == NULL) return;
        *output = *late;
        output->entry_begin = entry_begin;
    }
    if (n->is_fatal) return; /* they are gone */
    n->deferred_count -= done;
    if (n->deferred_count == 0) n->deferred_entry_count = 0;
    memmove(n->deferred, n->deferred + done, n->deferred_count * sizeof(*n->deferred));
}

void dp_catch_up_launch(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = &n->schedule;

    if (n->deferred_count > 0) launch_deferred(n);
    while (schedule->occurrences_done < schedule->occurrence_count && !n->is_fatal) {
        size_t end = bucket_end(schedule, schedule->occurrences_done);

        if (!schedule->occurrences[schedule->occurrences_done].is_launched) {
            for (size_t i = schedule->occurrences_done; i < end; i++) {
                if (!schedule->occurrences[i].is_settled) return;
            }
            launch_late(n, schedule->occurrences_done, end);
        }
        schedule->occurrences_done = end;
        if (n->deferred_count > 0 && !n->is_fatal) launch_deferred(n);
    }
}

void dp_catch_up_defer(dp_negotiator_t *n, uint64_t behind)
{
    dp_own_output_t *output;

    if (n->is_fatal || (n->deferred_count == 0 && behind <= next_late_bucket(n))) return;
    output = &n->outputs[n->output_count - 1];
    output->behind = behind;
    if (dp_outbox_defer(n, output) != DP_OK) dp_fatal_memory(n);
    n->output_count--;
}

/* ---- The next occurrence ---------------------------------------------------------------- */

/* Of a tensor that no rank may announce again all is settled, as a failure. */
static void close_entry(dp_negotiator_t *n, dp_entry_t *entry)
{
    while (entry->unsettled > 0 && !n->is_fatal)
        dp_leave_end(n, entry);
    if (!entry->own.is_there || n->is_fatal) return;
    dp_leave_refuse(n, entry, entry->own.request);
    dp_own_end(n, entry);
}

/* Where others are late a stall counts from the launch, elsewhere from the end of the schedule. */
static uint64_t early_since(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = &n->schedule;

    if (schedule->reason != DP_SCHEDULE_END_STALL || schedule->unconfirmed_ns == 0)
        return n->now_ns;
    return dp_min(schedule->unconfirmed_ns, n->now_ns);
}

/* This rank's part of the entry's oldest occurrence that is not settled. */
static void arrive_own(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_arrival_t arrival = {.branch = dp_own_branch(n),
                            .rank = n->rank,
                            .ahead = n->schedule.unsettled > 0 ? n->schedule.ahead : 0};
    const dp_occurrence_t *occurrence = entry->occurrences;
    dp_submitted_t *own = &entry->own;

    if (occurrence != NULL && occurrence->is_own && occurrence->is_launched) {
        entry->is_own = entry->is_early = 1;
        entry->request = NULL;
        arrival.in_place = occurrence->in_place;
        arrival.absmax = occurrence->absmax;
        arrival.is_urgent = 1;
        dp_agree_pending(n, entry, early_since(n));
        dp_agree_arrive(n, entry, &arrival);
        return;
    }
    if (!own->is_there) return;
    entry->is_own = 1;
    entry->request = own->request;
    arrival.in_place = own->in_place;
    arrival.absmax = own->absmax;
    arrival.is_urgent = own->is_urgent || occurrence != NULL;
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

static int has_early_launch(const dp_schedule_t *schedule, const dp_group_view_t *view)
{
    for (size_t i = 0; i < schedule->occurrence_count && schedule->early_count > 0; i++) {
        const dp_occurrence_t *occurrence = &schedule->occurrences[i];

        if (occurrence->is_own && occurrence->is_launched && !occurrence->is_settled &&
            occurrence->group == view->uid)
            return 1;
    }
    return 0;
}

static void arrive_next(dp_negotiator_t *n, dp_entry_t *entry)
{

    if (entry->is_own) return;
    if (entry->view != NULL && entry->own_expect == NULL && entry->view->is_closed &&
        !entry->is_kept) {
        close_entry(n, entry);
    } else if (entry->own.is_there && entry->view != NULL && entry->view->ending == entry &&
               has_early_launch(&n->schedule, entry->view)) {
        dp_catch_up_restart(n, entry); /* the end of a group comes after all that is owed */
    } else {
        arrive_own(n, entry);
    }
}

void dp_catch_up_submitted(dp_negotiator_t *n, dp_entry_t *entry)
{
    arrive_next(n, entry);
}

void dp_catch_up_flush(dp_negotiator_t *n)
{
    size_t count = n->restarts.count;

    for (size_t i = 0; i < count && !n->is_fatal; i++) {
        dp_entry_t *entry = n->restarts.entries[i];

        entry->is_restarting = 0;
        if (!n->schedule.is_active) arrive_next(n, entry);
    }
    if (n->is_fatal) return;
    if (count > 0) {
        memmove(n->restarts.entries, n->restarts.entries + count,
                (n->restarts.count - count) * sizeof(dp_entry_t *));
    }
    n->restarts.count -= count;
    dp_catch_up_launch(n);
}

/* ---- Debts that would never be paid ----------------------------------------------------- */

/* A thread waits, and what it waits for may not come before what this rank has not submitted. Most
 * often another thread is about to submit that, so a word comes first, and the end of it late. */
static uint64_t warn_ns(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = &n->schedule;

    if (schedule->late_count == 0 || schedule->waited_ns == 0 || schedule->has_warned ||
        n->stall_warn_ns == 0)
        return UINT64_MAX;
    return schedule->waited_ns + n->stall_warn_ns;
}

/* Half of what is left when the wait begins of the time that others wait: so however many it takes,
 * one after the other, they come before the limit. */
static uint64_t void_ns(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = &n->schedule;
    uint64_t limit_ns = schedule->ended_ns + n->stall_limit_ns;

    if (schedule->late_count == 0 || schedule->waited_ns == 0 || schedule->voided_ns != 0 ||
        n->stall_limit_ns == 0)
        return UINT64_MAX;
    return schedule->waited_ns +
           (limit_ns > schedule->waited_ns ? (limit_ns - schedule->waited_ns) / 2 : 0);
}

static void give_up(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_notice_t notice = {
        .kind = DP_ITEM_GIVE_UP, .rank = n->rank, .entry = entry, .position = n->position};

    if (dp_is_root(n)) {
        dp_order_give_up(n, entry, n->rank);
    } else {
        dp_outbox_notice(n, &notice);
    }
}

/* What this rank owes next, and has not submitted: says so, or gives it up. */
static void report_missing(dp_negotiator_t *n, int gives_up)
{
    dp_schedule_t *schedule = &n->schedule;
    char what[DP_ENTRY_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    size_t end;

    while (schedule->occurrences_done < schedule->occurrence_count &&
           schedule->occurrences[schedule->occurrences_done].is_launched)
        schedule->occurrences_done++;
    end = bucket_end(schedule, schedule->occurrences_done);
    for (size_t i = schedule->occurrences_done; i < end && !n->is_fatal; i++) {
        dp_occurrence_t *occurrence = &schedule->occurrences[i];

        if (occurrence->is_settled || occurrence->entry->own.is_there) continue;
        if (gives_up) {
            give_up(n, occurrence->entry);
            continue;
        }
        snprintf(text, sizeof(text),
                 "a thread has waited %.1f s behind %.*s, which this rank has not submitted and "
                 "others launched as in the rounds before; DP_SCHEDULE=off launches in any order",
                 (double)(n->now_ns - schedule->waited_ns) * 1e-9, WHAT_IN_TEXT,
                 dp_entry_text(occurrence->entry, what));
        dp_outbox_warn(n, text);
        return;
    }
}

void dp_catch_up_tick(dp_negotiator_t *n)
{
    if (n->now_ns >= warn_ns(n)) {
        n->schedule.has_warned = 1;
        report_missing(n, 0);
    }
    if (n->is_fatal || n->now_ns < void_ns(n)) return;
    n->schedule.voided_ns = n->now_ns;
    report_missing(n, 1);
}

uint64_t dp_catch_up_deadline(const dp_negotiator_t *n)
{
    return dp_min(warn_ns(n), void_ns(n));
}

/* position: what the rank had seen of the order when it gave up. */
void dp_catch_up_give_up(dp_negotiator_t *n, int rank, uint64_t position, dp_entry_t *entry)
{
    if (entry->unsettled == 0 || position < entry->done_position) return;
    if (dp_is_root(n)) {
        dp_order_give_up(n, entry, rank);
    } else {
        dp_notice_t notice = {
            .kind = DP_ITEM_GIVE_UP, .rank = rank, .entry = entry, .position = position};

        dp_outbox_notice(n, &notice);
    }
}
