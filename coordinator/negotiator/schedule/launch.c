/*
 * launch.c - a rank under a locked schedule: it launches the plan's buckets in their order, each as
 * soon as its tensors are submitted here, and asks nobody.
 *
 * An epoch begins from nothing but what was ordered: what was said upwards in the one before is
 * dropped wherever it arrives late, and said again if it still holds. Under a lock nothing goes up
 * but how far the subtree has come, and that a rank must deviate. Then all stop where they are
 * (HOLD), say where that is (STAND), and RELEASE ends the epoch with the lowest and the highest
 * number; what lies between is for schedule/catch_up.c.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCALE_SLACK 4 /* binary orders by which a magnitude may leave the plan's */

const char *dp_schedule_end_reason_name(dp_schedule_end_reason_t reason)
{
    switch (reason) {
    case DP_SCHEDULE_END_TENSOR:
        return "tensor";
    case DP_SCHEDULE_END_SIGNATURE:
        return "signature";
    case DP_SCHEDULE_END_MEMORY:
        return "memory";
    case DP_SCHEDULE_END_SCALE:
        return "scale";
    case DP_SCHEDULE_END_WAIT:
        return "wait";
    case DP_SCHEDULE_END_JOIN:
        return "join";
    case DP_SCHEDULE_END_GROUP:
        return "group";
    case DP_SCHEDULE_END_FINALIZE:
        return "finalize";
    case DP_SCHEDULE_END_SETTING:
        return "setting";
    case DP_SCHEDULE_END_STALL:
        return "stall";
    case DP_SCHEDULE_END_REASONS:
        break;
    }
    return "unknown";
}

