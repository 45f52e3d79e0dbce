/*
 * catch_up.c - what is left of a lock when it ends: launches that some ranks made and others could
 * not follow yet.
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

static dp_lock_bucket_t *planned(dp_lock_t *lock, uint64_t number)
{
    return &lock->buckets[number % lock->bucket_count];
}

static dp_status_t reserve(dp_lock_t *lock, size_t count)
{
    dp_owed_t *grown;

    if (count <= lock->owed_room) return DP_OK;
    grown = realloc(lock->owed, count * sizeof(*grown));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    lock->owed = grown;
    lock->owed_room = count;
    return DP_OK;
}

/* Has this rank launched it? What it launches it launches in order. */
static void add(dp_lock_t *lock, const dp_lock_entry_t *entry, uint64_t number, int is_own)
{
    dp_owed_t *owed = &lock->owed[lock->owed_count++];

    memset(owed, 0, sizeof(*owed));
    owed->row = entry->row;
    owed->group = entry->row->scope->uid;
    owed->bucket = number;
    owed->is_own = is_own;
    owed->is_launched = !is_own || number < lock->launched;
    owed->in_place = entry->in_place;
    owed->absmax = entry->absmax;
    if (!is_own) return;
    lock->shadows += (size_t)owed->is_launched;
    lock->debts += (size_t)!owed->is_launched;
}

/* From the last to the first, so that each row's chain begins with its oldest. */
static void link_rows(dp_lock_t *lock)
{
    for (size_t i = lock->owed_count; i > 0; i--) {
        dp_owed_t *owed = &lock->owed[i - 1];

        owed->next_of_row = owed->row->owed;
        owed->row->owed = owed;
    }
}

/* The root: before the first launch of the epoch. */
static void reset_floors(dp_negotiator_t *n)
{
    if (n->lock.floor == NULL) n->lock.floor = malloc((size_t)n->size * sizeof(*n->lock.floor));
    if (n->lock.floor == NULL) {
        dp_fatal_memory(n);
        return;
    }
    memset(n->lock.floor, 0, (size_t)n->size * sizeof(*n->lock.floor));
}

/* The i-th rank that takes part in a tensor. */
static int rank_of(const dp_row_t *row, uint32_t i)
{
    if (row->scope == NULL) return row->list[i];
    if (row->root < 0) return dp_scope_rank(row->scope, (int)i);
    return dp_scope_rank(row->scope, i == 0 ? row->root : row->peer);
}

uint64_t dp_debt_floor(dp_negotiator_t *n, const dp_row_t *row)
{
    uint64_t floor = row->ahead;

    for (uint32_t i = 0; n->lock.floor != NULL && i < dp_row_ranks(row); i++)
        floor = dp_max(floor, n->lock.floor[rank_of(row, i)]);
    DP_ASSERT(floor <= n->lock.owed_end); /* else a launch waits for what nobody owes */
    return floor;
}

void dp_debt_raise(dp_negotiator_t *n, const dp_row_t *row, uint64_t floor)
{
    for (uint32_t i = 0; n->lock.floor != NULL && i < dp_row_ranks(row); i++) {
        int rank = rank_of(row, i);

        n->lock.floor[rank] = dp_max(n->lock.floor[rank], floor);
    }
}

