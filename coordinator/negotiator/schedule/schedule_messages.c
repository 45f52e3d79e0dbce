/*
 * schedule_messages.c - what nodes say to each other while a schedule is locked, and the plan they
 * share.
 *
 * Up go counts of rounds, a reason to leave, and where a subtree stands; down come the plan, the
 * confirmed count, HOLD and RELEASE. All of it is checked against what can be before it counts.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_confirmed(dp_negotiator_t *n, uint64_t rounds)
{
    dp_lock_t *lock = &n->lock;
    int is_ahead = lock->own_count > 0 && lock->step > rounds * lock->own_count;

    lock->confirmed = rounds;
    lock->unconfirmed_ns = is_ahead ? dp_max(n->now_ns, 1) : 0;
}

/* ---- What neighbours say ---------------------------------------------------------------- */

static void hold(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;

    n->must_park = dp_outbox_event(n, DP_OUTPUT_SCHEDULE_PAUSED) != NULL;
    lock->is_held = 1;
    lock->waiting = n->child_count;
    lock->low = dp_lock_next(lock);
    lock->high = lock->launched;
    for (size_t i = 0; i < lock->bucket_count; i++)
        lock->buckets[i].rounds = 0;
    for (size_t i = 0; i < lock->own_count; i++) {
        lock->buckets[lock->own[i]].rounds =
            lock->step / lock->own_count + (i < lock->step % lock->own_count);
    }
}

/* What a subtree has launched of each bucket, into the plan. 0: that cannot be. */
static int take_rounds(dp_negotiator_t *n, const dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;

    if (item->round_count != lock->bucket_count) return 0;
    for (size_t i = 0; i < lock->bucket_count; i++) {
        if (item->rounds[i] > lock->confirmed + lock->stride + 1) return 0;
        lock->buckets[i].rounds = dp_max(lock->buckets[i].rounds, item->rounds[i]);
    }
    return 1;
}

/* The other way. */
static int give_rounds(dp_negotiator_t *n, dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;

    if (lock->rounds_room < lock->bucket_count) {
        uint64_t *grown = realloc(lock->rounds, lock->bucket_count * sizeof(*grown));

        if (grown == NULL) {
            dp_fatal_memory(n);
            return 0;
        }
        lock->rounds = grown;
        lock->rounds_room = lock->bucket_count;
    }
    for (size_t i = 0; i < lock->bucket_count; i++)
        lock->rounds[i] = lock->buckets[i].rounds;
    item->rounds = lock->rounds;
    item->round_count = (uint32_t)lock->bucket_count;
    return 1;
}

static void receive_count(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;
    uint64_t before = dp_lock_rounds(n);

    if (lock->child_rounds[child] == DP_LOCK_NOBODY || item->low < lock->child_rounds[child] ||
        item->low > lock->confirmed + lock->stride + 1) {
        dp_fatal_protocol(n, from, "%" PRIu64 " rounds launched, %" PRIu64 " before", item->low,
                          lock->child_rounds[child]);
        return;
    }
    lock->child_rounds[child] = item->low;
    if (dp_lock_rounds(n) > before) lock->laggard = item->rank;
    if (item->low % lock->stride != 0) lock->flush_counts = 1; /* somebody wants to know exactly */
}

void dp_lock_from_child(dp_negotiator_t *n, int from, int child, const dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;

    if (!lock->is_scheduled) {
        dp_fatal_protocol(n, from, "item %d, and nothing is locked", item->kind);
    } else if (item->kind == DP_ITEM_DIVERGE) {
        dp_lock_diverge(n, item->reason, item->rank, item->text);
    } else if (item->kind == DP_ITEM_COUNT) {
        receive_count(n, from, child, item);
    } else if (!lock->is_held || lock->waiting == 0 || item->high > dp_lock_horizon(n) ||
               !take_rounds(n, item)) {
        dp_fatal_protocol(n, from, "it stands at buckets %" PRIu64 " to %" PRIu64, item->low,
                          item->high);
    } else {
        lock->waiting--;
        lock->low = dp_min(lock->low, item->low);
        lock->high = dp_max(lock->high, item->high);
    }
}