dp_status_t dp_lock_init(dp_negotiator_t *n)
{
    n->lock.child_rounds = calloc((size_t)n->child_count + 1, sizeof(*n->lock.child_rounds));
    return n->lock.child_rounds != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_lock_fini(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    for (size_t i = 0; i < lock->owed_count; i++)
        free(lock->owed[i].signature);
    free(lock->owed);
    free(lock->entries);
    free(lock->buckets);
    free(lock->own);
    free(lock->child_rounds);
    free(lock->floor);
    free(lock->rounds);
    free(lock->past);
    free(n->restarts.rows);
}

/* ---- Where this rank stands ------------------------------------------------------------- */

/* The number of this rank's next bucket. */
uint64_t dp_lock_next(const dp_lock_t *lock)
{
    if (lock->own_count == 0) return DP_LOCK_NOBODY;
    return lock->step / lock->own_count * lock->bucket_count +
           lock->own[lock->step % lock->own_count];
}

static uint64_t own_rounds(const dp_lock_t *lock)
{
    return lock->own_count == 0 ? DP_LOCK_NOBODY : lock->step / lock->own_count;
}

/* All rounds that the whole subtree has launched. */
uint64_t dp_lock_rounds(const dp_negotiator_t *n)
{
    uint64_t rounds = own_rounds(&n->lock);

    for (int i = 0; i < n->child_count; i++)
        rounds = dp_min(rounds, n->lock.child_rounds[i]);
    return rounds;
}

uint64_t dp_lock_horizon(const dp_negotiator_t *n)
{
    return (n->lock.confirmed + n->lock.stride + 1) * n->lock.bucket_count;
}

/* ---- Deviations ------------------------------------------------------------------------- */

void dp_lock_diverge(dp_negotiator_t *n, dp_schedule_end_reason_t reason, int rank,
                     const char *text)
{
    dp_lock_t *lock = &n->lock;

    if (!lock->is_scheduled || lock->has_reason) return;
    lock->has_reason = 1;
    lock->reason = reason;
    lock->reason_rank = rank;
    snprintf(lock->reason_text, sizeof(lock->reason_text), "%s", text);
}

static void diverge_row(dp_negotiator_t *n, dp_schedule_end_reason_t reason, const dp_row_t *row)
{
    char what[DP_ROW_TEXT_MAX];

    dp_lock_diverge(n, reason, n->rank, dp_row_text(row, what));
}

/* Is the plan's scale no good for sums of this size any more? */
static int has_moved(float planned, float absmax)
{
    int a, b;

    if (!(planned > 0.0f) || isinf(planned)) return absmax > 0.0f && !isinf(absmax);
    if (!(absmax > 0.0f) || isinf(absmax)) return 0; /* no figure, or one bad step */
    frexpf(planned, &a);
    frexpf(absmax, &b);
    return a - b > SCALE_SLACK || b - a > SCALE_SLACK;
}

/* Does what was submitted fit the plan? */
static void judge(dp_negotiator_t *n, dp_row_t *row)
{
    dp_own_t *own = &row->own;
    const dp_signature_t *signature = own->signature != NULL ? own->signature : row->signature;

    own->fits = 0;
    if (row->scope == NULL || signature->collective == DP_COLLECTIVE_GROUP_DESTROY) {
        diverge_row(n, DP_SCHEDULE_END_GROUP, row);
    } else if (row->plan_uses == 0) {
        diverge_row(n, DP_SCHEDULE_END_TENSOR, row);
    } else if (own->signature != NULL) {
        diverge_row(n, DP_SCHEDULE_END_SIGNATURE, row);
    } else if (row->plan_in_place && !own->in_place) {
        diverge_row(n, DP_SCHEDULE_END_MEMORY, row);
    } else {
        own->fits = 1;
        if (signature->wire == DP_WIRE_FP16 && has_moved(row->plan_absmax, own->absmax))
            diverge_row(n, DP_SCHEDULE_END_SCALE, row);
    }
}

void dp_lock_waits(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    const dp_lock_bucket_t *bucket;

    if ((lock->is_scheduled || lock->debts > 0) && lock->waited_ns == 0)
        lock->waited_ns = dp_max(n->now_ns, 1);
    if (!lock->is_scheduled || lock->own_count == 0 || n->own_pending == 0) return;
    bucket = &lock->buckets[lock->own[lock->step % lock->own_count]];
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_row_t *first = lock->entries[bucket->begin + i].row;

        if (first->own.is_there) continue;
        diverge_row(n, DP_SCHEDULE_END_WAIT, first);
        return;
    }
}

/* ---- Launching -------------------------------------------------------------------------- */

static int is_complete(const dp_lock_t *lock, const dp_lock_bucket_t *bucket)
{
    for (size_t i = 0; i < bucket->count; i++) {
        const dp_own_t *own = &lock->entries[bucket->begin + i].row->own;

        if (!own->is_there || !own->fits) return 0;
    }
    return 1;
}