void dp_debt_begin(dp_negotiator_t *n, uint64_t low, uint64_t high)
{
    dp_lock_t *lock = &n->lock;
    size_t count = 0;

    lock->owed_count = lock->owed_paid = lock->shadows = lock->debts = 0;
    lock->owed_end = high;
    lock->voided_ns = lock->has_warned = 0;
    lock->ended_ns = n->now_ns;
    if (lock->reason == DP_SCHEDULE_END_STALL) /* then others count from their launches on */
        lock->ended_ns -= dp_min(n->now_ns, n->stall_warn_ns);
    if (lock->waited_ns != 0) lock->waited_ns = dp_max(n->now_ns, 1);
    for (uint64_t number = low; number < high; number++)
        count += planned(lock, number)->count;
    if (reserve(lock, count) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    for (uint64_t number = low; number < high; number++) {
        const dp_lock_bucket_t *bucket = planned(lock, number);

        if (number / lock->bucket_count >= bucket->rounds) continue; /* by nobody */

        for (size_t i = 0; i < bucket->count; i++) {
            const dp_lock_entry_t *entry = &lock->entries[bucket->begin + i];

            if (entry->row == NULL) continue;
            entry->row->owed_left++;
            lock->open++;
            if (dp_row_takes_part(n, entry->row)) {
                add(lock, entry, number, 1);
            } else if (dp_is_root(n)) {
                add(lock, entry, number, 0);
            }
        }
    }
    link_rows(lock);
    lock->ahead = lock->launched > low ? lock->launched : 0;
    if (dp_is_root(n)) reset_floors(n);
    for (size_t i = 0; i < n->table.row_count && !n->is_fatal; i++)
        dp_debt_restart(n, n->table.rows[i]);
}

void dp_debt_restart(dp_negotiator_t *n, dp_row_t *row)
{
    if (row->is_restarting || (!row->own.is_there && row->owed_left == 0)) return;
    if (dp_row_array_push(&n->restarts, row) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    row->is_restarting = 1;
}

/* ---- Settled ---------------------------------------------------------------------------- */

static dp_owed_t *settle(dp_negotiator_t *n, dp_row_t *row)
{
    dp_owed_t *owed = row->owed;

    row->owed_left--;
    n->lock.open--;
    if (owed == NULL) return NULL;
    row->owed = owed->next_of_row;
    owed->is_settled = 1;
    if (dp_is_root(n)) dp_debt_raise(n, row, owed->bucket + 1);
    return owed->is_own ? owed : NULL;
}

static void tell(dp_negotiator_t *n, const dp_owed_t *owed, uint32_t absent, dp_status_t status,
                 const char *text)
{
    dp_event_t *event = dp_outbox_text_event(n, DP_OUTPUT_SETTLED, text);

    n->lock.shadows--;
    if (event == NULL) return;
    event->sequence = n->lock.base + owed->bucket + 1;
    event->id = owed->row->id;
    event->absent = absent;
    event->status = status;
}

void dp_debt_launched(dp_negotiator_t *n, dp_row_t *row, uint32_t absent)
{
    dp_owed_t *owed = settle(n, row);

    if (owed == NULL) return;
    if (owed->is_launched) {
        tell(n, owed, absent, DP_OK, "");
        return;
    }
    owed->request = row->request;
    owed->absent = absent;
    owed->signature = dp_signature_copy(row->signature);
    if (owed->signature == NULL) dp_fatal_memory(n);
}

/* The tensor's signature was agreed on before the lock: those who launched it used that one. */
void dp_debt_failed(dp_negotiator_t *n, dp_row_t *row, dp_status_t status, const char *text)
{
    dp_owed_t *owed = settle(n, row);

    if (owed == NULL) return;
    if (owed->is_launched) {
        tell(n, owed, 0, status, text);
        return;
    }
    owed->is_void = 1;
    owed->signature = dp_signature_copy(row->signature);
    if (owed->signature == NULL) dp_fatal_memory(n);
}

/* ---- Paid ------------------------------------------------------------------------------- */

/* One more than the last of the bucket that begins at `first`. */
static size_t bucket_end(const dp_lock_t *lock, size_t first)
{
    size_t end = first;

    while (end < lock->owed_count && lock->owed[end].bucket == lock->owed[first].bucket)
        end++;
    return end;
}

/* The number of the first bucket that this rank has still to make up for. */
static uint64_t next_debt(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    for (size_t i = lock->owed_paid; i < lock->owed_count && lock->debts > 0; i++) {
        if (!lock->owed[i].is_launched) return lock->owed[i].bucket;
    }
    return UINT64_MAX;
}

static void pay(dp_negotiator_t *n, size_t begin, size_t end)
{
    dp_lock_t *lock = &n->lock;
    size_t entry_begin = n->entry_count;
    dp_event_t *event;

    for (size_t i = begin; i < end; i++) {
        dp_owed_t *owed = &lock->owed[i];
        dp_launch_entry_t entry = {.request = owed->request,
                                   .signature = owed->signature,
                                   .name = owed->row->name,
                                   .id = owed->row->id,
                                   .absent = owed->absent,
                                   .is_void = owed->is_void,
                                   .last_absmax = owed->absmax,
                                   .in_place = owed->in_place};

        lock->debts--;
        if (dp_outbox_entry(n, &entry) != DP_OK ||
            dp_table_retire(&n->table, owed->signature) != DP_OK) {
            dp_fatal_memory(n);
            return;
        }
        owed->signature = NULL; /* it goes when the output was taken */
    }
    event = dp_outbox_event(n, DP_OUTPUT_LAUNCH);
    if (event == NULL) return;
    event->sequence = lock->base + lock->owed[begin].bucket + 1;
    event->group = lock->owed[begin].group;
    event->entry_begin = entry_begin;
    event->entry_count = end - begin;
    event->is_scheduled = 1;
    n->launching = dp_max(n->launching, event->sequence);
    lock->voided_ns = lock->has_warned = 0; /* a thread may wait for more */
    if (lock->waited_ns != 0) lock->waited_ns = dp_max(n->now_ns, 1);
}

/* What waited behind debts that are paid now. */
static void put_deferred(dp_negotiator_t *n)
{
    uint64_t owed = next_debt(n);
    size_t done = 0;

    for (; done < n->deferred_count && n->deferred[done].behind <= owed && !n->is_fatal; done++) {
        const dp_event_t *late = &n->deferred[done];
        size_t entry_begin = n->entry_count;
        dp_event_t *event;

        for (size_t e = 0; e < late->entry_count; e++) {
            if (dp_outbox_entry(n, &n->deferred_entries[late->entry_begin + e]) == DP_OK) continue;
            dp_fatal_memory(n);
            return;
        }
        event = dp_outbox_event(n, late->kind);
        if (event == NULL) return;
        *event = *late;
        event->entry_begin = entry_begin;
    }
    if (n->is_fatal) return; /* they are gone */
    n->deferred_count -= done;
    if (n->deferred_count == 0) n->deferred_entry_count = 0;
    memmove(n->deferred, n->deferred + done, n->deferred_count * sizeof(*n->deferred));
}

void dp_debt_pay(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    if (n->deferred_count > 0) put_deferred(n);
    while (lock->owed_paid < lock->owed_count && !n->is_fatal) {
        size_t end = bucket_end(lock, lock->owed_paid);

        if (!lock->owed[lock->owed_paid].is_launched) {
            for (size_t i = lock->owed_paid; i < end; i++) {
                if (!lock->owed[i].is_settled) return;
            }
            pay(n, lock->owed_paid, end);
        }
        lock->owed_paid = end;
        if (n->deferred_count > 0 && !n->is_fatal) put_deferred(n);
    }
}

void dp_debt_defer(dp_negotiator_t *n, uint64_t behind)
{
    dp_event_t *event;

    if (n->is_fatal || (n->deferred_count == 0 && behind <= next_debt(n))) return;
    event = &n->events[n->event_count - 1];
    event->behind = behind;
    if (dp_outbox_defer(n, event) != DP_OK) dp_fatal_memory(n);
    n->event_count--;
}

/* ---- The next occurrence ---------------------------------------------------------------- */

/* Of a tensor that no rank may announce again all is settled, as a failure. */
static void close_row(dp_negotiator_t *n, dp_row_t *row)
{
    while (row->owed_left > 0 && !n->is_fatal)
        dp_leave_end(n, row);
    if (!row->own.is_there || n->is_fatal) return;
    dp_leave_refuse(n, row, row->own.request);
    dp_own_end(n, row);
}

/* Where others are late a stall counts from the launch, elsewhere from the end of the lock. */
static uint64_t shadow_since(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    if (lock->reason != DP_SCHEDULE_END_STALL || lock->unconfirmed_ns == 0) return n->now_ns;
    return dp_min(lock->unconfirmed_ns, n->now_ns);
}

/* This rank's part of the row's oldest occurrence that is not settled. */
static void arrive(dp_negotiator_t *n, dp_row_t *row)
{
    dp_arrival_t arrival = {
        .slot = dp_own_slot(n), .rank = n->rank, .ahead = n->lock.open > 0 ? n->lock.ahead : 0};
    const dp_owed_t *owed = row->owed;
    dp_own_t *own = &row->own;

    if (owed != NULL && owed->is_own && owed->is_launched) {
        row->is_own = row->is_shadow = 1;
        row->request = NULL;
        arrival.in_place = owed->in_place;
        arrival.absmax = owed->absmax;
        arrival.is_urgent = 1;
        dp_agree_pending(n, row, shadow_since(n));
        dp_agree_arrive(n, row, &arrival);
        return;
    }
    if (!own->is_there) return;
    row->is_own = 1;
    row->request = own->request;
    arrival.in_place = own->in_place;
    arrival.absmax = own->absmax;
    arrival.is_urgent = own->is_urgent || owed != NULL;
    if (own->signature != NULL) {
        arrival.signature = dp_signature_copy(own->signature);
        if (arrival.signature == NULL) {
            dp_fatal_memory(n);
            return;
        }
    }
    if (own->since_ns < n->now_ns) dp_agree_pending(n, row, own->since_ns);
    dp_agree_arrive(n, row, &arrival);
}

static int has_shadow(const dp_lock_t *lock, const dp_scope_t *scope)
{
    for (size_t i = 0; i < lock->owed_count && lock->shadows > 0; i++) {
        const dp_owed_t *owed = &lock->owed[i];

        if (owed->is_own && owed->is_launched && !owed->is_settled && owed->group == scope->uid)
            return 1;
    }
    return 0;
}

static void restart(dp_negotiator_t *n, dp_row_t *row)
{

    if (row->is_own) return;
    if (row->scope != NULL && row->own_expect == NULL && row->scope->is_closed && !row->is_kept) {
        close_row(n, row);
    } else if (row->own.is_there && row->scope != NULL && row->scope->ending == row &&
               has_shadow(&n->lock, row->scope)) {
        dp_debt_restart(n, row); /* the end of a group comes after all that is owed */
    } else {
        arrive(n, row);
    }
}

void dp_debt_submitted(dp_negotiator_t *n, dp_row_t *row)
{
    restart(n, row);
}

void dp_debt_flush(dp_negotiator_t *n)
{
    size_t count = n->restarts.count;

    for (size_t i = 0; i < count && !n->is_fatal; i++) {
        dp_row_t *row = n->restarts.rows[i];

        row->is_restarting = 0;
        if (!n->lock.is_scheduled) restart(n, row);
    }
    if (n->is_fatal) return;
    if (count > 0) {
        memmove(n->restarts.rows, n->restarts.rows + count,
                (n->restarts.count - count) * sizeof(dp_row_t *));
    }
    n->restarts.count -= count;
    dp_debt_pay(n);
}

/* ---- Debts that would never be paid ----------------------------------------------------- */

/* A thread waits, and what it waits for may not come before what this rank has not submitted. Most
 * often another thread is about to submit that, so a word comes first, and the end of it late. */
static uint64_t warn_ns(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;

    if (lock->debts == 0 || lock->waited_ns == 0 || lock->has_warned || n->stall_warn_ns == 0)
        return UINT64_MAX;
    return lock->waited_ns + n->stall_warn_ns;
}

/* Half of what is left when the wait begins of the time that others wait: so however many it takes,
 * one after the other, they come before the limit. */
static uint64_t void_ns(const dp_negotiator_t *n)
{
    const dp_lock_t *lock = &n->lock;
    uint64_t limit_ns = lock->ended_ns + n->stall_limit_ns;

    if (lock->debts == 0 || lock->waited_ns == 0 || lock->voided_ns != 0 || n->stall_limit_ns == 0)
        return UINT64_MAX;
    return lock->waited_ns + (limit_ns > lock->waited_ns ? (limit_ns - lock->waited_ns) / 2 : 0);
}

static void say_void(dp_negotiator_t *n, dp_row_t *row)
{
    dp_word_t word = {
        .kind = DP_ITEM_GIVE_UP, .rank = n->rank, .row = row, .position = n->position};

    if (dp_is_root(n)) {
        dp_order_void(n, row, n->rank);
    } else {
        dp_outbox_say(n, &word);
    }
}

/* What this rank owes next, and has not submitted: says so, or gives it up. */
static void speak(dp_negotiator_t *n, int gives_up)
{
    dp_lock_t *lock = &n->lock;
    char what[DP_ROW_TEXT_MAX], text[DP_ERROR_TEXT_MAX];
    size_t end;

    while (lock->owed_paid < lock->owed_count && lock->owed[lock->owed_paid].is_launched)
        lock->owed_paid++;
    end = bucket_end(lock, lock->owed_paid);
    for (size_t i = lock->owed_paid; i < end && !n->is_fatal; i++) {
        dp_owed_t *owed = &lock->owed[i];

        if (owed->is_settled || owed->row->own.is_there) continue;
        if (gives_up) {
            say_void(n, owed->row);
            continue;
        }
        snprintf(text, sizeof(text),
                 "a thread has waited %.1f s behind %.*s, which this rank has not submitted and "
                 "others launched as in the rounds before; DP_SCHEDULE=off launches in any order",
                 (double)(n->now_ns - lock->waited_ns) * 1e-9, WHAT_IN_TEXT,
                 dp_row_text(owed->row, what));
        dp_outbox_warn(n, text);
        return;
    }
}

void dp_debt_tick(dp_negotiator_t *n)
{
    if (n->now_ns >= warn_ns(n)) {
        n->lock.has_warned = 1;
        speak(n, 0);
    }
    if (n->is_fatal || n->now_ns < void_ns(n)) return;
    n->lock.voided_ns = n->now_ns;
    speak(n, 1);
}

uint64_t dp_debt_deadline(const dp_negotiator_t *n)
{
    return dp_min(warn_ns(n), void_ns(n));
}

/* position: what the rank had seen of the order when it gave up. */
void dp_debt_void(dp_negotiator_t *n, int rank, uint64_t position, dp_row_t *row)
{
    if (row->owed_left == 0 || position < row->done_position) return;
    if (dp_is_root(n)) {
        dp_order_void(n, row, rank);
    } else {
        dp_word_t word = {.kind = DP_ITEM_GIVE_UP, .rank = rank, .row = row, .position = position};

        dp_outbox_say(n, &word);
    }
}
