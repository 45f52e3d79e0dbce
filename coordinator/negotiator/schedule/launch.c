/*
 * launch.c - a rank under a cached schedule: it launches the schedule's buckets in their order,
 * each as soon as its tensors are submitted here, without a message.
 *
 *   root                rank
 *    | -- SCHEDULE ----> |   begin: the next epoch, nothing is negotiated in it
 *    | <------- COUNT -- |   the subtree has launched another `stride` rounds
 *    | -- CONFIRM -----> |   all ranks have: a rank may run a stride ahead of that
 *    | <----- DIVERGE -- |   a rank must leave the schedule
 *    | -- PAUSE -------> |   launch no more
 *    | <----- REACHED -- |   the first bucket not launched below, the last one launched
 *    | -- SCHEDULE_END-> |   end: negotiate again; what lies between is for catch_up.c
 *
 * Called through the hooks of schedule.h, on the thread that drives the negotiator. It must not
 * know how a schedule was found.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCALE_SLACK 4 /* binary orders by which a magnitude may leave the schedule's */

/* ---- Life ----------------------------------------------------------------------------------- */

dp_status_t dp_schedule_init(dp_negotiator_t *n, const dp_negotiator_options_t *options)
{
    dp_schedule_t *schedule = calloc(1, sizeof(*schedule));

    n->schedule = schedule;
    if (schedule == NULL) return DP_ERR_NO_MEMORY;
    n->marks.may_order = options->may_schedule && n->size > 1 && dp_is_root(n);
    schedule->resume.rounds_lived = options->resume_rounds;
    schedule->run.child_rounds =
        calloc((size_t)n->child_count + 1, sizeof(*schedule->run.child_rounds));
    return schedule->run.child_rounds != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_schedule_fini(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    if (schedule == NULL) return;
    dp_catch_up_fini(&schedule->catch_up);
    free(schedule->planned);
    free(schedule->buckets);
    free(schedule->own_buckets);
    free(schedule->run.child_rounds);
    free(schedule->stop.rounds);
    free(schedule->detect.history);
    free(schedule);
}

size_t dp_schedule_entry_bytes(void)
{
    return sizeof(dp_schedule_entry_t);
}

/* ---- The schedule must end ------------------------------------------------------------------ */

static void diverge_for(dp_negotiator_t *n, dp_schedule_end_reason_t reason,
                        const dp_entry_t *entry)
{
    char what[DP_ENTRY_TEXT_MAX];

    dp_schedule_leave(n, reason, n->rank, dp_entry_text(entry, what));
}

/* Is the schedule's fp16 scale unfit for sums of this size? */
static int has_scale_moved(float planned, float absmax)
{
    int a, b;

    if (!(planned > 0.0f) || isinf(planned)) return absmax > 0.0f && !isinf(absmax);
    if (!(absmax > 0.0f) || isinf(absmax)) return 0; /* no figure, or one bad step */
    frexpf(planned, &a);
    frexpf(absmax, &b);
    return a - b > SCALE_SLACK || b - a > SCALE_SLACK;
}

/* Does this submission fit the schedule? One that only moves the fp16 scale still fits: it is
 * launched, and the schedule ends behind it. */
void dp_schedule_check_fit(dp_negotiator_t *n, dp_entry_t *entry)
{
    dp_submitted_t *own = &entry->own;
    const dp_signature_t *signature = own->signature != NULL ? own->signature : entry->signature;

    entry->schedule->fits = 0;
    if (entry->view == NULL || signature->collective == DP_COLLECTIVE_GROUP_DESTROY) {
        diverge_for(n, DP_SCHEDULE_END_GROUP, entry);
    } else if (entry->schedule->planned_uses == 0) {
        diverge_for(n, DP_SCHEDULE_END_TENSOR, entry);
    } else if (own->signature != NULL) {
        diverge_for(n, DP_SCHEDULE_END_SIGNATURE, entry);
    } else if (entry->schedule->planned_in_place && !own->in_place) {
        diverge_for(n, DP_SCHEDULE_END_MEMORY, entry);
    } else {
        entry->schedule->fits = 1;
        if (signature->wire == DP_WIRE_FP16 &&
            has_scale_moved(entry->schedule->planned_absmax, own->absmax))
            diverge_for(n, DP_SCHEDULE_END_SCALE, entry);
    }
    if (!entry->schedule->fits) n->schedule->run.has_misfit = 1;
}

/* A thread that waits shows that this rank does not submit the rest of the bucket first: it may
 * submit in another order now, or need a result of a later bucket. */
void dp_schedule_note_waiter(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;
    const dp_schedule_bucket_t *bucket;

    if ((dp_schedule_is_active(n) || schedule->catch_up.late_count > 0) &&
        schedule->catch_up.waited_ns == 0)
        schedule->catch_up.waited_ns = dp_max(n->now_ns, 1);
    if (!dp_schedule_is_active(n) || schedule->own_bucket_count == 0 || n->own.pending == 0) return;
    bucket =
        &schedule->buckets[schedule->own_buckets[schedule->run.step % schedule->own_bucket_count]];
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_entry_t *first = schedule->planned[bucket->begin + i].entry;

        if (first->own.is_there) continue;
        diverge_for(n, DP_SCHEDULE_END_WAIT, first);
        return;
    }
}