static void launch(dp_negotiator_t *n, const dp_lock_bucket_t *bucket, uint64_t number)
{
    dp_lock_t *lock = &n->lock;
    size_t entry_begin = n->entry_count;
    dp_event_t *event;

    for (size_t i = 0; i < bucket->count; i++) {
        const dp_lock_entry_t *planned = &lock->entries[bucket->begin + i];
        dp_row_t *row = planned->row;
        dp_launch_entry_t entry = {.request = row->own.request,
                                   .signature = row->signature,
                                   .name = row->name,
                                   .id = row->id,
                                   .last_absmax = planned->absmax,
                                   .in_place = planned->in_place};

        if (dp_outbox_entry(n, &entry) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        dp_own_end(n, row);
    }
    event = dp_outbox_event(n, DP_OUTPUT_LAUNCH);
    if (event == NULL) return;
    event->sequence = lock->base + number + 1;
    event->group = lock->entries[bucket->begin].row->scope->uid;
    event->entry_begin = entry_begin;
    event->entry_count = bucket->count;
    event->is_scheduled = 1;
    n->launching = event->sequence;
    lock->waited_ns = 0;
    lock->step++;
    if (lock->step % lock->own_count == 0 && dp_lock_rounds(n) == own_rounds(lock))
        lock->laggard = n->rank;
    lock->launched = number + 1;
    if (lock->unconfirmed_ns == 0) lock->unconfirmed_ns = dp_max(n->now_ns, 1);
}

void dp_lock_run(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    while (lock->is_scheduled && !lock->is_held && lock->own_count > 0 && !n->is_fatal) {
        uint64_t number = dp_lock_next(lock);
        const dp_lock_bucket_t *bucket = &lock->buckets[number % lock->bucket_count];

        if (number / lock->bucket_count > lock->confirmed + lock->stride) return;
        if (!is_complete(lock, bucket)) return;
        launch(n, bucket, number);
    }
}

void dp_lock_submitted(dp_negotiator_t *n, dp_row_t *row)
{
    judge(n, row);
}

/* ---- From one epoch to the next --------------------------------------------------------- */

/* Nothing that was said upwards holds any longer. */
static void forget_words(dp_negotiator_t *n)
{
    dp_scope_t *scope = n->world;

    for (size_t i = 0; i <= n->group_count; i++) {
        memset(scope->joined, 0, dp_bit_words(scope->member_count) * sizeof(*scope->joined));
        memset(scope->joined_below, 0, (size_t)n->table.slots * sizeof(*scope->joined_below));
        scope->joined_count = 0;
        scope->last_joined = -1;
        scope->is_join_said = 0;
        if (i < n->group_count) scope = n->groups[i];
    }
    memset(n->left, 0, dp_bit_words((size_t)n->size) * sizeof(*n->left));
    memset(n->fins, 0, n->table.bit_words * sizeof(*n->fins));
    n->left_count = n->fin_count = n->fin_sent = n->has_left = 0;
    n->word_count = n->kept_count = 0;
    n->stall.is_asking = 0;
}

static void forget_rows(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->table.row_count; i++) {
        dp_row_t *row = n->table.rows[i];

        dp_contest_drop(row);
        if (!row->is_pending && !row->is_own) continue;
        dp_stall_unwatch(n, row, 0);
        dp_row_clear(row, n->table.bit_words);
    }
    n->complete.count = n->foreign.count = 0;
    n->complete_bytes = 0;
    n->complete_urgent = 0;
}

static void next_epoch(dp_negotiator_t *n)
{
    dp_outbox_close_up(n); /* it speaks of the epoch that ends */
    forget_words(n);
    forget_rows(n);
    n->position++;
    n->epoch++;
}

/* Which slots take part in anything, for which COUNTs are due. */
static void expect_counts(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    for (int i = 0; i < n->child_count; i++)
        lock->child_rounds[i] = DP_LOCK_NOBODY;
    for (size_t i = 0; i < lock->entry_count; i++) {
        const dp_row_t *row = lock->entries[i].row;

        for (int c = 0; row != NULL && c < n->child_count; c++) {
            if (dp_bit_get(row->expect, c)) lock->child_rounds[c] = 0;
        }
    }
}