void dp_lock_from_parent(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;

    if (!lock->is_scheduled ||
        (item->kind != DP_ITEM_CONFIRM && item->kind != DP_ITEM_PAUSE &&
         (!lock->is_stand_said || item->low > item->high || item->high > dp_lock_horizon(n) ||
          item->high < lock->high || item->low > lock->low || !take_rounds(n, item)))) {
        dp_fatal_protocol(n, from, "item %d out of turn", item->kind);
    } else if (item->kind == DP_ITEM_CONFIRM) {
        uint64_t own = dp_lock_rounds(n);

        if (item->low < lock->confirmed || item->low > own) {
            dp_fatal_protocol(n, from, "%" PRIu64 " rounds confirmed, %" PRIu64 " launched",
                              item->low, own);
            return;
        }
        note_confirmed(n, item->low);
    } else if (item->kind == DP_ITEM_PAUSE) {
        if (lock->is_held) {
            dp_fatal_protocol(n, from, "held twice");
            return;
        }
        lock->has_reason = lock->is_reason_said = 1;
        lock->reason = item->reason;
        lock->reason_rank = item->rank;
        snprintf(lock->reason_text, sizeof(lock->reason_text), "%s", item->text);
        hold(n);
    }
}

dp_status_t dp_lock_plan_reserve(dp_lock_t *lock, size_t buckets, size_t entries)
{
    if (buckets > lock->bucket_room) {
        dp_lock_bucket_t *grown = realloc(lock->buckets, buckets * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        lock->buckets = grown;
        lock->bucket_room = buckets;
    }
    if (entries > lock->entry_room) {
        size_t room = dp_max(entries, lock->entry_room * 2);
        dp_lock_entry_t *grown = realloc(lock->entries, room * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        lock->entries = grown;
        lock->entry_room = room;
    }
    return DP_OK;
}

/* One entry of bucket `bucket`; 0: it is none. */
static int take_entry(dp_negotiator_t *n, dp_lock_bucket_t *bucket, const dp_item_t *item)
{
    dp_lock_t *lock = &n->lock;
    dp_row_t *row = dp_table_by_id(&n->table, item->id);

    if (dp_lock_plan_reserve(lock, 0, lock->entry_count + 1) != DP_OK) {
        dp_fatal_memory(n);
        return 0;
    }
    if ((item->flags & ~DP_FLAG_IN_PLACE) != 0) return 0;
    if (row != NULL && !dp_lock_is_lockable(row, row->signature)) return 0;
    if (bucket->count > 0) {
        const dp_row_t *first = lock->entries[bucket->begin].row;

        if ((first == NULL) != (row == NULL)) return 0;
        if (row != NULL && first->scope != row->scope) return 0;
    }
    lock->entries[lock->entry_count++] =
        (dp_lock_entry_t){row, (item->flags & DP_FLAG_IN_PLACE) != 0, item->absmax};
    bucket->count++;
    return 1;
}

/* Reads the plan. */
static void read_plan(dp_negotiator_t *n, int from, uint32_t count, dp_reader_t *reader)
{
    dp_lock_t *lock = &n->lock;
    dp_item_t *entry = &n->made;

    lock->bucket_count = count;
    lock->entry_count = 0;
    for (uint32_t b = 0; b < count && !n->is_fatal; b++) {
        dp_lock_bucket_t *bucket = &lock->buckets[b];
        uint32_t entries;

        *bucket = (dp_lock_bucket_t){lock->entry_count, 0, 0};
        if (dp_item_read_bucket(reader, &entries) != DP_OK) {
            dp_fatal_protocol(n, from, "malformed plan");
            return;
        }
        for (uint32_t i = 0; i < entries && !n->is_fatal; i++) {
            int is_good = dp_item_read_entry(reader, entry) == DP_OK;

            if (is_good) is_good = take_entry(n, bucket, entry);
            dp_item_fini(entry);
            if (!is_good && !n->is_fatal) dp_fatal_protocol(n, from, "a plan that cannot be");
        }
    }
}

void dp_lock_receive(dp_negotiator_t *n, int from, const dp_item_t *item, dp_reader_t *reader)
{
    dp_lock_t *lock = &n->lock;
    uint64_t sequence = item->sequence;

    dp_debt_pay(n);
    if (n->is_fatal) return;
    if (lock->is_scheduled || lock->open > 0 || lock->debts > 0 || sequence < n->sequence ||
        sequence > DP_POSITION_MAX) {
        dp_fatal_protocol(n, from, "a lock after launch %" PRIu64 ", this rank is at %" PRIu64,
                          sequence, n->sequence);
        return;
    }
    lock->stride = item->stride;
    if (dp_lock_plan_reserve(lock, item->count, 0) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    read_plan(n, from, item->count, reader);
}

/* ---- What this node says ---------------------------------------------------------------- */

static void say_reason(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    dp_item_t *item = &n->made;

    if (!lock->has_reason || lock->is_reason_said) return;
    lock->is_reason_said = 1;
    item->kind = dp_is_root(n) ? DP_ITEM_PAUSE : DP_ITEM_DIVERGE;
    item->reason = lock->reason;
    item->rank = lock->reason_rank;
    item->text = lock->reason_text;
    item->list_count = 0;
    if (dp_is_root(n)) {
        dp_outbox_down(n, n->world->expect, item, 0);
        hold(n);
    } else {
        dp_outbox_up_item(n, item);
    }
}

static void say_counts(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    dp_item_t *item = &n->made;
    uint64_t rounds = dp_lock_rounds(n);

    if (rounds == DP_LOCK_NOBODY || lock->is_held) return;
    if (!lock->flush_counts) rounds -= rounds % lock->stride;
    lock->flush_counts = 0;
    if (rounds <= lock->said) return;
    lock->said = rounds;
    item->kind = dp_is_root(n) ? DP_ITEM_CONFIRM : DP_ITEM_COUNT;
    item->low = rounds;
    item->rank = lock->laggard >= 0 ? lock->laggard : n->rank;
    item->list_count = 0;
    if (!dp_is_root(n)) {
        dp_outbox_up_item(n, item);
        return;
    }
    dp_outbox_down(n, n->world->expect, item, 0);
    note_confirmed(n, rounds);
}

static void say_stand(dp_negotiator_t *n)
{
    dp_lock_t *lock = &n->lock;
    dp_item_t *item = &n->made;

    if (!lock->is_held || lock->waiting > 0 || lock->is_stand_said || n->is_fatal) return;
    lock->is_stand_said = 1;
    item->kind = dp_is_root(n) ? DP_ITEM_SCHEDULE_END : DP_ITEM_REACHED;
    item->low = lock->low;
    item->high = lock->high;
    item->list_count = 0;
    if (!give_rounds(n, item)) return;
    if (dp_is_root(n)) {
        item->low = dp_min(item->low, item->high);
        dp_outbox_down(n, n->world->expect, item, 1);
        dp_outbox_close_down(n);
    } else {
        dp_outbox_up_item(n, item);
    }
    item->rounds = NULL; /* the scratch stays ours */
    item->round_count = 0;
    if (!dp_is_root(n)) return;
    if (!n->is_fatal) dp_lock_end(n, dp_min(lock->low, lock->high), lock->high);
}

void dp_lock_flush(dp_negotiator_t *n)
{
    if (!n->lock.is_scheduled) return;
    dp_lock_run(n);
    if (!n->is_fatal) say_counts(n);
    if (!n->is_fatal) say_reason(n);
    say_stand(n);
}