/* ---- Launching ------------------------------------------------------------------------------ */

/* 1: all tensors of the bucket are submitted on this rank. No other rank is asked. */
static int is_bucket_ready(const dp_schedule_t *schedule, const dp_schedule_bucket_t *bucket)
{
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_entry_t *entry = schedule->planned[bucket->begin + i].entry;

        if (!entry->own.is_there || !entry->schedule->fits) return 0;
    }
    return 1;
}

static void launch_bucket(dp_negotiator_t *n, const dp_schedule_bucket_t *bucket, uint64_t number)
{
    dp_schedule_t *schedule = n->schedule;
    size_t entry_begin = n->out.launch_entry_count;
    dp_own_output_t *output;

    for (size_t i = 0; i < bucket->count; i++) {
        const dp_planned_t *planned = &schedule->planned[bucket->begin + i];
        dp_entry_t *entry = planned->entry;
        dp_launch_entry_t launch_entry = {.request = entry->own.request,
                                          .signature = entry->signature,
                                          .name = entry->name,
                                          .id = entry->id,
                                          .last_absmax = planned->absmax,
                                          .in_place = planned->in_place};

        if (dp_outbox_entry(n, &launch_entry) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        dp_own_end(n, entry);
    }
    output = dp_outbox_output(n, DP_OUTPUT_LAUNCH);
    if (output == NULL) return;
    output->sequence = schedule->base + number + 1;
    output->group = schedule->planned[bucket->begin].entry->view->uid;
    output->entry_begin = entry_begin;
    output->entry_count = bucket->count;
    output->is_scheduled = 1;
    n->order.launching = output->sequence;
    schedule->catch_up.waited_ns = 0;
    schedule->run.step++;
    if (schedule->run.step % schedule->own_bucket_count == 0 &&
        dp_schedule_rounds(n) == dp_schedule_own_rounds(schedule))
        schedule->run.slowest = n->rank;
    schedule->run.launched = number + 1;
    if (schedule->run.unconfirmed_ns == 0) schedule->run.unconfirmed_ns = dp_max(n->now_ns, 1);
}

/* In the schedule's order, and not more than a stride of rounds ahead of what all ranks have
 * confirmed: that bounds what is to be caught up with when the schedule ends. */
void dp_schedule_launch_due(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    while (dp_schedule_is_active(n) && !schedule->is_paused && !schedule->run.has_misfit &&
           schedule->own_bucket_count > 0 && !n->is_fatal) {
        uint64_t number = dp_schedule_next(schedule);
        const dp_schedule_bucket_t *bucket = &schedule->buckets[number % schedule->bucket_count];

        if (number / schedule->bucket_count > schedule->run.confirmed + schedule->stride) return;
        if (!is_bucket_ready(schedule, bucket)) return;
        launch_bucket(n, bucket, number);
    }
}

/* ---- From one epoch to the next ------------------------------------------------------------- */

/* A child sends COUNT only if a rank at or below it takes part in the schedule. */
static void expect_counts(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    for (int i = 0; i < n->child_count; i++)
        schedule->run.child_rounds[i] = DP_SCHEDULE_NOBODY;
    for (size_t i = 0; i < schedule->planned_count; i++) {
        const dp_entry_t *entry = schedule->planned[i].entry;

        for (int c = 0; entry != NULL && c < n->child_count; c++) {
            if (dp_bit_get(entry->expect, c)) schedule->run.child_rounds[c] = 0;
        }
    }
}

/* All tensors of a bucket are of one group, so its first one tells whether this rank takes part. */
static dp_status_t find_own_buckets(dp_negotiator_t *n)
{
    dp_schedule_t *schedule = n->schedule;

    if (schedule->own_bucket_room < schedule->bucket_count) {
        size_t *grown = realloc(schedule->own_buckets, schedule->bucket_count * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        schedule->own_buckets = grown;
        schedule->own_bucket_room = schedule->bucket_count;
    }
    schedule->own_bucket_count = 0;
    for (size_t i = 0; i < schedule->bucket_count; i++) {
        const dp_entry_t *entry = schedule->planned[schedule->buckets[i].begin].entry;

        if (entry != NULL && dp_entry_takes_part(n, entry))
            schedule->own_buckets[schedule->own_bucket_count++] = i;
    }
    return DP_OK;
}

/* Facts that hold for every use of the tensor: a submission is checked without a search. */
static void note_planned(dp_schedule_t *schedule)
{
    for (size_t i = 0; i < schedule->planned_count; i++) {
        const dp_planned_t *planned = &schedule->planned[i];

        if (planned->entry == NULL) continue;
        planned->entry->schedule->planned_uses++;
        planned->entry->schedule->planned_in_place = planned->in_place;
        planned->entry->schedule->planned_absmax = planned->absmax;
    }
}

void dp_schedule_begin(dp_negotiator_t *n, uint64_t sequence)
{
    dp_schedule_t *schedule = n->schedule;
    dp_own_output_t *output;

    dp_epoch_next(n);
    schedule->is_paused = schedule->stop.has_reason = schedule->stop.is_reason_sent =
        schedule->stop.is_reached_sent = 0;
    schedule->base = sequence;
    schedule->run.step = schedule->run.launched = schedule->run.confirmed =
        schedule->run.counts_sent = schedule->run.unconfirmed_ns = 0;
    schedule->catch_up.waited_ns = 0;
    schedule->run.slowest = -1;
    schedule->run.wants_exact_counts = schedule->run.has_misfit = 0;
    /* The root orders no schedule while a rank has to catch up, so nothing is lost. */
    schedule->catch_up.count = schedule->catch_up.done = 0;
    n->sequence = sequence;
    expect_counts(n);
    if (find_own_buckets(n) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    note_planned(schedule);
    output = dp_outbox_output(n, DP_OUTPUT_SCHEDULE_BEGAN);
    if (output == NULL) return;
    output->sequence = sequence;
    output->until = schedule->planned_count;
    for (size_t i = 0; i < n->table.entry_count; i++) {
        if (n->table.entries[i]->own.is_there) dp_schedule_check_fit(n, n->table.entries[i]);
    }
    if (n->leave.is_finalizing)
        dp_schedule_leave(n, DP_SCHEDULE_END_FINALIZE, n->rank, "it finalizes");
    for (size_t i = 0; i <= n->groups.count; i++) {
        if ((i < n->groups.count ? n->groups.views[i] : n->world)->has_join)
            dp_schedule_leave(n, DP_SCHEDULE_END_JOIN, n->rank, "it has joined");
    }
}

/* SCHEDULE_END: the schedule ends after bucket `high`, and all have launched what is before `low`.
 */
void dp_schedule_end(dp_negotiator_t *n, uint64_t low, uint64_t high)
{
    dp_schedule_t *schedule = n->schedule;
    char rank[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    dp_own_output_t *output;

    dp_epoch_next(n);
    n->sequence = schedule->base + high;
    snprintf(text, sizeof(text), "%s: %s", dp_rank_text(n, schedule->stop.rank, rank),
             schedule->stop.text);
    output = dp_outbox_text_output(n, DP_OUTPUT_SCHEDULE_ENDED, text);
    if (output == NULL) return;
    output->sequence = schedule->base + low;
    output->until = schedule->base + high;
    output->reason = schedule->stop.reason;
    output->culprit = schedule->stop.rank;
    schedule->is_paused = 0;
    dp_catch_up_begin(n, low, high);
    for (size_t i = 0; i < schedule->planned_count; i++) {
        if (schedule->planned[i].entry != NULL) {
            schedule->planned[i].entry->schedule->planned_uses = 0;
            schedule->planned[i].entry->schedule->fits = 0;
        }
    }
}

/* ---- Time ----------------------------------------------------------------------------------- */

/* Half of the time after which a stall is reported: then at least the counts are made exact, so
 * that a pause of all ranks is not taken for one of some. */
static uint64_t patience_ns(const dp_negotiator_t *n)
{
    return n->stall.warn_ns / 2;
}

static uint64_t waits_since(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;

    if (!dp_schedule_is_active(n) || schedule->is_paused || schedule->stop.has_reason ||
        n->stall.warn_ns == 0)
        return 0;
    return schedule->run.unconfirmed_ns;
}

/* While a schedule is active stalls are found here, after it by stall.c. */
void dp_schedule_check_time(dp_negotiator_t *n)
{
    uint64_t since_ns = waits_since(n);

    if (since_ns != 0 && n->now_ns >= since_ns + patience_ns(n)) {
        n->schedule->run.wants_exact_counts = 1;
        if (n->now_ns >= since_ns + n->stall.warn_ns)
            dp_schedule_leave(n, DP_SCHEDULE_END_STALL, n->rank, "others are late");
    }
}

uint64_t dp_schedule_next_check(const dp_negotiator_t *n)
{
    uint64_t since_ns = waits_since(n);

    if (since_ns == 0) return UINT64_MAX;
    if (n->now_ns < since_ns + patience_ns(n)) return since_ns + patience_ns(n);
    return since_ns + n->stall.warn_ns;
}