static dp_status_t find_own(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    if (lock->own_room < lock->bucket_count) {
        size_t *grown = realloc(lock->own, lock->bucket_count * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        lock->own = grown;
        lock->own_room = lock->bucket_count;
    }
    lock->own_count = 0;
    for (size_t i = 0; i < lock->bucket_count; i++) {
        const dp_row_t *row = lock->entries[lock->buckets[i].begin].row;

        if (row != NULL && dp_row_takes_part(n, row)) lock->own[lock->own_count++] = i;
    }
    return DP_OK;
}

static void note_uses(dp_lock_t *lock)
{
    for (size_t i = 0; i < lock->entry_count; i++) {
        const dp_lock_entry_t *entry = &lock->entries[i];

        if (entry->row == NULL) continue;
        entry->row->plan_uses++;
        entry->row->plan_in_place = entry->in_place;
        entry->row->plan_absmax = entry->absmax;
    }
}

void dp_lock_begin(dp_negotiator_t *n, uint64_t sequence)
{
    dp_lock_t *lock = &n->lock;
    dp_event_t *event;

    next_epoch(n);
    lock->is_scheduled = 1;
    lock->is_held = lock->has_reason = lock->is_reason_said = lock->is_stand_said = 0;
    lock->base = sequence;
    lock->step = lock->launched = lock->confirmed = lock->said = lock->unconfirmed_ns = 0;
    lock->waited_ns = 0;
    lock->laggard = -1;
    lock->flush_counts = 0;
    dp_resume_drop(n);
    lock->owed_count = lock->owed_paid = 0; /* all of it was paid, or this were not ordered */
    n->sequence = sequence;
    expect_counts(n);
    if (find_own(n) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    note_uses(lock);
    event = dp_outbox_event(n, DP_OUTPUT_SCHEDULE_BEGAN);
    if (event == NULL) return;
    event->sequence = sequence;
    event->until = lock->entry_count;
    for (size_t i = 0; i < n->table.row_count; i++) {
        if (n->table.rows[i]->own.is_there) judge(n, n->table.rows[i]);
    }
    if (n->is_finalizing) dp_lock_diverge(n, DP_SCHEDULE_END_FINALIZE, n->rank, "it finalizes");
    for (size_t i = 0; i <= n->group_count; i++) {
        if ((i < n->group_count ? n->groups[i] : n->world)->has_join)
            dp_lock_diverge(n, DP_SCHEDULE_END_JOIN, n->rank, "it has joined");
    }
}

/* RELEASE: the schedule ends after bucket `high`, and all have launched what is before `low`. */
void dp_lock_end(dp_negotiator_t *n, uint64_t low, uint64_t high)
{
    dp_lock_t *lock = &n->lock;
    char rank[DP_RANK_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    dp_event_t *event;

    next_epoch(n);
    n->sequence = lock->base + high;
    snprintf(text, sizeof(text), "%s: %s", dp_rank_text(n, lock->reason_rank, rank),
             lock->reason_text);
    event = dp_outbox_text_event(n, DP_OUTPUT_SCHEDULE_ENDED, text);
    if (event == NULL) return;
    event->sequence = lock->base + low;
    event->until = lock->base + high;
    event->reason = lock->reason;
    event->culprit = lock->reason_rank;
    lock->is_scheduled = lock->is_held = 0;
    dp_debt_begin(n, low, high);
    for (size_t i = 0; i < lock->entry_count; i++) {
        if (lock->entries[i].row != NULL) lock->entries[i].row->plan_uses = 0;
    }
    if (dp_is_root(n)) dp_plan_ended(n, high / lock->bucket_count);
}

/* ---- Time ------------------------------------------------------------------------------- */

/* Half of the time after which a stall is reported: then at least the counts are made exact, so
 * that a pause of all ranks is not taken for one of some. */
static uint64_t patience_ns(const dp_negotiator_t *n)
{
    return n->stall_warn_ns / 2;
}

static uint64_t waits_since(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    if (!lock->is_scheduled || lock->is_held || lock->has_reason || n->stall_warn_ns == 0) return 0;
    return lock->unconfirmed_ns;
}

void dp_lock_tick(dp_negotiator_t *n)
{
    uint64_t since_ns = waits_since(n);

    if (since_ns == 0 || n->now_ns < since_ns + patience_ns(n)) return;
    n->lock.flush_counts = 1;
    if (n->now_ns >= since_ns + n->stall_warn_ns)
        dp_lock_diverge(n, DP_SCHEDULE_END_STALL, n->rank, "others are late");
}

uint64_t dp_lock_deadline(const dp_negotiator_t *n)
{
    uint64_t since_ns = waits_since(n);

    if (since_ns == 0) return UINT64_MAX;
    if (n->now_ns < since_ns + patience_ns(n)) return since_ns + patience_ns(n);
    return since_ns + n->stall_warn_ns;
}
